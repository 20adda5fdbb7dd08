# SPDX-License-Identifier: Apache-2.0
"""Fetch, read and written by hand: it is what a consumer asks again and again, and its records never enter Python.

::

    answer = bytes (head, first partition) | FileRange | bytes (rest of it, next partition) | FileRange | ... | bytes

Request (FetchRequest 4 to 17) and answer are Kafka's, version by version; fields that a version lacks are left out.
Records of length 0 stand for none, never null. A range of a file may end in the middle of a batch, which clients know.

A fetch that finds fewer than ``min_bytes`` is *parked*: the server asks it again when one of its partitions grew, and
answers when its time is over. Its limits are Kafka's: the first batch always goes, whatever its size.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

from shmaccum.segment_log.broker_error import BrokerError
from shmaccum.serving.log_heads import FileRange, LogHead
from shmaccum.serving.messages import ELEMENTS_MAX, BadFrameError, Request, read_varint, skip_tags, varint
from shmaccum.serving.topics import TopicKey

FLEXIBLE_VERSION = 12
TOPIC_ID_VERSION = 13
NO_EPOCH = -1
NO_SESSION = 0
FINAL_EPOCH = -1
"""Of a session: none, or its last fetch (KIP-227)."""

Piece = bytes | bytearray | FileRange

VERSIONS = range(4, 18)
_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")
_TOPIC_ID = struct.Struct("16s")


class Wanted(NamedTuple):
    """A partition that a fetch asks for."""

    topic: TopicKey
    """Its name, or from version 13 on its id."""
    partition: int
    offset: int
    size_max: int
    leader_epoch: int


class FetchRequest(NamedTuple):
    """A fetch as it came."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    wanted: list[Wanted]
    forgotten: list[tuple[TopicKey, int]]


class Found(NamedTuple):
    """The records found in one partition, or the error."""

    wanted: Wanted
    error: BrokerError
    end_offset: int = -1
    start_offset: int = -1
    records: FileRange | None = None

    @property
    def size(self) -> int:
        return 0 if self.records is None else self.records.size


# --- request


@final
class _Reader:
    """Takes fields off a body; a body that is too short raises BadFrameError."""

    def __init__(self, body: memoryview, *, is_flexible: bool) -> None:
        self._body = body
        self._position = 0
        self._is_flexible = is_flexible
        self._elements_left = ELEMENTS_MAX

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        position = self._position
        self._position = position + layout.size
        if self._position > len(self._body):
            raise BadFrameError("a fetch that ends too early")
        return layout.unpack_from(self._body, position)

    def _size(self, layout: struct.Struct) -> int:
        """The length of an array or of a text; -1: null."""
        if not self._is_flexible:
            size: int = self.take(layout)[0]
            return size
        value, self._position = read_varint(self._body, self._position)
        return value - 1

    def count(self) -> int:
        """The length of an array; each element takes a byte at least."""
        value = self._size(_I32)
        self._elements_left -= max(value, 0)
        if value > len(self._body) - self._position or self._elements_left < 0:
            raise BadFrameError(f"an array of {value} elements in a fetch of {len(self._body)} bytes")
        return max(value, 0)

    def text(self) -> str:
        size = self._size(_I16)
        start = self._position
        self._position = start + size
        if size < 0 or self._position > len(self._body):
            raise BadFrameError("a text that goes beyond its fetch")
        return str(self._body[start : self._position], errors="replace")

    def tags(self) -> None:
        """Skips what is tagged: nothing of it concerns a log on one host."""
        if self._is_flexible:
            position = self._position
            has_none = position < len(self._body) and not self._body[position]
            self._position = position + 1 if has_none else skip_tags(self._body, position)

    def end(self) -> None:
        if self._position != len(self._body):
            raise BadFrameError(f"a fetch of {len(self._body)} bytes, of which {self._position} are used")


def _limits_layout(version: int) -> struct.Struct:
    """(replica,) longest wait, fewest bytes, most bytes, isolation level, (session id and epoch)."""
    return struct.Struct(f">{'i' * (version < 15)}iiib{'ii' * (version >= 7)}")


def _partition_layout(version: int) -> struct.Struct:
    """partition, (leader epoch,) offset, (last fetched epoch,) (log start offset,) most bytes."""
    epoch, last_epoch, start = "i" * (version >= 9), "i" * (version >= 12), "q" * (version >= 5)
    return struct.Struct(f">i{epoch}q{last_epoch}{start}i")


_LIMITS = {version: _limits_layout(version) for version in VERSIONS}
_PARTITIONS = {version: _partition_layout(version) for version in VERSIONS}


def read_request(request: Request) -> FetchRequest:
    """A fetch of version 4 to 17.

    Raises:
        BadFrameError: it is none.
    """
    version = request.version
    reader = _Reader(request.body, is_flexible=version >= FLEXIBLE_VERSION)
    limits = reader.take(_LIMITS[version])[version < 15 :]
    session_id, session_epoch = limits[4:] or (NO_SESSION, FINAL_EPOCH)
    wanted = _read_wanted(reader, version)
    forgotten = _read_forgotten(reader, version) if version >= 7 else []
    if version >= 11:
        reader.text()  # the rack of the consumer
    reader.tags()
    reader.end()
    max_wait_ms, min_bytes, max_bytes, isolation_level = limits[:4]
    return FetchRequest(
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, wanted, forgotten
    )


def _read_topic_key(reader: _Reader, version: int) -> TopicKey:
    if version < TOPIC_ID_VERSION:
        return reader.text()
    topic_id: bytes = reader.take(_TOPIC_ID)[0]
    return topic_id


def _read_wanted(reader: _Reader, version: int) -> list[Wanted]:
    layout = _PARTITIONS[version]
    wanted = []
    for _ in range(reader.count()):
        topic = _read_topic_key(reader, version)
        for _ in range(reader.count()):
            fields = reader.take(layout)
            reader.tags()
            leader_epoch, offset = fields[1:3] if version >= 9 else (NO_EPOCH, fields[1])
            wanted.append(Wanted(topic, fields[0], offset, fields[-1], leader_epoch))
        reader.tags()
    return wanted


def _read_forgotten(reader: _Reader, version: int) -> list[tuple[TopicKey, int]]:
    forgotten: list[tuple[TopicKey, int]] = []
    for _ in range(reader.count()):
        topic = _read_topic_key(reader, version)
        forgotten += [(topic, reader.take(_I32)[0]) for _ in range(reader.count())]
        reader.tags()
    return forgotten


# --- records of the log


def find(
    request: FetchRequest, wanted: Sequence[Wanted], head_of: Callable[[Wanted], LogHead | BrokerError | None]
) -> list[Found]:
    """The records of each partition, within the limits of the request.

    Args:
        request: the limits.
        wanted: the partitions.
        head_of: the partition itself, the reason why it may not be fetched, or None: there is none.
    """
    found = []
    left, is_first = request.max_bytes, True
    for each in wanted:
        one = _find_one(each, head_of(each), left, is_first=is_first)
        if one.records is not None:
            is_first = False
            left = max(left - one.records.size, 0)
        found.append(one)
    return found


def _find_one(wanted: Wanted, head: LogHead | BrokerError | None, left: int, *, is_first: bool) -> Found:
    if isinstance(head, BrokerError):
        return Found(wanted, head)
    if head is None:
        is_by_id = isinstance(wanted.topic, bytes)
        return Found(wanted, BrokerError.UNKNOWN_TOPIC_ID if is_by_id else BrokerError.UNKNOWN_TOPIC_OR_PARTITION)
    if (problem := epoch_problem(wanted.leader_epoch, head)) is not None:
        return Found(wanted, problem)
    return _find_records(wanted, head, max(min(wanted.size_max, left), 0), is_first=is_first)


def epoch_problem(leader_epoch: int, head: LogHead) -> BrokerError | None:
    """Why a client with this leader epoch has to ask for metadata again (KIP-320); None when all is well."""
    latest = head.epochs.latest
    if leader_epoch in (NO_EPOCH, latest):
        return None
    return BrokerError.FENCED_LEADER_EPOCH if leader_epoch < latest else BrokerError.UNKNOWN_LEADER_EPOCH


def _find_records(wanted: Wanted, head: LogHead, size_max: int, *, is_first: bool) -> Found:
    is_asked = wanted.offset < head.end_offset and (size_max > 0 or is_first)
    ranged = head.file_range(wanted.offset, size_max) if is_asked else None
    start_offset, end_offset = head.start_offset, head.end_offset  # which a look into the files may have moved
    if not start_offset <= wanted.offset <= end_offset:
        return Found(wanted, BrokerError.OFFSET_OUT_OF_RANGE, end_offset, start_offset)
    if is_asked and ranged is None:
        return Found(wanted, BrokerError.CORRUPT_MESSAGE, end_offset, start_offset)
    has_room = ranged is not None and (is_first or ranged[1] <= size_max)
    records = ranged[0] if ranged is not None and has_room else None
    return Found(wanted, BrokerError.NONE, end_offset, start_offset, records)


def is_enough(request: FetchRequest, found: Sequence[Found]) -> bool:
    """True when there is an answer without waiting: an error, enough bytes, or nothing to wait for."""
    size = 0
    for each in found:
        if each.error is not BrokerError.NONE:
            return True
        size += each.size
    return not found or size >= request.min_bytes


# --- answer


def _answer_layout(version: int) -> struct.Struct:
    """size of the frame, correlation id, (tags of the header,) throttle time, (error, session id)."""
    return struct.Struct(f">ii{'x' * (version >= FLEXIBLE_VERSION)}i{'hi' * (version >= 7)}")


def _found_layout(version: int) -> struct.Struct:
    """partition, error, high watermark, last stable offset, (start,) count of aborted transactions, (near replica)."""
    aborted = "B" if version >= FLEXIBLE_VERSION else "i"
    return struct.Struct(f">ihqq{'q' * (version >= 5)}{aborted}{'i' * (version >= 11)}")


_ANSWERS = {version: _answer_layout(version) for version in VERSIONS}
_FOUND = {version: _found_layout(version) for version in VERSIONS}
_NO_NEARER_REPLICA = -1


def write_answer(
    request: Request, found: Sequence[Found], *, error: BrokerError = BrokerError.NONE, session_id: int = NO_SESSION
) -> list[Piece]:
    """The frame that answers a fetch, as pieces to send one after another."""
    version = request.version
    is_flexible = version >= FLEXIBLE_VERSION
    tag = b"\0" * is_flexible
    count = _compact_count if is_flexible else _I32.pack
    session = (error, session_id) if version >= 7 else ()
    pieces: list[Piece] = []
    content = bytearray(_ANSWERS[version].pack(0, request.correlation_id, 0, *session))
    topics = _by_topic(found)
    content += count(len(topics))
    for topic, partitions in topics.items():
        content += topic if isinstance(topic, bytes) else _named(topic, is_flexible=is_flexible)
        content += count(len(partitions))
        for each in partitions:
            content += _found_head(version, each)
            content += count(each.size)
            if each.records is not None:
                pieces += [content, each.records]
                content = bytearray()
            content += tag
        content += tag
    content += tag
    return _framed([*pieces, content] if content else pieces)


_SMALL_COUNTS = [varint(value + 1) for value in range(127)]


def _compact_count(value: int) -> bytes:
    """The length of an array, of a text or of records (KIP-482)."""
    return _SMALL_COUNTS[value] if value < len(_SMALL_COUNTS) else varint(value + 1)


def _named(topic: str, *, is_flexible: bool) -> bytes:
    name = topic.encode()
    return (_compact_count if is_flexible else _I16.pack)(len(name)) + name


def _found_head(version: int, found: Found) -> bytes:
    """A partition up to the size of its records: without aborted transactions, and no other replica is nearer."""
    wanted, error, end_offset, start_offset, _ = found
    fields = (wanted.partition, error, end_offset, end_offset, start_offset)
    if version < 5:
        return _FOUND[version].pack(*fields[:4], 0)
    if version < 11:
        return _FOUND[version].pack(*fields, 0)
    return _FOUND[version].pack(*fields, version >= FLEXIBLE_VERSION, _NO_NEARER_REPLICA)


def _by_topic(found: Sequence[Found]) -> dict[TopicKey, list[Found]]:
    """The partitions of each topic together, in the order in which they were asked for."""
    topics: dict[TopicKey, list[Found]] = {}
    for each in found:
        topics.setdefault(each.wanted.topic, []).append(each)
    return topics


def _framed(pieces: list[Piece]) -> list[Piece]:
    """The pieces, with the size of the frame in its place."""
    size = -_I32.size
    for piece in pieces:
        size += piece.size if isinstance(piece, FileRange) else len(piece)
    first = pieces[0]
    assert isinstance(first, bytearray)
    _I32.pack_into(first, 0, size)
    return pieces
