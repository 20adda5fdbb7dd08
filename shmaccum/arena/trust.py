# SPDX-License-Identifier: Apache-2.0
"""Which user's files a process believes.

**A process uses a file under a name that others could have taken first only when its owner is the process's own user,
or root, or when the file belongs to a group that the process is asked to share with, and of which it is a member.** A
user can give a file to no group but those of his own, so a file of the group was made by a member. A file ACL
lets in more users than the mode says, so an arena that has one is refused. All of this is asked of the descriptor,
which is the file that is used, and never of the name.

The files beside an arena (doorbell, results bell, presence socket; semaphores, native/arena/waiter_semaphores.c) are
believed when they belong to this user, to root, to the owner of the arena, or to the group that shares the arena.
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
    """Takes the ACL away that a file of ours has from its folder."""
    with contextlib.suppress(OSError):
        os.removexattr(file, ACCESS_LIST)


def check_arena(name: str, descriptor: int, mode_max: int, group: int | None) -> None:
    """Refuses an arena that a user outside may have put under the name.

    Args:
        name: for the message.
        descriptor: of the arena.
        mode_max: the widest permissions that the process puts up with; with those of a group, it shares.
        group: number of the group that the arena has to belong to; None: any group of this process.

    Raises:
        ArenaForbiddenError: its owner or its group is another one, or it has a file ACL.
    """
    found = os.fstat(descriptor)
    if has_access_list(descriptor):
        raise ArenaForbiddenError(
            f"{name} has a file ACL, which lets in more users than its mode says: take the ACL away "
            f"(setfacl -b), and share the arena by a group"
        )
    if group is not None and found.st_gid != group:
        raise ArenaForbiddenError(
            f"{name} belongs to user {found.st_uid} and group {found.st_gid}, not to group {group}: another user may "
            "have taken the name. Look who that is; the owner or root can remove it (shmaccum remove)"
        )
    is_shared = bool(found.st_mode & mode_max & GROUP_WRITES)
    is_of_group = is_shared and (group is not None or found.st_gid in own_groups())
    if found.st_uid not in {os.geteuid(), ROOT} and not is_of_group:
        raise ArenaForbiddenError(
            f"{name} belongs to user {found.st_uid} and group {found.st_gid}, and this process is user "
            f"{os.geteuid()} outside of that group: another user may have taken the name. If the arena is meant, run "
            "as that user or as a member of that group, or name the group (group=, --group)"
        )


def is_companion(found: os.stat_result, arena: tuple[int, int, int]) -> bool:
    """True for a file beside an arena that belongs to one of those who share the arena.

    Args:
        found: the file, from its descriptor.
        arena: user, group and mode of the arena.
    """
    return is_insider(found.st_uid, {found.st_gid}, arena)


def is_insider(user: int, groups: set[int], arena: tuple[int, int, int]) -> bool:
    """True for a user, or a process of these groups, who may use the arena, and for root."""
    owner, group, mode = arena
    is_of_group = bool(mode & GROUP_WRITES) and group in groups
    return user in {os.geteuid(), ROOT, owner} or is_of_group
