# SPDX-License-Identifier: Apache-2.0
"""Kafka Streams, quixstreams and faust count words in tables, which a restarted program restores from their changelog.

The changelog of a table is a compacted topic. Each test runs on a served log and on Apache Kafka.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.kafka.programs.installation import java_command, python_command
from tests.kafka.programs.program import PARTITION_COUNT, Counting, running

pytestmark = pytest.mark.kafka

HALF = 100


@pytest.fixture
def counting(address: str, unique_name: str) -> Iterator[Counting]:
    with closing(Counting(address, unique_name)) as counting:
        yield counting


def test_streams_counts_exactly_once_also_after_a_kill(address: str, counting: Counting, tmp_path: Path) -> None:
    command = java_command("WordCount.java", address, str(tmp_path / "state"), counting.name)
    counting.send(HALF)
    with running(command, tmp_path / "output") as program:
        counting.wait_until_counted(program)
        counting.send(HALF)
    with running(command, tmp_path / "output") as program:
        counting.wait_until_counted(program)
        counting.send(HALF)
        counting.wait_until_counted(program)
    assert counting.is_increasing()


def test_quixstreams_restores_its_table(address: str, counting: Counting, tmp_path: Path) -> None:
    command = python_command("quixstreams_table.py", address, str(tmp_path / "state"), counting.name)
    counting.send(HALF)
    with running(command, tmp_path / "output") as program:
        counting.wait_until_counted(program)
        counting.wait_until_committed(program)
        program.stop()
    shutil.rmtree(tmp_path / "state")
    counting.send(HALF)
    with running(command, tmp_path / "output") as program:
        counting.wait_until_counted(program)
        program.stop()
    assert counting.is_each_once()


def test_faust_restores_its_table(address: str, counting: Counting, tmp_path: Path) -> None:
    """Its worker may lose a record that was sent before it is ready, also on Apache Kafka, so the test sends later."""
    command = python_command("faust_table.py", address, str(tmp_path / "state"), counting.name, str(PARTITION_COUNT))
    for _ in range(2):
        with running(command, tmp_path / "output") as program:
            program.wait_until_says("Worker ready")
            counting.send(HALF)
            counting.wait_until_counted(program)
            counting.wait_until_committed(program)
            program.stop()
    assert counting.is_each_once()
