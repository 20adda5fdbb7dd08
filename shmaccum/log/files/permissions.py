# SPDX-License-Identifier: Apache-2.0
"""Permissions of a log: those of its folder, which are those of the arena when a sender makes the folder.

**Everything in a log takes group and mode from the folder that it is in.** A sender makes the folder of a log, an
overflow or dead letters with the group and the mode of its arena: 0700 for an arena of one user, 0770 for one that a
group shares. A folder that exists stays as it is, and what is made in it follows it, so an administrator opens or
closes a log by its folder. The umask narrows what it narrows, except where a group may write the folder: then the group
may write the files, too. A folder that every user may write, such as /tmp, is followed by nothing, and
the folder of a stranger in it is refused.
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
    """The mode of a folder for those who may use the arena: a right to read is one to look into it."""
    mode = arena_mode & FILE
    return mode | (mode & READS) >> 2


def make_folder_of_arena(path: str, arena: tuple[int, int, int]) -> None:
    """Makes the folder of a log for those who share an arena; warns of one that lets more users in.

    Args:
        path: of the folder.
        arena: user, group and mode of the arena (`Arena.permissions`).

    Raises:
        LogForbiddenError: a stranger has made it, in a folder where every user may take a name.
        OSError: it cannot be made.
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
                f"the folder {path} belongs to user {status.st_uid}, who may have taken its name, because every user "
                "may write the folder that it is in: choose another place, or give the folder to this user (chown)"
            ) from None
        found = stat.S_IMODE(status.st_mode)
        if found & OTHERS & ~mode:
            logger.warning(
                "the folder %s has mode %04o, and the arena lets in those of %04o alone: more users than those of the "
                "arena may read its records there. Run chmod %04o %s unless that is meant",
                path,
                found,
                mode,
                mode,
                path,
            )
        return
    _set(path, mode, group)


def make_folder(path: str) -> None:
    """Makes a folder within a log, with those above it, unless it is there; each follows the one that it is in.

    Raises:
        OSError: it cannot be made.
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
    """Gives a new file to the group that may write its folder, whatever the umask is."""
    if (mode := mode_in(folder)) & GROUP_WRITES:
        _set(descriptor, mode, folder.st_gid)


def _set(file: int | str, mode: int, group: int) -> None:
    """A file that this user may not give to the group stays with this user's."""
    with contextlib.suppress(PermissionError):
        if os.stat(file).st_gid != group:
            os.chown(file, -1, group)
    with contextlib.suppress(PermissionError):
        os.chmod(file, mode)
