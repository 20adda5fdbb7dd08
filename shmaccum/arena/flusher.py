# SPDX-License-Identifier: Apache-2.0
"""A thread of every attached process forces an arena with durability=interval to disk.

They share the work: each looks at every half of the interval whether any of them forced the arena in the last half,
and forces it if none did (native/arena/durability.h). When one dies, the next one that wakes goes on. A
process that leaves forces it once more, because no other process may be left to do it.

After fork the child has a thread of its own; it does nothing before the child has attached by using the arena.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref

from shmaccum import _native
from shmaccum.exceptions import ShmaccumError

INTERVAL = 1
NS_PER_MS = 10**6


class Flusher:
    """The thread of one handle of an arena. It ends with `close`, and when the arena is poisoned."""

    def __init__(self, native: _native.Arena, interval_ms: int) -> None:
        self.native = native
        self._half_ns = interval_ms * NS_PER_MS // 2
        self.start()
        _flushers.add(self)

    @classmethod
    def of(cls, native: _native.Arena) -> Flusher | None:
        """None where nothing is to be forced."""
        geometry = native.geometry
        if native.is_read_only or geometry["durability"] != INTERVAL:
            return None
        return cls(native, geometry["sync_interval_ms"])

    def start(self) -> None:
        """Begins; in the child of a fork for the first time, whatever the parent's thread was about."""
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shmaccum-flusher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        is_over = self._is_over
        with contextlib.suppress(ShmaccumError):  # closed, or poisoned: the next append raises
            while not is_over.wait(self._half_ns / 1e9):
                if self.native.is_attached:
                    self.native.force_if_due(self._half_ns)

    def stop(self) -> None:
        """Lets the thread end when it wakes."""
        self._is_over.set()

    def close(self) -> None:
        """Stops, forces once more, and closes the arena.

        Raises:
            ArenaInUseError: somebody uses it; then the flusher goes on.
        """
        self.stop()
        self._thread.join()
        with contextlib.suppress(ShmaccumError):
            if self.native.is_attached:
                self.native.force_if_due(0)
        try:
            self.native.close()
        except ShmaccumError:
            self.start()
            raise


_flushers: weakref.WeakSet[Flusher] = weakref.WeakSet()


def _start_again() -> None:
    for flusher in list(_flushers):
        if not flusher.native.closed:
            flusher.start()


os.register_at_fork(after_in_child=_start_again)
