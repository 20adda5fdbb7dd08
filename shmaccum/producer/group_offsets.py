# SPDX-License-Identifier: Apache-2.0
"""Offsets of a consumer group as programs hand them over, in the types of Kafka's clients for Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeAlias

from shmaccum.exceptions import InvalidArgumentError
from shmaccum.format.group_offsets import (
    NUMBER_MAX,
    OFFSET_MAX,
    GroupMember,
    OffsetToCommit,
    pack_offsets,
    unpack_offsets,
)
from shmaccum.format.topic_partition import TopicPartition

NAMES = ("group_id", "member_id", "generation_id", "group_instance_id")
"""The attributes of a consumer's group metadata, in the order of `GroupMember`."""


class Place(Protocol):
    """A partition, as kafka-python and `shmaccum` name it."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...


class PlaceWithOffset(Place, Protocol):
    """A partition and its offset in one, as confluent-kafka has it."""

    @property
    def offset(self) -> int: ...


GroupOffsets: TypeAlias = "Mapping[Any, Any] | Iterable[PlaceWithOffset]"
"""The next offset of each partition: ``{TopicPartition: offset or OffsetAndMetadata}``, or confluent's list."""


def parse_group(group: object) -> GroupMember:
    """The member of a group: a group id, or the group metadata of a consumer of kafka-python.

    Raises:
        InvalidArgumentError: it is neither.
    """
    member = GroupMember(*([group] if isinstance(group, str) else [getattr(group, name, None) for name in NAMES]))
    try:
        unpack_offsets(pack_offsets(member, {}))
    except (TypeError, ValueError):
        member = GroupMember("")
    if member.group:
        return member
    raise InvalidArgumentError(
        f"{group!r} names no group: give a group id, or the group metadata of a consumer (group_id, generation_id, "
        "member_id, group_instance_id)"
    )


def parse_offsets(offsets: GroupOffsets) -> dict[TopicPartition, OffsetToCommit]:
    """The offsets by partition.

    Raises:
        InvalidArgumentError: an offset is negative or no number, or the type is unknown.
    """
    try:
        if isinstance(offsets, Mapping):
            return dict(_parsed(place, given) for place, given in offsets.items())
        return dict(_parsed(place, place) for place in offsets)
    except (AttributeError, TypeError) as error:
        raise InvalidArgumentError(
            f"{offsets!r} are no offsets: give {{TopicPartition: offset}}, or a list of partitions with their offsets "
            f"({error})"
        ) from None


def _parsed(place: Place, given: Any) -> tuple[TopicPartition, OffsetToCommit]:
    topic, partition = place.topic, place.partition
    offset = given if isinstance(given, int) else given.offset
    if not 0 <= partition <= NUMBER_MAX or not 0 <= offset <= OFFSET_MAX:
        raise InvalidArgumentError(f"{topic}-{partition} has no offset {offset} to commit: it must be 0 or more")
    metadata, leader_epoch = getattr(given, "metadata", None), getattr(given, "leader_epoch", None)
    epoch = -1 if leader_epoch is None else int(leader_epoch)
    return TopicPartition(str(topic), int(partition)), OffsetToCommit(int(offset), str(metadata or ""), epoch)
