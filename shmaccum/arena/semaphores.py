# SPDX-License-Identifier: Apache-2.0
"""The semaphores of processes that wait for a buffer: one for each waiter entry of an arena.

The first waiter in an entry creates its semaphore. The core opens, posts and sleeps on them
(native/arena/waiter_semaphores.h). A semaphore is a hint, and the waiter word in the arena is the truth. So a semaphore
that is missing, was posted too often, or whose poster was killed costs its waiter at most one slice of its sleep
(producer/buffer_wait.py).
"""

from __future__ import annotations

import contextlib

from shmaccum.arena.arena import Arena, remove_companions, semaphore_name
from shmaccum.arena.file import ArenaFile
from shmaccum.arena.named_objects import SHARED_MEMORY, create_semaphore, unlink_semaphore
from shmaccum.exceptions import ArenaClosedError


def make_semaphore(arena: Arena, waiter_index: int) -> None:
    """Creates a waiter's semaphore if it is missing. A wait works without it, so errors are only recorded."""
    try:
        _make(arena, semaphore_name(arena.uuid, waiter_index))
    except OSError as error:
        arena.native.record_error(f"no semaphore to wait on: {error}")


def _make(arena: Arena, name: str) -> None:
    """Creates a semaphore that all users of the arena may use, whatever this process's umask and group are."""
    file, path = ArenaFile.parse(arena.name), f"{SHARED_MEMORY}/sem.{name[1:]}"
    try:
        create_semaphore(name, arena.mode & 0o666)
    except FileExistsError:
        file.share_again(path)
        return
    try:
        file.share(path)
    except OSError:
        unlink_semaphore(name)  # a semaphore that is not shared must not remain
        raise


def remove_orphans(arena: Arena) -> None:
    """Removes the semaphores and other companions of an arena whose name is gone or whose file was truncated.

    Their names contain the uuid, which only the attached processes still know. The next process that detaches removes
    the companions that a killed process has created. If the file is intact, and only this process has lost a page of
    it, other processes still use the companions, and they are not removed.
    """
    native = arena.native
    with contextlib.suppress(ArenaClosedError):  # the thread that closed the arena has removed them
        if (native.is_lost or native.opened_semaphores) and not arena.is_linked():
            remove_companions(ArenaFile.parse(arena.name), arena.uuid, arena.geometry["waiter_count"])
