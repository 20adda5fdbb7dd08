# SPDX-License-Identifier: Apache-2.0
"""One consumer group: Kafka's classic protocol as a state machine (ClassicGroup, GroupMetadataManager; KIP-345, 394).

::

                        join                    all have joined           the leader's sync
      ┌──────> EMPTY ───────────> PREPARING ──────────────────> COMPLETING ────────────────> STABLE
      │                           ^   │ ^                          │                           │
      │    nobody is left         │   │ └───── join, leave, death ─┴────── join, leave, death ─┘
      └───────────────────────────┼───┘
                                  └── another round when a join changes something

Nothing here reads a clock, opens a file or knows a socket. Each call is told the time, and the answers that a call
decides lie in `Group.answers` until the caller takes them. So the same code runs under a server and in a simulation.

Rules, per state:

* EMPTY: no members. Offsets are kept, and may be committed without a generation.
* PREPARING: every member has to join again; a join waits (is *parked*) until all have. The first round of an empty
  group waits ``initial_delay_ms`` for more members, and as long again for each that comes. Later rounds end when all
  have joined, or at the largest rebalance time-out: dynamic members that did not join are out then, static ones stay.
* COMPLETING: the generation is counted up, joins are answered, and syncs are parked until the leader's comes. A member
  that has joined and does not sync until the rebalance time-out is out.
* STABLE: syncs are answered at once.

A member is alive while it talks: a heartbeat, a join, a sync or a commit within its session time-out. A parked join or
sync is a sign of life for as long as it is parked. If the connection of a parked request ends, the request still
counts, as in Kafka: the round ends as soon as all have joined, and only the share of that member waits for its session
to end. Such a member does not become the leader while another member can.

A new dynamic member is given an id first, and has to come back with it (MEMBER_ID_REQUIRED); an id that is not used
within the session time-out is forgotten. A static member (one with a group instance id) takes over the place of its
former self, which is fenced; where nothing changed for the group, no round follows.
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
    """Names as Kafka's tools show them."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Protocol(NamedTuple):
    """A way to assign partitions that a member knows, with a message about itself for the leader."""

    name: str
    metadata: bytes


class Join(NamedTuple):
    """A request to take part (JoinGroup)."""

    member_id: str
    """Empty: none yet."""
    instance_id: str | None
    """The group instance id of a static member; None for a dynamic one."""
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    """The one it likes best first."""
    is_member_id_required: bool = True
    """The request's version knows MEMBER_ID_REQUIRED (4 and later)."""
    can_skip_assignment: bool = True
    """The request's version knows skip_assignment (9 and later)."""

    @property
    def size(self) -> int:
        """Bytes that the member says about itself."""
        return sum(len(protocol.name) + len(protocol.metadata) for protocol in self.protocols)


class JoinedMember(NamedTuple):
    """A member, as the leader is told about it."""

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
    """All members; the leader alone is told."""
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
    """An answer, and the request it belongs to."""

    token: Hashable
    content: JoinAnswer | SyncAnswer


class GroupLimits(NamedTuple):
    """The bounds that a server sets (Kafka's group.* options)."""

    session_timeout_ms_min: int = 500
    session_timeout_ms_max: int = 30 * 60_000
    member_count_max: int = 10_000
    initial_delay_ms: int = 200


@dataclass(slots=True, eq=False)
class Member:
    """One member, with what it said when it joined last."""

    member_id: str
    join: Join
    joining: Hashable | None = None
    """The parked join; None: it does not wait."""
    syncing: Hashable | None = None
    is_gone: bool = False
    """True after the connection of its parked request ended, until the member sends another request."""
    has_synced: bool = False
    """True when it has synced in this generation."""
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
    """When the state that waits for members ends."""

    ends_at_ms: float = math.inf
    is_first: bool = False
    """True for an empty group's first round, which waits for more members."""
    latest_end_ms: float = math.inf


def leaving_member(static: Mapping[str, str], member_id: str, instance_id: str) -> str | BrokerError:
    """The member id of a static member that is to leave; its instance id alone is enough to name it.

    Args:
        static: instance id -> member id.
        member_id: the member id that was told; empty: none was.
        instance_id: the instance id that was told.
    """
    known_id = static.get(instance_id)
    if known_id is None:
        return BrokerError.UNKNOWN_MEMBER_ID
    return known_id if member_id in ("", known_id) else BrokerError.FENCED_INSTANCE_ID


@final
@dataclass(slots=True, eq=False)
class Group:
    """A group of consumers.

    Attributes:
        group_id: its name.
        limits: the bounds that the server sets.
        new_member_id: makes an id of a client's name; nobody else has it.
        state, generation, protocol_type, protocol, leader: as DescribeGroups shows them.
        members: member id -> member, in the order in which they came.
        size: bytes that the members say about themselves, and of their assignments.
        size_max: a join or a sync that would bring more bytes is refused.
        answers: the answers that were decided and that nobody took yet.
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
    """Member ids that were given out and not yet used -> until when."""
    _static: dict[str, str] = field(default_factory=dict)
    """Instance id -> member id."""
    _round: _Round = field(default_factory=_Round)

    @property
    def is_unused(self) -> bool:
        """True while the group has no member, and no member id was given out."""
        return not self.members and not self._promised

    def take_answers(self) -> list[Answer]:
        """The answers that were decided since the last call."""
        answers, self.answers = self.answers, []
        return answers

    # --- join

    def join(self, token: Hashable, request: Join, now_ms: float) -> None:
        """A member wants to take part, or comes to another round. The answer may come later."""
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
        """The group and the newcomer have a protocol in common."""
        others = [member for member in self.members.values() if member.member_id != request.member_id]
        if not others:
            return True
        names = {protocol.name for protocol in request.protocols}
        return request.protocol_type == self.protocol_type and bool(names & _common(others))

    def _join_new(self, token: Hashable, request: Join, now_ms: float) -> None:
        member_id = self.new_member_id(request.instance_id or request.client_id)
        if request.instance_id is not None and request.instance_id in self._static:
            self._take_over(token, self._static[request.instance_id], member_id, request, now_ms)
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

    def _take_over(self, token: Hashable, former_id: str, member_id: str, request: Join, now_ms: float) -> None:
        """A static member came back under a new member id, to the place of its former self."""
        member = self.members.pop(former_id)
        self._fence(member)
        is_unchanged = _same_protocols(member.join, request)
        leader = self.leader
        member.member_id = member_id
        self._note(member, request)
        self.members[member_id] = member
        self._static[str(request.instance_id)] = member_id
        if leader == former_id:
            self.leader = member_id
        if self.state is GroupState.STABLE and is_unchanged:
            self._hear(member, now_ms)
            self._answer_join(token, self._rejoined_in_place(member, former_leader=leader))
        else:
            self._park_join(token, member, now_ms)

    def _fence(self, member: Member) -> None:
        """Refuses the requests that the former self still waits for."""
        if member.joining is not None:
            self._answer_join(member.joining, JoinAnswer(BrokerError.FENCED_INSTANCE_ID, member.member_id))
        if member.syncing is not None:
            self.answers.append(Answer(member.syncing, SyncAnswer(BrokerError.FENCED_INSTANCE_ID)))
        member.joining = member.syncing = None

    def _rejoined_in_place(self, member: Member, *, former_leader: str | None) -> JoinAnswer:
        """A leader that cannot be told to skip the assignment is told that its former self leads: it assigns none."""
        if self.leader == member.member_id and not member.join.can_skip_assignment:
            return self._joined(member)._replace(leader=former_leader or "", members=())
        return self._joined(member)._replace(is_assignment_skipped=self.leader == member.member_id)

    def _join_again(self, token: Hashable, member: Member, request: Join, now_ms: float) -> None:
        if request.instance_id is not None and self._static.get(request.instance_id) != member.member_id:
            self._answer_join(token, JoinAnswer(BrokerError.FENCED_INSTANCE_ID, request.member_id))
            return
        is_unchanged = _same_protocols(member.join, request)
        self._note(member, request)
        is_leader = self.leader == member.member_id
        is_known = self.state is GroupState.COMPLETING or (self.state is GroupState.STABLE and not is_leader)
        if is_known and is_unchanged:  # its answer was lost
            self._hear(member, now_ms)
            self._answer_join(token, self._joined(member))
        else:
            self._park_join(token, member, now_ms)

    def _note(self, member: Member, request: Join) -> None:
        """Takes over what a member says about itself now."""
        self.size += request.size - member.join.size
        member.join = request

    def _park_join(self, token: Hashable, member: Member, now_ms: float) -> None:
        """A second join of a member takes the place of the first, of which the client knows nothing any more."""
        if member.joining is not None:
            self._answer_join(member.joining, JoinAnswer(BrokerError.UNKNOWN_MEMBER_ID, member.member_id))
        member.joining = token
        self._hear(member, now_ms)
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
            self._told_to_leader() if member.member_id == self.leader else (),
        )

    def _told_to_leader(self) -> tuple[JoinedMember, ...]:
        return tuple(
            JoinedMember(member.member_id, member.instance_id, member.metadata(self.protocol))
            for member in self.members.values()
        )

    # --- rounds

    def _prepare(self, now_ms: float) -> None:
        """Begins a round: everybody has to join."""
        was_empty = self.state is GroupState.EMPTY
        for member in self.members.values():
            self._give(member, b"")
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
        """Ends the round as soon as nobody is missing."""
        has_all = all(member.joining is not None for member in self.members.values()) and not self._promised
        if self.state is GroupState.PREPARING and has_all and not self._round.is_first:
            self._complete(now_ms)

    def _end_of_preparing(self, now_ms: float) -> None:
        """The time for joining is over."""
        self._round.is_first = False
        for member in list(self.members.values()):
            if member.joining is None and member.instance_id is None:
                self._remove(member)
        if self.members and not any(member.joining is not None for member in self.members.values()):
            self._round.ends_at_ms = now_ms + self._rebalance_timeout_ms  # static members alone, and all are away
        else:
            self._complete(now_ms)

    def _complete(self, now_ms: float) -> None:
        """Everybody who takes part is known: a new generation."""
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
            self._touch(member, now_ms)

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
        """A member asks for its assignment; the leader brings everybody's (SyncGroup). The answer may come later."""
        error = self._member_problem(member_id, instance_id, generation)
        if error is None and self._contradicts(protocol_type, protocol):
            error = BrokerError.INCONSISTENT_GROUP_PROTOCOL
        if error is None and self.state is GroupState.PREPARING:
            error = BrokerError.REBALANCE_IN_PROGRESS
        if error is None and self._outgrows(assignments):
            error = BrokerError.GROUP_MAX_SIZE_REACHED
        if error is not None:
            self.answers.append(Answer(token, SyncAnswer(error)))
            return
        member = self.members[member_id]
        member.has_synced = True
        self._hear(member, now_ms)
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

    def _outgrows(self, assignments: Sequence[tuple[str, bytes]]) -> bool:
        """True when these assignments, instead of those of now, make the group too large."""
        former = sum(len(member.assignment) for member in self.members.values()) if assignments else 0
        return self.size - former + sum(len(assignment) for _, assignment in assignments) > self.size_max

    def _assign(self, assignments: dict[str, bytes], now_ms: float) -> None:
        self.state = GroupState.STABLE
        for member in self.members.values():
            self._give(member, assignments.get(member.member_id, b""))
        for member in self.members.values():
            token, member.syncing = member.syncing, None
            if token is not None:
                self._touch(member, now_ms)
                self.answers.append(Answer(token, self._synced(member)))

    def _give(self, member: Member, assignment: bytes) -> None:
        self.size += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def _synced(self, member: Member) -> SyncAnswer:
        return SyncAnswer(BrokerError.NONE, self.protocol_type, self.protocol, member.assignment)

    def _refuse_sync(self, member: Member, error: BrokerError) -> None:
        token, member.syncing = member.syncing, None
        if token is not None:
            self.answers.append(Answer(token, SyncAnswer(error)))

    def _end_of_syncing(self, now_ms: float) -> None:
        """Members that joined and did not sync in time are out."""
        silent = [member for member in self.members.values() if not member.has_synced]
        self._round.ends_at_ms = math.inf
        for member in silent:
            self._remove(member)
        if silent:
            self._prepare(now_ms)

    # --- heartbeat, leave, commit

    def heartbeat(self, member_id: str, instance_id: str | None, generation: int, now_ms: float) -> BrokerError:
        """A sign of life; the answer says whether another round has begun."""
        error = self._member_problem(member_id, instance_id, generation)
        if error is not None:
            return error
        self._hear(self.members[member_id], now_ms)
        return BrokerError.REBALANCE_IN_PROGRESS if self.state is GroupState.PREPARING else BrokerError.NONE

    def commit_problem(self, member_id: str, instance_id: str | None, generation: int, now_ms: float) -> BrokerError:
        """Whether this member may commit offsets now; a commit is a sign of life, too."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return BrokerError.NONE
        error = self._member_problem(member_id, instance_id, generation)
        if error is not None:
            return error
        self._hear(self.members[member_id], now_ms)
        is_between = self.state is GroupState.COMPLETING
        return BrokerError.REBALANCE_IN_PROGRESS if is_between else BrokerError.NONE

    def leave(self, member_id: str, instance_id: str | None, now_ms: float) -> BrokerError:
        """A member goes for good; a static one may be named by its instance id alone."""
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
        self._lose(self.members[member_id], now_ms)
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

    def _hear(self, member: Member, now_ms: float) -> None:
        """The member sent a request."""
        member.is_gone = False
        self._touch(member, now_ms)

    def _touch(self, member: Member, now_ms: float) -> None:
        member.expires_at_ms = now_ms + member.join.session_timeout_ms

    def _lose(self, member: Member, now_ms: float) -> None:
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
        """Forgets every member, and refuses the requests that wait."""
        for member in list(self.members.values()):
            self._remove(member)

    # --- time

    @property
    def deadline_ms(self) -> float:
        """When `tick` has something to do at the latest; infinite: never."""
        return min(self._deadlines(), default=math.inf)

    def _deadlines(self) -> Iterator[float]:
        if self.state in {GroupState.PREPARING, GroupState.COMPLETING, GroupState.STABLE}:
            yield self._round.ends_at_ms
        yield from self._promised.values()
        yield from (member.expires_at_ms for member in self.members.values() if not member.is_parked)

    def tick(self, now_ms: float) -> None:
        """Does what is due: promised ids and silent members are forgotten, rounds end."""
        self._forget_promised(now_ms)
        for member in list(self.members.values()):
            if member.is_parked:
                self._touch(member, now_ms)
            elif member.expires_at_ms <= now_ms and self.members.get(member.member_id) is member:
                self._lose(member, now_ms)
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
        """The connection of a parked request ended. The request still counts, and its answer goes nowhere."""
        for member in self.members.values():
            if token in (member.joining, member.syncing):
                member.is_gone = True


def _rebalance_timeout_ms(join: Join) -> int:
    """Version 0 of JoinGroup has none and uses the session time-out."""
    return join.rebalance_timeout_ms if join.rebalance_timeout_ms > 0 else join.session_timeout_ms


def _same_protocols(one: Join, other: Join) -> bool:
    return one.protocols == other.protocols


def _common(members: Sequence[Member]) -> set[str]:
    """The protocols that every member knows."""
    return set.intersection(*({protocol.name for protocol in member.join.protocols} for member in members))


def _elected(members: Sequence[Member]) -> str:
    """Each member votes for the one it likes best among those that all know; the first of equals wins."""
    common = _common(members)
    votes = Counter(
        next(protocol.name for protocol in member.join.protocols if protocol.name in common) for member in members
    )
    return votes.most_common(1)[0][0]
