# SPDX-License-Identifier: Apache-2.0
"""Files that a server reads again when they change, and that no other user may read: keys and users."""

from __future__ import annotations

import os
import stat

from shmaccum.exceptions import InvalidArgumentError
from shmaccum.segment_log.regular_files import open_regular

FOREIGN_ACCESS = stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP

Stamp = tuple[int, int, int, int] | None
"""Inode, size and times of change of a file; None: it is not there."""


def stamp(path: str | None) -> Stamp:
    """The identity of a file's content."""
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def refuse_open_secret(path: str, purpose: str) -> None:
    """Refuses a file of secrets that other users may read, or that they may change.

    Raises:
        InvalidArgumentError: the mode of the file is too wide, or the file cannot be opened.
    """
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except OSError as error:
        raise InvalidArgumentError(f"the {purpose} {path} cannot be opened: {error.strerror or error}") from None
    try:
        mode = os.fstat(descriptor).st_mode
    finally:
        os.close(descriptor)
    if mode & (FOREIGN_ACCESS):
        raise InvalidArgumentError(
            f"the {purpose} {path} has mode {stat.S_IMODE(mode):04o}, so other users can read or change it: "
            f"run chmod 0600 {path}"
        )
