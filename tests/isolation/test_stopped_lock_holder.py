# SPDX-License-Identifier: Apache-2.0
"""No call waits for a process that was stopped while it had a lock of the arena, except until its own deadline.

The stopped process stores its owner number in the lock word, as if it had been stopped inside the lock. The C tests
stop it there (tests/native/arena/buffer_pool_test.c).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from shmaccum import _native
from shmaccum.aio import Producer as AsyncProducer
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.common.clock import NS_PER_MS
from shmaccum.exceptions import (
    ArenaBusyError,
    ArenaInUseError,
    ArenaRemovedError,
    BufferExhaustedError,
    ProducerClosedError,
)
from shmaccum.producer import Producer
from tests.support.accumulator import Accumulator
from tests.support.arenas import check_idle, deliver_all, drain
from tests.support.processes import Child, is_stopped, run_in_child, wait_until

SLOT_COUNT = 8
SLOT_SIZE = 4096
GLOBALS_OFFSET = 4096
POOL_LOCK, REGISTRY_LOCK = 0, 64
"""Offsets of the lock words in the globals (tests/unit/arena/frozen_layout.csv)."""
BLOCK_MS = 500
LONG_MS = 600_000
AT_ONCE_S = 30.0
"""More than any pause of the machine, and less than the default of max_block_ms."""


def keep_lock(name: str, lock: int) -> None:
    """Take a lock, stop, and release the lock when this process continues."""
    with Arena.attach(name) as arena, open(f"/dev/shm/{name}", "r+b", buffering=0) as file:
        place = GLOBALS_OFFSET + lock
        owner, acquisition = struct.unpack("<II", os.pread(file.fileno(), 8, place))
        assert owner == 0
        os.pwrite(file.fileno(), struct.pack("<II", arena.native.owner, acquisition + 1), place)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.pwrite(file.fileno(), struct.pack("<II", 0, acquisition + 1), place)


@contextlib.contextmanager
def kept(arena: Arena, lock: int) -> Iterator[int]:
    """In the block, a stopped process keeps a lock. Yields its pid. At the end, it continues and releases the lock."""
    child = Child(keep_lock, arena.name, lock)
    try:
        wait_until(lambda: is_stopped(child.pid), "it is stopped")
        yield child.pid
    finally:
        os.kill(child.pid, signal.SIGCONT)
        child.join()


@pytest.fixture
def arena(arena_name: str) -> Iterator[Arena]:
    memory = SLOT_COUNT * SLOT_SIZE
    with Arena.create(arena_name, buffer_memory=memory, batch_size=SLOT_SIZE, oversized_max_bytes=memory) as arena:
        yield arena


def fill_all(sender: Accumulator, topic: str = "fill") -> None:
    """Take every buffer, each for one record of another partition."""
    for partition in range(SLOT_COUNT):
        sender.append(topic, partition, 1, None, b"v")


def append_one(name: str, value: bytes) -> None:
    with Arena.attach(name) as arena, Accumulator(arena, max_block_ms=LONG_MS) as accumulator:
        accumulator.append("t", 0, 1, None, value)


def die_attached(name: str) -> None:
    Arena.attach(name)
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_sender_delivers_and_frees_while_others_wait(arena: Arena, sender: Accumulator) -> None:
    """A chain of slots is freed only after the holder has continued."""
    sender.append("large", 0, 1, None, b"v" * SLOT_SIZE)
    for partition in range(SLOT_COUNT - 2):
        sender.append("fill", partition, 1, None, b"v")
    batches = drain(sender)
    waiter = Child(append_one, arena.name, b"waited")
    wait_until(lambda: arena.statistics().waiting_count == 1, "it waits")
    with kept(arena, POOL_LOCK):
        for batch in batches:
            sender.complete(batch, BatchResult.SUCCEEDED)
        sender.maintain()
        assert arena.native.state_counts()["FREE"] == SLOT_COUNT - 2
        assert arena.native.state_counts()["DONE"] == 1
        assert not waiter.has_ended()
    sender.maintain()
    waiter.join()
    assert deliver_all(sender) == [b"waited"]
    check_idle(arena)


def test_an_append_that_waits_raises_at_its_deadline_and_names_the_process(arena: Arena, sender: Accumulator) -> None:
    fill_all(sender)
    with kept(arena, POOL_LOCK) as pid:
        for _ in range(2):  # the second one does not wait for the lock again
            with pytest.raises(BufferExhaustedError, match=rf"process {pid} was stopped .* \(kill -CONT {pid}\)"):
                sender.append("t", 0, 1, None, b"late", None, BLOCK_MS)
        sender.append("fill", 0, 1, None, b"there is room in its batch")
    assert deliver_all(sender) == [b"v", b"there is room in its batch", *[b"v"] * (SLOT_COUNT - 1)]
    sender.append("t", 0, 1, None, b"late", None, LONG_MS)
    assert deliver_all(sender) == [b"late"]
    check_idle(arena)


def test_a_wait_that_began_before_ends_at_its_deadline(arena: Arena, sender: Accumulator) -> None:
    """Its place in the queue is left as soon as the process can lock the pool."""
    fill_all(sender)
    errors: list[BaseException] = []

    def wait_in_vain() -> None:
        with Arena.attach(arena.name) as own, Accumulator(own) as accumulator:
            try:
                accumulator.append("t", 0, 1, None, b"late", None, 3 * BLOCK_MS)
            except BufferExhaustedError as error:
                errors.append(error)
            assert own.statistics().waiting_count == 1
            errors.append(LookupError("it is still in the queue"))
            wait_until(lambda: own.native.pool_lock_keeper is None, "the holder has continued")
            accumulator.append("t", 0, 1, None, b"later", None, LONG_MS)

    thread = threading.Thread(target=wait_in_vain)
    thread.start()
    wait_until(lambda: arena.statistics().waiting_count == 1, "it waits")
    with kept(arena, POOL_LOCK):
        wait_until(lambda: len(errors) == 2, "it has given up")
    values = []
    while thread.is_alive():
        values += deliver_all(sender)
        sender.maintain()
    thread.join()
    values += deliver_all(sender)
    assert isinstance(errors[0], BufferExhaustedError)
    assert values.count(b"later") == 1
    assert b"late" not in values
    check_idle(arena)


def test_a_signal_ends_a_wait(arena: Arena, sender: Accumulator) -> None:
    fill_all(sender)
    with kept(arena, POOL_LOCK):
        timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            sender.append("t", 0, 1, None, b"late", None, LONG_MS)
        timer.join()
    deliver_all(sender)
    check_idle(arena)


def test_a_task_that_waits_lets_other_tasks_run_and_raises_at_its_deadline(arena: Arena, sender: Accumulator) -> None:
    arena.native.set_topic_partition_count("t", SLOT_COUNT + 1)
    fill_all(sender, "t")

    async def send_in_vain() -> int:
        rounds = 0
        async with AsyncProducer(arena.name, max_block_ms=BLOCK_MS) as producer:
            task = asyncio.ensure_future(producer.send("t", b"late", partition=SLOT_COUNT))
            while not task.done():
                await asyncio.sleep(0.001)
                rounds += 1
            with pytest.raises(BufferExhaustedError, match="was stopped while it had the lock"):
                await task
        return rounds

    with kept(arena, POOL_LOCK):
        assert asyncio.run(send_in_vain()) > 10
    deliver_all(sender)
    check_idle(arena)


def granted_place(arena: Arena, sender: Accumulator) -> _native.BufferWait:
    """Return a place in the queue whose buffer is granted, and not taken."""
    fill_all(sender)
    place = _native.BufferWait.join(arena.native, 1)
    sender.complete(drain(sender)[0], BatchResult.SUCCEEDED)
    assert place.poll()
    return place


def test_a_place_that_was_not_left_is_left_after_an_append_that_does_not_wait(
    arena: Arena, sender: Accumulator
) -> None:
    place = granted_place(arena, sender)
    with kept(arena, POOL_LOCK):
        place.cancel()
    deliver_all(sender)
    assert arena.native.state_counts()["GRANT"] == 1
    sender.append("t", 0, 1, None, b"v")
    assert arena.native.state_counts()["GRANT"] == 0
    assert deliver_all(sender) == [b"v"]
    check_idle(arena)


def check_granted_wait_ends(
    arena: Arena, sender: Accumulator, end: Callable[[], object], error: type[Exception]
) -> None:
    """Wait for granted buffers while the lock is kept. Another thread calls `end`, which ends the wait with `error`."""
    place = granted_place(arena, sender)

    def end_when_refused() -> None:
        wait_until(lambda: arena.native.pool_lock_keeper is not None, "the lock was refused")
        end()

    with kept(arena, POOL_LOCK):
        thread = threading.Thread(target=end_when_refused)
        thread.start()
        with pytest.raises(error):
            sender.buffer_waiter.wait(1, LONG_MS, time.monotonic_ns() + LONG_MS * NS_PER_MS, place, 0)
        thread.join()


def test_a_closed_producer_does_not_wait_for_granted_buffers(arena: Arena, sender: Accumulator) -> None:
    check_granted_wait_ends(arena, sender, sender.buffer_waiter.refuse, ProducerClosedError)
    sender.append("t", 0, 1, None, b"v")
    assert deliver_all(sender).count(b"v") == SLOT_COUNT
    check_idle(arena)


def test_a_removed_arena_ends_a_wait_for_granted_buffers(arena: Arena, sender: Accumulator) -> None:
    check_granted_wait_ends(arena, sender, partial(Arena.remove, arena.name), ArenaRemovedError)


def test_closing_a_producer_ends_the_wait_of_a_task_for_granted_buffers(arena: Arena, sender: Accumulator) -> None:
    arena.native.set_topic_partition_count("t", SLOT_COUNT + 1)
    fill_all(sender, "t")

    async def close_while_it_waits() -> None:
        producer = AsyncProducer(arena.name, max_block_ms=LONG_MS)
        await producer.start()
        task = asyncio.ensure_future(producer.send("t", b"late", partition=SLOT_COUNT))
        while arena.statistics().waiting_count == 0:
            await asyncio.sleep(0.001)
        deliver_all(sender)  # grants a buffer to the task, which does not run before the lock is kept
        with kept(arena, POOL_LOCK):
            while arena.native.counters()["locks that stopped processes kept from others"] == 0:
                await asyncio.sleep(0.001)
            closing = asyncio.ensure_future(producer.close(0))
            with pytest.raises(ProducerClosedError):
                await task
            await closing

    asyncio.run(close_while_it_waits())
    sender.maintain()
    check_idle(arena)


def test_a_process_that_leaves_while_its_place_cannot_be_left_is_repaired(arena: Arena, sender: Accumulator) -> None:
    fill_all(sender)
    with Arena.attach(arena.name) as leaving:
        place = _native.BufferWait.join(leaving.native, 1)
        with kept(arena, POOL_LOCK):
            place.cancel()
            leaving.close()
    sender.maintain()
    assert arena.statistics().waiting_count == 0
    deliver_all(sender)
    check_idle(arena)


def test_processes_attach_and_leave(arena: Arena, sender: Accumulator) -> None:
    """Also in the entry of a dead process, after which the pool is repaired."""
    dead = Child(die_attached, arena.name)
    wait_until(dead.has_ended, "it is dead")
    with kept(arena, POOL_LOCK):
        assert run_in_child(append_one, arena.name, b"v") == "None"
    assert deliver_all(sender) == [b"v"]
    sender.maintain()


def test_a_new_topic_waits_no_longer_than_an_append(arena: Arena) -> None:
    arena.native.set_topic_partition_count("known", 1)
    with Producer(arena, max_block_ms=0) as producer, kept(arena, REGISTRY_LOCK):
        for send in (partial(producer.send, "new"), partial(producer.send, "known", partition=0)):
            begin_s = time.monotonic()
            with pytest.raises(ArenaBusyError, match="stopped while it created a topic"):
                send(b"v")
            assert time.monotonic() - begin_s < AT_ONCE_S


def test_an_arena_is_not_closed_while_a_call_waits_to_create_a_topic(arena: Arena) -> None:
    """The call runs other threads and signal handlers."""
    with Arena.attach(arena.name) as closing, kept(arena, REGISTRY_LOCK):
        former = signal.signal(signal.SIGUSR1, lambda *_: closing.native.close())
        try:
            timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGUSR1])
            timer.start()
            with pytest.raises(ArenaInUseError):
                closing.native.topic_partition_count("new")
            timer.join()
        finally:
            signal.signal(signal.SIGUSR1, former)


def test_a_new_topic_waits_and_can_be_interrupted(arena: Arena, sender: Accumulator) -> None:
    sender.append("known", 0, 1, None, b"v")
    with kept(arena, REGISTRY_LOCK):
        timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            sender.append("new", 0, 1, None, b"v")
        timer.join()
        sender.append("known", 0, 1, None, b"v")
    sender.append("new", 0, 1, None, b"v")
    assert deliver_all(sender) == [b"v"] * 3
    check_idle(arena)


@pytest.mark.slow
def test_a_new_topic_that_cannot_be_created_raises(arena: Arena, sender: Accumulator) -> None:
    with kept(arena, REGISTRY_LOCK), pytest.raises(ArenaBusyError, match="stopped while it created a topic"):
        sender.append("new", 0, 1, None, b"v")
    sender.append("new", 0, 1, None, b"v")
    assert deliver_all(sender) == [b"v"]
    check_idle(arena)
