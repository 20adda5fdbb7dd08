# SPDX-License-Identifier: Apache-2.0
"""Tasks and senders are killed or fail in the middle of a write, and the log is checked afterwards."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shmaccum.arena import Arena
from shmaccum.log.files import LogReader
from tests.support.arenas import sender_pid
from tests.support.processes import wait_until

pytestmark = pytest.mark.spark

ROW_COUNT = 4000


def write_wounded(spark: Any, arena: str, log: Path, wound: str, *, width: int = 1, **options: str) -> Counter[int]:
    """Write numbers, four batches of Arrow in each of two tasks. Return the count of each number in the log.

    Args:
        width: the minimum bytes of a value.
    """
    from tests.spark.wounds import WoundedSource

    spark.dataSource.register(WoundedSource)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 500)
    try:
        frame = spark.range(ROW_COUNT, numPartitions=2).selectExpr(
            f"rpad(cast(id as string), greatest({width}, length(id)), ' ') value"
        )
        writer = frame.write.format("wounded").mode("append")
        writer.options(arena=arena, sink=f"log:{log}", topic="flights", wound=wound, **options).save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    return found(log)


def found(log: Path) -> Counter[int]:
    """Return the count of each number in the log."""
    return Counter(int(record.value or b"-1") for record in LogReader(log).partition("flights", 0).records())


@pytest.mark.parametrize("wound", ["kill_worker", "fail"])
def test_an_attempt_that_ends_in_the_middle_leaves_duplicates_and_nothing_worse(
    spark: Any, node_arena: str, log: Path, wound: str
) -> None:
    values = write_wounded(spark, node_arena, log, wound)
    assert set(values) == set(range(ROW_COUNT))
    repeated = {number for number, count in values.items() if count > 1}
    assert repeated <= set(range(500)), "only the batch that the first attempt had appended is there twice"
    assert max(values.values()) <= 2


def test_a_killed_sender_is_replaced_and_nothing_is_there_twice(spark: Any, node_arena: str, log: Path) -> None:
    assert write_wounded(spark, node_arena, log, "kill_sender") == Counter(range(ROW_COUNT))


@pytest.mark.spark_cluster
def test_workers_that_spark_ends_because_they_are_idle_leave_nothing(spark: Any, node_arena: str, log: Path) -> None:
    """After a minute, they end by os._exit without running handlers. The next job starts new ones."""
    assert write_wounded(spark, node_arena, log, "") == Counter(range(ROW_COUNT))
    with Arena.open_read_only(node_arena) as arena:
        workers = {row["pid"] for row in arena.native.processes()} - {sender_pid(arena)}
        assert workers
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), "Spark has ended them", 240)
        assert write_wounded(spark, node_arena, log, "") == Counter([*range(ROW_COUNT)] * 2)
        assert not workers & {row["pid"] for row in arena.native.processes()}, "their entries were taken back"


# --- a full arena: each task writes more than it can contain, and its sender is stopped


WIDTH = 8000
"""The size of a value. Each task has 16 MB of values."""
SENTENCE = r"Failed to allocate 16384 bytes within the configured max blocking time \d+ ms.* The sender is running\."


def check_everything_came_out(arena_name: str, values: Counter[int]) -> None:
    """Check that each record of every attempt was delivered once."""
    with Arena.open_read_only(arena_name) as arena:
        found = arena.statistics()
    assert found.slots["READY"] == found.slots["BAD"] == 0
    assert found.counters["records completed"] == values.total()
    assert set(values) == set(range(ROW_COUNT))


def test_a_task_that_finds_the_arena_full_fails_and_the_next_attempt_delivers(
    spark: Any, node_arena: str, log: Path, tmp_path: Path
) -> None:
    options = {"sign": str(tmp_path / "sign"), "maxBlockMs": "10s"}  # longer than the next attempt waits
    values = write_wounded(spark, node_arena, log, "stop_sender", width=WIDTH, **options)
    assert re.search(SENTENCE, (tmp_path / "sign").read_text())
    check_everything_came_out(node_arena, values)


def test_a_job_that_finds_the_arena_full_reports_what_to_do_and_the_next_one_delivers(
    spark: Any, node_arena: str, log: Path
) -> None:
    with pytest.raises(Exception, match=SENTENCE + " If it cannot keep up, give the arena a larger buffer_memory"):
        write_wounded(spark, node_arena, log, "stop_sender_for_good", width=WIDTH, maxBlockMs="1s")
    with Arena.open_read_only(node_arena) as arena:
        pid = sender_pid(arena)
    assert pid is not None
    os.kill(pid, signal.SIGCONT)
    write_wounded(spark, node_arena, log, "", width=WIDTH)
    check_everything_came_out(node_arena, found(log))
