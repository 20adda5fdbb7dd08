# SPDX-License-Identifier: Apache-2.0
"""Checks the history of each partition and group for linearizability by porcupine (porcupine/main.go).

A partition has appends and reads, a group has assignments, reads and commits. Rules:

- The partitions of narrow topics are checked, and all partitions of a round with transactions. At most ten calls there
  are open at once, apart from calls of dead processes.
- The codes of a committed transaction are one append. It begins with the call of the commit.
- If a result is unknown, either readers saw it or the call did nothing. So an append whose process died has its
  position in the log. It returns before the first call that read a record at or after this position. An append without
  readers is omitted, and so is a commit to a position at which no member began.
- A last call reads the whole log.
"""

from __future__ import annotations

import bisect
import enum
import functools
import itertools
import os
import shutil
import subprocess
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shmaccum.common.format.topic_partition import TopicPartition
from tests.linear.history import (
    Assigned,
    Codes,
    Committed,
    Committing,
    Ended,
    Ending,
    Event,
    History,
    Joined,
    Joining,
    Life,
    Read,
    Sending,
    Told,
    author_of,
    codes_of,
    number_of,
    producer_of,
)
from tests.linear.roles import is_narrow

SOURCE = Path(__file__).parent / "porcupine"
BUILT = Path(__file__).parents[2] / "build" / "linear"
BUILD_S = 300
READER, LOG_READER = 32, 63
"""The client numbers of readers. Producers have lower numbers."""
REASONS = {
    "requires go >=": "Go is too old",
    "dial tcp": "the module of porcupine cannot be fetched",
    "module lookup disabled": "the module of porcupine cannot be fetched",
}
"""A part of a failed build's message, and the reason."""


@dataclass
class Checked:
    """The faults that porcupine found, and the size of its input."""

    histories: int = 0
    operations: int = 0
    segments: int = 0
    open_max: int = 0
    faults: list[str] = field(default_factory=list)
    reason: str = ""
    """Why nothing was checked."""

    def add(self, other: Checked) -> None:
        """Adds the figures of another round."""
        self.histories += other.histories
        self.operations += other.operations
        self.segments += other.segments
        self.open_max = max(self.open_max, other.open_max)
        self.faults += other.faults
        self.reason = other.reason

    def __str__(self) -> str:
        if self.reason:
            return f"not checked ({self.reason})"
        return (
            f"{self.operations:,} calls in {self.histories} histories and {self.segments} segments, "
            f"at most {self.open_max} open, {len(self.faults)} faults"
        )


@functools.cache
def missing() -> str:
    """Return why porcupine is missing. If it was built, return an empty string."""
    if shutil.which("go") is None:
        return "there is no Go"
    environment = {**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"}
    BUILT.mkdir(parents=True, exist_ok=True)
    program = BUILT / f"porcupine-{os.getpid()}"  # another process may run the existing one
    words = ["go", "build", "-o", str(program), "."]
    done = subprocess.run(words, cwd=SOURCE, env=environment, capture_output=True, text=True, timeout=BUILD_S)
    if done.returncode == 0:
        program.replace(BUILT / "porcupine")
        return ""
    reasons = [reason for part, reason in REASONS.items() if part in done.stderr]
    assert reasons, done.stderr
    return reasons[0]


def check(history: History, path: Path) -> Checked:
    """Writes the calls of a history to a file, and checks them."""
    if reason := missing():
        return Checked(reason=reason)
    names = []
    with path.open("wb") as file:
        for name, calls in histories_of(history):
            names.append(name)
            file.writelines(call.packed() for call in calls)
    with path.open("rb") as file:
        done = subprocess.run([BUILT / "porcupine"], stdin=file, capture_output=True, text=True, check=False)
    *faults, last = (line.split() for line in done.stdout.splitlines() or [""])
    assert last[:1] == ["checked"], done.stderr
    histories, operations, segments, open_max = map(int, last[1:])
    found = [f"{result} {names[int(index)]}" for result, index in faults]
    return Checked(histories, operations, segments, open_max, found)


class CallKind(enum.IntEnum):
    """The kind of a row of the input of porcupine."""

    PARTITION, GROUP, APPEND, READ, WHOLE, ASSIGN, COMMIT = range(7)


class Call(NamedTuple):
    """A row of the input of porcupine."""

    kind: CallKind
    client: int = 0
    begin_ns: int = 0
    end_ns: int = 0
    position: int = 0
    codes: Codes = codes_of()

    def packed(self) -> bytes:
        return array("q", (len(self.codes), *self[:-1])).tobytes() + self.codes.tobytes()


def histories_of(history: History) -> Iterator[tuple[str, Iterator[Call]]]:
    """Yield the name and the rows of each partition and of each group's partition."""
    sends = _Sends(history)
    events = (event for life in _lives(history) for event in life.events)
    ends_ns = (event.end_ns if isinstance(event, Read | Committed) else event.ns for event in events)
    end_ns = 1 + max(sends.end_ns, max(ends_ns, default=0))
    reads: dict[TopicPartition, list[tuple[int, Read]]] = defaultdict(list)
    for number, lives in enumerate(history.readers.values()):
        for event in (event for life in lives for event in _polls(life) if isinstance(event, Read)):
            if sends.is_checked(event.place):
                reads[event.place].append((READER + number, event))
    for place in filter(sends.is_checked, history.log.keys() | sends.told.keys() | sends.joining.keys()):
        calls = _calls_of_partition(place, history.log.get(place, codes_of()), reads[place], sends, end_ns)
        yield f"partition {place.topic}/{place.partition}", itertools.chain([Call(CallKind.PARTITION)], calls)
    for name, lives in history.groups.items():
        for place, found in _calls_of_group(lives, end_ns).items():
            first = Call(CallKind.GROUP, codes=history.log.get(place, codes_of()))
            yield f"group {name}/{place.topic}/{place.partition}", itertools.chain([first], found)


def _lives(history: History) -> Iterator[Life]:
    for named in (history.readers, history.groups):
        for lives in named.values():
            yield from lives


def _polls(life: Life) -> Iterator[Event]:
    """Yield the events of a life. Records of one poll with only markers between them are one read."""
    last: Event | None = None
    for event in life.events:
        if isinstance(last, Read) and isinstance(event, Read) and _continues(event, last):
            last = last._replace(codes=np.concatenate([last.codes, event.codes]))
            continue
        if last is not None:
            yield last
        last = event
    if last is not None:
        yield last


def _continues(read: Read, last: Read) -> bool:
    end = last.position + len(last.codes)
    return (read.ns, read.place, read.position) == (last.ns, last.place, end)


# --- partitions


class _Sends:
    """The notes of all producers, by code."""

    def __init__(self, history: History) -> None:
        self._begins: dict[int, list[tuple[int, int]]] = defaultdict(list)
        """Author -> the first number of each burst, and its call."""
        self.told: dict[TopicPartition, dict[int, tuple[int, int]]] = defaultdict(dict)
        """Code -> its position, and when it became known."""
        self.joining: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
        """Code -> its transaction."""
        self.joined: set[int] = set()
        """The codes whose send returned."""
        self.endings: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        """The times at which commits began and returned, by transaction."""
        self.end_ns = 0
        for event in (event for events in history.producers for event in events):
            if isinstance(event, Sending):
                self._begins[author_of(event.code)].append((number_of(event.code), event.ns))
            elif isinstance(event, Told) and self.is_checked(event.place):
                positions = zip(event.codes.tolist(), event.positions.tolist(), strict=True)
                self.told[event.place].update((code, (position, event.ns)) for code, position in positions)
            elif isinstance(event, Joining):
                self.joining[event.place].update(dict.fromkeys(event.codes.tolist(), event.number))
            elif isinstance(event, Joined) and not event.is_refused:
                self.joined.update(event.codes.tolist())
            elif isinstance(event, Ending):
                self.endings.setdefault(event.number, event.ns)
            elif isinstance(event, Ended) and event.is_committed:
                self.ended[event.number] = event.ns
            self.end_ns = max(self.end_ns, event.ns if isinstance(event, Sending | Told | Ending | Ended) else 0)

    @property
    def is_transactional(self) -> bool:
        return bool(self.joining)

    def is_checked(self, place: TopicPartition) -> bool:
        return self.is_transactional or is_narrow(place.topic)

    def begin_of(self, code: int) -> int | None:
        """Return when its send was called, or None."""
        begins = self._begins.get(author_of(code), [])
        index = bisect.bisect(begins, (number_of(code), 1 << 63)) - 1
        return begins[index][1] if index >= 0 else None


def _calls_of_partition(
    place: TopicPartition, log: Codes, reads: Iterable[tuple[int, Read]], sends: _Sends, end_ns: int
) -> Iterator[Call]:
    seen = np.full(len(log), end_ns, np.int64)  # for each position, when a call returned that read it
    for client, read in reads:
        yield Call(CallKind.READ, client, read.ns, read.end_ns, read.position, read.codes)
        last = min(read.position + len(read.codes), len(log)) - 1
        if last >= 0:
            seen[last] = min(seen[last], read.end_ns)
    told = sends.told.get(place, {})
    for position, ns in told.values():
        if position < len(log):
            seen[position] = min(seen[position], ns)
    seen = np.minimum.accumulate(seen[::-1])[::-1]
    if sends.is_transactional:
        yield from _appended_together(place, log, seen, sends)
    else:
        yield from _appended(log, told, seen, sends)
    yield Call(CallKind.WHOLE, LOG_READER, end_ns + 1, end_ns + 2, 0, log)


def _appended(log: Codes, told: dict[int, tuple[int, int]], seen: Codes, sends: _Sends) -> Iterator[Call]:
    first = {code: position for position, code in reversed(list(enumerate(log.tolist())))}
    for code in {**first, **told}:
        begin_ns = sends.begin_of(code)
        if begin_ns is None:
            continue  # it was never sent
        position, ns = told.get(code) or (first[code], int(seen[first[code]]))
        yield Call(CallKind.APPEND, producer_of(code), begin_ns, max(ns, begin_ns), position, codes_of(code))


def _appended_together(place: TopicPartition, log: Codes, seen: Codes, sends: _Sends) -> Iterator[Call]:
    """Yield one append for the records of each transaction. Records that the log lacks are at its end."""
    joining = sends.joining.get(place, {})
    present = set(log.tolist())
    hidden: dict[int, list[int]] = defaultdict(list)
    for code, number in joining.items():
        if code in sends.joined and code not in present:
            hidden[number].append(code)
    position = 0
    for number, group in itertools.groupby(log.tolist(), lambda code: joining.get(code, 0)):
        visible = list(group)
        codes = [*visible, *hidden.pop(number, ())]
        if number in sends.endings:
            begin_ns = sends.endings[number]
            end_ns = sends.ended.get(number, int(seen[position]))
            yield Call(CallKind.APPEND, number, begin_ns, max(end_ns, begin_ns), position, codes_of(*codes))
        position += len(visible)
    for number, codes in hidden.items():
        if number in sends.ended:
            yield Call(CallKind.APPEND, number, sends.endings[number], sends.ended[number], position, codes_of(*codes))


# --- groups


def _calls_of_group(lives: list[Life], end_ns: int) -> dict[TopicPartition, list[Call]]:
    """The first position of a member shows its assignment. A commit without a result may return at the end."""
    calls: dict[TopicPartition, list[Call]] = defaultdict(list)
    for client, life in enumerate(lives):
        assigned: dict[TopicPartition, int] = {}
        unknown: dict[TopicPartition, Call] = {}
        for event in _polls(life):
            place = event.place
            if isinstance(event, Assigned):
                assigned[place] = event.begin_ns
                continue
            if (begin_ns := assigned.pop(place, None)) is not None:
                known_ns = event.end_ns if isinstance(event, Read) else event.ns
                calls[place].append(Call(CallKind.ASSIGN, client, begin_ns, known_ns, event.position))
            if isinstance(event, Read):
                calls[place].append(Call(CallKind.READ, client, event.ns, event.end_ns, event.position, event.codes))
            elif isinstance(event, Committing):
                if place in unknown:
                    calls[place].append(unknown[place])
                unknown[place] = Call(CallKind.COMMIT, client, event.ns, end_ns, event.position)
            else:
                unknown.pop(place, None)
                calls[place].append(Call(CallKind.COMMIT, client, event.ns, event.end_ns, event.position))
        for place, call in unknown.items():
            calls[place].append(call)
    return {place: _without_unseen(found, end_ns) for place, found in calls.items()}


def _without_unseen(calls: list[Call], end_ns: int) -> list[Call]:
    begun = {call.position for call in calls if call.kind == CallKind.ASSIGN}
    return [call for call in calls if call.kind != CallKind.COMMIT or call.end_ns < end_ns or call.position in begun]
