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
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, final

from shmaccum.segment_log.broker_error import BrokerError
from shmaccum.serving.log_heads import FileRange, LogHead
from shmaccum.serving.messages import ELEMENTS_MAX, BadFrameError, Request, read_varint, skip_tags, varint

FLEXIBLE_VERSION = 12
TOPIC_ID_VERSION = 13
NO_EPOCH = -1
NO_SESSION = 0
FINAL_EPOCH = -1
"""Of a session: none, or its last fetch (KIP-227)."""

Piece = bytes | FileRange
TopicKey = str | uuid.UUID

_I32 = struct.Struct(">i")
_PARTITION_HEAD = struct.Struct(">ihqq")


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

    def take(self, layout: struct.Struct) -> tuple[int, ...]:
        end = self._position + layout.size
        if end > len(self._body):
            raise BadFrameError("a fetch that ends too early")
        values = layout.unpack_from(self._body, self._position)
        self._position = end
        return values

    def count(self) -> int:
        """The length of an array; each element takes a byte at least."""
        if self._is_flexible:
            value, self._position = read_varint(self._body, self._position)
            value -= 1
        else:
            (value,) = self.take(_I32)
        self._elements_left -= max(value, 0)
        if value > len(self._body) - self._position or self._elements_left < 0:
            raise BadFrameError(f"an array of {value} elements in a fetch of {len(self._body)} bytes")
        return max(value, 0)

    def text(self) -> str:
        if self._is_flexible:
            size, self._position = read_varint(self._body, self._position)
            size -= 1
        else:
            (size,) = self.take(_I16)
        end = self._position + max(size, 0)
        if size < 0 or end > len(self._body):
            raise BadFrameError("a text that goes beyond its fetch")
        value = bytes(self._body[self._position : end]).decode(errors="replace")
        self._position = end
        return value

    def topic_id(self) -> uuid.UUID:
        high, low = self.take(_U128)
        return uuid.UUID(int=high << 64 | low)

    def tags(self) -> None:
        """Skips what is tagged: nothing of it concerns a log on one host."""
        if self._is_flexible:
            self._position = skip_tags(self._body, self._position)

    def end(self) -> None:
        if self._position != len(self._body):
            raise BadFrameError(f"a fetch of {len(self._body)} bytes, of which {self._position} are used")


_I16 = struct.Struct(">h")
_U128 = struct.Struct(">QQ")
_LIMITS = struct.Struct(">iiib")
_SESSION = struct.Struct(">ii")


def _partition_layout(version: int) -> struct.Struct:
    """partition, (leader epoch,) offset, (last fetched epoch,) (log start offset,) size_max."""
    epoch, last_epoch, start = "i" * (version >= 9), "i" * (version >= 12), "q" * (version >= 5)
    return struct.Struct(f">i{epoch}q{last_epoch}{start}i")


_PARTITION_LAYOUTS = {version: _partition_layout(version) for version in range(4, 18)}


def read_request(request: Request) -> FetchRequest:
    """A fetch of version 4 to 17.

    Raises:
        BadFrameError: it is none.
    """
    version = request.version
    reader = _Reader(request.body, is_flexible=version >= FLEXIBLE_VERSION)
    if version < 15:
        reader.take(_I32)  # the replica that asks: clients are -1
    max_wait_ms, min_bytes, max_bytes, isolation_level = reader.take(_LIMITS)
    session_id, session_epoch = reader.take(_SESSION) if version >= 7 else (NO_SESSION, FINAL_EPOCH)
    wanted = list(_read_topics(reader, version))
    forgotten = list(_read_forgotten(reader, version)) if version >= 7 else []
    if version >= 11:
        reader.text()  # the rack of the consumer
    reader.tags()
    reader.end()
    return FetchRequest(
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, wanted, forgotten
    )


def _read_topic_key(reader: _Reader, version: int) -> TopicKey:
    return reader.topic_id() if version >= TOPIC_ID_VERSION else reader.text()


def _read_topics(reader: _Reader, version: int) -> Iterator[Wanted]:
    layout = _PARTITION_LAYOUTS[version]
    for _ in range(reader.count()):
        topic = _read_topic_key(reader, version)
        for _ in range(reader.count()):
            partition, *rest = reader.take(layout)
            reader.tags()
            leader_epoch = rest.pop(0) if version >= 9 else NO_EPOCH
            yield Wanted(topic, partition, rest[0], rest[-1], leader_epoch)
        reader.tags()


def _read_forgotten(reader: _Reader, version: int) -> Iterator[tuple[TopicKey, int]]:
    for _ in range(reader.count()):
        topic = _read_topic_key(reader, version)
        for _ in range(reader.count()):
            yield topic, reader.take(_I32)[0]
        reader.tags()


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
        is_first = is_first and one.records is None
        left = max(left - one.size, 0)
        found.append(one)
    return found


def _find_one(wanted: Wanted, head: LogHead | BrokerError | None, left: int, *, is_first: bool) -> Found:
    if isinstance(head, BrokerError):
        return Found(wanted, head)
    if head is None:
        is_by_id = isinstance(wanted.topic, uuid.UUID)
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
    if not head.start_offset <= wanted.offset <= head.end_offset:
        return Found(wanted, BrokerError.OFFSET_OUT_OF_RANGE, head.end_offset, head.start_offset)
    if is_asked and ranged is None:
        return Found(wanted, BrokerError.CORRUPT_MESSAGE, head.end_offset, head.start_offset)
    has_room = ranged is not None and (is_first or ranged[1] <= size_max)
    records = ranged[0] if ranged is not None and has_room else None
    return Found(wanted, BrokerError.NONE, head.end_offset, head.start_offset, records)


def is_enough(request: FetchRequest, found: Sequence[Found]) -> bool:
    """True when there is an answer without waiting: an error, enough bytes, or nothing to wait for."""
    return (
        not found
        or sum(each.size for each in found) >= request.min_bytes
        or any(each.error is not BrokerError.NONE for each in found)
    )


# --- answer


@final
class _Writer:
    """Collects bytes, and file ranges between them."""

    def __init__(self, *, is_flexible: bool) -> None:
        self._is_flexible = is_flexible
        self._pieces: list[Piece] = []
        self._bytes = bytearray()
        self.tag = b"\0" if is_flexible else b""

    def put(self, content: bytes) -> None:
        self._bytes += content

    def count(self, value: int) -> None:
        self._bytes += varint(value + 1) if self._is_flexible else _I32.pack(value)

    def text(self, value: str) -> None:
        encoded = value.encode()
        self._bytes += varint(len(encoded) + 1) if self._is_flexible else _I16.pack(len(encoded))
        self._bytes += encoded

    def records(self, records: FileRange | None) -> None:
        self.count(0 if records is None else records.size)
        if records is not None:
            self._pieces += [bytes(self._bytes), records]
            self._bytes = bytearray()

    def frame(self) -> list[Piece]:
        """All of it, with its size in front."""
        pieces = [*self._pieces, bytes(self._bytes)]
        size = sum(piece.size if isinstance(piece, FileRange) else len(piece) for piece in pieces)
        first = pieces[0]
        assert isinstance(first, bytes)
        return [_I32.pack(size) + first, *pieces[1:]]


def write_answer(
    request: Request, found: Sequence[Found], *, error: BrokerError = BrokerError.NONE, session_id: int = NO_SESSION
) -> list[Piece]:
    """The frame that answers a fetch, as pieces to send one after another."""
    version = request.version
    writer = _Writer(is_flexible=version >= FLEXIBLE_VERSION)
    writer.put(_I32.pack(request.correlation_id) + writer.tag + _I32.pack(0))
    if version >= 7:
        writer.put(struct.pack(">hi", error, session_id))
    topics = _by_topic(found)
    writer.count(len(topics))
    for topic, partitions in topics:
        if isinstance(topic, uuid.UUID):
            writer.put(topic.bytes)
        else:
            writer.text(topic)
        writer.count(len(partitions))
        for each in partitions:
            _write_partition(writer, version, each)
        writer.put(writer.tag)
    writer.put(writer.tag)
    return writer.frame()


def _write_partition(writer: _Writer, version: int, found: Found) -> None:
    writer.put(_PARTITION_HEAD.pack(found.wanted.partition, found.error, found.end_offset, found.end_offset))
    if version >= 5:
        writer.put(struct.pack(">q", found.start_offset))
    writer.count(0)  # aborted transactions
    if version >= 11:
        writer.put(_I32.pack(-1))  # no other replica is nearer
    writer.records(found.records)
    writer.put(writer.tag)


def _by_topic(found: Sequence[Found]) -> list[tuple[TopicKey, list[Found]]]:
    """The partitions of each topic together, in the order in which they were asked for."""
    topics: dict[TopicKey, list[Found]] = {}
    for each in found:
        topics.setdefault(each.wanted.topic, []).append(each)
    return list(topics.items())
