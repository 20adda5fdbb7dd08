# SPDX-License-Identifier: Apache-2.0
"""How a consumer waits: for appends to its partitions, for new topics, and for `wakeup` from another thread.

inotify tells of each change of a watched folder, so an idle consumer sleeps. A user has 128 instances of inotify by
default. Where the kernel gives no instance or no watch, the consumer looks by itself: after a millisecond, and after
twice that each time nothing came, up to a tenth of a second.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import time
from collections.abc import Iterable

from shmaccum.segment_log.log_watch import LogWatch

LOOK_INTERVAL_S = 5.0
"""A consumer whose folders are all watched looks at its files by itself this often."""
POLL_INTERVAL_S_MIN = 0.001
POLL_INTERVAL_S_MAX = 0.1


class News:
    """Folders and files whose changes end a wait.

    Attributes:
        has_watch: the kernel tells about every folder.
        heard: the paths of which the kernel told at the last `take`.
    """

    def __init__(self) -> None:
        self.has_watch = True
        self.heard: set[str] = set()
        self._interval_s = POLL_INTERVAL_S_MIN
        self._look_s = time.monotonic() + LOOK_INTERVAL_S
        self._watched: set[str] = set()
        self._watch = LogWatch()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector = selectors.DefaultSelector()
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
        now_s = time.monotonic()
        longest_s = self._look_s - now_s if self.has_watch else self._interval_s
        timeout_s = min(deadline_s - now_s, longest_s)
        ready = self._selector.select(max(timeout_s, 0))
        if not ready:
            self._interval_s = min(2 * self._interval_s, POLL_INTERVAL_S_MAX)
        return self.take_ring()

    def ring(self) -> None:
        """Ends a wait, or the next one, from any thread."""
        os.eventfd_write(self._bell, 1)

    def take_ring(self) -> bool:
        """True when `ring` was called since the last time."""
        try:
            os.eventfd_read(self._bell)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        """Lets go of all descriptors."""
        self._selector.close()
        self._watch.close()
        with contextlib.suppress(OSError):
            os.close(self._bell)
