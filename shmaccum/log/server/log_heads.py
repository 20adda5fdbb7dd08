# SPDX-License-Identifier: Apache-2.0
"""A served partition: its first and last offset, and the bytes of a file that an offset stands for.

::

    segments   | 0 ....... | 4711 ....... | 9022 ... whole batches ... | torn or being written |
                                            ^ found before              ^ verified end

Rules: only whole batches that were checked by their CRC are served, and everything in front of them. The end moves
forward alone. A file range that was handed out stays valid: nothing below a verified end is ever overwritten, and a
file that retention deletes stays readable while its range is in use.

Procedure: `refresh` asks for the size of the active segment, reads what is new, and checks it batch by batch. A segment
ends when a file stands there that begins with the verified end: offsets have no holes in a log of ours, so one look
tells. Positions of batches are noted about every `NOTE_INTERVAL` bytes; those of older segments come from ``.index``.

The last stable offset follows from the transactions that are open (`transaction_view`). So a partition is read from
its newest snapshot on, which tells those that were open there.
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

NOTE_INTERVAL = 16 << 10
READ_SIZE = 1 << 20
OPEN_FILES_MAX, OPEN_FILES_PARTS = 512, 8
"""Open files of a server: so many, or this part of its limit of open files."""
INDEXED_MAX = 4
"""Finished segments of a partition whose positions are kept."""


@final
class OpenFiles:
    """The files of a server that were used last."""

    def __init__(self) -> None:
        self._count_max = share(OPEN_FILES_MAX, OPEN_FILES_PARTS)
        self._files: OrderedDict[tuple[str, int], LogFile] = OrderedDict()
        self._holders: dict[tuple[str, int], LogHead] = {}

    def hold(self, folder: str, base_offset: int, holder: LogHead) -> None:
        """Takes the windows of a partition away when the file is dropped, so that none holds more files open."""
        self._holders[folder, base_offset] = holder

    def _let_go(self, segment: tuple[str, int]) -> None:
        if (holder := self._holders.pop(segment, None)) is not None:
            holder.windows = ()

    def open(self, folder: str, base_offset: int) -> LogFile:
        """The open file of a segment.

        Raises:
            OSError: it is gone, or is no regular file.
        """
        segment = folder, base_offset
        file = self._files.get(segment)
        if file is None:
            file = self._files[segment] = LogFile(offset_file(folder, base_offset, LOG))
            if len(self._files) > self._count_max:
                self._let_go(self._files.popitem(last=False)[0])
        else:
            self._files.move_to_end(segment)
        return file

    def forget(self, folder: str) -> None:
        """Drops the open files of a folder."""
        for segment in [segment for segment in self._files if segment[0] == folder]:
            del self._files[segment]
            self._let_go(segment)


class Window(NamedTuple):
    """A segment, and all that C needs to answer fetches from it (native/python/log/serve_fetch.c)."""

    file: LogFile
    first_offset: int
    last_offset: int
    """Behind the last offset of the window."""
    file_end: int
    offsets: list[int]
    positions: list[int]
    start_offset: int
    """The first offset of the partition."""
    end_offset: int
    """Behind the last offset of the partition."""
    leader_epoch: int


class _Positions:
    """Offsets and positions of batches of one segment, sparse, both ascending."""

    def __init__(self, base_offset: int) -> None:
        self.offsets = [base_offset]
        self.positions = [0]

    def note(self, offset: int, position: int) -> None:
        if position - self.positions[-1] >= NOTE_INTERVAL:
            self.offsets.append(offset)
            self.positions.append(position)

    def cut(self, offset: int) -> None:
        """Drops what is known of batches that begin behind an offset."""
        kept = max(bisect.bisect_right(self.offsets, offset), 1)
        del self.offsets[kept:], self.positions[kept:]

    def behind(self, position: int) -> int | None:
        """An offset behind all batches that begin below a position; None: only the end of the segment is known."""
        slot = bisect.bisect_left(self.positions, position)
        return self.offsets[slot] + 1 if slot < len(self.offsets) else None

    def before(self, offset: int) -> int:
        """Where to begin the walk to an offset."""
        return self.positions[max(bisect.bisect_right(self.offsets, offset) - 1, 0)]


def _indexed_positions(folder: str, base_offset: int) -> _Positions:
    """The positions that ``.index`` has. An entry is the position of a batch with the batch's last offset.

    An index is input: one that does not ascend is as good as none, and the walk checks each header it is led to.
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
        folder: path of it.
        end_offset: behind the last whole batch that was verified.
        epochs: the leader epochs, as they were when a batch with the latest one was verified.
        transactions: those that are open, and those that were aborted.
        windows: the segments from which fetches were answered since the log changed. Any change of the log takes all
            of them away, and so does `retain`.
    """

    def __init__(self, directory: str, place: TopicPartition, files: OpenFiles) -> None:
        """Finds the end of the log. A partition whose folder is not made yet is empty.

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
        if self.end_offset < segments[-1]:  # damage lies in between, which recovery left where it is
            self._segments = segments
            self._enter(segments[-1])
            self.refresh()

    def has_its_name(self) -> bool:
        """False when another folder has the name of the one that was read."""
        found = self._inode_now()
        self._inode = self._inode or found
        return found in (0, self._inode)

    def _inode_now(self) -> int:
        try:
            return os.stat(self.folder).st_ino
        except FileNotFoundError:
            return 0

    def _present(self) -> list[int]:
        """Base offsets of the segments that are there now."""
        try:
            return offsets_with(self.folder, LOG)
        except FileNotFoundError:
            return []

    def _enter(self, base_offset: int) -> None:
        """Makes a segment the active one. Batches below the newest snapshot that its index knows are not read again."""
        self.end_offset = base_offset
        self._end = 0
        self._notes = _indexed_positions(self.folder, base_offset)
        self._notes.cut(self.transactions.start_offset)
        file = self._open(base_offset)
        while file is not None and len(self._notes.positions) > 1:
            position = self._notes.positions[-1]
            content = os.pread(file.descriptor, HEADER_SIZE, position)
            header = read_header(content) if len(content) == HEADER_SIZE else None
            if header is not None and header.problem is None and header.last_offset == self._notes.offsets[-1]:
                self.end_offset, self._end = header.base_offset, position
                return
            self._notes = _Positions(base_offset)

    def _open(self, base_offset: int) -> LogFile | None:
        try:
            return self._files.open(self.folder, base_offset)
        except FileNotFoundError:
            return None

    @property
    def start_offset(self) -> int:
        """The first offset that was neither retained away nor deleted."""
        return max(self._segments[0], min(self._deleted_before, self.end_offset))

    @property
    def stable_offset(self) -> int:
        """The last stable offset: below it, every transaction is decided."""
        return max(self.transactions.stable_offset(self.end_offset), self.start_offset)

    def readable_end(self, *, is_committed: bool) -> int:
        """The offset at which a client stops: the last stable offset for one that reads committed records alone."""
        return self.stable_offset if is_committed else self.end_offset

    def epoch_problem(self, leader_epoch: int) -> BrokerError | None:
        """Why a client with this leader epoch has to ask for metadata again (KIP-320); None when all is well."""
        if leader_epoch in (NO_EPOCH, self.epochs.latest):
            return None
        is_former = leader_epoch < self.epochs.latest
        return BrokerError.FENCED_LEADER_EPOCH if is_former else BrokerError.UNKNOWN_LEADER_EPOCH

    # --- the end

    def refresh(self) -> bool:
        """Looks for more; True when the end moved.

        Raises:
            OSError: the log cannot be read.
        """
        former = self.end_offset
        while self._verify_new() or self._go_on_to_next_segment():
            self.windows = ()
        return self.end_offset != former

    def _verify_new(self) -> bool:
        """Checks what was appended to the active segment; True when a whole batch was."""
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
            self._notes.note(header.base_offset, self._end + position)
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
        """A batch larger than a block."""
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

    def _go_on_to_next_segment(self) -> bool:
        if self.end_offset == self._segments[-1] or not os.path.exists(offset_file(self.folder, self.end_offset, LOG)):
            return False
        self._verify_new()  # the last batch may have come between the look at the size and the roll
        if os.path.exists(offset_file(self.folder, self.end_offset, LOG)):
            self._segments.append(self.end_offset)
            self._enter(self.end_offset)
        return True

    def start_at(self, deleted_before: int) -> None:
        """Takes over the offset below which somebody deleted the records; looks again which segments are there."""
        self._deleted_before = deleted_before
        self.retain()

    def retain(self) -> None:
        """Looks which segments are gone; call it now and then, and when a file is not there."""
        self.windows = ()
        there = self._present()
        first = there[0] if there else self._segments[-1]
        keep = bisect.bisect_left(self._segments, first)
        self._segments = self._segments[keep:] or [self._segments[-1]]
        self.transactions.forget_before(self._segments[0])

    # --- ranges

    def file_range(self, offset: int, size_max: int, end_offset: int | None = None) -> tuple[FileRange, int] | None:
        """The bytes from the batch that has this offset on, of one segment, and the size of that first batch.

        The first batch always goes whole. The batches behind it may be cut anywhere. The answer is None at the end of
        the log, and when the segment was retained away (`start_offset` tells then).

        Args:
            offset: the first one that is wanted.
            size_max: the most bytes, but for the first batch.
            end_offset: where a batch begins that is not given, nor those behind it; default: the end of the log.

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
        notes = self._notes if is_active else self._positions(self._segments[slot])
        found = find_batch(file.descriptor, notes.before(offset), end, offset)
        if found is None:
            return None
        self._open_window(slot, file, end, notes)
        position, first_size = found
        if end_offset < self.end_offset and self._slot_of(end_offset) == slot:
            cut = find_batch(file.descriptor, notes.before(end_offset), end, end_offset)
            end = end if cut is None else cut[0]
        return FileRange(file, position, max(min(size_max, end - position), first_size)), first_size

    def _open_window(self, slot: int, file: LogFile, file_end: int, notes: _Positions) -> None:
        """Lets C answer the next fetches of a segment, where every reader may see all of it."""
        if self.transactions.has_any():
            return
        is_active = slot == len(self._segments) - 1
        last_offset = self.end_offset if is_active else self._segments[slot + 1]
        first_offset = max(self._segments[slot], self.start_offset)
        ends = self.start_offset, self.end_offset, self.epochs.latest
        window = Window(file, first_offset, last_offset, file_end, notes.offsets, notes.positions, *ends)
        others = [each for each in self.windows if each.last_offset != last_offset]
        self.windows = (window, *others[:INDEXED_MAX])
        self._files.hold(self.folder, self._segments[slot], self)

    def _slot_of(self, offset: int) -> int:
        """Which of the segments has an offset."""
        return bisect.bisect_right(self._segments, offset) - 1

    def aborted(self, offset: int, records: FileRange, end_offset: int) -> tuple[tuple[int, int], ...]:
        """Producer id and first offset of the aborted transactions that may have records in a range.

        Args:
            offset: the first one that is wanted.
            records: the range.
            end_offset: records from here on are not in it.

        Raises:
            OSError: an index cannot be read.
        """
        slot = self._slot_of(offset)
        notes = self._notes if slot == len(self._segments) - 1 else self._positions(self._segments[slot])
        behind = notes.behind(records.position + records.size)
        if behind is None:
            behind = self._segments[slot + 1] if slot + 1 < len(self._segments) else end_offset
        return tuple(entry[:2] for entry in self.transactions.aborted(offset, min(behind, end_offset)))

    def _positions(self, base_offset: int) -> _Positions:
        """Those of a finished segment, kept for the segments that were asked for last."""
        found = self._indexed.get(base_offset)
        if found is None:
            found = self._indexed[base_offset] = _indexed_positions(self.folder, base_offset)
            if len(self._indexed) > INDEXED_MAX:
                self._indexed.popitem(last=False)
        else:
            self._indexed.move_to_end(base_offset)
        return found
