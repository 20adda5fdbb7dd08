# SPDX-License-Identifier: Apache-2.0
"""Waiting for a buffer: in order, across processes, up to a deadline, and interrupted without a loss."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from shmaccum import _native, aio
from shmaccum.arena import Arena, named_objects, semaphores
from shmaccum.arena.results import BatchResult
from shmaccum.arena.semaphores import make_semaphore, remove_orphans
from shmaccum.exceptions import (
    ArenaRemovedError,
    BufferExhaustedError,
    CorruptArenaError,
    InvalidArgumentError,
    RecordTooLargeError,
    ResultExpiredError,
    TableFullError,
)
from tests.support.accumulator import Accumulator
from tests.support.arenas import SHARED_MEMORY, check_idle, deliver_all, drain, each_semaphore, left_in_shared_memory
from tests.support.processes import Child, wait_until

LONG_MS = 60_000


def waiting_count_is(arena: Arena, count: int) -> bool:
    return arena.statistics().waiting_count == count


def has_more_than(items: list[int], count: int) -> bool:
    return len(items) > count


@pytest.fixture
def small(arena_name: str) -> Iterator[Arena]:
    """An arena of 4 buffers of 4 KiB and 3 waiter entries."""
    with Arena.create(
        arena_name,
        buffer_memory="16KiB",
        batch_size="4KiB",
        waiter_count=3,
        process_count=64,
        oversized_max_bytes="12KiB",
    ) as arena:
        yield arena


@pytest.fixture
def full(small: Arena) -> Iterator[Accumulator]:
    """The sender of an arena with all four buffers in flight."""
    with Accumulator(small) as accumulator:
        accumulator.become_sender()
        for partition in range(4):
            accumulator.append("fill", partition, 1, None, b"v")
        yield accumulator
        deliver_all(accumulator)


def test_without_time_to_wait_it_is_an_error_at_once(full: Accumulator) -> None:
    with pytest.raises(BufferExhaustedError) as caught:
        full.append("t", 0, 1, None, b"v", None, 0)
    message = str(caught.value)
    assert isinstance(caught.value, TimeoutError)
    assert message.startswith("Failed to allocate 4096 bytes within the configured max blocking time 0 ms.")
    assert "Total memory: 16384 bytes. Available memory: 0 bytes. Poolable size: 4096 bytes." in message
    assert full.arena.statistics().waiting_count == 0


def test_without_a_sender_the_message_reports_it(small: Arena) -> None:
    with Accumulator(small, max_block_ms=1) as accumulator:
        for partition in range(4):
            accumulator.append("fill", partition, 1, None, b"v")
        with pytest.raises(BufferExhaustedError, match=r"1 ms\..*No sender runs: start one"):
            accumulator.append("t", 0, 1, None, b"v")
        accumulator.become_sender()
        deliver_all(accumulator)


def test_a_wait_that_gave_up_is_counted(full: Accumulator) -> None:
    with pytest.raises(BufferExhaustedError):
        full.append("t", 0, 1, None, b"v", None, 30)
    counters = full.arena.native.counters()
    assert counters["allocations that waited for a buffer"] == 1
    assert counters["allocations that gave up waiting"] == 1
    assert counters["nanoseconds spent waiting for a buffer"] >= 30 * 10**6


def append_and_close(name: str, partition: int, value: bytes) -> int:
    with Arena.attach(name) as arena, Accumulator(arena, max_block_ms=LONG_MS) as accumulator:
        return accumulator.append("t", partition, 1, None, value).record_index


def test_a_waiter_is_served_when_a_batch_completes(small: Arena, full: Accumulator) -> None:
    batches = drain(full)
    child = Child(append_and_close, small.name, 0, b"waited")
    wait_until(partial(waiting_count_is, small, 1), "the child waits")
    wait_until(lambda: len(list(each_semaphore(small.uuid))) == 1, "the child made its semaphore")
    full.complete(batches.pop(), BatchResult.SUCCEEDED)
    assert child.join() == "0"
    for batch in batches:
        full.complete(batch, BatchResult.SUCCEEDED)
    assert deliver_all(full) == [b"waited"]


def test_waiters_are_served_in_the_order_they_came(small: Arena, full: Accumulator) -> None:
    batches = drain(full)
    children = []
    for number in range(3):
        children.append(Child(append_and_close, small.name, number, b"%d" % number))
        wait_until(partial(waiting_count_is, small, number + 1), "the next child waits")
    served = []
    for number in range(3):
        full.complete(batches.pop(), BatchResult.SUCCEEDED)
        assert children[number].join() == "0"
        served += drain(full)
    assert [record[3] for batch in served for record in batch.decode()] == [b"0", b"1", b"2"]
    for batch in batches + served:
        full.complete(batch, BatchResult.SUCCEEDED)


def test_no_thread_barges_past_a_waiter(small: Arena, full: Accumulator) -> None:
    batches = drain(full)
    place = _native.BufferWait.join(small.native, 2)
    full.complete(batches.pop(), BatchResult.SUCCEEDED)
    with pytest.raises(BufferExhaustedError):
        full.append("t", 0, 1, None, b"v", None, 0)
    place.cancel()
    full.append("t", 0, 1, None, b"v", None, 0)
    for batch in batches:
        full.complete(batch, BatchResult.SUCCEEDED)


def test_when_too_many_wait(small: Arena, full: Accumulator) -> None:
    places = [_native.BufferWait.join(small.native, 1) for _ in range(3)]
    with pytest.raises(TableFullError, match="larger waiter_count"):
        full.append("t", 0, 1, None, b"v")
    assert [place.waiter_index for place in places] == [0, 1, 2]
    assert [place.ticket for place in places] == sorted(place.ticket for place in places)
    for place in places:
        place.cancel()


def test_more_than_can_ever_be_had_is_refused(small: Arena, full: Accumulator) -> None:
    with pytest.raises(RecordTooLargeError, match="needs 4 buffers, but a record may have at most 3"):
        _native.BufferWait.join(small.native, 4)
    assert small.statistics().waiting_count == 0


def test_an_oversized_record_waits_for_all_its_buffers(small: Arena, full: Accumulator) -> None:
    batches = drain(full)
    child = Child(append_and_close, small.name, 0, b"x" * 9000)
    wait_until(partial(waiting_count_is, small, 1), "the child waits")
    for _ in range(3):
        assert small.statistics().slots["CONT"] == 0
        full.complete(batches.pop(), BatchResult.SUCCEEDED)
    assert child.join() == "0"
    full.complete(batches.pop(), BatchResult.SUCCEEDED)
    assert deliver_all(full) == [b"x" * 9000]


# --- in C, and in Python


class UnservedError(Exception):
    pass


def appender_of(arena: Arena, wait: Callable[..., Any], ring: Callable[[], object]) -> tuple[Any, Any]:
    """Return a native appender and its producer, with the test's functions for waits."""
    appender = _native.Appender(arena.native, wait, ring, LONG_MS, None)
    tracker: Any = None
    return appender, _native.NativeProducer(appender, tracker, lambda *_: 8)


def test_a_grant_within_a_slice_returns_without_python(small: Arena, full: Accumulator) -> None:
    batches = drain(full)
    make_semaphore(small, 0)

    def refuse(*_arguments: object) -> None:
        raise AssertionError("a grant was there: there is nothing left to wait for")

    appender, producer = appender_of(small, refuse, lambda: full.complete(batches.pop(), BatchResult.SUCCEEDED))
    small.native.set_sender_asleep(True)
    producer.send("fill", b"granted", None, None, 0)
    counters = small.native.counters()
    assert counters["allocations that waited for a buffer"] == 1
    assert counters["allocations that gave up waiting"] == 0
    assert counters["nanoseconds spent waiting for a buffer"] > 0
    appender.close()
    for batch in batches:
        full.complete(batch, BatchResult.SUCCEEDED)
    assert deliver_all(full) == [b"granted"]


def test_python_continues_in_the_place_in_the_queue_that_c_took(small: Arena, full: Accumulator) -> None:
    batches = drain(full)
    seen: list[tuple[int, int]] = []

    def wait(need: int, _max_block_ms: int, _deadline_ns: int, place: _native.BufferWait, _partition: int) -> None:
        seen.append((need, place.waiter_index))
        assert waiting_count_is(small, 1)
        raise UnservedError

    appender, producer = appender_of(small, wait, lambda: None)
    for _ in range(2):  # once without a semaphore, and once after a slice
        with pytest.raises(UnservedError):
            producer.send("fill", b"v", None, None, 0)
        assert waiting_count_is(small, 0)
        make_semaphore(small, 0)
    assert seen == [(1, 0)] * 2
    appender.close()
    for batch in batches:
        full.complete(batch, BatchResult.SUCCEEDED)
    check_idle(small)


def test_a_wake_up_that_fails_leaves_the_queue(small: Arena, full: Accumulator) -> None:
    batches = drain(full)

    def fail(*_arguments: object) -> None:
        raise UnservedError

    appender, producer = appender_of(small, fail, fail)
    small.native.set_sender_asleep(True)
    with pytest.raises(UnservedError):
        producer.send("fill", b"v", None, None, 0)
    assert waiting_count_is(small, 0)
    appender.close()
    for batch in batches:
        full.complete(batch, BatchResult.SUCCEEDED)
    check_idle(small)


# --- interrupted waits


def test_ctrl_c_ends_a_wait_and_loses_nothing(small: Arena, full: Accumulator) -> None:
    def interrupt() -> None:
        wait_until(partial(waiting_count_is, small, 1), "the append waits")
        os.kill(os.getpid(), signal.SIGINT)

    killer = threading.Thread(target=interrupt)
    killer.start()
    with pytest.raises(KeyboardInterrupt):
        full.append("t", 0, 1, None, b"v", None, LONG_MS)
    killer.join()
    statistics = small.statistics()
    assert (statistics.waiting_count, statistics.slots["OPEN"]) == (0, 4)
    assert len(deliver_all(full)) == 4
    check_idle(small)


def test_a_signal_without_an_exception_does_not_end_a_wait(small: Arena, full: Accumulator) -> None:
    seen: list[int] = []
    former = signal.signal(signal.SIGUSR1, lambda number, _frame: seen.append(number))

    def serve() -> None:
        wait_until(partial(waiting_count_is, small, 1), "the append waits")
        for _ in range(3):
            former_count = len(seen)
            os.kill(os.getpid(), signal.SIGUSR1)
            wait_until(partial(has_more_than, seen, former_count), "the signal was handled")
        full.complete(batches.pop(), BatchResult.SUCCEEDED)

    batches = drain(full)
    server = threading.Thread(target=serve)
    server.start()
    try:
        full.append("t", 0, 1, None, b"v", None, LONG_MS)
    finally:
        server.join()
        signal.signal(signal.SIGUSR1, former)
    assert len(seen) == 3
    for batch in batches:
        full.complete(batch, BatchResult.SUCCEEDED)


def test_a_waiter_killed_in_the_queue_is_passed_over(small: Arena, full: Accumulator) -> None:
    batches = drain(full)
    child = Child(append_and_close, small.name, 0, b"dead")
    wait_until(partial(waiting_count_is, small, 1), "the child waits")
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    for batch in batches:
        full.complete(batch, BatchResult.SUCCEEDED)
    full.maintain()
    assert small.statistics().slots["FREE"] == 4
    full.append("t", 0, 1, None, b"alive", None, 0)
    assert deliver_all(full) == [b"alive"]


def test_a_place_that_is_dropped_is_returned(small: Arena) -> None:
    for is_taken in (False, True):
        place = _native.BufferWait.join(small.native, 3)
        assert place.poll()
        if is_taken:
            place.take()
            assert small.statistics().slots["OWNED"] == 3
        del place
        assert small.statistics().slots["FREE"] == 4
    check_idle(small)


def test_a_place_is_used_once(small: Arena) -> None:
    place = _native.BufferWait.join(small.native, 1)
    place.take()
    place.cancel()
    place.cancel()
    for use in (place.poll, place.take, place.help):
        with pytest.raises(InvalidArgumentError, match="wait for buffers is over"):
            use()


def test_the_child_of_a_fork_has_no_part_in_its_parents_place(small: Arena) -> None:
    place = _native.BufferWait.join(small.native, 2)
    place.take()

    def in_child() -> None:
        small.native.attach()
        place.cancel()

    assert Child(in_child).join() == "None"
    assert small.statistics().slots["OWNED"] == 2
    place.cancel()


# --- the semaphore is a hint


def test_a_missing_semaphore_costs_a_slice_and_no_more(
    small: Arena, full: Accumulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "no room for a semaphore")

    monkeypatch.setattr(semaphores, "create_semaphore", refuse)
    batches = drain(full)

    def serve() -> None:
        wait_until(partial(waiting_count_is, small, 1), "the append waits")
        full.complete(batches.pop(), BatchResult.SUCCEEDED)

    server = threading.Thread(target=serve)
    server.start()
    full.append("t", 0, 1, None, b"v", None, LONG_MS)
    server.join()
    assert "no semaphore to wait on" in small.native.errors()[0]["text"]
    for batch in batches:
        full.complete(batch, BatchResult.SUCCEEDED)


@pytest.mark.parametrize("is_in_use", [False, True])
def test_no_semaphore_outlives_an_arena_that_was_removed(arena_name: str, is_in_use: bool) -> None:
    arena = Arena.create(arena_name, buffer_memory="4KiB", batch_size="4KiB")
    accumulator = Accumulator(arena, max_block_ms=1)
    accumulator.append("t", 0, 1, None, b"v")
    with pytest.raises(BufferExhaustedError):
        accumulator.append("t", 1, 1, None, b"v")
    if not is_in_use:
        accumulator.close()
    assert len(list(each_semaphore(arena.uuid))) == 1
    Arena.remove(arena_name)
    accumulator.close()
    assert list(each_semaphore(arena.uuid)) == []
    arena.close()


def lose_name(arena: Arena) -> None:
    Arena.remove(arena.name)


def lose_memory(arena: Arena) -> None:
    os.truncate(SHARED_MEMORY / arena.name, 0)


@pytest.mark.parametrize("lose", [lose_name, lose_memory])
def test_no_semaphore_outlives_an_arena_that_is_lost_when_the_semaphore_is_made(
    arena_name: str, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Arena], None]
) -> None:
    """The send that created the semaphore never sleeps on it."""
    arena = Arena.create(arena_name, buffer_memory="4KiB", batch_size="4KiB")
    make = named_objects.create_semaphore

    def lost_before_it(name: str, mode: int) -> None:
        lose(arena)
        make(name, mode)

    with Accumulator(arena, max_block_ms=LONG_MS) as accumulator:
        accumulator.append("t", 0, 1, None, b"v")
        monkeypatch.setattr(semaphores, "create_semaphore", lost_before_it)
        with pytest.raises((ArenaRemovedError, CorruptArenaError)):
            accumulator.append("t", 1, 1, None, b"v")
        assert len(list(each_semaphore(arena.uuid))) == 1
    assert list(each_semaphore(arena.uuid)) == []
    arena.close()
    Arena.remove(arena_name, missing_ok=True)


def make_and_die(name: str) -> None:
    with Arena.attach(name) as arena:
        make_semaphore(arena, 3)
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_semaphore_of_a_killed_process_is_removed_where_the_memory_is_lost(arena_name: str) -> None:
    arena = Arena.create(arena_name, buffer_memory="4KiB", batch_size="4KiB")
    with Accumulator(arena, max_block_ms=1) as accumulator:
        child = Child(make_and_die, arena_name)
        os.waitpid(child.pid, 0)
        assert len(list(each_semaphore(arena.uuid))) == 1
        lose_memory(arena)
        with pytest.raises(CorruptArenaError):
            accumulator.append("t", 0, 1, None, b"v")
    assert list(each_semaphore(arena.uuid)) == []
    arena.close()
    Arena.remove(arena_name)


def test_no_fifo_outlives_an_arena_whose_memory_is_lost(arena_name: str) -> None:
    async def run() -> bytes:
        producer = aio.Producer(arena_name)
        await producer.start()
        future = await producer.send("t", b"v")
        waiting = asyncio.ensure_future(future)
        await asyncio.sleep(0)  # it listens
        arena = producer._started().arena
        uuid = arena.uuid
        assert left_in_shared_memory(uuid.hex()[:12])
        lose_memory(arena)
        with pytest.raises(ResultExpiredError):
            await waiting
        with pytest.raises(CorruptArenaError):
            await producer.close(0)
        return uuid

    Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", topics={"t": 1}).close()
    uuid = asyncio.run(run())
    assert left_in_shared_memory(uuid.hex()[:12]) == []
    Arena.remove(arena_name)


# --- many processes


def produce(name: str, number: int, count: int) -> int:
    with Arena.attach(name) as arena, Accumulator(arena, max_block_ms=LONG_MS) as accumulator:
        for index in range(count):
            accumulator.append("t", number % 2, 1, None, b"%d:%d:" % (number, index) + b"x" * 700)
    return count


def test_many_processes_through_few_buffers(small: Arena) -> None:
    """Every record is delivered once, in its process's order, though three threads at a time wait for four buffers."""
    process_count, record_count = 3, 200
    values: list[bytes] = []
    with Accumulator(small) as sender:
        sender.become_sender()
        children = [Child(produce, small.name, number, record_count) for number in range(process_count)]
        deadline = time.monotonic() + 60
        while len(values) < process_count * record_count:
            assert time.monotonic() < deadline
            values += [value or b"" for value in deliver_all(sender)]
            sender.maintain()
        assert [child.join() for child in children] == [str(record_count)] * process_count
    for number in range(process_count):
        indices = [int(value.split(b":")[1]) for value in values if value.startswith(b"%d:" % number)]
        assert indices == list(range(record_count))
    assert small.native.counters()["allocations that waited for a buffer"] > 0
    check_idle(small)


def test_the_companions_of_an_arena_that_another_thread_has_closed_are_left_to_it(arena_name: str) -> None:
    arena = Arena.create(arena_name, buffer_memory="64KiB")
    arena.close()
    remove_orphans(arena)
    Arena.remove(arena_name)
