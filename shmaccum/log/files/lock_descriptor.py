# SPDX-License-Identifier: Apache-2.0
"""A descriptor with OFD locks. The kernel releases them with its last copy, so a forked child closes its copy at once.

A child never unlocks, because that would release the parent's lock. A failed close has closed the descriptor anyway.
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
        number: the descriptor, or -1 before `open`, after `close`, and in a forked child.
    """

    def __init__(self) -> None:
        self.number = -1
        _open.add(self)

    def open(self, path: str) -> None:
        """Open the file, and create it if necessary.

        Raises:
            NotARegularFileError: if it is not a regular file.
            OSError: if it cannot be opened for writing.
        """
        self.number = open_regular(path, FLAGS)

    def lock_folder(self, path: str) -> bool:
        """Open a folder and lock it with flock; return False if another descriptor has the lock.

        A file system that cannot lock folders gives no protection, and no error.

        Raises:
            OSError: if it cannot be opened.
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
        """True if the path leads to the open folder."""
        try:
            return self.is_open and os.path.samestat(os.stat(path), os.fstat(self.number))
        except FileNotFoundError:
            return False

    @property
    def is_open(self) -> bool:
        """False before `open`, after `close`, and in a forked child."""
        return self.number >= 0

    def set(self, kind: int, byte: int, size: int) -> bool:
        """Lock or unlock bytes; return False if another descriptor has locked one of them.

        Args:
            kind: F_RDLCK, F_WRLCK or F_UNLCK.
            byte: the first byte.
            size: the number of bytes, or 0 for all bytes from the first on.
        """
        try:
            fcntl.fcntl(self.number, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, byte, size, 0))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def kind_at(self, byte: int) -> int:
        """The kind of another descriptor's lock on a byte, or F_UNLCK."""
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
        found: int = FLOCK.unpack(fcntl.fcntl(self.number, fcntl.F_OFD_GETLK, asked))[0]
        return found

    def close(self) -> None:
        """Close the descriptor. A second call does nothing."""
        number, self.number = self.number, -1
        if number >= 0:
            os.close(number)


def _close_in_child() -> None:
    for descriptor in list(_open):
        with contextlib.suppress(OSError):
            descriptor.close()


os.register_at_fork(after_in_child=_close_in_child)
