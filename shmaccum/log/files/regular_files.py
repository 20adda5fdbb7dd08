# SPDX-License-Identifier: Apache-2.0
"""Open the files of a log directory safely, whatever kind of file has their names.

Opening a FIFO blocks until another process opens its other end, and reading it blocks until a process writes. Reading a
device may never end. So every file of a log is opened by `open_regular`, without blocking. A file that is not regular
is rejected with an error message. Readers follow a symbolic link to a regular file; writers add ``O_NOFOLLOW``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from shmaccum.exceptions import NotARegularFileError
from shmaccum.log.files.permissions import follow, mode_in

CREATE_TRIES = 3
NO_REGULAR_FILES = {errno.ENXIO, errno.EISDIR}
"""The errors of opening a socket, a FIFO without a reader, or a folder for writing."""


def open_regular(path: str, flags: int) -> int:
    """Return a descriptor of a regular file. Also usable as the ``opener`` of `open`.

    Raises:
        NotARegularFileError: if it is not a regular file.
        OSError: if it cannot be opened.
    """
    descriptor = _open_at_once(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NotARegularFileError(path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _open_at_once(path: str, flags: int) -> int:
    try:
        return _open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in NO_REGULAR_FILES:
            raise NotARegularFileError(path) from None
        raise


def _open(path: str, flags: int) -> int:
    """Open a file. A new file gets the permissions of its folder (permissions.py)."""
    for _ in range(CREATE_TRIES if flags & os.O_CREAT else 0):
        with contextlib.suppress(FileExistsError):
            return _open_new(path, flags)
        if flags & os.O_EXCL:
            break
        with contextlib.suppress(FileNotFoundError):  # another process has removed it meanwhile
            return os.open(path, flags & ~os.O_CREAT)
    return os.open(path, flags)


def _open_new(path: str, flags: int) -> int:
    folder = os.stat(os.path.dirname(path) or ".")
    descriptor = os.open(path, flags | os.O_EXCL, mode_in(folder))
    follow(descriptor, folder)
    return descriptor


def is_file_at(path: str, descriptor: int) -> bool:
    """True if the path names the open file. False for a closed descriptor, and after the file was removed."""
    return descriptor >= 0 and is_opened_at(path, os.fstat(descriptor))


def is_opened_at(path: str, opened: os.stat_result) -> bool:
    """As `is_file_at`, but with the status of the open file, whose identity does not change."""
    try:
        return os.path.samestat(os.lstat(path), opened)
    except FileNotFoundError:
        return False
