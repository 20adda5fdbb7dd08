# SPDX-License-Identifier: Apache-2.0
"""The stamp of a file, by which servers and senders detect changes of keys, certificates and users."""

from __future__ import annotations

import os

Stamp = tuple[int, int, int, int] | None
"""Inode, size and change times of a file. None if it does not exist."""


def stamp(path: str | None) -> Stamp:
    """Return a value that changes with the contents of the file."""
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
