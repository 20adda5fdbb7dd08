# SPDX-License-Identifier: Apache-2.0
"""The history of a round: the notes of each process, and the records of the logs at the end.

Each seat appends lines to a file of its own, in one write for each line. A line ends with a full stop as its last word.
A kill may cut a line off, and a line without that word is left out.

::

    sent CODE .                                       every record of this author up to this one: its send returned
    told CODE TOPIC PARTITION OFFSET .                a future returned this offset
    begin INCARNATION .                               a consumer started
    assigned NS TOPIC PARTITION .                     a member of a group owns this partition now
    read NS TOPIC PARTITION OFFSET CODE CODE ... .    records of consecutive offsets; NS is when the poll began
    committed NS NS TOPIC PARTITION OFFSET .          a commit returned; NS are its begin and its end

A *code* is the value of a record. It is unique: producer, incarnation, and a number that counts from 0.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files import LogReader

NUMBER_BITS = 32
INCARNATION_BITS = 16
END = "."

Codes = dict[TopicPartition, list[int]]
"""The codes of each partition, by offset."""


def code_of(producer: int, incarnation: int, number: int = 0) -> int:
    """The code of a record."""
    return (producer << INCARNATION_BITS | incarnation) << NUMBER_BITS | number


def author_of(code: int) -> int:
    """The producer and incarnation of a code, as one number."""
    return code >> NUMBER_BITS


def number_of(code: int) -> int:
    """The number of a code."""
    return code & ((1 << NUMBER_BITS) - 1)


class Told(NamedTuple):
    """An offset that a future returned."""

    code: int
    place: TopicPartition
    offset: int


class Assigned(NamedTuple):
    """A member owns a partition from here on."""

    ns: int
    place: TopicPartition


class Read(NamedTuple):
    """Records of consecutive offsets that one poll returned."""

    ns: int
    place: TopicPartition
    offset: int
    codes: list[int]


class Committed(NamedTuple):
    """A commit that returned."""

    ns: int
    """The begin of the call."""
    end_ns: int
    place: TopicPartition
    offset: int


Event = Assigned | Read | Committed


@dataclass
class Life:
    """The notes of one incarnation of a consumer."""

    events: list[Event] = field(default_factory=list)


@dataclass
class History:
    """Everything that a judge looks at."""

    log: Codes = field(default_factory=dict)
    shipped: Codes = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)
    """Author -> the last number whose send returned."""
    told: list[Told] = field(default_factory=list)
    readers: dict[str, list[Life]] = field(default_factory=lambda: defaultdict(list))
    """Consumer without a group -> its incarnations."""
    groups: dict[str, list[Life]] = field(default_factory=lambda: defaultdict(list))
    """Group -> the incarnations of all of its members."""

    def read_count(self) -> int:
        """How many lines all consumers noted."""
        lives = [life for found in (*self.readers.values(), *self.groups.values()) for life in found]
        return sum(len(event.codes) for life in lives for event in life.events if isinstance(event, Read))


class Notes:
    """The file of a seat, as one incarnation writes it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(self._descriptor, b"\n")  # ends a line that a kill cut off

    def add(self, *words: object) -> None:
        """One line."""
        self.add_all([words])

    def add_all(self, lines: Iterable[Sequence[object]]) -> None:
        """Several lines, in one write."""
        text = "".join(f"{' '.join(map(str, words))} {END}\n" for words in lines)
        os.write(self._descriptor, text.encode())


def _lines(path: Path) -> Iterator[list[str]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            words = line.split()
            if words and words[-1] == END:
                yield words[:-1]


def read_producer(path: Path, history: History) -> None:
    """Adds the notes of a producer's seat."""
    for kind, *rest in _lines(path):
        if kind == "sent":
            code = int(rest[0])
            history.sent[author_of(code)] = number_of(code)
        else:
            code, topic, partition, offset = int(rest[0]), rest[1], int(rest[2]), int(rest[3])
            history.told.append(Told(code, TopicPartition(topic, partition), offset))


def read_consumer(path: Path) -> list[Life]:
    """The incarnations of a consumer's seat."""
    lives: list[Life] = []
    for kind, *rest in _lines(path):
        if kind == "begin":
            lives.append(Life())
        elif kind == "assigned":
            lives[-1].events.append(Assigned(int(rest[0]), TopicPartition(rest[1], int(rest[2]))))
        elif kind == "read":
            place = TopicPartition(rest[1], int(rest[2]))
            lives[-1].events.append(Read(int(rest[0]), place, int(rest[3]), list(map(int, rest[4:]))))
        else:
            place = TopicPartition(rest[2], int(rest[3]))
            lives[-1].events.append(Committed(int(rest[0]), int(rest[1]), place, int(rest[4])))
    return lives


def read_log(directory: Path) -> Codes:
    """The codes of all partitions of a log. Its offsets have no holes."""
    reader = LogReader(directory)
    found: Codes = {}
    for place in reader.topic_partitions():
        codes = found[place] = []
        for record in reader.partition(*place).records():
            assert record.offset == len(codes), f"{directory}: offset {record.offset} of {place} follows {len(codes)}"
            codes.append(int((record.value or b"").split()[0]))
    return found
