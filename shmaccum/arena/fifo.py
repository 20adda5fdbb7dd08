# SPDX-License-Identifier: Apache-2.0
"""The FIFOs beside an arena: created for all users of the arena, and opened with a check of the owner.

Both ends open a FIFO for reading and writing. That never blocks, and never raises SIGPIPE in a writer whose reader has
just died.
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
ATTEMPT_COUNT = 10


def open_fifo(path: str, arena: Arena) -> int:
    """Opens a FIFO and checks its owner, because another user could keep the reader awake or asleep (arena/trust.py).

    Raises:
        OSError: it does not exist, or cannot be opened.
        ArenaForbiddenError: it is not a FIFO, or belongs to a user who does not share the arena.
    """
    descriptor = os.open(path, OPEN_FLAGS)
    try:
        found = os.fstat(descriptor)
        if not (stat.S_ISFIFO(found.st_mode) and is_companion(found, arena.permissions)):
            raise ArenaForbiddenError(
                f"{path} belongs to user {found.st_uid} and is not a FIFO of a user who shares the arena: let root "
                "remove it"
            )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def make_and_open_fifo(path: str, arena: Arena) -> int:
    """Creates the FIFO if it is missing, and opens it.

    A process that removes unused FIFOs (arena/dead_companions.py) may remove it in between.

    Raises:
        ArenaForbiddenError, OSError: as `make_fifo` and `open_fifo`.
    """
    for _ in range(ATTEMPT_COUNT - 1):
        make_fifo(path, arena)
        with contextlib.suppress(FileNotFoundError):
            return open_fifo(path, arena)
    make_fifo(path, arena)
    return open_fifo(path, arena)


def is_fifo_at(path: str, descriptor: int) -> bool:
    """True if the path refers to the open FIFO."""
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except FileNotFoundError:
        return False


class FifoEnd:
    """A FIFO that stays open as long as a thread refers to this object. Another thread may replace it meanwhile.

    Args:
        path: the path of the FIFO.
        arena: the arena that it belongs to.

    Raises:
        OSError: it does not exist, or cannot be opened.
        ArenaForbiddenError: it is not a FIFO, or another user's.
    """

    descriptor = -1

    def __init__(self, path: str, arena: Arena) -> None:
        self.descriptor = open_fifo(path, arena)

    def __del__(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)


def make_fifo(path: str, arena: Arena) -> None:
    """Creates the FIFO if it is missing, with the arena's group, and with its mode without execution.

    A creator that died midway left a FIFO that others may not open. So an existing FIFO of this user is shared again.

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
            f"user {os.geteuid()} may not create the FIFO {path}: let that user write into the folder"
        ) from None
    try:
        ArenaFile.parse(arena.name).share(path)
    except OSError:
        os.unlink(path)  # a FIFO that is not shared must not remain
        raise


def clear_fifo(descriptor: int) -> bool:
    """Reads all bytes. Returns True if there were any."""
    has_rung = False
    with contextlib.suppress(BlockingIOError):
        while len(os.read(descriptor, CLEAR_SIZE)) == CLEAR_SIZE:
            has_rung = True
        return True
    return has_rung


def unlink_orphan(path: str, arena: Arena) -> None:
    """Removes a FIFO if the arena's name is gone, because no other process would."""
    if not arena.is_linked():
        with contextlib.suppress(FileNotFoundError, PermissionError):  # another user's
            os.unlink(path)
