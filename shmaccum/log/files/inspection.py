# SPDX-License-Identifier: Apache-2.0
"""Checking a log directory that nobody writes at the moment: every byte, every entry. Nothing is changed.

A log is sound when its segments are whole batches with right CRCs and ascending offsets, nothing else, and its indexes
tell the truth. Recovery leaves every log so, but for damage that whole batches follow: that it reports and keeps.
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
    is_ours,
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
    """One thing that is wrong."""

    place: TopicPartition
    path: str
    """The file."""
    position: int
    """Where in it, in bytes."""
    text: str

    def __str__(self) -> str:
        return f"{self.path} at position {self.position}: {self.text}"


def check_log(path: str | os.PathLike[str]) -> list[LogFinding]:
    """Everything that is wrong with a log directory; an empty list is a sound one."""
    directory = os.path.abspath(path)
    return [finding for place in partitions_of(directory) for finding in check_partition(directory, place)]


def check_partition(directory: str, place: TopicPartition) -> Iterator[LogFinding]:
    """Everything that is wrong with one partition."""
    folder = os.path.join(directory, str(place))
    if not os.path.isdir(folder):
        return  # it is not made yet
    if findings := list(_check_kinds(place, folder)):
        yield from findings
        return
    segments = offsets_with(folder, LOG)
    is_gapless = is_ours(directory)
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
                yield LogFinding(place, path, 0, "it is no regular file, and nothing of this partition can be checked")


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
        yield LogFinding(place, path, len(entries) * ENTRY_SIZE, "the entries behind make no sense")
    known = {batch.last_offset for batch in scan.batches}
    for index, entry in enumerate(entries):
        if entry.last_offset not in known:
            text = f"no marker stands at offset {entry.last_offset}"
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
