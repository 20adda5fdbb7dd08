# SPDX-License-Identifier: Apache-2.0
"""Offsets of a consumer group that are committed with an arena's transaction (KIP-98, KIP-447).

::

    producer ── a record of __consumer_offsets, partition 0 ──> arena ──> sender ──> TxnOffsetCommit, and no Produce

In Kafka, too, the offsets of a group are records of this topic, which no client may write. Here, such a record is
handled like any other: it belongs to the transaction that was open, it survives its process, and its result shows
whether the group's coordinator has accepted it.

    value   [group, member id, generation, instance id, [[topic, partition, offset, metadata, leader epoch]...]]   JSON
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from shmaccum.common.format.topic_partition import TopicPartition

OFFSETS_TOPIC = "__consumer_offsets"
OFFSET_MAX = 2**63 - 1
NUMBER_MAX = 2**31 - 1
TEXT_SIZE_MAX = 32767
"""The maximum size of a text in Kafka's protocol. On a longer one, a broker closes the connection without response."""


class GroupMember(NamedTuple):
    """The member of a consumer group whose offsets are committed (KIP-447).

    A group without members is identified by its name.
    """

    group: str
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None

    @property
    def is_joined(self) -> bool:
        """True when the broker has to compare the member with the group."""
        return bool(self.member_id) or self.generation >= 0 or self.instance_id is not None


class OffsetToCommit(NamedTuple):
    """The next offset that a group reads in a partition, with the group's metadata."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


def pack_offsets(member: GroupMember, offsets: Mapping[TopicPartition, OffsetToCommit]) -> bytes:
    """Returns the value of the record."""
    rows = [[*place, *offset] for place, offset in offsets.items()]
    return json.dumps([*member, rows]).encode()


def unpack_offsets(value: bytes | None) -> tuple[GroupMember, dict[TopicPartition, OffsetToCommit]]:
    """Returns the member and its offsets. The value may be any bytes.

    Raises:
        ValueError: `pack_offsets` did not make the value.
    """
    try:
        group, member_id, generation, instance_id, rows = json.loads(value or b"")
        instance = None if instance_id is None else _text(instance_id)
        member = GroupMember(_text(group), _text(member_id), _number(generation), instance)
        return member, dict(map(unpack_row, rows))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a record of {OFFSETS_TOPIC} is not one of send_offsets_to_transaction(): {error}") from None


def unpack_row(row: Any) -> tuple[TopicPartition, OffsetToCommit]:
    """Returns a partition and its offset from a row with the fields of both.

    Raises:
        TypeError, ValueError: Kafka's protocol cannot represent a field.
    """
    topic, partition, offset, metadata, leader_epoch = row
    place = TopicPartition(_text(topic), _number(partition, 0))
    return place, OffsetToCommit(_number(offset, 0, OFFSET_MAX), _text(metadata), _number(leader_epoch))


def _text(given: Any) -> str:
    if not isinstance(given, str):
        raise TypeError(f"{given!r} is not text")
    size = len(given.encode())  # UnicodeEncodeError, a ValueError, for half a surrogate pair
    if size > TEXT_SIZE_MAX:
        raise ValueError(f"a text of {size} bytes is too long, {TEXT_SIZE_MAX} are allowed")
    return given


def _number(given: Any, least: int = -1, most: int = NUMBER_MAX) -> int:
    if type(given) is not int or not least <= given <= most:
        raise TypeError(f"{given!r} is not a number from {least} to {most}")
    return given
