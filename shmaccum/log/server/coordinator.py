# SPDX-License-Identifier: Apache-2.0
"""The coordinator of consumer groups: one state machine and one offsets file for each group of a log.

A group has one of two state machines: `Group` for members of the classic protocol, `ConsumerGroup` for members of
KIP-848. A group never has members of both. The first join of an empty group selects its state machine.

A group is loaded when a request needs it: its lock is taken, and its file is read. Offsets and the generation are
written to the file before a response is sent. Members are not, so after a restart they get UNKNOWN_MEMBER_ID and join
again.

A rejected request creates no group and no file. Groups expire as in Kafka: a group without members is deleted when its
last commit or the removal of its last member is older than `offsets_retention_ms`. Without offsets, it is deleted after
`EMPTY_KEPT_S`. At most `GROUP_COUNT_MAX` groups exist.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from shmaccum.common import clock
from shmaccum.common.descriptors import share
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import CorruptLogError, GroupModeError, LogBusyError
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
from shmaccum.log.server.call import Call
from shmaccum.log.server.consumer_group import (
    ConsumerGroup,
    ConsumerGroupState,
    ConsumerLimits,
)
from shmaccum.log.server.group import (
    NO_GENERATION,
    Group,
    GroupLimits,
    GroupState,
)
from shmaccum.log.server.numbers import GroupLag
from shmaccum.log.server.steps import Stepwise
from shmaccum.log.server.topics import LogTopics

logger = logging.getLogger(__name__)

METADATA_SIZE_MAX = 4096
"""The most characters of an offset's metadata, as counted by Java (offset.metadata.max.bytes)."""
GROUP_SHARE_MAX = 0.25
"""The share of the memory of all groups that one group may use."""
LOADED_MAX, LOADED_PARTS = 1000, 16
"""The most loaded groups, and the part of the open-files limit that they may use, because each has two files. As many
unloaded offsets files are cached."""
CLASSIC_TYPE, CONSUMER_TYPE = "classic", "consumer"
"""The types of groups, as in ListGroups."""
CONSUMER = "consumer"
SETTLED = {GroupState.STABLE, GroupState.EMPTY}
GROUP_COUNT_MAX = 10_000
"""The most groups of a log; each has two files. Further groups are rejected with GROUP_MAX_SIZE_REACHED."""
EMPTY_KEPT_S = 600.0
"""The time after which a group without members and offsets is deleted (offsets.retention.check.interval.ms)."""
RETAINED_PER_CALL = 20
"""The number of groups that one call of `retain` examines; each requires reading its file."""


def _new_member_id(client_id: str) -> str:
    return f"{client_id}-{uuid.uuid4()}"


class LoadedGroup:
    """A loaded group with its files."""

    def __init__(self, directory: str, group_id: str, limits: GroupLimits, *, is_synced: bool) -> None:
        self.lock = GroupLock(directory, group_id)
        try:
            self.file = OffsetsFile(directory, group_id, is_writer=True, is_created=False, is_synced=is_synced)
        except BaseException:
            self.lock.release()
            raise
        self.group: Group | ConsumerGroup = Group(group_id, limits, _new_member_id, generation=self.file.generation)
        self.stored_generation = self.file.generation

    def as_classic(self, limits: GroupLimits) -> Group | None:
        """Returns the group for classic members, or None if it has KIP-848 members."""
        if isinstance(self.group, ConsumerGroup) and not self.group.members:
            self.group = Group(self.group.group_id, limits, _new_member_id, generation=self.group.generation)
        return self.group if isinstance(self.group, Group) else None

    def as_consumer(self, limits: ConsumerLimits) -> ConsumerGroup | None:
        """Returns the group for KIP-848 members, or None if it has classic members."""
        if isinstance(self.group, Group) and self.group.state is GroupState.EMPTY:
            self.group = ConsumerGroup(self.group.group_id, limits, generation=self.group.generation)
        return self.group if isinstance(self.group, ConsumerGroup) else None

    def store_generation(self) -> None:
        """Writes a new generation or group epoch to the file."""
        group = self.group
        if group.generation == self.stored_generation:
            return
        if isinstance(group, ConsumerGroup):
            self.file.store_generation(group.generation, CONSUMER, group.assignor)
        elif group.state in SETTLED:
            self.file.store_generation(group.generation, group.protocol_type, group.protocol)
        else:
            return
        self.stored_generation = group.generation

    @property
    def is_unused(self) -> bool:
        """True if there is nothing to store: no member, no offset and no file."""
        return self.file.is_missing and self.group.is_unused

    @property
    def is_idle(self) -> bool:
        """True if the group can be unloaded, because it has no members."""
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
        directory: the log.
        topics: the topics, to check which partitions exist.
        limits: the limits for classic members.
        consumer_limits: the limits for KIP-848 members.
        memory_max: the most bytes of metadata and assignments of all groups.
        offsets_retention_ms: the time after which a group without members is deleted.
        is_synced: whether commits are synced to disk before the response.
        clock_ms: a monotonic clock in milliseconds.
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
        self.limits = limits
        self.consumer_limits = consumer_limits
        self._memory_max = memory_max
        self._offsets_retention_ms = offsets_retention_ms
        self._is_synced = is_synced
        self._clock_ms = clock_ms
        self.address = ""
        """HOST:PORT of the server, for commands on this host."""
        self._groups: dict[str, LoadedGroup] = {}
        self._read_files: OrderedDict[str, OffsetsFile] = OrderedDict()
        """The last read files of unloaded groups, the oldest first."""
        self._loaded_max = share(LOADED_MAX, LOADED_PARTS)
        self._group_count = len(offsets_paths(directory))
        self._to_retain: list[str] = []
        """Paths of the offsets files that `retain` has not examined in this pass."""
        self._refused: set[str] = set()
        self._deadline_ms: float | None = None

    def now_ms(self) -> float:
        """Returns the time on the clock of the groups."""
        return self._clock_ms()

    # --- groups

    def loaded(self, group_id: str) -> LoadedGroup | None:
        """Returns a group if it is loaded, or None."""
        return self._groups.get(group_id)

    def load(self, group_id: str, *, has_members: bool = True) -> LoadedGroup | BrokerError:
        """Returns the group, loaded for writing, or an error. The group with an empty name has no members (KIP-289)."""
        if not group_id and has_members:
            return BrokerError.INVALID_GROUP_ID
        self._deadline_ms = None  # the request may cause an earlier deadline
        loaded = self._groups.get(group_id)
        if loaded is None:
            if len(self._groups) >= self._loaded_max and not self._unload_one():
                return BrokerError.COORDINATOR_NOT_AVAILABLE
            if self._group_count >= GROUP_COUNT_MAX and not has_group(self._directory, group_id):
                return BrokerError.GROUP_MAX_SIZE_REACHED
            try:
                loaded = LoadedGroup(self._directory, group_id, self.limits, is_synced=self._is_synced)
            except GroupModeError:
                # A JoinGroup response has no message, so it is logged, once for each group.
                if group_id not in self._refused:
                    self._refused.add(group_id)
                    logger.warning("remote members were rejected: %s", local_groups.refusal(group_id))
                return BrokerError.INCONSISTENT_GROUP_PROTOCOL
            except (LogBusyError, CorruptLogError, OSError):
                return BrokerError.COORDINATOR_NOT_AVAILABLE
            self._groups[group_id] = loaded
            self._group_count += loaded.file.is_missing
            self._read_files.pop(group_id, None)
            self._sign(loaded)
        return loaded

    def _sign(self, loaded: LoadedGroup) -> None:
        with contextlib.suppress(OSError):  # then commands cannot find this server
            loaded.lock.write_address(self.address)

    def local_members(self, group_id: str) -> list[LocalMember]:
        """Returns the members of a local group. A group that this server has loaded has none."""
        if group_id in self._groups or not group_id:
            return []
        with contextlib.suppress(OSError):
            return local_members(self._directory, group_id)
        return []

    def _unload_one(self) -> bool:
        """Unloads a group without members. Its offsets and generation are in its file."""
        idle = next((name for name, one in self._groups.items() if one.is_idle), None)
        if idle is None:
            return False
        self._groups.pop(idle).close()
        return True

    def load_known(
        self, group_id: str, missing: BrokerError = BrokerError.UNKNOWN_MEMBER_ID, *, has_members: bool = True
    ) -> LoadedGroup | BrokerError:
        """As `load`, but returns the error `missing` if the group does not exist."""
        if (group_id or not has_members) and group_id not in self._groups and not has_group(self._directory, group_id):
            return missing
        return self.load(group_id, has_members=has_members)

    def release_unused(self, loaded: LoadedGroup) -> None:
        """Unloads a group that has nothing to store, and removes its lock file."""
        if loaded.is_unused and self._groups.get(loaded.group.group_id) is loaded:
            del self._groups[loaded.group.group_id]
            self._group_count -= 1
            with contextlib.suppress(OSError):  # then an empty lock file remains
                loaded.lock.remove_files()
            loaded.close()

    def store_and_answer(self, loaded: LoadedGroup) -> None:
        """Writes a new generation to the file, then sends the answers that were decided."""
        loaded.store_generation()
        self._send_answers(loaded)
        self.release_unused(loaded)

    @staticmethod
    def _send_answers(loaded: LoadedGroup) -> None:
        answers = [] if isinstance(loaded.group, ConsumerGroup) else loaded.group.take_answers()
        for token, content in answers:
            assert isinstance(token, Call)
            token.complete(content.values)

    @property
    def deadline_ms(self) -> float:
        """The next time at which `tick` has work."""
        if self._deadline_ms is None:
            deadlines_ms = (loaded.group.deadline_ms for loaded in self._groups.values())
            self._deadline_ms = min(deadlines_ms, default=math.inf)
        return self._deadline_ms

    def tick(self) -> None:
        """Ends sessions and rounds whose time has passed."""
        now_ms = self._clock_ms()
        if now_ms < self.deadline_ms:
            return
        self._deadline_ms = None
        for loaded in list(self._groups.values()):
            if loaded.group.deadline_ms <= now_ms:
                loaded.group.tick(now_ms)
                self.store_and_answer(loaded)

    def retain(self) -> None:
        """Deletes groups that were unused for long, a few in each call. Called once a second.

        If the lock file of a loaded group was removed or replaced, the group is locked again.
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

    def _lock_again(self, loaded: LoadedGroup) -> None:
        """Locks a group in its new lock file. If another process holds that lock, the members must join again."""
        group_id = loaded.group.group_id
        try:
            lock = GroupLock(self._directory, group_id)
        except LogBusyError as error:
            logger.error(
                "the files of the group %r were removed, and another process took the group: %s", group_id, error
            )
            if isinstance(loaded.group, Group):
                loaded.group.remove_all()
            self._send_answers(loaded)
            loaded.close()
            del self._groups[group_id]
        except OSError:
            return  # the log is missing: requests report it, and the next call retries
        else:
            logger.error("the files of the group %r were removed or replaced; the group was locked again", group_id)
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
        if self.delete(group_id) is BrokerError.NONE:
            logger.info("the group %r was deleted: it had no members for %.0f s", group_id, age_s)

    def drop(self, call: Call) -> None:
        """Drops a waiting request whose connection ended."""
        loaded = self._groups.get(getattr(call.message, "group_id", ""))
        if loaded is not None:
            loaded.group.drop(call)

    def size_max(self, group: Group | ConsumerGroup) -> float:
        """Returns the most bytes that a group may use now: its share, limited by what the other groups use."""
        others = sum(one.group.size for one in self._groups.values()) - group.size
        return min(self._memory_max * GROUP_SHARE_MAX, self._memory_max - others)

    def commit_of_transaction(
        self, call: Call, offsets: Mapping[TopicPartition, Committed], errors: dict[TopicPartition, BrokerError]
    ) -> dict[TopicPartition, BrokerError] | BrokerError:
        """TxnOffsetCommit: writes the valid offsets to the file. They take effect if the transaction is committed.

        Args:
            call: the request.
            offsets: the valid offsets.
            errors: the errors of the others.

        Returns:
            The errors of single partitions, or the error of all.
        """
        message = call.message
        generation = message.generation_id if call.version >= 3 else NO_GENERATION
        loaded = self.load_for_commit(message.group_id, generation, has_not_found=False)
        if isinstance(loaded, BrokerError):
            return loaded
        try:
            error = self._commit_pending(loaded, call, offsets)
            return errors if error is BrokerError.NONE else error
        finally:
            self.release_unused(loaded)

    def _commit_pending(
        self, loaded: LoadedGroup, call: Call, offsets: Mapping[TopicPartition, Committed]
    ) -> BrokerError:
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
        """Commits or drops the offsets of a transaction. Returns False if the caller must retry.

        A group without such offsets is not loaded, because consumers on this host, or another server, may hold its
        lock.
        """
        with contextlib.suppress(CorruptLogError, OSError):
            file = self.file_of(group_id)
            if file is None or producer_id not in file.pending:
                return True
        loaded = self.load(group_id)
        if isinstance(loaded, BrokerError):
            return False
        try:
            loaded.file.end_pending(producer_id, is_commit=is_commit)
        except OSError:
            return False
        return True

    def load_for_commit(self, group_id: str, generation: int, *, has_not_found: bool) -> LoadedGroup | BrokerError:
        """Returns the group of a commit. As in Kafka, only a commit without a generation creates a group."""
        if generation < 0:
            return self.load(group_id, has_members=False)
        return self.load_known(
            group_id, BrokerError.GROUP_ID_NOT_FOUND if has_not_found else BrokerError.ILLEGAL_GENERATION
        )

    def checked_offsets(
        self, message: Any, *, has_epochs: bool
    ) -> Stepwise[tuple[dict[TopicPartition, Committed], dict[TopicPartition, BrokerError]]]:
        """Returns the valid offsets of a commit, and the errors of the others."""
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

    def _commit_problem(self, place: TopicPartition, one: Any) -> BrokerError | None:
        if not 0 <= place.partition < self._topics.partition_count(place.topic):
            return BrokerError.UNKNOWN_TOPIC_OR_PARTITION
        characters = len((one.committed_metadata or "").encode("utf-16-le", "surrogatepass")) // 2
        return BrokerError.OFFSET_METADATA_TOO_LARGE if characters > METADATA_SIZE_MAX else None

    def offsets_of(self, group_id: str) -> Mapping[TopicPartition, Committed]:
        """Returns the offsets of a group."""
        file = self.file_of(group_id)
        return {} if file is None else file.offsets

    def file_of(self, group_id: str) -> OffsetsFile | None:
        """Returns the offsets file of a group, or None, without loading the group. Only new frames of the file are
        read."""
        loaded = self._groups.get(group_id)
        if loaded is not None:
            return loaded.file
        if not has_group(self._directory, group_id):
            os.stat(self._directory)  # raises if the log is missing, because then its groups are unknown
            self._read_files.pop(group_id, None)
            return None
        file = self._read_files.pop(group_id, None) or OffsetsFile(self._directory, group_id, is_writer=False)
        file.catch_up()
        self._read_files[group_id] = file
        if len(self._read_files) > self._loaded_max:
            self._read_files.popitem(last=False)
        return file

    def known_ids(self) -> Stepwise[Sequence[str]]:
        """Returns the names of all groups, sorted. Each file is a step."""
        known = {name for name, one in self._groups.items() if not one.group.is_unused}
        for path in offsets_paths(self._directory):
            if (group_id := group_id_of(path)) is not None:
                known.add(group_id)
            yield None
        return sorted(known)

    def is_known(self, group_id: str) -> bool:
        loaded = self._groups.get(group_id)
        return has_group(self._directory, group_id) or (loaded is not None and not loaded.group.is_unused)

    def state_of(self, group_id: str) -> str:
        loaded = self._groups.get(group_id)
        if loaded is not None:
            return loaded.state_name
        return local_groups.STATE if self.local_members(group_id) else GroupState.EMPTY.value

    def delete(self, group_id: str) -> BrokerError:
        if not self.is_known(group_id):
            return BrokerError.GROUP_ID_NOT_FOUND
        if self.local_members(group_id):
            return BrokerError.NON_EMPTY_GROUP
        loaded = self.load(group_id, has_members=False)
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
        """Returns every group with its state and lag. Each offset is a step."""
        found = []
        for group_id in (yield from self.known_ids()):
            with contextlib.suppress(CorruptLogError, OSError):
                lags = {}
                for place, one in list(self.offsets_of(group_id).items()):
                    lags[place] = self._lag(place, one)
                    yield None
                found.append(GroupLag(group_id, self.state_of(group_id), lags))
        return found

    def _lag(self, place: TopicPartition, committed: Committed) -> int:
        head = self._topics.head(*place)
        if head is None:
            return 0
        head.refresh()
        return max(head.end_offset - committed.offset, 0)

    def close(self) -> None:
        """Unloads every group."""
        for loaded in self._groups.values():
            loaded.close()
        self._groups.clear()
