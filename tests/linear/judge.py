# SPDX-License-Identifier: Apache-2.0
"""Judges a history in one pass over each part. Memory grows only by a bit for each record.

lost            a record whose send returned is not in the log, or a record of the log is not in the shipped log
duplicated      a code is in a log twice, or a consumer read an offset again without a new assignment
out of order    the numbers of an author do not ascend in a partition, or the shipped log has another order
skipped         a consumer passed a record that it (or another member of its group) had not read
withdrawn       an offset that a future returned, or that was read or committed, has another record later
in part         a committed transaction lacks records, or records of an aborted one are seen
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shmaccum.common.format.topic_partition import TopicPartition
from tests.linear.history import (
    NUMBER_BITS,
    Assigned,
    Codes,
    Committed,
    Committing,
    Ended,
    Event,
    History,
    Joined,
    Life,
    Log,
    Read,
    SendEvent,
    Sent,
    Told,
    author_of,
    codes_of,
    number_of,
)

KINDS = ("lost", "doubled", "out of order", "skipped", "withdrawn", "in part")
DESCRIBED_MAX = 20
"""The number of faults that are described. All are counted."""
CHUNK = 1 << 20


@dataclass
class Verdict:
    """The faults of a history, and its size."""

    counts: Counter[str] = field(default_factory=Counter)
    descriptions: list[str] = field(default_factory=list)
    told_count: int = 0
    read_count: int = 0
    commit_count: int = 0
    transaction_count: int = 0

    def add(self, kind: str, description: str, count: int = 1) -> None:
        self.counts[kind] += count
        if len(self.descriptions) < DESCRIBED_MAX:
            self.descriptions.append(f"{kind}: {description}")

    def add_all(self, other: Verdict) -> None:
        """Adds the faults and the size of another history."""
        self.counts += other.counts
        self.descriptions += other.descriptions
        for name in ("told_count", "read_count", "commit_count", "transaction_count"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __str__(self) -> str:
        return ", ".join(f"{self.counts[kind]} {kind}" for kind in KINDS)


def judge(history: History) -> Verdict:
    """Return the faults of a history. If there are none, the counts are empty."""
    verdict = Verdict()
    seen = _judge_log(history.log, verdict)
    _judge_sends(itertools.chain.from_iterable(history.producers), history.log, seen, verdict)
    if (shipped := history.shipped) is not None:
        for place in history.log.keys() | shipped.keys():
            _judge_shipped(place, _codes(history.log, place), _codes(shipped, place), verdict)
    for name, lives in history.readers.items():
        _judge_reader(name, lives, history.log, verdict)
    for name, lives in history.groups.items():
        _Group(name, history.log, verdict).judge(lives)
    return verdict


def _codes(log: Log, place: TopicPartition) -> Codes:
    return log.get(place, codes_of())


# --- the log


class Seen:
    """The codes of a log: a bit for each number of each author."""

    def __init__(self) -> None:
        self._bits: dict[int, npt.NDArray[np.uint8]] = {}

    def add(self, author: int, numbers: Codes) -> int:
        """Adds different numbers in ascending order. Returns how many were present."""
        first, end = int(numbers[0]) // 8, int(numbers[-1]) // 8 + 1
        window = np.zeros((end - first) * 8, bool)
        window[numbers - first * 8] = True
        added = np.packbits(window, bitorder="little")
        bits = self._bits.get(author, np.zeros(0, np.uint8))
        if len(bits) < end:
            bits = np.concatenate([bits, np.zeros(max(end, 2 * len(bits)) - len(bits), np.uint8)])
            self._bits[author] = bits
        doubled = int(np.unpackbits(added & bits[first:end]).sum())
        bits[first:end] |= added
        return doubled

    def count(self, codes: Codes) -> int:
        """Count the present ones of some codes of one author."""
        bits = self._bits.get(author_of(int(codes[0])), np.zeros(0, np.uint8))
        numbers = codes & ((1 << NUMBER_BITS) - 1)
        numbers = numbers[numbers // 8 < len(bits)]
        return int((bits[numbers // 8] >> (numbers % 8) & 1).sum())

    def missing(self, author: int, end: int) -> tuple[int, int]:
        """Return how many numbers of an author below `end` are missing, and the first one."""
        bits = self._bits.get(author, np.zeros(0, np.uint8))
        count, first = 0, -1
        for begin in range(0, end, CHUNK):
            size = min(CHUNK, end - begin)
            part = np.zeros(size, np.uint8)
            there = np.unpackbits(bits[begin // 8 : (begin + CHUNK) // 8], bitorder="little")[:size]
            part[: len(there)] = there
            gone = np.flatnonzero(part == 0)
            if len(gone) and not count:
                first = begin + int(gone[0])
            count += len(gone)
        return count, first


def _judge_log(log: Log, verdict: Verdict) -> Seen:
    """Counts repeated and unordered records of the log. Returns all of its codes."""
    seen = Seen()
    for place, codes in log.items():
        last: dict[int, int] = {}
        for begin in range(0, len(codes), CHUNK):
            chunk = np.array(codes[begin : begin + CHUNK])
            by_author = chunk[np.argsort(chunk >> NUMBER_BITS, kind="stable")]
            authors, begins = np.unique(by_author >> NUMBER_BITS, return_index=True)
            for author, part in zip(authors.tolist(), np.split(by_author, begins[1:]), strict=True):
                _judge_author(f"{place} from {begin} on", part, last.get(author, -1), verdict)
                last[author] = int(part[-1])
                different = np.unique(part)
                doubled = len(part) - len(different) + seen.add(author, different & ((1 << NUMBER_BITS) - 1))
                if doubled:
                    verdict.add("doubled", f"{place} from {begin} on has codes of {author:#x} again", doubled)
    return seen


def _judge_author(where: str, codes: Codes, last: int, verdict: Verdict) -> None:
    back = np.flatnonzero(np.diff(codes, prepend=last) < 0)
    if len(back):
        code = int(codes[back[0]])
        verdict.add("out of order", f"{where} has code {code:#x} after a later one", len(back))


def _judge_shipped(place: TopicPartition, source: Codes, target: Codes, verdict: Verdict) -> None:
    chunks = range(0, max(len(source), len(target)), CHUNK)
    if all(np.array_equal(source[begin : begin + CHUNK], target[begin : begin + CHUNK]) for begin in chunks):
        return
    missing, more = Counter(source.tolist()), Counter(target.tolist())
    missing, more = missing - more, more - missing
    if missing:
        verdict.add("lost", f"{missing.total()} records of {place} were not shipped", missing.total())
    if more:
        verdict.add("doubled", f"{more.total()} records of {place} were shipped too often", more.total())
    present = set(target.tolist())
    if list(dict.fromkeys(target.tolist())) != [code for code in source.tolist() if code in present]:
        verdict.add("out of order", f"{place} was shipped in another order")


# --- producers


def _judge_sends(events: Iterable[SendEvent], log: Log, seen: Seen, verdict: Verdict) -> None:
    """Check the results of all producers."""
    last: dict[int, int] = {}
    joined: dict[int, list[Codes]] = defaultdict(list)
    outcomes: dict[int, bool] = {}
    for event in events:
        if isinstance(event, Sent):
            last[author_of(event.code)] = number_of(event.code)
        elif isinstance(event, Told):
            _judge_told(event, _codes(log, event.place), verdict)
        elif isinstance(event, Ended):
            outcomes[event.number] = event.is_committed
        elif isinstance(event, Joined) and not event.is_refused:
            joined[event.number].append(event.codes)
        elif isinstance(event, Joined) and (count := seen.count(event.codes)):
            verdict.add("in part", f"{count} records refused by transaction {event.number} are visible", count)
    for author, number in last.items():
        count, first = seen.missing(author, number + 1)
        if count:
            what = f"{count} records of author {author:#x} were sent and are not in the log, the first is {first}"
            verdict.add("lost", what, count)
    _judge_transactions(joined, outcomes, seen, verdict)


def _judge_told(told: Told, codes: Codes, verdict: Verdict) -> None:
    verdict.told_count += len(told.codes)
    there = told.positions < len(codes)
    wrong = len(there) - int((codes[told.positions[there]] == told.codes[there]).sum())
    if wrong:
        verdict.add("withdrawn", f"{told} is not what the log has there", wrong)


def _judge_transactions(
    joined: Mapping[int, list[Codes]], outcomes: Mapping[int, bool], seen: Seen, verdict: Verdict
) -> None:
    """Check that all records of a transaction are visible, or none."""
    verdict.transaction_count = len(joined)
    for number, parts in joined.items():
        total, count = sum(map(len, parts)), sum(map(seen.count, parts))
        wanted = {True: total, False: 0, None: total if count else 0}[outcomes.get(number)]
        if count != wanted:
            verdict.add("in part", f"of {total} records of transaction {number} {count} are visible, not {wanted}")


# --- consumers


def _judge_read(name: str, read: Read, log: Log, verdict: Verdict) -> None:
    there = _codes(log, read.place)[read.position : read.position + len(read.codes)]
    wrong = len(read.codes) - int((there == read.codes[: len(there)]).sum())
    if wrong:
        verdict.add("withdrawn", f"{name} read other records at {read.place} position {read.position}", wrong)
    verdict.read_count += len(read.codes)


def _judge_step(name: str, read: Read, expected: int, verdict: Verdict) -> None:
    if read.position > expected:
        count = read.position - expected
        verdict.add("skipped", f"{name} went from {expected} to {read.position} in {read.place}", count)
    elif read.position < expected:
        count = expected - read.position
        verdict.add("doubled", f"{name} went back from {expected} to {read.position} in {read.place}", count)


def _judge_reader(name: str, lives: list[Life], log: Log, verdict: Verdict) -> None:
    """Each incarnation reads every partition from its first record. The last one reads all."""
    expected: dict[TopicPartition, int] = {}
    for life in lives:
        expected = defaultdict(int)
        for event in life.events:
            if isinstance(event, Read):
                _judge_read(name, event, log, verdict)
                _judge_step(name, event, expected[event.place], verdict)
                expected[event.place] = event.position + len(event.codes)
    for place, codes in log.items():
        if (end := expected.get(place, 0)) < len(codes):
            verdict.add("skipped", f"{name} ended at {end} of {place}, which has {len(codes)}", len(codes) - end)


def _in_order(life: Life, number: int) -> Iterator[tuple[int, int, int, Event]]:
    """Yield a life's events with ascending times. An assignment is within the poll that reads its first records."""
    last_ns = 0
    for order, event in enumerate(life.events):
        last_ns = max(last_ns, event.ns)
        yield last_ns, number, order, event


class _Group:
    """A group's reads and commits, in the order of time."""

    def __init__(self, name: str, log: Log, verdict: Verdict) -> None:
        self._name = name
        self._log = log
        self._verdict = verdict
        self._read_to: dict[TopicPartition, int] = defaultdict(int)
        """The position after the last record that any member has read."""
        self._committed: dict[TopicPartition, int] = defaultdict(int)
        """Positions of returned commits."""
        self._returning: list[tuple[int, TopicPartition, int]] = []
        """Commits that return after the current time."""
        self._expected: dict[tuple[int, TopicPartition], int] = {}
        """Life and partition -> the next position of this assignment."""
        self._begins: dict[tuple[int, TopicPartition], int] = {}
        """Life and partition of an assignment without reads -> the committed position."""

    def judge(self, lives: list[Life]) -> None:
        for ns, number, _, event in heapq.merge(*(_in_order(life, number) for number, life in enumerate(lives))):
            self._return_commits(ns)
            if isinstance(event, Assigned):
                self._expected.pop((number, event.place), None)
                self._begins[number, event.place] = self._committed[event.place]
            elif isinstance(event, Read):
                self._read(number, event)
            elif isinstance(event, Committed):
                self._commit(event)
            else:
                assert isinstance(event, Committing)  # its result is unknown, unless another line follows
        for place, codes in self._log.items():
            if (skipped := len(codes) - self._read_to[place]) > 0:
                self._verdict.add("skipped", f"{self._name} never read {skipped} records of {place}", skipped)

    def _return_commits(self, ns: int) -> None:
        while self._returning and self._returning[0][0] < ns:
            _, place, position = heapq.heappop(self._returning)
            self._committed[place] = max(self._committed[place], position)

    def _read(self, number: int, read: Read) -> None:
        key, end = (number, read.place), read.position + len(read.codes)
        _judge_read(self._name, read, self._log, self._verdict)
        if key in self._expected:
            _judge_step(self._name, read, self._expected[key], self._verdict)
        else:
            begin = self._begins.get(key, 0)
            if read.position < begin:
                what = f"{self._name} had committed {begin} of {read.place}, and a member began at {read.position}"
                self._verdict.add("withdrawn", what, begin - read.position)
            if read.position > self._read_to[read.place]:
                what = f"{self._name} began at {read.position} of {read.place}, read to {self._read_to[read.place]}"
                self._verdict.add("skipped", what)
        self._expected[key] = end
        self._read_to[read.place] = max(self._read_to[read.place], end)

    def _commit(self, commit: Committed) -> None:
        self._verdict.commit_count += 1
        if commit.position < self._committed[commit.place]:
            what = f"{self._name} committed {commit.position} of {commit.place} after {self._committed[commit.place]}"
            self._verdict.add("withdrawn", what)
        if commit.position > self._read_to[commit.place]:
            what = f"{self._name} committed {commit.position} of {commit.place}, read to {self._read_to[commit.place]}"
            self._verdict.add("skipped", what)
        heapq.heappush(self._returning, (commit.end_ns, commit.place, commit.position))
