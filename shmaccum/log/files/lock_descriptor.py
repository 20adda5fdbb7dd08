# SPDX-License-Identifier: Apache-2.0
"""A descriptor with OFD locks: the kernel frees them with its last copy, so a forked child closes its copy at once.

A child never unlocks, because an unlock frees the parent's lock. A close that fails has closed all the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import weakref
from typing import final

from shmaccum.log.files.regular_files import open_regular

FLOCK = struct.Struct("hhqqi4x")
FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW

_open: weakref.WeakSet[LockDescriptor] = weakref.WeakSet()


@final
class LockDescriptor:
    """The descriptor of a lock file.

    Attributes:
        number: of the descriptor; -1 before `open`, after `close`, and in a forked child.
    """

    def __init__(self) -> None:
        self.number = -1
        _open.add(self)

    def open(self, path: str) -> None:
        """Opens the file, which is made if need be.

        Raises:
            NotARegularFileError: it is something else.
            OSError: it cannot be opened for writing.
        """
        self.number = open_regular(path, FLAGS)

    def lock_folder(self, path: str) -> bool:
        """Opens a folder and locks it as a whole (flock); False when another descriptor has it.

        A file system that locks no folders gives no protection, and no error.

        Raises:
            OSError: it cannot be opened.
        """
        self.number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            pass  # a network file system
        return True

    def is_folder(self, path: str) -> bool:
        """True when the path leads to the open folder."""
        try:
            return self.is_open and os.path.samestat(os.stat(path), os.fstat(self.number))
        except FileNotFoundError:
            return False

    @property
    def is_open(self) -> bool:
        """False before `open`, after `close`, and in a forked child."""
        return self.number >= 0

    def set(self, kind: int, byte: int, size: int) -> bool:
        """Locks or unlocks bytes; False when another descriptor has one of them.

        Args:
            kind: F_RDLCK, F_WRLCK or F_UNLCK.
            byte: the first one.
            size: how many; 0 for all that follow.
        """
        try:
            fcntl.fcntl(self.number, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, byte, size, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def kind_at(self, byte: int) -> int:
        """The kind of another descriptor's lock on one byte; F_UNLCK when there is none."""
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        found: int = FLOCK.unpack(fcntl.fcntl(self.number, fcntl.F_OFD_GETLK, asked))[0]
        return found

    def close(self) -> None:
        """Closes the descriptor. Doing it twice does nothing."""
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)


def _let_go_in_child() -> None:
    for descriptor in list(_open):
        with contextlib.suppress(OSError):
            descriptor.close()


os.register_at_fork(after_in_child=_let_go_in_child)
