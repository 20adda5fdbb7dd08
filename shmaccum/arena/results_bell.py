# SPDX-License-Identifier: Apache-2.0
"""The results bell: a FIFO beside the arena that wakes event loops, which cannot sleep on a futex.

::

    loop (a process)                                      sender
    opens the FIFO, in an epoll by edges (B1)             records results
    says that it listens, looks at the tail               sees that, takes the word back (completion.h),
                                                          empties the FIFO, writes a byte (B2)
    waits for the epoll's descriptor, with all others ──> every epoll that holds the FIFO has an edge
    takes its edge, looks at the results, says it again

One byte wakes every loop of the host, because an epoll by edges keeps an edge of its own for each write. No loop reads
the FIFO, so none takes the byte from another. The sender empties it before it writes, so a write is always an edge, and
a FIFO is never full.

Why no wake-up is lost. The loop is listed in the epoll (B1) before it says that it listens. The sender records, then
takes the word back, then writes (B2). A loop that said it too late sees the new tail, and one that said it in time has
an edge, which stays until the loop takes it. The loop takes its edge before it says it again, and then looks.

Deaths
    A loop dies: the kernel forgets its epoll. The sender dies between the word and the byte: the next one rings when
    it takes the role, and a loop that waits looks once a second. The FIFO is missing (only loops make it): the sender
    rings nobody. Somebody empties it or fills it: a ring is late by a second at most. Somebody removes or replaces it:
    a loop that waits makes it anew within a second.
"""

from __future__ import annotations

import os
import select
import weakref
from typing import TYPE_CHECKING

from shmaccum.arena.fifo import clear_fifo, is_fifo_at, make_fifo, open_fifo, unlink_orphan
from shmaccum.arena.file import ArenaFile
from shmaccum.exceptions import ShmaccumError

if TYPE_CHECKING:
    from shmaccum.arena import Arena


class ResultsBell:
    """The sender's end: opened at the first ring that finds the FIFO, and again when it was replaced. Never raises."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._path = ArenaFile.parse(arena.name).results_bell(arena.uuid)
        self._descriptor: int | None = None

    def ring_if_awaited(self) -> None:
        """Rings when a loop has said that it listens since the last call. For the sender alone, behind its results."""
        if self._arena.native.take_listening():
            self.ring()

    def ring(self) -> None:
        """Wakes every loop that listens. Where none ever did, there is no FIFO, and nothing happens."""
        try:
            self._ring()
        except (BlockingIOError, FileNotFoundError):
            return  # another process filled it meanwhile, which is a ring, or no loop listens
        except (OSError, ShmaccumError) as error:  # results are recorded; loops find them within a second
            self._arena.native.record_error(f"the results bell cannot be rung: {error}")

    def _ring(self) -> None:
        if self._descriptor is not None and not is_fifo_at(self._path, self._descriptor) and os.path.exists(self._path):
            self.close()  # a loop has made another one
        if self._descriptor is None:
            self._descriptor = open_fifo(self._path, self._arena)
        clear_fifo(self._descriptor)
        os.write(self._descriptor, b"\0")

    def close(self) -> None:
        """Lets go of it; the next ring opens it again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class ResultsListener:
    """A loop's end: a descriptor that is readable after a ring. Makes the FIFO when it is missing.

    Args:
        arena: attached; its results are listened for.

    Raises:
        ArenaForbiddenError: something else has the FIFO's name, or this user may not make one there.
        OSError: it cannot be made or opened.
    """

    def __init__(self, arena: Arena) -> None:
        path = ArenaFile.parse(arena.name).results_bell(arena.uuid)
        make_fifo(path, arena)
        descriptor = open_fifo(path, arena)
        self._arena, self._path, self._descriptor = arena, path, descriptor
        self._end = weakref.finalize(self, os.close, descriptor)
        unlink_orphan(path, arena)
        self._epoll = select.epoll(1)
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)  # B1

    def fileno(self) -> int:
        """The descriptor to wait for."""
        return self._epoll.fileno()

    def look(self) -> None:
        """Makes the FIFO anew when somebody removed or replaced it; call it now and then.

        Raises:
            ArenaForbiddenError, OSError: it cannot be made.
        """
        if is_fifo_at(self._path, self._descriptor) or not self._arena.is_linked():
            return
        make_fifo(self._path, self._arena)
        descriptor = open_fifo(self._path, self._arena)
        self._epoll.register(descriptor, select.EPOLLIN | select.EPOLLET)
        self._end()
        self._descriptor, self._end = descriptor, weakref.finalize(self, os.close, descriptor)

    def take_ring(self) -> None:
        """Takes the edge, so that the descriptor is readable at the next ring again."""
        self._epoll.poll(0)

    def close(self) -> None:
        """Lets go of both descriptors, as the end of the object does."""
        self._epoll.close()
        self._end()
