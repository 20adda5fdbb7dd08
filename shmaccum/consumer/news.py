# SPDX-License-Identifier: Apache-2.0
"""How a consumer waits: for appends to its partitions, for new topics, and for `wakeup` from another thread.

inotify tells of each change of a watched folder, so an idle consumer sleeps. A user has 128 instances of inotify by
default. Where the kernel gives no instance or no watch, the consumer looks by itself: after a millisecond, and after
twice that each time nothing came, up to a tenth of a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import selectors
import time
from collections.abc import Callable, Iterable

from shmaccum.exceptions import ConsumerStateError
from shmaccum.segment_log.log_watch import LogWatch

LOOK_INTERVAL_S = 5.0
"""A consumer whose folders are all watched looks at its files by itself this often."""
POLL_INTERVAL_S_MIN = 0.001
POLL_INTERVAL_S_MAX = 0.1


class News:
    """Folders and files whose changes end a wait.

    Attributes:
        has_watch: the kernel tells about every folder.
        is_closed: nothing is watched any more.
        heard: the paths of which the kernel told at the last `take`.
    """

    def __init__(self) -> None:
        self.has_watch = True
        self.is_closed = False
        self._end_wait: Callable[[], None] | None = None
        self.heard: set[str] = set()
        self._interval_s = POLL_INTERVAL_S_MIN
        self._look_s = time.monotonic() + LOOK_INTERVAL_S
        self._watched: set[str] = set()
        self._watch = LogWatch()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.EpollSelector()  # its own descriptor is readable when one of its files is
        self._selector.register(self._bell, selectors.EVENT_READ)
        if self._watch.descriptor >= 0:
            self._selector.register(self._watch.descriptor, selectors.EVENT_READ)

    def watch(self, paths: Iterable[str]) -> None:
        """Watches these folders and files, and no others."""
        wanted = set(paths)
        for path in self._watched - wanted:
            self._watch.remove(path)
        self._watched = wanted
        unwatched = [path for path in wanted if self._watch.descriptor < 0 or not self._watch.add(path)]
        self.has_watch = not unwatched

    def take(self) -> set[str]:
        """The paths that may have changed since the last call; now and then, and without a watch, all of them."""
        self.heard = self._watch.changed() if self._watch.descriptor >= 0 else set()
        if self.heard:
            self._interval_s = POLL_INTERVAL_S_MIN
        now_s = time.monotonic()
        if self.has_watch and now_s < self._look_s:
            return self.heard
        self._look_s = now_s + LOOK_INTERVAL_S
        return set(self._watched)

    def wait(self, deadline_s: float) -> bool:
        """Sleeps until there may be news, or until the deadline; True when `ring` ended it.

        Args:
            deadline_s: a time of the monotonic clock.
        """
        return self._woke(is_ready=bool(self._selector.select(self._timeout_s(deadline_s))))

    async def wait_in_loop(self, deadline_s: float) -> bool:
        """As `wait`, while the event loop goes on. The loop watches one descriptor, that of our selector.

        Raises:
            ConsumerStateError: another task waits already.
        """
        if self._end_wait is not None:
            raise ConsumerStateError("another task waits for records of this consumer: poll it in one task at a time")
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(self._timeout_s(deadline_s), _resolve, woken, False)
        loop.add_reader(self._selector, _resolve, woken, True)
        self._end_wait = functools.partial(_end_wait, loop, self._selector, woken)
        try:
            return self._woke(is_ready=await woken)
        finally:
            timer.cancel()
            self._leave_loop()

    def _timeout_s(self, deadline_s: float) -> float:
        """The longest sleep before the next look."""
        now_s = time.monotonic()
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
        os.eventfd_write(self._bell, 1)

    def take_ring(self) -> bool:
        """True when `ring` was called since the last time."""
        if self.is_closed:
            return True
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Lets go of all descriptors. A wait in an event loop ends."""
        self.is_closed = True
        self._leave_loop()
        self._selector.close()
        self._watch.close()
        with contextlib.suppress(OSError):
            os.close(self._bell)


def _resolve(woken: asyncio.Future[bool], is_ready: bool) -> None:
    if not woken.done():
        woken.set_result(is_ready)


def _end_wait(loop: asyncio.AbstractEventLoop, selector: selectors.EpollSelector, woken: asyncio.Future[bool]) -> None:
    loop.remove_reader(selector)
    _resolve(woken, True)
