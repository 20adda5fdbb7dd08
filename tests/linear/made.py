# SPDX-License-Identifier: Apache-2.0
"""Generates a sound history of any size, to measure the judge's speed and memory."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shmaccum.common.format.topic_partition import TopicPartition
from tests.linear.history import (
    History,
    Kind,
    Life,
    Log,
    Note,
    NotedEvents,
    NotedSends,
    Notes,
    Positions,
    code_of,
    mapped,
    topic_name,
    words_of,
)
from tests.linear.judge import Verdict, judge

TOPICS, PARTITIONS, PRODUCERS, READERS, GROUPS = 4, 3, 8, 2, 2
PLACES = [TopicPartition(topic_name(topic), partition) for topic in range(TOPICS) for partition in range(PARTITIONS)]
OPERATIONS = 2 + READERS + GROUPS
"""Operations for each record: a send, its result, and a read by every reader and group."""
RECORDS_READ = 200
RECORDS_TOLD = 50
"""Records of one partition in a note."""


def make(folder: Path, operation_count: int) -> History:
    """Make a history of this many operations, in the files of a folder."""
    rounds = max(operation_count // (OPERATIONS * PRODUCERS * len(PLACES)), 1)
    log: Log = {}
    for index, place in enumerate(PLACES):
        path = folder / f"{index}.codes"
        numbers = np.arange(rounds, dtype=np.int64)[:, np.newaxis] * len(PLACES) + index
        (numbers + [code_of(producer, 0) for producer in range(PRODUCERS)]).tofile(path)
        log[place] = mapped(path)
    history, positions = History(log=log, shipped=log), Positions()
    for producer in range(PRODUCERS):
        _note_sends(folder / f"producer-{producer}", producer, rounds)
        history.producers.append(NotedSends(folder / f"producer-{producer}", positions))
    for number in range(READERS):
        path = folder / f"reader-{number}"
        _note_reads(path, log, 0, rounds * PRODUCERS, is_member=False)
        history.readers[path.name].append(Life(NotedEvents(path, positions)))
    for number in range(GROUPS):
        for member, (begin, end) in enumerate(itertools.pairwise([0, rounds // 2 * PRODUCERS, rounds * PRODUCERS])):
            path = folder / f"group-{number}-{member}"
            _note_reads(path, log, begin, end, is_member=True)
            history.groups[f"group-{number}"].append(Life(NotedEvents(path, positions)))
    return history


def _note_sends(path: Path, producer: int, rounds: int) -> None:
    notes = Notes(path)
    for begin in range(0, rounds, RECORDS_TOLD):
        turns = np.arange(begin, min(begin + RECORDS_TOLD, rounds))
        codes = code_of(producer, 0) + turns * len(PLACES)
        first, end = int(codes[0]), int(codes[-1]) + len(PLACES) - 1
        notes.add(Kind.SENDING, 0, first, end - first + 1)
        notes.add(Kind.SENT, end)
        notes.add_all(
            Note(Kind.TOLD, (0, *words_of(place)), np.concatenate([codes + index, turns * PRODUCERS + producer]))
            for index, place in enumerate(PLACES)
        )


def _note_reads(path: Path, log: Log, begin: int, end: int, *, is_member: bool) -> None:
    notes = Notes(path)
    if is_member:
        notes.add_all(Note(Kind.ASSIGNED, (2 * begin, 2 * begin, *words_of(place))) for place in PLACES)
    for first in range(begin, end, RECORDS_READ):
        last = min(first + RECORDS_READ, end)
        notes.add_all(_read(log, first, last, is_member=is_member))


def _read(log: Log, first: int, last: int, *, is_member: bool) -> Iterator[Note]:
    """Times are twice the positions. Each commit is between two reads."""
    for place, codes in log.items():
        yield Note(Kind.READ, (2 * first, 2 * first, *words_of(place), first), codes[first:last])
        if is_member:
            yield Note(Kind.COMMITTED, (2 * last - 1, 2 * last - 1, *words_of(place), last))


def count_of(verdict: Verdict, history: History) -> int:
    """Count the judged operations."""
    return sum(map(len, history.log.values())) + verdict.told_count + verdict.read_count


def measure(folder: Path, operation_count: int) -> tuple[Verdict, str]:
    """Makes a history, judges it, and returns the figures."""
    history = make(folder, operation_count)
    begin_s = time.process_time()
    verdict = judge(history)
    seconds = time.process_time() - begin_s
    count = count_of(verdict, history)
    words = Path("/proc/self/status").read_text(encoding="ascii").split()
    anonymous_kb = int(words[words.index("RssAnon:") + 1])
    return verdict, (
        f"{count:,} operations judged in {seconds:.1f} s of CPU, {count / seconds:,.0f} a second, 10^9 in "
        f"{1e9 / count * seconds / 60:.0f} minutes; {anonymous_kb / 1024:.0f} MiB of memory at the end"
    )
