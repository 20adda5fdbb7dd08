# SPDX-License-Identifier: Apache-2.0
"""The folders of a daemon's code, and the umask of its files, which it inherits from the process that starts it.

The daemon has to import the same ``shmaccum`` as its parent, and the same dependencies. The parent may have them from a
vendored folder, a PEX, or the ``pythonpath`` of uWSGI, which the interpreter alone does not know. The daemon must not
import from a folder in which another user can plant a module. So it gets the folder of the package, and the safe
folders (`is_safe`) of the parent's ``sys.path``, except for the working folder and the program's own folder. So a
module of the program cannot shadow a library in the daemon.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import shmaccum

ROOT_USER = ROOT_GROUP = 0
OWNER_WRITES = 0o022


def package_root() -> str:
    """Return the folder with this process's package ``shmaccum``. The daemon runs the same code as its parent."""
    return os.path.dirname(os.path.dirname(os.path.abspath(shmaccum.__file__)))


def daemon_path() -> list[str]:
    """Return the folders and archives for a daemon's ``sys.path``, in the order of this process."""
    return list(dict.fromkeys(_safe_entries()))


def _safe_entries() -> Iterator[str]:
    root = package_root()
    avoided = set(_folders_of_the_program()) - {root}
    entries: list[object] = [*sys.path]  # Python ignores entries of another type
    for entry in entries:
        if isinstance(entry, str) and os.path.isabs(entry):
            place = os.path.normpath(entry)
            if place not in avoided and os.path.exists(place) and is_safe(place):
                yield place


def _folders_of_the_program() -> Iterator[str]:
    with contextlib.suppress(OSError):  # the folder was removed
        yield os.getcwd()
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(program, str) and os.path.isdir(folder := os.path.dirname(os.path.abspath(program))):
        yield folder  # not for an archive (zipapp, PEX), which also has the dependencies of the program


def is_safe(place: str) -> bool:
    """True if a folder or file can be changed or replaced only by this user, by root, and by the owner of the package,
    whose code runs here in any case."""
    trusted = {ROOT_USER, os.geteuid(), os.stat(shmaccum.__file__).st_uid}
    place = os.path.realpath(place)
    found = os.stat(place)
    if found.st_uid not in trusted or _may_others_write(found):
        return False
    return all(_is_safe_above(os.stat(above), trusted) for above in Path(place).parents)


def _is_safe_above(found: os.stat_result, trusted: set[int]) -> bool:
    """True if no other user can replace names in the folder. The sticky bit protects names of other owners."""
    return found.st_uid in trusted and (bool(found.st_mode & stat.S_ISVTX) or not _may_others_write(found))


def _may_others_write(found: os.stat_result) -> bool:
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_private_group(found)


def _is_private_group(found: os.stat_result) -> bool:
    """True for root's group, and for a group with the owner as only member, which many systems create per user."""
    if found.st_gid == ROOT_GROUP:
        return True
    try:
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == found.st_gid and owner.pw_name == group.gr_name and set(group.gr_mem) <= {owner.pw_name}


def daemon_umask(arena_mode: int) -> int:
    """Return the umask for files that only their owner writes, and that the same users read as the arena."""
    return OWNER_WRITES | (0o055 & ~(arena_mode | (arena_mode & 0o444) >> 2))
