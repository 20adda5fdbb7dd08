# SPDX-License-Identifier: Apache-2.0
"""Judges a history in one pass over each of its parts.

lost            a record whose send returned is not in the log, or one of the log is not in the shipped log
doubled         a code is in a log twice, or a consumer read an offset again without a new assignment
out of order    the numbers of an author do not ascend in a partition, or the shipped log has another order
skipped         a consumer went on behind a record that it (or another member of its group) had not read
withdrawn       an offset that a future returned, that was read, or that was committed, means another record later
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from shmaccum.common.format.topic_partition import TopicPartition
from tests.linear.history import (
    NUMBER_BITS,
    Assigned,
    Codes,
    Committed,
    Event,
    History,
    Life,
    Read,
    author_of,
    number_of,
)

KINDS = ("lost", "doubled", "out of order", "skipped", "withdrawn")
TOLD_MAX = 20
"""Faults that are described; all are counted."""


@dataclass
class Verdict:
    """The faults of a history."""

    counts: Counter[str] = field(default_factory=Counter)
    descriptions: list[str] = field(default_factory=list)

    def add(self, kind: str, description: str, count: int = 1) -> None:
        """Counts a fault."""
        self.counts[kind] += count
        if len(self.descriptions) < TOLD_MAX:
            self.descriptions.append(f"{kind}: {description}")

    def __str__(self) -> str:
        return ", ".join(f"{self.counts[kind]} {kind}" for kind in KINDS)


def judge(history: History) -> Verdict:
    """The faults of a history; none of them: the counts are empty."""
    verdict = Verdict()
    seen = _judge_log(history.log, "the log", verdict)
    for author, last in history.sent.items():
        first = author << NUMBER_BITS
        for code in range(first, first + last + 1):
            if code not in seen:
                verdict.add("lost", f"record {number_of(code)} of author {author:#x} was sent and is not in the log")
    for told in history.told:
        if _codes_at(history.log, told.place, told.offset, 1) != [told.code]:
            verdict.add("withdrawn", f"{told} is not what the log has there")
    _judge_shipped(history.log, history.shipped, verdict)
    for name, lives in history.readers.items():
        _judge_reader(name, lives, history.log, verdict)
    for name, lives in history.groups.items():
        _Group(name, history.log, verdict).judge(lives)
    return verdict


def _judge_log(log: Codes, name: str, verdict: Verdict) -> set[int]:
    """Counts doubles and disorder of one log; all of its codes."""
    seen: set[int] = set()
    for place, codes in log.items():
        last: dict[int, int] = {}
        for offset, code in enumerate(codes):
            author = author_of(code)
            if code in seen:
                verdict.add("doubled", f"{name} has code {code:#x} again at {place} offset {offset}")
            elif last.get(author, -1) >= code:
                verdict.add("out of order", f"{name} has code {code:#x} at {place} offset {offset} after a later one")
            else:
                last[author] = code
            seen.add(code)
    return seen


def _judge_shipped(log: Codes, shipped: Codes, verdict: Verdict) -> None:
    for place in log.keys() | shipped.keys():
        source, target = log.get(place, []), shipped.get(place, [])
        if source == target:
            continue
        missing, more = Counter(source) - Counter(target), Counter(target) - Counter(source)
        if missing:
            verdict.add("lost", f"{missing.total()} records of {place} were not shipped", missing.total())
        if more:
            verdict.add("doubled", f"{more.total()} records of {place} were shipped too often", more.total())
        if list(dict.fromkeys(target)) != [code for code in source if code in set(target)]:
            verdict.add("out of order", f"{place} was shipped in another order")


def _codes_at(log: Codes, place: TopicPartition, offset: int, count: int) -> list[int]:
    return log.get(place, [])[offset : offset + count]


def _judge_read(name: str, read: Read, log: Codes, verdict: Verdict) -> None:
    there = _codes_at(log, read.place, read.offset, len(read.codes))
    if there != read.codes:
        count = len(read.codes) - sum(one == other for one, other in zip(there, read.codes, strict=False))
        verdict.add("withdrawn", f"{name} read other records at {read.place} offset {read.offset}", count)


def _judge_step(name: str, read: Read, expected: int, verdict: Verdict) -> None:
    if read.offset > expected:
        count = read.offset - expected
        verdict.add("skipped", f"{name} went from {expected} to {read.offset} in {read.place}", count)
    elif read.offset < expected:
        count = expected - read.offset
        verdict.add("doubled", f"{name} went back from {expected} to {read.offset} in {read.place}", count)


def _judge_reader(name: str, lives: list[Life], log: Codes, verdict: Verdict) -> None:
    """Each incarnation reads every partition from its first record on; the last one reads all."""
    expected: dict[TopicPartition, int] = {}
    for life in lives:
        expected = defaultdict(int)
        for event in life.events:
            if isinstance(event, Read):
                _judge_read(name, event, log, verdict)
                _judge_step(name, event, expected[event.place], verdict)
                expected[event.place] = event.offset + len(event.codes)
    for place, codes in log.items():
        if (end := expected.get(place, 0)) < len(codes):
            verdict.add("skipped", f"{name} ended at {end} of {place}, which has {len(codes)}", len(codes) - end)


def _in_order(life: Life) -> Iterator[tuple[int, Event]]:
    """The events of a life with ascending times: an assignment happens within the poll that reads its first records."""
    last_ns = 0
    for event in life.events:
        last_ns = max(last_ns, event.ns)
        yield last_ns, event


class _Group:
    """A group's reads and commits, in the order of time."""

    def __init__(self, name: str, log: Codes, verdict: Verdict) -> None:
        self._name = name
        self._log = log
        self._verdict = verdict
        self._read_to: dict[TopicPartition, int] = defaultdict(int)
        """Behind the last record that any member has read."""
        self._committed: dict[TopicPartition, int] = defaultdict(int)
        """By commits that had returned."""
        self._returning: list[tuple[int, TopicPartition, int]] = []
        """Commits whose end lies behind the time that was reached."""
        self._covered = {place: bytearray(len(codes)) for place, codes in log.items()}
        self._expected: dict[tuple[int, TopicPartition], int] = {}
        """Life and partition -> the next offset of this assignment."""
        self._begins: dict[tuple[int, TopicPartition], int] = {}
        """Life and partition of an assignment of which nothing was read -> what had been committed."""

    def judge(self, lives: list[Life]) -> None:
        streams = [
            [(ns, number, order, event) for order, (ns, event) in enumerate(_in_order(life))]
            for number, life in enumerate(lives)
        ]
        for ns, number, _, event in heapq.merge(*streams):
            self._return_commits(ns)
            if isinstance(event, Assigned):
                self._expected.pop((number, event.place), None)
                self._begins[number, event.place] = self._committed[event.place]
            elif isinstance(event, Read):
                self._read(number, event)
            else:
                self._commit(event)
        for place, covered in self._covered.items():
            if skipped := covered.count(0):
                self._verdict.add("skipped", f"{self._name} never read {skipped} records of {place}", skipped)

    def _return_commits(self, ns: int) -> None:
        while self._returning and self._returning[0][0] < ns:
            _, place, offset = heapq.heappop(self._returning)
            self._committed[place] = max(self._committed[place], offset)

    def _read(self, number: int, read: Read) -> None:
        key, end = (number, read.place), read.offset + len(read.codes)
        _judge_read(self._name, read, self._log, self._verdict)
        if key in self._expected:
            _judge_step(self._name, read, self._expected[key], self._verdict)
        else:
            begin = self._begins.get(key, 0)
            if read.offset < begin:
                what = f"{self._name} had committed {begin} of {read.place}, and a member began at {read.offset}"
                self._verdict.add("withdrawn", what, begin - read.offset)
            if read.offset > self._read_to[read.place]:
                what = f"{self._name} began at {read.offset} of {read.place}, read to {self._read_to[read.place]}"
                self._verdict.add("skipped", what)
        self._expected[key] = end
        self._read_to[read.place] = max(self._read_to[read.place], end)
        covered = self._covered.get(read.place, bytearray())
        stop = min(end, len(covered))
        covered[read.offset : stop] = b"\1" * max(stop - read.offset, 0)

    def _commit(self, commit: Committed) -> None:
        if commit.offset < self._committed[commit.place]:
            what = f"{self._name} committed {commit.offset} of {commit.place} after {self._committed[commit.place]}"
            self._verdict.add("withdrawn", what)
        if commit.offset > self._read_to[commit.place]:
            what = f"{self._name} committed {commit.offset} of {commit.place}, read to {self._read_to[commit.place]}"
            self._verdict.add("skipped", what)
        heapq.heappush(self._returning, (commit.end_ns, commit.place, commit.offset))
