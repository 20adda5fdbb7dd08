# SPDX-License-Identifier: Apache-2.0
"""The doorbell: a FIFO beside the arena on which a sleeping sender can wait together with its sockets.

::

    producer                                             sender
    appends, or seals for a flush (D1, full barrier)     says that it sleeps (D2, full barrier)
    sees that the sender sleeps, takes that word back    looks for news once more
    and writes one byte ──── /dev/shm/….bell ──────────> select() comes back; empties the FIFO

The producer that takes the word back (`Arena.native.take_sleep_flag`) rings, so a sleep costs one byte however many
producers there are.
A ring is a hint: the sender looks at the arena at every tick anyway, so a ring that is lost costs at most one tick
(100 ms; a second when nothing came for one).

Deaths
    The sender dies: the FIFO stays, with bytes in it; the next sender empties it and sleeps on it. A producer dies
    between taking the word back and ringing: that sleep ends with the tick. The maker of the FIFO dies: the FIFO is
    whole or not there. A FIFO that somebody removes or replaces is made anew by the living sender within a second, and
    told of. `Arena.remove` takes it away; a sender that was attached meanwhile does so when it leaves.

`wait_readable` is how the sender, and every other waiter of this package, waits for descriptors. ``select`` knows
microseconds, which a napping sender needs, but no descriptor from 1,024 on, which a server with many connections has.
``poll`` knows all descriptors, but waits in whole milliseconds. ``poll`` stands in where ``select`` cannot.
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

from shmaccum.arena.fifo import FifoEnd, clear_fifo, is_fifo_at, make_fifo, open_fifo, unlink_orphan
from shmaccum.arena.file import ArenaFile
from shmaccum.common import clock
from shmaccum.common.cooperative import patched_by
from shmaccum.exceptions import ShmaccumError

if TYPE_CHECKING:
    from shmaccum.arena import Arena

GREENLET_LOOK_MIN_S, GREENLET_LOOK_MAX_S = 0.001, 0.05
SELECT_END = 1024
"""FD_SETSIZE of Linux."""


class Doorbell:
    """The sender's end. Made when it does not exist; left in place by `close` for the next sender.

    Raises:
        ArenaForbiddenError: something else has its name.
        OSError: it cannot be made (a file system without FIFOs, a folder without write permission).
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.path = ArenaFile.parse(arena.name).doorbell(arena.uuid)
        make_fifo(self.path, arena)
        self._lock = threading.RLock()  # a signal handler may ring while its thread closes
        self._descriptor = open_fifo(self.path, arena)
        self._former: list[int] = []

    def fileno(self) -> int:
        """The descriptor to select on; it is readable after a ring."""
        return self._descriptor

    def look(self) -> bool:
        """Makes the FIFO anew when somebody removed or replaced it: no producer would wake the sender any more.

        True when `fileno` is another one by now. The former descriptor stays open, for whoever has it registered.

        Raises:
            ArenaForbiddenError, OSError: it cannot be made.
        """
        with self._lock:
            if self._descriptor < 0 or is_fifo_at(self.path, self._descriptor) or not self._arena.is_linked():
                return False
            make_fifo(self.path, self._arena)
            descriptor = open_fifo(self.path, self._arena)
            clear_fifo(self._descriptor)
            self._former.append(self._descriptor)
            self._descriptor = descriptor
            return True

    def clear(self) -> bool:
        """Takes all rings out; True when there were any, and when they cannot be read."""
        try:
            return clear_fifo(self._descriptor)
        except OSError as error:  # results that the caller has in hand must not get lost over it
            self._arena.native.record_error(f"the doorbell cannot be read: {error}")
            return True

    def ring(self) -> None:
        """Makes a select on it come back; from any thread, and from a signal handler. A closed one stays silent.

        A thread that tells the sender to stop may come here when the sender has left: the number of the descriptor
        could be another file's then.
        """
        with self._lock, contextlib.suppress(BlockingIOError):
            if self._descriptor >= 0:
                os.write(self._descriptor, b"\0")

    def close(self) -> None:
        """Lets go of it; takes it away when the arena's name is gone, for nobody else would."""
        with self._lock:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
            while self._former:
                os.close(self._former.pop())
        unlink_orphan(self.path, self._arena)


class DoorbellButton:
    """A producer's end: opened at the first ring, reopened when the FIFO was replaced. Never raises.

    Usable by all threads, and by the children of a fork.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._path = ArenaFile.parse(arena.name).doorbell(arena.uuid)
        self._end: FifoEnd | None = None

    def ring(self) -> None:
        """Wakes the sender. Without a doorbell it wakes by itself, at its next tick."""
        try:
            self._ring()
        except (BlockingIOError, FileNotFoundError):
            return  # it is full of rings, or not there
        except (OSError, ShmaccumError) as error:  # the record is appended: its producer must not try again
            self._arena.native.record_error(f"the doorbell cannot be rung: {error}")

    def _ring(self) -> None:
        end = self._end
        if end is None or not is_fifo_at(self._path, end.descriptor):
            end = self._end = FifoEnd(self._path, self._arena)
        os.write(end.descriptor, b"\0")

    def ring_if_asleep(self) -> None:
        """Rings when the sender sleeps, and nobody else has rung since."""
        if self._arena.native.take_sleep_flag():
            self.ring()

    def close(self) -> None:
        """Lets go of it; the next ring opens it again."""
        self._end = None


# --- waiting for descriptors


class HasFileno(Protocol):
    """An object that can be waited for like a bare descriptor."""

    def fileno(self) -> int: ...


File = TypeVar("File", bound=int | HasFileno)


def wait_readable(files: Sequence[File], timeout_s: float) -> list[File]:
    """Those of `files` that can be read, or whose other end is gone; empty when time was over.

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
    """Looks again and again: a wait of gevent misses the end of a pipe whose number was another pipe's before."""
    if timeout_s < 0:
        raise ValueError("timeout must be non-negative")
    begun_s = clock.monotonic()
    while True:
        waited_s = clock.monotonic() - begun_s
        ready = _ready(descriptors, 0)
        if ready or waited_s >= timeout_s:
            return ready
        time.sleep(min(max(waited_s / 4, GREENLET_LOOK_MIN_S), GREENLET_LOOK_MAX_S, timeout_s - waited_s))


def _polled(descriptors: Sequence[int], timeout_s: float) -> set[int]:
    if timeout_s < 0:
        raise ValueError("timeout must be non-negative")  # to poll it would be for ever
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(math.ceil(timeout_s * 1000))}
