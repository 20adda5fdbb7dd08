# SPDX-License-Identifier: Apache-2.0
"""The stamp of a file: a server reads its keys and users again when theirs changes."""

from __future__ import annotations

import os

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
