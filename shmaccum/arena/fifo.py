# SPDX-License-Identifier: Apache-2.0
"""The FIFOs beside an arena: how one is made for all who share the arena, and opened with a check of its owner.

Both ends open a FIFO for reading and writing, which never blocks and never raises SIGPIPE in a process that writes to
one whose reader has just died.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

from shmaccum.arena.file import ArenaFile
from shmaccum.arena.trust import is_companion
from shmaccum.exceptions import ArenaForbiddenError

if TYPE_CHECKING:
    from shmaccum.arena import Arena

OPEN_FLAGS = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
CLEAR_SIZE = 65536


def open_fifo(path: str, arena: Arena) -> int:
    """The FIFO, checked: a stranger's would be a way to keep its reader awake or asleep (arena/trust.py).

    Raises:
        OSError: it is not there, or cannot be opened.
        ArenaForbiddenError: it is no FIFO, or of a user who does not share the arena.
    """
    descriptor = os.open(path, OPEN_FLAGS)
    try:
        found = os.fstat(descriptor)
        if not (stat.S_ISFIFO(found.st_mode) and is_companion(found, arena.permissions)):
            raise ArenaForbiddenError(
                f"{path} is no FIFO of a user who shares the arena, it belongs to user {found.st_uid}: let root remove "
                "it"
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_fifo_at(path: str, descriptor: int) -> bool:
    """True when the path leads to the FIFO that is open."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


class FifoEnd:
    """A FIFO that is open as long as somebody refers to it: one thread may replace it while another one writes.

    Args:
        path: of the FIFO.
        arena: the one that it belongs to.

    Raises:
        OSError: it is not there, or cannot be opened.
        ArenaForbiddenError: it is no FIFO, or another user's.
    """

    descriptor = -1

    def __init__(self, path: str, arena: Arena) -> None:
        self.descriptor = open_fifo(path, arena)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def make_fifo(path: str, arena: Arena) -> None:
    """Makes the FIFO, unless it is there, with the arena's group, and with its mode but for execution.

    A maker that died in between left a FIFO that others may not open. So a FIFO of this user is shared again.

    Raises:
        ArenaForbiddenError: this user may not write into the folder.
        OSError: the file system has no FIFOs.
    """
    try:
        os.mkfifo(path, arena.mode & 0o666)
    except FileExistsError:
        ArenaFile.parse(arena.name).share_again(path)
        return
    except PermissionError:
        raise ArenaForbiddenError(
            f"user {os.geteuid()} may not make the doorbell {path}: let that user write into the folder"
        ) from None
    try:
        ArenaFile.parse(arena.name).share(path)
    except OSError:
        os.unlink(path)  # the next process would keep it as it is
        raise


def clear_fifo(descriptor: int) -> bool:
    """Takes all bytes out; True when there were any."""
    has_rung = False
    with contextlib.suppress(BlockingIOError):
        while len(os.read(descriptor, CLEAR_SIZE)) == CLEAR_SIZE:
            has_rung = True
        return True
    return has_rung


def unlink_orphan(path: str, arena: Arena) -> None:
    """Takes a FIFO away when the arena's name is gone: no other process would."""
    if not arena.is_linked():
        with contextlib.suppress(FileNotFoundError, PermissionError):  # another user's
            os.unlink(path)
