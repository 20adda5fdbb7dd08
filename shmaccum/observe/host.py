# SPDX-License-Identifier: Apache-2.0
"""The arenas on this host: those in shared memory, and the files mapped by running processes.

The kernel has no list of arenas. Shared-memory arenas are in one folder. An arena file may be anywhere, but every
process that uses it maps it. A file is not found if no process uses it, or only processes of another user.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from shmaccum.arena.creation import is_private_name
from shmaccum.arena.file import is_arena
from shmaccum.arena.named_objects import SHARED_MEMORY

SHARED_MODES = (b" rw-s ", b" r--s ")
"""The permissions of shared mappings in /proc/PID/maps."""


def arena_names() -> list[str]:
    """Return the names, then the paths, of the arenas that this user can read, each sorted."""
    paths = {path for pid in os.listdir("/proc") if pid.isdecimal() for path in _mapped_by(pid)}
    mapped_files = {path for path in paths if is_arena(path) and not is_private_name(os.path.basename(path))}
    return [*sorted(_in_shared_memory()), *sorted(mapped_files)]


def _in_shared_memory() -> Iterator[str]:
    with os.scandir(SHARED_MEMORY) as entries:
        for entry in entries:
            if is_arena(entry.path) and not is_private_name(entry.name):
                yield entry.name


def _mapped_by(pid: str) -> set[str]:
    """Return the shared mappings of a process outside shared memory, or none if it has ended or is another user's."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as stream:
            lines = [line for line in stream if any(mode in line for mode in SHARED_MODES)]
    except OSError:
        return set()
    fields = (line.rstrip(b"\n").split(maxsplit=5) for line in lines)
    paths = {os.fsdecode(field[5]) for field in fields if len(field) == 6}
    return {path for path in paths if path.startswith("/") and not path.startswith((f"{SHARED_MEMORY}/", "/dev/"))}
