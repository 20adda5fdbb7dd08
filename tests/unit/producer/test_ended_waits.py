# SPDX-License-Identifier: Apache-2.0
"""A parked send ends at once when its producer is closed, its thread is interrupted, or its task is cancelled.

The sleeps are so long that a test fails if it waits for the end of one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from shmaccum import Producer, _native, aio
from shmaccum.aio import loop_producer
from shmaccum.arena import Arena
from shmaccum.common.clock import NS_PER_MS
from shmaccum.exceptions import ArenaPoisonedError, ProducerClosedError
from shmaccum.producer import loop_results
from shmaccum.producer.buffer_wait import BufferWaiter
from tests.support.accumulator import Accumulator
from tests.support.arenas import SHARED_MEMORY, stuck_topic
from tests.support.processes import wait_until

TOPIC = "dead"
VALUE = bytes(3000)
LONG_MS = 600_000
LONG_SLEEP_S = 60.0
AT_ONCE_S = 30.0
"""The limit for a busy machine."""
WAITER_PARKED = 3
"""The value in a waiter's word (native/arena/slot_word.h)."""


@pytest.fixture
def stuck(arena_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arena]:
    """An arena whose only topic is stuck and has half of the buffers. A parked thread sleeps for a minute."""
    monkeypatch.setattr(_native, "PARKED_SLEEP_NS", int(LONG_SLEEP_S * 1e9))
    monkeypatch.setattr(loop_producer, "SLICE_S", LONG_SLEEP_S)
    monkeypatch.setattr(loop_results, "TICK_S", LONG_SLEEP_S)
    with (
        Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", waiter_count=64, topics={TOPIC: 1}) as arena,
        Accumulator(arena) as sender,
        stuck_topic(sender, TOPIC, VALUE),
    ):
        yield arena


def parked_count(arena: Arena) -> int:
    return int((arena.waiter_table()["word"] >> 62 == WAITER_PARKED).sum())


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    begin_s = time.monotonic()
    yield
    assert time.monotonic() - begin_s < AT_ONCE_S


class Sends:
    """Threads that wait in a send, and their exceptions."""

    def __init__(self, producer: Producer, count: int) -> None:
        self._producer = producer
        self.errors: list[BaseException] = []
        self.threads = [threading.Thread(target=self._send) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def _send(self) -> None:
        try:
            self._producer.send(TOPIC, VALUE)
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.errors.append(error)

    def join(self) -> None:
        for thread in self.threads:
            thread.join()


def test_close_ends_parked_sends_of_all_threads(stuck: Arena) -> None:
    producer = Producer(stuck, max_block_ms=LONG_MS)
    sends = Sends(producer, 4)
    wait_until(lambda: parked_count(stuck) == 4, "all are parked")
    with at_once():
        producer.close(0)
        sends.join()
    assert [type(error) for error in sends.errors] == [ProducerClosedError] * 4
    assert parked_count(stuck) == 0


class ClosingWaker:
    """A waker that calls a function as soon as a wait has joined the queue."""

    def __init__(self) -> None:
        self.then: Callable[[], None] = lambda: None

    def wake_if_asleep(self) -> None:
        self.then()


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_close_before_a_thread_sleeps_ends_its_wait(stuck: Arena, is_joined: bool) -> None:
    """A wait that is not in the queue yet cannot be interrupted, and needs no interrupt."""
    waker = ClosingWaker()
    waiter = BufferWaiter(stuck, waker)  # type: ignore[arg-type]
    if is_joined:
        waker.then = waiter.refuse
    else:
        waiter.refuse()
    with at_once(), pytest.raises(ProducerClosedError):
        waiter.wait(1, LONG_MS, time.monotonic_ns() + LONG_MS * NS_PER_MS, None, 0)
    assert parked_count(stuck) == 0


def test_close_leaves_the_sends_of_other_producers_alone(stuck: Arena) -> None:
    closing, other = Producer(stuck, max_block_ms=LONG_MS), Producer(stuck, max_block_ms=LONG_MS)
    sends, others = Sends(closing, 1), Sends(other, 1)
    wait_until(lambda: parked_count(stuck) == 2, "both are parked")
    closing.close(0)
    sends.join()
    assert parked_count(stuck) == 1
    assert others.errors == []
    other.close(0)
    others.join()


def test_an_interrupt_ends_a_parked_send(stuck: Arena) -> None:
    producer = Producer(stuck, max_block_ms=LONG_MS)
    main = threading.get_ident()

    def interrupt() -> None:
        wait_until(lambda: parked_count(stuck) == 1, "it is parked")
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with at_once():
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            producer.send(TOPIC, VALUE)
        thread.join()
    assert parked_count(stuck) == 0
    producer.close(0)


def test_a_signal_handler_that_closes_ends_the_parked_send_that_it_interrupts(stuck: Arena) -> None:
    producer = Producer(stuck, max_block_ms=LONG_MS)
    former = signal.signal(signal.SIGUSR1, lambda *_: producer.close(0))

    ended = threading.Event()

    def interrupt() -> None:
        wait_until(lambda: parked_count(stuck) == 1, "it is parked")
        while not ended.wait(0.1):  # a signal may come just before the system call that sleeps
            os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=interrupt)
    try:
        with at_once():
            thread.start()
            with pytest.raises(ProducerClosedError):
                producer.send(TOPIC, VALUE)
            ended.set()
            thread.join()
    finally:
        ended.set()
        signal.signal(signal.SIGUSR1, former)
    wait_until(lambda: producer._appender.closed, "a thread has ended the close")


def set_poisoned(arena: Arena, status: int) -> None:
    """Write the status to the file, as the core does."""
    (place,) = (row[2] for row in _native.layout_fields() if row[:2] == ("globals", "poisoned_status"))
    with open(SHARED_MEMORY / arena.name, "r+b") as file:
        file.seek(arena.native.layout["globals"] + place)
        file.write(status.to_bytes(4, sys.byteorder))


def test_poison_ends_a_parked_send(stuck: Arena) -> None:
    """Otherwise, it would wait for max_block_ms and report a missing buffer."""
    producer = Producer(stuck, max_block_ms=LONG_MS)
    sends = Sends(producer, 1)
    wait_until(lambda: parked_count(stuck) == 1, "it is parked")
    with at_once():
        set_poisoned(stuck, 13)
        sends.join()
    set_poisoned(stuck, 0)
    assert [type(error) for error in sends.errors] == [ArenaPoisonedError]
    assert parked_count(stuck) == 0
    producer.close(0)


async def parked_task(producer: aio.Producer, arena: Arena) -> asyncio.Task[object]:
    task: asyncio.Task[object] = asyncio.ensure_future(producer.send(TOPIC, VALUE))
    while parked_count(arena) == 0:
        await asyncio.sleep(0.001)
    return task


def cancel(_producer: aio.Producer, task: asyncio.Task[object]) -> None:
    task.cancel()


def close(producer: aio.Producer, _task: asyncio.Task[object]) -> None:
    asyncio.get_running_loop().create_task(producer.close(0))


@pytest.mark.parametrize(("end", "error"), [(cancel, asyncio.CancelledError), (close, ProducerClosedError)])
def test_a_parked_task_ends_when_it_is_cancelled_or_its_producer_is_closed(
    stuck: Arena,
    end: Callable[[aio.Producer, asyncio.Task[object]], None],
    error: type[BaseException],
) -> None:
    async def run() -> None:
        producer = aio.Producer(stuck, max_block_ms=LONG_MS)
        await producer.start()
        task = await parked_task(producer, stuck)
        with at_once():
            end(producer, task)
            with pytest.raises(error):
                await task
        assert parked_count(stuck) == 0
        await producer.close(0)

    asyncio.run(run())
