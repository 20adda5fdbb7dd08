# SPDX-License-Identifier: Apache-2.0
"""Many records in one call, from sequences: their partitions, the results and the rejected calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import (
    BufferExhaustedError,
    DeliveryFailedError,
    InvalidArgumentError,
    PartitionCountUnknownError,
    ProducerClosedError,
    RecordTooLargeError,
    ResultExpiredError,
    ResultPendingError,
    TableFullError,
    UnknownPartitionError,
)
from shmaccum.producer import Producer
from shmaccum.producer.deliveries import Deliveries, DeliveryCounts, OffsetRange
from tests.support.accumulator import Accumulator
from tests.support.arenas import Drainer, drain
from tests.support.processes import wait_until
from tests.unit.producer.many import PARTITION_COUNTS, check_places, deliver, wanted_partition

NOW_MS = 1_600_000_000_000


@pytest.fixture
def topics(arena: Arena) -> None:
    for topic, count in PARTITION_COUNTS.items():
        arena.native.set_topic_partition_count(topic, count)


@pytest.fixture
def make(arena: Arena, sender: Accumulator, topics: None) -> Iterator[Callable[..., Producer]]:
    """Create producers, and close them after everything is delivered."""
    made: list[Producer] = []

    def make(**options: Any) -> Producer:
        made.append(Producer(arena, **options))
        return made[-1]

    yield make
    sender.abort()
    for producer in made:
        producer.close(0)


@pytest.fixture
def producer(make: Callable[..., Producer]) -> Producer:
    return make(max_block_ms=0)


def send(
    producer: Producer,
    topic: str,
    values: Any,
    keys: Any = None,
    headers: Any = None,
    timestamps_ms: Any = None,
    partition: Any = None,
) -> Deliveries:
    return producer.send_many(
        topic, values, keys=keys, headers=headers, timestamps_ms=timestamps_ms, partition=partition
    )


def appended(error: BaseException) -> Deliveries:
    deliveries = getattr(error, "appended", None)
    assert isinstance(deliveries, Deliveries)
    return deliveries


# --- partitions of records


def test_records_with_a_key_go_where_kafka_puts_them(sender: Accumulator, producer: Producer) -> None:
    keys = [b"key-%d" % (number % 50) for number in range(500)]
    values = [b"%d" % number for number in range(500)]
    sent = send(producer, "flights", values, keys, None, [NOW_MS] * 500)
    assert len(sent) == 500
    rows = [
        {"topic": "flights", "key": key, "value": value, "timestamp": NOW_MS}
        for key, value in zip(keys, values, strict=True)
    ]
    places = deliver(sender)
    assert len(places) == 7
    check_places(places, rows, NOW_MS)


def test_records_without_a_key_stay_together(sender: Accumulator, producer: Producer) -> None:
    send(producer, "flights", [b"v"] * 64)
    places = deliver(sender)
    assert [len(records) for records in places.values()] == [64]


def test_records_without_a_key_move_on_when_a_batch_is_full(sender: Accumulator, producer: Producer) -> None:
    seen = set()
    for _ in range(12):
        send(producer, "flights", [b"x" * 100] * 200)
        places = deliver(sender)
        assert sum(map(len, places.values())) == 200
        seen |= set(places)
    assert len(seen) > 1


def test_one_partition_for_all(sender: Accumulator, producer: Producer) -> None:
    send(producer, "flights", [b"a", b"b"], [b"k", None], partition=5)
    assert [record.value for record in deliver(sender)["flights", 5]] == [b"a", b"b"]


def test_a_partition_for_each(sender: Accumulator, producer: Producer) -> None:
    rows: list[dict[str, Any]] = [
        {"topic": "flights", "key": b"k" if number % 2 else None, "value": b"%d" % number, "partition": partition}
        for number, partition in enumerate([0, 6, None, 3, None, 0, 6, 6, None])
    ]
    columns = [[row[name] for row in rows] for name in ("value", "key", "partition")]
    send(producer, "flights", columns[0], columns[1], None, [NOW_MS] * 9, columns[2])
    check_places(deliver(sender), rows, NOW_MS)


def test_keys_can_be_ignored(sender: Accumulator, make: Callable[..., Producer]) -> None:
    producer = make(partitioner_ignore_keys=True)
    send(producer, "flights", [b"v"] * 60, [b"%d" % number for number in range(60)])
    assert [len(records) for records in deliver(sender).values()] == [60]


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "topic": st.just("flights"),
            "key": st.none() | st.sampled_from([b"a", b"b", b"c", b"", b"long key" * 4]),
            "value": st.none() | st.binary(max_size=40),
            "timestamp": st.none() | st.integers(0, NOW_MS),
            "partition": st.none() | st.integers(0, 6),
            "headers": st.none()
            | st.lists(st.fixed_dictionaries({"key": st.text(max_size=4), "value": st.none() | st.binary(max_size=4)})),
        }
    ),
    max_size=150,
)


@given(rows=ROWS)
@settings(max_examples=60)
def test_any_rows_arrive_where_they_belong(sender: Accumulator, producer: Producer, rows: list[dict[str, Any]]) -> None:
    headers = [
        None if row["headers"] is None else [(header["key"], header["value"]) for header in row["headers"]]
        for row in rows
    ]
    columns = [[row[name] for row in rows] for name in ("value", "key", "timestamp", "partition")]
    before_ms = time.time_ns() // 10**6
    sent = send(producer, "flights", columns[0], columns[1], headers, columns[2], columns[3])
    now_ms = next((sent[i].timestamp_ms for i, row in enumerate(rows) if row["timestamp"] is None), before_ms)
    assert before_ms <= now_ms <= time.time_ns() // 10**6
    check_places(deliver(sender), rows, now_ms)


# --- deliveries


def test_every_record_has_a_future(sender: Accumulator, producer: Producer) -> None:
    keys = [b"key-%d" % (number % 9) for number in range(300)]
    values = [b"%d" % number for number in range(300)]
    timestamps = [NOW_MS + number for number in range(300)]
    early = list(sent := send(producer, "flights", values, keys, None, timestamps))
    assert len(set(early)) == 300
    places = deliver(sender)
    assert sent.is_done
    for number, (asked_before, asked_after) in enumerate(zip(early, sent, strict=True)):
        metadata = asked_after.get(0)
        assert asked_before.get(0) == metadata
        assert asked_before == asked_after
        assert metadata.partition == wanted_partition({"key": keys[number]}, 7)
        assert places[metadata.topic_partition][metadata.offset].value == values[number]
        assert metadata.timestamp == timestamps[number]
        assert metadata.serialized_value_size == -1


def test_deliveries_are_a_sequence(arena: Arena, producer: Producer) -> None:
    sent = send(producer, "flights", [b"v"] * 10, partition=0)
    assert len(sent) == 10
    assert [token.record_index for token in sent] == list(range(10))
    assert [token.record_index for token in sent[7:2:-2]] == [7, 5, 3]
    assert sent[-1] == sent[9]
    assert sent[3] in sent
    assert sent.rows == range(10)
    for index in (10, -11):
        with pytest.raises(IndexError):
            sent[index]


def test_no_records_are_no_deliveries(arena: Arena, producer: Producer) -> None:
    sent = send(producer, "flights", [])
    assert (len(sent), list(sent), sent.get(0), sent.is_done) == (0, [], {}, True)
    assert repr(sent) == "<Deliveries of 0 records: none>"


def test_counts_and_offsets(arena: Arena, sender: Accumulator, producer: Producer) -> None:
    first = send(producer, "flights", [b"v"] * 90, partition=1)
    second = send(producer, "flights", [b"v"] * 6, partition=[1, 2, 1, 2, 1, 1])
    assert first.counts == DeliveryCounts(90, 0, 0, 0)
    assert not first.wait(0)
    assert first.offsets == {}
    deliver(sender)
    assert first.wait(0)
    assert first.get(0) == {TopicPartition("flights", 1): OffsetRange(90, 0, 89)}
    assert second.get(0) == {
        TopicPartition("flights", 1): OffsetRange(4, 90, 93),
        TopicPartition("flights", 2): OffsetRange(2, 0, 1),
    }
    assert second.counts == DeliveryCounts(0, 6, 0, 0)
    assert repr(second) == "<Deliveries of 6 records: 6 succeeded>"


def test_get_reports_the_first_failure(arena: Arena, sender: Accumulator, producer: Producer) -> None:
    sent = send(producer, "flights", [b"v"] * 70, partition=[4] * 5 + [2, 1] * 32 + [4])
    while batches := drain(sender):
        for batch in batches:
            result = BatchResult.SUCCEEDED if batch.partition == 4 else BatchResult.FAILED
            sender.complete(batch, result, base_offset=9, error_code=10 + batch.partition)
    with pytest.raises(DeliveryFailedError, match="rejected the record: flights-2 failed with error 12") as caught:
        sent.get(0)
    assert caught.value.error_code == 12
    assert caught.value.record_index == 5  # type: ignore[attr-defined]
    assert sent.counts == DeliveryCounts(0, 6, 64, 0)
    assert sent.offsets == {TopicPartition("flights", 4): OffsetRange(6, 9, 14)}


def test_a_timeout_reports_how_many_are_left(arena: Arena, sender: Accumulator, producer: Producer) -> None:
    sent = send(producer, "flights", [b"v"] * 3, partition=[0, 0, 1])
    (batch, _) = drain(sender)
    sender.complete(batch, BatchResult.SUCCEEDED, base_offset=0)
    with pytest.raises(ResultPendingError, match=r"[12] of 3 records have no result after 0\.01 s"):
        sent.get(0.01)


def test_the_parts_of_a_split_batch(arena: Arena, sender: Accumulator, producer: Producer) -> None:
    sent = send(producer, "flights", [b"v"] * 10, partition=0)
    (batch,) = drain(sender)
    sender.complete_part(batch, 4, BatchResult.SUCCEEDED, base_offset=100)
    assert sent.counts == DeliveryCounts(6, 4, 0, 0)
    sender.complete_part(batch, 6, BatchResult.FAILED, error_code=3)
    assert sent.counts == DeliveryCounts(0, 4, 6, 0)
    assert sent.offsets == {TopicPartition("flights", 0): OffsetRange(4, 100, 103)}
    with pytest.raises(DeliveryFailedError) as caught:
        sent.get(0)
    assert caught.value.record_index == 4  # type: ignore[attr-defined]


def test_a_result_that_was_not_read_in_time_is_lost_and_not_guessed(
    arena: Arena, sender: Accumulator, producer: Producer
) -> None:
    lost = send(producer, "planes", [b"v"] * 3)
    kept = send(producer, "planes", [b"v"] * 3)
    deliver(sender)
    assert kept.is_done
    for _ in range(arena.geometry["completion_count"]):
        send(producer, "planes", [b"v"])
        deliver(sender)
    assert lost.counts == DeliveryCounts(0, 0, 0, 3)
    assert kept.counts == DeliveryCounts(0, 3, 0, 0)
    assert kept[2].get(0).offset == 5
    with pytest.raises(ResultExpiredError, match="planes-0 was overwritten before it was read") as caught:
        lost.get(0)
    assert caught.value.record_index == 0  # type: ignore[attr-defined]


def test_waiting_ends_when_the_sender_is_done(arena: Arena, sender: Accumulator, producer: Producer) -> None:
    sent = send(producer, "flights", [b"v"] * 100, [b"%d" % n for n in range(100)])
    done: list[bool] = []
    waiter = threading.Thread(target=lambda: done.append(sent.wait(30)))
    waiter.start()
    deliver(sender)
    waiter.join()
    assert done == [True]


# --- rejections, and the records appended before them


@pytest.mark.parametrize(
    ("columns", "kind", "sentence"),
    [
        ({"values": [b"v", "text"]}, TypeError, "value must be bytes-like or None, not str"),
        ({"values": [b"v", b"v"], "keys": [b"k", 5]}, TypeError, "key must be bytes-like or None, not int"),
        ({"values": [b"v", b"v"], "timestamps_ms": [1, -1]}, InvalidArgumentError, "timestamp_ms is -1"),
        ({"values": [b"v", b"v"], "partition": [1, -1]}, InvalidArgumentError, "partition is -1"),
        ({"values": [b"v", b"v"], "partition": [1, "1"]}, TypeError, "partition must be an int, not str"),
        ({"values": [b"v", b"v"], "headers": [[], [(None, b"x")]]}, TypeError, "a header's key must be a str"),
        ({"values": [b"v", b"x" * 40_000]}, RecordTooLargeError, "oversized_max_bytes"),
    ],
)
def test_a_wrong_record_is_named(
    producer: Producer, columns: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence) as caught:
        send(producer, "flights", **columns)
    assert caught.value.record_index == 1  # type: ignore[attr-defined]
    assert len(appended(caught.value)) == 1


@pytest.mark.parametrize(
    ("arguments", "kind", "sentence"),
    [
        ({"values": [b"v"], "keys": [b"k", b"l"]}, ValueError, "keys has 2 items for 1 values"),
        ({"values": [b"v"], "headers": []}, ValueError, "headers has 0 items for 1 values"),
        ({"values": [b"v"], "timestamps_ms": [1, 2]}, ValueError, "timestamps_ms has 2 items"),
        ({"values": [b"v"], "partition": [1, 2]}, ValueError, "partition has 2 items"),
        ({"values": [b"v"], "partition": -1}, InvalidArgumentError, "partition is -1"),
        (
            {"values": [b"v"], "partition": 7},
            UnknownPartitionError,
            "topic 'flights' has no partition 7: its partition count is 7, and it did not",
        ),
        (
            {"values": [b"v"], "partition": [7]},
            UnknownPartitionError,
            "topic 'flights' has no partition 7: its partition count is 7, and it did not",
        ),
        ({"values": 5}, TypeError, "not iterable"),
        ({"values": [b"v"], "topic": "a b"}, InvalidArgumentError, "'a b' is not a topic name"),
        ({"values": [b"v"], "topic": None}, TypeError, "topic must be a str"),
    ],
)
def test_a_wrong_argument(producer: Producer, arguments: dict[str, Any], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        send(producer, **({"topic": "flights"} | arguments))


def test_a_bad_record_in_the_middle_leaves_those_before_it(
    arena: Arena, sender: Accumulator, producer: Producer
) -> None:
    values: list[Any] = [b"%d" % number for number in range(400)] + ["text"] + [b"more"] * 200 + [5]
    keys = [b"%d" % (number % 20) for number in range(602)]
    with pytest.raises(TypeError, match="value must be bytes-like") as caught:
        send(producer, "flights", values, keys, None, [NOW_MS] * 602)
    sent = appended(caught.value)
    assert caught.value.record_index == 400  # type: ignore[attr-defined]
    assert sent.rows == range(400)
    rows = [{"topic": "flights", "key": keys[row], "value": values[row], "timestamp": NOW_MS} for row in sent.rows]
    check_places(deliver(sender), rows, NOW_MS)


def test_exhaustion_in_the_middle_reports_exactly_which_records_are_there(
    arena: Arena, sender: Accumulator, producer: Producer
) -> None:
    values = [b"%5d" % number + b"x" * 400 for number in range(1000)]
    keys = [b"%d" % (number % 11) for number in range(1000)]
    with pytest.raises(BufferExhaustedError) as caught:
        send(producer, "flights", values, keys, None, [NOW_MS] * 1000)
    sent = appended(caught.value)
    rows = [{"topic": "flights", "key": keys[row], "value": values[row]} for row in sent.rows]
    assert 50 < len(sent) < 200
    assert sorted(set(sent.rows)) == list(sent.rows)
    assert len(list(sent)) == len(set(sent)) == len(sent)
    check_places(deliver(sender), rows, NOW_MS)
    assert sum(part.record_count for part in sent.get(0).values()) == len(sent)
    rest = [row for row in range(150) if row not in set(sent.rows)]
    send(producer, "flights", [values[row] for row in rest][:30], [keys[row] for row in rest][:30])


def test_a_call_waits_for_memory_and_continues(arena: Arena, topics: None) -> None:
    values = [b"%5d" % number + b"x" * 400 for number in range(600)]
    keys = [b"%d" % (number % 11) for number in range(600)]
    with Drainer(arena) as drainer, Producer(arena) as producer:
        sent = send(producer, "flights", values, keys, None, [NOW_MS] * 600)
        assert sum(part.record_count for part in sent.get(30).values()) == 600
    expected: dict[int, list[tuple[bytes, bytes]]] = {}
    for key, value in zip(keys, values, strict=True):
        expected.setdefault(wanted_partition({"key": key}, 7) or 0, []).append((key, value))
    assert drainer.records == {("flights", partition): records for partition, records in expected.items()}


def test_oversized_records_among_others(sender: Accumulator, producer: Producer) -> None:
    values = [b"%d" % number * (3000 if number % 40 == 7 else 1) for number in range(100)]
    keys = [b"%d" % (number % 5) for number in range(100)]
    send(producer, "flights", values, keys, None, [NOW_MS] * 100)
    rows = [{"topic": "flights", "key": key, "value": value} for key, value in zip(keys, values, strict=True)]
    check_places(deliver(sender), rows, NOW_MS)


def test_no_room_for_another_partition(arena_name: str) -> None:
    sizes: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "partition_count": 2}
    with Arena.create(arena_name, **sizes) as arena, Accumulator(arena) as sender:
        sender.become_sender()
        arena.native.set_topic_partition_count("t", 5)
        producer = Producer(arena)
        with pytest.raises(TableFullError, match="partition_count above 2") as caught:
            send(producer, "t", [b"v"] * 3, partition=[0, 1, 2])
        assert len(appended(caught.value)) == 2
        sender.abort()
        producer.close()


def test_an_unknown_partition_count_is_waited_for(arena: Arena, sender: Accumulator, producer: Producer) -> None:
    with pytest.raises(PartitionCountUnknownError, match="the partition count of topic 'new' was not known") as caught:
        send(producer, "new", [b"v"])
    assert len(appended(caught.value)) == 0
    arena.native.set_topic_partition_count("new", 2)
    assert len(send(producer, "new", [b"v"])) == 1


# --- serializers, partitioners and interceptors


def test_serializers_see_every_record(sender: Accumulator, make: Callable[..., Producer]) -> None:
    producer = make(key_serializer="str", value_serializer=lambda value: repr(value).encode())
    send(producer, "flights", [1, None, "x"], ["a", "b", "c"], None, [NOW_MS] * 3, [1, None, 1])
    rows: list[dict[str, Any]] = [
        {"topic": "flights", "key": "a", "value": "1", "partition": 1},
        {"topic": "flights", "key": "b", "value": None},
        {"topic": "flights", "key": "c", "value": "'x'", "partition": 1},
    ]
    check_places(deliver(sender), rows, NOW_MS)


def test_a_serializer_that_fails_leaves_the_arena_alone(sender: Accumulator, make: Callable[..., Producer]) -> None:
    producer = make(value_serializer="json")
    with pytest.raises(TypeError):
        send(producer, "flights", [1, object()])
    with pytest.raises(ValueError, match="keys has 1 item for 2 values"):
        send(producer, "flights", [1, 2], [b"k"])
    assert len(send(producer, "flights", [])) == 0
    assert deliver(sender) == {}


class Interceptor:
    """Records its calls, and marks the records."""

    def __init__(self) -> None:
        self.acknowledged: list[Any] = []

    def on_send(self, record: Any) -> Any:
        return record._replace(value=record.value + b"!", topic="weather" if record.value == b"go" else record.topic)

    def on_acknowledgement(self, metadata: Any, exception: Any) -> None:
        self.acknowledged.append(exception if metadata is None else metadata.offset)


def test_interceptors_see_every_record(sender: Accumulator, make: Callable[..., Producer]) -> None:
    interceptor = Interceptor()
    producer = make(interceptors=[interceptor])
    sent = send(producer, "planes", [b"a", b"b"])
    assert [record.value for record in deliver(sender)["planes", 0]] == [b"a!", b"b!"]
    assert sent.wait(0)
    wait_until(lambda: sorted(interceptor.acknowledged) == [0, 1], "both are acknowledged")
    with pytest.raises(InvalidArgumentError, match="another topic") as caught:
        send(producer, "planes", [b"go"])
    assert interceptor.acknowledged[2:] == [caught.value]


def test_a_partitioner_of_the_user(sender: Accumulator, make: Callable[..., Producer]) -> None:
    producer = make(partitioner="round_robin")
    send(producer, "flights", [b"v"] * 14)
    assert sorted(len(records) for records in deliver(sender).values()) == [2] * 7


def test_what_arguments_hold_is_let_go_of(producer: Producer) -> None:
    value = bytearray(b"v")
    send(producer, "flights", [value] * 100, [value] * 100)
    with pytest.raises(TypeError):
        send(producer, "flights", [value, "x"])
    value.append(0)  # raises BufferError while a view is exported


def test_use_after_close(make: Callable[..., Producer]) -> None:
    producer = make()
    sent = send(producer, "flights", [])
    producer.close()
    with pytest.raises(ProducerClosedError):
        send(producer, "flights", [b"v"])
    assert sent.get(0) == {}


def test_what_was_sent_is_counted(producer: Producer) -> None:
    send(producer, "flights", [b"v"] * 100, [b"%d" % number for number in range(100)])
    assert producer.record_count == 100
    assert producer.metrics()["producer-metrics"]["record-send-total"] == 100
    assert producer.record_bytes > 100 * 7
