# SPDX-License-Identifier: Apache-2.0
"""Recover the folder of one partition before it is appended to (Kafka's LogLoader).

The possible leftovers of a death, and their repair:

========================================  ==========================================================================
found                                     repair
========================================  ==========================================================================
``.tmp``, ``.deleted`` files              removed: they are unfinished or no longer needed
an index or snapshot without its ``.log``  removed: its segment was being deleted or created
no ``.timeindex``, or no last entry       a roll was interrupted: the index is rewritten
an index that lags its ``.log``           completed from the batches after its last entry
a torn or wrong index                     rewritten from the batches
a torn tail of the last segment           cut to the last whole batch: it was never acknowledged; a new leader epoch
the log of a host that crashed            a new leader epoch, because offsets that were read may be assigned again
a ``.txnindex`` that contradicts markers  rewritten from the markers after the newest snapshot
damage, with whole batches after it       left in place and reported; appends continue in a new segment
a sector that a power cut lost            if the log has a sync level, the log is cut before it: the batches after it
                                          were not acknowledged, and are sent again
a snapshot past the end of the log        removed: an older one, or the log itself, has the state
========================================  ==========================================================================

How much is read: if the kernel has not been restarted since the last write, the bytes are still in its page cache,
however the writer died. So batches below the newest snapshot are trusted, and only those after it are checked. After a
crash of the host, only synced batches (those below the recovery point) and snapshots below it are trusted. In both
cases the batches after the last index entry of each segment are checked, so the end of a file that
somebody edited is found, too.

A sync covers a file from its start to its end. So nothing after a lost sector of the last segment was acknowledged.
A lost sector contains zeros, from its start or from the end of its former content. Above the recovery point, these
zeros distinguish it from other damage.

Why an interruption is safe: every step computes from the files what they should contain, and can be repeated.
"""

from __future__ import annotations

import os
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from shmaccum.common.format.batch_header import CONTROL, TRANSACTIONAL, BatchHeader, read_header
from shmaccum.log.files.file_names import (
    DELETED,
    LOG,
    OF_A_SEGMENT,
    OFFSET_INDEX,
    SNAPSHOT,
    TEMPORARY,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_file,
    offsets_with,
)
from shmaccum.log.files.index_file import (
    NO_TIMESTAMP,
    OFFSET_ENTRY,
    TIME_ENTRY,
    Entries,
    EntryFormat,
    ascends,
    last_position,
    last_position_for,
    last_timestamp,
    load_entries,
)
from shmaccum.log.files.leader_epochs import LeaderEpochs
from shmaccum.log.files.producer_state import KnownBatch, ProducerState
from shmaccum.log.files.regular_files import open_regular
from shmaccum.log.files.segment import Indexer, Segment, Written
from shmaccum.log.files.small_files import replace_file, replace_file_synced
from shmaccum.log.files.transaction_index import Aborted, pack_aborted, read_aborted
from shmaccum.log.files.transaction_marker import decision_in
from shmaccum.log.files.walk import Damage, LocatedBatch, at_least, batch_problem, map_file, walk

SECTOR = 512
"""A disk writes a sector either completely or not at all."""
ZEROS_MIN = 12
"""A whole batch starts with fewer zeros: 8 in its offset, and 2 in its length."""
INDEXES = ((OFFSET_INDEX, OFFSET_ENTRY), (TIME_INDEX, TIME_ENTRY))


@dataclass
class Recovered:
    """A partition that can be appended to."""

    segments: list[int]
    """The base offsets; the active segment is the last."""
    active: Segment
    producers: ProducerState
    log_end_offset: int
    epochs: LeaderEpochs
    findings: list[str] = field(default_factory=list)
    """One sentence for each problem and its repair."""


@dataclass
class Scan:
    """The result of scanning a segment from a batch to its end."""

    end: int
    """The position after the last whole batch."""
    next_offset: int
    batches: list[Written] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    """Damage that is followed by whole batches."""
    torn: Damage | None = None


class Recovery:
    """One recovery of one partition.

    Args:
        folder: the folder of the partition.
        index_interval: bytes between two index entries, for indexes that are rewritten.
        recovery_point: everything below this offset was synced.
        is_same_boot: True if the kernel has not been restarted since the last write.
        has_level: True if records are acknowledged only after a sync.
    """

    def __init__(
        self, folder: str, index_interval: int, recovery_point: int, *, is_same_boot: bool, has_level: bool = False
    ) -> None:
        self.folder = folder
        self._cuts_holes = has_level and not is_same_boot
        self.index_interval = index_interval
        self.is_same_boot = is_same_boot
        self.recovery_point = recovery_point
        self.findings: list[str] = []
        self._remove_leftovers()
        self.epochs = LeaderEpochs(folder)
        self.segments = offsets_with(folder, LOG)
        snapshots = offsets_with(folder, SNAPSHOT)
        self.trusted_offset = (snapshots[-1] if snapshots else 0) if is_same_boot else recovery_point

    def run(self) -> Recovered:
        """Recover the folder and open its active segment."""
        if not self.segments:
            self.segments = [0]
        for base_offset in self.segments[:-1]:
            # No process appends to this segment any more. Report its damage, and repair its indexes.
            view = map_file(self._path(base_offset, LOG))
            scan = self._scan(view, base_offset)
            self._report(base_offset, scan.damages if scan.torn is None else [*scan.damages, scan.torn])
        active, end_offset = self._recover_active(self.segments[-1])
        if not self.is_same_boot and end_offset:
            self.epochs.raise_at(end_offset)
        try:
            producers = self._producers(end_offset)
        except BaseException:
            active.close()
            raise
        producers.forget_before(self.segments[0])
        return Recovered(self.segments, active, producers, end_offset, self.epochs, self.findings)

    def _path(self, offset: int, suffix: str) -> str:
        return offset_file(self.folder, offset, suffix)

    # --- leftovers

    def _remove_leftovers(self) -> None:
        for name in os.listdir(self.folder):
            if name.endswith((TEMPORARY, DELETED)):
                os.unlink(os.path.join(self.folder, name))
        segments = set(offsets_with(self.folder, LOG))
        for suffix in OF_A_SEGMENT[1:]:
            for offset in set(offsets_with(self.folder, suffix)) - segments:
                os.unlink(self._path(offset, suffix))

    # --- segments

    def _recover_active(self, base_offset: int) -> tuple[Segment, int]:
        """The active segment, cut to its last whole batch, and the log end offset."""
        path = self._path(base_offset, LOG)
        view = map_file(path) if os.path.exists(path) else memoryview(b"")
        scan = self._scan(view, base_offset)
        segment = Segment(self.folder, base_offset, self.index_interval)
        try:
            if scan.batches:
                self.epochs.learn(read_header(view, scan.batches[-1].position).leader_epoch, scan.next_offset - 1)
            if scan.torn is not None:
                self.epochs.raise_at(scan.next_offset)
                self._cut(segment, scan.torn, len(view))
            self._resume(segment, scan, view)
            if scan.damages:
                self._report(base_offset, scan.damages)
                return self._start_next_segment(segment, scan.next_offset), scan.next_offset
        except BaseException:
            segment.close()
            raise
        return segment, scan.next_offset

    def _cut(self, segment: Segment, torn: Damage, size: int) -> None:
        segment.size = torn.position
        segment.cut()
        self.findings.append(
            f"{segment.path} ended in a torn batch ({torn.problem}): cut from {size} to {torn.position} bytes"
        )

    def _resume(self, segment: Segment, scan: Scan, view: memoryview) -> None:
        """Restore the state that the segment's last writer had."""
        segment.size, segment.next_offset = scan.end, scan.next_offset
        if scan.end:
            segment.first_timestamp_ms = read_header(view).youngest_ms
        segment.indexer = self._indexer(segment.base_offset, scan)

    def _indexer(self, base_offset: int, scan: Scan) -> Indexer:
        offset_entries = load_entries(self._path(base_offset, OFFSET_INDEX), OFFSET_ENTRY)
        time_entries = load_entries(self._path(base_offset, TIME_INDEX), TIME_ENTRY)
        indexer = self._indexer_after(base_offset, offset_entries, time_entries)
        for batch in scan.batches:
            if batch.max_timestamp_ms > indexer.max_timestamp_ms:
                indexer.max_timestamp_ms, indexer.max_timestamp_offset = batch.max_timestamp_ms, batch.last_offset
        return indexer

    def _indexer_after(self, base_offset: int, offset_entries: Entries, time_entries: Entries) -> Indexer:
        """The indexer as it was when it had written these entries."""
        indexer = Indexer(base_offset, self.index_interval)
        indexer.entry_position = last_position(offset_entries)
        indexer.max_timestamp_ms = indexer.indexed_timestamp_ms = last_timestamp(time_entries)
        return indexer

    def _start_next_segment(self, segment: Segment, next_offset: int) -> Segment:
        segment.finish()
        following = Segment(self.folder, next_offset, self.index_interval)
        segment.close()
        self.segments.append(next_offset)
        return following

    def _report(self, base_offset: int, damages: Sequence[Damage]) -> None:
        for damage in damages:
            self.findings.append(
                f"{self._path(base_offset, LOG)} is damaged from position {damage.position} to "
                f"{damage.resume_position} ({damage.problem}): left as it is, readers can skip it"
            )

    # --- scanning

    def _scan(self, view: memoryview, base_offset: int) -> Scan:
        """Scan what is not trusted, at least the batches after the last index entry, and repair the indexes."""
        index = load_entries(self._path(base_offset, OFFSET_INDEX), OFFSET_ENTRY)
        start = self._start(view, base_offset, index)
        if start is not None:
            scan = self._scan_from(view, start, base_offset)
            if self._are_entries_right(base_offset, scan, index):
                lag = scan.batches[-1].position - last_position(index) if scan.batches else 0
                if lag <= self.index_interval:  # no entry is missing
                    return scan
                if start:
                    self._complete_indexes(base_offset, scan, index.head(bisect_right(index.column("position"), start)))
                    return scan
        whole = self._scan_from(view, 0, base_offset)
        indexer = Indexer(base_offset, self.index_interval)
        self._write_entries(base_offset, indexer, whole.batches, (b"", b""), "wrong")
        return whole

    def _scan_from(self, view: memoryview, position: int, base_offset: int) -> Scan:
        """The scan, which ends before the first sector that a power cut lost."""
        scan = scan_from(view, position, base_offset)
        for damage in scan.damages if self._cuts_holes and base_offset == self.segments[-1] else ():
            kept = [batch for batch in scan.batches if batch.end <= damage.position]
            next_offset = kept[-1].last_offset + 1 if kept else base_offset
            if next_offset >= self.recovery_point and has_lost_sector(view, damage):
                torn = damage._replace(resume_position=len(view))
                damages = [each for each in scan.damages if each.position < damage.position]
                return Scan(damage.position, next_offset, kept, damages, torn)
        return scan

    def _start(self, view: memoryview, base_offset: int, index: Entries) -> int | None:
        """The position to scan from: all batches before it are trusted. Returns None if the index is unusable."""
        if not (ascends(index.column("relative_offset")) and ascends(index.column("position"))):
            return None
        position = last_position_for(index, max(self.trusted_offset - base_offset, 0))
        if position == 0:
            return 0
        anywhere = at_least(base_offset, base_offset)
        is_sound = position < len(view) and batch_problem(view, position, anywhere, is_crc_checked=True) is None
        return position if is_sound else None

    def _are_entries_right(self, base_offset: int, scan: Scan, index: Entries) -> bool:
        """True if the entries of both indexes match the scanned batches, and the time index is complete."""
        return (
            self._has_whole_entries(base_offset)
            and self._are_offset_entries_right(base_offset, scan, index)
            and self._are_time_entries_right(base_offset, scan, index)
        )

    def _has_whole_entries(self, base_offset: int) -> bool:
        for suffix, entry in INDEXES:
            path = self._path(base_offset, suffix)
            if not os.path.exists(path) or os.path.getsize(path) % entry.size:
                return False
        return True

    def _are_offset_entries_right(self, base_offset: int, scan: Scan, index: Entries) -> bool:
        if not scan.batches:
            return len(index) == 0
        known = {batch.position: batch.last_offset - base_offset for batch in scan.batches}
        entries = index.rows(bisect_left(index.column("position"), scan.batches[0].position))
        return all(known.get(position) == relative_offset for relative_offset, position in entries)

    def _are_time_entries_right(self, base_offset: int, scan: Scan, index: Entries) -> bool:
        entries = load_entries(self._path(base_offset, TIME_INDEX), TIME_ENTRY)
        offsets = entries.column("relative_offset")
        if not (ascends(entries.column("timestamp_ms")) and ascends(offsets)):
            return False
        known = {batch.last_offset - base_offset: batch.max_timestamp_ms for batch in scan.batches}
        scanned = entries.rows(bisect_left(offsets, min(known, default=0)))
        is_each_right = all(known.get(relative_offset) == timestamp for timestamp, relative_offset in scanned)
        return is_each_right and self._expected_timestamp(base_offset, scan, index) <= last_timestamp(entries)

    def _expected_timestamp(self, base_offset: int, scan: Scan, index: Entries) -> int:
        """Returns the least timestamp with which the time index may end.

        In a finished segment, it is the largest timestamp of all batches, in the last segment that of the batches up
        to the last index entry.
        """
        is_finished = base_offset != self.segments[-1]
        end = scan.end if is_finished else last_position(index)
        indexed = (batch.max_timestamp_ms for batch in scan.batches if 0 < batch.position <= end or is_finished)
        return max(indexed, default=NO_TIMESTAMP)

    def _complete_indexes(self, base_offset: int, scan: Scan, kept: Entries) -> None:
        """Write both indexes as the dead writer would have written them.

        Entries up to the start of the scan are kept, and those of the batches after it are added. So if a writer dies
        between a write and its index entries, the next one need not scan the whole segment.
        """
        time_entries = load_entries(self._path(base_offset, TIME_INDEX), TIME_ENTRY)
        kept_time = time_entries.head(
            bisect_right(time_entries.column("relative_offset"), kept.last("relative_offset"))
        )
        indexer = self._indexer_after(base_offset, kept, kept_time)
        self._write_entries(base_offset, indexer, scan.batches[1:], (kept.content, kept_time.content), "incomplete")

    def _write_entries(
        self, base_offset: int, indexer: Indexer, batches: Sequence[Written], kept: tuple[bytes, bytes], flaw: str
    ) -> None:
        offset_entries, time_entries = indexer.entries(batches)
        if base_offset != self.segments[-1] and indexer.is_time_index_incomplete:
            time_entries += indexer.time_entry()
        for (suffix, entry), before, entries in zip(INDEXES, kept, (offset_entries, time_entries), strict=True):
            self._write_index(self._path(base_offset, suffix), entry, before + entries, flaw)

    def _write_index(self, path: str, entry: EntryFormat, entries: bytes, flaw: str) -> None:
        """Replace the file instead of changing it, because readers may have mapped it."""
        was_there = os.path.exists(path)
        if was_there and os.path.getsize(path) == len(entries) and load_entries(path, entry).content == entries:
            return
        replace_file(path, entries)
        if was_there or entries:
            self.findings.append(f"{path} was {flaw if was_there else 'missing'}: rewritten from the batches")

    # --- producers

    def _producers(self, end_offset: int) -> ProducerState:
        """The state of the newest usable snapshot, updated with the batches of the log after it."""
        state, offset = self._newest_state(end_offset)
        for base_offset, next_base in zip(self.segments, [*self.segments[1:], end_offset + 1], strict=True):
            if next_base > offset:
                aborted = self._replay(state, base_offset, offset)
                self._write_transaction_index(base_offset, offset, aborted)
        return state

    def _write_transaction_index(self, base_offset: int, offset: int, aborted: Sequence[Aborted]) -> None:
        """Repair the index of a segment: keep the entries below an offset, and rebuild the others from the markers."""
        path = self._path(base_offset, TRANSACTION_INDEX)
        kept = [entry for entry in read_aborted(self.folder, base_offset) if entry.last_offset < offset]
        entries = pack_aborted([*kept, *aborted])
        was_there = os.path.exists(path)
        if (was_there and _content_of(path) != entries) or (entries and not was_there):
            replace_file_synced(path, entries)  # no later recovery reads the markers below the recovery point
            flaw = "wrong" if was_there else "missing"
            self.findings.append(f"{path} was {flaw}: rewritten from the markers")

    def _newest_state(self, end_offset: int) -> tuple[ProducerState, int]:
        newest: tuple[ProducerState, int] | None = None
        for offset in reversed(offsets_with(self.folder, SNAPSHOT)):
            path = self._path(offset, SNAPSHOT)
            with open(path, "rb", opener=open_regular) as file:
                state = ProducerState.from_snapshot(file.read()) if offset <= end_offset else None
            is_trusted = self.is_same_boot or offset <= max(self.recovery_point, self.segments[0])
            if state is None:
                os.unlink(path)
                self.findings.append(f"{path} was damaged, or past the end of the log: removed")
            elif newest is None and is_trusted:
                newest = state, offset
            if newest and self.is_same_boot:
                break  # older batches were valid when written, and their bytes are still in the page cache
        return newest or (ProducerState(), self.segments[0])

    def _replay(self, state: ProducerState, base_offset: int, offset: int) -> list[Aborted]:
        """Replay the batches of a segment from an offset on; return the transactions that were aborted there."""
        aborted = []
        view = map_file(self._path(base_offset, LOG))
        index = load_entries(self._path(base_offset, OFFSET_INDEX), OFFSET_ENTRY)
        position = last_position_for(index, max(offset - base_offset - 1, 0))
        for found in walk(view, base_offset, position, is_crc_checked=False, is_gapless=True):
            if isinstance(found, LocatedBatch) and found.header.producer_id >= 0 and found.header.base_offset >= offset:
                entry = replay_batch(state, found.header, view[found.position : found.position + found.header.size])
                if entry is not None:
                    aborted.append(entry)
        return aborted


def replay_batch(state: ProducerState, header: BatchHeader, batch: memoryview) -> Aborted | None:
    """Replay a batch of the log; return the transaction that it aborted."""
    producer_id = header.producer_id
    if not header.attributes & CONTROL:
        replay = state.replay_of_transaction if header.attributes & TRANSACTIONAL else state.replay
        replay(producer_id, known_batch(header))
        return None
    is_commit = decision_in(batch, header)
    if is_commit is None:
        return None
    offset = header.base_offset
    first_offset = state.replay_marker(producer_id, header.producer_epoch, offset, header.max_timestamp_ms)
    if first_offset is None or is_commit:
        return None
    return Aborted(producer_id, first_offset, offset, state.transactions.stable_offset(offset + 1))


def scan_from(view: memoryview, position: int, base_offset: int, *, is_gapless: bool = True) -> Scan:
    """Scan a segment to its end and check every byte."""
    scan = Scan(position, base_offset)
    for found in walk(view, base_offset, position, is_crc_checked=True, is_gapless=is_gapless):
        if isinstance(found, LocatedBatch):
            position, header = found
            scan.batches.append(Written(position, position + header.size, header.last_offset, header.youngest_ms))
            scan.end, scan.next_offset = position + header.size, header.next_offset
        elif found.resume_position == len(view):
            scan.torn = found
        else:
            scan.damages.append(found)
    return scan


def has_lost_sector(view: memoryview, damage: Damage) -> bool:
    """True if a sector in the damage never reached the disk: it has more zeros than the start of a batch can have."""
    position = damage.position
    while (end := (position // SECTOR + 1) * SECTOR) <= damage.resume_position:
        if end - position >= ZEROS_MIN and not any(view[position:end]):
            return True
        position = end
    return False


def _content_of(path: str) -> bytes:
    with open(path, "rb", opener=open_regular) as file:
        return file.read()


def known_batch(header: BatchHeader) -> KnownBatch:
    """The entry in the producers' state for a batch in the log."""
    last_sequence = (header.base_sequence + header.last_offset_delta) & 0x7FFF_FFFF
    return KnownBatch(
        header.producer_epoch,
        header.base_sequence,
        last_sequence,
        header.base_offset,
        header.last_offset,
        header.max_timestamp_ms,
    )
