# SPDX-License-Identifier: Apache-2.0
"""A stopped process costs at most the buffers that it is writing into: buffers granted to it go to other waiters."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from functools import partial

import pytest

from shmaccum._native import Batch
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.exceptions import BufferExhaustedError
from tests.support.accumulator import Accumulator
from tests.support.arenas import check_idle, deliver_all, drain
from tests.support.processes import Child, is_stopped, wait_until

SLOT_COUNT = 8
SLOT_SIZE = 4096
BLOCK_MS = 3_000
LONG_MS = 600_000
LARGE_SLOTS = 4


@contextlib.contextmanager
def full_arena(arena_name: str) -> Iterator[tuple[Arena, Accumulator, list[Batch]]]:
    """Yield an arena whose buffers are all in flight, and its sender."""
    memory = SLOT_COUNT * SLOT_SIZE
    with (
        Arena.create(arena_name, buffer_memory=memory, batch_size=SLOT_SIZE, oversized_max_bytes=memory) as arena,
        Accumulator(arena) as sender,
    ):
        sender.become_sender()
        for partition in range(SLOT_COUNT):
            sender.append("fill", partition, 1, None, b"v")
        yield arena, sender, drain(sender)


def append_one(name: str, partition: int, value: bytes) -> None:
    with Arena.attach(name) as arena, Accumulator(arena, max_block_ms=LONG_MS) as accumulator:
        accumulator.append("t", partition, 1, None, value)


@contextlib.contextmanager
def stopped_waiters(arena: Arena, count: int, size: int) -> Iterator[list[Child]]:
    """Yield `count` processes that were stopped while they waited for a buffer."""
    children = []
    try:
        for number in range(count):
            children.append(Child(append_one, arena.name, number, (b"stopped %d " % number).ljust(size, b"x")))
            wait_until(partial(waits, arena, number + 1), "the next process waits")
        wait_until(partial(are_stopped_outside_the_lock, arena, children), "they are stopped")
        yield children
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGCONT)


def are_stopped_outside_the_lock(arena: Arena, children: list[Child]) -> bool:
    """Stop the processes. If one of them has the pool lock, continue all, and return False."""
    for child in children:
        os.kill(child.pid, signal.SIGSTOP)
        wait_until(partial(is_stopped, child.pid), "it is stopped")
    is_free = bytes(arena.native.region("globals")[:4]) == bytes(4)
    for child in children if not is_free else []:
        os.kill(child.pid, signal.SIGCONT)
    return is_free


def waits(arena: Arena, count: int) -> bool:
    return arena.statistics().waiting_count == count


@pytest.mark.parametrize(("waiter_count", "size"), [(SLOT_COUNT, 10), (SLOT_COUNT // LARGE_SLOTS, 14_000)])
def test_a_living_producer_gets_buffers_that_were_granted_to_stopped_processes(
    waiter_count: int, size: int, arena_name: str
) -> None:
    """In the second form, each stopped process waits for half of the arena."""
    error = None
    with full_arena(arena_name) as (arena, sender, batches):
        with stopped_waiters(arena, waiter_count, size) as children:
            for batch in batches:
                sender.complete(batch, BatchResult.SUCCEEDED)
            sender.maintain()
            assert arena.native.state_counts()["GRANT"] == SLOT_COUNT
            try:
                sender.append("living", 0, 1, None, b"living", None, BLOCK_MS)
            except BufferExhaustedError as exhausted:
                error = exhausted
        values = []
        while not all(child.has_ended() for child in children):
            values += deliver_all(sender)
            sender.maintain()
        for child in children:
            child.join()
        values += deliver_all(sender)
        check_idle(arena)
    stopped = [value for value in values if value is not None and value.startswith(b"stopped")]
    assert len(stopped) == len(set(stopped)) == waiter_count
    assert error is None
    assert values.count(b"living") == 1


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGCONT])
def test_grants_of_processes_that_die_or_continue_are_used(signal_number: signal.Signals, arena_name: str) -> None:
    with full_arena(arena_name) as (arena, sender, batches):
        with stopped_waiters(arena, SLOT_COUNT, 10) as children:
            for batch in batches:
                sender.complete(batch, BatchResult.SUCCEEDED)
            sender.maintain()
            for child in children:
                os.kill(child.pid, signal_number)
                if signal_number == signal.SIGKILL:
                    os.waitpid(child.pid, 0)
                else:
                    child.join()
            values = deliver_all(sender)
            sender.append("living", 0, 1, None, b"living", None, LONG_MS)
            assert deliver_all(sender) == [b"living"]
        assert len(values) == (0 if signal_number == signal.SIGKILL else SLOT_COUNT)
