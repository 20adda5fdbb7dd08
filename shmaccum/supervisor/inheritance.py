# SPDX-License-Identifier: Apache-2.0
"""The inheritance of a daemon from the process that starts it: the places of its code, and the umask of its files.

The daemon has to import the very ``shmaccum`` of its parent, and the dependencies that the parent finds: a parent may
have them from a vendored folder, a PEX, or the ``pythonpath`` of uWSGI, which the interpreter alone does not know. It
must not import from a folder in which another user can plant a module. So it gets the folder of the package, and those
folders of the parent's ``sys.path`` that are safe (`is_safe`), without the working folder and the program's own one.
Modules of a program that have the name of a library cannot take its place in the daemon.
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
    """The folder that has the package ``shmaccum`` of this process. The daemon runs the same code as its parent."""
    return os.path.dirname(os.path.dirname(os.path.abspath(shmaccum.__file__)))


def daemon_path() -> list[str]:
    """The folders and archives for a daemon's ``sys.path``, in the order of this process."""
    return list(dict.fromkeys(_safe_entries()))


def _safe_entries() -> Iterator[str]:
    root = package_root()
    avoided = set(_folders_of_the_program()) - {root}
    entries: list[object] = [*sys.path]  # Python ignores those of another type
    for entry in entries:
        if isinstance(entry, str) and os.path.isabs(entry):
            place = os.path.normpath(entry)
            if place not in avoided and os.path.exists(place) and is_safe(place):
                yield place


def _folders_of_the_program() -> Iterator[str]:
    with contextlib.suppress(OSError):  # it was removed
        yield os.getcwd()
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(program, str) and os.path.isdir(folder := os.path.dirname(os.path.abspath(program))):
        yield folder  # an archive (zipapp, PEX) is no folder: it has the dependencies of the program, too


def is_safe(place: str) -> bool:
    """True when nobody can change a folder or file, or put another one in its place, but this user, root, and the owner
    of the package, whose code runs here in any case."""
    trusted = {ROOT_USER, os.geteuid(), os.stat(shmaccum.__file__).st_uid}
    place = os.path.realpath(place)
    found = os.stat(place)
    if found.st_uid not in trusted or _may_others_write(found):
        return False
    return all(_is_safe_above(os.stat(above), trusted) for above in Path(place).parents)


def _is_safe_above(found: os.stat_result, trusted: set[int]) -> bool:
    """Names in a folder with the sticky bit are their owners' alone."""
    return found.st_uid in trusted and (bool(found.st_mode & stat.S_ISVTX) or not _may_others_write(found))


def _may_others_write(found: os.stat_result) -> bool:
    if found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and not _is_private_group(found)


def _is_private_group(found: os.stat_result) -> bool:
    """True for root's group, and for a group of the owner alone, which many systems make with each user."""
    if found.st_gid == ROOT_GROUP:
        return True
    try:
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    return owner.pw_gid == found.st_gid and owner.pw_name == group.gr_name and set(group.gr_mem) <= {owner.pw_name}


def daemon_umask(arena_mode: int) -> int:
    """The umask of files that only their owner writes, and that as many users read as the arena."""
    return OWNER_WRITES | (0o055 & ~(arena_mode | (arena_mode & 0o444) >> 2))
