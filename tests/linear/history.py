# SPDX-License-Identifier: Apache-2.0
"""The history of a round: the notes of each process, and the records of the logs at the end.

Each seat appends lines to a file of its own, in one write for each line. A line ends with a full stop as its last word.
A kill may truncate a line, and a line without that word is ignored. An operation has a line for its call and one for
its result. Without the latter, its result is unknown.

::

    sending NS CODE COUNT .                           sends of COUNT codes begin
    sent CODE .                                       every record of this author up to this one: its send returned
    told NS TOPIC PARTITION CODE OFFSET ... .         futures returned these offsets
    joining NUMBER CODE TOPIC PARTITION .             a send in this transaction begins
    joined NUMBER CODE .                              it returned
    refused NUMBER CODE .                             it raised: the transaction does not have the record
    ending NUMBER NS .                                a commit of this transaction begins
    ended NUMBER NS committed|aborted .               its commit or its abort returned
    begin INCARNATION .                               a consumer started
    assigned NS NS TOPIC PARTITION .                  a member owns this partition; begin of the poll, and now
    read NS NS TOPIC PARTITION OFFSET CODE CODE ... . records of consecutive offsets; begin and end of the poll
    committing NS TOPIC PARTITION OFFSET .            a commit begins
    committed NS NS TOPIC PARTITION OFFSET .          a commit returned; begin and end of the call

A *code* is the value of a record. It is unique: producer, incarnation, and a number that counts from 0.

A *position* counts the records of a partition that a reader of committed records sees. If the log has no
transactions, it is the offset. Otherwise, markers and aborted records have offsets but no positions.

Codes of a log are mapped files, and lines are read when they are judged, so a history may exceed the memory.
"""

from __future__ import annotations

import os
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files import LogReader

NUMBER_BITS = 32
INCARNATION_BITS = 16
END = "."
BUFFERED_COUNT = 1 << 16

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
    """The call of a send in a transaction."""

    number: int
    code: int
    place: TopicPartition


class Joined(NamedTuple):
    """The result of a send in a transaction: it returned or raised."""

    number: int
    code: int
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
    """The begin of the poll."""
    ns: int
    place: TopicPartition


class Read(NamedTuple):
    """Records of consecutive positions that one poll returned."""

    ns: int
    """The begin of the poll."""
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
    """The begin of the call."""
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
    """If nothing was shipped, None."""
    producers: list[Iterable[SendEvent]] = field(default_factory=list)
    """The notes of each producer's seat."""
    readers: dict[str, list[Life]] = field(default_factory=lambda: defaultdict(list))
    """Consumer without a group -> its incarnations."""
    groups: dict[str, list[Life]] = field(default_factory=lambda: defaultdict(list))
    """Group -> the incarnations of all of its members."""


class Notes:
    """The part of a seat's file that one incarnation writes."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(self._descriptor, b"\n")  # ends a line that a kill truncated

    def add(self, *words: object) -> None:
        """Append a line."""
        self.add_all([words])

    def add_all(self, lines: Iterable[Sequence[object]]) -> None:
        """Append lines in one write."""
        text = "".join(f"{' '.join(map(str, words))} {END}\n" for words in lines)
        os.write(self._descriptor, text.encode())


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


def _lines(path: Path, begin: int = 0) -> Iterator[tuple[int, str, str]]:
    """Yield the end of each whole line, its first word, and the others."""
    with path.open("rb") as file:
        file.seek(begin)
        place = begin
        for line in file:
            place += len(line)
            if line.endswith(b" .\n"):
                kind, _, rest = line[:-3].decode().partition(" ")
                yield place, kind, rest


def _numbers(text: str) -> Codes:
    return np.fromstring(text, dtype=np.int64, sep=" ")


@dataclass(frozen=True)
class NotedSends:
    """The notes of a producer's seat."""

    path: Path
    positions: Positions

    def __iter__(self) -> Iterator[SendEvent]:
        for _, kind, rest in _lines(self.path):
            yield self._event(kind, rest)

    def _event(self, kind: str, rest: str) -> SendEvent:
        if kind == "told":
            ns, topic, partition, pairs = rest.split(" ", 3)
            place, rows = TopicPartition(topic, int(partition)), _numbers(pairs).reshape(-1, 2)
            positions = [self.positions.of(place, offset) for offset in rows[:, 1].tolist()]
            return Told(int(ns), place, rows[:, 0], codes_of(*positions))
        words = rest.split()
        first = int(words[0])
        if kind == "sending":
            return Sending(first, int(words[1]), int(words[2]))
        if kind == "sent":
            return Sent(first)
        if kind == "ending":
            return Ending(first, int(words[1]))
        if kind == "ended":
            return Ended(first, int(words[1]), words[2] == "committed")
        if kind == "joining":
            return Joining(first, int(words[1]), TopicPartition(words[2], int(words[3])))
        return Joined(first, int(words[1]), kind == "refused")


@dataclass(frozen=True)
class NotedEvents:
    """The notes of an incarnation of a consumer, from a position in its file."""

    path: Path
    begin: int
    positions: Positions

    def __iter__(self) -> Iterator[Event]:
        for _, kind, rest in _lines(self.path, self.begin):
            if kind == "begin":
                return
            yield self._event(kind, rest)

    def _event(self, kind: str, rest: str) -> Event:
        ns, *words = rest.split(" ", 3 if kind == "committing" else 5)
        end_ns = int(ns if kind == "committing" else words.pop(0))
        place = TopicPartition(words[0], int(words[1]))
        if kind == "assigned":
            return Assigned(int(ns), end_ns, place)
        position = self.positions.of(place, int(words[2]))
        if kind == "read":
            return Read(int(ns), end_ns, place, position, _numbers(words[3]))
        return Committing(end_ns, place, position) if kind == "committing" else (
            Committed(int(ns), end_ns, place, position)
        )  # fmt: skip


def read_consumer(path: Path, positions: Positions) -> list[Life]:
    """The incarnations of a consumer's seat."""
    return [Life(NotedEvents(path, place, positions)) for place, kind, _ in _lines(path) if kind == "begin"]


# --- the logs, read


class CodesFile:
    """A file of codes that grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._buffer = array("q")
        path.write_bytes(b"")

    def add(self, code: int) -> None:
        """Append a code."""
        self._buffer.append(code)
        if len(self._buffer) >= BUFFERED_COUNT:
            self._flush()

    def _flush(self) -> None:
        with self._path.open("ab") as file:
            self._buffer.tofile(file)
        self._buffer = array("q")

    def mapped(self) -> Codes:
        """Map all codes."""
        self._flush()
        return np.memmap(self._path, np.int64, "r") if self._path.stat().st_size else codes_of()


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
        name = f"{place.topic}-{place.partition}"
        code_file, offset_file = CodesFile(folder / f"{name}.codes"), CodesFile(folder / f"{name}.offsets")
        for count, record in enumerate(reader.partition(*place).records()):
            if not is_committed and record.offset != count:
                raise AssertionError(f"{directory}: offset {record.offset} of {place} follows {count}")
            code_file.add(int((record.value or b"").split(None, 1)[0]))
            offset_file.add(record.offset)
        codes[place], offsets[place] = code_file.mapped(), offset_file.mapped()
    return codes, offsets
