# SPDX-License-Identifier: Apache-2.0
"""Check every byte and every entry of a log directory that has no writer at the moment. Nothing is changed.

A log is valid if its segments only contain whole batches with correct CRCs and ascending offsets, and its indexes match
them. Recovery makes every log valid, except for damage that is followed by whole batches. That is reported and kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.file_names import (
    LOG,
    OF_A_SEGMENT,
    OFFSET_INDEX,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    is_shmaccum_log,
    offset_file,
    offsets_with,
)
from shmaccum.log.files.index_file import OFFSET_ENTRY, TIME_ENTRY, ascends, load_entries
from shmaccum.log.files.partition_folders import partitions_of
from shmaccum.log.files.producer_state import ProducerState
from shmaccum.log.files.recovery import Scan, scan_from
from shmaccum.log.files.regular_files import open_regular
from shmaccum.log.files.transaction_index import ENTRY_SIZE, read_aborted
from shmaccum.log.files.walk import map_file


class LogFinding(NamedTuple):
    """One problem."""

    place: TopicPartition
    path: str
    """The path of the file."""
    position: int
    """The position in the file, in bytes."""
    text: str

    def __str__(self) -> str:
        return f"{self.path} at position {self.position}: {self.text}"


def check_log(path: str | os.PathLike[str]) -> list[LogFinding]:
    """All problems of a log directory; empty if it is valid."""
    directory = os.path.abspath(path)
    return [finding for place in partitions_of(directory) for finding in check_partition(directory, place)]


def check_partition(directory: str, place: TopicPartition) -> Iterator[LogFinding]:
    """All problems of one partition."""
    folder = os.path.join(directory, str(place))
    if not os.path.isdir(folder):
        return  # it is not created yet
    if findings := list(_check_kinds(place, folder)):
        yield from findings
        return
    segments = offsets_with(folder, LOG)
    is_gapless = is_shmaccum_log(directory)
    end_offset = 0
    for base_offset in segments:
        log = offset_file(folder, base_offset, LOG)
        if base_offset < end_offset:
            yield LogFinding(place, log, 0, f"it begins at an offset below {end_offset}, where the one before it ends")
        scan = scan_from(map_file(log), 0, base_offset, is_gapless=is_gapless)
        for damage in scan.damages if scan.torn is None else [*scan.damages, scan.torn]:
            yield LogFinding(place, log, damage.position, f"{damage.problem} (up to {damage.resume_position})")
        yield from _check_offset_index(place, offset_file(folder, base_offset, OFFSET_INDEX), base_offset, scan)
        yield from _check_time_index(place, offset_file(folder, base_offset, TIME_INDEX), base_offset, scan)
        yield from _check_transaction_index(place, folder, base_offset, scan)
        end_offset = scan.next_offset
    yield from _check_snapshots(place, folder)


def _check_kinds(place: TopicPartition, folder: str) -> Iterator[LogFinding]:
    for suffix in (*OF_A_SEGMENT, SNAPSHOT):
        for offset in offsets_with(folder, suffix):
            path = offset_file(folder, offset, suffix)
            if not os.path.isfile(path):
                yield LogFinding(place, path, 0, "it is not a regular file, so this partition cannot be checked")


def _check_offset_index(place: TopicPartition, path: str, base_offset: int, scan: Scan) -> Iterator[LogFinding]:
    entries = load_entries(path, OFFSET_ENTRY)
    yield from _check_size(place, path, len(entries.content))
    if not (ascends(entries.column("relative_offset")) and ascends(entries.column("position"))):
        yield LogFinding(place, path, 0, "its entries do not ascend")
    known = {batch.position: batch.last_offset - base_offset for batch in scan.batches}
    for index, (relative_offset, position) in enumerate(entries.rows()):
        if known.get(position) != relative_offset:
            text = f"no batch that ends at offset {base_offset + relative_offset} begins at position {position}"
            yield LogFinding(place, path, index * OFFSET_ENTRY.size, text)


def _check_time_index(place: TopicPartition, path: str, base_offset: int, scan: Scan) -> Iterator[LogFinding]:
    entries = load_entries(path, TIME_ENTRY)
    yield from _check_size(place, path, len(entries.content))
    if not ascends(entries.column("timestamp_ms")):
        yield LogFinding(place, path, 0, "its timestamps do not ascend")
    known = {batch.last_offset - base_offset: batch.max_timestamp_ms for batch in scan.batches}
    for index, (timestamp_ms, relative_offset) in enumerate(entries.rows()):
        if known.get(relative_offset) != timestamp_ms:
            text = f"no batch with timestamp {timestamp_ms} ends at offset {base_offset + relative_offset}"
            yield LogFinding(place, path, index * TIME_ENTRY.size, text)


def _check_transaction_index(place: TopicPartition, folder: str, base_offset: int, scan: Scan) -> Iterator[LogFinding]:
    path = offset_file(folder, base_offset, TRANSACTION_INDEX)
    if not os.path.exists(path):
        return
    entries = read_aborted(folder, base_offset)
    if os.path.getsize(path) != len(entries) * ENTRY_SIZE:
        yield LogFinding(place, path, len(entries) * ENTRY_SIZE, "the entries from here on are invalid")
    known = {batch.last_offset for batch in scan.batches}
    for index, entry in enumerate(entries):
        if entry.last_offset not in known:
            text = f"no marker is at offset {entry.last_offset}"
            yield LogFinding(place, path, index * ENTRY_SIZE, text)


def _check_size(place: TopicPartition, path: str, whole: int) -> Iterator[LogFinding]:
    if not os.path.exists(path):
        yield LogFinding(place, path, 0, "it is missing")
    elif os.path.getsize(path) != whole:
        yield LogFinding(place, path, whole, "its last entry is torn")


def _check_snapshots(place: TopicPartition, folder: str) -> Iterator[LogFinding]:
    for offset in offsets_with(folder, SNAPSHOT):
        path = offset_file(folder, offset, SNAPSHOT)
        with open(path, "rb", opener=open_regular) as file:
            if ProducerState.from_snapshot(file.read()) is None:
                yield LogFinding(place, path, 0, "it is damaged")
