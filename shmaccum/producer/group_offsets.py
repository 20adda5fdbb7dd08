# SPDX-License-Identifier: Apache-2.0
"""Offsets of a consumer group, as programs pass them in the types of Kafka's Python clients."""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeAlias

from shmaccum.common.format.group_offsets import (
    GroupMember,
    OffsetToCommit,
    pack_offsets,
    unpack_offsets,
    unpack_row,
)
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import InvalidArgumentError

LIBRDKAFKA_MAGIC = b"CGMDv2:"
"""The prefix of group metadata that librdkafka writes (rd_kafka_consumer_group_metadata_write)."""
NAMES = ("group_id", "member_id", "generation_id", "group_instance_id")
"""The attributes of a consumer's group metadata, in the order of `GroupMember`."""


NO_POSITION = -1001
"""librdkafka's RD_KAFKA_OFFSET_INVALID: the consumer has read nothing of the partition."""


class PartitionLike(Protocol):
    """A partition, as in kafka-python and `shmaccum`."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...


class PlaceWithOffset(PartitionLike, Protocol):
    """A partition with its offset, as in confluent-kafka."""

    @property
    def offset(self) -> int: ...


GroupOffsets: TypeAlias = "Mapping[Any, Any] | Iterable[PlaceWithOffset]"
"""The next offset of each partition: ``{TopicPartition: offset or OffsetAndMetadata}``, or confluent's list."""


def parse_group(group: object) -> GroupMember:
    """Makes the member of a group from a group id, or from group metadata of kafka-python or confluent-kafka.

    Raises:
        InvalidArgumentError: it is neither.
    """
    try:
        member = _member(group)
        unpack_offsets(pack_offsets(member, {}))
    except (TypeError, ValueError):
        member = GroupMember("")
    if member.group:
        return member
    raise InvalidArgumentError(
        f"{group!r:.200} names no group: give a group id, or the group metadata of a consumer (group_id, "
        "generation_id, member_id, group_instance_id)"
    )


def _member(group: object) -> GroupMember:
    if isinstance(group, str):
        return GroupMember(group)
    if isinstance(group, bytes):
        return _member_of_librdkafka(group)
    values: list[Any] = [getattr(group, name, None) for name in NAMES]
    return GroupMember(*values)


def _member_of_librdkafka(metadata: bytes) -> GroupMember:
    """Parses the magic, the generation in native byte order, and NUL-terminated strings. A 1 means no instance id."""
    if not metadata.startswith(LIBRDKAFKA_MAGIC):
        raise ValueError("these bytes are not the group metadata of librdkafka")
    generation, rest = metadata[len(LIBRDKAFKA_MAGIC) :][:4], metadata[len(LIBRDKAFKA_MAGIC) + 4 :]
    group_id, member_id, instance = rest.split(b"\0", 2)
    has_instance = not instance.startswith(b"\1")
    instance_id = instance[1:].removesuffix(b"\0").decode() if has_instance else None
    return GroupMember(
        group_id.decode(), member_id.decode(), int.from_bytes(generation, sys.byteorder, signed=True), instance_id
    )


def parse_offsets(offsets: GroupOffsets) -> dict[TopicPartition, OffsetToCommit]:
    """Returns the offsets by partition. Like librdkafka, it omits listed partitions that have no offset yet.

    Raises:
        InvalidArgumentError: an offset is negative or not a number, or the type is unknown.
    """
    try:
        if isinstance(offsets, Mapping):
            return dict(_parsed(place, given) for place, given in offsets.items())
        return dict(_parsed(place, place) for place in offsets if place.offset != NO_POSITION)
    except (AttributeError, TypeError) as error:
        raise InvalidArgumentError(
            f"{offsets!r} are not offsets: give {{TopicPartition: offset}}, or a list of partitions with their offsets "
            f"({error})"
        ) from None


def _parsed(place: PartitionLike, given: Any) -> tuple[TopicPartition, OffsetToCommit]:
    offset = given if isinstance(given, int) else given.offset
    metadata, leader_epoch = getattr(given, "metadata", None), getattr(given, "leader_epoch", None)
    numbers = place.partition, offset, -1 if leader_epoch is None else leader_epoch
    partition, offset, epoch = map(operator.index, numbers)
    try:
        return unpack_row((place.topic, partition, offset, metadata or "", epoch))
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"{place.topic}-{partition} has no offset {offset} to commit: it must be 0 or more, topic and metadata "
            f"must be text, and the other fields valid in Kafka ({error})"
        ) from None
