# SPDX-License-Identifier: Apache-2.0
"""The arenas of this host: those in shared memory, and the files that living processes have mapped.

The kernel has no list of arenas. Those in shared memory lie in one folder. A file may lie anywhere, but a process that
uses it has it mapped. A file that no process uses, or that only processes of another user use, is not found.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from shmaccum.arena.creation import is_private_name
from shmaccum.arena.file import SHARED_MEMORY, is_arena

SHARED_MODES = (b" rw-s ", b" r--s ")
"""The permissions of a mapping that is shared, as /proc/PID/maps writes them."""


def arena_names() -> list[str]:
    """The names and paths of the arenas of this host that this user can read, in order; names first."""
    paths = {path for pid in os.listdir("/proc") if pid.isdecimal() for path in _mapped_by(pid)}
    mapped_files = {path for path in paths if is_arena(path) and not is_private_name(os.path.basename(path))}
    return [*sorted(_in_shared_memory()), *sorted(mapped_files)]


def _in_shared_memory() -> Iterator[str]:
    with os.scandir(SHARED_MEMORY) as entries:
        for entry in entries:
            if is_arena(entry.path) and not is_private_name(entry.name):
                yield entry.name


def _mapped_by(pid: str) -> set[str]:
    """The files outside of shared memory that a process shares with others; none when it is gone or another user's."""
    try:
        with open(f"/proc/{pid}/maps", "rb") as stream:
            lines = [line for line in stream if any(mode in line for mode in SHARED_MODES)]
    except OSError:
        return set()
    fields = (line.rstrip(b"\n").split(maxsplit=5) for line in lines)
    paths = {os.fsdecode(field[5]) for field in fields if len(field) == 6}
    return {path for path in paths if path.startswith("/") and not path.startswith((f"{SHARED_MEMORY}/", "/dev/"))}
