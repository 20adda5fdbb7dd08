# SPDX-License-Identifier: Apache-2.0
"""The wake FIFO: a FIFO beside the arena, on which a sleeping sender can wait together with its sockets.

::

    producer                                             sender
    appends, or seals for a flush (D1, full barrier)     sets its sleep flag (D2, full barrier)
    sees the sleep flag, clears it,                      scans the arena once more
    and writes one byte ──── /dev/shm/….bell ──────────> select() returns; empties the FIFO

Only the producer that clears the flag (`Arena.native.take_sleep_flag`) writes, so a sleep costs one byte, regardless
of the number of producers.
A wake-up is a hint. The sender scans the arena at every tick anyway, so a lost wake-up costs at most one tick (100 ms,
or a second while the sender is idle).

Deaths
    The sender dies: the FIFO remains, possibly with bytes. The next sender empties it and waits on it. A producer dies
    after clearing the flag and before writing: the sleep ends with the tick. The creator of the FIFO dies: the FIFO is
    complete or does not exist. The FIFO is removed or replaced: the living sender creates it again within a second, and
    reports it. `Arena.remove` removes it. A sender that was attached meanwhile removes it when it exits. If that sender
    is killed, another sender or `Arena.remove` removes it (arena/dead_companions.py).

The sender, and every other waiter of this package, waits for descriptors with `wait_readable`. ``select`` has a
resolution of microseconds, which short timed waits need, but takes no descriptor of 1,024 or more, which a server with
many connections has. ``poll`` takes all descriptors, but waits in whole milliseconds. It is used where ``select``
cannot be.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from shmaccum.arena.fifo import FifoEnd, clear_fifo, is_fifo_at, make_and_open_fifo, unlink_orphan
from shmaccum.arena.file import ArenaFile
from shmaccum.common import clock
from shmaccum.common.cooperative import patched_by
from shmaccum.exceptions import ShmaccumError

if TYPE_CHECKING:
    from shmaccum.arena import Arena

GREENLET_CHECK_MIN_S, GREENLET_CHECK_MAX_S = 0.001, 0.05
SELECT_END = 1024
"""FD_SETSIZE of Linux."""


class WakeFifo:
    """The sender's end. It creates the FIFO if it is missing. `close` leaves the FIFO for the next sender.

    Raises:
        ArenaForbiddenError: another file has its name.
        OSError: it cannot be created (a file system without FIFOs, a folder without write permission).
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.path = ArenaFile.parse(arena.name).wake_fifo(arena.uuid)
        self._lock = threading.RLock()  # a signal handler may wake while its thread closes
        self._descriptor = make_and_open_fifo(self.path, arena)
        self._former: list[int] = []

    def fileno(self) -> int:
        """The descriptor to select on. It is readable after a wake-up."""
        return self._descriptor

    def check(self) -> bool:
        """Creates the FIFO again if it was removed or replaced, because no producer could wake the sender then.

        Returns True if `fileno` has changed. The former descriptor stays open, because it may still be registered.

        Raises:
            ArenaForbiddenError, OSError: it cannot be created.
        """
        with self._lock:
            if self._descriptor < 0 or is_fifo_at(self.path, self._descriptor) or not self._arena.is_linked():
                return False
            descriptor = make_and_open_fifo(self.path, self._arena)
            clear_fifo(self._descriptor)
            self._former.append(self._descriptor)
            self._descriptor = descriptor
            return True

    def clear(self) -> bool:
        """Empties the FIFO. Returns True if it had bytes, or cannot be read."""
        try:
            return clear_fifo(self._descriptor)
        except OSError as error:  # an exception here would lose the results that the caller has
            self._arena.native.record_error(f"the wake FIFO cannot be read: {error}")
            return True

    def wake(self) -> None:
        """Ends a select on the FIFO. Any thread or signal handler may call it. After `close` it does nothing.

        A thread may stop the sender after the FIFO was closed. The number of its descriptor may belong to another file
        by then, so nothing is written.
        """
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._descriptor >= 0:
                os.write(self._descriptor, b"\0")

    def close(self) -> None:
        """Closes the FIFO. Removes it if the arena's name is gone, because no other process would."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
            while self._former:
                os.close(self._former.pop())
        unlink_orphan(self.path, self._arena)


class SenderWaker:
    """A producer's end. It opens the FIFO at the first wake-up, and again if the FIFO was replaced. Never raises.

    All threads and the children of a fork can use it.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._path = ArenaFile.parse(arena.name).wake_fifo(arena.uuid)
        self._end: FifoEnd | None = None

    def wake(self) -> None:
        """Wakes the sender. Without a FIFO, the sender wakes at its next tick."""
        try:
            self._write_byte()
        except (BlockingIOError, FileNotFoundError):
            return  # it is full, or does not exist
        except (OSError, ShmaccumError) as error:  # the record is appended: its producer must not try again
            self._arena.native.record_error(f"the sender cannot be woken: {error}")

    def _write_byte(self) -> None:
        end = self._end
        if end is None or not is_fifo_at(self._path, end.descriptor):
            end = self._end = FifoEnd(self._path, self._arena)
        os.write(end.descriptor, b"\0")

    def wake_if_asleep(self) -> None:
        """Wakes the sender if it sleeps, and no other process has woken it."""
        if self._arena.native.take_sleep_flag():
            self.wake()

    def close(self) -> None:
        """Closes the FIFO. The next wake-up opens it again."""
        self._end = None


# --- waiting for descriptors


class HasFileno(Protocol):
    """An object that can be waited for like a bare descriptor."""

    def fileno(self) -> int: ...


File = TypeVar("File", bound=int | HasFileno)


def wait_readable(files: Sequence[File], timeout_s: float) -> list[File]:
    """Waits for files that can be read, or whose other end is closed, and returns them. Empty after the timeout.

    Args:
        files: descriptors, or objects that have one.
        timeout_s: seconds; rounded up to a millisecond where a descriptor is 1,024 or more.

    Raises:
        ValueError: a file is closed, or the time is negative.
    """
    descriptors = [file if isinstance(file, int) else file.fileno() for file in files]
    ready = _ready_beside_greenlets(descriptors, timeout_s) if patched_by() else _ready(descriptors, timeout_s)
    return [file for file, descriptor in zip(files, descriptors, strict=True) if descriptor in ready]


def _ready(descriptors: Sequence[int], timeout_s: float) -> set[int]:
    if max(descriptors) < SELECT_END:
        return set(select.select(descriptors, [], [], timeout_s)[0])
    return _polled(descriptors, timeout_s)


def _ready_beside_greenlets(descriptors: Sequence[int], timeout_s: float) -> set[int]:
    """Polls. A wait of gevent misses the end of a pipe if an earlier pipe had the same descriptor."""
    if timeout_s < 0:
        raise ValueError("timeout must be non-negative")
    begun_s = clock.monotonic()
    while True:
        waited_s = clock.monotonic() - begun_s
        ready = _ready(descriptors, 0)
        if ready or waited_s >= timeout_s:
            return ready
        time.sleep(min(max(waited_s / 4, GREENLET_CHECK_MIN_S), GREENLET_CHECK_MAX_S, timeout_s - waited_s))


def _polled(descriptors: Sequence[int], timeout_s: float) -> set[int]:
    if timeout_s < 0:
        raise ValueError("timeout must be non-negative")  # to poll, a negative time means forever
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(math.ceil(timeout_s * 1000))}
