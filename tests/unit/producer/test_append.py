# SPDX-License-Identifier: Apache-2.0
"""Appending record by record: accepted and rejected records, and the tokens of records."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum._native import Token, decode_batch
from shmaccum.arena import Arena, VerifyDepth
from shmaccum.arena.results import BatchResult
from shmaccum.arena.wake_fifo import SenderWaker
from shmaccum.common import cooperative
from shmaccum.exceptions import (
    ArenaInUseError,
    InvalidArgumentError,
    NotSenderError,
    ProducerClosedError,
    RecordTooLargeError,
    TableFullError,
)
from shmaccum.producer import appender
from shmaccum.producer.appender import Appender, flush_pause
from tests.support.accumulator import Accumulator
from tests.support.arenas import deliver_all, drain
from tests.support.processes import HAS_NO_GIL


def delivered(sender: Accumulator) -> list[Any]:
    """Return (timestamp_ms, key, value, headers) of every record, in order."""
    records = []
    while batches := drain(sender):
        for batch in batches:
            records += [record[1:] for record in batch.decode()]
            sender.complete(batch, BatchResult.SUCCEEDED)
    return records


# --- accepted records


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (None, None, None),
        (b"", b"", []),
        (b"k", b"v", None),
        (bytearray(b"k"), memoryview(b"vvv")[1:], ()),
        (None, b"v", [("h", b"x"), ("null", None), ("", b""), ("ü", bytearray(b"y"))]),
        (None, b"v", (("h", b"x"),)),
        (None, b"v", [["h", b"x"]]),
        (b"k" * 3000, None, None),
    ],
)
def test_a_record_comes_out_as_it_went_in(sender: Accumulator, key: Any, value: Any, headers: Any) -> None:
    sender.append("t", 0, 1234, key, value, headers)
    expected = [(name, None if content is None else bytes(content)) for name, content in headers or []]
    plain = [None if part is None else bytes(part) for part in (key, value)]
    assert delivered(sender) == [(1234, *plain, expected)]


def test_without_a_timestamp_it_is_now(sender: Accumulator) -> None:
    before = time.time_ns() // 10**6
    token = sender.append("t", 0, None, None, b"v")
    assert before <= token.timestamp_ms <= time.time_ns() // 10**6
    assert delivered(sender)[0][0] == token.timestamp_ms


def test_each_of_many_records_has_the_millisecond_of_its_append(sender: Accumulator) -> None:
    before = start = time.time_ns() // 10**6
    while before < start + 10:
        before = time.time_ns() // 10**6
        token = sender.append("t", 0, None, None, None)
        assert before <= token.timestamp_ms <= time.time_ns() // 10**6


def test_every_argument_has_a_name(sender: Accumulator) -> None:
    sender.append(topic="t", partition=0, timestamp_ms=5, key=b"k", value=b"v", headers=[("h", b"x")], max_block_ms=0)
    assert delivered(sender) == [(5, b"k", b"v", [("h", b"x")])]


def test_equal_topics_in_different_strings_are_one_topic(accumulator: Accumulator) -> None:
    topics = ["".join(["to", "pic"]) for _ in range(3)]
    assert len({accumulator.append(topic, 0, 1, None, b"v").partition_index for topic in topics}) == 1
    assert accumulator.arena.native.topics() == ["topic"]
    accumulator.become_sender()
    accumulator.abort()


def test_more_topics_than_the_cache_has_cells(arena: Arena, sender: Accumulator) -> None:
    topics = [f"topic-{number}" for number in range(700)]
    for _ in range(2):
        for index, topic in enumerate(topics):
            assert sender.append(topic, 0, 1, None, b"v").partition_index == index
            if index % 10 == 9:
                deliver_all(sender)
    assert arena.native.partitions() == [(topic, 0) for topic in topics]


# --- rejected records, which change nothing


def refuse(accumulator: Accumulator, arguments: dict[str, Any], kind: type[Exception], sentence: str) -> None:
    good: dict[str, Any] = {"topic": "t", "partition": 0, "timestamp_ms": 1, "key": None, "value": b"v"}
    before = accumulator.arena.slot_table().tobytes()
    with pytest.raises(kind, match=sentence):
        accumulator.append(**(good | arguments))
    assert accumulator.arena.slot_table().tobytes() == before
    assert accumulator.arena.verify(VerifyDepth.DEEP) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"key": "text"}, "key must be bytes-like or None, not str: encode it first"),
        ({"value": "text"}, "value must be bytes-like or None, not str: encode it first"),
        ({"value": 5}, "value must be bytes-like or None, not int"),
        ({"value": [b"x"]}, "value must be bytes-like"),
        ({"headers": {"h": b"x"}}, "headers must be a list or tuple"),
        ({"headers": "hx"}, "headers must be a list or tuple"),
        ({"headers": [("h",)]}, "headers must be a sequence of"),
        ({"headers": [("h", b"x", b"y")]}, "headers must be a sequence of"),
        ({"headers": ["hx"]}, "headers must be a sequence of"),
        ({"headers": [(b"h", b"x")]}, "a header's key must be a str, not bytes"),
        ({"headers": [("h", "x")]}, "a header's value must be bytes-like or None, not str"),
        ({"topic": b"t"}, "topic must be a str, not bytes"),
        ({"topic": None}, "topic must be a str"),
        ({"partition": "0"}, "partition must be an int, not str"),
        ({"partition": 0.0}, "partition must be an int, not float"),
        ({"timestamp_ms": 1.5}, "timestamp_ms must be an int, not float"),
    ],
)
def test_a_wrong_type(accumulator: Accumulator, arguments: dict[str, Any], sentence: str) -> None:
    refuse(accumulator, arguments, TypeError, sentence)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"timestamp_ms": -1}, "timestamp_ms is -1"),
        ({"timestamp_ms": 2**63}, "timestamp_ms is 9223372036854775808"),
        ({"partition": -1}, "partition is -1"),
        ({"partition": 2**31}, "partition is 2147483648"),
        ({"topic": ""}, "is not a topic name"),
        ({"topic": "a b"}, "is not a topic name"),
        ({"topic": ".."}, "is not a topic name"),
        ({"topic": "x" * 250}, "is not a topic name"),
        ({"topic": "ü"}, "is not a topic name"),
        ({"topic": "a\0"}, "is not a topic name"),
    ],
)
def test_a_value_that_cannot_be(accumulator: Accumulator, arguments: dict[str, Any], sentence: str) -> None:
    refuse(accumulator, arguments, InvalidArgumentError, sentence)


@pytest.mark.parametrize("other", [None, 5, "events"])
def test_an_appender_of_no_arena(arena: Arena, other: Any) -> None:
    with pytest.raises(TypeError, match="arena must be an Arena"):
        Appender(other, SenderWaker(arena))


@pytest.mark.parametrize(
    ("options", "kind", "sentence"),
    [
        ({"max_block_ms": -1}, InvalidArgumentError, "max_block_ms is -1"),
        ({"max_block_ms": 2**70}, InvalidArgumentError, "max_block_ms is"),
        ({"max_block_ms": "1s"}, TypeError, "max_block_ms must be an int"),
        ({"ring": 5}, TypeError, "wake must be callable"),
    ],
)
def test_an_option_that_cannot_be(arena: Arena, options: dict[str, Any], kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        Accumulator(arena, **options)


def test_a_surrogate_is_no_topic(accumulator: Accumulator) -> None:
    refuse(accumulator, {"topic": "\ud800"}, UnicodeEncodeError, "surrogates")


@pytest.mark.parametrize("part", ["key", "value"])
def test_a_record_larger_than_the_arena_allows(accumulator: Accumulator, part: str) -> None:
    refuse(accumulator, {part: b"x" * 40_000}, RecordTooLargeError, "oversized_max_bytes")


def test_a_record_larger_than_max_request_size(arena_name: str) -> None:
    sizes: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "max_request_size": "8KiB"}
    with Arena.create(arena_name, **sizes) as arena, Accumulator(arena) as accumulator:
        refuse(accumulator, {"value": b"x" * 8192}, RecordTooLargeError, "8192 bytes .max_request_size")


def test_when_there_is_no_room_for_another_partition(arena_name: str) -> None:
    sizes: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "partition_count": 2, "topic_count": 2}
    with Arena.create(arena_name, **sizes) as arena, Accumulator(arena) as accumulator:
        assert [accumulator.append(topic, 0, 1, None, b"v").partition_index for topic in "ab"] == [0, 1]
        refuse(accumulator, {"topic": "a", "partition": 1}, TableFullError, "partition_count above 2")
        refuse(accumulator, {"topic": "c"}, TableFullError, "larger topic_count")


def test_use_after_close(arena: Arena) -> None:
    accumulator = Accumulator(arena)
    accumulator.close()
    accumulator.close()
    uses: list[Callable[[], Any]] = [
        lambda: accumulator.append("t", 0, 1, None, b"v"),
        lambda: accumulator.append_many("t", 0, [b"v"]),
        accumulator.flush_begin,
        accumulator.become_sender,
    ]
    for use in uses:
        with pytest.raises((ProducerClosedError, NotSenderError), match=r"(open|make) another one"):
            use()


def test_a_buffer_is_let_go_of_after_the_append(sender: Accumulator) -> None:
    value = bytearray(b"v")
    sender.append("t", 0, 1, value, value, [("h", value)])
    with pytest.raises(TypeError):
        sender.append("t", 0, 1, value, value, [("h", "x")])
    value.append(0)  # raises BufferError while a view is exported
    sender.abort()


# --- tokens


def test_a_token_names_its_record(sender: Accumulator) -> None:
    first, second = (sender.append("t", 0, 7, None, b"v") for _ in range(2))
    other = sender.append("t", 1, 7, None, b"v")
    assert (first.record_index, second.record_index, other.record_index) == (0, 1, 0)
    assert (first.seq, first.slot_index, first.partition_index) == (second.seq, second.slot_index, 0)
    assert other.partition_index == 1
    sender.abort()


def test_tokens_are_equal_hashable_and_nothing_else(sender: Accumulator) -> None:
    tokens = [sender.append("t", index % 3, 7, None, b"v") for index in range(50)]
    (again, count), *_ = sender.append_many("t", 5, [b"v"])
    assert len(set(tokens) | {again}) == 51
    assert count == 1
    assert tokens[0] == tokens[0]
    assert tokens[0] != tokens[1]
    assert tokens[0] != 5
    with pytest.raises(TypeError):
        tokens[0] < tokens[1]  # type: ignore[operator] # noqa: B015
    with pytest.raises(TypeError):
        Token()
    with pytest.raises(AttributeError):
        tokens[0].seq = 1  # type: ignore[misc]
    sender.abort()


def test_the_result_of_a_token(arena: Arena, sender: Accumulator) -> None:
    token = sender.append("t", 0, 7, None, b"v")
    assert sender.find(token) is None
    (batch,) = drain(sender)
    assert sender.find(token) is None
    sender.complete(batch, BatchResult.SUCCEEDED, base_offset=41, log_append_time_ms=99)
    found = sender.find(token)
    assert found is not None
    assert (found.result, found.offset_of(token), found.log_append_time_ms) == (BatchResult.SUCCEEDED, 41, 99)
    with pytest.raises(TypeError, match=r"find\(\) takes a Token, not int"):
        arena.native.find(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"is_under_way\(\) takes a Token, not int"):
        arena.native.is_under_way(5)  # type: ignore[arg-type]


# --- append_many


def test_many_come_out_in_order(sender: Accumulator) -> None:
    values = [b"%d" % number for number in range(3000)]
    runs = sender.append_many("t", 0, values)
    assert sum(count for _, count in runs) == 3000
    assert all(token.record_index == 0 for token, _ in runs[1:])
    assert deliver_all(sender) == values


def test_one_batch_is_one_run(sender: Accumulator) -> None:
    ((token, count),) = sender.append_many("t", 0, [b"v"] * 200)
    assert (token.record_index, count) == (0, 200)
    assert deliver_all(sender) == [b"v"] * 200


def test_columns_belong_together(sender: Accumulator) -> None:
    keys = [b"a", None, b"c"]
    values: Any = iter([b"x", None, b"z"])
    sender.append_many("t", 0, values, keys, (1, 2, 3), [[("h", b"1")], None, []])
    assert delivered(sender) == [(1, b"a", b"x", [("h", b"1")]), (2, None, None, []), (3, b"c", b"z", [])]


def test_no_values_are_no_runs(sender: Accumulator) -> None:
    assert sender.append_many("t", 0, []) == []


# --- oversized records


def test_an_oversized_record_is_one_batch_in_several_buffers(sender: Accumulator) -> None:
    value = bytes(range(256)) * 60
    sender.append("t", 0, 1, None, b"before")
    sender.append("t", 0, 2, b"k", value, [("h", b"x")])
    sender.append("t", 0, 3, None, b"after")
    assert [record[2] for record in delivered(sender)] == [b"before", value, b"after"]


def test_the_buffers_of_an_oversized_batch_are_its_bytes(sender: Accumulator) -> None:
    sender.append("t", 0, 2, None, b"x" * 9000)
    (batch,) = drain(sender)
    buffers = batch.buffers
    assert [buffer.nbytes for buffer in buffers] == [4096, 4096, batch.size - 8192]
    assert b"".join(buffers) == batch.tobytes()
    assert decode_batch(batch.tobytes()) == batch.decode() == [(0, 2, None, b"x" * 9000, [])]
    for buffer in buffers:
        buffer.release()
    sender.complete(batch, BatchResult.SUCCEEDED)


# --- flush


@pytest.mark.parametrize(
    ("elapsed", "completed", "left", "rest"),
    [(1.0, 0, 100, 0.0), (1.0, 10, 4, 0.0), (0.01, 10, 40, 0.0025), (0.01, 10, 5, 0.00125), (1.0, 10, 1000, 0.02)],
)
def test_a_flush_of_many_rests_for_a_part_of_what_is_left(
    elapsed: float, completed: int, left: int, rest: float
) -> None:
    assert flush_pause(elapsed, completed, left) == pytest.approx(rest)


def test_flush_waits_for_what_this_process_appended(arena: Arena, sender: Accumulator) -> None:
    assert sender.flush(timeout=0)
    sender.append("t", 0, 1, None, b"v")
    ticket = sender.flush_begin()
    sender.append("t", 0, 1, None, b"later")
    assert ticket.remaining() == 1
    assert arena.statistics().slots["READY"] == 1
    assert not sender.flush(timeout=0)
    (batch,) = drain(sender)
    sender.complete(batch, BatchResult.SUCCEEDED)
    assert ticket.remaining() == 0
    assert not sender.flush(timeout=0)
    assert deliver_all(sender) == [b"later"]
    assert sender.flush(timeout=0)


@pytest.mark.parametrize("timeout", [None, 30])
def test_a_flush_rests_as_long_as_it_may_and_otherwise_waits_for_a_result(
    sender: Accumulator, monkeypatch: pytest.MonkeyPatch, timeout: float | None
) -> None:
    """If less time is left than a rest takes, the rest ends with the timeout."""
    rests = iter([0.0, 60.0, 0.0])
    slept_s: list[float] = []
    waits: list[int] = []

    def wait(_native: object, tail: int, _timeout_ns: int) -> int:
        waits.append(tail)
        if len(waits) == 2:
            deliver_all(sender)
        return tail

    monkeypatch.setattr(appender, "flush_pause", lambda *_: next(rests))
    monkeypatch.setattr(appender, "time", SimpleNamespace(sleep=slept_s.append))
    monkeypatch.setattr(cooperative, "wait_completion", wait)
    sender.append("t", 0, 1, None, b"v")
    assert sender.flush(timeout)
    (slept,) = slept_s
    assert slept == 60.0 if timeout is None else 0 < slept <= timeout
    assert len(waits) == 2


def test_a_ticket_outlives_nothing(arena: Arena) -> None:
    accumulator = Accumulator(arena)
    ticket = accumulator.flush_begin()
    accumulator.close()
    with pytest.raises(ProducerClosedError):
        ticket.remaining()


# --- waking the sender


def test_a_sleeping_sender_is_woken_once_per_sleep(arena: Arena) -> None:
    rings: list[None] = []
    with Accumulator(arena, ring=lambda: rings.append(None)) as accumulator:
        accumulator.become_sender()
        accumulator.append("t", 0, 1, None, b"v")
        assert len(rings) == 0
        arena.native.set_sender_asleep(True)
        for partition in (1, 2, 3):
            accumulator.append("t", partition, 1, None, b"v")
        assert len(rings) == 1
        accumulator.abort()


def test_an_exception_of_the_waker_is_raised_after_the_append(arena: Arena) -> None:
    def ring() -> None:
        raise KeyboardInterrupt

    with Accumulator(arena, ring=ring) as accumulator:
        accumulator.become_sender()
        arena.native.set_sender_asleep(True)
        with pytest.raises(KeyboardInterrupt):
            accumulator.append("t", 0, 1, None, b"v")
        assert deliver_all(accumulator) == [b"v"]


# --- closing


def test_close_inside_a_call_is_refused(arena: Arena) -> None:
    refused: list[str] = []

    def ring() -> None:
        try:
            accumulator.close()
        except ArenaInUseError as error:
            refused.append(str(error))

    accumulator = Accumulator(arena, ring=ring)
    accumulator.become_sender()
    arena.native.set_sender_asleep(True)
    accumulator.append("t", 0, 1, None, b"v")
    assert refused == ["the producer cannot be closed while calls are running (1): join the threads that use it first"]
    accumulator.abort()
    accumulator.close()


@pytest.fixture
def uninterrupted() -> Iterator[None]:
    """Switch threads only where code releases the GIL."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(interval)


LARGE = 4 * 1024 * 1024
TRIES_MAX = 200  # the other thread must also get a processor during the copy


@pytest.mark.skipif(HAS_NO_GIL, reason="without a GIL the other thread may close before the copy begins")
def test_other_threads_run_while_a_large_record_is_copied(arena_name: str, uninterrupted: None) -> None:
    refused: list[ArenaInUseError] = []
    may_close = threading.Lock()
    may_close.acquire()

    def close() -> None:
        with may_close:
            try:
                accumulator.close()
            except ArenaInUseError as error:
                refused.append(error)

    with (
        Arena.create(arena_name, buffer_memory="16MiB", max_request_size="5MiB") as arena,
        Accumulator(arena) as accumulator,
    ):
        accumulator.become_sender()
        thread = threading.Thread(target=close)
        thread.start()
        may_close.release()  # from here on it needs only the GIL
        value = bytearray(b"v" * LARGE)
        tries = 0
        while not refused and tries < TRIES_MAX:
            accumulator.append("t", 0, 1, None, value)
            assert deliver_all(accumulator) == [bytes(value)]
            tries += 1
        assert not accumulator.closed
        assert "calls are running (1)" in str(refused[0])
        thread.join()


def test_a_cycle_through_an_accumulator_is_collected(arena: Arena) -> None:
    class Ringer:
        def ring(self) -> None: ...

    ringer: Any = Ringer()
    ringer.accumulator = Accumulator(arena, ring=ringer.ring)
    del ringer
    gc.collect()
    with contextlib.suppress(ArenaInUseError):
        arena.close()
    assert arena.closed


def test_every_append_is_counted_in_the_entry_of_its_process(arena: Arena, sender: Accumulator) -> None:
    entry = arena.native.entry_index or 0
    sender.append("t", 0, 0, None, bytes(100))
    small = arena.native.processes()[entry]
    assert small["record_count"] == 1
    assert 100 < small["record_bytes"] < 150
    sender.append_many("t", 0, [bytes(100)] * 9)
    sender.append("t", 0, 0, None, bytes(10_000))
    all_of_them = arena.native.processes()[entry]
    assert all_of_them["record_count"] == 11
    assert 10 * small["record_bytes"] + 10_000 < all_of_them["record_bytes"] < 10 * small["record_bytes"] + 10_100
    deliver_all(sender)
