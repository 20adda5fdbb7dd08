# SPDX-License-Identifier: Apache-2.0
"""Transactions of processes that are killed at random are in a log completely or not at all."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.transactions import TOPIC, Trial, judge, make, wanted_count
from tests.support.segment_log import values_of


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
    print(judge(trial.ledger, [value.decode() for value in values_of(tmp_path / "log", TOPIC)]), trial.kills)
