# SPDX-License-Identifier: Apache-2.0
"""The coordinator of consumer groups: requests in, one state machine and one offsets file per group, answers out.

A group has one of two state machines: `Group` for members of the classic protocol, `ConsumerGroup` for those of
KIP-848. Members of both kinds never share a group. A group without members becomes one of the other kind by a join.

A group is loaded when a request needs it: its lock is taken, its file read. Offsets and the generation are in the file
before they are answered. Members are not in the file, so after a restart they get UNKNOWN_MEMBER_ID and join again.

A refused request creates no group and leaves no file. Groups end as in Kafka: a group without members is deleted when
its last commit, or the end of its last member, is older than `offsets_retention_ms`. If it has no offset, it is deleted
after `EMPTY_KEPT_S`. At most `GROUP_COUNT_MAX` groups exist.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, final

from shmaccum.common import clock
from shmaccum.common.descriptors import share
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import CorruptLogError, GroupModeError, InvalidArgumentError, LogBusyError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.groups.members import LocalMember, local_members
from shmaccum.log.groups.offsets_file import (
    Committed,
    GroupLock,
    OffsetsFile,
    group_id_of,
    has_group,
    offsets_paths,
)
from shmaccum.log.server import local_groups
from shmaccum.log.server.call import Call, Values
from shmaccum.log.server.consumer_group import (
    JOINS,
    ConsumerGroup,
    ConsumerGroupState,
    ConsumerLimits,
    Heartbeat,
    HeartbeatRefusedError,
    TopicShape,
)
from shmaccum.log.server.consumer_requests import assignment_values, described_values, heartbeat_of, refusal_values
from shmaccum.log.server.group import (
    NO_GENERATION,
    Group,
    GroupLimits,
    GroupState,
    Join,
    JoinAnswer,
    Protocol,
    SyncAnswer,
)
from shmaccum.log.server.numbers import GroupLag
from shmaccum.log.server.steps import Steps, Stepwise, answer_each
from shmaccum.log.server.topic_patterns import TopicPatterns
from shmaccum.log.server.topics import NO_TOPIC_ID, LogTopics
from shmaccum.log.server.users import ANYBODY, User

logger = logging.getLogger(__name__)

METADATA_SIZE_MAX = 4096
"""Characters of the metadata of an offset, as Java counts them (offset.metadata.max.bytes)."""
GROUP_SHARE_MAX = 0.25
"""Of the memory of all groups, the share that one group may have."""
LOADED_MAX, LOADED_PARTS = 1000, 16
"""Groups that are loaded at once: so many, or this part of the limit of open files, because each has two. As many more
are kept as they were read last."""
STABLE_VERSION = 7
"""Of OffsetFetch: from this version on a client may ask for offsets alone that no transaction can change."""
CLASSIC_TYPE, CONSUMER_TYPE = "classic", "consumer"
"""The kinds of groups, as ListGroups tells them."""
CONSUMER = "consumer"
SHAPES_KEPT_MS = 1000
"""How long the numbers of partitions are taken to be as they were."""
SETTLED = {GroupState.STABLE, GroupState.EMPTY}
GROUP_COUNT_MAX = 10_000
"""Groups of a log: each has two files. A further group is refused with GROUP_MAX_SIZE_REACHED."""
EMPTY_KEPT_S = 600.0
"""How long a group without members and offsets is kept (offsets.retention.check.interval.ms)."""
RETAINED_PER_CALL = 20
"""Groups that one call of `retain` examines: each costs a look at its file."""
GENERATION_VERSION = 9
"""Of OffsetCommit: from this version on, a member of a group that does not exist gets GROUP_ID_NOT_FOUND."""


def _left_nothing(error: BrokerError, call: Call) -> Values:
    """The answer to a LeaveGroup of a group that cannot be left: an unknown group has none of the members."""
    if error is not BrokerError.UNKNOWN_MEMBER_ID or call.version < 3:
        return {"error_code": error, "members": []}
    members = [
        {"member_id": one.member_id, "group_instance_id": one.group_instance_id, "error_code": error}
        for one in call.message.members
    ]
    return {"error_code": BrokerError.NONE, "members": members}


def _new_member_id(client_id: str) -> str:
    return f"{client_id}-{uuid.uuid4()}"


class _Loaded:
    """A group, and its files."""

    def __init__(self, directory: str, group_id: str, limits: GroupLimits, *, is_synced: bool) -> None:
        self.lock = GroupLock(directory, group_id)
        try:
            self.file = OffsetsFile(directory, group_id, is_writer=True, is_created=False, is_synced=is_synced)
        except BaseException:
            self.lock.release()
            raise
        self.group: Group | ConsumerGroup = Group(group_id, limits, _new_member_id, generation=self.file.generation)
        self.noted_generation = self.file.generation

    def as_classic(self, limits: GroupLimits) -> Group | None:
        """The group for members of the classic protocol; None: it has members of the other one."""
        if isinstance(self.group, ConsumerGroup) and not self.group.members:
            self.group = Group(self.group.group_id, limits, _new_member_id, generation=self.group.generation)
        return self.group if isinstance(self.group, Group) else None

    def as_consumer(self, limits: ConsumerLimits) -> ConsumerGroup | None:
        """The group for members of KIP-848; None: it has members of the classic protocol."""
        if isinstance(self.group, Group) and self.group.state is GroupState.EMPTY:
            self.group = ConsumerGroup(self.group.group_id, limits, generation=self.group.generation)
        return self.group if isinstance(self.group, ConsumerGroup) else None

    def note_generation(self) -> None:
        """Writes a new generation down, or a new group epoch."""
        group = self.group
        if group.generation == self.noted_generation:
            return
        if isinstance(group, ConsumerGroup):
            self.file.note_generation(group.generation, CONSUMER, group.assignor)
        elif group.state in SETTLED:
            self.file.note_generation(group.generation, group.protocol_type, group.protocol)
        else:
            return
        self.noted_generation = group.generation

    @property
    def is_unused(self) -> bool:
        """True for a group that has nothing to remember: no member, no offset and no file."""
        return self.file.is_missing and self.group.is_unused

    @property
    def is_idle(self) -> bool:
        """No member would notice that the group is unloaded."""
        return self.group.state in {GroupState.EMPTY, ConsumerGroupState.EMPTY}

    @property
    def group_type(self) -> str:
        return CONSUMER_TYPE if isinstance(self.group, ConsumerGroup) else CLASSIC_TYPE

    @property
    def state_name(self) -> str:
        return str(self.group.state.value)

    @property
    def protocol_type(self) -> str:
        if isinstance(self.group, ConsumerGroup):
            return CONSUMER
        return self.group.protocol_type or self.file.protocol_type or ""

    def close(self) -> None:
        self.file.close()
        self.lock.release()


@final
class Coordinator:
    """All groups of a log directory.

    Args:
        directory: of the log.
        topics: to know which partitions there are.
        limits: the bounds for members of the classic protocol.
        consumer_limits: the bounds for members of KIP-848.
        memory_max: bytes that the members of all groups say about themselves, and of their assignments.
        offsets_retention_ms: how long a group without members is kept.
        is_synced: commits are on disk before they are answered.
        clock_ms: a clock that goes on evenly, in milliseconds.
    """

    def __init__(
        self,
        directory: str,
        topics: LogTopics,
        limits: GroupLimits,
        consumer_limits: ConsumerLimits,
        *,
        memory_max: float = math.inf,
        offsets_retention_ms: float = math.inf,
        is_synced: bool = False,
        clock_ms: Callable[[], float] = lambda: clock.monotonic() * 1000,
    ) -> None:
        self._directory = directory
        self._topics = topics
        self._limits = limits
        self._consumer_limits = consumer_limits
        self._memory_max = memory_max
        self._offsets_retention_ms = offsets_retention_ms
        self._is_synced = is_synced
        self._clock_ms = clock_ms
        self.address = ""
        """HOST:PORT of the server, for commands of this host."""
        self._groups: dict[str, _Loaded] = {}
        self._read_files: OrderedDict[str, OffsetsFile] = OrderedDict()
        """Files of groups that are not loaded, as they were read last; the oldest go first."""
        self._loaded_max = share(LOADED_MAX, LOADED_PARTS)
        self._group_count = len(offsets_paths(directory))
        self._to_retain: list[str] = []
        """Paths of offsets files that `retain` has still to examine in this pass."""
        self._refused: set[str] = set()
        self._deadline_ms: float | None = None
        self._shapes: dict[str, TopicShape] = {}
        self._shapes_until_ms = -math.inf
        self._patterns = TopicPatterns()

    # --- groups

    def _load(self, group_id: str, *, has_members: bool = True) -> _Loaded | BrokerError:
        """The group, ready to be written; or why not. The group without a name has no members (KIP-289)."""
        if not group_id and has_members:
            return BrokerError.INVALID_GROUP_ID
        self._deadline_ms = None  # the request may set an earlier one
        loaded = self._groups.get(group_id)
        if loaded is None:
            if len(self._groups) >= self._loaded_max and not self._unload_one():
                return BrokerError.COORDINATOR_NOT_AVAILABLE
            if self._group_count >= GROUP_COUNT_MAX and not has_group(self._directory, group_id):
                return BrokerError.GROUP_MAX_SIZE_REACHED
            try:
                loaded = _Loaded(self._directory, group_id, self._limits, is_synced=self._is_synced)
            except GroupModeError:
                # JoinGroup has no room for a sentence, so the server's log has it, once for each group.
                if group_id not in self._refused:
                    self._refused.add(group_id)
                    logger.warning("remote members are refused: %s", local_groups.refusal(group_id))
                return BrokerError.INCONSISTENT_GROUP_PROTOCOL
            except (LogBusyError, CorruptLogError, OSError):
                return BrokerError.COORDINATOR_NOT_AVAILABLE
            self._groups[group_id] = loaded
            self._group_count += loaded.file.is_missing
            self._read_files.pop(group_id, None)
            self._sign(loaded)
        return loaded

    def _sign(self, loaded: _Loaded) -> None:
        with contextlib.suppress(OSError):  # commands cannot find this server then
            loaded.lock.sign(self.address)

    def _local_members(self, group_id: str) -> list[LocalMember]:
        """The members of a group that needs no server; none of a group that this server has loaded."""
        if group_id in self._groups or not group_id:
            return []
        with contextlib.suppress(OSError):
            return local_members(self._directory, group_id)
        return []

    def _unload_one(self) -> bool:
        """Lets go of a group without members; its offsets and its generation are in its file."""
        idle = next((name for name, one in self._groups.items() if one.is_idle), None)
        if idle is None:
            return False
        self._groups.pop(idle).close()
        return True

    def _load_known(
        self, group_id: str, missing: BrokerError = BrokerError.UNKNOWN_MEMBER_ID, *, has_members: bool = True
    ) -> _Loaded | BrokerError:
        """As `_load`, for a request that makes no group: for a group that does not exist, `missing` is the error."""
        if (group_id or not has_members) and group_id not in self._groups and not has_group(self._directory, group_id):
            return missing
        return self._load(group_id, has_members=has_members)

    def _release_unused(self, loaded: _Loaded) -> None:
        """Forgets a group that has nothing to remember, and removes its lock file."""
        if loaded.is_unused and self._groups.get(loaded.group.group_id) is loaded:
            del self._groups[loaded.group.group_id]
            self._group_count -= 1
            with contextlib.suppress(OSError):  # an empty lock file stays
                loaded.lock.remove_files()
            loaded.close()

    def _settle(self, loaded: _Loaded) -> None:
        """Writes a new generation down, and sends the answers that were decided."""
        loaded.note_generation()
        self._send_answers(loaded)
        self._release_unused(loaded)

    @staticmethod
    def _send_answers(loaded: _Loaded) -> None:
        answers = [] if isinstance(loaded.group, ConsumerGroup) else loaded.group.take_answers()
        for token, content in answers:
            assert isinstance(token, Call)
            token.answer(_joined(content) if isinstance(content, JoinAnswer) else _synced(content))

    @property
    def deadline_ms(self) -> float:
        """When `tick` has something to do at the latest."""
        if self._deadline_ms is None:
            deadlines_ms = (loaded.group.deadline_ms for loaded in self._groups.values())
            self._deadline_ms = min(deadlines_ms, default=math.inf)
        return self._deadline_ms

    def tick(self) -> None:
        """Ends sessions and rounds whose time is over."""
        now_ms = self._clock_ms()
        if now_ms < self.deadline_ms:
            return
        self._deadline_ms = None
        for loaded in list(self._groups.values()):
            if loaded.group.deadline_ms <= now_ms:
                loaded.group.tick(now_ms)
                self._settle(loaded)

    def retain(self) -> None:
        """Deletes groups that no process has used for long, a few in each call. Call it once a second.

        Groups whose lock file was removed or replaced are locked again.
        """
        for loaded in [each for each in self._groups.values() if not each.lock.has_its_name]:
            self._lock_again(loaded)
        if not self._to_retain:
            self._to_retain = offsets_paths(self._directory)
            unwritten = sum(loaded.file.is_missing for loaded in self._groups.values())
            self._group_count = len(self._to_retain) + unwritten
        for path in self._to_retain[-RETAINED_PER_CALL:]:
            with contextlib.suppress(OSError, CorruptLogError):
                self._maybe_expire(path)
        del self._to_retain[-RETAINED_PER_CALL:]

    def _lock_again(self, loaded: _Loaded) -> None:
        """Locks a group in its new lock file. If another process has that lock, the members are told to join anew."""
        group_id = loaded.group.group_id
        try:
            lock = GroupLock(self._directory, group_id)
        except LogBusyError as error:
            logger.error(
                "the files of the group %r were removed, and this server has it no longer: %s", group_id, error
            )
            if isinstance(loaded.group, Group):
                loaded.group.remove_all()
            self._send_answers(loaded)
            loaded.close()
            del self._groups[group_id]
        except OSError:
            return  # the log is away: requests say so, and the next call tries again
        else:
            logger.error("the files of the group %r were removed or replaced. The group is locked again", group_id)
            loaded.lock.release()
            loaded.lock = lock
            self._sign(loaded)

    def _maybe_expire(self, path: str) -> None:
        age_s = time.time() - os.stat(path).st_mtime
        group_id = group_id_of(path) if age_s >= min(EMPTY_KEPT_S, self._offsets_retention_ms / 1000) else None
        if group_id is None or ((loaded := self._groups.get(group_id)) is not None and not loaded.group.is_unused):
            return
        file = OffsetsFile(self._directory, group_id, is_writer=False)
        if file.pending or (file.offsets and age_s * 1000 < self._offsets_retention_ms):
            return
        if self._deleted(group_id) is BrokerError.NONE:
            logger.info("the group %r is deleted: it had no members for %.0f s", group_id, age_s)

    def drop(self, call: Call) -> None:
        """The connection of a request that waits ended."""
        loaded = self._groups.get(getattr(call.message, "group_id", ""))
        if loaded is not None:
            loaded.group.drop(call)

    # --- members

    def join(self, call: Call) -> None:
        """JoinGroup."""
        loaded = self._load(call.message.group_id)
        if isinstance(loaded, BrokerError):
            call.answer(_joined(JoinAnswer(loaded, call.message.member_id)))
            return
        group = loaded.as_classic(self._limits)
        if group is None:
            call.answer(_joined(JoinAnswer(BrokerError.INCONSISTENT_GROUP_PROTOCOL, call.message.member_id)))
            return
        group.size_max = self._size_max(group)
        group.join(call, _join_of(call), self._clock_ms())
        self._settle(loaded)

    def _size_max(self, group: Group | ConsumerGroup) -> float:
        """Bytes that a group may have now: a share of the memory of all groups, as far as the others leave it."""
        others = sum(one.group.size for one in self._groups.values()) - group.size
        return min(self._memory_max * GROUP_SHARE_MAX, self._memory_max - others)

    def sync(self, call: Call) -> None:
        """SyncGroup."""
        message = call.message
        loaded = self._load_known(message.group_id)
        if isinstance(loaded, BrokerError) or not isinstance(loaded.group, Group):
            error = loaded if isinstance(loaded, BrokerError) else BrokerError.UNKNOWN_MEMBER_ID
            call.answer(_synced(SyncAnswer(error)))
            return
        loaded.group.size_max = self._size_max(loaded.group)
        loaded.group.sync(
            call,
            message.member_id,
            message.group_instance_id,
            message.generation_id,
            [(one.member_id, bytes(one.assignment)) for one in message.assignments],
            self._clock_ms(),
            protocol_type=message.protocol_type,
            protocol=message.protocol_name,
        )
        self._settle(loaded)

    def heartbeat(self, call: Call) -> None:
        """Heartbeat."""
        message = call.message
        loaded = self._load_known(message.group_id)
        group = loaded if isinstance(loaded, BrokerError) else loaded.group
        if isinstance(group, Group):
            error = group.heartbeat(
                message.member_id, message.group_instance_id, message.generation_id, self._clock_ms()
            )
        else:
            error = group if isinstance(group, BrokerError) else BrokerError.UNKNOWN_MEMBER_ID
        call.answer({"error_code": error})

    def leave(self, call: Call) -> Steps:
        """LeaveGroup: one member, or from version 3 on several."""
        message = call.message
        loaded = self._load_known(message.group_id)
        if isinstance(loaded, BrokerError):
            call.answer(_left_nothing(loaded, call))
            return
        now_ms = self._clock_ms()
        if call.version < 3:
            call.answer({"error_code": loaded.group.leave(message.member_id, None, now_ms)})
            self._settle(loaded)
            return
        members = yield from answer_each(message.members, lambda one: self._left(message.group_id, one))
        call.answer({"error_code": BrokerError.NONE, "members": members})

    def _left(self, group_id: str, member: Any) -> Values:
        loaded = self._load_known(group_id)
        if isinstance(loaded, BrokerError):
            error = loaded
        else:
            error = loaded.group.leave(member.member_id, member.group_instance_id, self._clock_ms())
            self._settle(loaded)
        return {"member_id": member.member_id, "group_instance_id": member.group_instance_id, "error_code": error}

    def consumer_heartbeat(self, call: Call) -> None:
        """ConsumerGroupHeartbeat."""
        is_joining = call.message.member_epoch == JOINS
        load = self._load if is_joining else self._load_known
        loaded = load(call.message.group_id)
        if isinstance(loaded, BrokerError):
            is_local = loaded is BrokerError.INCONSISTENT_GROUP_PROTOCOL
            call.answer(refusal_values(loaded, local_groups.refusal(call.message.group_id) if is_local else None))
            return
        try:
            call.answer(self._beaten(loaded, heartbeat_of(call), call.user))
        except HeartbeatRefusedError as refusal:
            call.answer(refusal_values(refusal.error, str(refusal)))
            self._release_unused(loaded)

    def _beaten(self, loaded: _Loaded, request: Heartbeat, user: User) -> Values:
        group = loaded.as_consumer(self._consumer_limits)
        if group is None:
            raise HeartbeatRefusedError(
                BrokerError.GROUP_ID_NOT_FOUND,
                f"the group {loaded.group.group_id} has members that use the classic protocol",
            )
        group.size_max = self._size_max(group)
        matching = functools.partial(self._matching, user)
        answer = group.heartbeat(request, self._topic_shapes(), self._clock_ms(), matching)
        self._settle(loaded)
        return {
            "error_code": BrokerError.NONE,
            "error_message": None,
            "member_id": answer.member_id,
            "member_epoch": answer.member_epoch,
            "heartbeat_interval_ms": self._consumer_limits.heartbeat_interval_ms,
            "assignment": assignment_values(answer.assignment),
        }

    def _matching(self, user: User, pattern: str) -> frozenset[str]:
        """The topics that match a pattern and that the principal sees."""
        try:
            names = self._patterns.matching(pattern, self._topic_shapes())
        except InvalidArgumentError as error:
            raise HeartbeatRefusedError(BrokerError.INVALID_REGULAR_EXPRESSION, str(error)) from None
        return names if user is ANYBODY else frozenset(name for name in names if user.sees("topic", name))

    def _topic_shapes(self) -> Mapping[str, TopicShape]:
        """Every topic that has an id, looked at anew from time to time: a sender beside the server makes more."""
        now_ms = self._clock_ms()
        if now_ms >= self._shapes_until_ms:
            shapes = {
                name: TopicShape(self._topics.topic_id(name), self._topics.partition_count(name))
                for name in self._topics.names()
            }
            shapes = {name: shape for name, shape in shapes.items() if shape.topic_id != NO_TOPIC_ID}
            if shapes != self._shapes:
                self._shapes = shapes
            self._shapes_until_ms = now_ms + SHAPES_KEPT_MS
        return self._shapes

    # --- offsets

    def commit(self, call: Call) -> Steps:
        """OffsetCommit: the valid offsets are in the file, as one frame, before the answer goes."""
        message = call.message
        offsets, errors = yield from self.judged_offsets(message, has_epochs=call.version >= 6)
        loaded = self._load_for_commit(
            message.group_id, message.generation_id_or_member_epoch, has_not_found=call.version >= GENERATION_VERSION
        )
        if isinstance(loaded, BrokerError):
            group_error = loaded
        else:
            group_error = loaded.group.commit_problem(
                message.member_id, message.group_instance_id, message.generation_id_or_member_epoch, self._clock_ms()
            )
            if group_error is BrokerError.NONE:
                errors.update(self._commit(loaded, offsets))
            self._release_unused(loaded)
        told = {} if group_error is not BrokerError.NONE else errors
        call.answer({"topics": [_committed(topic, told, group_error) for topic in message.topics]})

    def _load_for_commit(self, group_id: str, generation: int, *, has_not_found: bool) -> _Loaded | BrokerError:
        """The group of a commit. Only a commit outside of a generation creates a group, as in Kafka."""
        if generation < 0:
            return self._load(group_id, has_members=False)
        return self._load_known(
            group_id, BrokerError.GROUP_ID_NOT_FOUND if has_not_found else BrokerError.ILLEGAL_GENERATION
        )

    @staticmethod
    def _commit(loaded: _Loaded, offsets: Mapping[TopicPartition, Committed]) -> dict[TopicPartition, BrokerError]:
        """Writes offsets down; the errors of those that could not be written."""
        try:
            loaded.file.commit(offsets)
        except OSError:
            return dict.fromkeys(offsets, BrokerError.KAFKA_STORAGE_ERROR)
        return {}

    def judged_offsets(
        self, message: Any, *, has_epochs: bool
    ) -> Stepwise[tuple[dict[TopicPartition, Committed], dict[TopicPartition, BrokerError]]]:
        """The offsets of a commit that can be taken, and the errors of the others."""
        errors: dict[TopicPartition, BrokerError] = {}
        offsets: dict[TopicPartition, Committed] = {}
        time_ms = int(time.time() * 1000)
        for topic in message.topics:
            for one in topic.partitions:
                place = TopicPartition(topic.name, one.partition_index)
                error = self._commit_problem(place, one)
                if error is None:
                    epoch = one.committed_leader_epoch if has_epochs else -1
                    offsets[place] = Committed(one.committed_offset, epoch, one.committed_metadata or "", time_ms)
                else:
                    errors[place] = error
                yield None
        return offsets, errors

    def commit_of_transaction(
        self, call: Call, offsets: Mapping[TopicPartition, Committed], errors: dict[TopicPartition, BrokerError]
    ) -> dict[TopicPartition, BrokerError] | BrokerError:
        """TxnOffsetCommit: the valid offsets are in the file, and count when the transaction is committed.

        Args:
            call: the request.
            offsets: those that are valid.
            errors: of the others.

        Returns:
            The errors of single partitions, or that of all.
        """
        message = call.message
        generation = message.generation_id if call.version >= 3 else NO_GENERATION
        loaded = self._load_for_commit(message.group_id, generation, has_not_found=False)
        if isinstance(loaded, BrokerError):
            return loaded
        try:
            error = self._commit_pending(loaded, call, offsets)
            return errors if error is BrokerError.NONE else error
        finally:
            self._release_unused(loaded)

    def _commit_pending(self, loaded: _Loaded, call: Call, offsets: Mapping[TopicPartition, Committed]) -> BrokerError:
        message = call.message
        if call.version >= 3 and (message.generation_id != NO_GENERATION or message.member_id):
            error = loaded.group.commit_problem(
                message.member_id, message.group_instance_id, message.generation_id, self._clock_ms()
            )
            if error is not BrokerError.NONE:
                return error
        try:
            loaded.file.commit_pending(message.producer_id, offsets)
        except OSError:
            return BrokerError.COORDINATOR_NOT_AVAILABLE
        return BrokerError.NONE

    def end_transaction(self, group_id: str, producer_id: int, *, is_commit: bool) -> bool:
        """A transaction is decided: its offsets count, or are dropped; False: that is to be tried again.

        A group that has none of them is left alone: consumers on this host, or another server, may have its lock.
        """
        with contextlib.suppress(CorruptLogError, OSError):
            file = self._file_of(group_id)
            if file is None or producer_id not in file.pending:
                return True
        loaded = self._load(group_id)
        if isinstance(loaded, BrokerError):
            return False
        try:
            loaded.file.end_pending(producer_id, is_commit=is_commit)
        except OSError:
            return False
        return True

    def _commit_problem(self, place: TopicPartition, one: Any) -> BrokerError | None:
        if not 0 <= place.partition < self._topics.partition_count(place.topic):
            return BrokerError.UNKNOWN_TOPIC_OR_PARTITION
        characters = len((one.committed_metadata or "").encode("utf-16-le", "surrogatepass")) // 2
        return BrokerError.OFFSET_METADATA_TOO_LARGE if characters > METADATA_SIZE_MAX else None

    def fetch_offsets(self, call: Call) -> Steps:
        """OffsetFetch: of one group, or from version 8 on of several."""
        message = call.message
        if call.version >= 8:
            groups = []
            for group in message.groups:
                found = yield from self._fetched_group(group, call)
                groups.append(found)
                yield None
            call.answer({"groups": groups})
        else:
            is_stable = call.version >= STABLE_VERSION and message.require_stable
            error, topics = yield from self._fetched(message.group_id, message.topics, is_stable=is_stable)
            call.answer({"error_code": error, "topics": topics})

    def _fetched_group(self, group: Any, call: Call) -> Stepwise[Values]:
        problem = self._epoch_problem(group) if call.version >= 9 else BrokerError.NONE
        if problem is not BrokerError.NONE:
            return {"group_id": group.group_id, "topics": [], "error_code": problem}
        is_stable = call.message.require_stable
        error, topics = yield from self._fetched(group.group_id, group.topics, is_stable=is_stable)
        return {"group_id": group.group_id, "topics": topics, "error_code": error}

    def _epoch_problem(self, asked: Any) -> BrokerError:
        """Whether a member of KIP-848 that asks for offsets is at its own epoch; others are not judged."""
        loaded = self._groups.get(asked.group_id)
        if asked.member_epoch < 0 or loaded is None or not isinstance(loaded.group, ConsumerGroup):
            return BrokerError.NONE
        return loaded.group.epoch_problem(asked.member_id or "", asked.member_epoch)

    def _fetched(
        self, group_id: str, topics: Iterable[Any] | None, *, is_stable: bool
    ) -> Stepwise[tuple[BrokerError, list[Values]]]:
        """The offsets of a group, by topic.

        Args:
            group_id: the group.
            topics: those that are asked for; None: all that have an offset.
            is_stable: where a transaction may change an offset, the answer is an error (KIP-447).
        """
        try:
            file = self._file_of(group_id)
            offsets = {} if file is None else file.offsets
        except (CorruptLogError, OSError):
            return BrokerError.COORDINATOR_NOT_AVAILABLE, []
        asked = sorted(offsets) if topics is None else _asked_places(topics)
        told: dict[str, list[Values]] = {}
        for place in asked:
            is_unstable = is_stable and file is not None and file.is_pending(place)
            told.setdefault(place.topic, []).append(_told_offset(place, offsets, is_unstable=is_unstable))
            yield None
        return BrokerError.NONE, [{"name": topic, "partitions": partitions} for topic, partitions in told.items()]

    def _offsets_of(self, group_id: str) -> Mapping[TopicPartition, Committed]:
        """The offsets of a group."""
        file = self._file_of(group_id)
        return {} if file is None else file.offsets

    def _file_of(self, group_id: str) -> OffsetsFile | None:
        """The offsets file of a group, None where it has none. This call loads no group, and reads the frames alone
        that a file got since."""
        loaded = self._groups.get(group_id)
        if loaded is not None:
            return loaded.file
        if not has_group(self._directory, group_id):
            os.stat(self._directory)  # of a log that is away nobody knows the groups
            self._read_files.pop(group_id, None)
            return None
        file = self._read_files.pop(group_id, None) or OffsetsFile(self._directory, group_id, is_writer=False)
        file.catch_up()
        self._read_files[group_id] = file
        if len(self._read_files) > self._loaded_max:
            self._read_files.popitem(last=False)
        return file

    def delete_offsets(self, call: Call) -> Steps:
        """OffsetDelete (KIP-496): not of topics that a living group consumes."""
        message = call.message
        places: set[TopicPartition] = set()
        for topic in message.topics:
            for one in topic.partitions:
                places.add(TopicPartition(topic.name, one.partition_index))
                yield None
        loaded = self._load_known(message.group_id, BrokerError.GROUP_ID_NOT_FOUND, has_members=False)
        if isinstance(loaded, BrokerError):
            call.answer({"error_code": loaded, "topics": []})
            return
        error = BrokerError.GROUP_SUBSCRIBED_TO_TOPIC if loaded.group.members else BrokerError.NONE
        if error is BrokerError.NONE:
            loaded.file.forget(places)
        call.answer(
            {"error_code": BrokerError.NONE, "topics": [_each_partition(topic, error) for topic in message.topics]}
        )

    # --- looking

    def _known_ids(self) -> Stepwise[Sequence[str]]:
        """Every group, in order; each file is a step."""
        known = {name for name, one in self._groups.items() if not one.group.is_unused}
        for path in offsets_paths(self._directory):
            if (group_id := group_id_of(path)) is not None:
                known.add(group_id)
            yield None
        return sorted(known)

    def _is_known(self, group_id: str) -> bool:
        loaded = self._groups.get(group_id)
        return has_group(self._directory, group_id) or (loaded is not None and not loaded.group.is_unused)

    def describe(self, call: Call) -> Steps:
        """DescribeGroups."""
        groups = yield from answer_each(
            call.message.groups, lambda name: self._described(name, call.version, self._is_known(name))
        )
        call.answer({"groups": groups})

    def _described(self, group_id: str, version: int, is_known: bool) -> Values:
        if members := self._local_members(group_id):
            return local_groups.described(group_id, members)
        loaded = self._groups.get(group_id)
        group = loaded.group if loaded is not None else None
        is_known = is_known and not isinstance(group, ConsumerGroup)
        is_missing = not is_known and version >= 6
        return {
            "error_code": BrokerError.GROUP_ID_NOT_FOUND if is_missing else BrokerError.NONE,
            "error_message": f"there is no classic group {group_id}" if is_missing else None,
            "group_id": group_id,
            "group_state": (loaded.state_name if loaded else GroupState.EMPTY.value) if is_known else "Dead",
            "protocol_type": (loaded.protocol_type if loaded else CONSUMER) if is_known else "",
            "protocol_data": (group.protocol if isinstance(group, Group) else None) or "",
            "members": _described_members(group) if isinstance(group, Group) else [],
            "authorized_operations": set(),
        }

    def describe_consumer_groups(self, call: Call) -> Steps:
        """ConsumerGroupDescribe: the groups whose members use KIP-848; Kafka's tools ask DescribeGroups for others."""
        groups = yield from answer_each(call.message.group_ids, self._described_consumer_group)
        call.answer({"groups": groups})

    def _described_consumer_group(self, group_id: str) -> Values:
        loaded = self._groups.get(group_id)
        group = loaded.group if loaded is not None and isinstance(loaded.group, ConsumerGroup) else None
        return described_values(group_id, group, self._topics.name_of)

    def list(self, call: Call) -> Steps:
        """ListGroups."""
        message = call.message
        states = {state.lower() for state in message.states_filter or ()} if call.version >= 4 else set()
        types = {kind.lower() for kind in message.types_filter or ()} if call.version >= 5 else set()
        groups = []
        for name in (yield from self._known_ids()):
            groups.append(self._listed(name))
            yield None
        kept = [
            group
            for group in groups
            if (not states or group["group_state"].lower() in states) and (not types or group["group_type"] in types)
        ]
        call.answer({"error_code": BrokerError.NONE, "groups": kept})

    def _listed(self, group_id: str) -> Values:
        loaded = self._groups.get(group_id)
        return {
            "group_id": group_id,
            "protocol_type": (loaded.protocol_type if loaded else "") or CONSUMER,
            "group_state": self._state_of(group_id),
            "group_type": loaded.group_type if loaded else CLASSIC_TYPE,
        }

    def _state_of(self, group_id: str) -> str:
        loaded = self._groups.get(group_id)
        if loaded is not None:
            return loaded.state_name
        return local_groups.STATE if self._local_members(group_id) else GroupState.EMPTY.value

    def delete(self, call: Call) -> Steps:
        """DeleteGroups."""
        results = yield from answer_each(
            call.message.groups_names, lambda name: {"group_id": name, "error_code": self._deleted(name)}
        )
        call.answer({"results": results})

    def _deleted(self, group_id: str) -> BrokerError:
        if not self._is_known(group_id):
            return BrokerError.GROUP_ID_NOT_FOUND
        if self._local_members(group_id):
            return BrokerError.NON_EMPTY_GROUP
        loaded = self._load(group_id, has_members=False)
        if isinstance(loaded, BrokerError):
            return loaded
        if loaded.group.members:
            return BrokerError.NON_EMPTY_GROUP
        loaded.lock.remove_files()
        loaded.close()
        del self._groups[group_id]
        self._group_count -= 1
        return BrokerError.NONE

    def lags(self) -> Stepwise[Sequence[GroupLag]]:
        """Every group with its state, and the records that it has not consumed yet; each offset is a step."""
        found = []
        for group_id in (yield from self._known_ids()):
            with contextlib.suppress(CorruptLogError, OSError):
                lags = {}
                for place, one in list(self._offsets_of(group_id).items()):
                    lags[place] = self._lag(place, one)
                    yield None
                found.append(GroupLag(group_id, self._state_of(group_id), lags))
        return found

    def _lag(self, place: TopicPartition, committed: Committed) -> int:
        head = self._topics.head(*place)
        if head is None:
            return 0
        head.refresh()
        return max(head.end_offset - committed.offset, 0)

    def close(self) -> None:
        """Lets go of every group."""
        for loaded in self._groups.values():
            loaded.close()
        self._groups.clear()


def _join_of(call: Call) -> Join:
    message = call.message
    return Join(
        message.member_id,
        message.group_instance_id,
        call.request.client_id,
        "/" + call.host,
        message.session_timeout_ms,
        message.rebalance_timeout_ms if call.version >= 1 else 0,
        message.protocol_type,
        tuple(Protocol(one.name, bytes(one.metadata)) for one in message.protocols),
        is_member_id_required=call.version >= 4,
        can_skip_assignment=call.version >= 9,
    )


def _joined(answer: JoinAnswer) -> Values:
    return {
        "error_code": answer.error,
        "generation_id": answer.generation if answer.error is BrokerError.NONE else NO_GENERATION,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol or "",
        "leader": answer.leader,
        "skip_assignment": answer.is_assignment_skipped,
        "member_id": answer.member_id,
        "members": [
            {"member_id": one.member_id, "group_instance_id": one.instance_id, "metadata": one.metadata}
            for one in answer.members
        ],
    }


def _synced(answer: SyncAnswer) -> Values:
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol,
        "assignment": answer.assignment,
    }


def _committed(topic: Any, errors: Mapping[TopicPartition, BrokerError], group_error: BrokerError) -> Values:
    return {
        "name": topic.name,
        "partitions": [
            {
                "partition_index": one.partition_index,
                "error_code": errors.get(TopicPartition(topic.name, one.partition_index), group_error),
            }
            for one in topic.partitions
        ],
    }


def _each_partition(topic: Any, error: BrokerError) -> Values:
    partitions = [{"partition_index": one.partition_index, "error_code": error} for one in topic.partitions]
    return {"name": topic.name, "partitions": partitions}


def _asked_places(topics: Iterable[Any]) -> Iterator[TopicPartition]:
    return (TopicPartition(topic.name, partition) for topic in topics for partition in topic.partition_indexes)


NO_OFFSET = Committed(-1, -1, "", 0)


def _told_offset(place: TopicPartition, offsets: Mapping[TopicPartition, Committed], *, is_unstable: bool) -> Values:
    found = NO_OFFSET if is_unstable else offsets.get(place, NO_OFFSET)
    return {
        "partition_index": place.partition,
        "committed_offset": found.offset,
        "committed_leader_epoch": found.leader_epoch,
        "metadata": found.metadata,
        "error_code": BrokerError.UNSTABLE_OFFSET_COMMIT if is_unstable else BrokerError.NONE,
    }


def _described_members(group: Group) -> list[Values]:
    return [
        {
            "member_id": member.member_id,
            "group_instance_id": member.instance_id,
            "client_id": member.join.client_id,
            "client_host": member.join.client_host,
            "member_metadata": member.metadata(group.protocol),
            "member_assignment": member.assignment,
        }
        for member in group.members.values()
    ]
