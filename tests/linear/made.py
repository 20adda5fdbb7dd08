# SPDX-License-Identifier: Apache-2.0
"""Generates a sound history of any size, to measure the judge's speed and memory."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shmaccum.common.format.topic_partition import TopicPartition
from tests.linear.history import Codes, History, Log, NotedSends, Notes, Positions, code_of, read_consumer
from tests.linear.judge import Verdict, judge
from tests.linear.roles import PARTITIONS, topic_name

TOPICS, PRODUCERS, READERS, GROUPS = 4, 8, 2, 2
PLACES = [TopicPartition(topic_name(topic), partition) for topic in range(TOPICS) for partition in range(PARTITIONS)]
OPERATIONS = 2 + READERS + GROUPS
"""Operations for each record: a send, its result, and a read by every reader and group."""
RECORDS_READ = 200
RECORDS_TOLD = 4
"""Records of one partition in a line."""


def make(folder: Path, operation_count: int) -> History:
    """Make a history of so many operations, in the files of a folder."""
    rounds = max(operation_count // (OPERATIONS * PRODUCERS * len(PLACES)), 1)
    log: Log = {}
    for index, place in enumerate(PLACES):
        path = folder / f"{index}.codes"
        numbers = np.arange(rounds, dtype=np.int64)[:, np.newaxis] * len(PLACES) + index
        (numbers + [code_of(producer, 0) for producer in range(PRODUCERS)]).tofile(path)
        log[place] = np.memmap(path, np.int64, "r")
    history, positions = History(log=log, shipped=log), Positions()
    for producer in range(PRODUCERS):
        _note_sends(folder / f"producer-{producer}", producer, rounds)
        history.producers.append(NotedSends(folder / f"producer-{producer}", positions))
    for number in range(READERS):
        path = folder / f"reader-{number}"
        _note_reads(path, log, 0, rounds * PRODUCERS, is_member=False)
        history.readers[path.name] += read_consumer(path, positions)
    for number in range(GROUPS):
        for member, (begin, end) in enumerate(itertools.pairwise([0, rounds // 2 * PRODUCERS, rounds * PRODUCERS])):
            path = folder / f"group-{number}-{member}"
            _note_reads(path, log, begin, end, is_member=True)
            history.groups[f"group-{number}"] += read_consumer(path, positions)
    return history


def _note_sends(path: Path, producer: int, rounds: int) -> None:
    notes = Notes(path)
    for begin in range(0, rounds, RECORDS_TOLD):
        turns = range(begin, min(begin + RECORDS_TOLD, rounds))
        first, last = code_of(producer, 0, turns[0] * len(PLACES)), code_of(producer, 0, turns[-1] * len(PLACES))
        end = last + len(PLACES) - 1
        lines: list[tuple[object, ...]] = [("sending", 0, first, end - first + 1), ("sent", end)]
        for index, place in enumerate(PLACES):
            pairs = ((code_of(producer, 0, turn * len(PLACES) + index), turn * PRODUCERS + producer) for turn in turns)
            lines.append(("told", 0, *place, *itertools.chain.from_iterable(pairs)))
        notes.add_all(lines)


def _note_reads(path: Path, log: Log, begin: int, end: int, *, is_member: bool) -> None:
    notes = Notes(path)
    notes.add("begin", 0)
    if is_member:
        notes.add_all(("assigned", 2 * begin, 2 * begin, *place) for place in PLACES)
    for first in range(begin, end, RECORDS_READ):
        last = min(first + RECORDS_READ, end)
        notes.add_all(_lines(log, first, last, is_member=is_member))


def _lines(log: Log, first: int, last: int, *, is_member: bool) -> Iterator[tuple[object, ...]]:
    """Times are twice the positions. Each commit is between two reads."""
    for place, codes in log.items():
        yield "read", 2 * first, 2 * first, *place, first, *_listed(codes[first:last])
        if is_member:
            yield "committed", 2 * last - 1, 2 * last - 1, *place, last


def _listed(codes: Codes) -> list[int]:
    found: list[int] = codes.tolist()
    return found


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
