# SPDX-License-Identifier: Apache-2.0
"""The semaphores of processes that wait for a buffer: one for each waiter entry of an arena.

A waiter makes its semaphore when it is the first one in its entry. The core opens, posts and sleeps on them
(native/arena/waiter_semaphores.h). A semaphore is a hint, the waiter word in the arena is the truth. So a semaphore
that is missing, was posted too often, or whose poster was killed costs its waiter at most one slice of its sleep
(producer/buffer_wait.py).
"""

from __future__ import annotations

import posix_ipc

from shmaccum.arena.arena import Arena, remove_companions, semaphore_name
from shmaccum.arena.file import SHARED_MEMORY, ArenaFile


def make_semaphore(arena: Arena, waiter_index: int) -> None:
    """Makes the semaphore of a waiter, unless it is there. Without one slices are enough: that is noted, not raised."""
    try:
        _make(arena, semaphore_name(arena.uuid, waiter_index))
    except (OSError, posix_ipc.Error) as error:
        arena.native.record_error(f"no semaphore to wait on: {error}")


def _make(arena: Arena, name: str) -> None:
    """A semaphore that all who share the arena may use: the kernel makes it by this process's umask and group."""
    file, path = ArenaFile.parse(arena.name), f"{SHARED_MEMORY}/sem.{name[1:]}"
    try:
        posix_ipc.Semaphore(name, posix_ipc.O_CREX, mode=arena.mode & 0o666).close()
    except posix_ipc.ExistentialError:
        file.share_again(path)
        return
    try:
        file.share(path)
    except OSError:
        posix_ipc.unlink_semaphore(name)  # the next waiter would keep it as it is
        raise


def remove_orphans(arena: Arena) -> None:
    """Removes the semaphores and the other companions of an arena whose name is gone or whose file was cut.

    Only its processes know the uuid then, which is a part of the names. Those that a killed process has made are
    removed by the next process that leaves. Where the file is whole, and only this process has lost a page of it,
    others go on with them.
    """
    native = arena.native
    if (native.is_lost or native.opened_semaphores) and not arena.is_linked():
        remove_companions(ArenaFile.parse(arena.name), arena.uuid, arena.geometry["waiter_count"])
