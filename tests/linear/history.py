# SPDX-License-Identifier: Apache-2.0
"""The history of a round: the notes of each process, and the records of the logs at the end.

Each process appends notes to a file of its own. A note is a row of 64-bit words: its size in words, its kind, and the
words below. A kill may truncate the last note, and this note is ignored. An operation has a note for its call and one
for its result. Without the latter, its result is unknown.

::

    SENDING NS CODE COUNT                           sends of COUNT consecutive codes begin
    SENT CODE                                       the sends of this author's records up to this one returned
    TOLD NS TOPIC PARTITION CODE ... OFFSET ...     futures returned these offsets
    JOINING NUMBER CODE COUNT TOPIC PARTITION       sends in this transaction begin
    JOINED NUMBER CODE COUNT                        they returned
    REFUSED NUMBER CODE COUNT                       they raised: the transaction does not have the records
    ENDING NUMBER NS                                a commit of this transaction begins
    ENDED NUMBER NS IS_COMMITTED                    its commit or its abort returned
    ASSIGNED NS NS TOPIC PARTITION                  a member owns this partition; start of the poll, and now
    READ NS NS TOPIC PARTITION OFFSET CODE ...      records of consecutive offsets; begin and end of the poll
    COMMITTING NS TOPIC PARTITION OFFSET            a commit begins
    COMMITTED NS NS TOPIC PARTITION OFFSET          a commit returned; begin and end of the call

A *code* is unique: producer, incarnation, and a number that counts from 0. The value of a record is its code, once or
several times.

A *position* counts the records of a partition that a reader of committed records sees. If the log has no
transactions, it is the offset. Otherwise, markers and aborted records have offsets but no positions.

All files are mapped, and notes are parsed when they are judged, so a history may exceed the memory.
"""

from __future__ import annotations

import enum
import functools
import itertools
import os
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files import LogReader
from shmaccum.log.files.columns import RecordColumns, decode_columns
from shmaccum.log.files.reader import PartitionReader

NUMBER_BITS = 32
INCARNATION_BITS = 16
CODE_SIZE = 8
HEAD_COUNT = 8
"""The maximum number of words of a note that are neither codes nor offsets."""
BATCHES_DECODED = 256
"""The number of batches that are decoded at once."""
TOPIC_PREFIX = "linear"

Codes = npt.NDArray[np.int64]
Log = dict[TopicPartition, Codes]
"""The codes of each partition, by position."""


def code_of(producer: int, incarnation: int, number: int = 0) -> int:
    return (producer << INCARNATION_BITS | incarnation) << NUMBER_BITS | number


def author_of(code: int) -> int:
    """The producer and incarnation of a code, as one number."""
    return code >> NUMBER_BITS


def producer_of(code: int) -> int:
    return author_of(code) >> INCARNATION_BITS


def number_of(code: int) -> int:
    return code & ((1 << NUMBER_BITS) - 1)


def codes_of(*codes: int) -> Codes:
    return np.array(codes, np.int64)


def codes_from(first: int, count: int) -> Codes:
    """Consecutive codes."""
    return np.arange(first, first + count, dtype=np.int64)


def topic_name(number: int) -> str:
    return f"{TOPIC_PREFIX}-{number}"


def topic_number(topic: str) -> int:
    return int(topic.removeprefix(f"{TOPIC_PREFIX}-"))


class Sending(NamedTuple):
    """The call of consecutive sends."""

    ns: int
    code: int
    record_count: int


class Sent(NamedTuple):
    """The last record whose send returned."""

    code: int


class Told(NamedTuple):
    """The positions that futures returned."""

    ns: int
    place: TopicPartition
    codes: Codes
    positions: Codes


class Joining(NamedTuple):
    """The call of sends in a transaction."""

    number: int
    codes: Codes
    place: TopicPartition


class Joined(NamedTuple):
    """The result of sends in a transaction: they returned or raised."""

    number: int
    codes: Codes
    is_refused: bool


class Ending(NamedTuple):
    """The call of a commit."""

    number: int
    ns: int


class Ended(NamedTuple):
    """The result of a commit or an abort."""

    number: int
    ns: int
    is_committed: bool


class Assigned(NamedTuple):
    """The assignment of a partition to a member."""

    begin_ns: int
    """The start of the poll."""
    ns: int
    place: TopicPartition


class Read(NamedTuple):
    """Records of consecutive positions that one poll returned."""

    ns: int
    """The start of the poll."""
    end_ns: int
    place: TopicPartition
    position: int
    codes: Codes


class Committing(NamedTuple):
    """The call of a commit."""

    ns: int
    place: TopicPartition
    position: int


class Committed(NamedTuple):
    """The result of a commit."""

    ns: int
    """The start of the call."""
    end_ns: int
    place: TopicPartition
    position: int


SendEvent = Sending | Sent | Told | Joining | Joined | Ending | Ended
Event = Assigned | Read | Committing | Committed


@dataclass
class Life:
    """The notes of one incarnation of a consumer."""

    events: Iterable[Event] = ()


@dataclass
class History:
    """All input of a judge."""

    log: Log = field(default_factory=dict)
    shipped: Log | None = None
    """None if nothing was shipped."""
    producers: list[Iterable[SendEvent]] = field(default_factory=list)
    """The notes of each producer."""
    readers: dict[str, list[Life]] = field(default_factory=lambda: defaultdict(list))
    """Consumer without a group -> its incarnations."""
    groups: dict[str, list[Life]] = field(default_factory=lambda: defaultdict(list))
    """Group -> the incarnations of all of its members."""


class Kind(enum.IntEnum):
    """The kind of a note."""

    SENDING = enum.auto()
    SENT = enum.auto()
    TOLD = enum.auto()
    JOINING = enum.auto()
    JOINED = enum.auto()
    REFUSED = enum.auto()
    ENDING = enum.auto()
    ENDED = enum.auto()
    ASSIGNED = enum.auto()
    READ = enum.auto()
    COMMITTING = enum.auto()
    COMMITTED = enum.auto()


class Note(NamedTuple):
    """A row of words, and codes and offsets that follow them."""

    kind: int
    words: tuple[int, ...]
    codes: Codes = codes_of()

    def packed(self) -> bytes:
        head = array("q", (2 + len(self.words) + len(self.codes), self.kind, *self.words))
        return head.tobytes() + self.codes.tobytes()


class Notes:
    """The file of one process."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, kind: Kind, *words: int) -> None:
        """Append a note."""
        self.add_all([Note(kind, words)])

    def add_all(self, notes: Iterable[Note]) -> None:
        """Append notes in one write."""
        os.write(self._descriptor, b"".join(note.packed() for note in notes))


def words_of(place: TopicPartition) -> tuple[int, int]:
    return topic_number(place.topic), place.partition


# --- the notes, read


class Positions:
    """Maps offsets to positions.

    Args:
        offsets: offsets of the visible records of each partition that has gaps.
    """

    def __init__(self, offsets: Log | None = None) -> None:
        self._offsets = offsets or {}

    def of(self, place: TopicPartition, offset: int) -> int:
        """Count the visible records before this offset."""
        offsets = self._offsets.get(place)
        return offset if offsets is None else int(np.searchsorted(offsets, offset))

    def of_all(self, place: TopicPartition, offsets: Codes) -> Codes:
        """Count the visible records before each of these offsets."""
        known = self._offsets.get(place)
        return offsets if known is None else np.searchsorted(known, offsets)


@dataclass(frozen=True)
class Noted:
    """The whole notes of one process."""

    path: Path
    positions: Positions

    def _notes(self) -> Iterator[tuple[int, list[int], Codes]]:
        """Yield the kind of each note, its first words, and all of its words."""
        words = mapped(self.path)
        begin, count = 0, len(words)
        while begin + 1 < count:
            size, kind, *first = words[begin : begin + HEAD_COUNT].tolist()
            if begin + size > count:
                return
            yield kind, first, words[begin + 2 : begin + size]
            begin += size


class NotedSends(Noted):
    """The notes of a producer."""

    def __iter__(self) -> Iterator[SendEvent]:
        for kind, (first, *others), words in self._notes():
            yield self._event(kind, first, others, words)

    def _event(self, kind: int, first: int, others: list[int], words: Codes) -> SendEvent:
        if kind == Kind.TOLD:
            place = _place(others[0], others[1])
            codes, offsets = words[3:].reshape(2, -1)
            return Told(first, place, codes, self.positions.of_all(place, offsets))
        if kind == Kind.SENDING:
            return Sending(first, others[0], others[1])
        if kind == Kind.SENT:
            return Sent(first)
        if kind == Kind.ENDING:
            return Ending(first, others[0])
        if kind == Kind.ENDED:
            return Ended(first, others[0], bool(others[1]))
        codes = codes_from(others[0], others[1])
        if kind == Kind.JOINING:
            return Joining(first, codes, _place(others[2], others[3]))
        return Joined(first, codes, kind == Kind.REFUSED)


class NotedEvents(Noted):
    """The notes of a consumer."""

    def __iter__(self) -> Iterator[Event]:
        for kind, first, words in self._notes():
            yield self._event(kind, first, words)

    def _event(self, kind: int, first: list[int], words: Codes) -> Event:
        ns, *others = first
        if kind == Kind.COMMITTING:
            place = _place(others[0], others[1])
            return Committing(ns, place, self.positions.of(place, others[2]))
        end_ns, place = others[0], _place(others[1], others[2])
        if kind == Kind.ASSIGNED:
            return Assigned(ns, end_ns, place)
        position = self.positions.of(place, others[3])
        if kind == Kind.READ:
            return Read(ns, end_ns, place, position, words[5:])
        return Committed(ns, end_ns, place, position)


@functools.cache
def _place(topic: int, partition: int) -> TopicPartition:
    return TopicPartition(topic_name(topic), partition)


def mapped(path: Path) -> Codes:
    """Map the whole words of a file."""
    count = path.stat().st_size // 8
    return np.asarray(np.memmap(path, np.int64, "r", shape=(count,))) if count else codes_of()


# --- the records


def values_of(codes: Codes, sizes: Codes) -> list[bytes]:
    """The values of records: each is its code, repeated this many times."""
    data = np.repeat(codes, sizes).tobytes()
    ends = np.cumsum(sizes * CODE_SIZE).tolist()
    return [data[begin:end] for begin, end in itertools.pairwise([0, *ends])]


def codes_in(data: Any, ends: npt.NDArray[np.integer[Any]]) -> Codes:
    """The codes of values that follow each other. Their first and last bytes are those between these ends."""
    words, ends = np.frombuffer(data, np.int64), ends // CODE_SIZE
    words = words[ends[0] : ends[-1]]
    codes: Codes = words[ends[:-1] - ends[0]]
    assert np.array_equal(np.repeat(codes, np.diff(ends)), words), "a record has parts of another one"
    return codes


def codes_in_values(values: Collection[bytes]) -> Codes:
    return codes_in(b"".join(values), np.cumsum([0, *map(len, values)]))


def codes_in_columns(columns: RecordColumns) -> Codes:
    return codes_in(columns.value.data, np.frombuffer(columns.value.offsets, np.int32))


def read_log(directory: Path, folder: Path, *, is_committed: bool) -> tuple[Log, Log]:
    """Write the codes and offsets of all partitions of a log to files of a folder.

    Args:
        is_committed: the log has transactions, and only committed records are read. Otherwise, offsets have no gaps.
    """
    folder.mkdir(exist_ok=True)
    reader = LogReader(directory, isolation_level="read_committed" if is_committed else "read_uncommitted")
    codes: Log = {}
    offsets: Log = {}
    for place in reader.topic_partitions():
        paths = [folder / f"{place.topic}-{place.partition}.{name}" for name in ("codes", "offsets")]
        with paths[0].open("wb") as code_file, paths[1].open("wb") as offset_file:
            for columns in _columns(reader.partition(*place)):
                codes_in_columns(columns).tofile(code_file)
                np.frombuffer(columns.offsets, np.int64).tofile(offset_file)
        codes[place], offsets[place] = map(mapped, paths)
        if not is_committed and not np.array_equal(offsets[place], np.arange(len(offsets[place]))):
            raise AssertionError(f"{directory}: the offsets of {place} have a gap")
    return codes, offsets


def _columns(partition: PartitionReader) -> Iterator[RecordColumns]:
    batches = partition.batches()
    while some := list(itertools.islice(batches, BATCHES_DECODED)):
        yield decode_columns(some, 0, some[-1].next_offset)
