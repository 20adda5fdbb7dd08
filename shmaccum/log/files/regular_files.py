# SPDX-License-Identifier: Apache-2.0
"""Opening files of a log directory, whatever somebody may have put in their places.

Opening a FIFO blocks until another process opens its other end, and reading it until one writes; a device may never
end. So every file of a log is opened by `open_regular`, without waiting, and a file that is not regular is refused
with a sentence. A symbolic link is followed to read, to a regular file; writers add ``O_NOFOLLOW``.
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
"""Errors of opening a socket, a FIFO without a reader, and a folder that is to be written."""


def open_regular(path: str, flags: int) -> int:
    """A descriptor of a regular file; also the ``opener`` of an `open`.

    Raises:
        NotARegularFileError: it is something else.
        OSError: it cannot be opened.
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
    """A new file has the permissions of its folder (permissions.py)."""
    for _ in range(CREATE_TRIES if flags & os.O_CREAT else 0):
        with contextlib.suppress(FileExistsError):
            return _open_new(path, flags)
        if flags & os.O_EXCL:
            break
        with contextlib.suppress(FileNotFoundError):  # somebody has removed it since
            return os.open(path, flags & ~os.O_CREAT)
    return os.open(path, flags)


def _open_new(path: str, flags: int) -> int:
    folder = os.stat(os.path.dirname(path) or ".")
    descriptor = os.open(path, flags | os.O_EXCL, mode_in(folder))
    follow(descriptor, folder)
    return descriptor


def is_file_at(path: str, descriptor: int) -> bool:
    """True when the path names the file that is open; False for a closed descriptor, and after the file was removed."""
    if descriptor < 0:
        return False
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
