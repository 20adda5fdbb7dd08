# SPDX-License-Identifier: Apache-2.0
"""Drained batches: their facts, buffers and completion, and every invalid completion."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import crc32c
import numpy as np
import pytest

from shmaccum._native import Batch, decode_batch
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.exceptions import (
    ArenaBusyError,
    ArenaInUseError,
    BatchInUseError,
    CorruptArenaError,
    InvalidArgumentError,
    NotSenderError,
    ResultExpiredError,
)
from tests.support.accumulator import Accumulator
from tests.support.arenas import deliver_all, drain

MS = 10**6


@pytest.fixture
def batch(sender: Accumulator) -> Batch:
    """A drained batch of three records."""
    sender.append_many("flights", 7, [b"a", b"b", b"c"], timestamps_ms=[30, 10, 20])
    (batch,) = drain(sender)
    return batch


# --- facts


def test_the_facts_of_a_batch(batch: Batch, sender: Accumulator) -> None:
    assert (batch.topic, batch.partition) == ("flights", 7)
    assert (batch.record_count, batch.base_timestamp_ms, batch.max_timestamp_ms) == (3, 30, 30)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (-1, -1, -1)
    assert (batch.attempt_count, batch.acked_record_count, batch.is_over) == (1, 0, False)
    assert "record_count=3" in repr(batch)
    assert batch.created_ns <= sender.arena.native.now_ns()
    sender.complete(batch, BatchResult.SUCCEEDED)
    assert batch.is_over
    assert batch.topic == "flights"


def test_the_bytes_are_kafkas(batch: Batch, sender: Accumulator) -> None:
    wire = batch.tobytes()
    assert len(wire) == batch.size
    assert int.from_bytes(wire[8:12], "big") == batch.size - 12
    assert wire[16] == 2
    assert int.from_bytes(wire[17:21], "big") == batch.crc == crc32c.crc32c(wire[21:])
    assert decode_batch(wire) == [(0, 30, None, b"a", []), (1, 10, None, b"b", []), (2, 20, None, b"c", [])]
    sender.complete(batch, BatchResult.SUCCEEDED)


def test_sequences_follow_each_other_and_stay_at_a_resend(sender: Accumulator) -> None:
    sender.set_producer_id(77, 3)
    sender.append_many("t", 0, [b"v"] * 5)
    deliver_all(sender)
    sender.append_many("t", 0, [b"v"] * 2)
    (first,) = drain(sender)
    sender.append("t", 0, 1, None, b"v")
    (second,) = drain(sender)
    assert [(b.producer_id, b.producer_epoch, b.base_sequence) for b in (first, second)] == [(77, 3, 5), (77, 3, 7)]
    wire = first.tobytes()
    sender.requeue(first)
    (again,) = drain(sender)
    assert (again.tobytes(), again.attempt_count) == (wire, 2)
    for each in (again, second):
        sender.complete(each, BatchResult.SUCCEEDED)


@pytest.mark.parametrize("position", [8, 16, 17, 23, 57, 65])
def test_damaged_bytes_are_not_decoded(batch: Batch, sender: Accumulator, position: int) -> None:
    wire = bytearray(batch.tobytes())
    wire[position] ^= 0x41
    with pytest.raises(CorruptArenaError):
        decode_batch(wire)
    with pytest.raises(CorruptArenaError):
        decode_batch(wire[:40])
    sender.complete(batch, BatchResult.SUCCEEDED)


# --- buffers


def test_a_batch_in_use_is_not_completed(batch: Batch, sender: Accumulator) -> None:
    (buffer,) = batch.buffers
    slice_of_it = buffer[61:]
    ways: list[Callable[[], Any]] = [
        lambda: sender.complete(batch, BatchResult.SUCCEEDED),
        lambda: sender.complete_part(batch, 1, BatchResult.SUCCEEDED),
        lambda: sender.requeue(batch),
        lambda: sender.quarantine(batch),
        sender.resign,
        sender.close,
    ]
    for way in ways:
        with pytest.raises(BatchInUseError, match="1 of them") as caught:
            way()
        assert isinstance(caught.value, BufferError)
    assert bytes(slice_of_it)[-2:] == b"c\0"
    slice_of_it.release()
    buffer.release()
    sender.complete(batch, BatchResult.SUCCEEDED)


def test_the_memory_of_a_completed_batch_is_not_looked_at_again(batch: Batch, sender: Accumulator) -> None:
    (buffer,) = batch.buffers
    behind = buffer.obj
    buffer.release()
    sender.complete(batch, BatchResult.SUCCEEDED)
    with pytest.raises(BufferError, match="all memoryviews of this memory were released"):
        memoryview(behind)


def test_an_array_over_a_batch_counts_too(batch: Batch, sender: Accumulator) -> None:
    array = np.frombuffer(batch.buffers[0], dtype=np.uint8)
    with pytest.raises(BatchInUseError):
        sender.complete(batch, BatchResult.SUCCEEDED)
    with pytest.raises(ArenaInUseError):
        sender.arena.close()
    del array
    gc.collect()
    sender.complete(batch, BatchResult.SUCCEEDED)


def test_buffers_are_read_only(batch: Batch, sender: Accumulator) -> None:
    (buffer,) = batch.buffers
    assert buffer.readonly
    with pytest.raises(TypeError):
        buffer[0] = 1
    buffer.release()
    sender.complete(batch, BatchResult.SUCCEEDED)


# --- ends


def test_use_after_completion(batch: Batch, sender: Accumulator) -> None:
    sender.complete(batch, BatchResult.SUCCEEDED)
    ways: list[Callable[[], Any]] = [
        lambda: batch.buffers,
        batch.tobytes,
        batch.decode,
        lambda: sender.complete(batch, BatchResult.SUCCEEDED),
        lambda: sender.complete_part(batch, 1, BatchResult.SUCCEEDED),
        lambda: sender.requeue(batch),
        lambda: sender.quarantine(batch),
    ]
    for way in ways:
        with pytest.raises(NotSenderError):
            way()


def test_a_batch_of_an_earlier_stint(batch: Batch, sender: Accumulator) -> None:
    """After the sender gave up and retook the role, the batch is drained again. The old object may not complete it."""
    sender.resign()
    assert not sender.is_sender
    with pytest.raises(NotSenderError, match="become_sender"):
        sender.ready(0)
    sender.become_sender()
    (again,) = drain(sender)
    assert (again.slot_index, again.seq) == (batch.slot_index, batch.seq)
    assert batch.is_over
    with pytest.raises(NotSenderError, match="drain it again"):
        sender.complete(batch, BatchResult.SUCCEEDED)
    del batch
    gc.collect()
    assert deliver_all(sender) == []
    sender.complete(again, BatchResult.SUCCEEDED)


def test_a_batch_without_a_reference_is_drained_again(sender: Accumulator) -> None:
    sender.append("t", 0, 1, None, b"v")
    drain(sender)
    gc.collect()
    assert sender.statistics()["in_flight_count"] == 0
    assert deliver_all(sender) == [b"v"]


def test_a_batch_of_another_accumulator(arena: Arena, batch: Batch, sender: Accumulator) -> None:
    with Accumulator(arena) as other:
        with pytest.raises(NotSenderError):
            other.complete(batch, BatchResult.SUCCEEDED)
        with pytest.raises(TypeError, match="a Batch is needed, not int"):
            sender.complete(5, BatchResult.SUCCEEDED)  # type: ignore[arg-type]
        sender.resign()
        other.become_sender()
        with pytest.raises(InvalidArgumentError, match="another sender"):
            other.complete(batch, BatchResult.SUCCEEDED)
        (again,) = drain(other)
        other.complete(again, BatchResult.SUCCEEDED)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        ((0,), InvalidArgumentError),
        ((6,), InvalidArgumentError),
        (("SUCCEEDED",), TypeError),
        ((1, -2), InvalidArgumentError),
        ((1, 2**63), InvalidArgumentError),
        ((1, 0, -2), InvalidArgumentError),
        ((1, 0, 0, 2**31), InvalidArgumentError),
    ],
)
def test_an_outcome_that_cannot_be(batch: Batch, sender: Accumulator, arguments: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        sender.complete(batch, *arguments)
    assert not batch.is_over
    sender.complete(batch, BatchResult.SUCCEEDED)


def test_a_failed_batch_reports_why(sender: Accumulator) -> None:
    token = sender.append("t", 0, 1, None, b"v")
    (batch,) = drain(sender)
    sender.complete(batch, BatchResult.FAILED, error_code=87)
    found = sender.find(token)
    assert found is not None
    assert (found.result, found.error_code, found.offset_of(token)) == (BatchResult.FAILED, 87, -1)


def test_the_parts_of_a_batch_that_was_split(sender: Accumulator) -> None:
    tokens = [sender.append("t", 0, 1, None, b"%d" % number) for number in range(5)]
    (batch,) = drain(sender)
    sender.complete_part(batch, 2, BatchResult.SUCCEEDED, base_offset=10)
    assert (batch.acked_record_count, batch.is_over) == (2, False)
    with pytest.raises(InvalidArgumentError):
        sender.complete_part(batch, 4, BatchResult.SUCCEEDED, base_offset=20)
    sender.complete_part(batch, 3, BatchResult.FAILED, error_code=2)
    assert batch.is_over
    found = [sender.find(token) for token in tokens]
    assert [each and (each.result, each.offset_of(token)) for each, token in zip(found, tokens, strict=True)] == [
        (BatchResult.SUCCEEDED, 10),
        (BatchResult.SUCCEEDED, 11),
        (BatchResult.FAILED, -1),
        (BatchResult.FAILED, -1),
        (BatchResult.FAILED, -1),
    ]


def test_many_that_have_succeeded_are_completed_in_one_call(sender: Accumulator) -> None:
    tokens = [sender.append("t", partition, 1, None, b"v") for partition in range(3)]
    batches = drain(sender)
    counts = [batch.record_count for batch in batches]
    assert sender.complete_many(batches, counts, [10, 11, 12], (-1, 5, -1)) == []
    assert all(batch.is_over for batch in batches)
    offsets = {batch.partition_index: offset for batch, offset in zip(batches, (10, 11, 12), strict=True)}
    for token in tokens:
        found = sender.find(token)
        assert found is not None
        assert (found.result, found.base_offset) == (BatchResult.SUCCEEDED, offsets[token.partition_index])


def test_batches_that_are_not_ordinary_are_left(arena: Arena, sender: Accumulator) -> None:
    """The batches are in use, partly complete, a part, complete, expired and unknown."""
    for partition in range(6):
        sender.append_many("t", partition, [b"v"] * 4)
    batches = drain(sender)
    in_use, begun, part, over, _, last = batches
    (buffer,) = in_use.buffers
    sender.complete_part(begun, 1, BatchResult.SUCCEEDED)
    sender.complete(over, BatchResult.FAILED)
    counts = [4, 4, 2, 4, 4, 4]
    given: list[Any] = [*batches[:5], None]
    assert sender.complete_many(given, counts, [7] * 6, [-1] * 6) == [0, 1, 2, 3, 5]
    assert [batch.is_over for batch in batches] == [False, False, False, True, True, False]
    assert sender.expire(0, 2**62)[0] == 4
    buffer.release()
    assert sender.complete_many([in_use, begun, part, last], [4] * 4, [7] * 4, [-1] * 4) == [0, 1, 2, 3]
    for batch in (in_use, begun, part, last):
        sender.complete(batch, BatchResult.SUCCEEDED)


@pytest.mark.parametrize(
    "columns", [([1], [0], []), ([0], [0], [0]), ([1], [-2], [0]), ([1], ["x"], [0]), ([1], [0], 3)]
)
def test_many_that_cannot_be_are_refused_and_nothing_is_completed(
    batch: Batch, sender: Accumulator, columns: tuple[Any, Any, Any]
) -> None:
    with pytest.raises((ValueError, TypeError)):
        sender.complete_many([batch], *columns)
    assert not batch.is_over


def test_a_result_that_was_overwritten_is_not_guessed(arena_name: str) -> None:
    sizes: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "completion_count": 2}
    with Arena.create(arena_name, **sizes) as arena, Accumulator(arena) as accumulator:
        accumulator.become_sender()
        tokens = []
        for number in range(4):
            tokens.append(accumulator.append("t", 0, 1, None, b"%d" % number))
            deliver_all(accumulator)
        with pytest.raises(ResultExpiredError, match="completion_count above 2"):
            accumulator.find(tokens[0])
        assert accumulator.find(tokens[3]) is not None


def test_a_quarantined_batch_is_kept(arena_name: str) -> None:
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB") as arena, Accumulator(arena) as accumulator:
        accumulator.become_sender()
        token = accumulator.append("t", 0, 1, None, b"v")
        (batch,) = drain(accumulator)
        accumulator.quarantine(batch)
        found = accumulator.find(token)
        assert found is not None
        assert found.result is BatchResult.CORRUPT
        assert arena.statistics().slots["BAD"] == 1


# --- parts, and the sender's knowledge of a batch


def test_parts_of_a_batch_are_batches(sender: Accumulator) -> None:
    sender.set_producer_id(77, 3)
    sender.append_many("t", 0, [b"%d" % number for number in range(10)])
    (batch,) = drain(sender)
    assert batch.part(0, 10) == batch.tobytes()
    values = [record[3] for first in range(10) for record in decode_batch(batch.part(first, 1))]
    assert values == [b"%d" % number for number in range(10)]
    assert int.from_bytes(batch.part(4, 6)[53:57], "big") == 4
    with pytest.raises(InvalidArgumentError):
        batch.part(4, 7)
    sender.complete(batch, BatchResult.SUCCEEDED)


def test_a_batch_knows_whether_it_has_its_result(arena: Arena, sender: Accumulator) -> None:
    arena.native.set_manual_clock(1000 * MS)
    sender.append("t", 0, 1, None, b"v")
    (first,) = drain(sender)
    sender.append("t", 0, 1, None, b"v")
    (second,) = drain(sender)
    sender.complete(first, BatchResult.SUCCEEDED)
    ended = [second.is_ended]
    assert sender.expire(5 * MS, now_ns=1006 * MS)[0] == 1
    ended.append(second.is_ended)
    sender.requeue(second)
    ended.append(second.is_ended)
    assert ended == [False, True, False]


def test_the_producer_id_stays_with_the_sink_that_gave_it(arena: Arena, sender: Accumulator) -> None:
    assert arena.native.producer_identity == (-1, -1, bytes(16))
    sender.set_producer_id(77, 3, b"sixteen bytes id")
    sender.set_producer_id(77, 4)
    assert arena.native.producer_identity == (77, 4, b"sixteen bytes id")
    with pytest.raises(InvalidArgumentError, match="16 bytes"):
        sender.set_producer_id(77, 4, b"short")


def test_batches_that_the_sink_does_not_have_start_over(sender: Accumulator) -> None:
    sender.set_producer_id(77, 3)
    sender.append("t", 0, 1, None, b"v")
    sender.append("u", 0, 1, None, b"v")
    for batch in drain(sender):
        sender.requeue(batch)
    sender.set_producer_id(77, 4)
    sender.resequence(sender.partition_index("t", 0))
    first, second = sorted(drain(sender), key=lambda batch: batch.topic)
    assert (first.producer_epoch, second.producer_epoch) == (4, 3)
    for batch in (first, second):
        sender.requeue(batch)
    sender.resequence()
    first, second = drain(sender)
    assert (first.producer_epoch, second.producer_epoch) == (4, 4)
    for batch in (first, second):
        sender.complete(batch, BatchResult.SUCCEEDED)


def test_only_a_waiter_wakes_a_sender_in_a_short_wait(arena: Arena) -> None:
    rings: list[None] = []
    with Accumulator(arena, ring=lambda: rings.append(None)) as accumulator:
        arena.native.set_sender_short_wait(0)
        accumulator.append("t", 0, 1, None, b"v")
        assert rings == []
        assert arena.native.take_sleep_flag()
        arena.native.set_sender_asleep(True)
        accumulator.append("t", 1, 1, None, b"v")
        assert rings == [None]
        accumulator.become_sender()
        accumulator.abort()


@pytest.mark.parametrize(
    ("linger_ms", "is_wanted"), [(0, True), (2, True), (3, False), (5, False), (None, False)], ids=str
)
def test_a_longer_wait_is_ended_by_a_process_with_a_shorter_linger(
    linger_ms: int | None, is_wanted: bool, arena: Arena
) -> None:
    rings: list[None] = []
    with Accumulator(arena, linger_ms=linger_ms, ring=lambda: rings.append(None)) as accumulator:
        arena.native.set_sender_short_wait(3_000)
        accumulator.append("t", 0, 1, None, b"opens a batch")
        accumulator.append("t", 0, 1, None, b"finds it open")
        assert len(rings) == is_wanted
        accumulator.become_sender()
        accumulator.abort()


def test_a_longer_wait_is_ended_by_a_process_that_fills_a_batch(arena: Arena) -> None:
    rings: list[None] = []
    with Accumulator(arena, linger_ms=5, ring=lambda: rings.append(None)) as accumulator:
        for short_wait_us in (0, 3_000):
            arena.native.set_sender_short_wait(short_wait_us)
            for _ in range(3):
                accumulator.append("t", short_wait_us, 1, None, b"x" * (arena.geometry["batch_size"] // 2))
        assert rings == [None]
        accumulator.become_sender()
        accumulator.abort()


# --- readiness, retries, expiry


def test_a_batch_that_is_opened_for_a_silent_sender_rings(arena: Arena) -> None:
    """A sender updates its heartbeat once a second. If it is old, the producer wakes the sender."""
    rings: list[bool] = []
    arena.native.set_manual_clock(10**9)
    with Accumulator(arena, ring=lambda: rings.append(True)) as accumulator, Accumulator(arena) as sender:
        sender.become_sender()
        sender.maintain()
        arena.native.set_manual_clock(4 * 10**9)
        accumulator.append("topic", 0, 1, None, b"")
        assert rings == []
        arena.native.set_manual_clock(4 * 10**9 + 1)
        accumulator.append("topic", 1, 1, None, b"")
        accumulator.append("topic", 1, 1, None, b"")
        assert rings == [True]
        deliver_all(sender)


def test_lingering_ends_by_time(arena: Arena, sender: Accumulator) -> None:
    arena.native.set_manual_clock(1000 * MS)
    index = sender.append("t", 0, 1, None, b"v").partition_index
    assert sender.ready(5 * MS) == ([], 5 * MS)
    assert sender.ready(5 * MS, now_ns=1004 * MS) == ([], 1 * MS)
    assert sender.ready(5 * MS, now_ns=1005 * MS) == ([index], None)
    assert sender.ready(5 * MS, is_everything_ready=True) == ([index], None)
    sender.abort()
    assert sender.ready(5 * MS) == ([], None)


def test_batches_that_have_lingered_for_half_of_their_time_go_along(arena: Arena, sender: Accumulator) -> None:
    arena.native.set_manual_clock(1000 * MS)
    sender.append("t", 0, 1, None, b"first")
    arena.native.set_manual_clock(1005 * MS)
    sender.append("t", 1, 1, None, b"half a linger later")
    arena.native.set_manual_clock(1006 * MS)
    sender.append("t", 2, 1, None, b"more than that")
    first, second = (sender.partition_index("t", partition) for partition in (0, 1))
    assert sender.ready(10 * MS, False, 1009 * MS, takes_along=True) == ([], 1 * MS)
    assert sender.ready(10 * MS, False, 1010 * MS) == ([first], 5 * MS)
    assert sender.ready(10 * MS, False, 1010 * MS, takes_along=True) == ([first, second], 5 * MS)
    batches, _ = sender.drain([first, second], 2**31)
    assert [batch.decode()[0][3] for batch in batches] == [b"first", b"half a linger later"]


def test_what_backs_off_does_not_go_along(arena: Arena, sender: Accumulator) -> None:
    arena.native.set_manual_clock(1000 * MS)
    sender.append("t", 0, 1, None, b"v")
    (batch,) = drain(sender)
    sender.requeue(batch, 1005 * MS)
    sender.append("t", 1, 1, None, b"v")
    assert sender.ready(0, False, 1000 * MS, takes_along=True)[0] == [sender.partition_index("t", 1)]


def test_a_batch_reports_how_long_its_opener_let_it_linger(arena: Arena, sender: Accumulator) -> None:
    sender.append("t", 0, 1, None, b"v")
    with Accumulator(arena, linger_ms=7) as patient:
        patient.append("t", 1, 1, None, b"v")
    assert sorted(batch.linger_ns for batch in drain(sender)) == [-1, 7 * MS]


def test_a_requeued_batch_backs_off(arena: Arena, sender: Accumulator) -> None:
    arena.native.set_manual_clock(1000 * MS)
    sender.append("t", 0, 1, None, b"v")
    (batch,) = drain(sender)
    sender.requeue(batch, 1100 * MS)
    assert drain(sender) == []
    arena.native.set_manual_clock(1100 * MS)
    assert deliver_all(sender) == [b"v"]


def test_what_is_too_old_expires(arena: Arena, sender: Accumulator) -> None:
    arena.native.set_manual_clock(1000 * MS)
    token = sender.append("t", 0, 1, None, b"v")
    assert sender.ready(10**12)[0] == []
    assert sender.expire(100 * MS) == (0, 100 * MS)
    assert sender.expire(100 * MS, 1100 * MS) == (1, None)
    found = sender.find(token)
    assert found is not None
    assert found.result is BatchResult.EXPIRED


def test_expiry_in_flight_changes_the_result_not_the_memory(arena: Arena, sender: Accumulator) -> None:
    arena.native.set_manual_clock(1000 * MS)
    token = sender.append("t", 0, 1, None, b"v")
    (batch,) = drain(sender)
    assert sender.expire(0, 2000 * MS) == (1, None)
    assert batch.decode()[0][3] == b"v"
    sender.complete(batch, BatchResult.SUCCEEDED, base_offset=5)
    found = sender.find(token)
    assert found is not None
    assert found.result is BatchResult.EXPIRED


def test_a_muted_partition_is_left_alone(sender: Accumulator) -> None:
    index = sender.append("t", 0, 1, None, b"v").partition_index
    sender.mute(index, True)
    assert drain(sender) == []
    sender.mute(index, False)
    assert deliver_all(sender) == [b"v"]


def test_a_drain_stops_at_its_size(sender: Accumulator) -> None:
    for partition in range(4):
        sender.append("t", partition, 1, None, b"x" * 1000)
    partitions, _ = sender.ready(0)
    batches, seen = sender.drain(partitions, 2500)
    assert (len(batches), seen) == (2, 2)
    with pytest.raises(InvalidArgumentError):
        sender.drain([99], 2500)
    with pytest.raises(TypeError):
        sender.drain(["0"], 2500)  # type: ignore[list-item]
    for batch in batches:
        sender.complete(batch, BatchResult.SUCCEEDED)
    assert len(deliver_all(sender)) == 2


# --- the role


def test_there_is_one_sender(arena: Arena, sender: Accumulator) -> None:
    sender.become_sender()
    with Arena.attach(arena.name) as other, Accumulator(other) as rival:
        assert other.native.sender_is_alive
        with pytest.raises(ArenaBusyError, match="living sender"):
            rival.become_sender()
        sender.resign()
        rival.become_sender()
        assert rival.is_sender
        assert not sender.is_sender
        assert [process["role"] for process in arena.native.processes()] == ["producer", "sender"]


def test_only_the_sender_drains(accumulator: Accumulator) -> None:
    ways: list[Callable[[], Any]] = [
        lambda: accumulator.ready(0),
        lambda: accumulator.drain([], 1),
        lambda: accumulator.expire(0),
        accumulator.abort,
        accumulator.maintain,
        accumulator.statistics,
        lambda: accumulator.mute(0, True),
        lambda: accumulator.set_producer_id(1, 1),
    ]
    for way in ways:
        with pytest.raises(NotSenderError):
            way()


def test_closing_the_sender_leaves_its_batches_to_the_next(arena: Arena) -> None:
    with Accumulator(arena) as first:
        first.become_sender()
        first.append("t", 0, 1, None, b"v")
        batches = drain(first)
    with Accumulator(arena) as second:
        second.become_sender()
        assert deliver_all(second) == [b"v"]
    assert all(batch.is_over for batch in batches)
