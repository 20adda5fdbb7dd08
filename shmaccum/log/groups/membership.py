# SPDX-License-Identifier: Apache-2.0
"""One member of a local group: it publishes plans, takes and gives up partitions, and commits. See `member_locks`."""

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
from shmaccum.common.victim import is_stopped
from shmaccum.exceptions import ConsumerStateError
from shmaccum.log.groups.assignors import BY_NAME, Subscriptions
from shmaccum.log.groups.joins import Joins
from shmaccum.log.groups.member_locks import PEN_BYTE, MemberLocks
from shmaccum.log.groups.members import LocalMember, members_of
from shmaccum.log.groups.offsets_file import Committed, has_group
from shmaccum.log.groups.plan import MemberRow, Plan, plan_path, read_plan, write_plan
from shmaccum.log.groups.shared_offsets import shared_offsets

logger = logging.getLogger(__name__)

PEN_TIMEOUT_S = 60.0
LOOKED_AT_MAX = 32
"""One look asks the kernel about so many processes, by one member of each, and about so many members besides."""
AT_ONCE_MAX = 16
"""Plans of a group with so many members follow one another at once."""
PAUSE_NS = 100_000
"""A plan is left alone for so long for each of its members."""
JOIN_PAUSE_NS, JOIN_PAUSE_NS_MAX = 30_000, 1_000_000
"""Where only members join, each member adds so much to this pause for each process, and so much at most."""


class Assignors(NamedTuple):
    """The assignors that a member supports, the preferred one first."""

    by_name: Mapping[str, Callable[[Subscriptions], Mapping[str, Iterable[TopicPartition]]]]

    @classmethod
    def of(cls, given: Sequence[Any]) -> Assignors:
        """From names of ours, and objects with ``name`` and ``assign(subscriptions)``.

        Raises:
            ConsumerStateError: one of them is neither.
        """
        found: dict[str, Callable[[Subscriptions], Any]] = {}
        for one in given:
            if isinstance(one, str) and one in BY_NAME:
                found[one] = BY_NAME[one]
            elif callable(getattr(one, "assign", None)) and isinstance(getattr(one, "name", None), str):
                found[one.name] = one.assign
            else:
                raise ConsumerStateError(
                    f"{one!r} is no assignor: give {', '.join(BY_NAME)}, or an object with name and "
                    "assign(subscriptions)"
                )
        return cls(found)


@final
class Membership:
    """One member of a local group, from its construction to `leave`.

    Attributes:
        member_id: the id in the plan; that of a static member is its group_instance_id.
        locks: the member's locks.
        plan: the plan as it was read last.

    Args:
        directory: the log directory.
        group_id: the group.
        count_of: the number of partitions of a topic, now.
        assignors: those that the member supports.
        client_id: the beginning of its id.
        instance_id: makes it a static member.
        session_timeout_ms: how long the partitions of a static member wait for its return.

    Raises:
        GroupModeError, InvalidArgumentError, LogForbiddenError, OSError: as `MemberLocks`.
        CorruptLogError: another group's offsets lie under this name.
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
        """Joins, if it is not a member yet, and consumes these topics from the next plan on.

        This call publishes the plan itself if it can do so at once. Else a `look` does, here or in another member.

        Args:
            topics: their names.

        Raises:
            ConsumerStateError: a living member has the same group_instance_id, or no common assignor.
            GroupBusyError: the group is new, and another member has been founding it all the time.
            OSError: the files of the group cannot be written.
        """
        self._topics = tuple(sorted(set(topics)))
        self._follow_name()
        was_member = self.is_member
        self.plan = read_plan(self._path)
        if not was_member:
            self._check(self.plan.members)
            # A group with members has a file of offsets, by which others know its name.
            if not has_group(self._directory, self._group_id):
                with self.locks.pen(PEN_TIMEOUT_S, self.stopped):
                    self._offsets.found()
            self.locks.join()
        self._joins.add(self.member_id, self._row())
        try:
            self.look()
        except ConsumerStateError:
            if not was_member:
                self.locks.unjoin()
            raise

    def _follow_name(self) -> None:
        """Moves to the lock file that has the name now, if the former one was removed or replaced.

        Raises:
            GroupModeError: a server coordinates the group by now. Nothing is owned then.
        """
        if self.locks.has_its_name:
            return
        known = self._offsets.known()
        self.locks.renew()
        with self.locks.pen(PEN_TIMEOUT_S, self.stopped):
            self._offsets.restore(known, self.locks.owned)
        logger.error("%s was removed or replaced under its members. They join the group again", self.locks.path)

    def wants(self, topics: Iterable[str]) -> bool:
        """True for a member that consumes exactly these topics."""
        return self.is_member and self._topics == tuple(sorted(set(topics)))

    def stopped(self) -> str:
        """The processes of stopped members, as the end of a sentence."""
        pids = {row.pid for row in read_plan(self._path).members.values()}
        stopped = [str(pid) for pid in sorted(pids) if is_stopped(pid)]
        return f"; stopped processes of the group: {', '.join(stopped)}" if stopped else ""

    def _check(self, members: Mapping[str, MemberRow]) -> None:
        """Compares this member with those that live.

        Raises:
            ConsumerStateError: one of them has the same group_instance_id, or no common assignor.
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
            f"the group {self._group_id!r} is assigned by {', '.join(names)}: set partition_assignment_strategy to one "
            "of them"
        )

    def look(self, *, is_told: bool = False) -> bool:
        """Reads the plan; a member publishes a new one if members or partitions are others by now.

        Args:
            is_told: another member of this process has looked for the dead.

        Returns:
            False when the plan is outdated and cannot be replaced yet: another member publishes at this moment, or the
            last plan of a large group is young. The next look should follow soon.

        Raises:
            ConsumerStateError: as `subscribe`, when two members joined at the same time.
        """
        self._follow_name()
        former_epoch, self.plan = self.plan.epoch, read_plan(self._path)
        is_new = self.plan.epoch != former_epoch
        if not self.is_member or not self._is_outdated(is_known=is_new or is_told):
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
        """True for a member that the plan does not have as it wants to be."""
        return self.plan.members.get(self.member_id) != self._row()

    @property
    def pause_s(self) -> float:
        """The time until this member may replace the plan; 0 or less: now.

        All processes of a group read each plan. In a large group a plan is left alone for as long as that takes, and
        longer where only members join, so that the next plan has all that joined meanwhile. A pause decides nothing
        about any member.
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
        """The pause for each member, which grows with the processes that read the plan."""
        return min(JOIN_PAUSE_NS * len({row.pid for row in self.plan.members.values()}), JOIN_PAUSE_NS_MAX)

    def _is_outdated(self, *, is_known: bool) -> bool:
        """True when the plan should be another one, as far as this member looks.

        Args:
            is_known: the planner of a new plan, or another member of this process, has just looked for the dead.
        """
        if self._is_joining or self.plan.counts != self._counted(self.plan.counts):
            return True
        return not is_known and any(self._renewed(member_id, row) != row for member_id, row in self._looked_at())

    def _looked_at(self) -> Iterator[tuple[str, MemberRow]]:
        """The members that one look asks the kernel about.

        The death of a process frees the bytes of all its members, so one member tells it. Members are chosen at random,
        and all processes of a group look again and again. So a look costs little, and each death is found soon.
        """
        rows = list(self.plan.members.items())
        if len(rows) > LOOKED_AT_MAX:
            of_processes = list({row.pid: (member_id, row) for member_id, row in rows}.values())
            yield from random.sample(of_processes, min(len(of_processes), LOOKED_AT_MAX))
        yield from random.sample(rows, min(len(rows), LOOKED_AT_MAX))

    def _publish(self) -> None:
        former = self.plan
        if self._is_joining:
            self._check(former.members)
        self.plan = self._next(former)
        if self.plan is not former:
            write_plan(self._path, self.plan)
            self._joins.empty()
            self.locks.ring()

    def _next(self, former: Plan) -> Plan:
        """The plan that should follow; `former` itself where nothing is to be changed."""
        members = self._living(former)
        counts = self._counted({topic for row in members.values() for topic in row.topics})
        if members == former.members and counts == former.counts:
            return former
        is_same = _wishes(members) == _wishes(former.members) and counts == former.counts
        assignment = former.assignment if is_same else self._assigned(members, counts, former)
        return Plan(former.epoch + 1, counts, members, assignment)

    def _living(self, former: Plan) -> dict[str, MemberRow]:
        """The rows of members that live, of static ones that may return, of this one, and of those that joined."""
        renewed = {member_id: self._renewed(member_id, row) for member_id, row in former.members.items()}
        found = {member_id: row for member_id, row in renewed.items() if row is not None}
        found[self.member_id] = self._row()
        return self._with_joins(found)

    def _with_joins(self, members: dict[str, MemberRow]) -> dict[str, MemberRow]:
        """Adds the members of the joins that live. One without a common assignor is told so by its own look.

        Raises:
            ConsumerStateError: this member has no assignor in common with all others.
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
        """True for the row of another member that lives, unless a living member has its id."""
        is_known = known is not None and known.gone_ms is None and known.slot != row.slot
        return member_id != self.member_id and not is_known and self._is_other(row)

    def _renewed(self, member_id: str, row: MemberRow) -> MemberRow | None:
        """The row of a member as it is now; None when it is dead, and is not expected to return."""
        if row.slot == self.locks.slot:
            return self._row() if member_id == self.member_id else None  # a former holder of the slot is dead
        if self.locks.lives(row.slot):
            return row if row.gone_ms is None else replace(row, gone_ms=None)
        return _missed(row) if row.is_static else None

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
        """The number of partitions of each topic, now."""
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
        """The partitions that the plan gives to this member."""
        return self.plan.partitions_of(self.member_id) if self.is_member else set()

    @property
    def pending(self) -> set[TopicPartition]:
        """Partitions of this member that another one has not given up yet."""
        return self.wanted - self.locks.owned

    def take(self) -> set[TopicPartition]:
        """Takes the pending partitions that are free by now."""
        taken = {place for place in self.pending if self.locks.take(place)}
        self._is_waiting = bool(self.pending)
        return taken

    def is_concerned(self, plan: Plan) -> bool:
        """True when this member has to act on a plan that another member of this process has read; in any thread.

        It waits for a partition, or it is not in the plan as it wants to be, or the plan gives it other partitions.
        """
        if plan is self.plan or self._is_waiting:
            return self._is_waiting
        is_same = plan.assignment.get(self.member_id) == self.plan.assignment.get(self.member_id)
        return not is_same or plan.members.get(self.member_id) != self._row()

    def give_up(self, places: Iterable[TopicPartition]) -> None:
        """Lets others have these partitions; their offsets were committed before."""
        for place in places:
            self.locks.give_up(place)
        self.locks.ring()

    def members(self) -> list[LocalMember]:
        """Every member of the plan."""
        return members_of(self.plan, {row.slot for row in self.plan.members.values() if self.locks.lives(row.slot)})

    def others(self) -> list[MemberRow]:
        """The rows of all other members that live."""
        rows = self.plan.members.values()
        return [row for row in rows if row.slot != self.locks.slot and self.locks.lives(row.slot)]

    # --- offsets

    def commit(self, offsets: Mapping[TopicPartition, Committed], timeout_s: float) -> None:
        """Writes offsets down, all of them or none.

        Raises:
            ConsumerStateError: a partition is not this member's; or it is no member, and the group has members.
            GroupBusyError: another member has the pen, and is stopped.
            OSError: the file cannot be written.
        """
        if not offsets:
            return
        if self.is_member:
            self._check_owned(offsets)
            if self.locks.is_open and self._offsets.commit_at_once(offsets, self.locks.descriptor, PEN_BYTE):
                return
            self._follow_name()
            self._check_owned(offsets)
        self.locks.take_pen(timeout_s, self.stopped)
        try:
            if not self.is_member:
                self._check_alone()
            self._offsets.commit(offsets)
        finally:
            self.locks.drop_pen()

    def _check_owned(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """A member commits only its own partitions."""
        if not offsets.keys() <= self.locks.owned:
            foreign = sorted(set(offsets) - self.locks.owned)
            raise ConsumerStateError(
                f"{', '.join(map(str, foreign))} of the group {self._group_id!r} is not assigned to this consumer: "
                "commit partitions of assignment() only"
            )

    def _check_alone(self) -> None:
        """A consumer that is no member commits only while the group has no member."""
        living = [row for row in read_plan(self._path).members.values() if self.locks.lives(row.slot)]
        if living:
            raise ConsumerStateError(
                f"the group {self._group_id!r} has members, such as process {living[0].pid}, and this consumer is none "
                "of them: subscribe, or use another group_id"
            )

    def committed(self, place: TopicPartition) -> Committed | None:
        """The committed offset of a partition, whoever committed it.

        Raises:
            CorruptLogError, OSError: the file cannot be read.
        """
        return self._offsets.committed(place)

    # --- the end

    def leave(self) -> None:
        """Gives everything up. A static member stays in the plan until its session time-out."""
        if not self._has_left:
            self._has_left = True
            self._offsets.release()
        self.locks.leave()


def _checked(
    name: str, group: Subscriptions, found: Mapping[str, Iterable[TopicPartition]]
) -> dict[str, list[TopicPartition]]:
    """An assignment, which may be that of a user's assignor.

    Raises:
        ConsumerStateError: it has strange members or partitions, or one partition twice.
    """
    given = [(member_id, TopicPartition(*place)) for member_id, places in found.items() for place in places]
    known = set(group.partitions())
    strange = [
        f"{place} to {member_id!r}" for member_id, place in given if member_id not in group.topics or place not in known
    ]
    if strange or len({place for _, place in given}) < len(given):
        problem = f"it gives {strange[0]}" if strange else "it gives one partition to two members"
        raise ConsumerStateError(f"the assignor {name!r} is wrong: {problem}; mend its assign()")
    return {member_id: sorted(TopicPartition(*place) for place in places) for member_id, places in found.items()}


def _missed(row: MemberRow) -> MemberRow | None:
    """The row of a static member that is gone; None when its session is over."""
    now_ms = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    gone_ms = now_ms if row.gone_ms is None else row.gone_ms
    is_over = not 0 <= now_ms - gone_ms < row.session_timeout_ms
    return None if is_over else replace(row, slot=-1, gone_ms=gone_ms)


def _wishes(members: Mapping[str, MemberRow]) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """The parts of the rows that an assignment depends on."""
    return {member_id: (row.topics, row.assignors) for member_id, row in members.items()}
