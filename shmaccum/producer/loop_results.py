# SPDX-License-Identifier: Apache-2.0
"""Waits for results in an asyncio event loop: tasks wait, and the loop is never blocked.

While one of its tasks waits, a loop watches the results FIFO of an arena (`shmaccum.arena.results_fifo`), and checks
the results after each wake-up. It also checks once a second, because the arena may have been removed, or the sender
may have died before the wake-up.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any, final

from shmaccum._native import DeliveryFuture
from shmaccum.arena.removal import RemovalWatch
from shmaccum.arena.results_fifo import ResultsListener
from shmaccum.exceptions import ResultPendingError, ShmaccumError
from shmaccum.producer.delivery import DeliveryTracker, Observer, TaskWaiter, Waiters

TICK_S = 1.0
POLL_TICK_S = 0.01
"""The polling interval of a loop without a FIFO, because the process is detached or may not create one."""


@final
class LoopResults:
    """The wake-ups of one event loop by the results of one arena. Used only in the thread of the loop."""

    def __init__(self, tracker: DeliveryTracker, loop: asyncio.AbstractEventLoop) -> None:
        self._tracker = tracker
        self._loop = weakref.ref(loop)  # the tracker stores this by its loop
        self._checks: Counter[Callable[[], object]] = Counter()
        self._listener: ResultsListener | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._waiters = Waiters(tracker)

    @classmethod
    def of(cls, tracker: DeliveryTracker) -> LoopResults:
        """Returns the instance of this tracker in the running loop.

        Raises:
            RuntimeError: no event loop of asyncio runs in this thread.
        """
        loop = asyncio.get_running_loop()
        found = tracker.loops.get(loop)
        if found is None:
            found = tracker.loops[loop] = cls(tracker, loop)
        return found

    @contextlib.contextmanager
    def listening(self, check: Callable[[], object]) -> Iterator[None]:
        """Calls `check` after each wake-up and each tick, until the end of the block.

        A result that is recorded after the start of the block causes a call. The caller checks for earlier results.
        """
        if not self._checks:
            self._begin()
        self._checks[check] += 1
        try:
            yield
        finally:
            self._checks[check] -= 1
            self._checks += Counter()  # drops functions that no block uses
            if not self._checks:
                self._end()

    # --- futures

    def watch(self, future: DeliveryFuture, observer: Observer) -> None:
        """Calls the observer when the result of a future is known. The caller is listening with `call_observers`."""
        if not self._waiters.add(future, observer):
            observer(future)

    def forget(self, future: DeliveryFuture, observer: Observer) -> None:
        """Removes an observer that is not needed any more."""
        self._waiters.native.discard(future, observer)

    def call_observers(self) -> None:
        """Calls the observers of the results that came since the last call."""
        self._waiters.end()
        while self._waiters.call_next():
            pass

    def give_up(self) -> None:
        """Wakes each waiting task, because the producer is closed. Any thread may call it."""
        for future, observer in self._waiters.native.waiters():
            if isinstance(observer, TaskWaiter):
                with contextlib.suppress(ShmaccumError):
                    self._tracker.is_known(future)
                self.forget(future, observer)
                observer(future)

    # --- wake-ups

    def _begin(self) -> None:
        arena = self._tracker.arena
        self._watch = RemovalWatch(arena)
        if self._listener is None and not arena.closed:
            with contextlib.suppress(OSError, ShmaccumError):  # without it, each tick checks
                self._listener = ResultsListener(arena)
        if self._listener is not None:
            asyncio.get_running_loop().add_reader(self._listener.fileno(), self._on_wake_up)
        self._expect_and_schedule()

    def _end(self) -> None:
        tick, self._tick = self._tick, None
        if tick is not None:
            tick.cancel()
        loop = self._loop()
        if self._listener is not None and loop is not None and not loop.is_closed():
            loop.remove_reader(self._listener.fileno())

    def _on_wake_up(self) -> None:
        if self._listener is not None:
            self._listener.take_wake_up()
        self._expect()
        self._run_checks()

    def _expect_and_schedule(self) -> None:
        self._expect()
        tick_s = POLL_TICK_S if self._lacks_listener else TICK_S
        self._tick = asyncio.get_running_loop().call_later(tick_s, self._run_tick)

    @property
    def _lacks_listener(self) -> bool:
        return self._listener is None or self._tracker.arena.closed

    def _expect(self) -> None:
        """Announces that a task waits, before the check, so a later result wakes the loop."""
        if not self._lacks_listener:
            with contextlib.suppress(ShmaccumError):  # the tick detects the problem
                self._tracker.arena.native.expect_completion()

    def _run_checks(self) -> None:
        for check in list(self._checks):
            check()

    def _run_tick(self) -> None:
        if not self._tracker.arena.closed and self._watch.is_abandoned():
            self._waiters.give_up()
        if self._listener is not None and not self._lacks_listener:
            with contextlib.suppress(OSError, ShmaccumError):  # the next tick tries again
                self._listener.check()
        self._expect_and_schedule()
        self._run_checks()


@final
class WakeUps:
    """The wake-ups that a task waits for, one after another.

    ::

        with WakeUps(LoopResults.of(tracker)) as wake_ups:
            while not is_there():
                await wake_ups.next(1.0)
    """

    def __init__(self, results: LoopResults) -> None:
        self._listening = results.listening(self._on_wake_up)
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def _on_wake_up(self) -> None:
        self._event.set()

    async def next(self, timeout_s: float) -> None:
        """Returns at the next wake-up or tick, or when the timeout, in seconds, expires.

        A wake-up since the last call makes it return at once.
        """
        timer = self._loop.call_later(timeout_s, self._event.set)
        try:
            await self._event.wait()
        finally:
            timer.cancel()
        self._event.clear()

    def end_soon(self) -> None:
        """Ends the current or the next call of `next`. Any thread may call it."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._event.set)

    def __enter__(self) -> WakeUps:
        self._listening.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        self._listening.__exit__(None, None, None)


def wait_in_loop(future: DeliveryFuture) -> Generator[Any, None, None]:
    """Waits in a task until the result of a future is known. A cancelled task leaves no state.

    Raises:
        ResultPendingError: the producer was closed meanwhile.
    """
    tracker = future.tracker
    results = LoopResults.of(tracker)
    task = TaskWaiter(asyncio.get_running_loop())
    with results.listening(results.call_observers):
        results.watch(future, task)
        tracker.wake_waiting_sender(future)
        try:
            yield from task.waiter
        finally:
            results.forget(future, task)
    if not tracker.is_known(future):
        raise ResultPendingError(
            "the producer was closed before the result was known: the record is in the arena and will be sent"
        )
