# SPDX-License-Identifier: Apache-2.0
"""Many records in one call, from sequences: where they go, what comes back, what is refused."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmaccum import _native
from shmaccum._native import Receipt, Spreader
from shmaccum.accumulator import Accumulator, BatchResult
from shmaccum.arena import Arena
from shmaccum.deliveries import Deliveries, DeliveryCounts, OffsetRange, TopicPartition
from shmaccum.exceptions import (
    AccumulatorClosedError,
    BufferExhaustedError,
    DeliveryFailedError,
    InvalidArgumentError,
    NoPartitionEntryError,
    RecordTooLargeError,
    ResultExpiredError,
)
from tests.support import drain
from tests.unit.many import PARTITION_COUNTS, check_places, deliver, wanted_partition

NOW_MS = 1_600_000_000_000


def nobody_tells(topic: str, max_block_ms: int) -> None:
    pytest.fail(f"the partition count of {topic} is known")


def says_nothing(topic: str, max_block_ms: int) -> None: ...


@pytest.fixture
def topics(arena: Arena) -> None:
    for topic, count in PARTITION_COUNTS.items():
        arena.native.set_topic_partition_count(topic, count)


@pytest.fixture
def spreader(sender: Accumulator, topics: None) -> Iterator[Spreader]:
    yield Spreader(sender.native, nobody_tells)
    sender.abort()


def deliveries(arena: Arena, receipt: Receipt) -> Deliveries[_native.Token]:
    return Deliveries(arena, receipt, lambda token: token)


def appended(error: BaseException) -> Receipt:
    receipt = getattr(error, "appended", None)
    assert isinstance(receipt, Receipt)
    return receipt


# --- where records go


def test_records_with_a_key_go_where_kafka_puts_them(sender: Accumulator, spreader: Spreader) -> None:
    keys = [b"key-%d" % (number % 50) for number in range(500)]
    values = [b"%d" % number for number in range(500)]
    receipt = spreader.append_columns("flights", values, keys, None, [NOW_MS] * 500)
    assert len(receipt) == receipt.row_count == 500
    rows = [
        {"topic": "flights", "key": key, "value": value, "timestamp": NOW_MS}
        for key, value in zip(keys, values, strict=True)
    ]
    places = deliver(sender)
    assert len(places) == 7
    check_places(places, rows, NOW_MS)


def test_records_without_a_key_stay_together(sender: Accumulator, spreader: Spreader) -> None:
    spreader.append_columns("flights", [b"v"] * 64)
    places = deliver(sender)
    assert [len(records) for records in places.values()] == [64]


def test_records_without_a_key_move_on_when_a_batch_is_full(sender: Accumulator, spreader: Spreader) -> None:
    seen = set()
    for _ in range(12):
        spreader.append_columns("flights", [b"x" * 100] * 200)
        places = deliver(sender)
        assert sum(map(len, places.values())) == 200
        seen |= set(places)
    assert len(seen) > 1


def test_one_partition_for_all(sender: Accumulator, spreader: Spreader) -> None:
    spreader.append_columns("flights", [b"a", b"b"], [b"k", None], partition=5)
    assert [record.value for record in deliver(sender)["flights", 5]] == [b"a", b"b"]


def test_a_partition_for_each(sender: Accumulator, spreader: Spreader) -> None:
    rows: list[dict[str, Any]] = [
        {"topic": "flights", "key": b"k" if number % 2 else None, "value": b"%d" % number, "partition": partition}
        for number, partition in enumerate([0, 6, None, 3, None, 0, 6, 6, None])
    ]
    columns = [[row[name] for row in rows] for name in ("value", "key", "partition")]
    spreader.append_columns("flights", columns[0], columns[1], None, [NOW_MS] * 9, columns[2])
    check_places(deliver(sender), rows, NOW_MS)


def test_keys_can_be_ignored(sender: Accumulator, topics: None) -> None:
    spreader = Spreader(sender.native, nobody_tells, True)
    spreader.append_columns("flights", [b"v"] * 60, [b"%d" % number for number in range(60)])
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
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
def test_any_rows_arrive_where_they_belong(sender: Accumulator, spreader: Spreader, rows: list[dict[str, Any]]) -> None:
    headers = [
        None if row["headers"] is None else [(header["key"], header["value"]) for header in row["headers"]]
        for row in rows
    ]
    columns = [[row[name] for row in rows] for name in ("value", "key", "timestamp", "partition")]
    before_ms = time.time_ns() // 10**6
    receipt = spreader.append_columns("flights", columns[0], columns[1], headers, columns[2], columns[3])
    now_ms = next((receipt[i].timestamp_ms for i, row in enumerate(rows) if row["timestamp"] is None), before_ms)
    assert before_ms <= now_ms <= time.time_ns() // 10**6
    check_places(deliver(sender), rows, now_ms)


# --- receipts


def test_a_receipt_names_each_record(arena: Arena, sender: Accumulator, spreader: Spreader) -> None:
    keys = [b"key-%d" % (number % 9) for number in range(300)]
    values = [b"%d" % number for number in range(300)]
    timestamps = [NOW_MS + number for number in range(300)]
    receipt = spreader.append_columns("flights", values, keys, None, timestamps)
    tokens = list(deliveries(arena, receipt))
    assert len(set(tokens)) == 300
    places = deliver(sender)
    names = arena.native.partitions()
    for number, token in enumerate(tokens):
        found = sender.find(token)
        assert found is not None
        topic, partition = names[token.partition_index]
        assert partition == wanted_partition({"key": keys[number]}, 7)
        assert places[topic, partition][found.offset_of(token)].value == values[number]
        assert token.timestamp_ms == timestamps[number]


def test_deliveries_are_a_sequence(arena: Arena, spreader: Spreader) -> None:
    sent = deliveries(arena, spreader.append_columns("flights", [b"v"] * 10, partition=0))
    assert len(sent) == 10
    assert [token.record_index for token in sent] == list(range(10))
    assert [token.record_index for token in sent[7:2:-2]] == [7, 5, 3]
    assert sent[-1] == sent[9]
    assert sent[3] in sent
    assert sent.rows == range(10)
    for index in (10, -11):
        with pytest.raises(IndexError):
            sent[index]


def test_no_records_are_no_deliveries(arena: Arena, spreader: Spreader) -> None:
    sent = deliveries(arena, spreader.append_columns("flights", []))
    assert (len(sent), list(sent), sent.get(0), sent.is_done) == (0, [], {}, True)
    assert repr(sent) == "<Deliveries of 0 records: none>"


def test_counts_and_offsets(arena: Arena, sender: Accumulator, spreader: Spreader) -> None:
    first = deliveries(arena, spreader.append_columns("flights", [b"v"] * 90, partition=1))
    second = deliveries(arena, spreader.append_columns("flights", [b"v"] * 6, partition=[1, 2, 1, 2, 1, 1]))
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


def test_get_tells_of_the_first_failure(arena: Arena, sender: Accumulator, spreader: Spreader) -> None:
    sent = deliveries(arena, spreader.append_columns("flights", [b"v"] * 70, partition=[4] * 5 + [2, 1] * 32 + [4]))
    while batches := drain(sender):
        for batch in batches:
            result = BatchResult.SUCCEEDED if batch.partition == 4 else BatchResult.FAILED
            sender.complete(batch, result, base_offset=9, error_code=10 + batch.partition)
    with pytest.raises(
        DeliveryFailedError, match=r"record 5, for flights-2: the sink refused it .error code 12"
    ) as caught:
        sent.get(0)
    assert caught.value.record_index == 5  # type: ignore[attr-defined]
    assert sent.counts == DeliveryCounts(0, 6, 64, 0)
    assert sent.offsets == {TopicPartition("flights", 4): OffsetRange(6, 9, 14)}


def test_a_timeout_tells_how_many_are_left(arena: Arena, sender: Accumulator, spreader: Spreader) -> None:
    sent = deliveries(arena, spreader.append_columns("flights", [b"v"] * 3, partition=[0, 0, 1]))
    (batch, _) = drain(sender)
    sender.complete(batch, BatchResult.SUCCEEDED, base_offset=0)
    with pytest.raises(TimeoutError, match=r"[12] of 3 records have no result after 0\.01 s"):
        sent.get(0.01)


def test_the_parts_of_a_split_batch(arena: Arena, sender: Accumulator, spreader: Spreader) -> None:
    sent = deliveries(arena, spreader.append_columns("flights", [b"v"] * 10, partition=0))
    (batch,) = drain(sender)
    sender.complete_part(batch, 4, BatchResult.SUCCEEDED, base_offset=100)
    assert sent.counts == DeliveryCounts(6, 4, 0, 0)
    sender.complete_part(batch, 6, BatchResult.FAILED, error_code=3)
    assert sent.counts == DeliveryCounts(0, 4, 6, 0)
    assert sent.offsets == {TopicPartition("flights", 0): OffsetRange(4, 100, 103)}
    with pytest.raises(DeliveryFailedError, match="record 4, "):
        sent.get(0)


def test_a_result_nobody_looked_at_in_time_is_lost_and_not_guessed(arena_name: str) -> None:
    sizes: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB"}
    with Arena.create(arena_name, **sizes) as arena, Accumulator(arena) as sender:
        sender.become_sender()
        arena.native.set_topic_partition_count("t", 1)
        spreader = Spreader(sender.native, nobody_tells)
        sent = deliveries(arena, spreader.append_columns("t", [b"v"] * 3))
        kept = deliveries(arena, spreader.append_columns("t", [b"v"] * 3))
        deliver(sender)
        assert kept.is_done
        for _ in range(arena.geometry["completion_count"]):
            spreader.append_columns("t", [b"v"])
            deliver(sender)
        assert sent.counts == DeliveryCounts(0, 0, 0, 3)
        assert kept.counts == DeliveryCounts(0, 3, 0, 0)
        with pytest.raises(ResultExpiredError, match="record 0, for t-0: its result was overwritten"):
            sent.get(0)


def test_waiting_ends_when_the_sender_is_done(arena: Arena, sender: Accumulator, spreader: Spreader) -> None:
    sent = deliveries(arena, spreader.append_columns("flights", [b"v"] * 100, [b"%d" % n for n in range(100)]))
    done: list[bool] = []
    waiter = threading.Thread(target=lambda: done.append(sent.wait(30)))
    waiter.start()
    deliver(sender)
    waiter.join()
    assert done == [True]


# --- what is refused, and what was appended before


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
    spreader: Spreader, columns: dict[str, Any], kind: type[Exception], sentence: str
) -> None:
    with pytest.raises(kind, match=sentence) as caught:
        spreader.append_columns("flights", **columns)
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
        ({"values": [b"v"], "partition": 7}, InvalidArgumentError, "partition is 7, topic 'flights' has 7 of them"),
        ({"values": [b"v"], "partition": [7]}, InvalidArgumentError, "partition is 7, topic 'flights' has 7 of them"),
        ({"values": [b"v"], "max_block_ms": -1}, InvalidArgumentError, "max_block_ms is -1"),
        ({"values": 5}, TypeError, "not iterable"),
        ({"values": [b"v"], "topic": "a b"}, InvalidArgumentError, "'a b' is not a topic name"),
        ({"values": [b"v"], "topic": None}, TypeError, "topic must be a str"),
    ],
)
def test_a_wrong_argument(spreader: Spreader, arguments: dict[str, Any], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        spreader.append_columns(**({"topic": "flights"} | arguments))


def test_a_bad_record_in_the_middle_leaves_those_before_it(
    arena: Arena, sender: Accumulator, spreader: Spreader
) -> None:
    values: list[Any] = [b"%d" % number for number in range(400)] + ["text"] + [b"more"] * 200 + [5]
    keys = [b"%d" % (number % 20) for number in range(602)]
    with pytest.raises(TypeError, match="value must be bytes-like") as caught:
        spreader.append_columns("flights", values, keys, None, [NOW_MS] * 602)
    sent = deliveries(arena, appended(caught.value))
    assert caught.value.record_index == 400  # type: ignore[attr-defined]
    assert sent.rows == range(400)
    rows = [{"topic": "flights", "key": keys[row], "value": values[row], "timestamp": NOW_MS} for row in sent.rows]
    check_places(deliver(sender), rows, NOW_MS)


def test_exhaustion_in_the_middle_tells_exactly_which_records_are_there(
    arena: Arena, sender: Accumulator, spreader: Spreader
) -> None:
    values = [b"%5d" % number + b"x" * 400 for number in range(1000)]
    keys = [b"%d" % (number % 11) for number in range(1000)]
    with pytest.raises(BufferExhaustedError) as caught:
        spreader.append_columns("flights", values, keys, None, [NOW_MS] * 1000, None, 0)
    sent = deliveries(arena, appended(caught.value))
    rows = [{"topic": "flights", "key": keys[row], "value": values[row]} for row in sent.rows]
    assert 50 < len(sent) < 200
    assert sorted(set(sent.rows)) == list(sent.rows)
    assert len(list(sent)) == len(set(sent)) == len(sent)
    check_places(deliver(sender), rows, NOW_MS)
    assert sum(part.record_count for part in sent.get(0).values()) == len(sent)
    rest = [row for row in range(150) if row not in set(sent.rows)]
    spreader.append_columns("flights", [values[row] for row in rest][:30], [keys[row] for row in rest][:30])


def test_a_call_waits_for_memory_and_goes_on(arena: Arena, sender: Accumulator, spreader: Spreader) -> None:
    values = [b"%5d" % number + b"x" * 400 for number in range(600)]
    keys = [b"%d" % (number % 11) for number in range(600)]
    places: dict[tuple[str, int], list[Any]] = {}
    is_over = threading.Event()

    def deliver_until_over() -> None:
        while not is_over.is_set():
            for place, records in deliver(sender).items():
                places.setdefault(place, []).extend(records)

    sending = threading.Thread(target=deliver_until_over)
    sending.start()
    with Accumulator(arena) as accumulator:
        receipt = Spreader(accumulator.native, nobody_tells).append_columns(
            "flights", values, keys, None, [NOW_MS] * 600, None, 60_000
        )
        is_over.set()
        sending.join()
    assert len(receipt) == 600
    for place, records in deliver(sender).items():
        places.setdefault(place, []).extend(records)
    rows = [{"topic": "flights", "key": key, "value": value} for key, value in zip(keys, values, strict=True)]
    check_places(places, rows, NOW_MS)


def test_oversized_records_among_others(sender: Accumulator, spreader: Spreader) -> None:
    values = [b"%d" % number * (3000 if number % 40 == 7 else 1) for number in range(100)]
    keys = [b"%d" % (number % 5) for number in range(100)]
    spreader.append_columns("flights", values, keys, None, [NOW_MS] * 100)
    rows = [{"topic": "flights", "key": key, "value": value} for key, value in zip(keys, values, strict=True)]
    check_places(deliver(sender), rows, NOW_MS)


def test_no_room_for_another_partition(arena_name: str) -> None:
    sizes: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "partition_count": 2}
    with Arena.create(arena_name, **sizes) as arena, Accumulator(arena) as sender:
        sender.become_sender()
        arena.native.set_topic_partition_count("t", 5)
        spreader = Spreader(sender.native, nobody_tells)
        with pytest.raises(NoPartitionEntryError, match="partition_count above 2") as caught:
            spreader.append_columns("t", [b"v"] * 3, partition=[0, 1, 2])
        assert len(appended(caught.value)) == 2
        sender.abort()


def test_an_unknown_partition_count_is_waited_for(arena: Arena, sender: Accumulator) -> None:
    def wait(topic: str, max_block_ms: int) -> None:
        assert max_block_ms == 77
        arena.native.set_topic_partition_count(topic, 2)

    receipt = Spreader(sender.native, wait).append_columns("new", [b"v"], max_block_ms=77)
    assert len(receipt) == 1
    deliver(sender)


def test_a_partition_count_that_nobody_tells(sender: Accumulator) -> None:
    with pytest.raises(InvalidArgumentError, match="nobody has told how many partitions topic 'new' has"):
        Spreader(sender.native, says_nothing).append_columns("new", [b"v"])

    def refuse(topic: str, max_block_ms: int) -> None:
        raise KeyError(topic)

    with pytest.raises(KeyError, match="new"):
        Spreader(sender.native, refuse).append_columns("new", [b"v"])


def test_what_arguments_hold_is_let_go_of(spreader: Spreader) -> None:
    value = bytearray(b"v")
    spreader.append_columns("flights", [value] * 100, [value] * 100)
    with pytest.raises(TypeError):
        spreader.append_columns("flights", [value, "x"])  # type: ignore[list-item]
    value.append(0)  # a BufferError while anybody still holds it


def test_use_after_close(arena: Arena, topics: None) -> None:
    accumulator = Accumulator(arena)
    spreader = Spreader(accumulator.native, nobody_tells)
    accumulator.close()
    with pytest.raises(AccumulatorClosedError):
        spreader.append_columns("flights", [b"v"])
    with pytest.raises(AccumulatorClosedError):
        Spreader(accumulator.native, nobody_tells)


def test_a_cycle_through_a_spreader_is_collected(arena: Arena) -> None:
    class Waiter:
        def wait(self, topic: str, max_block_ms: int) -> None: ...

    waiter: Any = Waiter()
    accumulator = Accumulator(arena)
    waiter.spreader = Spreader(accumulator.native, waiter.wait)
    del waiter, accumulator
    gc.collect()
    arena.close()
    assert arena.closed
