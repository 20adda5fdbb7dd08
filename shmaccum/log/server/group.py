# SPDX-License-Identifier: Apache-2.0
"""One consumer group: Kafka's classic protocol as a state machine (ClassicGroup, GroupMetadataManager; KIP-345, 394).

::

                        join                    all have joined           the leader's sync
      ┌──────> EMPTY ───────────> PREPARING ──────────────────> COMPLETING ────────────────> STABLE
      │                           ^   │ ^                          │                           │
      │    no member is left      │   │ └── join, leave, expiry ───┴─── join, leave, expiry ───┘
      └───────────────────────────┼───┘
                                  └── another round when a join changes something

Nothing here reads a clock, opens a file or uses a socket. Each call gets the time, and the answers that it decides are
in `Group.answers` until the caller takes them. So the same code runs in a server and in a simulation.

Rules, per state:

* EMPTY: no members. Offsets remain, and may be committed without a generation.
* PREPARING: every member has to join again. A join waits (is *parked*) until all have joined. The first round of an
  empty group waits ``initial_delay_ms`` for more members, and as long again after each of them. Later rounds end when
  all have joined, or at the largest rebalance time-out, which removes dynamic members that did not join.
* COMPLETING: the generation was incremented, and joins were answered. Syncs are parked until the leader's sync arrives.
  A member that does not sync until the rebalance time-out is removed.
* STABLE: syncs are answered at once.

A member is alive while it sends a heartbeat, join, sync or commit within its session time-out. While a join or sync is
parked, the session does not expire. If the connection of a parked request ends, the request still counts, as in Kafka:
the round ends when all have joined, and only the partitions of that member wait for its session to expire. Such a
member becomes the leader only if no other member can.

A new dynamic member first gets an id and must join again with it (MEMBER_ID_REQUIRED). An id that is not used within
the session time-out is dropped. A static member (one with a group instance id) replaces its predecessor, which is
fenced. If this changes nothing for the group, no round follows.
"""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

from shmaccum.log.files.broker_error import BrokerError

NO_GENERATION = -1


class GroupState(enum.Enum):
    """The states of a group. The values are the names in Kafka's tools."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Protocol(NamedTuple):
    """An assignment protocol of a member, with metadata for the leader."""

    name: str
    metadata: bytes


class Join(NamedTuple):
    """A request to join (JoinGroup)."""

    member_id: str
    """Empty if the member has no id yet."""
    instance_id: str | None
    """The group instance id of a static member, or None for a dynamic member."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    """The protocols, the preferred one first."""
    is_member_id_required: bool = True
    """Whether the version of the request supports MEMBER_ID_REQUIRED (4 and later)."""
    can_skip_assignment: bool = True
    """Whether the version of the request supports skip_assignment (9 and later)."""

    @property
    def size(self) -> int:
        """The size of the member's names and metadata."""
        return sum(len(protocol.name) + len(protocol.metadata) for protocol in self.protocols)


class JoinedMember(NamedTuple):
    """A member, as listed for the leader."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(NamedTuple):
    """The answer to a join."""

    error: BrokerError
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    """All members, for the leader only."""
    is_assignment_skipped: bool = False

    @property
    def values(self) -> dict[str, Any]:
        """The response to JoinGroup, by the names of Kafka's schema."""
        return {
            "error_code": self.error,
            "generation_id": self.generation if self.error is BrokerError.NONE else NO_GENERATION,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol or "",
            "leader": self.leader,
            "skip_assignment": self.is_assignment_skipped,
            "member_id": self.member_id,
            "members": [
                {"member_id": one.member_id, "group_instance_id": one.instance_id, "metadata": one.metadata}
                for one in self.members
            ],
        }


class SyncAnswer(NamedTuple):
    """The answer to a sync."""

    error: BrokerError
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""

    @property
    def values(self) -> dict[str, Any]:
        """The response to SyncGroup, by the names of Kafka's schema."""
        return {
            "error_code": self.error,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "assignment": self.assignment,
        }


class Answer(NamedTuple):
    """An answer, and the request that it belongs to."""

    token: Hashable
    content: JoinAnswer | SyncAnswer


class GroupLimits(NamedTuple):
    """The limits of the server (Kafka's group.* options)."""

    session_timeout_ms_min: int = 500
    session_timeout_ms_max: int = 30 * 60_000
    member_count_max: int = 10_000
    initial_delay_ms: int = 200


@dataclass(slots=True, eq=False)
class Member:
    """One member, with its last join."""

    member_id: str
    join: Join
    joining: Hashable | None = None
    """The parked join, or None."""
    syncing: Hashable | None = None
    is_gone: bool = False
    """True from the end of its parked request's connection until the member's next request."""
    has_synced: bool = False
    """Whether it has synced in this generation."""
    assignment: bytes = b""
    expires_at_ms: float = 0.0

    @property
    def instance_id(self) -> str | None:
        return self.join.instance_id

    @property
    def is_parked(self) -> bool:
        return self.joining is not None or self.syncing is not None

    def metadata(self, protocol: str | None) -> bytes:
        return next((known.metadata for known in self.join.protocols if known.name == protocol), b"")


@dataclass(slots=True)
class _Round:
    """The times of a state that waits for members."""

    ends_at_ms: float = math.inf
    is_first: bool = False
    """Whether this is the first round of an empty group, which waits for more members."""
    latest_end_ms: float = math.inf


def leaving_member(static: Mapping[str, str], member_id: str, instance_id: str) -> str | BrokerError:
    """Return the member id of a leaving static member, which may be named by its instance id alone.

    Args:
        static: member ids by instance id.
        member_id: the member id in the request, or empty.
        instance_id: the instance id in the request.
    """
    known_id = static.get(instance_id)
    if known_id is None:
        return BrokerError.UNKNOWN_MEMBER_ID
    return known_id if member_id in ("", known_id) else BrokerError.FENCED_INSTANCE_ID


@final
@dataclass(eq=False)
class Group:
    """A group of consumers.

    Attributes:
        group_id: its name.
        limits: the limits of the server.
        new_member_id: makes a unique member id from a client's name.
        state, generation, protocol_type, protocol, leader: as shown by DescribeGroups.
        members: the members by id, in the order of arrival.
        size: the size of the members' metadata and assignments.
        size_max: the largest size. A join or sync that would exceed it is rejected.
        answers: the answers that were decided but not taken yet.
    """

    group_id: str
    limits: GroupLimits
    new_member_id: Callable[[str], str]
    generation: int = 0
    state: GroupState = GroupState.EMPTY
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    size: int = 0
    size_max: float = math.inf
    answers: list[Answer] = field(default_factory=list)
    _promised: dict[str, float] = field(default_factory=dict)
    """Member ids that were issued but not used yet, with their expiry times."""
    _static: dict[str, str] = field(default_factory=dict)
    """Member ids by instance id."""
    _round: _Round = field(default_factory=_Round)

    @property
    def is_unused(self) -> bool:
        """True if the group has no member and no issued member id."""
        return not self.members and not self._promised

    def take_answers(self) -> list[Answer]:
        """Returns the answers that were decided since the last call."""
        answers, self.answers = self.answers, []
        return answers

    # --- join

    def join(self, token: Hashable, request: Join, now_ms: float) -> None:
        """Handles a join, of a new member or in another round. The answer may come later."""
        if (error := self._join_problem(request)) is not None:
            self._answer_join(token, JoinAnswer(error, request.member_id))
        elif not request.member_id:
            self._join_new(token, request, now_ms)
        elif (member := self.members.get(request.member_id)) is not None:
            self._join_again(token, member, request, now_ms)
        else:
            self._join_with_promised_id(token, request, now_ms)

    def _join_problem(self, request: Join) -> BrokerError | None:
        if not self.limits.session_timeout_ms_min <= request.session_timeout_ms <= self.limits.session_timeout_ms_max:
            return BrokerError.INVALID_SESSION_TIMEOUT
        if not request.protocols or not request.protocol_type:
            return BrokerError.INCONSISTENT_GROUP_PROTOCOL
        if not self._is_consistent(request):
            return BrokerError.INCONSISTENT_GROUP_PROTOCOL
        former = self.members.get(request.member_id)
        growth = request.size - (0 if former is None else former.join.size)
        return BrokerError.GROUP_MAX_SIZE_REACHED if self.size + growth > self.size_max else None

    def _is_consistent(self, request: Join) -> bool:
        """Returns whether the new member shares a protocol with the group."""
        others = [member for member in self.members.values() if member.member_id != request.member_id]
        if not others:
            return True
        names = {protocol.name for protocol in request.protocols}
        return request.protocol_type == self.protocol_type and bool(names & _common(others))

    def _join_new(self, token: Hashable, request: Join, now_ms: float) -> None:
        member_id = self.new_member_id(request.instance_id or request.client_id)
        if request.instance_id is not None and request.instance_id in self._static:
            self._replace_static(token, self._static[request.instance_id], member_id, request, now_ms)
        elif len(self.members) + len(self._promised) >= self.limits.member_count_max:
            self._answer_join(token, JoinAnswer(BrokerError.GROUP_MAX_SIZE_REACHED, ""))
        elif request.instance_id is None and request.is_member_id_required:
            self._promised[member_id] = now_ms + request.session_timeout_ms
            self._answer_join(token, JoinAnswer(BrokerError.MEMBER_ID_REQUIRED, member_id))
        else:
            self._add(token, member_id, request, now_ms)

    def _join_with_promised_id(self, token: Hashable, request: Join, now_ms: float) -> None:
        if request.instance_id is not None and request.instance_id in self._static:
            self._answer_join(token, JoinAnswer(BrokerError.FENCED_INSTANCE_ID, request.member_id))
        elif request.member_id not in self._promised:
            self._answer_join(token, JoinAnswer(BrokerError.UNKNOWN_MEMBER_ID, request.member_id))
        else:
            del self._promised[request.member_id]
            self._add(token, request.member_id, request, now_ms)

    def _add(self, token: Hashable, member_id: str, request: Join, now_ms: float) -> None:
        member = self.members[member_id] = Member(member_id, request)
        self.size += request.size
        if request.instance_id is not None:
            self._static[request.instance_id] = member_id
        if self.leader is None:
            self.leader = member_id
        self.protocol_type = request.protocol_type
        if self._round.is_first:
            self._round.ends_at_ms = min(now_ms + self.limits.initial_delay_ms, self._round.latest_end_ms)
        self._park_join(token, member, now_ms)

    def _replace_static(self, token: Hashable, former_id: str, member_id: str, request: Join, now_ms: float) -> None:
        """Replaces a static member that joined again under a new member id."""
        member = self.members.pop(former_id)
        self._fence(member)
        is_unchanged = _has_same_protocols(member.join, request)
        leader = self.leader
        member.member_id = member_id
        self._update(member, request)
        self.members[member_id] = member
        self._static[str(request.instance_id)] = member_id
        if leader == former_id:
            self.leader = member_id
        if self.state is GroupState.STABLE and is_unchanged:
            self._mark_connected(member, now_ms)
            self._answer_join(token, self._rejoined_in_place(member, former_leader=leader))
        else:
            self._park_join(token, member, now_ms)

    def _fence(self, member: Member) -> None:
        """Rejects the parked requests of the predecessor."""
        if member.joining is not None:
            self._answer_join(member.joining, JoinAnswer(BrokerError.FENCED_INSTANCE_ID, member.member_id))
        if member.syncing is not None:
            self.answers.append(Answer(member.syncing, SyncAnswer(BrokerError.FENCED_INSTANCE_ID)))
        member.joining = member.syncing = None

    def _rejoined_in_place(self, member: Member, *, former_leader: str | None) -> JoinAnswer:
        """Returns the answer to a leader in a stable group, so that it does not assign again. An old version of
        JoinGroup cannot skip the assignment, so its answer names the predecessor as the leader."""
        if self.leader == member.member_id and not member.join.can_skip_assignment:
            return self._joined(member)._replace(leader=former_leader or "", members=())
        return self._joined(member)._replace(is_assignment_skipped=self.leader == member.member_id)

    def _join_again(self, token: Hashable, member: Member, request: Join, now_ms: float) -> None:
        if request.instance_id is not None and self._static.get(request.instance_id) != member.member_id:
            self._answer_join(token, JoinAnswer(BrokerError.FENCED_INSTANCE_ID, request.member_id))
            return
        is_unchanged = _has_same_protocols(member.join, request)
        self._update(member, request)
        is_leader = self.leader == member.member_id
        is_known = self.state is GroupState.COMPLETING or (self.state is GroupState.STABLE and not is_leader)
        if is_known and is_unchanged:  # the previous answer was lost
            self._mark_connected(member, now_ms)
            self._answer_join(token, self._joined(member))
        else:
            self._park_join(token, member, now_ms)

    def _update(self, member: Member, request: Join) -> None:
        """Stores the member's new join."""
        self.size += request.size - member.join.size
        member.join = request

    def _park_join(self, token: Hashable, member: Member, now_ms: float) -> None:
        """Parks a join. It replaces an earlier parked join of the member, which the client has abandoned."""
        if member.joining is not None:
            self._answer_join(member.joining, JoinAnswer(BrokerError.UNKNOWN_MEMBER_ID, member.member_id))
        member.joining = token
        self._mark_connected(member, now_ms)
        if self.state is GroupState.PREPARING:
            self._maybe_complete(now_ms)
        else:
            self._prepare(now_ms)

    def _answer_join(self, token: Hashable, answer: JoinAnswer) -> None:
        self.answers.append(Answer(token, answer))

    def _joined(self, member: Member) -> JoinAnswer:
        return JoinAnswer(
            BrokerError.NONE,
            member.member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            self._members_for_leader() if member.member_id == self.leader else (),
        )

    def _members_for_leader(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol))
            for member in self.members.values()
        )

    # --- rounds

    def _prepare(self, now_ms: float) -> None:
        """Starts a round, in which every member has to join."""
        was_empty = self.state is GroupState.EMPTY
        for member in self.members.values():
            self._set_assignment(member, b"")
            if member.syncing is not None:
                self._extend_session(member, now_ms)
            self._refuse_sync(member, BrokerError.REBALANCE_IN_PROGRESS)
        self.state = GroupState.PREPARING
        if was_empty and self.limits.initial_delay_ms:
            self._round = _Round(
                now_ms + self.limits.initial_delay_ms, is_first=True, latest_end_ms=now_ms + self._rebalance_timeout_ms
            )
        else:
            self._round = _Round(now_ms + self._rebalance_timeout_ms)
            self._maybe_complete(now_ms)

    @property
    def _rebalance_timeout_ms(self) -> float:
        return max((_rebalance_timeout_ms(member.join) for member in self.members.values()), default=0)

    def _maybe_complete(self, now_ms: float) -> None:
        """Ends the round if all members have joined."""
        has_all = all(member.joining is not None for member in self.members.values()) and not self._promised
        if self.state is GroupState.PREPARING and has_all and not self._round.is_first:
            self._complete(now_ms)

    def _end_of_preparing(self, now_ms: float) -> None:
        """Ends the wait for joins."""
        self._round.is_first = False
        for member in list(self.members.values()):
            if member.joining is None and member.instance_id is None:
                self._remove(member)
        if self.members and not any(member.joining is not None for member in self.members.values()):
            self._round.ends_at_ms = now_ms + self._rebalance_timeout_ms  # only static members, and none has joined
        else:
            self._complete(now_ms)

    def _complete(self, now_ms: float) -> None:
        """Starts a new generation with the present members."""
        self.generation += 1
        if not self.members:
            self.state = GroupState.EMPTY
            self.leader = self.protocol = None
            self._round = _Round()
            return
        joined = [member for member in self.members.values() if member.joining is not None]
        leaders = [member.member_id for member in joined if not member.is_gone] or [joined[0].member_id]
        if self.leader not in leaders:
            self.leader = leaders[0]
        self.protocol = _elected(list(self.members.values()))
        self.state = GroupState.COMPLETING
        self._round = _Round(now_ms + self._rebalance_timeout_ms)
        for member in self.members.values():
            member.has_synced = member.joining is None
        for member in joined:
            token, member.joining = member.joining, None
            self._answer_join(token, self._joined(member))
            self._extend_session(member, now_ms)

    # --- sync

    def sync(
        self,
        token: Hashable,
        member_id: str,
        instance_id: str | None,
        generation: int,
        assignments: Sequence[tuple[str, bytes]],
        now_ms: float,
        *,
        protocol_type: str | None = None,
        protocol: str | None = None,
    ) -> None:
        """Handles a sync (SyncGroup). The leader's sync has all assignments. The answer may come later."""
        error = self._member_problem(member_id, instance_id, generation)
        if error is None and self._contradicts(protocol_type, protocol):
            error = BrokerError.INCONSISTENT_GROUP_PROTOCOL
        if error is None and self.state is GroupState.PREPARING:
            error = BrokerError.REBALANCE_IN_PROGRESS
        if error is None and self._exceeds_size_max(assignments):
            error = BrokerError.GROUP_MAX_SIZE_REACHED
        if error is not None:
            self.answers.append(Answer(token, SyncAnswer(error)))
            return
        member = self.members[member_id]
        member.has_synced = True
        self._mark_connected(member, now_ms)
        if self.state is GroupState.COMPLETING:
            self._refuse_sync(member, BrokerError.UNKNOWN_MEMBER_ID)
            member.syncing = token
            if member_id == self.leader:
                self._assign(dict(assignments), now_ms)
        else:
            self.answers.append(Answer(token, self._synced(member)))

    def _contradicts(self, protocol_type: str | None, protocol: str | None) -> bool:
        is_other_type = protocol_type is not None and protocol_type != self.protocol_type
        return is_other_type or (protocol is not None and protocol != self.protocol)

    def _exceeds_size_max(self, assignments: Sequence[tuple[str, bytes]]) -> bool:
        """Returns whether these assignments, in place of the present ones, would exceed the size limit."""
        former = sum(len(member.assignment) for member in self.members.values()) if assignments else 0
        return self.size - former + sum(len(assignment) for _, assignment in assignments) > self.size_max

    def _assign(self, assignments: dict[str, bytes], now_ms: float) -> None:
        self.state = GroupState.STABLE
        for member in self.members.values():
            self._set_assignment(member, assignments.get(member.member_id, b""))
        for member in self.members.values():
            token, member.syncing = member.syncing, None
            if token is not None:
                self._extend_session(member, now_ms)
                self.answers.append(Answer(token, self._synced(member)))

    def _set_assignment(self, member: Member, assignment: bytes) -> None:
        self.size += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def _synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(BrokerError.NONE, self.protocol_type, self.protocol, member.assignment)

    def _refuse_sync(self, member: Member, error: BrokerError) -> None:
        token, member.syncing = member.syncing, None
        if token is not None:
            self.answers.append(Answer(token, SyncAnswer(error)))

    def _end_of_syncing(self, now_ms: float) -> None:
        """Removes the members that did not sync in time."""
        silent = [member for member in self.members.values() if not member.has_synced]
        self._round.ends_at_ms = math.inf
        for member in silent:
            self._remove(member)
        if silent:
            self._prepare(now_ms)

    # --- heartbeat, leave, commit

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: float) -> BrokerError:
        """Handles a heartbeat. The answer asks the member to join if another round has started."""
        error = self._member_problem(member_id, instance_id, generation)
        if error is not None:
            return error
        self._mark_connected(self.members[member_id], now_ms)
        return BrokerError.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else BrokerError.NONE

    def commit_problem(self, member_id: str, instance_id: str | None, generation: int, now_ms: float) -> BrokerError:
        """Returns whether this member may commit offsets now. A commit also extends the session."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return BrokerError.NONE
        error = self._member_problem(member_id, instance_id, generation)
        if error is not None:
            return error
        self._mark_connected(self.members[member_id], now_ms)
        is_between = self.state is GroupState.COMPLETING
        return BrokerError.REBALANCE_IN_PROGRESS if is_between else BrokerError.NONE

    def leave(self, member_id: str, instance_id: str | None, now_ms: float) -> BrokerError:
        """Removes a member permanently. A static member may be named by its instance id alone."""
        if instance_id is not None:
            found = leaving_member(self._static, member_id, instance_id)
            if isinstance(found, BrokerError):
                return found
            member_id = found
        if self._promised.pop(member_id, None) is not None:
            self._maybe_complete(now_ms)
            return BrokerError.NONE
        if member_id not in self.members:
            return BrokerError.UNKNOWN_MEMBER_ID
        self._remove_and_rebalance(self.members[member_id], now_ms)
        return BrokerError.NONE

    def _member_problem(self, member_id: str, instance_id: str | None, generation: int) -> BrokerError | None:
        if instance_id is not None:
            if instance_id not in self._static:
                return BrokerError.UNKNOWN_MEMBER_ID
            if self._static[instance_id] != member_id:
                return BrokerError.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return BrokerError.UNKNOWN_MEMBER_ID
        return None if generation == self.generation else BrokerError.ILLEGAL_GENERATION

    def _mark_connected(self, member: Member, now_ms: float) -> None:
        """Marks the member as connected, and extends its session."""
        member.is_gone = False
        self._extend_session(member, now_ms)

    def _extend_session(self, member: Member, now_ms: float) -> None:
        member.expires_at_ms = now_ms + member.join.session_timeout_ms

    def _remove_and_rebalance(self, member: Member, now_ms: float) -> None:
        self._remove(member)
        if self.state in {GroupState.STABLE, GroupState.COMPLETING}:
            self._prepare(now_ms)
        else:
            self._maybe_complete(now_ms)

    def _remove(self, member: Member) -> None:
        if member.joining is not None:
            self._answer_join(member.joining, JoinAnswer(BrokerError.UNKNOWN_MEMBER_ID, member.member_id))
        self._refuse_sync(member, BrokerError.UNKNOWN_MEMBER_ID)
        del self.members[member.member_id]
        self.size -= member.join.size + len(member.assignment)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def remove_all(self) -> None:
        """Removes every member, and rejects the parked requests."""
        for member in list(self.members.values()):
            self._remove(member)

    # --- time

    @property
    def deadline_ms(self) -> float:
        """The next time at which `tick` has work. Infinite if there is none."""
        return min(self._deadlines(), default=math.inf)

    def _deadlines(self) -> Iterator[float]:
        if self.state in {GroupState.PREPARING, GroupState.COMPLETING, GroupState.STABLE}:
            yield self._round.ends_at_ms
        yield from self._promised.values()
        yield from (member.expires_at_ms for member in self.members.values() if not member.is_parked)

    def tick(self, now_ms: float) -> None:
        """Does the work that is due: drops unused ids, removes expired members, ends rounds."""
        self._forget_promised(now_ms)
        for member in list(self.members.values()):
            is_expired = not member.is_parked and member.expires_at_ms <= now_ms
            if is_expired and self.members.get(member.member_id) is member:
                self._remove_and_rebalance(member, now_ms)
        if self._round.ends_at_ms <= now_ms:
            if self.state is GroupState.PREPARING:
                self._end_of_preparing(now_ms)
            else:
                self._end_of_syncing(now_ms)

    def _forget_promised(self, now_ms: float) -> None:
        overdue = [member_id for member_id, until_ms in self._promised.items() if until_ms <= now_ms]
        for member_id in overdue:
            del self._promised[member_id]
        if overdue:
            self._maybe_complete(now_ms)

    def drop(self, token: Hashable) -> None:
        """Marks the connection of a parked request as ended. The request still counts, but its answer is not sent."""
        for member in self.members.values():
            if token in (member.joining, member.syncing):
                member.is_gone = True


def _rebalance_timeout_ms(join: Join) -> int:
    """Return the rebalance time-out, or the session time-out for version 0 of JoinGroup, which has none."""
    return join.rebalance_timeout_ms if join.rebalance_timeout_ms > 0 else join.session_timeout_ms


def _has_same_protocols(one: Join, other: Join) -> bool:
    return one.protocols == other.protocols


def _common(members: Sequence[Member]) -> set[str]:
    """Return the protocols that all members support."""
    return set.intersection(*({protocol.name for protocol in member.join.protocols} for member in members))


def _elected(members: Sequence[Member]) -> str:
    """Return the common protocol that most members prefer. Of equals, the first one is returned."""
    common = _common(members)
    votes = Counter(
        next(protocol.name for protocol in member.join.protocols if protocol.name in common) for member in members
    )
    return votes.most_common(1)[0][0]
