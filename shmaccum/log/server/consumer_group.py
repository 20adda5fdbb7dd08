# SPDX-License-Identifier: Apache-2.0
"""One consumer group whose partitions the server assigns: KIP-848 as a state machine (Kafka's ConsumerGroup).

::

    a member joins, leaves, expires or changes its topics; a topic grows ──> group epoch + 1       ASSIGNING
    the next heartbeat of any member                                     ──> targets of all        RECONCILING
    heartbeats of each member: revoke places, then take new ones         ──> target reached        STABLE

    a member:   STABLE ──> UNREVOKED: must revoke places, until it reports its places without them
                   ^  └──> UNRELEASED: waits for places that another member has not revoked yet
                   └─── at the target's epoch, with all places of the target

Every request is a heartbeat with the member's epoch: 0 joins, -1 leaves, -2 leaves temporarily (static members), and
any other epoch must be the member's present one. Nothing here reads a clock or uses a socket, as in `group`.

Rules:

* A place (a partition) has one owner at a time. A member owns a place from the answer that assigns it until the member
  reports its places without it, leaves, or is removed. So two members that act on their last answers never consume the
  same place. As in Kafka, a report is taken as true. If a member reports its places without one, misses the answer that
  revokes it, and then acts on an older answer, it consumes that place until its next heartbeat.
* A member stays at its epoch while it has places to revoke. It is removed if that takes longer than its rebalance
  time-out. It moves to the target's epoch when all its places are in its target.
* A heartbeat with another epoch is fenced (FENCED_MEMBER_EPOCH): the member drops its places and joins again. The
  previous epoch is accepted if the reported places still belong to the member, because the answer may have been lost.
* A commit with another epoch gets STALE_MEMBER_EPOCH, so a member cannot commit offsets of places that it lost.
* A member without a heartbeat for the session time-out is removed. A static member keeps its places as long while it is
  away (-2). The member that joins again with its instance id takes over the places.
* The member id identifies a member. A static member may omit its instance id except in its first heartbeat and in -2.
  An administrator can remove it (-1) by its member id alone.
* A member subscribes to names and to one pattern. Each of its heartbeats resolves the pattern again, so the member
  notices new and deleted topics.
* Members are only in memory. After a restart, their heartbeats get UNKNOWN_MEMBER_ID, and they join again. The group
  epoch is in the offsets file, so that it never decreases.
"""

from __future__ import annotations

import enum
import math
import uuid
from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, final

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.consumer_assignors import ASSIGNORS, DEFAULT_ASSIGNOR, Place, Places
from shmaccum.log.server.group import leaving_member

JOINS, LEAVES, IS_AWAY = 0, -1, -2
"""The special member epochs."""
UNCHANGED = -1
"""The value of an unchanged rebalance time-out."""
NO_PLACES: Places = frozenset()
NO_PATTERN = ""
TEXT_OVERHEAD = 64
"""The bytes that a text uses in addition to its characters."""


class ConsumerGroupState(enum.Enum):
    """The states of a group. The values are the names in Kafka's tools."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class MemberState(enum.Enum):
    """The state of one member relative to its target."""

    STABLE = "stable"
    UNREVOKED = "unrevoked"
    UNRELEASED = "unreleased"


class TopicShape(NamedTuple):
    """The facts about a topic that an assignor uses."""

    topic_id: uuid.UUID
    partition_count: int


class Heartbeat(NamedTuple):
    """A request of a member (ConsumerGroupHeartbeat). None means unchanged."""

    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = UNCHANGED
    topic_names: frozenset[str] | None = None
    assignor: str | None = None
    owned: Places | None = None
    client_id: str = ""
    client_host: str = ""
    topic_pattern: str | None = None

    @property
    def has_topics(self) -> bool:
        """True if the heartbeat has the member's subscription."""
        return self.topic_names is not None or self.topic_pattern is not None

    @property
    def size(self) -> int:
        """The size of the member's texts. If it is 0, the stored texts do not change."""
        if not self.has_topics:
            return 0
        names = self.topic_names or ()
        texts = (self.member_id, self.instance_id, self.rack_id, self.client_id, self.topic_pattern, *names)
        return sum(TEXT_OVERHEAD + len(text) for text in texts if text is not None)

    @property
    def is_full(self) -> bool:
        """True if every field is set. Such a member expects a complete answer."""
        return self.rebalance_timeout_ms != UNCHANGED and self.has_topics and self.owned is not None


class HeartbeatAnswer(NamedTuple):
    """The answer to an accepted heartbeat."""

    member_id: str
    member_epoch: int
    assignment: Places | None = None
    """The places of the member, or None if they are unchanged."""


class HeartbeatRefusedError(Exception):
    """A heartbeat was rejected.

    Attributes:
        error: Kafka's error code.
    """

    def __init__(self, error: BrokerError, sentence: str) -> None:
        super().__init__(error, sentence)
        self.error = error
        self.sentence = sentence

    def __str__(self) -> str:
        return self.sentence


class ConsumerLimits(NamedTuple):
    """The limits of the server (Kafka's group.consumer.* options)."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    member_count_max: int = 10_000


@dataclass(slots=True, eq=False)
class ConsumerMember:
    """One member, with its last heartbeat."""

    member_id: str
    instance_id: str | None
    rebalance_timeout_ms: int
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    topic_pattern: str = NO_PATTERN
    matched_names: frozenset[str] = frozenset()
    """The topics that matched its pattern at its last heartbeat."""
    assignor: str | None = None
    epoch: int = JOINS
    former_epoch: int = JOINS
    state: MemberState = MemberState.STABLE
    assigned: Places = NO_PLACES
    """The places that the member owns and may keep."""
    revoked: Places = NO_PLACES
    """The places that the member has to revoke."""
    size: int = 0
    """The size of its texts."""
    expires_at_ms: float = 0.0
    revoked_until_ms: float = math.inf

    @property
    def subscribed_names(self) -> frozenset[str]:
        """The topics that it subscribes to, by name and by pattern."""
        return self.topic_names | self.matched_names


@final
@dataclass(eq=False)
class ConsumerGroup:
    """A group of consumers to which the server assigns partitions.

    Attributes:
        group_id: its name.
        limits: the limits of the server.
        generation: the group epoch.
        assignment_epoch: the group epoch of `targets`.
        assignor: the name of the assignor that computed `targets`.
        members: the members by id, in the order of arrival.
        targets: the target places by member id.
        owned: the places that a member has.
        size: the size of the members' texts.
        size_max: the largest size. A heartbeat that would exceed it is rejected.
    """

    group_id: str
    limits: ConsumerLimits
    generation: int = 0
    assignment_epoch: int = 0
    assignor: str = DEFAULT_ASSIGNOR
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    targets: dict[str, Places] = field(default_factory=dict)
    owned: set[Place] = field(default_factory=set)
    size: int = 0
    size_max: float = math.inf
    _static: dict[str, str] = field(default_factory=dict)
    """Member ids by instance id."""
    _shapes: Mapping[str, TopicShape] = field(default_factory=dict)
    """The subscribed topics at the time of the last targets."""

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.generation > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        is_settled = all(
            member.state is MemberState.STABLE and member.epoch in (self.assignment_epoch, IS_AWAY)
            for member in self.members.values()
        )
        return ConsumerGroupState.STABLE if is_settled else ConsumerGroupState.RECONCILING

    # --- heartbeat

    def heartbeat(
        self,
        request: Heartbeat,
        topics: Mapping[str, TopicShape],
        now_ms: float,
        matching: Callable[[str], frozenset[str]],
    ) -> HeartbeatAnswer:
        """Handles a heartbeat: a join, a report of places or topics, or a leave.

        Args:
            request: the heartbeat.
            topics: every topic.
            now_ms: the time.
            matching: returns the topics that match a pattern and that the member may see. Raises HeartbeatRefusedError.

        Raises:
            HeartbeatRefusedError: the heartbeat was rejected and changed nothing.
        """
        self._check(request)
        if request.member_epoch < JOINS:
            return self._leave(request)
        self._check_size(request)
        names = self._names_matching(request, matching)
        former_count = len(self.members)
        member = self._joining(request) if request.member_epoch == JOINS else self._known(request)
        is_new = len(self.members) > former_count
        before = member.assigned
        member.expires_at_ms = now_ms + self.limits.session_timeout_ms
        # The last condition is true if a subscribed topic was created, deleted or grew.
        if self._update(member, request, names) or is_new or self._subscribed(topics) != self._shapes:
            self.generation += 1
        if self.generation > self.assignment_epoch:
            self._assign(topics)
        self._reconcile(member, request.owned, now_ms)
        has_changed = request.is_full or member.assigned != before or request.member_epoch != member.epoch
        return HeartbeatAnswer(member.member_id, member.epoch, member.assigned if has_changed else None)

    @staticmethod
    def _check(request: Heartbeat) -> None:
        """Rejects a heartbeat that no Kafka client sends."""
        problem = None
        if not request.member_id:
            problem = "a heartbeat needs a member id"
        elif "" in (request.instance_id, request.rack_id):
            problem = "an instance id or a rack id may be null but not empty"
        elif request.member_epoch < IS_AWAY:
            problem = f"{request.member_epoch} is not a member epoch"
        elif request.member_epoch == IS_AWAY and request.instance_id is None:
            problem = "a member that leaves temporarily needs an instance id"
        elif request.member_epoch == JOINS and (request.rebalance_timeout_ms < 0 or not request.has_topics):
            problem = "a joining member needs a rebalance time-out and topics"
        elif request.member_epoch == JOINS and request.owned:
            problem = "a joining member cannot have partitions"
        if problem is not None:
            raise HeartbeatRefusedError(BrokerError.INVALID_REQUEST, problem)
        if request.assignor is not None and request.assignor not in ASSIGNORS:
            known = ", ".join(ASSIGNORS)
            raise HeartbeatRefusedError(
                BrokerError.UNSUPPORTED_ASSIGNOR, f"unknown assignor {request.assignor!r}: use one of {known}"
            )

    def _check_size(self, request: Heartbeat) -> None:
        former = self.members.get(request.member_id)
        growth = request.size - (0 if former is None else former.size)
        if request.size and growth > 0 and self.size + growth > self.size_max:
            raise HeartbeatRefusedError(
                BrokerError.GROUP_MAX_SIZE_REACHED,
                f"the members of the group {self.group_id} use {self.size} bytes, and {growth} more are too many: "
                "subscribe to fewer topics, or raise group_memory_max of the server",
            )

    # --- members

    def _joining(self, request: Heartbeat) -> ConsumerMember:
        """Returns the member that joins: a new one, one that joins again, or the successor of a static member."""
        former_id = self._static.get(request.instance_id) if request.instance_id is not None else None
        if former_id is not None and former_id != request.member_id:
            return self._successor(self.members[former_id], request)
        member = self.members.get(request.member_id)
        if member is None:
            return self._new_member(request)
        if request.instance_id not in (None, member.instance_id):
            raise HeartbeatRefusedError(
                BrokerError.INVALID_REQUEST, f"the member {request.member_id} has another instance id"
            )
        member.epoch = member.former_epoch = JOINS
        return member

    def _new_member(self, request: Heartbeat) -> ConsumerMember:
        if len(self.members) >= self.limits.member_count_max:
            raise HeartbeatRefusedError(
                BrokerError.GROUP_MAX_SIZE_REACHED, f"the group has the most members allowed, {len(self.members)}"
            )
        member = self.members[request.member_id] = ConsumerMember(
            request.member_id, request.instance_id, request.rebalance_timeout_ms
        )
        if request.instance_id is not None:
            self._static[request.instance_id] = request.member_id
        return member

    def _successor(self, member: ConsumerMember, request: Heartbeat) -> ConsumerMember:
        """Replaces a static member that was away. The successor has a new member id and the former places."""
        if member.epoch != IS_AWAY:
            raise HeartbeatRefusedError(
                BrokerError.UNRELEASED_INSTANCE_ID,
                f"the instance id {request.instance_id} belongs to the member {member.member_id} until it leaves",
            )
        if request.member_id in self.members:
            raise HeartbeatRefusedError(
                BrokerError.INVALID_REQUEST, f"the member id {request.member_id} is already in use"
            )
        del self.members[member.member_id]
        self.targets[request.member_id] = self.targets.pop(member.member_id, NO_PLACES)
        member.member_id = request.member_id
        member.epoch = member.former_epoch = JOINS
        self.members[request.member_id] = member
        self._static[str(request.instance_id)] = request.member_id
        return member

    def _known(self, request: Heartbeat) -> ConsumerMember:
        """Returns the member of the heartbeat after checking its epoch."""
        member = self._named(request)
        is_late = (
            request.member_epoch == member.former_epoch
            and request.owned is not None
            and request.owned <= member.assigned
        )
        if request.member_epoch != member.epoch and not is_late:
            raise HeartbeatRefusedError(
                BrokerError.FENCED_MEMBER_EPOCH,
                f"the member has epoch {member.epoch}, not {request.member_epoch}: it must drop its partitions and "
                "join again",
            )
        return member

    def _named(self, request: Heartbeat) -> ConsumerMember:
        if request.instance_id is not None:
            known_id = self._static.get(request.instance_id)
            if known_id is not None and known_id != request.member_id:
                raise HeartbeatRefusedError(
                    BrokerError.FENCED_INSTANCE_ID, f"another member has the instance id {request.instance_id}"
                )
        member = self.members.get(request.member_id)
        if member is None or request.instance_id not in (None, member.instance_id):
            raise HeartbeatRefusedError(
                BrokerError.UNKNOWN_MEMBER_ID, f"the group {self.group_id} has no member {request.member_id}"
            )
        return member

    def _leave(self, request: Heartbeat) -> HeartbeatAnswer:
        member = self._named(request)
        if request.member_epoch == LEAVES:
            self._remove(member)
        else:
            self._release_revoked(member)
            member.epoch = IS_AWAY
        return HeartbeatAnswer(request.member_id, request.member_epoch)

    def leave(self, member_id: str, instance_id: str | None, _now_ms: float) -> BrokerError:
        """Removes a member for an administrator (LeaveGroup). A static one may be named by its instance id alone."""
        if instance_id is not None:
            found = leaving_member(self._static, member_id, instance_id)
            if isinstance(found, BrokerError):
                return found
            member_id = found
        if member_id not in self.members:
            return BrokerError.UNKNOWN_MEMBER_ID
        self._remove(self.members[member_id])
        return BrokerError.NONE

    def _remove(self, member: ConsumerMember) -> None:
        self._release(member)
        del self.members[member.member_id]
        self.size -= member.size
        self.targets.pop(member.member_id, None)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        self.generation += 1

    def _release(self, member: ConsumerMember) -> None:
        """Releases all places of the member."""
        self._release_revoked(member)
        self.owned -= member.assigned
        member.assigned = NO_PLACES

    def _release_revoked(self, member: ConsumerMember) -> None:
        """Releases the places that the member has revoked."""
        self.owned -= member.revoked
        member.revoked = NO_PLACES
        member.revoked_until_ms = math.inf
        member.state = MemberState.STABLE

    def _names_matching(self, request: Heartbeat, matching: Callable[[str], frozenset[str]]) -> frozenset[str]:
        """Returns the topics that match the pattern of the heartbeat or, without one, the member's stored pattern."""
        pattern = request.topic_pattern
        if pattern is None:
            # The member that sent the heartbeat or, if it is a new static member, its predecessor.
            known_id = self._static.get(request.instance_id) if request.instance_id is not None else None
            former = self.members.get(known_id or request.member_id)
            pattern = NO_PATTERN if former is None else former.topic_pattern
        return matching(pattern) if pattern else frozenset()

    def _update(self, member: ConsumerMember, request: Heartbeat, matched_names: frozenset[str]) -> bool:
        """Stores the fields of a heartbeat. Returns True if the target depends on a change."""
        former = member.subscribed_names, member.assignor
        member.client_id, member.client_host = request.client_id, request.client_host
        if request.rack_id is not None:
            member.rack_id = request.rack_id
        if request.rebalance_timeout_ms != UNCHANGED:
            member.rebalance_timeout_ms = request.rebalance_timeout_ms
        if request.topic_names is not None:
            member.topic_names = request.topic_names
        if request.topic_pattern is not None:
            member.topic_pattern = request.topic_pattern
        if request.has_topics:
            self.size += request.size - member.size
            member.size = request.size
        member.matched_names = matched_names
        if request.assignor is not None:
            member.assignor = request.assignor
        return former != (member.subscribed_names, member.assignor)

    # --- target

    def _subscribed(self, topics: Mapping[str, TopicShape]) -> dict[str, TopicShape]:
        names = {name for member in self.members.values() for name in member.subscribed_names}
        return {name: topics[name] for name in names if name in topics}

    def _assign(self, topics: Mapping[str, TopicShape]) -> None:
        """Computes all targets for the present group epoch, with the assignor that most members request."""
        self._shapes = self._subscribed(topics)
        asked = Counter(member.assignor for member in self.members.values() if member.assignor is not None)
        self.assignor = asked.most_common(1)[0][0] if asked else DEFAULT_ASSIGNOR
        ordered = sorted(self.members.values(), key=lambda member: (member.instance_id or "", member.member_id))
        subscriptions = {member.member_id: self._topic_ids(member) for member in ordered}
        counts = {shape.topic_id: shape.partition_count for shape in self._shapes.values()}
        self.targets = ASSIGNORS[self.assignor](subscriptions, counts, self.targets)
        self.assignment_epoch = self.generation

    def _topic_ids(self, member: ConsumerMember) -> frozenset[uuid.UUID]:
        return frozenset(self._shapes[name].topic_id for name in member.subscribed_names if name in self._shapes)

    # --- reconciliation

    def _reconcile(self, member: ConsumerMember, owned: Places | None, now_ms: float) -> None:
        """Moves the member one step toward its target."""
        if member.state is MemberState.STABLE and member.epoch == self.assignment_epoch:
            return
        if member.state is MemberState.UNREVOKED:
            if owned is None or owned & member.revoked:
                return
            self._release_revoked(member)
        target = self.targets[member.member_id]
        kept, superfluous = member.assigned & target, member.assigned - target
        member.assigned = kept
        if superfluous:
            member.revoked = superfluous
            if owned is None or owned & superfluous:
                member.state = MemberState.UNREVOKED
                member.revoked_until_ms = now_ms + member.rebalance_timeout_ms
                return
            self._release_revoked(member)
        self._assign_free(member, target)

    def _assign_free(self, member: ConsumerMember, target: Places) -> None:
        """Assigns the free places of the target to the member, and sets its epoch to the target's."""
        free = target - self.owned
        member.assigned |= free
        self.owned |= free
        member.state = MemberState.STABLE if member.assigned == target else MemberState.UNRELEASED
        if member.epoch != self.assignment_epoch:
            member.former_epoch, member.epoch = member.epoch, self.assignment_epoch

    # --- offsets

    def commit_problem(self, member_id: str, _instance_id: str | None, epoch: int, _now_ms: float) -> BrokerError:
        """Returns whether this member may commit offsets now."""
        return BrokerError.NONE if epoch < 0 and not self.members else self.epoch_problem(member_id, epoch)

    def epoch_problem(self, member_id: str, epoch: int) -> BrokerError:
        """Returns whether the member exists and has this epoch."""
        member = self.members.get(member_id)
        if member is None:
            return BrokerError.UNKNOWN_MEMBER_ID
        return BrokerError.NONE if epoch == member.epoch else BrokerError.STALE_MEMBER_EPOCH

    # --- time

    @property
    def deadline_ms(self) -> float:
        """The next time at which `tick` has work. Infinite if there is none."""
        deadlines = (min(member.expires_at_ms, member.revoked_until_ms) for member in self.members.values())
        return min(deadlines, default=math.inf)

    def tick(self, now_ms: float) -> None:
        """Removes the members whose session or revocation has timed out."""
        for member in list(self.members.values()):
            if min(member.expires_at_ms, member.revoked_until_ms) <= now_ms:
                self._remove(member)

    @property
    def is_unused(self) -> bool:
        """True if the group has no member."""
        return not self.members

    def drop(self, token: Hashable) -> None:
        """Does nothing, because no heartbeat waits for an answer."""
