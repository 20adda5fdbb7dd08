# SPDX-License-Identifier: Apache-2.0
"""The members of a local group, for other processes: their processes, states and partitions."""

from __future__ import annotations

import os
from typing import NamedTuple

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.process_handle import is_stopped
from shmaccum.log.files.file_names import GROUPS_FOLDER
from shmaccum.log.groups.member_locks import living_slots
from shmaccum.log.groups.offsets_file import LOCK, file_stem
from shmaccum.log.groups.plan import Plan, plan_path, read_plan


class LocalMember(NamedTuple):
    """One member of a local group."""

    member_id: str
    pid: int
    lives: bool
    is_stopped: bool
    """A stopped member keeps its partitions until it continues or is killed."""
    partitions: list[TopicPartition]
    """The partitions that the plan assigns to it."""
    topics: tuple[str, ...]
    """The topics that it subscribes to."""
    instance_id: str | None
    """The id of a static member, or None."""


def members_of(plan: Plan, living: set[int]) -> list[LocalMember]:
    """Every member of a plan.

    Args:
        plan: the plan of the group.
        living: the slots of the living members.
    """
    return [_member(plan, member_id, lives=row.slot in living) for member_id, row in plan.members.items()]


def _member(plan: Plan, member_id: str, *, lives: bool) -> LocalMember:
    row = plan.members[member_id]
    return LocalMember(
        member_id,
        row.pid,
        lives,
        lives and is_stopped(row.pid),
        sorted(plan.partitions_of(member_id)),
        row.topics,
        member_id if row.is_static else None,
    )


def local_members(directory: str, group_id: str) -> list[LocalMember]:
    """The living members of a group that needs no server. Empty if a server coordinates the group.

    If the group has no plan, no lock file is opened, so a list of many remote groups is cheap.

    Raises:
        OSError: if the lock file cannot be read.
    """
    plan = read_plan(plan_path(directory, group_id))
    if not plan.members:
        return []
    path = os.path.join(directory, GROUPS_FOLDER, file_stem(group_id) + LOCK)
    living = living_slots(path, {row.slot for row in plan.members.values()})
    return [member for member in members_of(plan, living) if member.lives]
