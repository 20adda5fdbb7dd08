# SPDX-License-Identifier: Apache-2.0
"""A thread of every attached process forces an arena with durability=interval to disk.

They share the work. After each half of the interval, every thread checks whether a process has forced the arena during
that half, and forces it if not (native/arena/durability.h). If a process dies, the next thread that wakes continues. A
process that detaches forces the arena once more, because no other process may be left to do it.

A forked child has its own thread, which does nothing before the child has attached by using the arena.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import time
import weakref
from queue import Empty, SimpleQueue

from shmaccum import _native
from shmaccum.common import clock, cooperative
from shmaccum.common.background import RETRY_S, listed, log_exception, started_thread
from shmaccum.common.clock import NS_PER_MS
from shmaccum.exceptions import ShmaccumError

logger = logging.getLogger("shmaccum.arena")

STOP_PATIENCE_S = 0.2
"""A stop waits at least this long for the thread, which may be in a wait."""


class Flusher:
    """The thread of one handle of an arena. It ends with `close`, and when the arena is poisoned."""

    def __init__(self, native: _native.Arena, interval_ms: int) -> None:
        self.native = native
        self._half_ns = interval_ms * NS_PER_MS // 2
        self._begin()
        _flushers.add(self)

    def _begin(self) -> None:
        self._stop: SimpleQueue[None] = SimpleQueue()
        self._is_over = False
        self._thread: threading.Thread | None = None
        self.ensure_thread()

    @property
    def is_running(self) -> bool:
        """True while the thread works."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def ensure_thread(self) -> None:
        """Starts the thread, if it could not start or was ended from outside."""
        if not self._is_over and not self.is_running:
            self._thread = started_thread(self._run, "shmaccum-flusher", logger)

    def reset(self) -> None:
        """Starts a thread in a forked child, whatever the state of the parent's thread was."""
        if not self.native.closed and not self._is_over:
            self._begin()

    def _run(self) -> None:
        stop = self._stop
        while not self._must_stop(stop):
            try:
                if self.native.is_attached:
                    cooperative.call(self.native.force_if_due, self._half_ns)
            except ShmaccumError:  # noqa: PERF203 - closed, or poisoned: the next append raises
                self._is_over = True
                return
            except BaseException:  # noqa: BLE001 - the thread survives every exception
                log_exception(logger, "the thread that forces an arena to disk continues after an exception")
                time.sleep(RETRY_S)

    def _must_stop(self, stop: SimpleQueue[None]) -> bool:
        """Waits for half of the interval. Returns True if the thread must end."""
        if cooperative.patched_by() is not None:
            end_s = clock.monotonic() + self._half_ns / 1e9
            while stop.empty() and (left_s := end_s - clock.monotonic()) > 0:
                time.sleep(min(left_s, STOP_PATIENCE_S / 2))
            return not stop.empty()
        with contextlib.suppress(Empty):
            stop.get(timeout=self._half_ns / 1e9)
            return True
        return False

    def stop(self) -> None:
        """Asks the thread to end. A finalizer may call it."""
        self._is_over = True
        self._stop.put(None)

    def close(self, timeout_s: float) -> None:
        """Stops, forces once more, and closes the arena.

        Args:
            timeout_s: how long to wait for the end of the thread, which may be waiting for the disk.

        Raises:
            ArenaInUseError: the arena is in use. Then the flusher continues.
        """
        self.stop()
        if self._thread is not None:
            self._thread.join(None if timeout_s == math.inf else max(timeout_s, STOP_PATIENCE_S))
        with contextlib.suppress(ShmaccumError):
            if self.native.is_attached:
                cooperative.call(self.native.force_if_due, 0)
        try:
            self.native.close()
        except ShmaccumError:
            self._begin()
            raise


_flushers: weakref.WeakSet[Flusher] = weakref.WeakSet()


def _start_again() -> None:
    for flusher in listed(_flushers):
        flusher.reset()


os.register_at_fork(after_in_child=_start_again)
