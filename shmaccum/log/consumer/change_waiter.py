# SPDX-License-Identifier: Apache-2.0
"""Wait for appends to a consumer's partitions, for new topics, and for `wakeup` from another thread.

inotify reports each change of a watched folder, so an idle consumer is blocked in epoll. All consumers of a process
share one instance (`shared_watch`), and one consumer of each group checks its plan for all (`plan_checks`). If the
kernel gives no instance or no watch, the consumer polls: after one millisecond, and after twice that for each empty
poll, up to a tenth of a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import selectors
import weakref
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue

from shmaccum.common import clock
from shmaccum.exceptions import ConsumerStateError
from shmaccum.log.consumer.shared_watch import CHECK_PLAN, shared_watch
from shmaccum.log.groups.membership import Membership
from shmaccum.log.groups.plan import Plan

CHECK_INTERVAL_S = 5.0
"""The interval at which a consumer checks its files without an event, if all folders are watched."""
POLL_INTERVAL_S_MIN = 0.001
POLL_INTERVAL_S_MAX = 0.1
UNWATCHED_CHECK_S = 0.05
"""The minimum interval between checks of the group's plan, if not all folders are watched."""


_forgotten: SimpleQueue[tuple[Membership | None, ChangeWaiter]] = SimpleQueue()
"""Parts of consumers that were garbage collected."""


def forget(membership: Membership | None, waiter: ChangeWaiter) -> None:
    """Schedule these for closing. A finalizer calls it, because it may interrupt any call of another consumer."""
    _forgotten.put((membership, waiter))


def close_forgotten() -> None:
    """Close the parts that finalizers scheduled. Ordinary calls of a consumer begin with this."""
    while not _forgotten.empty():
        try:
            membership, waiter = _forgotten.get_nowait()
        except Empty:  # another thread took it
            return
        with contextlib.suppress(OSError):
            if membership is not None:
                membership.leave()
            waiter.close()


class ChangeWaiter:
    """Waits for changes of folders and files.

    Attributes:
        has_watch: True if the kernel watches every folder.
        is_closed: True after `close`.
        must_check_plan: True if at the last `take` another member of this process requested a check of the plan.
        changed_paths: the paths that have changed since the last `take`.
    """

    def __init__(self) -> None:
        self.has_watch = True
        self.is_closed = False
        self.must_check_plan = False
        self._end_wait: Callable[[], None] | None = None
        self.changed_paths: set[str] = set()
        self._is_woken = False
        self._interval_s = POLL_INTERVAL_S_MIN
        self._recheck_s = clock.monotonic() + CHECK_INTERVAL_S
        self._watched: set[str] = set()
        self._member: weakref.ref[Membership] | None = None
        self._lock_path: str | None = None
        self._check_s = 0.0
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.EpollSelector()  # its descriptor is readable if one of its files is
        self._selector.register(self._wake_fd, selectors.EVENT_READ)
        close_forgotten()
        self._shared = shared_watch(self)

    def watch(self, paths: Iterable[str], member: Membership | None = None) -> None:
        """Watch exactly these folders and files.

        Args:
            paths: the folders and files.
            member: the member whose group's lock file is watched, too.
        """
        self._watched = set(paths)
        self._member = None if member is None else weakref.ref(member)
        self._lock_path = None if member is None else member.locks.path
        shared = set() if self._lock_path is None else {self._lock_path}
        self.has_watch = self._shared.watch(self, self._watched | shared, self._lock_path)

    def take(self) -> set[str]:
        """The paths that may have changed since the last call. Periodically, and without a watch, all of them."""
        found = self._shared.take(self)
        self.must_check_plan = CHECK_PLAN in found
        if found:
            self._interval_s = POLL_INTERVAL_S_MIN
        now_s = clock.monotonic()
        if self.has_watch and now_s < self._recheck_s:
            return found
        self._recheck_s = now_s + CHECK_INTERVAL_S
        return found | self._watched | self._due_check(now_s)

    def _due_check(self, now_s: float) -> set[str]:
        """The lock file of the group, if the kernel does not watch it and a check is due."""
        if self.has_watch or self._lock_path is None or now_s < self._check_s:
            return set()
        self._check_s = now_s + UNWATCHED_CHECK_S
        return {self._lock_path}

    def request_check(self) -> None:
        """Make the next `take` return the lock file, so that this member checks the plan."""
        if self._lock_path is not None:
            self.changed_paths.add(self._lock_path)

    def checked(self, plan: Plan, pause_s: float) -> None:
        """Account for a plan check of this member. `pause_s` is the time until it must check again."""
        self._shared.checked(self, plan, pause_s)

    def is_concerned(self, plan: Plan) -> bool:
        """True if this member has to act on a plan that another member of this process has read."""
        member = None if self._member is None else self._member()
        return member is not None and member.is_concerned(plan)

    def wait(self, deadline_s: float) -> bool:
        """Block until there may be changes, or until the deadline; return True if `wake` ended the wait.

        Args:
            deadline_s: a time on the monotonic clock.
        """
        try:
            may_sleep = self._shared.enter(self)
            found = self._selector.select(self._timeout_s(deadline_s) if may_sleep else 0)
        finally:
            self._shared.leave(self)
        return self._finish_wait(is_ready=bool(found))

    async def wait_in_loop(self, deadline_s: float) -> bool:
        """As `wait`, without blocking the event loop. The loop watches one descriptor, that of the selector.

        Raises:
            ConsumerStateError: if another task is waiting.
        """
        if self._end_wait is not None:
            raise ConsumerStateError("another task waits for records of this consumer: poll it in one task at a time")
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        may_sleep = self._shared.enter(self)
        timer = loop.call_later(self._timeout_s(deadline_s) if may_sleep else 0, _resolve, woken, False)
        loop.add_reader(self._selector, _resolve, woken, True)
        self._end_wait = functools.partial(_end_wait, loop, self._selector, woken)
        try:
            return self._finish_wait(is_ready=await woken)
        finally:
            timer.cancel()
            self._leave_loop()
            self._shared.leave(self)

    def _timeout_s(self, deadline_s: float) -> float:
        """The longest wait before the next check."""
        now_s = clock.monotonic()
        longest_s = self._recheck_s - now_s if self.has_watch else self._interval_s
        return max(min(deadline_s - now_s, longest_s), 0)

    def _finish_wait(self, *, is_ready: bool) -> bool:
        if not is_ready:
            self._interval_s = min(2 * self._interval_s, POLL_INTERVAL_S_MAX)
        return self.take_wakeup()

    def _leave_loop(self) -> None:
        """End a wait in an event loop, if there is one."""
        end_wait, self._end_wait = self._end_wait, None
        if end_wait is not None:
            end_wait()

    def wake(self) -> None:
        """End the current wait, or the next one. Thread-safe."""
        self._is_woken = True
        self.end_wait()

    def end_wait(self) -> None:
        """End the current wait, because a path of this consumer has changed. Thread-safe."""
        os.eventfd_write(self._wake_fd, 1)

    def listen(self, descriptor: int) -> None:
        """Let this descriptor end a wait, too. Thread-safe."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def stop_listening(self, descriptor: int) -> None:
        """No longer let this descriptor end a wait. Thread-safe."""
        self._selector.unregister(descriptor)

    def take_wakeup(self) -> bool:
        """True if `wake` was called since the last call."""
        if self.is_closed:
            return True
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake_fd)
        is_woken, self._is_woken = self._is_woken, False
        return is_woken

    def close(self) -> None:
        """Close all descriptors. A wait in an event loop ends."""
        close_forgotten()
        self.is_closed = True
        self._leave_loop()
        self._shared.remove(self)
        self._selector.close()
        with contextlib.suppress(OSError):
            os.close(self._wake_fd)


def _resolve(woken: asyncio.Future[bool], is_ready: bool) -> None:
    if not woken.done():
        woken.set_result(is_ready)


def _end_wait(loop: asyncio.AbstractEventLoop, selector: selectors.EpollSelector, woken: asyncio.Future[bool]) -> None:
    loop.remove_reader(selector)
    _resolve(woken, True)
