# SPDX-License-Identifier: Apache-2.0
"""The plan of a local group: its members, and which of them consumes which partition.

::

    .groups/NAME.plan   {"epoch": 7,
                         "counts": {"flights": 3},                 partitions of each topic
                         "members": {ID: {"slot": 0, "pid": 4711, "topics": [...], ...}},
                         "assignment": {ID: [["flights", 0], ["flights", 1]]}}

Rules: the file is JSON. The planner writes it beside the old one and renames it, so a reader sees one whole plan.
Each change raises the epoch. A file that cannot be read counts as no plan: the next member that checks publishes one.
The plan proves nothing: the locks determine which members live and which of them owns a partition (`member_locks`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.file_names import GROUPS_FOLDER, TEMPORARY
from shmaccum.log.files.regular_files import open_regular
from shmaccum.log.files.small_files import write_all
from shmaccum.log.groups.assignors import Assignment
from shmaccum.log.groups.offsets_file import PLAN, file_stem

Key: TypeAlias = tuple[int, int, int, bytes]
PARTITION_MAX = 2**31 - 1
HEAD_SIZE = 64
PARSED_MAX = 64
"""The number of plans that this process caches in parsed form."""


@dataclass(frozen=True)
class MemberRow:
    """One member in the plan."""

    slot: int
    pid: int
    topics: tuple[str, ...]
    assignors: tuple[str, ...]
    is_static: bool = False
    """True if the member has a group_instance_id, which is its id here."""
    session_timeout_ms: int = 0
    """The time that the partitions of a static member are reserved for its return."""
    gone_ms: int | None = None
    """The time, on the boot clock, at which a static member was first found to be missing."""


@dataclass(frozen=True)
class Plan:
    """The members of a group, and the partitions of each."""

    epoch: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    """The number of partitions of each topic that a member subscribes to."""
    members: Mapping[str, MemberRow] = field(default_factory=dict)
    assignment: Mapping[str, list[TopicPartition]] = field(default_factory=dict)

    def partitions_of(self, member_id: str) -> set[TopicPartition]:
        """The partitions that the plan assigns to a member."""
        return set(self.assignment.get(member_id, ()))


_parsed_before: dict[str, tuple[Key, Plan]] = {}


def plan_path(directory: str, group_id: str) -> str:
    """The file of a group's plan."""
    return os.path.join(directory, GROUPS_FOLDER, file_stem(group_id) + PLAN)


def read_plan(path: str) -> Plan:
    """The plan, or an empty one if the file does not exist or cannot be read.

    A plan that this process has read before is not parsed again. It is recognized by its inode, time, size, and first
    bytes, which contain the epoch.
    """
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            status = os.fstat(file.fileno())
            head = file.read(HEAD_SIZE)
            key = _key(status, head)
            former = _parsed_before.get(path)
            if former is not None and former[0] == key:
                return former[1]
            plan = _parsed(json.loads(head + file.readall()))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Plan()
    _remember(path, key, plan)
    return plan


def _key(status: os.stat_result, head: bytes) -> Key:
    """The values that distinguish two plans."""
    return status.st_ino, status.st_mtime_ns, status.st_size, head


def _remember(path: str, key: Key, plan: Plan) -> None:
    if len(_parsed_before) >= PARSED_MAX:
        _parsed_before.clear()
    _parsed_before[path] = key, plan


def _parsed(document: Any) -> Plan:
    members = {str(name): row_of(row) for name, row in document["members"].items()}
    assignment: Assignment = {
        str(name): [TopicPartition(str(topic), _number(number)) for topic, number in places]
        for name, places in document["assignment"].items()
    }
    counts = {str(topic): int(count) for topic, count in document["counts"].items()}
    return Plan(int(document["epoch"]), counts, members, assignment)


def _number(given: Any) -> int:
    """The number of a partition.

    Raises:
        ValueError: if no partition can have this number.
    """
    number = int(given)
    if not 0 <= number <= PARTITION_MAX:
        raise ValueError(f"no partition has the number {number}")
    return number


def row_of(row: Any) -> MemberRow:
    """The row of a member, from parsed JSON.

    Raises:
        ValueError, TypeError, KeyError: if it is not a row.
    """
    gone_ms = row["gone_ms"]
    return MemberRow(
        slot=int(row["slot"]),
        pid=int(row["pid"]),
        topics=tuple(map(str, row["topics"])),
        assignors=tuple(map(str, row["assignors"])),
        is_static=bool(row["is_static"]),
        session_timeout_ms=int(row["session_timeout_ms"]),
        gone_ms=None if gone_ms is None else int(gone_ms),
    )


def write_plan(path: str, plan: Plan) -> None:
    """Publish a plan, and cache it. The caller has locked the planner's byte.

    Raises:
        OSError: if it was not published. The former plan is still there.
    """
    members = {member_id: vars(row) for member_id, row in plan.members.items()}
    content = json.dumps({**vars(plan), "members": members}, ensure_ascii=False).encode("utf-8", "surrogatepass")
    descriptor = open_regular(path + TEMPORARY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
    try:
        write_all(descriptor, content)
        key = _key(os.fstat(descriptor), content[:HEAD_SIZE])
    finally:
        os.close(descriptor)
    os.replace(path + TEMPORARY, path)
    _remember(path, key, plan)
