# SPDX-License-Identifier: Apache-2.0
"""The Produce request, versions 3 to 13, as a list of buffers: small pieces of our own around the arena's bytes.

::

    size ── header ── acks, timeout ── topic, partition, records' size │ arena │ partition, size │ arena │ ... ── tail
    └──────────────────────── bytes ─────────────────────────────────┘        └──── bytes ─────┘

The arena's bytes are never copied: what `encode` answers goes to the socket piece by piece (`sendmsg`).

Source of the format: clients/src/main/resources/common/message/ProduceRequest.json. Version 9 is the first flexible one
(sizes as unsigned varints plus one, tagged fields at the end of each structure); from version 13 on topics are named by
their ids (KIP-516).
"""

from __future__ import annotations

import functools
import struct
import uuid
from collections.abc import Sequence
from typing import NamedTuple

PRODUCE_API_KEY = 0
VERSION_MIN = 3
VERSION_MAX = 13
VERSION_ZSTD = 7
VERSION_FLEXIBLE = 9
VERSION_TOPIC_ID = 13

NO_TAGGED_FIELDS = b"\x00"
NULL_STRING = b"\xff\xff"
NULL_COMPACT_STRING = b"\x00"

INDEX = struct.Struct(">i")
INDEX_AND_SIZE = struct.Struct(">ii")

Piece = bytes | bytearray | memoryview


class PartitionRecords(NamedTuple):
    """One record batch of a request."""

    partition: int
    buffers: Sequence[Piece]
    size: int
    """Bytes of all buffers together."""


class TopicRecords(NamedTuple):
    """What a request has for one topic: at most one record batch of each of its partitions."""

    topic: str
    topic_id: uuid.UUID | None
    """Needed for version 13 and newer."""
    partitions: Sequence[PartitionRecords]


class ProduceHead(NamedTuple):
    """What a request says before its records."""

    version: int
    correlation_id: int
    client_id: str
    acks: int
    """-1 all replicas in sync, 1 the leader, 0 nobody."""
    timeout_ms: int
    """How long the broker may wait for replicas."""


@functools.lru_cache(maxsize=4096)  # the sizes of full batches are much alike
def uvarint(number: int) -> bytes:
    """An unsigned varint: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def string(text: str) -> bytes:
    """A string with its size as int16."""
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


def compact_string(text: str) -> bytes:
    """A string with its size plus one as uvarint."""
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded


def encode(head: ProduceHead, topics: Sequence[TopicRecords]) -> list[Piece]:
    """The request, framed, as buffers to be sent one after another."""
    pieces = _encode_flexible(head, topics) if head.version >= VERSION_FLEXIBLE else _encode_plain(head, topics)
    size = sum(map(len, pieces))
    pieces[0] = struct.pack(">i", size) + bytes(pieces[0])
    return pieces


def _request_header(head: ProduceHead) -> bytes:
    """The request header: version 1, or version 2 (with tagged fields) of flexible requests."""
    fixed = struct.pack(">hhi", PRODUCE_API_KEY, head.version, head.correlation_id) + string(head.client_id)
    return fixed + NO_TAGGED_FIELDS if head.version >= VERSION_FLEXIBLE else fixed


def _encode_plain(head: ProduceHead, topics: Sequence[TopicRecords]) -> list[Piece]:
    pieces: list[Piece] = []
    own = bytearray(_request_header(head))
    own += NULL_STRING + struct.pack(">hii", head.acks, head.timeout_ms, len(topics))
    for topic, _, partitions in topics:
        own += string(topic) + struct.pack(">i", len(partitions))
        for partition, buffers, size in partitions:
            own += INDEX_AND_SIZE.pack(partition, size)
            pieces.append(own)
            pieces += buffers
            own = bytearray()
    return [*pieces, own] if own else pieces


def _encode_flexible(head: ProduceHead, topics: Sequence[TopicRecords]) -> list[Piece]:
    pieces: list[Piece] = []
    own = _request_header(head)
    own += NULL_COMPACT_STRING + struct.pack(">hi", head.acks, head.timeout_ms) + uvarint(len(topics) + 1)
    for topic in topics:
        own += _flexible_topic_name(head.version, topic) + uvarint(len(topic.partitions) + 1)
        for partition, buffers, size in topic.partitions:
            pieces.append(own + INDEX.pack(partition) + uvarint(size + 1))
            pieces += buffers
            own = NO_TAGGED_FIELDS
        own += NO_TAGGED_FIELDS
    return [*pieces, own + NO_TAGGED_FIELDS]


def _flexible_topic_name(version: int, topic: TopicRecords) -> bytes:
    if version < VERSION_TOPIC_ID:
        return compact_string(topic.topic)
    assert topic.topic_id is not None
    return topic.topic_id.bytes


def version_for(broker_range: tuple[int, int], topics: Sequence[TopicRecords]) -> int:
    """The newest version that the broker and we both know; below 13 while a topic's id is unknown.

    Args:
        broker_range: oldest and newest version of Produce that the broker takes.
    """
    newest = VERSION_MAX if all(topic.topic_id is not None for topic in topics) else VERSION_TOPIC_ID - 1
    return min(newest, broker_range[1])


class PartitionAnswer(NamedTuple):
    """A broker's answer for one partition of a request."""

    topic: str | uuid.UUID
    """Its name; since version 13 its id."""
    partition: int
    error_code: int
    base_offset: int
    log_append_time_ms: int
    message: str | None
    """What the broker says about the error, since version 8."""
    record_errors: Sequence[tuple[int, str | None]]
    """Places of records that are to blame, with what is wrong with them (KIP-467)."""
    leader_id: int
    """The leader, where the broker knows better than we (KIP-951); else -1."""
    leader_epoch: int


class ProduceAnswer(NamedTuple):
    """A broker's answer to a request."""

    partitions: Sequence[PartitionAnswer]
    throttle_time_ms: int
    nodes: Sequence[tuple[int, str, int, str | None]]
    """Id, host, port and rack of the leaders it told of (KIP-951)."""


PLAIN_PARTITION = struct.Struct(">ihqqq3s")
"""Index, error code, base offset, log append time, log start offset, and three empty fields of variable size."""
NOTHING_ELSE = b"\x01\x00\x00"
"""No record errors, no message, no tagged fields."""
_new_tuple = tuple.__new__
"""Makes a NamedTuple without its own __new__, which would take several times as long."""
THROTTLE = struct.Struct(">i")
ID_SIZE = 16


def read_plain_answer(version: int, body: bytes | bytearray | memoryview) -> ProduceAnswer | None:
    """The answer to a flexible request in which all is well; None for any other, which is for the library to read.

    Where nothing went wrong everything has a fixed size, so that reading it costs a tenth.

    Args:
        body: what follows the response header.
    """
    if version < VERSION_FLEXIBLE:
        return None
    try:
        partitions, position = _read_plain_topics(version, memoryview(body))
        (throttle_time_ms,) = THROTTLE.unpack_from(body, position)
        is_whole = bytes(body[position + THROTTLE.size :]) == NO_TAGGED_FIELDS
    except (ValueError, IndexError, struct.error):
        return None
    return ProduceAnswer(partitions, throttle_time_ms, ()) if is_whole else None


def _read_plain_topics(version: int, body: memoryview) -> tuple[list[PartitionAnswer], int]:
    """Answers and the position behind them. ValueError when something is not plain."""
    answers: list[PartitionAnswer] = []
    count, position = _read_uvarint(body, 0)
    for _ in range(count - 1):
        name_size, position = (ID_SIZE + 1, position) if version >= VERSION_TOPIC_ID else _read_uvarint(body, position)
        name = bytes(body[position : position + name_size - 1])
        topic = uuid.UUID(bytes=name) if version >= VERSION_TOPIC_ID else name.decode()
        partition_count, position = _read_uvarint(body, position + name_size - 1)
        end = position + (partition_count - 1) * PLAIN_PARTITION.size
        for index, code, offset, append_time_ms, _, rest in PLAIN_PARTITION.iter_unpack(body[position:end]):
            if code != 0 or rest != NOTHING_ELSE:
                raise ValueError("not plain")
            fields = (topic, index, 0, offset, append_time_ms, None, (), -1, -1)
            answers.append(_new_tuple(PartitionAnswer, fields))
        if body[end] != 0:
            raise ValueError("not plain")
        position = end + 1
    return answers, position


def _read_uvarint(body: memoryview, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = body[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
        shift += 7
