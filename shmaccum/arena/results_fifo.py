# SPDX-License-Identifier: Apache-2.0
"""The results FIFO: a FIFO beside the arena that wakes event loops, which cannot sleep on a futex.

::

    loop (a process)                                      sender
    opens the FIFO, in an edge-triggered epoll (B1)       records results
    sets the listening flag, checks the results           sees the flag, clears it (completion.h),
                                                          empties the FIFO, writes a byte (B2)
    waits for the epoll's descriptor, with all others ──> every epoll that holds the FIFO has an edge
    takes its edge, sets the flag, checks the results

One byte wakes every loop of the host, because an edge-triggered epoll has its own edge for each write. No loop reads
the FIFO, so none takes the byte from another. The sender empties it before it writes, so a write is always an edge, and
a FIFO is never full.

Why no wake-up is lost. The loop registers the FIFO in the epoll (B1) before it sets the flag. The sender records, then
clears the flag, then writes (B2). A loop that set the flag too late sees the new results, and a loop that set it in
time has an edge, which stays until the loop takes it. The loop takes its edge before it sets the flag again, and then
checks.

Deaths
    A loop dies: the kernel removes its epoll. The sender dies between the flag and the byte: the next sender writes
    when it takes the role, and a waiting loop checks once a second. The FIFO is missing (only loops create it): the
    sender wakes no loop. A process empties or fills it: a wake-up is late by a second at most. It is removed or
    replaced: a waiting loop creates it again within a second.
"""

from __future__ import annotations

import os
import select
import weakref
from typing import TYPE_CHECKING

from shmaccum.arena.fifo import clear_fifo, is_fifo_at, make_and_open_fifo, open_fifo, unlink_orphan
from shmaccum.arena.file import ArenaFile
from shmaccum.exceptions import ShmaccumError

if TYPE_CHECKING:
    from shmaccum.arena import Arena


class ResultsWaker:
    """The sender's end. It opens the FIFO at the first wake-up that finds it, and after a replacement. Never raises."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._path = ArenaFile.parse(arena.name).results_fifo(arena.uuid)
        self._descriptor: int | None = None

    def wake_if_awaited(self) -> None:
        """Wakes the loops if one has set the flag since the last call. The sender calls it after recording results."""
        if self._arena.native.take_listening():
            self.wake()

    def wake(self) -> None:
        """Wakes every waiting loop. Without a FIFO, which only loops create, it does nothing."""
        try:
            self._write_byte()
        except (BlockingIOError, FileNotFoundError):
            return  # another process filled it meanwhile, which is a wake-up, or no loop has created it
        except (OSError, ShmaccumError) as error:  # results are recorded; loops find them within a second
            self._arena.native.record_error(f"event loops cannot be woken: {error}")

    def _write_byte(self) -> None:
        if self._descriptor is not None and not is_fifo_at(self._path, self._descriptor) and os.path.exists(self._path):
            self.close()  # a loop has created another one
        if self._descriptor is None:
            self._descriptor = open_fifo(self._path, self._arena)
        clear_fifo(self._descriptor)
        os.write(self._descriptor, b"\0")

    def close(self) -> None:
        """Closes the FIFO. The next wake-up opens it again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class ResultsListener:
    """A loop's end: a descriptor that is readable after a wake-up. Creates the FIFO if it is missing.

    Args:
        arena: attached. The loop waits for its results.

    Raises:
        ArenaForbiddenError: another file has the FIFO's name, or this user may not create one there.
        OSError: it cannot be created or opened.
    """

    def __init__(self, arena: Arena) -> None:
        path = ArenaFile.parse(arena.name).results_fifo(arena.uuid)
        descriptor = make_and_open_fifo(path, arena)
        self._arena, self._path, self._descriptor = arena, path, descriptor
        self._end = weakref.finalize(self, os.close, descriptor)
        unlink_orphan(path, arena)
        self._epoll = select.epoll(1)
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)  # B1

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._epoll.fileno()

    def check(self) -> None:
        """Creates the FIFO again if it was removed or replaced. Call it periodically.

        Raises:
            ArenaForbiddenError, OSError: it cannot be created.
        """
        if is_fifo_at(self._path, self._descriptor) or not self._arena.is_linked():
            return
        descriptor = make_and_open_fifo(self._path, self._arena)
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        self._end()
        self._descriptor, self._end = descriptor, weakref.finalize(self, os.close, descriptor)

    def take_wake_up(self) -> None:
        """Takes the edge, so that the descriptor is readable at the next wake-up again."""
        self._epoll.poll(0)

    def close(self) -> None:
        """Closes both descriptors, as the end of the object does."""
        self._epoll.close()
        self._end()
