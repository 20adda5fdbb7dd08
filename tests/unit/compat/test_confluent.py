# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka's Producer on an arena: its options, callbacks, counts and exceptions."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import inspect
import json
import logging
import os
import pickle
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, final

import pytest
from confluent_kafka import KafkaError, KafkaException, Message
from typing_extensions import Self

from shmaccum._native import DeliveryFuture, NativeProducer, ResultWaiters
from shmaccum.arena import Arena
from shmaccum.arena.reports import Kind, Report
from shmaccum.arena.results import BatchResult
from shmaccum.common import clock
from shmaccum.compat import confluent_producer
from shmaccum.compat.confluent import Producer
from shmaccum.compat.confluent_callbacks import Record
from shmaccum.exceptions import BufferExhaustedError, UnknownPartitionError
from shmaccum.log.files import LogReader
from tests.support.accumulator import Accumulator
from tests.support.arenas import Drainer, drain
from tests.support.processes import WATCHDOG_S, Child, wait_until
from tests.unit.compat.conftest import TOPIC

THREAD_COUNT = 4
SMALL_NUMBER_COUNT = 257
"""The count of integers that CPython caches."""


def dotted(own: dict[str, Any], **config: Any) -> dict[str, Any]:
    """The options as confluent-kafka spells them."""
    return {name.replace("_", ".", 1): value for name, value in own.items()} | config


class Heard:
    """A callback that records its calls."""

    def __init__(self) -> None:
        self.errors: list[KafkaError | None] = []
        self.messages: list[Message] = []

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        self.errors.append(error)
        self.messages.append(message)


def test_a_delivery_is_reported_by_poll_with_the_whole_message(own: dict[str, Any], tmp_path: Path) -> None:
    heard = Heard()
    with Producer(dotted(own), **{"linger.ms": 1.0}) as producer:
        producer.produce(TOPIC, "one", "k", on_delivery=heard, headers={"h": "1", "n": None}, timestamp=7)
        assert len(producer) == 1
        assert producer.poll(WATCHDOG_S) == 1
        assert (len(producer), producer.flush()) == (0, 0)
    (message,) = heard.messages
    assert heard.errors == [None]
    assert (message.topic(), message.partition(), message.offset()) == (TOPIC, 0, 0)
    assert (message.key(), message.value(), message.headers()) == (b"k", b"one", [("h", b"1"), ("n", None)])
    assert message.timestamp() == (1, 7)
    (record,) = LogReader(tmp_path / "log").partition(TOPIC, 0).records()
    assert (record.key, record.value, record.timestamp_ms) == (b"k", b"one", 7)


def test_records_without_a_callback_are_counted_until_they_have_a_result(unkept: dict[str, Any], unsent: Arena) -> None:
    heard = Heard()
    producer = Producer(dotted(unkept, on_delivery=None))
    for number in range(10):
        producer.produce(TOPIC, b"%d" % number)
    producer.produce(TOPIC, b"told", callback=heard)
    assert (len(producer), producer.flush(0), bool(producer)) == (11, 11, True)
    with Drainer(unsent):
        assert producer.flush(WATCHDOG_S) == 0
    assert [message.offset() for message in heard.messages] == [10]
    assert producer.close()
    assert len(producer) == 0


def test_the_configurations_callback_is_called_for_records_without_their_own(own: dict[str, Any]) -> None:
    common, single = Heard(), Heard()
    with Producer(dotted(own, on_delivery=common)) as producer:
        producer.produce(TOPIC, b"1")
        producer.produce(TOPIC, b"2", callback=single)
        assert producer.produce_batch(TOPIC, [{"value": "3"}, {"value": "4", "callback": single}]) == 2
    assert [message.value() for message in common.messages] == [b"1", b"3"]
    assert [message.value() for message in single.messages] == [b"2", b"4"]


def test_a_batch_reports_which_records_were_not_taken(own: dict[str, Any]) -> None:
    heard = Heard()
    with Producer(dotted(own)) as producer:
        messages: list[dict[str, Any]] = [{"value": "a"}, {"value": b"x" * (2 << 20)}, {"partition": 7}, {}]
        assert producer.produce_batch(TOPIC, messages, on_delivery=heard) == 2
        codes = [message["_error"].code() for message in messages if "_error" in message]
        assert codes == [KafkaError.MSG_SIZE_TOO_LARGE, KafkaError._UNKNOWN_PARTITION]
        for wrong in ["x", [3], [{"value": 3}], [{"key": 3}], [{"partition": "x"}]]:
            with pytest.raises(TypeError):
                producer.produce_batch(TOPIC, wrong)  # type: ignore[arg-type]
    assert [message.value() for message in heard.messages] == [b"a", None]


def test_a_full_arena_is_a_buffer_error_at_once(unkept: dict[str, Any], unsent: Arena) -> None:
    producer = Producer(dotted(unkept))
    for _ in range(unsent.geometry["slot_count"]):
        producer.produce(TOPIC, b"v" * 3000)
    with pytest.raises(BufferError, match="Queue full") as full:
        producer.produce(TOPIC, b"v" * 3000)
    assert isinstance(full.value, BufferExhaustedError)
    messages = [{"value": b"v" * 3000}]
    assert producer.produce_batch(TOPIC, messages) == 0
    assert messages[0]["_error"].code() == KafkaError._QUEUE_FULL  # type: ignore[attr-defined]
    with Drainer(unsent):
        producer.close()


def test_wrong_records_are_rejected_like_in_the_library(unkept: dict[str, Any], unsent: Arena) -> None:
    with Producer(dotted(unkept)) as producer, Drainer(unsent):
        for headers in ("a", "b"), ["malformed"], {"a": 1}:
            with pytest.raises(TypeError):
                producer.produce(TOPIC, b"v", headers=headers)
        with pytest.raises(TypeError):
            producer.produce(TOPIC, 3)  # type: ignore[arg-type]
        with pytest.raises(KafkaException) as unknown:
            producer.produce(TOPIC, b"v", partition=9)
        assert isinstance(unknown.value, UnknownPartitionError)
        assert unknown.value.args[0].code() == KafkaError._UNKNOWN_PARTITION
        with pytest.raises(KafkaException) as refused:
            producer.purge()
        assert refused.value.args[0].code() == KafkaError._NOT_IMPLEMENTED
    for call in producer.poll, producer.flush, producer.purge, lambda: producer.produce(TOPIC):
        with pytest.raises(RuntimeError, match="Producer has been closed"):
            call()


def test_an_ordinary_record_is_the_same_in_each_spelling(unkept: dict[str, Any], unsent: Arena) -> None:
    with Producer(dotted(unkept)) as producer, Drainer(unsent) as drainer:
        producer.produce(TOPIC, b"v\xc3\xa9", b"k")
        producer.produce(TOPIC, "vé", "k")
        producer.produce(topic=TOPIC, value="vé", key="k")
        producer.produce(TOPIC, key=memoryview(b"k"), value=bytearray("vé".encode()))
        producer.produce(TOPIC, "vé", "k", -1, None, None, 0, None)
        producer.produce(TOPIC, "vé", "k", headers={}, on_delivery=lambda _error, _message: None)
        assert producer.flush(WATCHDOG_S) == 0
    assert drainer.records[TOPIC, 0] == [(b"k", "vé".encode())] * 6


def test_a_call_that_is_no_produce_is_a_type_error(unkept: dict[str, Any], unsent: Arena) -> None:
    assert list(inspect.signature(Producer.produce).parameters)[:3] == ["self", "topic", "value"]
    with Producer(dotted(unkept)) as producer, Drainer(unsent):
        wrong: list[tuple[Any, ...]] = [
            ((), {}),
            ((TOPIC,), {"topic": TOPIC}),
            ((TOPIC,), {"valeu": 1}),
            ((TOPIC,) * 9, {}),
        ]
        for arguments, names in wrong:
            with pytest.raises(TypeError, match=r"produce\(\)"):
                producer.produce(*arguments, **names)
        for value, key in (3, None), (None, 3):
            with pytest.raises(TypeError, match="bytes-like"):
                producer.produce(TOPIC, value, key)  # type: ignore[arg-type]
        with pytest.raises(UnicodeEncodeError):
            producer.produce(TOPIC, "\ud800")
        assert len(producer) == 0


def test_a_subclass_may_override_produce(unkept: dict[str, Any], unsent: Arena) -> None:
    class Loud(Producer):
        def produce(self, topic: str, value: Any = None, *arguments: Any, **names: Any) -> None:
            super().produce(topic, value.upper(), *arguments, **names)

    heard = Heard()
    with Loud(dotted(unkept)) as producer, Drainer(unsent) as drainer:
        producer.produce(TOPIC, "plain")
        producer.produce(TOPIC, "told", on_delivery=heard)
        assert producer.produce_batch(TOPIC, [{"value": "batch"}]) == 1
        assert producer.flush(WATCHDOG_S) == 0
    assert [value for _, value in drainer.records[TOPIC, 0]] == [b"PLAIN", b"TOLD", b"BATCH"]
    assert [message.value() for message in heard.messages] == [b"TOLD"]


@pytest.mark.parametrize(
    ("options", "flush_s", "patience_ms", "times_out_first"),
    [
        ({}, 300.0, 30_000, False),
        ({"message.timeout.ms": 30_000}, 30.0, 30_000, True),
        ({"message.timeout.ms": 30_001}, 30.001, 30_000, False),
        ({"message.timeout.ms": 300_001}, 300.0, 30_000, False),
        ({"topic.metadata.propagation.max.ms": 10}, 300.0, 10, False),
    ],
    ids=str,
)
def test_waits_end_with_the_timeouts_of_librdkafka(
    unkept: dict[str, Any],
    unsent: Arena,
    options: dict[str, Any],
    flush_s: float,
    patience_ms: int,
    times_out_first: bool,
) -> None:
    producer = Producer(dotted(unkept, **options))
    assert producer._producer is not None
    found = producer._flush_s, producer._producer.patience_ms, producer._times_out_first
    assert found == (flush_s, patience_ms, times_out_first)


def test_a_topic_that_stays_unknown_is_not_reported_without_a_callback(unkept: dict[str, Any], unsent: Arena) -> None:
    with Producer(dotted(unkept, **{"message.timeout.ms": 10})) as producer:
        producer.produce("unknown", b"v")
        assert (len(producer), producer.poll(0)) == (0, 0)


def test_a_producer_without_a_reference_is_collected_with_its_cycle(unkept: dict[str, Any], unsent: Arena) -> None:
    producer = Producer(dotted(unkept))
    producer.itself = producer  # type: ignore[attr-defined]
    gone = weakref.ref(producer)
    del producer
    gc.collect()
    assert gone() is None


def test_a_producer_begins_once_and_again_after_its_close(unkept: dict[str, Any], unsent: Arena) -> None:
    heard = Heard()
    with Drainer(unsent):
        producer = Producer(dotted(unkept))
        with pytest.raises(RuntimeError, match="already"):
            producer.__init__(dotted(unkept, on_delivery=heard))  # type: ignore[misc]
        producer.close()
        producer.__init__(dotted(unkept, on_delivery=heard))  # type: ignore[misc]
        producer.produce(TOPIC, b"v")
        producer.close()
    assert [message.value() for message in heard.messages] == [b"v"]


def test_bytes_in_pieces_are_no_full_queue(unkept: dict[str, Any], unsent: Arena) -> None:
    pieces: Any = memoryview(b"abcd")[::2]
    with Producer(dotted(unkept)) as producer:
        for heard in None, Heard():
            with pytest.raises(TypeError, match="must be contiguous bytes"):
                producer.produce(TOPIC, pieces, on_delivery=heard)
            with pytest.raises(TypeError, match="must be contiguous bytes"):
                producer.produce(TOPIC, None, pieces, on_delivery=heard)


def test_a_producer_is_neither_copied_nor_pickled(unkept: dict[str, Any], unsent: Arena) -> None:
    with Producer(dotted(unkept)) as producer:
        for make in copy.copy, copy.deepcopy, pickle.dumps:
            with pytest.raises(TypeError, match="cannot pickle"):
                make(producer)


def test_a_class_of_a_program_goes_with_its_producers(unkept: dict[str, Any], unsent: Arena) -> None:
    class Own(Producer):
        __slots__ = ("itself",)

    producer = Own(dotted(unkept))
    producer.itself = producer  # type: ignore[attr-defined]
    gone = weakref.ref(producer), weakref.ref(Own)
    del producer, Own
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_a_close_ends_produce_in_all_threads(unkept: dict[str, Any], unsent: Arena) -> None:
    with Producer(dotted(unkept)) as producer, Drainer(unsent):
        begun = threading.Barrier(THREAD_COUNT + 1)
        refused: list[BaseException] = []

        def produce() -> None:
            begun.wait()
            try:
                while True:
                    with contextlib.suppress(BufferError):
                        producer.produce(TOPIC, b"v")
            except RuntimeError as error:
                refused.append(error)

        threads = [threading.Thread(target=produce) for _ in range(THREAD_COUNT)]
        for thread in threads:
            thread.start()
        begun.wait()
        producer.close()
        for thread in threads:
            thread.join(WATCHDOG_S)
        assert len(refused) == THREAD_COUNT


def test_a_subclass_that_never_began_is_closed() -> None:
    class Forgetful(Producer):
        def __init__(self) -> None:
            pass

    producer = Forgetful()
    for call in (producer.poll, producer.flush, producer.init_transactions, producer.begin_transaction):
        with pytest.raises(RuntimeError, match="Producer has been closed"):
            call()
    with pytest.raises(RuntimeError, match="Producer has been closed"):
        producer.produce(TOPIC, b"value")
    with pytest.raises(RuntimeError, match="Producer has been closed"):
        producer.produce_batch(TOPIC, [{"value": b"value"}])
    assert len(producer) == 0


def test_a_refused_record_is_reported_with_its_code(unkept: dict[str, Any], unsent: Arena) -> None:
    heard = Heard()
    with Producer(dotted(unkept)) as producer, Drainer(unsent, result=BatchResult.FAILED, error_code=87):
        producer.produce(TOPIC, b"v", on_delivery=heard)
        assert producer.flush(WATCHDOG_S) == 0
    assert [error.code() for error in heard.errors if error] == [KafkaError.INVALID_RECORD]
    assert heard.messages[0].error().code() == KafkaError.INVALID_RECORD  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("timeouts", "code"),
    [
        ({"message.timeout.ms": 10}, KafkaError._MSG_TIMED_OUT),
        ({"topic.metadata.propagation.max.ms": 10}, KafkaError._UNKNOWN_TOPIC),
    ],
)
def test_a_topic_that_stays_unknown_is_reported_by_the_callback(
    unkept: dict[str, Any], unsent: Arena, timeouts: dict[str, int], code: int
) -> None:
    heard = Heard()
    with Producer(dotted(unkept, **timeouts)) as producer:
        producer.produce("unknown", b"v", on_delivery=heard)
        assert len(producer) == 1
        assert producer.poll(0) == 1
    assert [error.code() for error in heard.errors if error] == [code]
    assert heard.messages[0].value() == b"v"


def test_an_exception_of_a_callback_reaches_the_caller_and_the_others_wait(
    unkept: dict[str, Any], unsent: Arena
) -> None:
    heard = Heard()

    def fail(_error: object, _message: object) -> None:
        raise ValueError("of the callback")

    with Producer(dotted(unkept)) as producer, Drainer(unsent):
        producer.produce(TOPIC, b"1", on_delivery=fail)
        producer.produce(TOPIC, b"2", on_delivery=heard)
        with pytest.raises(ValueError, match="of the callback"):
            producer.flush(WATCHDOG_S)
        producer.flush(WATCHDOG_S)
    assert [message.value() for message in heard.messages] == [b"2"]


def test_errors_of_the_arena_reach_error_cb_and_the_logger(
    unkept: dict[str, Any], unsent: Arena, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confluent_producer, "CHECK_S", 0.0)
    heard: list[KafkaError] = []
    logger = logging.getLogger("of the program")
    Report(Kind.SENTENCE, "an old one").record(unsent.native)
    with Producer(dotted(unkept, error_cb=heard.append, logger=logger)) as producer:
        Report(Kind.NOT_KEPT, "no way").record(unsent.native)
        Report(Kind.REFUSED, "bad", f"{TOPIC}-0", 87).record(unsent.native)
        assert producer.poll(WATCHDOG_S) == 2
        assert producer.poll(0) == 0
    assert [error.code() for error in heard] == [KafkaError._ALL_BROKERS_DOWN, KafkaError.INVALID_RECORD]
    assert [record.name for record in caplog.records].count("of the program") == 2


def test_statistics_are_reported_in_their_interval(unkept: dict[str, Any], unsent: Arena) -> None:
    heard: list[str] = []
    with Producer(dotted(unkept, stats_cb=heard.append, **{"statistics.interval.ms": 1})) as producer:
        producer.produce(TOPIC, b"v")
        deadline_s = time.monotonic() + WATCHDOG_S
        while not heard and time.monotonic() < deadline_s:
            producer.poll(0.001)
        with Drainer(unsent):
            producer.flush()
    told = json.loads(heard[0])
    assert (told["type"], told["msg_cnt"], told["txmsgs"]) == ("producer", 1, 1)


def test_statistics_are_reported_no_earlier_than_their_interval(
    unkept: dict[str, Any], unsent: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    start_s = now_s = clock.monotonic()
    times = SimpleNamespace(monotonic=lambda: now_s, monotonic_ns=clock.monotonic_ns)
    monkeypatch.setattr(confluent_producer, "clock", times)
    with Producer(dotted(unkept, stats_cb=heard.append, **{"statistics.interval.ms": 3_600_000})) as producer:
        counts = []
        for passed_s in (3599.0, 3600.5, 7200.0, 7201.0):
            now_s = start_s + passed_s
            producer.poll(0)
            counts.append(len(heard))
    assert counts == [0, 1, 1, 2]


def test_a_child_of_a_fork_waits_for_its_own_records_alone(unkept: dict[str, Any], unsent: Arena) -> None:
    heard = Heard()
    producer = Producer(dotted(unkept))
    producer.produce(TOPIC, b"parent", on_delivery=heard)

    def produce_in_child() -> tuple[int, int, int]:
        before = len(producer)
        producer.produce(TOPIC, b"child", on_delivery=heard)
        return before, len(producer), producer.flush(WATCHDOG_S)

    with Drainer(unsent):
        assert Child(produce_in_child).join() == "(0, 1, 0)"
        producer.close()
    assert [message.value() for message in heard.messages] == [b"parent"]


@pytest.mark.parametrize(
    "config", [{"should.fail": False}, {"acks": "most"}, {"transactional.id": ""}, {"linger.ms": "x"}], ids=str
)
def test_wrong_options_are_the_librarys_exceptions(config: dict[str, Any]) -> None:
    with pytest.raises(KafkaException) as refusal:
        Producer(config)
    assert refusal.value.args[0].code() == KafkaError._INVALID_ARG


def test_a_partitioner_is_one_that_both_know(unkept: dict[str, Any], unsent: Arena) -> None:
    with pytest.raises(KafkaException, match='Invalid value for configuration property "partitioner": murmur'):
        Producer({"partitioner": "murmur"})
    unsent.declare_topic("many", 10)
    with Producer(dotted(unkept, partitioner="consistent_random")) as producer, Drainer(unsent) as drainer:
        producer.produce("many", b"v", b"key-1")
        producer.flush(WATCHDOG_S)
    assert list(drainer.records) == [("many", 8)]


@pytest.mark.parametrize(("name", "is_random"), [("consistent_random", True), ("consistent", False)])
@pytest.mark.parametrize("key", [None, b""])
def test_records_without_a_key_go_where_librdkafka_sends_them(
    unkept: dict[str, Any], unsent: Arena, name: str, is_random: bool, key: bytes | None
) -> None:
    unsent.declare_topic("many", 10)
    with Producer(dotted(unkept, partitioner=name)) as producer, Drainer(unsent) as drainer:
        for _ in range(100):
            producer.produce("many", b"v", key)
        producer.flush(WATCHDOG_S)
    assert (len(drainer.records) > 1) == is_random
    assert is_random or list(drainer.records) == [("many", 0)]


def test_what_is_no_configuration_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="expected configuration dict"):
        Producer()
    with pytest.raises(TypeError, match="error_cb"):
        Producer({"error_cb": 3})


@pytest.mark.parametrize(
    "wrong", [{"error_cb": 3}, {"stats_cb": "f"}, {"statistics.interval.ms": "often"}, {"linger.ms": "x"}], ids=str
)
def test_a_refused_configuration_makes_no_arena(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, KafkaException)):
        Producer({"bootstrap.servers": "nowhere.invalid", **wrong})
    assert not [name for name in os.listdir("/dev/shm") if name.startswith("compat-nowhere.invalid")]


# --- reported records


@final
class Taken:
    """Reports results of batches one by one, as a sender does.

    Attributes:
        sender: the sender of the arena.
    """

    def __init__(self, arena: Arena) -> None:
        self.sender = Accumulator(arena)
        self.sender.become_sender()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.end()
        self.sender.close()

    def end(self, base_offset: int = 0) -> None:
        """Deliver all ready records."""
        for batch in drain(self.sender):
            self.sender.complete(batch, BatchResult.SUCCEEDED, base_offset, None, 0)


def test_parts_of_a_batch_are_reported_in_the_order_of_the_records(unkept: dict[str, Any], unsent: Arena) -> None:
    heard = Heard()
    producer = Producer(dotted(unkept))
    for number in range(6):
        producer.produce(TOPIC, b"%d" % number, on_delivery=heard if number != 3 else None)
    with Taken(unsent) as taken:
        (batch,) = drain(taken.sender)
        taken.sender.complete_part(batch, 2, BatchResult.SUCCEEDED, 10)
        assert (producer.poll(0), producer._callback_records.pending_count, len(producer)) == (2, 3, 4)
        taken.sender.complete_part(batch, 1, BatchResult.FAILED, -1, None, KafkaError.INVALID_RECORD)
        assert len(producer) == 4  # three have no result, and one was not reported
        taken.sender.complete_part(batch, 3, BatchResult.SUCCEEDED, 50)
        assert (producer.poll(0), len(producer)) == (3, 0)
        producer.close()
    assert [message.value() for message in heard.messages] == [b"0", b"1", b"2", b"4", b"5"]
    assert [message.offset() for message in heard.messages] == [10, 11, None, 51, 52]
    assert [error and error.code() for error in heard.errors] == [None, None, KafkaError.INVALID_RECORD, None, None]


def test_only_a_poll_finds_results(unkept: dict[str, Any], unsent: Arena) -> None:
    heard = Heard()
    producer = Producer(dotted(unkept))
    with Taken(unsent) as taken:
        for count in (1, 2):
            producer.produce(TOPIC, b"v", on_delivery=heard)
            assert (producer.poll(0), producer._callback_records.pending_count) == (0, count)
        taken.end()
        assert producer._callback_records.pending_count == 2  # no poll has found the results
        assert (producer.poll(0), producer._callback_records.pending_count, len(producer)) == (2, 0, 0)
        producer.close()
    assert len(heard.messages) == 2


def test_results_that_were_overwritten_are_reported_as_lost(unkept: dict[str, Any], unsent: Arena) -> None:
    heard = Heard()
    producer = Producer(dotted(unkept))
    with Taken(unsent) as taken:
        producer.produce(TOPIC, b"lost", on_delivery=heard)
        for _ in range(unsent.geometry["completion_count"] + 1):
            taken.end(7)
            producer.produce(TOPIC, b"untold")
        producer.produce(TOPIC, b"pending", on_delivery=heard)
        assert (producer.poll(0), producer._callback_records.pending_count) == (1, 1)
        taken.end(9)
        assert producer.poll(0) == 1
        producer.close()
    assert [message.value() for message in heard.messages] == [b"lost", b"pending"]
    assert "overwritten" in str(heard.errors[0])
    assert (heard.errors[1], heard.messages[1].offset()) == (None, 10)


def record_of(heard: Heard, value: bytes) -> Record:
    """A reported record as `Producer._produce_in_python` creates it."""
    return heard, TOPIC, value, None, None


def test_a_result_that_came_before_the_last_look_is_reported(unkept: dict[str, Any], unsent: Arena) -> None:
    heard = Heard()
    producer = Producer(dotted(unkept))
    with Taken(unsent) as taken:
        future = producer._open().send(TOPIC, b"early")
        taken.end(3)
        assert producer.poll(0) == 0
        producer._join(future, *record_of(heard, b"early"))
        producer.produce(TOPIC, b"pending", on_delivery=heard)
        assert (producer.poll(0), len(producer)) == (1, 1)
        taken.end(4)
        assert producer.poll(0) == 1
        producer.close()
    assert [(message.value(), message.offset()) for message in heard.messages] == [(b"early", 3), (b"pending", 4)]


@pytest.mark.parametrize("headers", [None, {"h": b"1"}], ids=["C", "Python"])
def test_a_record_whose_result_is_walked_during_its_call_is_reported(
    unkept: dict[str, Any], unsent: Arena, monkeypatch: pytest.MonkeyPatch, headers: dict[str, bytes] | None
) -> None:
    heard = Heard()
    with Taken(unsent) as taken:

        def deliver_and_poll(_future: DeliveryFuture | None, _error: BaseException | None) -> None:
            taken.end(5)
            assert producer.poll(0) == 0

        producer = Producer(dotted(unkept))
        own = producer._open()
        polling = NativeProducer(own._appender.native, own._tracker, own._wait_for_partitions, None, deliver_and_poll)
        producer._produce_through(polling, None, producer._callback_records.native)
        monkeypatch.setattr(type(own), "send", polling.send)
        producer.produce(TOPIC, b"v", on_delivery=heard, headers=headers)
        assert producer.poll(0) == 1
        producer.close()
    assert [(message.value(), message.offset()) for message in heard.messages] == [(b"v", 5)]


def before_line(line_index: int, action: Callable[[], object], call: Callable[[], object]) -> bool:
    """Calls a function, and the action before one of the lines of Python that this function runs.

    Returns:
        True if it ran this many lines.
    """
    left, former = line_index, sys.gettrace()

    def trace(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if event == "line":
            left -= 1
            if left == -1:
                action()
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(former)
    return left < 0


def test_a_record_is_reported_if_a_poll_comes_before_any_line_of_its_produce(
    unkept: dict[str, Any], unsent: Arena
) -> None:
    heard = Heard()
    producer = Producer(dotted(unkept))
    with Taken(unsent) as taken:

        def deliver_and_poll() -> None:
            taken.end()
            producer.poll(0)

        values: list[bytes] = []
        is_within = True
        while is_within:
            values.append(b"%d" % len(values))
            produce = functools.partial(producer.produce, TOPIC, values[-1], on_delivery=heard, headers={"h": b"1"})
            is_within = before_line(len(values) - 1, deliver_and_poll, produce)
            deliver_and_poll()
        assert len(values) > 10, "produce runs no Python code"
        assert [message.value() for message in heard.messages] == values
        producer.close()


def test_records_that_join_out_of_order_are_reported_in_order(unkept: dict[str, Any], unsent: Arena) -> None:
    heard = Heard()
    producer = Producer(dotted(unkept))
    values = [b"%d" % number for number in range(5)]
    futures = [producer._open().send(TOPIC, value) for value in values]
    for index in (3, 0, 4, 1, 2):
        producer._join(futures[index], *record_of(heard, values[index]))
    with Taken(unsent) as taken:
        taken.end()
        assert producer.poll(0) == 5
        producer.close()
    assert [message.value() for message in heard.messages] == values


def test_the_methods_for_reported_records_refuse_other_arguments(unkept: dict[str, Any], unsent: Arena) -> None:
    producer = Producer(dotted(unkept))
    wrong: Any = None
    with pytest.raises(TypeError, match="_call"):
        producer._call(wrong)  # type: ignore[call-arg]
    blank = NativeProducer.__new__(NativeProducer)
    for through, waiters in [(3, ResultWaiters()), (blank, ResultWaiters()), (None, wrong)]:
        with pytest.raises(TypeError, match="_produce_through"):
            producer._produce_through(through, None, waiters)  # type: ignore[arg-type]
    future = producer._open().send(TOPIC, b"v")
    with pytest.raises(TypeError, match="_join"):
        producer._join(wrong, *record_of(Heard(), b"v"))
    assert producer._callback_records.native.add(unsent.native, future, print)
    with Taken(unsent) as taken:
        taken.end()
        with pytest.raises(TypeError, match="has no record"):
            producer.poll(0)
        producer.close()


def test_a_callback_that_forks_calls_none_of_the_others_in_the_child(unkept: dict[str, Any], unsent: Arena) -> None:
    heard, pids = Heard(), []
    producer = Producer(dotted(unkept))

    def fork(error: KafkaError | None, message: Message) -> None:
        pids.append(os.fork())
        heard(error, message)

    with Taken(unsent) as taken:
        producer.produce(TOPIC, b"first", on_delivery=fork)
        for value in (b"1", b"2"):
            producer.produce(TOPIC, value, on_delivery=heard)
        taken.end()
        try:
            served = producer.poll(0)
        finally:
            if pids[0] == 0:
                os._exit(len(heard.messages))
        statuses: list[int] = []

        def has_exited() -> bool:
            pid, status = os.waitpid(pids[0], os.WNOHANG)
            statuses.extend([status] if pid else [])
            return pid != 0

        wait_until(has_exited, "the child exits")
        assert (served, os.waitstatus_to_exitcode(statuses[0])) == (3, 1)
        producer.close()
    assert [message.value() for message in heard.messages] == [b"first", b"1", b"2"]


def test_threads_that_produce_and_poll_get_each_result_once(unkept: dict[str, Any], unsent: Arena) -> None:
    heard = Heard()
    values = [[b"%d:%d" % (thread, number) for number in range(1000)] for thread in range(THREAD_COUNT)]
    with Producer(dotted(unkept)) as producer, Drainer(unsent):

        def produce(thread: int) -> None:
            for number, value in enumerate(values[thread]):
                while True:
                    try:
                        producer.produce(TOPIC, value, on_delivery=heard, headers={} if number % 7 == 0 else None)
                        break
                    except BufferError:
                        producer.poll(0.001)
                producer.poll(0)

        threads = [threading.Thread(target=produce, args=(thread,)) for thread in range(THREAD_COUNT)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WATCHDOG_S)
        assert producer.flush(WATCHDOG_S) == 0
    told = sorted(message.value() or b"" for message in heard.messages)
    assert told == sorted(value for own in values for value in own)
    assert heard.errors == [None] * len(heard.messages)


def test_a_record_without_memory_is_sent_and_reported_or_neither(unkept: dict[str, Any], unsent: Arena) -> None:
    memory = pytest.importorskip("_testcapi")
    heard = Heard()
    producer = Producer(dotted(unkept))
    send_count, refused_count = 0, 0
    futures: list[DeliveryFuture] = []
    tracker: Any = None
    with Taken(unsent) as taken:
        producer.produce(TOPIC, b"first", on_delivery=heard)
        taken.end()
        producer.poll(0)
        for granted_count in range(20):
            for _ in range(SMALL_NUMBER_COUNT):
                producer.produce(TOPIC)  # so large that CPython has no cached integer for the index
            futures.append(DeliveryFuture(tracker, 0, 0, 0, 0, 0))  # CPython has a cached integer for the next index
            memory.set_nomemory(granted_count, 0)
            try:
                producer.produce(TOPIC, b"v", on_delivery=heard)
                send_count += 1
            except MemoryError:
                refused_count += 1
            finally:
                memory.remove_mem_hooks()
            taken.end()
            producer.poll(0)
        assert len(producer) == 0
        assert len(heard.messages) == 1 + send_count
        assert refused_count > 0, "no allocation before the append failed"
        assert producer._open().metrics()["producer-metrics"]["record-send-total"] == (
            1 + send_count + 20 * SMALL_NUMBER_COUNT
        )
        producer.close()


def test_a_close_logs_how_many_callbacks_will_not_be_called(
    unkept: dict[str, Any], unsent: Arena, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    producer = Producer(dotted(unkept, **{"message.timeout.ms": 1}))
    producer.produce(TOPIC, b"1", on_delivery=heard)
    producer.produce(TOPIC, b"2", on_delivery=heard)
    producer.produce(TOPIC, b"3")
    producer.close()
    assert "2 callbacks will not be called in this process" in caplog.text
    assert not heard.messages


def test_a_reset_producer_calls_only_callbacks_of_later_records(unkept: dict[str, Any], unsent: Arena) -> None:
    former, later = Heard(), Heard()
    with Producer(dotted(unkept, **{"message.timeout.ms": 30_000})) as producer:
        records = producer._callback_records
        producer.produce(TOPIC, b"due", on_delivery=former)
        with Drainer(unsent):
            wait_until(records.collect, "the callback is due")
        producer.produce(TOPIC, b"new", on_delivery=former)
        records.refuse(record_of(former, b"refused"), 0, KafkaError(KafkaError._MSG_TIMED_OUT), 0)
        assert (records.pending_count, records.due_count) == (1, 2)
        producer.reset()
        assert producer._callback_records.pending_count == producer._callback_records.due_count == 0
        producer.produce(TOPIC, b"3", on_delivery=later)
        with Drainer(unsent):
            assert producer.flush(WATCHDOG_S) == 0
    assert (former.messages, [message.value() for message in later.messages]) == ([], [b"3"])
