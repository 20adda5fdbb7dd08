# SPDX-License-Identifier: Apache-2.0
"""The producer: accepted and rejected values, flush and close, all kinds of processes, and full memory."""

from __future__ import annotations

import ast
import gc
import inspect
import itertools
import logging
import multiprocessing
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum import Producer, _native
from shmaccum._native import DeliveryFuture
from shmaccum.arena import Arena
from shmaccum.arena.reports import Kind, Report
from shmaccum.arena.wake_fifo import SenderWaker
from shmaccum.exceptions import (
    BufferExhaustedError,
    FlushTimeoutError,
    InvalidArgumentError,
    PartitionCountUnknownError,
    ProducerClosedError,
    RecordTooLargeError,
    UnknownPartitionError,
)
from shmaccum.producer import Producer as PlainProducer
from shmaccum.producer import sender_warning
from shmaccum.producer.pipeline import ProducerRecord
from tests.support.accumulator import Accumulator
from tests.support.arenas import Drainer, deliver_all, drain
from tests.support.processes import Child, run_in_child, run_in_process, wait_until

TOPIC = "flights"
PARTITION_COUNT = 3


@pytest.fixture
def topic(arena: Arena) -> str:
    """A topic of three partitions."""
    arena.native.set_topic_partition_count(TOPIC, PARTITION_COUNT)
    return TOPIC


@pytest.fixture
def producer(arena: Arena, topic: str) -> Iterator[Producer]:
    with Drainer(arena), Producer(arena, linger_ms=0) as producer:
        yield producer


def slots_in_use(arena: Arena) -> int:
    return arena.geometry["slot_count"] - arena.native.state_counts()["FREE"]


# --- send


def test_a_record_arrives_as_it_was_sent(arena: Arena, topic: str, sender: Accumulator) -> None:
    with Producer(arena) as producer:
        future = producer.send(topic, b"value", b"key", [("h", b"1"), ("n", None)], 2, 1234)
        (batch,) = drain(sender)
        assert batch.decode() == [(0, 1234, b"key", b"value", [("h", b"1"), ("n", None)])]
        assert (batch.topic, batch.partition) == (topic, 2)
        sender.complete(batch, 1, 77)
        metadata = future.get(60)
    assert metadata == (topic, 2, (topic, 2), 77, 1234, None, 3, 5, 3)


def test_arguments_by_name_are_the_same_as_by_place(arena: Arena, topic: str) -> None:
    with Drainer(arena) as drainer, Producer(arena) as producer:
        producer.send(topic, b"v", b"k", None, 1, 5)
        producer.send(timestamp_ms=5, partition=1, headers=None, key=b"k", value=b"v", topic=topic)
        not_interned: dict[str, Any] = {"".join(["val", "ue"]): b"v"}
        producer.send(topic, **not_interned, key=b"k", partition=1)
    assert drainer.records == {(topic, 1): [(b"k", b"v")] * 3}


@pytest.mark.parametrize("value", [b"v", bytearray(b"v"), memoryview(b"v")])
def test_whatever_is_bytes_like_can_be_sent(arena: Arena, topic: str, value: Any) -> None:
    with Drainer(arena) as drainer, Producer(arena) as producer:
        producer.send(topic, value, key=value, partition=0)
        producer.send(topic, partition=0)
    assert drainer.records == {(topic, 0): [(b"v", b"v"), (None, None)]}


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ({"value": "v"}, TypeError, "value must be bytes-like"),
        ({"key": 3}, TypeError, "key must be bytes-like"),
        ({"headers": {"h": b"1"}}, TypeError, "headers must be"),
        ({"headers": [(b"h", b"1")]}, TypeError, "header's key must be a str"),
        ({"partition": "1"}, TypeError, "partition must be an int"),
        ({"partition": -1}, InvalidArgumentError, "partition is -1"),
        ({"partition": 3}, UnknownPartitionError, "its partition count is 3"),
        ({"timestamp_ms": -5}, InvalidArgumentError, "timestamp_ms is -5"),
        ({"timestamp_ms": 1.5}, TypeError, "timestamp_ms must be an int"),
        ({"value": bytes(100_000)}, RecordTooLargeError, "does not fit"),
        ({"vaule": b"v"}, TypeError, "unexpected keyword argument 'vaule'"),
        ({"topic": "t"}, TypeError, "multiple values for argument 'topic'"),
    ],
)
def test_what_is_wrong_is_reported_and_nothing_appended(
    arena: Arena, topic: str, arguments: dict[str, Any], error: type[Exception], sentence: str
) -> None:
    with Producer(arena, max_block_ms=20) as producer:
        with pytest.raises(error, match=sentence):
            producer.send(topic, **arguments)
        assert producer.record_count == 0
    assert slots_in_use(arena) == 0


def test_a_wrong_topic_is_refused(arena: Arena, topic: str) -> None:
    with Producer(arena) as producer:
        for wrong in ("", "a/b", ".."):
            with pytest.raises(InvalidArgumentError, match="is not a topic name"):
                producer.send(wrong, b"v")
        with pytest.raises(TypeError, match="topic must be a str"):
            producer.send(3, b"v")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="missing required argument 'topic'"):
            producer.send()  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="at most 6 arguments"):
            producer.send(topic, b"v", None, None, None, None, None)  # type: ignore[call-arg]
    assert arena.native.topics() == [topic]


def test_the_same_name_in_another_str_is_the_same_topic(producer: Producer, topic: str) -> None:
    for number in range(300):
        producer.send("".join(["fli", "ghts"]), b"%d" % number).get(60)
    assert producer.arena.native.topics() == [topic]


def test_a_clock_that_goes_backwards_does_no_harm(arena: Arena, topic: str, sender: Accumulator) -> None:
    with Producer(arena) as producer:
        for timestamp_ms in (10_000, 9_000, 0, 11_000):
            producer.send(topic, b"v", partition=0, timestamp_ms=timestamp_ms)
        (batch,) = drain(sender)
        assert [record[1] for record in batch.decode()] == [10_000, 9_000, 0, 11_000]
        assert (batch.base_timestamp_ms, batch.max_timestamp_ms) == (10_000, 11_000)
        sender.complete(batch, 1)


def test_after_close_nothing_can_be_sent(arena: Arena, topic: str) -> None:
    producer = Producer(arena)
    producer.close()
    producer.close()
    with pytest.raises(ProducerClosedError):
        producer.send(topic, b"v")
    assert producer.closed
    piped = Producer(arena, value_serializer="str")
    piped.close()
    with pytest.raises(ProducerClosedError):
        piped.send(topic, "v")


def test_it_is_initialized_once(producer: Producer) -> None:
    with pytest.raises(TypeError, match="once"):
        Producer.__init__(producer, producer.arena)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"linger_sm": 5}, "linger_ms"),
        ({"acks": "all"}, "sender"),
        ({"linger_ms": -1}, "linger_ms"),
        ({"linger_ms": 1, "linger.ms": 1}, "linger"),
    ],
)
def test_wrong_options_are_refused(arena: Arena, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        Producer(arena, **options)


def test_dotted_names_are_options_too(arena: Arena) -> None:
    dotted: dict[str, Any] = {"linger.ms": "7ms", "max.block.ms": 10}
    with Producer(arena, **dotted) as producer:
        assert (producer.options.linger_ms, producer.options.max_block_ms) == (7, 10)


def test_its_linger_is_that_of_the_batches_it_opens(arena: Arena, topic: str, sender: Accumulator) -> None:
    with Producer(arena, linger_ms=60_000) as slow, Producer(arena, linger_ms=0) as quick:
        slow.send(topic, b"v", partition=0)
        quick.send(topic, b"v", partition=1)
        partitions, _ = sender.ready(0)
        assert [arena.native.partitions()[index][1] for index in partitions] == [1]
        deliver_all(sender)


# --- the partition count


def test_a_new_topic_waits_until_its_partition_count_is_reported(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    is_waiting = threading.Event()
    monkeypatch.setattr(SenderWaker, "wake_if_asleep", lambda _: is_waiting.set())
    with Drainer(arena) as drainer, Producer(arena) as producer, ThreadPoolExecutor(1) as sends:
        sent = sends.submit(producer.send, "new", b"v")
        assert is_waiting.wait(60)
        assert arena.native.topics() == ["new"]
        arena.native.set_topic_partition_count("new", 2)
        assert sent.result(60).get(60).topic == "new"
        assert producer.metrics()["producer-metrics"]["metadata-wait-time-ns-total"] > 0
    assert len(drainer.values()) == 1


def test_a_partition_count_that_is_never_reported_is_an_error(arena: Arena) -> None:
    with Producer(arena, max_block_ms=1) as producer:
        with pytest.raises(PartitionCountUnknownError, match="No sender runs: start one"):
            producer.send("new", b"v")
        with pytest.raises(PartitionCountUnknownError):
            producer.partitions_for("new")
    with (
        Drainer(arena),
        Producer(arena, max_block_ms=1) as producer,
        pytest.raises(PartitionCountUnknownError, match="its sink did not report it"),
    ):
        producer.send("new", b"v", partition=0)
    assert slots_in_use(arena) == 0


def test_partitions_for(producer: Producer, topic: str) -> None:
    assert producer.partitions_for(topic) == {0, 1, 2}


# --- facts


def test_a_producer_lists_the_topics_of_its_arena(arena: Arena, topic: str) -> None:
    with Producer(arena) as producer:
        arena.declare_topic("declared", 5)
        assert producer.list_topics() == {topic: 3, "declared": 5}


def test_a_producer_reports_the_troubles_of_its_arena(arena: Arena) -> None:
    with Producer(arena) as producer:
        assert producer.errors() == []
        Report(Kind.RETRIED, "the broker is away", "flights-0").record(arena.native)
        Report(Kind.SENTENCE, "a sentence").record(arena.native)
        assert producer.errors() == ["flights-0 is retried: the broker is away", "a sentence"]


# --- the pipeline


def test_serializers_make_bytes_of_keys_and_values(arena: Arena, topic: str) -> None:
    with Drainer(arena) as drainer, Producer(arena, key_serializer="str", value_serializer="json") as producer:
        future = producer.send(topic, {"a": 1}, key="ä", partition=1)
        producer.send(topic, partition=1)
        assert future.get(60).serialized_value_size == 7
    assert drainer.records == {(topic, 1): [("ä".encode(), b'{"a":1}'), (None, None)]}


def test_a_serializer_that_fails_makes_send_fail(arena: Arena, topic: str) -> None:
    with Producer(arena, value_serializer="str") as producer:
        with pytest.raises(TypeError, match="takes a str"):
            producer.send(topic, 5)
        assert producer.record_count == 0


class Interceptor:
    def __init__(self) -> None:
        self.acknowledged: list[Any] = []
        self.is_closed = False

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return record._replace(headers=[("traced", b"1")], value=record.value * 2)

    def on_acknowledgement(self, metadata: Any, exception: Any) -> None:
        self.acknowledged.append((metadata, exception))

    def close(self) -> None:
        self.is_closed = True


class Broken:
    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise ValueError("broken on purpose")


def test_interceptors_see_records_before_and_results_after(arena: Arena, topic: str) -> None:
    interceptor = Interceptor()
    with (
        Drainer(arena) as drainer,
        Producer(arena, interceptors=[Broken(), interceptor], max_block_ms=1000) as producer,
    ):
        future = producer.send(topic, b"v", partition=0)
        metadata = future.get(60)
        wait_until(lambda: len(interceptor.acknowledged) == 1, "the interceptor was told")
        with pytest.raises(UnknownPartitionError) as caught:
            producer.send(topic, b"v", partition=9)
    assert drainer.records == {(topic, 0): [(None, b"vv")]}
    assert future.headers_size == len(b"traced1")
    assert interceptor.acknowledged == [(metadata, None), (None, caught.value)]
    assert interceptor.is_closed


def test_a_closed_producer_asks_no_interceptor(arena: Arena, topic: str) -> None:
    interceptor = Interceptor()
    producer = Producer(arena, interceptors=[interceptor])
    producer.close()
    with pytest.raises(ProducerClosedError):
        producer.send(topic, b"v")
    assert interceptor.acknowledged == []


def test_a_serializer_may_close_the_producer(arena: Arena, topic: str) -> None:
    producers: list[Producer] = []

    def close(data: Any) -> Any:
        producers[0].close()
        return data

    producers.append(Producer(arena, value_serializer=close))
    with pytest.raises(ProducerClosedError, match="nothing was sent"):
        producers[0].send(topic, b"v")
    assert producers[0].record_count == 0


def test_a_send_through_a_pipeline_names_a_wrong_argument(arena: Arena, topic: str) -> None:
    with Producer(arena, value_serializer="str") as producer:
        with pytest.raises(TypeError, match="valeu"):
            producer.send(topic, valeu="v")  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="topic"):
            producer.send(value="v")  # type: ignore[call-arg]


def test_what_is_left_to_do_after_an_append_may_raise(arena: Arena, topic: str) -> None:
    def conclude(future: DeliveryFuture | None, error: BaseException | None) -> None:
        told.append((future is None, error))
        raise LookupError("planted")

    told: list[Any] = []
    producer = Producer(arena)
    native = _native.NativeProducer(
        producer._appender.native, producer._tracker, lambda *_: 3, lambda *args: (*args, *[None] * 5), conclude
    )
    with pytest.raises(LookupError, match="planted"):
        native.send(topic)
    with pytest.raises(LookupError, match="planted"):
        native.send("not a topic!")
    assert [is_error for is_error, _ in told] == [False, True]
    assert isinstance(told[1][1], InvalidArgumentError)
    wrong: Any = lambda *_: None  # noqa: E731
    with pytest.raises(TypeError, match="as a tuple"):
        _native.NativeProducer(producer._appender.native, producer._tracker, lambda *_: 3, wrong).send(topic)
    producer.close(0)


# --- flush and close


def test_flush_waits_for_everything_sent_before(arena: Arena, topic: str) -> None:
    with Drainer(arena), Producer(arena, linger_ms=60_000) as producer:
        futures = [producer.send(topic, b"%d" % number) for number in range(100)]
        producer.flush(60)
        assert all(future.succeeded() for future in futures)
        assert producer.metrics()["producer-metrics"]["flush-time-ns-total"] > 0


def test_a_closed_producer_has_nothing_to_flush(arena: Arena) -> None:
    producer = Producer(arena)
    producer.close()
    with pytest.raises(ProducerClosedError, match="has flushed all records"):
        producer.flush()


def test_flush_waits_for_nothing_of_others(arena: Arena, topic: str, sender: Accumulator) -> None:
    def send_elsewhere() -> None:
        Producer(arena.name, linger_ms=60_000).send(topic, b"theirs", partition=2)

    run_in_child(send_elsewhere)
    with Producer(arena, linger_ms=60_000) as producer:
        producer.send(topic, b"mine", partition=0)
        flush = threading.Thread(target=producer.flush)
        flush.start()
        mine = sender.partition_index(topic, 0)
        wait_until(lambda: mine in sender.ready(2**62)[0], "the flush sealed its batch")
        (batch,), _ = sender.drain([mine], 2**31)
        sender.complete(batch, 1)
        flush.join()
        assert slots_in_use(arena) == 1
        deliver_all(sender)


def test_a_flush_that_takes_too_long_reports_what_is_left(arena: Arena, topic: str, sender: Accumulator) -> None:
    with Producer(arena) as producer:
        producer.send(topic, b"v", partition=0)
        producer.send(topic, b"v", partition=1)
        with pytest.raises(FlushTimeoutError, match="not delivered yet: at most 2 records, not lost"):
            producer.flush(0.01)
        deliver_all(sender)


def test_the_records_without_a_result_are_counted(arena: Arena, topic: str, sender: Accumulator) -> None:
    with Producer(arena, linger_ms=60_000) as producer, Producer(arena) as other:
        for _ in range(3):
            producer.send(topic, b"v", partition=0)
        producer.send_many(topic, [b"v"] * 4, partition=1)
        other.send(topic, b"theirs", partition=0)
        assert (producer.incomplete_count, other.incomplete_count) == (7, 1)
        assert Child(lambda: producer.incomplete_count).join() == "0"
        assert arena.native.state_counts()["OPEN"] == 2, "the count seals nothing"
        deliver_all(sender)
        assert (producer.incomplete_count, other.incomplete_count) == (0, 0)
    with pytest.raises(ProducerClosedError, match="before close"):
        _ = producer.incomplete_count


def test_close_waits_for_what_was_sent(arena: Arena, topic: str) -> None:
    with Drainer(arena) as drainer:
        producer = Producer(arena, linger_ms=60_000)
        future = producer.send(topic, b"v")
        producer.close()
        assert future.succeeded()
    assert drainer.values() == [b"v"]


@pytest.fixture
def _checks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_warning, "CHECK_INTERVAL_S", 0.0)


def fill(producer: Producer, topic: str) -> None:
    """Send to *topic* past the point at which the arena is full."""
    for _ in range(2 * producer.arena.geometry["slot_count"]):
        producer.send(topic, b"v" * 3000)


NO_SENDER = "no sender of the arena {} runs: records stay in the arena until one is started (shmaccum sender {}"


@pytest.mark.usefixtures("_checks_at_once")
def test_a_producer_without_a_sender_warns_once_and_reports_when_there_is_one(
    arena: Arena, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "shmaccum.producer")
    producer = Producer(arena, linger_ms=0)
    told = NO_SENDER.format(arena.name, arena.name)
    assert caplog.text.count(told) == 1
    for _ in range(arena.geometry["slot_count"]):
        producer.send(topic, b"v" * 3000)
    flushing = threading.Thread(target=producer.flush)
    flushing.start()
    with Drainer(arena):
        flushing.join()
        producer.flush()
    assert caplog.text.count(told) == 1
    assert caplog.text.count(f"the arena {arena.name} has a sender again") == 1
    producer.flush()  # the sender has left
    assert caplog.text.count(told) == 2
    producer.close()


@pytest.mark.usefixtures("_checks_at_once")
@pytest.mark.parametrize("wait", ["buffer", "topic", "silence"])
def test_a_producer_that_waits_or_opens_a_batch_finds_that_its_sender_died(
    wait: str, arena: Arena, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    arena.native.set_manual_clock(10**9)
    with Accumulator(arena) as sender:
        sender.become_sender()
        sender.maintain()
        producer = Producer(arena, max_block_ms=200)  # long enough for one look
    assert caplog.text == ""
    if wait == "silence":
        arena.native.set_manual_clock(5 * 10**9)
        producer.send(topic, b"v")
    elif wait == "topic":
        with pytest.raises(PartitionCountUnknownError, match=rf"unknown.*No sender runs: start one .*{arena.name}"):
            producer.send("unknown", b"v")
    else:
        with pytest.raises(BufferExhaustedError, match=rf"No sender runs: start one .*{arena.name}"):
            fill(producer, topic)
    assert caplog.text.count(NO_SENDER.format(arena.name, arena.name)) == 1
    with Drainer(arena):
        producer.close()


def test_close_in_time_leaves_the_rest_in_the_arena(
    arena: Arena, topic: str, caplog: pytest.LogCaptureFixture, sender: Accumulator
) -> None:
    producer = Producer(arena, client_id="me")
    future = producer.send(topic, b"v")
    with caplog.at_level(logging.WARNING):
        producer.close(0)
    assert "me: not delivered yet: at most 1 record, not lost" in caplog.text
    assert not future.is_done
    assert deliver_all(sender) == [b"v"]
    assert future.get(0).offset == -1


@pytest.mark.parametrize("timeout", [2**63 - 1, pytest.param(10**400, id="googols"), 1e300])
def test_close_takes_any_long_timeout(arena: Arena, topic: str, timeout: float) -> None:
    told: list[object] = []
    with Drainer(arena):
        producer = Producer(arena)
        producer.send(topic, b"v").add_callback(told.append)
        producer.flush(timeout)
        producer.close(timeout)
    assert len(told) == 1
    assert producer.closed


@pytest.mark.parametrize(("options", "timeout"), [({}, 120.0), ({"close_timeout_ms": 0}, 0.0)])
def test_the_end_of_a_block_waits_for_its_close_timeout(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], timeout: float
) -> None:
    given: list[float | None] = []
    close = Producer.close

    def note(producer: Producer, timeout: float | None = -1) -> None:
        given.append(timeout)
        close(producer, timeout)

    monkeypatch.setattr(Producer, "close", note)
    with Producer(arena, **options):
        pass
    assert given == [timeout]


AT_EXIT = """
import sys
from shmaccum import Producer
producer = Producer(sys.argv[1], close_timeout_ms=int(sys.argv[2]))
producer.send("flights", b"at exit")
"""


def run_script(arena: Arena, close_timeout_ms: int) -> str:
    command = [sys.executable, "-c", AT_EXIT, arena.name, str(close_timeout_ms)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stderr


def test_at_exit_it_reports_what_is_left_and_that_nothing_is_lost(arena: Arena, topic: str) -> None:
    assert "not delivered yet: at most 1 record, not lost" in run_script(arena, 60_000)  # no sender
    with Accumulator(arena) as sender:
        sender.become_sender()  # which does nothing
        assert "The sender is running" in run_script(arena, 10)
        assert deliver_all(sender) == [b"at exit"] * 2


def test_at_exit_it_waits_for_a_sender_that_delivers(arena: Arena, topic: str) -> None:
    with Drainer(arena) as drainer:
        assert run_script(arena, 60_000) == ""
        assert drainer.values() == [b"at exit"]


def test_a_producer_that_is_dropped_leaves_its_records(arena: Arena, topic: str, sender: Accumulator) -> None:
    Producer(arena).send(topic, b"v")
    gc.collect()
    assert deliver_all(sender) == [b"v"]


# --- processes and threads


def test_a_child_continues_with_the_same_producer(arena: Arena, topic: str) -> None:
    with Drainer(arena) as drainer, Producer(arena) as producer:
        producer.send(topic, b"parent", partition=0).get(60)

        def send_in_child() -> int:
            producer.flush(60)  # there is nothing to flush
            return producer.send(topic, b"child", partition=0).get(60).offset

        assert run_in_child(send_in_child) == "1"
        assert producer.send(topic, b"parent", partition=0).get(60).offset == 2
    assert drainer.values() == [b"parent", b"child", b"parent"]


def _send_pickled(producer: Producer, value: bytes) -> int:
    with producer:
        return producer.send(TOPIC, value, partition=0).get(60).offset


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_pickled_producer_attaches_again(arena: Arena, topic: str, method: str) -> None:
    with Drainer(arena) as drainer, Producer(arena, linger_ms=0, value_serializer="bytes") as producer:
        assert run_in_process(method, _send_pickled, producer, method.encode()) == 0
        copy = pickle.loads(pickle.dumps(producer))
        assert copy.options == producer.options
        copy.close()
    assert drainer.values() == [method.encode()]


def _send_numbers(arena_name: str, worker: int, count: int) -> None:
    with Producer(arena_name, linger_ms=1) as producer:
        for number in range(count):
            producer.send(TOPIC, b"%d %d" % (worker, number), b"key-%d" % worker)


def test_eight_producers_keep_the_order_of_each_key_and_lose_nothing(arena: Arena, topic: str) -> None:
    workers, count = 8, 1000
    context = multiprocessing.get_context("fork")
    with Drainer(arena) as drainer:
        processes = [
            context.Process(target=_send_numbers, args=(arena.name, worker, count)) for worker in range(workers)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
            assert process.exitcode == 0
    by_key: dict[bytes | None, list[bytes | None]] = {}
    for records in drainer.records.values():
        for key, value in records:
            by_key.setdefault(key, []).append(value)
    assert by_key == {
        b"key-%d" % worker: [b"%d %d" % (worker, number) for number in range(count)] for worker in range(workers)
    }


def test_threads_share_a_producer(arena: Arena, topic: str) -> None:
    with Drainer(arena) as drainer, Producer(arena) as producer:

        def send_many(thread: int) -> None:
            for number in range(500):
                producer.send(topic, b"%d-%d" % (thread, number))

        threads = [threading.Thread(target=send_many, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(drainer.values(), key=repr) == sorted(
        (b"%d-%d" % (thread, number) for thread in range(4) for number in range(500)), key=repr
    )


# --- exhausted memory


@pytest.fixture
def tiny(arena_name: str) -> Iterator[Arena]:
    """An arena of 4 buffers of 4 KiB, 3 of them for oversized records, with a topic of three partitions."""
    with Arena.create(
        arena_name, buffer_memory="16KiB", batch_size="4KiB", oversized_max_bytes="12KiB", process_count=16
    ) as arena:
        arena.native.set_topic_partition_count(TOPIC, PARTITION_COUNT)
        yield arena


def deliver_slowly(sender: Accumulator, is_over: Callable[[], bool]) -> list[bytes | None]:
    """Deliver one batch each time that a process waits for memory, and the rest at the end."""
    values: list[bytes | None] = []

    def somebody_waits() -> bool:
        return sender.arena.statistics().waiting_count > 0 or is_over()

    while not is_over():
        wait_until(somebody_waits, "somebody waits, or all was sent")
        partitions, _ = sender.ready(0)
        for batch in sender.drain(partitions[:1], 2**31)[0]:
            values += [record[3] for record in batch.decode()]
            sender.complete(batch, 1)
        sender.maintain()
    return values + deliver_all(sender)


def test_back_pressure_slows_down_and_loses_nothing(tiny: Arena) -> None:
    count = 400

    def send_all() -> None:
        producer = Producer(tiny.name, linger_ms=0)
        for number in range(count):
            producer.send(TOPIC, b"%0500d" % number)
        producer.close(0)

    with Accumulator(tiny) as sender:
        sender.become_sender()
        child = Child(send_all)
        values = deliver_slowly(sender, child.has_ended)
        assert child.join() == "None"
        assert sorted(int(value or b"") for value in values) == list(range(count))
        assert tiny.native.counters()["allocations that waited for a buffer"] > 0


def send_for_ever(producer: Producer) -> None:
    for number in itertools.count():
        producer.send(TOPIC, b"%0500d" % number)


def test_without_memory_send_gives_up_after_max_block_ms(tiny: Arena) -> None:
    with Accumulator(tiny) as sender, Producer(tiny, max_block_ms=20) as producer:
        sender.become_sender()
        with pytest.raises(BufferExhaustedError, match="max blocking time 20 ms"):
            send_for_ever(producer)
        assert producer.record_count > 0
        assert producer.metrics()["producer-metrics"]["buffer-exhausted-total"] == 1
        delivered = deliver_all(sender)
        assert sorted(int(value or b"") for value in delivered) == list(range(producer.record_count))


def test_close_ends_the_waits_of_other_threads(tiny: Arena) -> None:
    with Accumulator(tiny) as sender, ThreadPoolExecutor(3) as threads:
        sender.become_sender()
        producer = Producer(tiny)
        sending = [threads.submit(send_for_ever, producer) for _ in range(3)]
        wait_until(lambda: tiny.statistics().waiting_count == len(sending), "all wait for memory")
        producer.close(0)
        for sent in sending:
            with pytest.raises(ProducerClosedError, match="waited for memory"):
                sent.result(60)
        assert len(deliver_all(sender)) == producer.record_count


def test_close_ends_the_wait_for_a_partition_count(arena: Arena) -> None:
    producer = Producer(arena)
    sends = ThreadPoolExecutor(1)
    sent = sends.submit(producer.send, "unknown", b"v")
    wait_until(lambda: arena.native.topics() == ["unknown"], "it asks for the topic")
    producer.close(0)
    with pytest.raises(ProducerClosedError):
        sent.result(60)
    sends.shutdown()


def test_oversized_records_among_small_ones_keep_their_place(tiny: Arena) -> None:
    sizes = [10, 9000, 10, 10, 5000, 3900, 9000, 10] * 5
    with Drainer(tiny) as drainer, Producer(tiny, linger_ms=0) as producer:
        for number, size in enumerate(sizes):
            producer.send(TOPIC, b"%0*d" % (size, number), b"the same key")
    assert [int((value or b"")[-3:]) for value in drainer.values()] == list(range(len(sizes)))
    assert [len(value or b"") for value in drainer.values()] == sizes


def test_the_declaration_of_send_has_the_docstring_of_the_native_method() -> None:
    """`Producer.send` is written in C. The declaration is for editors and readers."""
    tree = ast.parse(inspect.getsource(sys.modules[PlainProducer.__module__]))
    (declared,) = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "send")
    names = [argument.arg for argument in declared.args.args]
    assert names == list(inspect.signature(PlainProducer.send).parameters)
    assert ast.get_docstring(declared) == inspect.getdoc(PlainProducer.send)


@pytest.mark.parametrize(
    ("is_lost", "is_alive", "died", "is_supervised", "expected"),
    [
        (True, True, True, True, False),
        (False, True, False, False, True),
        (False, False, True, True, True),
        (False, False, True, False, False),
        (False, False, False, True, False),
    ],
)
def test_records_will_be_delivered_by_a_sender_that_runs_or_is_started(
    is_lost: bool, is_alive: bool, died: bool, is_supervised: bool, expected: bool
) -> None:
    native = SimpleNamespace(is_lost=is_lost, sender_is_alive=is_alive, sender_died=died)
    producer: Any = SimpleNamespace(arena=SimpleNamespace(native=native), _is_supervised=is_supervised)
    assert Producer.will_be_delivered(producer) is expected
