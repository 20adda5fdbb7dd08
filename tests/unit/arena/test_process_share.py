# SPDX-License-Identifier: Apache-2.0
"""max_process_share: a runaway process delays only itself, however it dies or waits."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from itertools import count

import pytest

from shmaccum.arena import Arena
from shmaccum.exceptions import (
    BufferExhaustedError,
    InvalidArgumentError,
    ProcessShareUsedError,
    ProducerClosedError,
    RecordTooLargeError,
)
from shmaccum.producer import Producer
from tests.support.accumulator import Accumulator
from tests.support.arenas import Drainer, deliver_all
from tests.support.processes import Child, wait_until

SHARE = 4
LONG_MS = 60_000
VALUE = bytes(3000)
"""One record fills a batch."""


@pytest.fixture
def shared(arena_name: str) -> Iterator[Arena]:
    """An arena of 16 buffers of 4 KiB, of which a process may have 4."""
    with Arena.create(
        arena_name, buffer_memory="64KiB", batch_size="4KiB", process_count=64, waiter_count=64, max_process_share="25%"
    ) as arena:
        yield arena


def append_until_refused(name: str) -> int:
    """Return how many batches a process could fill."""
    with Arena.attach(name) as arena, Accumulator(arena) as accumulator:
        numbers = count()
        with contextlib.suppress(ProcessShareUsedError):
            for _ in numbers:
                accumulator.append("runaway", 0, 1, None, VALUE, None, 0)
        return next(numbers) - 1


def test_one_that_runs_away_starves_only_itself(shared: Arena) -> None:
    for _ in range(3):
        assert Child(append_until_refused, shared.name).join() == str(SHARE)
    with Accumulator(shared) as modest:
        modest.append("modest", 0, 1, None, VALUE, None, 0)
        assert shared.native.state_counts()["FREE"] == 16 - 3 * SHARE - 1
        modest.become_sender()
        assert len(deliver_all(modest)) == 3 * SHARE + 1


def test_the_message_reports_whose_limit_it_is(shared: Arena) -> None:
    with Accumulator(shared) as accumulator:
        for _ in range(SHARE):
            accumulator.append("t", 0, 1, None, VALUE)
        with pytest.raises(BufferExhaustedError, match=r"max_process_share\) of the arena: 4 of the 16 buffers"):
            accumulator.append("t", 0, 1, None, VALUE, None, 1)
        counters = shared.native.counters()
        assert counters["allocations that gave up waiting"] == 1
        assert counters["allocations that found their share used up"] >= 1
        accumulator.become_sender()
        deliver_all(accumulator)


def test_a_process_at_its_share_continues_as_its_batches_are_delivered(shared: Arena) -> None:
    with Drainer(shared) as drainer, Accumulator(shared, linger_ms=LONG_MS) as accumulator:
        for number in range(100):  # each in its own partition, so that only the share limits them
            accumulator.append("t", number, 1, None, b"%d" % number, None, LONG_MS)
        assert accumulator.flush(60)
    assert sorted(drainer.values(), key=lambda value: int(value or 0)) == [b"%d" % number for number in range(100)]


def test_a_thread_that_waits_is_freed_by_a_delivery(shared: Arena) -> None:
    with Accumulator(shared) as accumulator:
        accumulator.become_sender()
        for _ in range(SHARE):
            accumulator.append("t", 0, 1, None, VALUE)
        thread = threading.Thread(target=accumulator.append, args=("t", 0, 1, None, VALUE, None, LONG_MS))
        thread.start()
        used_up = "allocations that found their share used up"
        wait_until(lambda: shared.native.counters()[used_up] > 0, "the thread waits for its share")
        assert shared.statistics().waiting_count == 0, "it delays no other thread"
        assert len(deliver_all(accumulator)) >= SHARE
        thread.join()
        deliver_all(accumulator)


def test_closing_ends_a_wait_for_the_share(shared: Arena) -> None:
    with Accumulator(shared) as accumulator:
        for _ in range(SHARE):
            accumulator.append("t", 0, 1, None, VALUE)
        accumulator.buffer_waiter.refuse()
        with pytest.raises(ProducerClosedError, match="nothing was appended"):
            accumulator.append("t", 0, 1, None, VALUE, None, LONG_MS)
        accumulator.become_sender()
        deliver_all(accumulator)


def killed_with_its_share(name: str) -> None:
    append_until_refused(name)
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_share_of_killed_processes_is_free(shared: Arena) -> None:
    for _ in range(3):
        child = Child(killed_with_its_share, shared.name)
        os.waitpid(child.pid, 0)
    assert Child(append_until_refused, shared.name).join() == str(SHARE), "its successor in the entry has its own"
    with Accumulator(shared) as accumulator:
        accumulator.become_sender()
        assert len(deliver_all(accumulator)) == 4 * SHARE


def test_a_forked_child_has_its_own(shared: Arena) -> None:
    with Accumulator(shared) as accumulator:
        for _ in range(SHARE):
            accumulator.append("t", 0, 1, None, VALUE)

        def fill() -> int:
            for _ in range(SHARE):
                accumulator.append("t", 0, 1, None, VALUE, None, 0)
            with pytest.raises(ProcessShareUsedError):
                accumulator.append("t", 0, 1, None, VALUE, None, 0)
            return SHARE

        assert Child(fill).join() == str(SHARE)
        accumulator.become_sender()
        assert len(deliver_all(accumulator)) == 2 * SHARE


def test_a_producer_is_held_too_and_an_oversized_record_counts_whole(shared: Arena) -> None:
    with Accumulator(shared) as sender:
        shared.native.set_topic_partition_count("t", 1)
        with Producer(shared, max_block_ms=0, close_timeout_ms=0) as producer:
            producer.send("t", bytes(9000))
            producer.send("t", VALUE)
            with pytest.raises(ProcessShareUsedError):
                producer.send("t", VALUE)
            with pytest.raises(RecordTooLargeError, match="max_process_share"):
                producer.send("t", bytes(17_000))
            sender.become_sender()
            assert len(deliver_all(sender)) == 2


@pytest.mark.parametrize("share", [0, 101, "0%", "150%", "a quarter", "0.5", -3])
def test_a_share_that_cannot_be(arena_name: str, share: int | str) -> None:
    with pytest.raises(InvalidArgumentError, match="is not a share: write it like 25%"):
        Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", max_process_share=share)


@pytest.mark.parametrize(("share", "slots"), [("100%", 0), (100, 0), ("50%", 8), (1, 1), ("99 %", 15)])
def test_a_share_in_buffers(arena_name: str, share: int | str, slots: int) -> None:
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", max_process_share=share) as arena:
        assert arena.geometry["process_slot_count_max"] == slots
