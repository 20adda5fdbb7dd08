# SPDX-License-Identifier: Apache-2.0
"""The users whose files a process trusts.

**A process uses a file under a name that others could have taken first only if the file belongs to the process's own
user, or to root, or to a group that the process is asked to share with and is a member of.** A user can give a file
only to a group of that user, so a file of the group was created by a member. A file ACL admits more users than the mode
shows, so an arena that has one is rejected. All checks are made on the descriptor, which is the file that is used, and
never on the name.

The files beside an arena (wake FIFO, results FIFO, presence socket; semaphores, native/arena/waiter_semaphores.c) are
trusted if they belong to this user, to root, to the owner of the arena, or to the group that shares the arena.
"""

from __future__ import annotations

import contextlib
import errno
import os

from shmaccum.exceptions import ArenaForbiddenError

ROOT = 0
GROUP_WRITES = 0o020
ACCESS_LIST = "system.posix_acl_access"
NO_LIST = {errno.ENODATA, errno.ENOTSUP}


def own_groups() -> set[int]:
    """The groups of this process."""
    return {os.getegid(), *os.getgroups()}


def has_access_list(descriptor: int) -> bool:
    """True for a file that a file ACL opens to more users than its mode says."""
    try:
        os.getxattr(descriptor, ACCESS_LIST)
    except OSError as error:
        if error.errno in NO_LIST:
            return False
        raise
    return True


def drop_access_list(file: int | str) -> None:
    """Removes the ACL that a new file inherited from its folder."""
    with contextlib.suppress(OSError):
        os.removexattr(file, ACCESS_LIST)


def check_arena(name: str, descriptor: int, mode_max: int, group: int | None) -> None:
    """Rejects an arena that an outside user may have put under the name.

    Args:
        name: for the message.
        descriptor: a descriptor of the arena.
        mode_max: the widest permissions that the process accepts. If they include a group, it shares the arena.
        group: the number of the group that the arena must belong to, or None for any group of this process.

    Raises:
        ArenaForbiddenError: its owner or its group is not trusted, or it has a file ACL.
    """
    found = os.fstat(descriptor)
    if has_access_list(descriptor):
        raise ArenaForbiddenError(
            f"{name} has a file ACL, which admits more users than its mode shows: remove the ACL "
            f"(setfacl -b), and share the arena by a group"
        )
    if group is not None and found.st_gid != group:
        raise ArenaForbiddenError(
            f"{name} belongs to user {found.st_uid} and group {found.st_gid}, not to group {group}: another user may "
            "have taken the name. Find out who that is; the owner or root can remove it (shmaccum remove)"
        )
    is_shared = bool(found.st_mode & mode_max & GROUP_WRITES)
    is_of_group = is_shared and (group is not None or found.st_gid in own_groups())
    if found.st_uid not in {os.geteuid(), ROOT} and not is_of_group:
        raise ArenaForbiddenError(
            f"{name} belongs to user {found.st_uid} and group {found.st_gid}, and this process is user "
            f"{os.geteuid()} outside of that group: another user may have taken the name. If the arena is right, run "
            "as that user or as a member of that group, or name the group (group=, --group)"
        )


def is_companion(found: os.stat_result, arena: tuple[int, int, int]) -> bool:
    """True for a file beside an arena that belongs to a user or group that shares the arena.

    Args:
        found: the status of the file, from its descriptor.
        arena: user, group and mode of the arena.
    """
    return is_insider(found.st_uid, {found.st_gid}, arena)


def is_insider(user: int, groups: set[int], arena: tuple[int, int, int]) -> bool:
    """True for a user, or a process of these groups, who may use the arena, and for root."""
    owner, group, mode = arena
    is_of_group = bool(mode & GROUP_WRITES) and group in groups
    return user in {os.geteuid(), ROOT, owner} or is_of_group
