# SPDX-License-Identifier: Apache-2.0
"""A served partition: its first and last offset, and the file ranges of its offsets.

::

    segments   | 0 ....... | 4711 ....... | 9022 ... whole batches ... | torn or being written |
                                            ^ found before              ^ verified end

Rules: only bytes below the verified end are served. The end moves past a new batch after its CRC was verified. A
file range stays valid after it was returned: no byte below a verified end is overwritten, and a file that retention
deletes stays readable while its range is in use.

Procedure: `refresh` reads the size of the active segment, and verifies new batches one by one. A segment has ended if a
file exists whose base offset is the verified end: offsets in our logs have no gaps, so one check is enough. The
position of a batch is recorded about every `POSITION_INTERVAL` bytes. Positions in older segments come from ``.index``.

The last stable offset depends on the open transactions (`transaction_view`). So a partition is read from its newest
snapshot on, which lists the transactions that were open at its offset.
"""

from __future__ import annotations

import bisect
import os
from collections import OrderedDict
from typing import NamedTuple, final

from shmaccum._native import find_batch
from shmaccum.common.descriptors import share
from shmaccum.common.format.batch_header import HEADER_SIZE, OF_A_TRANSACTION, BatchHeader, crc_problem, read_header
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.file_names import LOG, OFFSET_INDEX, offset_file, offsets_with
from shmaccum.log.files.index_file import OFFSET_ENTRY, ascends, load_entries
from shmaccum.log.files.leader_epochs import NO_EPOCH, LeaderEpochs
from shmaccum.log.files.log_file import FileRange, LogFile
from shmaccum.log.files.transaction_view import TransactionView

POSITION_INTERVAL = 16 << 10
READ_SIZE = 1 << 20
OPEN_FILES_MAX, OPEN_FILES_PARTS = 512, 8
"""The most open files of a server, and the part of its limit of open files that it may use."""
INDEXED_MAX = 4
"""The most finished segments of a partition with positions in memory."""


@final
class OpenFiles:
    """The recently used files of a server."""

    def __init__(self) -> None:
        self._count_max = share(OPEN_FILES_MAX, OPEN_FILES_PARTS)
        self._files: OrderedDict[tuple[str, int], LogFile] = OrderedDict()
        self._holders: dict[tuple[str, int], LogHead] = {}

    def attach_windows(self, folder: str, base_offset: int, holder: LogHead) -> None:
        """Registers a partition whose windows are removed when the file is dropped, so that they do not keep it
        open."""
        self._holders[folder, base_offset] = holder

    def _drop_windows(self, segment: tuple[str, int]) -> None:
        if (holder := self._holders.pop(segment, None)) is not None:
            holder.windows = ()

    def open(self, folder: str, base_offset: int) -> LogFile:
        """Returns the open file of a segment.

        Raises:
            OSError: the file was deleted, or is not a regular file.
        """
        segment = folder, base_offset
        file = self._files.get(segment)
        if file is None:
            file = self._files[segment] = LogFile(offset_file(folder, base_offset, LOG))
            if len(self._files) > self._count_max:
                self._drop_windows(self._files.popitem(last=False)[0])
        else:
            self._files.move_to_end(segment)
        return file

    def forget(self, folder: str) -> None:
        """Drops the open files of a folder."""
        for segment in [segment for segment in self._files if segment[0] == folder]:
            del self._files[segment]
            self._drop_windows(segment)


class Window(NamedTuple):
    """A segment with all facts that C needs to answer fetches from it (native/python/log/serve_fetch.c)."""

    file: LogFile
    first_offset: int
    last_offset: int
    """One past the last offset of the window."""
    file_end: int
    offsets: list[int]
    positions: list[int]
    start_offset: int
    """The first offset of the partition."""
    end_offset: int
    """One past the last offset of the partition."""
    leader_epoch: int


class _Positions:
    """Offsets and positions of some batches of one segment, both ascending."""

    def __init__(self, base_offset: int) -> None:
        self.offsets = [base_offset]
        self.positions = [0]

    def add(self, offset: int, position: int) -> None:
        if position - self.positions[-1] >= POSITION_INTERVAL:
            self.offsets.append(offset)
            self.positions.append(position)

    def cut(self, offset: int) -> None:
        """Drops the entries of batches that start after an offset."""
        kept = max(bisect.bisect_right(self.offsets, offset), 1)
        del self.offsets[kept:], self.positions[kept:]

    def after(self, position: int) -> int | None:
        """Returns an offset after all batches that start below a position. None means the end of the segment."""
        slot = bisect.bisect_left(self.positions, position)
        return self.offsets[slot] + 1 if slot < len(self.offsets) else None

    def before(self, offset: int) -> int:
        """Returns the position at which the scan for an offset starts."""
        return self.positions[max(bisect.bisect_right(self.offsets, offset) - 1, 0)]


def _indexed_positions(folder: str, base_offset: int) -> _Positions:
    """Return the positions from ``.index``. An entry has the position and the last offset of a batch.

    An index is untrusted: if it does not ascend, it is ignored, and the scan checks each header that it finds.
    """
    entries = load_entries(offset_file(folder, base_offset, OFFSET_INDEX), OFFSET_ENTRY)
    found = _Positions(base_offset)
    offsets, positions = entries.column("relative_offset"), entries.column("position")
    if len(entries) and ascends(offsets) and ascends(positions) and positions[0] > 0:
        found.offsets += [base_offset + int(relative_offset) for relative_offset in offsets]
        found.positions += map(int, positions)
    return found


@final
class LogHead:
    """One served partition.

    Attributes:
        place: topic and partition.
        folder: the path of the partition.
        end_offset: one past the last verified batch.
        epochs: the leader epochs, read when a batch with the latest epoch was verified.
        transactions: the open and the aborted transactions.
        windows: the segments from which fetches were answered since the last change of the log. Any change of the log,
            and `retain`, removes all of them.
    """

    def __init__(self, directory: str, place: TopicPartition, files: OpenFiles) -> None:
        """Finds the end of the log. A partition without a folder is empty.

        Raises:
            OSError: the folder cannot be read.
        """
        self.windows: tuple[Window, ...] = ()
        self.place = place
        self.folder = os.path.join(directory, str(place))
        self._files = files
        self._inode = self._inode_now()
        self._indexed: OrderedDict[int, _Positions] = OrderedDict()
        self.transactions = TransactionView(self.folder)
        segments = self._present() or [0]
        self._segments = segments[: max(bisect.bisect_right(segments, self.transactions.start_offset), 1)]
        self._deleted_before = 0
        self.epochs = LeaderEpochs(self.folder)
        self._enter(self._segments[-1])
        self.refresh()
        if self.end_offset < segments[-1]:  # recovery left damaged batches in between
            self._segments = segments
            self._enter(segments[-1])
            self.refresh()

    def has_its_name(self) -> bool:
        """Returns False if the folder was replaced by another one of the same name."""
        found = self._inode_now()
        self._inode = self._inode or found
        return found in (0, self._inode)

    def _inode_now(self) -> int:
        try:
            return os.stat(self.folder).st_ino
        except FileNotFoundError:
            return 0

    def _present(self) -> list[int]:
        """Returns the base offsets of the existing segments."""
        try:
            return offsets_with(self.folder, LOG)
        except FileNotFoundError:
            return []

    def _enter(self, base_offset: int) -> None:
        """Makes a segment the active one. Reading starts at the last indexed batch below the newest snapshot."""
        self.end_offset = base_offset
        self._end = 0
        self._known = _indexed_positions(self.folder, base_offset)
        self._known.cut(self.transactions.start_offset)
        file = self._open(base_offset)
        while file is not None and len(self._known.positions) > 1:
            position = self._known.positions[-1]
            content = os.pread(file.descriptor, HEADER_SIZE, position)
            header = read_header(content) if len(content) == HEADER_SIZE else None
            if header is not None and header.problem is None and header.last_offset == self._known.offsets[-1]:
                self.end_offset, self._end = header.base_offset, position
                return
            self._known = _Positions(base_offset)

    def _open(self, base_offset: int) -> LogFile | None:
        try:
            return self._files.open(self.folder, base_offset)
        except FileNotFoundError:
            return None

    @property
    def start_offset(self) -> int:
        """The first offset that neither retention nor a client has deleted."""
        return max(self._segments[0], min(self._deleted_before, self.end_offset))

    @property
    def stable_offset(self) -> int:
        """The last stable offset. Every transaction below it is committed or aborted."""
        return max(self.transactions.stable_offset(self.end_offset), self.start_offset)

    def readable_end(self, *, is_committed: bool) -> int:
        """Returns the end for a client: the last stable offset if it reads only committed records."""
        return self.stable_offset if is_committed else self.end_offset

    def epoch_problem(self, leader_epoch: int) -> BrokerError | None:
        """Returns the error if a client's leader epoch differs (KIP-320), so that it refreshes its metadata, or
        None."""
        if leader_epoch in (NO_EPOCH, self.epochs.latest):
            return None
        is_former = leader_epoch < self.epochs.latest
        return BrokerError.FENCED_LEADER_EPOCH if is_former else BrokerError.UNKNOWN_LEADER_EPOCH

    # --- the end

    def refresh(self) -> bool:
        """Verifies new batches. Returns True if the end moved.

        Raises:
            OSError: the log cannot be read.
        """
        former = self.end_offset
        while self._verify_new() or self._enter_next_segment():
            self.windows = ()
        return self.end_offset != former

    def _verify_new(self) -> bool:
        """Verifies new batches in the active segment. Returns True if there was a whole batch."""
        file = self._open(self._segments[-1])
        if file is None:
            return False
        size = os.fstat(file.descriptor).st_size
        former = self._end
        while self._end + HEADER_SIZE <= size and self._verify_block(file, size):
            pass
        return self._end > former

    def _verify_block(self, file: LogFile, size: int) -> bool:
        block = memoryview(os.pread(file.descriptor, min(READ_SIZE, size - self._end), self._end))
        position = 0
        while (header := self._whole_batch(block, position)) is not None:
            self._known.add(header.base_offset, self._end + position)
            if header.attributes & OF_A_TRANSACTION:
                self.transactions.add_batch(header, block[position : position + header.size])
            position += header.size
            self.end_offset = header.next_offset
            if header.leader_epoch > self.epochs.latest:
                self.epochs = LeaderEpochs(self.folder)
        if not position and len(block) == READ_SIZE:
            return self._verify_large(file, block, size)
        self._end += position
        return position > 0

    def _verify_large(self, file: LogFile, block: memoryview, size: int) -> bool:
        """Verifies a batch larger than a block."""
        header = read_header(block)
        if header.problem or header.base_offset != self.end_offset or self._end + header.size > size:
            return False
        whole = memoryview(os.pread(file.descriptor, header.size, self._end))
        if len(whole) < header.size or crc_problem(header, whole):
            return False
        if header.attributes & OF_A_TRANSACTION:
            self.transactions.add_batch(header, whole)
        self._end += header.size
        self.end_offset = header.next_offset
        self.epochs = LeaderEpochs(self.folder)
        return True

    def _whole_batch(self, block: memoryview, position: int) -> BatchHeader | None:
        if position + HEADER_SIZE > len(block):
            return None
        header = read_header(block, position)
        if header.problem or header.base_offset != self.end_offset or position + header.size > len(block):
            return None
        return None if crc_problem(header, block[position : position + header.size]) else header

    def _enter_next_segment(self) -> bool:
        if self.end_offset == self._segments[-1] or not os.path.exists(offset_file(self.folder, self.end_offset, LOG)):
            return False
        self._verify_new()  # the last batch may have been appended after the size was read and before the roll
        if os.path.exists(offset_file(self.folder, self.end_offset, LOG)):
            self._segments.append(self.end_offset)
            self._enter(self.end_offset)
        return True

    def start_at(self, deleted_before: int) -> None:
        """Sets the offset below which a client deleted the records, and updates the list of segments."""
        self._deleted_before = deleted_before
        self.retain()

    def retain(self) -> None:
        """Removes deleted segments from the list. Called periodically, and when a file is missing."""
        self.windows = ()
        there = self._present()
        first = there[0] if there else self._segments[-1]
        keep = bisect.bisect_left(self._segments, first)
        self._segments = self._segments[keep:] or [self._segments[-1]]
        self.transactions.forget_before(self._segments[0])

    # --- ranges

    def file_range(self, offset: int, size_max: int, end_offset: int | None = None) -> tuple[FileRange, int] | None:
        """Returns the bytes of one segment from the batch with this offset on, and the size of that batch.

        The first batch is always whole. Later batches may be cut anywhere. Returns None at the end of the log, or if
        retention has deleted the segment (then `start_offset` has moved).

        Args:
            offset: the first requested offset.
            size_max: the maximum number of bytes. A larger first batch is still returned whole.
            end_offset: the base offset of the first batch to exclude. The default is the end of the log.

        Raises:
            OSError: the log cannot be read.
        """
        end_offset = self.end_offset if end_offset is None else end_offset
        if not self.start_offset <= offset < end_offset:
            return None
        slot = self._slot_of(offset)
        file = self._open(self._segments[slot])
        if file is None:
            self.retain()
            return None
        is_active = slot == len(self._segments) - 1
        end = self._end if is_active else os.fstat(file.descriptor).st_size
        known = self._known if is_active else self._positions(self._segments[slot])
        found = find_batch(file.descriptor, known.before(offset), end, offset)
        if found is None:
            return None
        self._open_window(slot, file, end, known)
        position, first_size = found
        if end_offset < self.end_offset and self._slot_of(end_offset) == slot:
            cut = find_batch(file.descriptor, known.before(end_offset), end, end_offset)
            end = end if cut is None else cut[0]
        return FileRange(file, position, max(min(size_max, end - position), first_size)), first_size

    def _open_window(self, slot: int, file: LogFile, file_end: int, known: _Positions) -> None:
        """Lets C answer the next fetches from a segment, if the partition has no transactions."""
        if self.transactions.has_any():
            return
        is_active = slot == len(self._segments) - 1
        last_offset = self.end_offset if is_active else self._segments[slot + 1]
        first_offset = max(self._segments[slot], self.start_offset)
        ends = self.start_offset, self.end_offset, self.epochs.latest
        window = Window(file, first_offset, last_offset, file_end, known.offsets, known.positions, *ends)
        others = [each for each in self.windows if each.last_offset != last_offset]
        self.windows = (window, *others[:INDEXED_MAX])
        self._files.attach_windows(self.folder, self._segments[slot], self)

    def _slot_of(self, offset: int) -> int:
        """Returns the index of the segment that has an offset."""
        return bisect.bisect_right(self._segments, offset) - 1

    def aborted(self, offset: int, records: FileRange, end_offset: int) -> tuple[tuple[int, int], ...]:
        """Returns the producer id and first offset of the aborted transactions that may have records in a range.

        Args:
            offset: the first requested offset.
            records: the range.
            end_offset: the first offset after the range.

        Raises:
            OSError: an index cannot be read.
        """
        slot = self._slot_of(offset)
        known = self._known if slot == len(self._segments) - 1 else self._positions(self._segments[slot])
        end = known.after(records.position + records.size)
        if end is None:
            end = self._segments[slot + 1] if slot + 1 < len(self._segments) else end_offset
        return tuple(entry[:2] for entry in self.transactions.aborted(offset, min(end, end_offset)))

    def _positions(self, base_offset: int) -> _Positions:
        """Returns the positions of a finished segment. Those of the last used segments are cached."""
        found = self._indexed.get(base_offset)
        if found is None:
            found = self._indexed[base_offset] = _indexed_positions(self.folder, base_offset)
            if len(self._indexed) > INDEXED_MAX:
                self._indexed.popitem(last=False)
        else:
            self._indexed.move_to_end(base_offset)
        return found
