# SPDX-License-Identifier: Apache-2.0
"""The permissions of a log: those of its folder, which a sender creates with the permissions of its arena.

**Everything in a log gets the group and mode of its folder.** A sender creates the folder of a log, an overflow or dead
letters with the group and mode of its arena: 0700 for an arena of one user, 0770 for one that a group shares. The
mode of an existing folder is not changed, and new files in it follow it, so an administrator controls access to a log
by its folder. The umask restricts as usual, except in a folder that a group may write: then the group may write the
files, too. New files do not follow a folder that every user may write, such as /tmp. A folder in it that belongs to
another user is rejected.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat

from shmaccum.exceptions import LogForbiddenError

logger = logging.getLogger("shmaccum.log.files")

FILE = 0o666
FOLDER = 0o2777
DEFAULT_FILE, DEFAULT_FOLDER = 0o644, 0o755
GROUP_WRITES = 0o020
ROOT = 0
READS = 0o444
OTHERS = 0o077


def folder_mode(arena_mode: int) -> int:
    """The mode of a folder for the users of an arena: those who may read may also list the folder."""
    mode = arena_mode & FILE
    return mode | (mode & READS) >> 2


def make_folder_of_arena(path: str, arena: tuple[int, int, int]) -> None:
    """Create the folder of a log for the users of an arena. Log a warning if an existing one admits more users.

    Args:
        path: the path of the folder.
        arena: the user, group and mode of the arena (`Arena.permissions`).

    Raises:
        LogForbiddenError: if another user created it, in a folder that every user may write.
        OSError: if it cannot be created.
    """
    owner, group, arena_mode = arena
    mode = folder_mode(arena_mode)
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        status = os.stat(path)
        is_of_group = bool(arena_mode & GROUP_WRITES) and status.st_gid == group
        is_known = status.st_uid in {os.geteuid(), ROOT, owner} or is_of_group
        if not is_known and os.stat(os.path.dirname(os.path.abspath(path))).st_mode & stat.S_IWOTH:
            raise LogForbiddenError(
                f"the folder {path} belongs to user {status.st_uid}, who may have created it on purpose, because every "
                "user may write its parent folder: choose another path, or give the folder to this user (chown)"
            ) from None
        found = stat.S_IMODE(status.st_mode)
        if found & OTHERS & ~mode:
            logger.warning(
                "the folder %s has mode %04o, but the arena admits only users with mode %04o: users without access to "
                "the arena may read its records there. Run chmod %04o %s, unless that is intended",
                path,
                found,
                mode,
                mode,
                path,
            )
        return
    _set(path, mode, group)


def make_folder(path: str) -> None:
    """Create a folder within a log, and missing parents, unless it exists. Each gets the permissions of its parent.

    Raises:
        OSError: if it cannot be created.
    """
    if os.path.isdir(path):
        return
    above = os.path.dirname(path)
    make_folder(above)
    found = os.stat(above or ".")
    mode = DEFAULT_FOLDER if found.st_mode & stat.S_IWOTH else found.st_mode & FOLDER
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, mode & 0o777)
        if mode & GROUP_WRITES:
            _set(path, mode, found.st_gid)


def mode_in(folder: os.stat_result) -> int:
    """The mode of a new file in a folder."""
    return DEFAULT_FILE if folder.st_mode & stat.S_IWOTH else folder.st_mode & FILE | 0o600


def follow(descriptor: int, folder: os.stat_result) -> None:
    """Give a new file to the group that may write its folder, whatever the umask is."""
    if (mode := mode_in(folder)) & GROUP_WRITES:
        _set(descriptor, mode, folder.st_gid)


def _set(file: int | str, mode: int, group: int) -> None:
    """Set group and mode. If this user may not change the group, the file keeps the user's group."""
    with contextlib.suppress(PermissionError):
        if os.stat(file).st_gid != group:
            os.chown(file, -1, group)
    with contextlib.suppress(PermissionError):
        os.chmod(file, mode)
