# SPDX-License-Identifier: Apache-2.0
"""One member of a local group: it publishes plans, takes and releases partitions, and commits. See `member_locks`."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, final

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.process_handle import is_stopped
from shmaccum.exceptions import ConsumerStateError
from shmaccum.log.groups.assignors import BY_NAME, Subscriptions
from shmaccum.log.groups.joins import Joins
from shmaccum.log.groups.member_locks import OFFSETS_BYTE, MemberLocks
from shmaccum.log.groups.members import LocalMember, members_of
from shmaccum.log.groups.offsets_file import Committed, has_group
from shmaccum.log.groups.plan import MemberRow, Plan, plan_path, read_plan, write_plan
from shmaccum.log.groups.shared_offsets import shared_offsets

logger = logging.getLogger(__name__)

OFFSETS_TIMEOUT_S = 60.0
CHECKED_MAX = 32
"""Each check asks the kernel about this many processes, by one member of each, and about as many random members."""
AT_ONCE_MAX = 16
"""In a group with at most this many members, plans follow without a pause."""
PAUSE_NS = 100_000
"""The minimum age of a plan before it is replaced, per member."""
JOIN_PAUSE_NS, JOIN_PAUSE_NS_MAX = 30_000, 1_000_000
"""If members only join, the minimum age per member is the first number times the processes, at most the second."""


class Assignors(NamedTuple):
    """The assignors that a member supports, in the order of preference."""

    by_name: Mapping[str, Callable[[Subscriptions], Mapping[str, Iterable[TopicPartition]]]]

    @classmethod
    def of(cls, given: Sequence[Any]) -> Assignors:
        """The assignors for names of shmaccum, and for objects with ``name`` and ``assign(subscriptions)``.

        Raises:
            ConsumerStateError: if one of them is neither.
        """
        found: dict[str, Callable[[Subscriptions], Any]] = {}
        for one in given:
            if isinstance(one, str) and one in BY_NAME:
                found[one] = BY_NAME[one]
            elif callable(getattr(one, "assign", None)) and isinstance(getattr(one, "name", None), str):
                found[one.name] = one.assign
            else:
                raise ConsumerStateError(
                    f"{one!r} is not an assignor: give {', '.join(BY_NAME)}, or an object with name and "
                    "assign(subscriptions)"
                )
        return cls(found)


@final
class Membership:
    """One member of a local group, from its construction to `leave`.

    Attributes:
        member_id: the id in the plan. The id of a static member is its group_instance_id.
        locks: the member's locks.
        plan: the plan that was read last.

    Args:
        directory: the log directory.
        group_id: the group.
        count_of: returns the current number of partitions of a topic.
        assignors: the assignors that the member supports.
        client_id: the prefix of its id.
        instance_id: If given, the member is static.
        session_timeout_ms: the time that the partitions of a static member are reserved for its return.

    Raises:
        GroupModeError, InvalidArgumentError, LogForbiddenError, OSError: as `MemberLocks`.
        CorruptLogError: if the offsets file with this name belongs to another group.
    """

    def __init__(
        self,
        directory: str,
        group_id: str,
        *,
        count_of: Callable[[str], int],
        assignors: Assignors,
        client_id: str = "consumer",
        instance_id: str | None = None,
        session_timeout_ms: int = 0,
    ) -> None:
        self.member_id = instance_id or f"{client_id}-{uuid.uuid4()}"
        self.plan = Plan()
        self._group_id = group_id
        self._count_of = count_of
        self._assignors = assignors
        self._is_static = instance_id is not None
        self._session_timeout_ms = session_timeout_ms
        self._topics: tuple[str, ...] = ()
        self._directory = directory
        self._path = plan_path(directory, group_id)
        self._joins = Joins(directory, group_id)
        self._has_left = False
        self._is_waiting = False
        self.locks = MemberLocks(directory, group_id)
        try:
            self._offsets = shared_offsets(directory, group_id)
        except BaseException:
            self.locks.close()
            raise

    @property
    def is_member(self) -> bool:
        """True after `subscribe`."""
        return self.locks.slot >= 0

    # --- the plan

    def subscribe(self, topics: Iterable[str]) -> None:
        """Join, unless this is a member already, and consume these topics from the next plan on.

        This call publishes the plan itself if it can do so at once. Otherwise `check_plan` does, in any member.

        Raises:
            ConsumerStateError: if a living member has the same group_instance_id, or there is no common assignor.
            GroupBusyError: if the group is new, and another member was creating it all the time.
            OSError: if the files of the group cannot be written.
        """
        self._topics = tuple(sorted(set(topics)))
        self._follow_lock_file()
        was_member = self.is_member
        self.plan = read_plan(self._path)
        if not was_member:
            self._check(self.plan.members)
            # A group with members has an offsets file, by which other processes list the group.
            if not has_group(self._directory, self._group_id):
                with self.locks.offsets_lock(OFFSETS_TIMEOUT_S, self.stopped):
                    self._offsets.create()
            self.locks.join()
        self._joins.add(self.member_id, self._row())
        try:
            self.check_plan()
        except ConsumerStateError:
            if not was_member:
                self.locks.unjoin()
            raise

    def _follow_lock_file(self) -> None:
        """Take the locks in the lock file that has the name now, if the former one was removed or replaced.

        Raises:
            GroupModeError: if a server coordinates the group now. Nothing is owned then.
        """
        if self.locks.has_its_name:
            return
        known = self._offsets.known()
        self.locks.renew()
        with self.locks.offsets_lock(OFFSETS_TIMEOUT_S, self.stopped):
            self._offsets.restore(known, self.locks.owned)
        logger.error("%s was removed or replaced under its members. They join the group again", self.locks.path)

    def wants(self, topics: Iterable[str]) -> bool:
        """True if this is a member that consumes exactly these topics."""
        return self.is_member and self._topics == tuple(sorted(set(topics)))

    def stopped(self) -> str:
        """The processes of stopped members, as the end of a message."""
        pids = {row.pid for row in read_plan(self._path).members.values()}
        stopped = [str(pid) for pid in sorted(pids) if is_stopped(pid)]
        return f"; stopped processes of the group: {', '.join(stopped)}" if stopped else ""

    def _check(self, members: Mapping[str, MemberRow]) -> None:
        """Compare this member with the living ones.

        Raises:
            ConsumerStateError: if one has the same group_instance_id, or there is no common assignor.
        """
        same = members.get(self.member_id)
        if same is not None and self._is_other(same):
            raise ConsumerStateError(
                f"process {same.pid} is the member {self.member_id!r} of the group {self._group_id!r}: stop it, or use "
                "another group_instance_id"
            )
        kinds = {row.assignors for row in members.values()}
        foreign = {names for names in kinds if self._assignors.by_name.keys().isdisjoint(names)}
        for row in members.values() if foreign else ():
            if row.assignors in foreign and self._is_other(row):
                raise self._no_common_assignor(row.assignors)

    def _is_other(self, row: MemberRow) -> bool:
        """True for the row of another member that lives."""
        return row.slot != self.locks.slot and self.locks.lives(row.slot)

    def _no_common_assignor(self, names: Iterable[str]) -> ConsumerStateError:
        return ConsumerStateError(
            f"the members of group {self._group_id!r} use {', '.join(names)}: set partition_assignment_strategy to one "
            "of these"
        )

    def check_plan(self, *, is_checked: bool = False) -> bool:
        """Read the plan. A member publishes a new one if the members or partitions have changed.

        Args:
            is_checked: True if another member of this process has already looked for dead members.

        Returns:
            False if the plan is outdated and cannot be replaced yet, because another member is publishing, or the
            last plan of a large group is too young. The next check should follow soon.

        Raises:
            ConsumerStateError: as `subscribe`, if two members joined at the same time.
        """
        self._follow_lock_file()
        former_epoch, self.plan = self.plan.epoch, read_plan(self._path)
        is_new = self.plan.epoch != former_epoch
        if not self.is_member or not self._is_outdated(is_known=is_new or is_checked):
            return True
        if is_new and self._is_joining:
            self._joins.add(self.member_id, self._row())
        if self.pause_s > 0:
            return False
        with self.locks.planner() as is_planner:
            if is_planner:
                self.plan = read_plan(self._path)
                if self._is_outdated(is_known=False):
                    self._publish()
        return is_planner

    @property
    def _is_joining(self) -> bool:
        """True if this member is missing or outdated in the plan."""
        return self.plan.members.get(self.member_id) != self._row()

    @property
    def pause_s(self) -> float:
        """The time until this member may replace the plan. It may do so now if this is 0 or less.

        All processes of a group read each plan. So the plan of a large group is not replaced until all of them had time
        to read it. The pause is longer if members only join, so that the next plan contains all of them. A pause never
        decides about a member.
        """
        count = len(self.plan.members)
        if count <= AT_ONCE_MAX:
            return 0.0
        with contextlib.suppress(FileNotFoundError):
            age_ns = time.time_ns() - os.stat(self._path).st_mtime_ns
            pause_ns = count * (self._join_pause_ns if self._is_joining else PAUSE_NS)
            return (pause_ns - age_ns) / 1e9 if age_ns >= 0 else 0.0
        return 0.0

    @property
    def _join_pause_ns(self) -> int:
        """The pause per member, which grows with the number of processes that read the plan."""
        return min(JOIN_PAUSE_NS * len({row.pid for row in self.plan.members.values()}), JOIN_PAUSE_NS_MAX)

    def _is_outdated(self, *, is_known: bool) -> bool:
        """True if the plan must be replaced, as far as this check shows.

        Args:
            is_known: True if the planner, or another member of this process, has just looked for dead members.
        """
        if self._is_joining or self.plan.counts != self._counted(self.plan.counts):
            return True
        return not is_known and any(self._renewed(member_id, row) != row for member_id, row in self._sampled_members())

    def _sampled_members(self) -> Iterator[tuple[str, MemberRow]]:
        """The members that one check asks the kernel about.

        The death of a process releases the bytes of all its members, so one member per process is enough. Members are
        chosen at random, and all processes check repeatedly. So a check is cheap, and each death is found soon.
        """
        rows = list(self.plan.members.items())
        if len(rows) > CHECKED_MAX:
            of_processes = list({row.pid: (member_id, row) for member_id, row in rows}.values())
            yield from random.sample(of_processes, min(len(of_processes), CHECKED_MAX))
        yield from random.sample(rows, min(len(rows), CHECKED_MAX))

    def _publish(self) -> None:
        former = self.plan
        if self._is_joining:
            self._check(former.members)
        self.plan = self._next(former)
        if self.plan is not former:
            write_plan(self._path, self.plan)
            self._joins.empty()
            self.locks.wake()

    def _next(self, former: Plan) -> Plan:
        """The next plan, or `former` itself if nothing has changed."""
        members = self._living(former)
        counts = self._counted({topic for row in members.values() for topic in row.topics})
        if members == former.members and counts == former.counts:
            return former
        is_same = _assignment_inputs(members) == _assignment_inputs(former.members) and counts == former.counts
        assignment = former.assignment if is_same else self._assigned(members, counts, former)
        return Plan(former.epoch + 1, counts, members, assignment)

    def _living(self, former: Plan) -> dict[str, MemberRow]:
        """The rows of living members, of static ones that may return, of this member, and of those that join."""
        renewed = {member_id: self._renewed(member_id, row) for member_id, row in former.members.items()}
        found = {member_id: row for member_id, row in renewed.items() if row is not None}
        found[self.member_id] = self._row()
        return self._with_joins(found)

    def _with_joins(self, members: dict[str, MemberRow]) -> dict[str, MemberRow]:
        """Add the living members of the joins. A member without a common assignor gets the error in its own check.

        Raises:
            ConsumerStateError: if this member has no assignor in common with all others.
        """
        common = set(self._assignors.by_name)
        for row in members.values():
            common &= set(row.assignors)
            if not common:
                raise self._no_common_assignor(row.assignors)
        joined: dict[int, str] = {}
        for member_id, row in self._joins.read().items():
            shared = common & set(row.assignors)
            if shared and self._may_join(member_id, row, members.get(member_id)):
                members[member_id], joined[row.slot], common = row, member_id, shared
        return {member_id: row for member_id, row in members.items() if joined.get(row.slot, member_id) == member_id}

    def _may_join(self, member_id: str, row: MemberRow, known: MemberRow | None) -> bool:
        """True for the row of another living member, unless a living member already has its id."""
        is_known = known is not None and known.gone_ms is None and known.slot != row.slot
        return member_id != self.member_id and not is_known and self._is_other(row)

    def _renewed(self, member_id: str, row: MemberRow) -> MemberRow | None:
        """The current row of a member, or None if it is dead and not expected to return."""
        if row.slot == self.locks.slot:
            return self._row() if member_id == self.member_id else None  # a former holder of the slot is dead
        if self.locks.lives(row.slot):
            return row if row.gone_ms is None else replace(row, gone_ms=None)
        return _missing_row(row) if row.is_static else None

    def _row(self) -> MemberRow:
        return MemberRow(
            self.locks.slot,
            os.getpid(),
            self._topics,
            tuple(self._assignors.by_name),
            self._is_static,
            self._session_timeout_ms,
        )

    def _counted(self, topics: Iterable[str]) -> dict[str, int]:
        """The current number of partitions of each topic."""
        return {topic: self._count_of(topic) for topic in topics}

    def _assigned(
        self, members: Mapping[str, MemberRow], counts: Mapping[str, int], former: Plan
    ) -> dict[str, list[TopicPartition]]:
        name = next(name for name in self._assignors.by_name if all(name in row.assignors for row in members.values()))
        topics = {member_id: row.topics for member_id, row in members.items()}
        group = Subscriptions(counts, topics, former.assignment)
        return _checked(name, group, self._assignors.by_name[name](group))

    # --- partitions

    @property
    def wanted(self) -> set[TopicPartition]:
        """The partitions that the plan assigns to this member."""
        return self.plan.partitions_of(self.member_id) if self.is_member else set()

    @property
    def pending(self) -> set[TopicPartition]:
        """Partitions of this member that another member has not released yet."""
        return self.wanted - self.locks.owned

    def take(self) -> set[TopicPartition]:
        """Take the pending partitions that are free now."""
        taken = {place for place in self.pending if self.locks.take(place)}
        self._is_waiting = bool(self.pending)
        return taken

    def is_concerned(self, plan: Plan) -> bool:
        """True if this member has to act on a plan that another member of this process has read. Thread-safe.

        It has to act if it waits for a partition, is missing or outdated in the plan, or gets other partitions.
        """
        if plan is self.plan or self._is_waiting:
            return self._is_waiting
        is_same = plan.assignment.get(self.member_id) == self.plan.assignment.get(self.member_id)
        return not is_same or plan.members.get(self.member_id) != self._row()

    def give_up(self, places: Iterable[TopicPartition]) -> None:
        """Release these partitions for other members. Their offsets must have been committed."""
        for place in places:
            self.locks.give_up(place)
        self.locks.wake()

    def members(self) -> list[LocalMember]:
        """Every member of the plan."""
        return members_of(self.plan, {row.slot for row in self.plan.members.values() if self.locks.lives(row.slot)})

    def others(self) -> list[MemberRow]:
        """The rows of all other living members."""
        rows = self.plan.members.values()
        return [row for row in rows if row.slot != self.locks.slot and self.locks.lives(row.slot)]

    # --- offsets

    def commit(self, offsets: Mapping[TopicPartition, Committed], timeout_s: float) -> None:
        """Store offsets, all of them or none.

        Raises:
            ConsumerStateError: if a partition is not owned by this member, or if this is not a member of a group that
                has members.
            GroupBusyError: if another member, which is probably stopped, has been writing all the time.
            OSError: if the file cannot be written.
        """
        if not offsets:
            return
        if self.is_member:
            self._check_owned(offsets)
            if self.locks.is_open and self._offsets.commit_at_once(offsets, self.locks.descriptor, OFFSETS_BYTE):
                return
            self._follow_lock_file()
            self._check_owned(offsets)
        self.locks.lock_offsets(timeout_s, self.stopped)
        try:
            if not self.is_member:
                self._check_alone()
            self._offsets.commit(offsets)
        finally:
            self.locks.unlock_offsets()

    def _check_owned(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Check that this member owns the partitions."""
        if not offsets.keys() <= self.locks.owned:
            foreign = sorted(set(offsets) - self.locks.owned)
            raise ConsumerStateError(
                f"{', '.join(map(str, foreign))} of the group {self._group_id!r} is not assigned to this consumer: "
                "commit partitions of assignment() only"
            )

    def _check_alone(self) -> None:
        """Check that the group has no member, because this consumer is not one."""
        living = [row for row in read_plan(self._path).members.values() if self.locks.lives(row.slot)]
        if living:
            raise ConsumerStateError(
                f"the group {self._group_id!r} has members, such as process {living[0].pid}, but this consumer is not "
                "one of them: subscribe, or use another group_id"
            )

    def committed(self, place: TopicPartition) -> Committed | None:
        """The committed offset of a partition, from any member.

        Raises:
            CorruptLogError, OSError: if the file cannot be read.
        """
        return self._offsets.committed(place)

    # --- the end

    def leave(self) -> None:
        """Release everything. A static member stays in the plan until its session time-out."""
        if not self._has_left:
            self._has_left = True
            self._offsets.release()
        self.locks.leave()


def _checked(
    name: str, group: Subscriptions, found: Mapping[str, Iterable[TopicPartition]]
) -> dict[str, list[TopicPartition]]:
    """Check an assignment, which may come from a user's assignor.

    Raises:
        ConsumerStateError: if it has unknown members or partitions, or assigns a partition twice.
    """
    given = [(member_id, TopicPartition(*place)) for member_id, places in found.items() for place in places]
    known = set(group.partitions())
    strange = [
        f"{place} to {member_id!r}" for member_id, place in given if member_id not in group.topics or place not in known
    ]
    if strange or len({place for _, place in given}) < len(given):
        problem = f"it assigns {strange[0]}" if strange else "it assigns one partition to two members"
        raise ConsumerStateError(f"the assignor {name!r} is wrong: {problem}; fix its assign()")
    return {member_id: sorted(TopicPartition(*place) for place in places) for member_id, places in found.items()}


def _missing_row(row: MemberRow) -> MemberRow | None:
    """The row of a static member that is missing, or None if its session has timed out."""
    now_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    gone_ms = now_ms if row.gone_ms is None else row.gone_ms
    is_over = not 0 <= now_ms - gone_ms < row.session_timeout_ms
    return None if is_over else replace(row, slot=-1, gone_ms=gone_ms)


def _assignment_inputs(members: Mapping[str, MemberRow]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """The fields of the rows that an assignment depends on."""
    return {member_id: (row.topics, row.assignors) for member_id, row in members.items()}
