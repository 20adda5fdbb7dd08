# SPDX-License-Identifier: Apache-2.0
"""Administration of the groups of a log: show their lag, move their offsets, delete them.

A group without a coordinator is changed in its file, under its lock. A group with a coordinator is changed by a request
to that server, whose address is in the lock file. In both cases, a group with live members is not changed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import GroupModeError, LogBusyError, LogPartitionNotFoundError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.reader import LogReader
from shmaccum.log.groups.members import LocalMember, local_members
from shmaccum.log.groups.offsets_file import (
    Committed,
    GroupLock,
    OffsetsFile,
    coordinator_address,
    group_ids,
    is_in_use,
)
from shmaccum.log.server.client_connection import ClientConnection
from shmaccum.log.server.client_settings import PLAIN_CONNECTION, ClientSettings

OFFSET_COMMIT, DESCRIBE_GROUPS, DELETE_GROUPS = 8, 15, 42
NO_GENERATION = -1
EMPTY, LOCAL = "Empty", "Local"
"""States of a group without a coordinator: unused, or used by consumers on the log's host."""


class MemberDescription(NamedTuple):
    """A live member of a group, as reported by its coordinator or the plan of a local group.

    Attributes:
        pid: the process of a local member. None for a member of a coordinated group.
        is_stopped: whether the process of a local member is stopped.
        partitions: the partitions of a local member.
    """

    member_id: str
    client_id: str
    host: str
    pid: int | None = None
    is_stopped: bool = False
    partitions: tuple[str, ...] = ()


class GroupPosition(NamedTuple):
    """The offset and the lag of a group in one partition.

    Attributes:
        offset: the next offset to consume.
        end_offset: the end of the log. None if the partition was deleted.
        lag: the number of records from the offset to the end.
    """

    place: TopicPartition
    offset: int
    end_offset: int | None
    metadata: str
    time_ms: int

    @property
    def lag(self) -> int | None:
        return None if self.end_offset is None else max(self.end_offset - self.offset, 0)


class GroupFacts(NamedTuple):
    """The present state of a group."""

    group_id: str
    state: str
    members: list[MemberDescription]
    positions: list[GroupPosition]


def all_groups(reader: LogReader, settings: ClientSettings = PLAIN_CONNECTION) -> Iterator[GroupFacts]:
    """Yield every group of a log. The settings are for the connection to its coordinator.

    Raises:
        CorruptLogError: an offsets file belongs to another group.
    """
    for group_id in group_ids(reader.path):
        yield facts_of(reader, group_id, settings)


def facts_of(reader: LogReader, group_id: str, settings: ClientSettings = PLAIN_CONNECTION) -> GroupFacts:
    """Return state, members, offsets and lag of a group. An unknown group has no offsets."""
    offsets = OffsetsFile(reader.path, group_id, is_writer=False).offsets
    address = coordinator_address(reader.path, group_id)
    state: str = EMPTY
    members: list[MemberDescription] = []
    if address is not None:
        state, members = _asked_facts(address, group_id, settings)
    elif is_in_use(reader.path, group_id):
        state, members = LOCAL, [_local_member(member) for member in local_members(reader.path, group_id)]
    return GroupFacts(group_id, state, members, [_position(reader, *each) for each in sorted(offsets.items())])


def _local_member(member: LocalMember) -> MemberDescription:
    places = tuple(map(str, member.partitions))
    return MemberDescription(
        member.member_id, f"process-{member.pid}", "localhost", member.pid, member.is_stopped, places
    )


def _position(reader: LogReader, place: TopicPartition, one: Committed) -> GroupPosition:
    try:
        end: int | None = reader.partition(*place).log_end_offset
    except LogPartitionNotFoundError:
        end = None
    return GroupPosition(place, one.offset, end, one.metadata, one.time_ms)


def _asked_facts(address: str, group_id: str, settings: ClientSettings) -> tuple[str, list[MemberDescription]]:
    with ClientConnection(address, settings) as server:
        (group,) = server.ask(DESCRIBE_GROUPS, 5, {"groups": [group_id]}).groups
    _refuse(group_id, group.error_code, "described")
    members = [MemberDescription(one.member_id, one.client_id, one.client_host) for one in group.members]
    return group.group_state, members


def move(
    directory: str,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    settings: ClientSettings = PLAIN_CONNECTION,
) -> None:
    """Commit offsets for an unused group.

    Raises:
        LogBusyError: the group has live members.
        OSError: nothing was committed.
    """
    try:
        lock = GroupLock(directory, group_id)
    except GroupModeError:
        raise
    except LogBusyError:
        _ask_to_move(_address(directory, group_id), group_id, offsets, settings)
        return
    try:
        file = OffsetsFile(directory, group_id, is_writer=True, is_synced=True)
        time_ms = int(time.time() * 1000)
        file.commit({place: Committed(offset, -1, "", time_ms) for place, offset in offsets.items()})
        file.close()
    finally:
        lock.release()


def _ask_to_move(address: str, group_id: str, offsets: Mapping[TopicPartition, int], settings: ClientSettings) -> None:
    topics: dict[str, list[dict[str, Any]]] = {}
    for place, offset in offsets.items():
        one = {"partition_index": place.partition, "committed_offset": offset, "committed_leader_epoch": -1}
        topics.setdefault(place.topic, []).append({**one, "committed_metadata": ""})
    wanted = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
    nobody = {"generation_id_or_member_epoch": NO_GENERATION, "member_id": "", "group_instance_id": None}
    with ClientConnection(address, settings) as server:
        answer = server.ask(OFFSET_COMMIT, 7, {"group_id": group_id, **nobody, "topics": wanted})
    codes = {one.error_code for topic in answer.topics for one in topic.partitions}
    _refuse(group_id, max(codes, default=0), "moved")


def delete(directory: str, group_id: str, settings: ClientSettings = PLAIN_CONNECTION) -> None:
    """Delete an unused group with its offsets.

    Raises:
        LogBusyError: the group has live members.
        OSError: the group was not deleted.
    """
    try:
        lock = GroupLock(directory, group_id)
    except GroupModeError:
        raise
    except LogBusyError:
        with ClientConnection(_address(directory, group_id), settings) as server:
            (result,) = server.ask(DELETE_GROUPS, 1, {"groups_names": [group_id]}).results
        _refuse(group_id, result.error_code, "deleted")
        return
    try:
        OffsetsFile(directory, group_id, is_writer=False)  # raises if the file belongs to another group
        lock.remove_files()
    finally:
        lock.release()


def _address(directory: str, group_id: str) -> str:
    address = coordinator_address(directory, group_id)
    if address is None:
        raise LogBusyError(
            f"the group {group_id} is used by another process that is not a server: stop that process and retry"
        )
    return address


def _refuse(group_id: str, error_code: int, done: str) -> None:
    """Raise an error of the coordinator as an exception."""
    if error_code == BrokerError.NONE:
        return
    if error_code in {BrokerError.NON_EMPTY_GROUP, BrokerError.UNKNOWN_MEMBER_ID, BrokerError.REBALANCE_IN_PROGRESS}:
        raise LogBusyError(f"the group {group_id} has live members and was not {done}: stop them and retry")
    name = BrokerError(error_code).name if error_code in set(BrokerError) else str(error_code)
    raise LogBusyError(f"the group {group_id} was not {done}: its server returned {name}")
