# SPDX-License-Identifier: Apache-2.0
"""Transactions of processes that are killed at random are in a log whole, or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from shmaccum.segment_log.reader import LogReader
from tests.chaos.transactions import PARTITIONS, TOPIC, Trial, judge, make, wanted_count


def committed(path: Path) -> list[str]:
    """The values that a reader of committed records gets."""
    reader = LogReader(path, isolation_level="read_committed")
    logs = [reader.partition(TOPIC, partition) for partition in range(PARTITIONS)]
    return [record.value.decode() for log in logs for record in log.records() if record.value is not None]


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_transactions_of_processes_that_are_killed_are_there_whole_or_not_at_all(
    arena_name: str, tmp_path: Path, seeded: Callable[[], random.Random]
) -> None:
    make(arena_name)
    trial = Trial(arena_name, f"log:{tmp_path / 'log'}", tmp_path, seeded())
    try:
        trial.run(wanted_count())
        trial.finish()
    finally:
        trial.end()
    print(judge(trial.ledger, committed(tmp_path / "log")), trial.kills)
