# SPDX-License-Identifier: Apache-2.0
"""Writers as Spark would call them: when a task returns, everything is delivered. A sender is supervised."""

from __future__ import annotations

import fcntl
import os
import pickle
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make spark, or pip install '.[spark]'")

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter

from shmaccum.arena import Arena
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import (
    BufferExhaustedError,
    DeliveryFailedError,
    DeliveryTimeoutError,
    FlushTimeoutError,
    InvalidArgumentError,
    OtherSinkError,
    SenderNotStartedError,
)
from shmaccum.log.files import LogReader
from shmaccum.producer.deliveries import OffsetRange
from shmaccum.sender import Sender
from shmaccum.sender.sinks import open_sink
from shmaccum.spark import arrow_appender
from shmaccum.spark.columns import sink_columns
from shmaccum.spark.exactly_once import ExactlyOnceStreamWriter
from shmaccum.spark.node import node_producer
from shmaccum.spark.node_sender import NodeSender
from shmaccum.spark.settings import SinkSettings, sink_settings
from shmaccum.spark.task_writer import TaskWriter
from shmaccum.spark.writers import BatchWriter, SinkPlan, StreamWriter
from tests.support.arenas import sender_pid
from tests.support.processes import run_in_child, wait_until
from tests.support.sender import FailingSink, ScriptedSink, refuse
from tests.unit.spark.conftest import Running, forget_producers
from tests.unit.spark.test_settings import schema

EXTERNAL = {"sender": "external", "linger_ms": 0}
VALUES = schema("value:binary")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def batches(*counts: int, size: int = 20) -> Iterator[pa.RecordBatch]:
    """Numbered values, in batches of this many rows, with an extra column that the sink ignores."""
    first = 0
    for count in counts:
        values = [b"%d" % number + b"." * size for number in range(first, first + count)]
        yield pa.record_batch({"noise": list(range(count)), "value": pa.array(values, pa.binary())})
        first += count


def plan(arena: str, **options: Any) -> SinkPlan:
    return SinkPlan.of(sink_settings({"arena": arena, "topic": "flights", **EXTERNAL, **options}), VALUES)


def numbers(log: Path, topic: str = "flights") -> list[int]:
    """The numbers of all values in a log, sorted."""
    reader = LogReader(log)
    partitions = [reader.partition(topic, number) for number in reader.partitions(topic)]
    values = [record.value for partition in partitions for record in partition.records()]
    return sorted(int((value or b"").partition(b".")[0]) for value in values)


# --- a task


def test_a_task_returns_when_its_records_are_delivered(arena: Arena, log: Path, running: Running) -> None:
    with running(arena, f"log:{log}"):
        commit = BatchWriter(plan(arena.name)).write(batches(100, 1, 0, 400))
        assert numbers(log) == list(range(501))
    assert commit.record_count == 501
    assert commit.offsets == {TopicPartition("flights", 0): OffsetRange(501, 0, 500)}
    assert (commit.partition_id, commit.attempt_number, commit.task_attempt_id) == (3, 1, 7)


def test_what_spark_pickles_can_be_pickled(arena: Arena, log: Path, running: Running) -> None:
    writer = pickle.loads(pickle.dumps(BatchWriter(plan(arena.name))))
    with running(arena, f"log:{log}"):
        commit = writer.write(batches(3))
    assert pickle.loads(pickle.dumps(commit)) == commit
    writer = pickle.loads(pickle.dumps(writer))
    writer.commit([commit])
    writer.abort([commit, None])
    assert numbers(log) == [0, 1, 2]


def test_batches_larger_than_the_arena_pass_through_it(arena: Arena, log: Path, running: Running) -> None:
    with running(arena, f"log:{log}"):
        commit = BatchWriter(plan(arena.name)).write(batches(20_000, size=100))
    assert commit.record_count == 20_000
    assert numbers(log) == list(range(20_000))


def test_results_are_taken_before_they_are_overwritten(arena_name: str, log: Path, running: Running) -> None:
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size=256, completion_count=512) as arena:
        with running(arena, f"log:{log}"):
            commit = BatchWriter(plan(arena.name)).write(batches(3000, size=100))
        assert arena.statistics().completion_count > 2 * arena.geometry["completion_count"]
        assert commit.record_count == 3000
        forget_producers()


def test_offsets_are_reported_for_each_partition(arena: Arena, log: Path, running: Running) -> None:
    frame = pa.record_batch(
        {"value": [b"a", b"b", b"c"], "partition": pa.array([0, 1, 1], pa.int32()), "topic": ["x", "x", "x"]}
    )
    settings = sink_settings({"arena": arena.name, **EXTERNAL})
    columns = sink_columns(schema("value:binary;partition:integer;topic:string"), None)
    with running(arena, open_sink(f"log:{log}", partitions=2)), TaskWriter(settings, columns) as task:
        task.append(frame)
        delivered = task.finish()
    assert delivered.offsets == {
        TopicPartition("x", 0): OffsetRange(1, 0, 0),
        TopicPartition("x", 1): OffsetRange(2, 0, 1),
    }


def test_a_task_without_rows_delivers_nothing(arena: Arena, log: Path, running: Running) -> None:
    with running(arena, f"log:{log}"):
        assert BatchWriter(plan(arena.name)).write(iter([])).record_count == 0


def test_a_stream_s_task_writes_arrow_batches(arena: Arena, log: Path, running: Running) -> None:
    with running(arena, f"log:{log}"):
        writer = StreamWriter(plan(arena.name))
        commit = writer.write(batches(5))
        writer.commit([commit], batchId=1)
    assert numbers(log) == [0, 1, 2, 3, 4]


def test_a_writer_of_streams_takes_arrow_in_every_version_of_spark(arena: Arena) -> None:
    """Rows of Spark 4.0 have times without a zone, in the zone of the worker."""
    kinds = (DataSourceArrowWriter, getattr(datasource, "DataSourceStreamArrowWriter", DataSourceArrowWriter))
    assert isinstance(StreamWriter(plan(arena.name)), kinds)
    assert isinstance(ExactlyOnceStreamWriter(plan(arena.name)), kinds)


# --- failures


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.date32()])
def test_a_time_that_is_no_instant_fails_the_task(arena: Arena, log: Path, running: Running, kind: Any) -> None:
    settings = sink_settings({"arena": arena.name, "topic": "x", **EXTERNAL})
    times = pa.array([0], pa.int64() if kind == pa.timestamp("us") else pa.int32()).cast(kind)
    with running(arena, f"log:{log}"), TaskWriter(settings) as task:
        with pytest.raises(InvalidArgumentError, match="which has no time zone: cast it to timestamp"):
            task.append(pa.record_batch({"value": [b"a"], "timestamp": times}))
        assert task.finish().record_count == 0


def test_a_refused_record_fails_the_task(arena: Arena, running: Running) -> None:
    sink = ScriptedSink()
    sink.script = [refuse]
    with running(arena, sink), pytest.raises(DeliveryFailedError, match="error 87"):
        BatchWriter(plan(arena.name)).write(batches(3))


def test_a_row_without_a_topic_fails_the_task(arena: Arena, log: Path, running: Running) -> None:
    settings = sink_settings({"arena": arena.name, **EXTERNAL})
    with running(arena, f"log:{log}"), TaskWriter(settings) as task:
        with pytest.raises(InvalidArgumentError, match="row 1 has no topic"):
            task.append(pa.record_batch({"value": [b"a", b"b"], "topic": ["x", None]}))
        assert task.finish().record_count == 0


def test_without_an_external_sender_a_task_fails_and_reports_what_to_run(arena: Arena) -> None:
    arena.native.set_topic_partition_count("flights", 1)
    with pytest.raises(SenderNotStartedError, match=f"run shmaccum sender {arena.name} --sink"):
        BatchWriter(plan(arena.name, max_block_ms=300)).write(batches(3))
    forget_producers()
    from tests.support.accumulator import Accumulator

    with Accumulator(arena) as sender:
        sender.become_sender()
        sender.abort(True)
        sender.maintain()


def test_a_full_arena_fails_the_task_after_max_block_and_loses_nothing(arena: Arena, running: Running) -> None:
    sink = ScriptedSink(partitions=1)
    sink.is_held = True
    arena.native.set_topic_partition_count("flights", 1)  # no call waits for the count
    writer = BatchWriter(plan(arena.name, max_block_ms=300))
    with running(arena, sink):
        started_s = time.monotonic()
        with pytest.raises(BufferExhaustedError, match=r"max blocking time 300 ms\. .* The sender is running\."):
            writer.write(batches(20_000, size=100))
        assert time.monotonic() - started_s >= 0.3
        sink.is_held = False
        patient = BatchWriter(plan(arena.name))
        assert patient.write(batches(3)).record_count == 3
    values = [int((value or b"").partition(b".")[0]) for value in sink.broker.values("flights", 0)]
    assert len(values) == arena.statistics().record_count
    assert 0 < len(values) - 3 < 20_000
    assert values == [*range(len(values) - 3), *range(3)]


def test_a_sink_that_cannot_be_opened_fails_the_task_with_its_reason(arena: Arena, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("a file")
    settings = SinkSettings(arena.name, "flights", f"log:{tmp_path / 'log'}")
    with pytest.raises(SenderNotStartedError, match="is not a directory"), TaskWriter(settings):
        pass


# --- the node


def test_a_process_has_one_producer_for_an_arena(arena: Arena) -> None:
    first = node_producer(arena.name, {"linger_ms": 0})
    assert node_producer(arena.name, {"linger_ms": 0}) is first
    assert node_producer(arena.name, {"linger_ms": 1}) is not first


def test_an_arena_is_created_on_first_use(arena_name: str) -> None:
    producer = node_producer(arena_name, {}, {"buffer_memory": "128KiB", "batch_size": "4KiB"})
    assert producer.arena.geometry["buffer_memory"] == 128 << 10
    forget_producers()


def test_an_arena_that_was_created_again_gets_a_new_producer(arena_name: str) -> None:
    first = node_producer(arena_name, {}, {"buffer_memory": "64KiB", "batch_size": "4KiB"})
    first_arena = first.arena
    Arena.remove(arena_name)
    second = node_producer(arena_name, {}, {"buffer_memory": "64KiB", "batch_size": "4KiB"})
    assert second is not first
    assert first.closed
    first_arena.close()
    forget_producers()


def attach_with_little_room(arena_name: str) -> str:
    """Attach in a worker whose address space is almost full."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (16 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with pytest.raises(MemoryError) as caught:
        node_producer(arena_name, {}, {"buffer_memory": "64MiB"})
    return str(caught.value)


SHORT: dict[str, Any] = {"delivery_timeout_ms": 300, "request_timeout_ms": 100}


@pytest.mark.parametrize(
    ("reason", "error", "sentence"),
    [
        (
            "the disk is full",
            FlushTimeoutError,
            (
                r"no record of this task was delivered for 0\.3 s \(the sink has not worked for .*: the disk is full; "
                r"no record expires meanwhile\): 3 records remain in the arena '.*' and are delivered later"
            ),
        ),
        (None, DeliveryTimeoutError, r"not delivered within delivery_timeout_ms \(300 ms of time in which"),
    ],
)
def test_a_task_waits_for_a_finite_time(
    arena: Arena, log: Path, running: Running, reason: str | None, error: type[Exception], sentence: str
) -> None:
    sink = FailingSink(partitions=1)
    sink.plan_filter = lambda _: False
    sink.reason = reason
    with running(arena, sink, **SHORT), pytest.raises(error, match=sentence):
        BatchWriter(plan(arena.name)).write(batches(3))
    if reason is not None:
        with running(arena, f"log:{log}"):
            wait_until(lambda: arena.native.state_counts()["READY"] == 0, "the left batches are delivered")
        assert numbers(log) == [0, 1, 2]


def test_an_arena_that_does_not_fit_into_a_worker_reports_what_to_raise(arena_name: str) -> None:
    sentence = run_in_child(attach_with_little_room, arena_name)
    assert "raise spark.executor.pyspark.memory" in sentence
    assert not Arena.exists(arena_name)


def test_an_arena_that_has_another_size_is_left_as_it_is_and_reports_it(
    arena_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Arena.create(arena_name, buffer_memory="128KiB", batch_size="4KiB") as arena:
        node_producer(arena_name, {}, {"buffer_memory": "128KiB"})
        assert not caplog.messages
        forget_producers()
        node_producer(arena_name, {}, {"buffer_memory": "64KiB", "batch_size": "8KiB"})
        assert caplog.messages == [
            f"{arena.name} already exists and was not changed: its buffer_memory is 128 KiB, not 64 KiB",
            f"{arena.name} already exists and was not changed: its batch_size is 4 KiB, not 8 KiB",
        ]
        node_producer(arena_name, {}, {"buffer_memory": "64KiB", "batch_size": "8KiB"})
        assert len(caplog.messages) == 2, "once for each producer"
        forget_producers()


def test_a_task_whose_node_delivers_elsewhere_fails(arena: Arena, log: Path, running: Running) -> None:
    given = {"arena": arena.name, "topic": "flights", "sink": f"log:{log}2"}
    writer = BatchWriter(SinkPlan.of(sink_settings(given), VALUES))
    with running(arena, f"log:{log}"), pytest.raises(OtherSinkError, match=f"log:{log}, and log:{log}2 was asked for"):
        writer.write(batches(3))
    same = {**given, "sink": f"log:{log}/../{log.name}/"}
    with running(arena, f"log:{log}"):
        assert BatchWriter(SinkPlan.of(sink_settings(same), VALUES)).write(batches(3)).record_count == 3
        assert BatchWriter(plan(arena.name)).write(batches(3)).record_count == 3, "external: whatever there is"


def test_a_task_fails_when_its_sender_is_followed_by_one_that_delivers_elsewhere(arena: Arena, log: Path) -> None:
    settings = sink_settings({"arena": arena.name, "topic": "flights", "sink": "memory:"})
    first, second = Sender(arena.name, "memory:"), Sender(arena.name, f"log:{log}")
    first.open()

    def is_over(node_sender: NodeSender) -> bool:
        node_sender.check()
        return False

    with NodeSender(arena, settings) as node_sender, Path(f"/dev/shm/{arena.name}").open("rb") as file:
        node_sender.check()
        fcntl.flock(file, fcntl.LOCK_EX)  # as if another process were elected: this one starts no sender meanwhile
        first.close()
        second.open()
        with pytest.raises(OtherSinkError, match="and memory: was asked for"):
            wait_until(lambda: is_over(node_sender), "the sender has ended")
    second.close()


def test_a_task_starts_a_sender_and_another_one_when_that_is_killed(arena_name: str, log: Path) -> None:
    given = {
        "arena": arena_name,
        "topic": "flights",
        "sink": f"log:{log}",
        "bufferMemory": "64KiB",
        "batchSize": "4KiB",
    }
    plan = SinkPlan.of(sink_settings(given | {"idle.exit.ms": "100ms"}), VALUES)

    def with_a_kill() -> Iterator[pa.RecordBatch]:
        parts = list(batches(300, 300))
        yield parts[0]
        arena = node_producer(arena_name, plan.settings.producer_options).arena
        pid = sender_pid(arena)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        yield parts[1]

    commit = plan.write(with_a_kill())
    assert commit.record_count == 600
    assert numbers(log) == list(range(600))
    forget_producers()
    with Arena.open_read_only(arena_name) as arena:  # an attached process would prevent its exit
        wait_until(lambda: not arena.native.sender_is_alive, "the sender has left")


def test_a_function_for_map_in_arrow(arena: Arena, log: Path, running: Running) -> None:
    append = arrow_appender(arena.name, topic="flights", **EXTERNAL)
    with running(arena, f"log:{log}"):
        (answer,) = append(pa.record_batch({"value": [b"0", b"1"]}) for _ in range(1))
    assert answer.to_pylist() == [{"record_count": 2}]
    assert numbers(log) == [0, 1]
