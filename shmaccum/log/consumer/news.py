# SPDX-License-Identifier: Apache-2.0
"""How a consumer waits: for appends to its partitions, for new topics, and for `wakeup` from another thread.

inotify tells of each change of a watched folder, so an idle consumer sleeps. All consumers of a process share one
instance (`shared_watch`), and those of one group hear its bell together (`bell`). Where the kernel gives no instance or
no watch, the consumer looks by itself: after a millisecond, and after twice that each time nothing came, up to a tenth
of a second.
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
from shmaccum.log.consumer.shared_watch import TOLD, shared_watch
from shmaccum.log.groups.membership import Membership
from shmaccum.log.groups.plan import Plan

LOOK_INTERVAL_S = 5.0
"""A consumer whose folders are all watched looks at its files by itself this often."""
POLL_INTERVAL_S_MIN = 0.001
POLL_INTERVAL_S_MAX = 0.1
UNWATCHED_STRIKE_S = 0.05
"""A consumer whose folders are not all watched looks at the plan of its group this often, at most."""


_forgotten: SimpleQueue[tuple[Membership | None, News]] = SimpleQueue()
"""Parts of consumers that were collected as garbage."""


def forget(membership: Membership | None, news: News) -> None:
    """For a finalizer, which may interrupt any call of another consumer: the next such call lets go of these."""
    _forgotten.put((membership, news))


def end_forgotten() -> None:
    """Lets go of what finalizers left. Every ordinary call of a consumer may begin with this."""
    while not _forgotten.empty():
        try:
            membership, news = _forgotten.get_nowait()
        except Empty:  # another thread took it
            return
        with contextlib.suppress(OSError):
            if membership is not None:
                membership.leave()
            news.close()


class News:
    """Folders and files whose changes end a wait.

    Attributes:
        has_watch: the kernel tells about every folder.
        is_closed: nothing is watched any more.
        is_told: another member of this process told this one at the last `take` to look at the plan.
        box: the paths of which the kernel told since the last `take`.
    """

    def __init__(self) -> None:
        self.has_watch = True
        self.is_closed = False
        self.is_told = False
        self._end_wait: Callable[[], None] | None = None
        self.box: set[str] = set()
        self._is_rung = False
        self._interval_s = POLL_INTERVAL_S_MIN
        self._look_s = clock.monotonic() + LOOK_INTERVAL_S
        self._watched: set[str] = set()
        self._member: weakref.ref[Membership] | None = None
        self._bell_path: str | None = None
        self._strike_s = 0.0
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.EpollSelector()  # its own descriptor is readable when one of its files is
        self._selector.register(self._bell, selectors.EVENT_READ)
        end_forgotten()
        self._shared = shared_watch(self)

    def watch(self, paths: Iterable[str], member: Membership | None = None) -> None:
        """Watches these folders and files, and no others.

        Args:
            paths: the folders and files.
            member: with its group's lock file as the bell.
        """
        self._watched = set(paths)
        self._member = None if member is None else weakref.ref(member)
        self._bell_path = None if member is None else member.locks.path
        shared = set() if self._bell_path is None else {self._bell_path}
        self.has_watch = self._shared.watch(self, self._watched | shared, self._bell_path)

    def take(self) -> set[str]:
        """The paths that may have changed since the last call; now and then, and without a watch, all of them."""
        found = self._shared.take(self)
        self.is_told = TOLD in found
        if found:
            self._interval_s = POLL_INTERVAL_S_MIN
        now_s = clock.monotonic()
        if self.has_watch and now_s < self._look_s:
            return found
        self._look_s = now_s + LOOK_INTERVAL_S
        return found | self._watched | self._unheard(now_s)

    def _unheard(self, now_s: float) -> set[str]:
        """The bell, which strikes by itself where the kernel does not tell of it."""
        if self.has_watch or self._bell_path is None or now_s < self._strike_s:
            return set()
        self._strike_s = now_s + UNWATCHED_STRIKE_S
        return {self._bell_path}

    def strike(self) -> None:
        """The next `take` finds that this member has to look at the plan."""
        if self._bell_path is not None:
            self.box.add(self._bell_path)

    def looked(self, plan: Plan, pause_s: float) -> None:
        """This member has looked at the plan; `pause_s` is the time until it wants to look again."""
        self._shared.looked(self, plan, pause_s)

    def is_concerned(self, plan: Plan) -> bool:
        """True when this member has to act on a plan that another one of this process has read."""
        member = None if self._member is None else self._member()
        return member is not None and member.is_concerned(plan)

    def wait(self, deadline_s: float) -> bool:
        """Sleeps until there may be news, or until the deadline; True when `ring` ended it.

        Args:
            deadline_s: a time of the monotonic clock.
        """
        try:
            may_sleep = self._shared.enter(self)
            found = self._selector.select(self._timeout_s(deadline_s) if may_sleep else 0)
        finally:
            self._shared.leave(self)
        return self._woke(is_ready=bool(found))

    async def wait_in_loop(self, deadline_s: float) -> bool:
        """As `wait`, while the event loop goes on. The loop watches one descriptor, that of our selector.

        Raises:
            ConsumerStateError: another task waits already.
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
            return self._woke(is_ready=await woken)
        finally:
            timer.cancel()
            self._leave_loop()
            self._shared.leave(self)

    def _timeout_s(self, deadline_s: float) -> float:
        """The longest sleep before the next look."""
        now_s = clock.monotonic()
        longest_s = self._look_s - now_s if self.has_watch else self._interval_s
        return max(min(deadline_s - now_s, longest_s), 0)

    def _woke(self, *, is_ready: bool) -> bool:
        if not is_ready:
            self._interval_s = min(2 * self._interval_s, POLL_INTERVAL_S_MAX)
        return self.take_ring()

    def _leave_loop(self) -> None:
        """Ends a wait in an event loop, if there is one."""
        end_wait, self._end_wait = self._end_wait, None
        if end_wait is not None:
            end_wait()

    def ring(self) -> None:
        """Ends a wait, or the next one, from any thread."""
        self._is_rung = True
        self.tell()

    def tell(self) -> None:
        """Ends a wait, from any thread: a path of this consumer is in its box."""
        os.eventfd_write(self._bell, 1)

    def listen(self, descriptor: int) -> None:
        """A wait ends, too, when this descriptor has news; from any thread."""
        self._selector.register(descriptor, selectors.EVENT_READ)

    def stop_listening(self, descriptor: int) -> None:
        """A wait does not end any more by the news of this descriptor; from any thread."""
        self._selector.unregister(descriptor)

    def take_ring(self) -> bool:
        """True when `ring` was called since the last time."""
        if self.is_closed:
            return True
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        is_rung, self._is_rung = self._is_rung, False
        return is_rung

    def close(self) -> None:
        """Lets go of all descriptors. A wait in an event loop ends."""
        end_forgotten()
        self.is_closed = True
        self._leave_loop()
        self._shared.remove(self)
        self._selector.close()
        with contextlib.suppress(OSError):
            os.close(self._bell)


def _resolve(woken: asyncio.Future[bool], is_ready: bool) -> None:
    if not woken.done():
        woken.set_result(is_ready)


def _end_wait(loop: asyncio.AbstractEventLoop, selector: selectors.EpollSelector, woken: asyncio.Future[bool]) -> None:
    loop.remove_reader(selector)
    _resolve(woken, True)
