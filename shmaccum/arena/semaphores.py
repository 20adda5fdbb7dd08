# SPDX-License-Identifier: Apache-2.0
"""The semaphores of processes that wait for a buffer: one for each waiter entry of an arena.

A semaphore is a hint, the waiter word in the arena is the truth. So a semaphore that is missing, was posted too often,
or whose poster was killed costs its waiter at most one slice of its sleep (producer/buffer_pool.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import posix_ipc

from shmaccum.arena.arena import Arena, semaphore_name
from shmaccum.arena.file import SHARED_MEMORY, ArenaFile


class WaiterSemaphores:
    """The semaphores that this process has opened, by waiter index.

    Args:
        arena: whose waiters they wake; it stays its owner's.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._uuid = arena.uuid
        self._semaphores: dict[int, posix_ipc.Semaphore] = {}

    def own(self, waiter_index: int) -> posix_ipc.Semaphore | None:
        """The semaphore to sleep on, without old posts; None where the system has no more: slices are enough."""
        semaphore = self._semaphores.get(waiter_index)
        try:
            if semaphore is None:
                semaphore = self._made_or_found(semaphore_name(self._uuid, waiter_index))
                self._semaphores[waiter_index] = semaphore
            with contextlib.suppress(posix_ipc.BusyError):
                while True:
                    semaphore.acquire(0)
        except (OSError, posix_ipc.Error) as error:
            self._arena.native.record_error(f"no semaphore to wait on: {error}")
            return None
        return semaphore

    def _made_or_found(self, name: str) -> posix_ipc.Semaphore:
        """A semaphore that all who share the arena may use: the kernel makes it by this process's umask and group."""
        try:
            semaphore = posix_ipc.Semaphore(name, posix_ipc.O_CREX, mode=self._arena.mode & 0o666)
        except posix_ipc.ExistentialError:
            return posix_ipc.Semaphore(name)
        try:
            ArenaFile.parse(self._arena.name).share(f"{SHARED_MEMORY}/sem.{name[1:]}")
        except OSError:
            semaphore.close()
            posix_ipc.unlink_semaphore(name)  # the next waiter would keep it as it is
            raise
        return semaphore

    def wake(self, waiter_indices: Iterable[int]) -> None:
        """Posts the semaphores of waiters that were served. No waiter sleeps on a semaphore that is missing."""
        for waiter_index in waiter_indices:
            semaphore = self._semaphores.get(waiter_index)
            try:
                if semaphore is None:
                    semaphore = posix_ipc.Semaphore(semaphore_name(self._uuid, waiter_index))
                    self._semaphores[waiter_index] = semaphore
                semaphore.release()
            except (OSError, posix_ipc.Error):
                self._semaphores.pop(waiter_index, None)

    def close(self) -> None:
        """Closes the semaphores, and removes those of an arena whose name is gone: no other process does so."""
        is_linked = not self._semaphores or self._arena.is_linked()
        for semaphore in self._semaphores.values():
            semaphore.close()
            if not is_linked:
                with contextlib.suppress(posix_ipc.ExistentialError, posix_ipc.PermissionsError):  # another user's
                    posix_ipc.unlink_semaphore(semaphore.name)
        self._semaphores.clear()
