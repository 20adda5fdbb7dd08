# SPDX-License-Identifier: Apache-2.0
"""Staging writers, as Spark would call them: a commit writes rows to the log, and nothing else remains."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make spark, or pip install '.[spark]'")

from shmaccum.arena import Arena
from shmaccum.exceptions import InvalidArgumentError, LogBusyError, RecordTooLargeError, TransactionOverError
from shmaccum.log.files import LogDirectory, LogReader, TransactionId
from shmaccum.spark import arrow_appender
from shmaccum.spark.exactly_once import (
    BATCH_ID,
    QUERY_ID,
    ExactlyOnceBatchWriter,
    ExactlyOnceStreamWriter,
    StagedCommit,
)
from shmaccum.spark.settings import sink_settings
from shmaccum.spark.writers import SinkPlan
from tests.support.arenas import each_semaphore
from tests.support.processes import WATCHDOG_S, Child, wait_until
from tests.unit.spark.test_settings import schema
from tests.unit.spark.test_writers import batches, numbers

VALUES = schema("value:binary")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def plan(log: Path, **options: Any) -> SinkPlan:
    given = {"sink": f"log:{log}", "topic": "flights", "deliveryGuarantee": "exactly_once", "bufferMemory": "256KiB"}
    return SinkPlan.of(sink_settings({**given, **options}), VALUES)


def batch_writer(log: Path, **options: Any) -> ExactlyOnceBatchWriter:
    return ExactlyOnceBatchWriter(plan(log, **options))


@pytest.fixture
def query(task: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Make the task belong to a query. Change the batch id as the query advances."""
    properties = {QUERY_ID: "0b0c6a20-query", BATCH_ID: "4"}
    monkeypatch.setattr(task, "_localProperties", properties, raising=False)
    return properties


def left(log: Path) -> list[str]:
    """The files in the staging folder."""
    return os.listdir(log / ".staging")


# --- batches


def test_rows_are_in_the_log_when_the_job_commits_and_not_before(log: Path) -> None:
    writer = batch_writer(log)
    message = writer.write(batches(100, 0, 400))
    assert message.record_count == 500
    assert not LogReader(log).topics()
    writer.commit([message])
    assert numbers(log) == list(range(500))
    assert left(log) == []


def test_what_spark_pickles_can_be_pickled(log: Path) -> None:
    writer = batch_writer(log)
    message = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(writer)).write(batches(3))))
    again = pickle.loads(pickle.dumps(writer))
    again.commit([message])
    again.commit([message])
    again.abort([message])
    assert numbers(log) == [0, 1, 2]


def test_losers_and_attempts_that_failed_leave_nothing(log: Path) -> None:
    writer = batch_writer(log)

    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches(300)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        writer.write(failing())
    assert left(log) == []
    loser, winner = writer.write(batches(50)), writer.write(batches(50))
    assert loser != winner
    writer.commit([winner, None])
    assert numbers(log) == list(range(50))
    assert left(log) == []


def test_winners_come_in_the_order_of_their_partitions(log: Path, task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, messages = batch_writer(log), []
    for partition, words in ((2, [b"c", b"d"]), (0, [b"a"]), (1, [])):
        monkeypatch.setattr(task, "_partitionId", partition)
        messages.append(writer.write(iter([pa.record_batch({"value": pa.array(words, pa.binary())})])))
    assert [message.record_count for message in messages] == [2, 1, 0]
    writer.commit(messages)
    assert [record.value for record in LogReader(log).partition("flights", 0).records()] == [b"a", b"c", b"d"]


def test_a_job_that_was_aborted_leaves_nothing_and_takes_nothing_any_more(log: Path) -> None:
    writer = batch_writer(log)
    message = writer.write(batches(10))
    writer.abort([message, None])
    assert left(log) == []
    with pytest.raises(TransactionOverError, match="was aborted"):
        writer.write(batches(10))
    with pytest.raises(TransactionOverError, match="nothing was written"):
        writer.commit([message])
    assert left(log) == []


def test_more_rows_than_the_arena_holds_and_more_partitions_than_it_has_buffers(log: Path) -> None:
    frame = pa.record_batch({"value": [b"x" * 100] * 20_000, "key": [b"%d" % number for number in range(20_000)]})
    writer = ExactlyOnceBatchWriter(
        SinkPlan.of(plan(log, partitions="40", batchSize="16KiB").settings, schema("value:binary;key:binary"))
    )
    writer.commit([writer.write(iter([frame]))])
    reader = LogReader(log)
    counts = [sum(1 for _ in reader.partition("flights", number).records()) for number in range(40)]
    assert sum(counts) == 20_000
    assert min(counts) > 300


def batch_sizes(log: Path) -> list[int]:
    reader = LogReader(log)
    partitions = [reader.partition("flights", number) for number in reader.partitions("flights")]
    return [batch.size for partition in partitions for batch in partition.batches()]


@pytest.mark.parametrize(
    ("options", "least", "most"),
    [
        ({"bufferMemory": "8MiB"}, 100 << 10, 128 << 10),
        ({"bufferMemory": "8MiB", "batchSize": "32KiB"}, 30 << 10, 32 << 10),
        ({"bufferMemory": "256KiB"}, 60 << 10, 64 << 10),
        ({"bufferMemory": "256KiB", "partitions": "2"}, 30 << 10, 32 << 10),
        ({"bufferMemory": "256KiB", "partitions": "40"}, 0, 16 << 10),
    ],
)
def test_staged_batches_are_as_large_as_the_arena_allows(
    log: Path, options: dict[str, str], least: int, most: int
) -> None:
    writer = batch_writer(log, **options)
    frame = pa.record_batch({"value": [b"x" * 1000] * 2000})
    writer.commit([writer.write(iter([frame]))])
    sizes = batch_sizes(log)
    assert least <= max(sizes) <= most


def test_a_task_that_ends_well_reports_nothing(log: Path, caplog: pytest.LogCaptureFixture) -> None:
    writer = batch_writer(log)
    writer.commit([writer.write(batches(10))])
    assert caplog.messages == []


def test_a_topic_that_is_there_keeps_its_partitions(log: Path) -> None:
    with LogDirectory(log) as directory:
        directory.create_topic("flights", 3)
    writer = batch_writer(log, partitions="7")
    writer.commit([writer.write(batches(10))])
    assert LogReader(log).partitions("flights") == [0, 1, 2]


def test_a_policy_of_syncing_holds_for_what_is_staged(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fdatasync = os.fdatasync

    def noted(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", noted)
    writer = batch_writer(log, sync="batch")
    message = writer.write(batches(10))
    assert any("/.staging/" in path and path.endswith(".log") for path in synced)
    writer.commit([message])
    assert any(str(log / "flights-0") in path for path in synced)


def test_a_record_that_is_too_large_fails_the_task(log: Path) -> None:
    writer = batch_writer(log, max_request_size="10KiB")
    with pytest.raises(RecordTooLargeError) as caught:
        writer.write(iter([pa.record_batch({"value": [b"x" * 20_000]})]))
    assert "create the arena" not in str(caught.value)
    assert "raise the limits of the write: .option('maxRequestSize', '8MiB')" in str(caught.value)
    assert left(log) == []


def stage_and_wait(log: Path, transaction: TransactionId, writer: int) -> None:
    """A worker that appends more than its arena can contain. It is killed after its start."""
    mine = batch_writer(log)
    mine.transaction = transaction

    def rows() -> Iterator[pa.RecordBatch]:
        yield from batches(5000, size=100)
        os.write(writer, b".")
        signal.pause()

    mine.write(rows())


def test_a_worker_that_is_killed_leaves_what_the_commit_deletes(log: Path) -> None:
    writer = batch_writer(log)
    reader, end = os.pipe()
    child = Child(stage_and_wait, log, writer.transaction, end)
    assert os.read(reader, 1) == b"."
    child.kill()
    assert len(left(log)) == 1
    writer.commit([writer.write(batches(10))])
    assert left(log) == []
    assert numbers(log) == list(range(10))


def test_a_zombie_ends_with_the_reason(log: Path) -> None:
    writer = batch_writer(log)
    winner = writer.write(batches(10))

    def late() -> Iterator[pa.RecordBatch]:
        yield from batches(10)
        writer.commit([winner])
        yield from batches(10)

    message = writer.write(late())  # the commit is over: Spark must not repeat the task
    assert message.winner is None
    assert left(log) == []
    assert numbers(log) == list(range(10))


def test_a_directory_that_another_writes_is_waited_for(log: Path) -> None:
    patient = batch_writer(log, max_block_ms=int(WATCHDOG_S * 1000))
    message = patient.write(batches(10))
    hasty = batch_writer(log, max_block_ms=100)
    hasty.transaction = patient.transaction
    with LogDirectory(log), pytest.raises(LogBusyError, match="nothing was written"):
        hasty.commit([message])
    holder = LogDirectory(log)
    thread = threading.Thread(target=patient.commit, args=([message],))
    thread.start()
    wait_until(lambda: any(name.endswith(".decided") for name in os.listdir(log / ".transactions")), "it is decided")
    holder.close()
    thread.join(WATCHDOG_S)
    assert numbers(log) == list(range(10))


def test_arenas_of_tasks_leave_nothing_in_shared_memory(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arenas: list[bytes] = []
    create = Arena.create

    def noted(*arguments: Any, **options: Any) -> Arena:
        arena = create(*arguments, **options)
        arenas.append(arena.uuid)
        return arena

    monkeypatch.setattr(Arena, "create", noted)
    writer = batch_writer(log, bufferMemory="64KiB")
    writer.commit([writer.write(batches(5000, size=200))])
    assert len(arenas) == 1
    assert list(each_semaphore(arenas[0])) == []


# --- streams


def test_a_micro_batch_that_comes_again_is_there_once(log: Path, query: dict[str, str]) -> None:
    first = ExactlyOnceStreamWriter(plan(log)).write(batches(20))
    assert first.transaction == TransactionId(query[QUERY_ID], 4)
    second = ExactlyOnceStreamWriter(plan(log)).write(batches(20))
    ExactlyOnceStreamWriter(plan(log)).commit([second], batchId=4)
    ExactlyOnceStreamWriter(plan(log)).abort([second], batchId=4)
    third = ExactlyOnceStreamWriter(plan(log)).write(batches(20))  # the driver died before it received the result
    assert third.winner is None
    ExactlyOnceStreamWriter(plan(log)).commit([third], batchId=4)
    assert numbers(log) == list(range(20))
    query[BATCH_ID] = "5"
    ExactlyOnceStreamWriter(plan(log)).commit([ExactlyOnceStreamWriter(plan(log)).write(batches(3))], batchId=5)
    assert numbers(log) == sorted([*range(20), 0, 1, 2])
    assert left(log) == []


def test_a_micro_batch_that_was_aborted_may_come_again(log: Path, query: dict[str, str]) -> None:
    message = ExactlyOnceStreamWriter(plan(log)).write(batches(20))
    ExactlyOnceStreamWriter(plan(log)).abort([message, None], batchId=4)
    assert left(log) == []
    again = ExactlyOnceStreamWriter(plan(log)).write(batches(20))
    ExactlyOnceStreamWriter(plan(log)).commit([again], batchId=4)
    assert numbers(log) == list(range(20))
    assert again.transaction.series == query[QUERY_ID]


def test_a_micro_batch_without_a_query_does_nothing(log: Path) -> None:
    writer = ExactlyOnceStreamWriter(plan(log))
    writer.commit([], batchId=1)
    writer.abort([None], batchId=1)
    assert not log.exists()


def test_a_task_without_a_query_reports_what_to_do(log: Path, query: dict[str, str]) -> None:
    del query[QUERY_ID]
    with pytest.raises(InvalidArgumentError, match="use foreachBatch with transactionSeries"):
        ExactlyOnceStreamWriter(plan(log)).write(batches(1))


# --- options


def test_a_batch_that_the_user_names_is_written_once(log: Path) -> None:
    named = {"transactionSeries": "nightly", "transactionNumber": "7"}
    for _ in range(2):
        writer = batch_writer(log, **named)
        writer.commit([writer.write(batches(10))])
    assert numbers(log) == list(range(10))
    with pytest.raises(InvalidArgumentError, match="are for foreachBatch"):
        ExactlyOnceStreamWriter(plan(log, **named))


def test_a_message_reports_its_attempt(log: Path) -> None:
    message = batch_writer(log).write(batches(1))
    assert isinstance(message, StagedCommit)
    assert (message.partition_id, message.attempt_number, message.task_attempt_id) == (3, 1, 7)
    assert message.winner is not None
    assert message.winner.attempt.startswith("3-7-")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"arena": "events"}, "omit arena and sender"),
        ({"sender": "external"}, "omit arena and sender"),
        ({"sink": "kafka:localhost:9092"}, "to Kafka stages in files: set .option('stagingPath', DIR)"),
        ({"sink": None}, "the sink is None"),
        ({"sink": "log:relative"}, "relative path"),
        ({"sink": "log:/shared/{node}"}, "must share one directory"),
        ({"idleExitMs": "1s"}, "idle_exit_ms has no effect"),
        ({"deliveryGuarantee": "most_once"}, "not one of at_least_once, exactly_once"),
        ({"transactionNumber": "7"}, "belong together"),
        ({"transactionSeries": "a.b", "transactionNumber": "7"}, "cannot name a transaction"),
        ({"deliveryGuarantee": "at_least_once", "transactionSeries": "a", "transactionNumber": "7"}, "no effect"),
        ({"bufferMemory": "lots"}, "buffer_memory: 'lots' is not a size"),
    ],
)
def test_what_makes_no_sense_is_refused(log: Path, given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        plan(log, **given)
    assert sentence in str(caught.value)


def test_a_function_for_map_in_arrow_cannot(log: Path) -> None:
    with pytest.raises(InvalidArgumentError):
        arrow_appender("events", sink=f"log:{log}", deliveryGuarantee="exactly_once")
