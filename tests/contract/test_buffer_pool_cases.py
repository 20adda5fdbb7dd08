# SPDX-License-Identifier: Apache-2.0
"""The behaviours of Kafka's BufferPoolTest, on the arena and across processes.

These cases are omitted:

* ``testCleanupMemoryAvailabilityOnMetricsException``, ``outOfMemoryOnAllocation``: the pool allocates no memory and
  calls no user code.
* ``testLargeAvailableMemory``: sums are 64-bit. A pool of 20 GB of real memory is not a unit test.
* ``testCloseAllocations``, ``testCloseNotifyWaiters``: the pool belongs to all processes, and none of them closes it.
  The unit tests check that an accumulator with a waiting thread does not close.
* BufferPoolChunkAllocationTest: a chain of buffers replaces its chunks. FIFO and refunds are tested below.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable

import pytest

from shmaccum.arena import Arena
from shmaccum.exceptions import BufferExhaustedError, RecordTooLargeError
from tests.contract.kafka_cases import KEY, TOPIC, Case
from tests.support.accumulator import Accumulator

NewCase = Callable[..., Case]
SIZE = 1024
FULL_VALUE = bytes(SIZE - 61 - 20)


def _append(name: str, partition: int, value: bytes, max_block_ms: int) -> None:
    with Arena.attach(name) as arena:
        accumulator = Accumulator(arena, max_block_ms=max_block_ms)
        accumulator.append(TOPIC, partition, 0, KEY, value)
        accumulator.close()


def _start(target: Callable[..., None], *arguments: object) -> multiprocessing.process.BaseProcess:
    process = multiprocessing.get_context("spawn").Process(target=target, args=arguments)
    process.start()
    return process


def _waiters(case: Case) -> int:
    return case.arena.statistics().waiting_count


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen within 30 s"
        time.sleep(0.001)


def test_simple(new_case: NewCase) -> None:
    """testSimple: a freed buffer can be allocated again, and is empty."""
    case = new_case(batch_size=SIZE, buffers=4)
    for _ in range(3):
        case.append(value=FULL_VALUE)
        assert case.free_count == 3
        assert case.drain_all() == 1
        assert case.free_count == 4
    case.append(value=bytes(SIZE))
    assert case.free_count == 2
    assert case.drain_all() == 1
    assert case.free_count == 4


def test_cannot_allocate_more_memory_than_there_is(new_case: NewCase) -> None:
    """testCantAllocateMoreMemoryThanWeHave: rejected at once, and no buffer is taken."""
    case = new_case(batch_size=SIZE, buffers=4)
    with pytest.raises(RecordTooLargeError):
        case.append(value=bytes(4 * SIZE))
    assert case.free_count == 4
    assert _waiters(case) == 0


def test_delayed_allocation(new_case: NewCase, arena_name: str) -> None:
    """testDelayedAllocation: another process waits for memory and gets it when it is freed."""
    case = new_case(batch_size=SIZE, buffers=2)
    case.append(0, value=FULL_VALUE)
    case.append(1, value=FULL_VALUE)
    worker = _start(_append, arena_name, 2, FULL_VALUE, 30_000)
    _until(lambda: _waiters(case) == 1, "waiting")
    record_count = case.drain_all()  # may include the record of the other process
    worker.join()
    assert worker.exitcode == 0
    assert record_count in {2, 3}
    assert record_count + case.drain_all() == 3


def test_exhausted_after_max_block(new_case: NewCase) -> None:
    """testBufferExhaustedExceptionIsThrown, testBlockTimeout, testCleanupMemoryAvailabilityWaiterOnBlockTimeout."""
    case = new_case(batch_size=SIZE, buffers=1)
    case.append(0, value=FULL_VALUE)
    begin = time.monotonic()
    with pytest.raises(BufferExhaustedError, match="50"):
        case.accumulator.append(TOPIC, 1, 0, KEY, FULL_VALUE, max_block_ms=50)
    assert time.monotonic() - begin >= 0.05
    assert _waiters(case) == 0
    assert case.drain_all() == 1


def test_no_wait_when_nothing_may_be_waited_for(new_case: NewCase) -> None:
    """testImmediateTimeoutAcquiresNothing, testZeroMaxBlockTimeStillAppendsWhenNothingHasToBeWaitedFor."""
    case = new_case(batch_size=SIZE, buffers=2)
    case.accumulator.append(TOPIC, 0, 0, KEY, FULL_VALUE, max_block_ms=0)
    case.accumulator.append(TOPIC, 1, 0, KEY, FULL_VALUE, max_block_ms=0)
    with pytest.raises(BufferExhaustedError):
        case.accumulator.append(TOPIC, 2, 0, KEY, FULL_VALUE, max_block_ms=0)
    assert case.free_count == 0
    assert case.drain_all() == 2


def test_interrupt_leaves_the_queue(new_case: NewCase) -> None:
    """testCleanupMemoryAvailabilityWaiterOnInterruption: Ctrl-C ends the wait and frees the waiter entry."""
    case = new_case(batch_size=SIZE, buffers=1)
    case.append(0, value=FULL_VALUE)

    def interrupt() -> None:
        _until(lambda: _waiters(case) == 1, "waiting")
        os.kill(os.getpid(), signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        case.accumulator.append(TOPIC, 1, 0, KEY, FULL_VALUE, max_block_ms=30_000)
    helper.join()
    assert _waiters(case) == 0
    assert case.drain_all() == 1


def test_fifo_across_sizes(new_case: NewCase, arena_name: str) -> None:
    """testFifoFairnessAcrossMultiChunkAndSingleChunkRequests: the oversized request is first and is served first."""
    case = new_case(batch_size=SIZE, buffers=2)
    case.append(0, value=FULL_VALUE)
    case.append(1, value=FULL_VALUE)
    assert case.arena.geometry["oversized_bytes_max"] < 2 * SIZE, "the limit would admit the oversized record"
    first = _start(_append, arena_name, 2, FULL_VALUE, 30_000)
    _until(lambda: _waiters(case) == 1, "the first waiting")
    second = _start(_append, arena_name, 3, FULL_VALUE, 30_000)
    _until(lambda: _waiters(case) == 2, "the second waiting")
    case.succeed(*case.drain(0))
    first.join()
    assert second.is_alive()
    case.succeed(*case.drain(1))
    second.join()
    assert (first.exitcode, second.exitcode) == (0, 0)
    assert case.drain_all() == 2


def _append_random_sizes(name: str, seed: int, count: int) -> None:
    chance = random.Random(seed)
    with Arena.attach(name) as arena:
        accumulator = Accumulator(arena, max_block_ms=60_000)
        for _ in range(count):
            size = len(FULL_VALUE) if chance.random() < 0.5 else chance.randrange(3 * SIZE)
            accumulator.append(TOPIC, chance.randrange(4), 0, KEY, bytes(size))
        accumulator.close()


def test_stressful_situation(new_case: NewCase, arena_name: str) -> None:
    """testStressfulSituation: half of the requests are one buffer, half of random size. All are freed."""
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    case = new_case(batch_size=SIZE, buffers=12)
    workers = [_start(_append_random_sizes, arena_name, seed + i, 300) for i in range(6)]
    drained = 0
    while drained < 6 * 300:
        drained += case.drain_all()
        case.accumulator.maintain()
        assert all(worker.exitcode in (None, 0) for worker in workers)
    for worker in workers:
        worker.join()
    assert _waiters(case) == 0
