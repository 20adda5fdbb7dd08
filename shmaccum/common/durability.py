# SPDX-License-Identifier: Apache-2.0
"""The levels at which records survive a power cut, and names that survive it.

::

    arena      process  <  interval  <  sync
    log        none     <  interval  <  batch
    Kafka      acks=0, acks=1        <  acks=all

Rules
    If a record moves from one store to another, the receiver's level is at least the giver's. An unset level of a log
    follows the giver. A lower level is rejected. Lower acks cause a warning.
    The giver keeps the record until the receiver has forced it to disk.
    The position up to which a giver was read is on disk after the records before it, never earlier.
    A file survives if its content and each name in its path are on disk: `sync_path`.
"""

from __future__ import annotations

import contextlib
import os

ARENA_LEVELS = ("process", "interval", "sync")
LOG_LEVELS = ("none", "interval", "batch")


def log_level_of(durability: str) -> str:
    """Return the level of a log that loses no more records than an arena with this durability."""
    return LOG_LEVELS[ARENA_LEVELS.index(durability)]


def is_lower(sync: str, durability: str) -> bool:
    """Return True if a log of this level may lose more records than an arena with this durability."""
    return LOG_LEVELS.index(sync) < ARENA_LEVELS.index(durability)


def sync_folder(path: str) -> None:
    """Make the names in a folder survive a crash of the host."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_path(path: str) -> None:
    """Make every name on the way to a file or folder survive a crash of the host.

    The process that made a folder may have died before it synced the parent. So every folder up to the mount point is
    synced. A folder that this user may not read is skipped.

    Raises:
        OSError: a folder could not be synced.
    """
    folder = os.path.dirname(os.path.realpath(path))
    device = os.stat(folder).st_dev
    while True:
        with contextlib.suppress(PermissionError):
            sync_folder(folder)
        parent = os.path.dirname(folder)
        if parent == folder or os.stat(parent).st_dev != device:
            return
        folder = parent
