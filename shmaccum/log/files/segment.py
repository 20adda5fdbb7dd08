# SPDX-License-Identifier: Apache-2.0
"""A segment that is open for writing (Kafka's LogSegment): the log, and its two indexes.

::

    .log   | batch | batch | batch | ... | batch |            no header, no padding, nothing between two batches
           0                                      size

A batch has the bytes of the arena, except for the first 16: base offset, batch length, partition leader epoch. The log
assigns these, and the CRC does not cover them.

Rules: batches are only added, whole, at `size`. Base offsets ascend from the one in the file's name. Relative offsets
and positions fit 31 bits. Bytes of the file past `size` do not belong to the log.

Procedure: `write` writes batches at `size` with one pwritev. `record_written` advances `size` over the whole batches
and adds their index entries. For ordinary batches of a sender, C code does both in one step, on the same numbers
(native/log/segment_end.h).
Identity: a batch counts only while the path leads to the file that it was written to, with all of its bytes. So each
write checks the path afterwards. A file that fails the check is lost: it is not changed any more, not even cut.
A short or failed write leaves a part of a batch. The file is cut to the last whole batch before the next write: at
once, or (if that fails, too) as the first step of that write.

Why it is safe: a reader accepts a batch only when its whole length is in the file, and the kernel extends a file only
after the bytes are in it. A whole batch that a reader saw is never removed, because a cut removes only bytes after the
last whole batch. A death between pwritev and the index append leaves an index that lags, which recovery detects.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

from shmaccum._native import IndexPosition, SegmentEnd
from shmaccum.exceptions import LogLostError
from shmaccum.log.files.file_names import LOG, OFFSET_INDEX, TIME_INDEX, offset_file
from shmaccum.log.files.index_file import (
    NO_TIMESTAMP,
    OFFSET_ENTRY,
    TIME_ENTRY,
    IndexFile,
    pack_offset_entry,
    pack_time_entry,
)
from shmaccum.log.files.regular_files import is_file_at, open_regular

TAIL_SIZE = 4096
IOV_MAX = os.sysconf("SC_IOV_MAX")


class Written(NamedTuple):
    """The fields of a batch that the indexes need."""

    position: int
    end: int
    last_offset: int
    max_timestamp_ms: int


class Tail(NamedTuple):
    """The end of a segment, by which the segment is identified after its file was missing."""

    base_offset: int
    start: int
    end: int
    content: bytes
    """The bytes from start to end; fewer if the file was cut."""

    def is_in(self, folder: str) -> bool:
        """True if a folder has the segment with all bytes that were written to it."""
        try:
            with open(offset_file(folder, self.base_offset, LOG), "rb", buffering=0, opener=open_regular) as file:
                found = os.pread(file.fileno(), self.end - self.start, self.start)
        except FileNotFoundError:
            return False
        return len(found) == self.end - self.start and found.startswith(self.content)


class Indexer(IndexPosition):
    """Chooses the batches that get index entries (Kafka's LogSegment.append). An append in C updates its numbers, too.

    Attributes:
        base_offset: the base offset of the segment.
        interval: an entry is written if more bytes than this follow the last one.
        entry_position: the position of the batch of the last entry.
        max_timestamp_ms: the largest timestamp so far.
        max_timestamp_offset: the last offset of the batch that has it.
        indexed_timestamp_ms: the timestamp of the time index's last entry.
    """

    def __init__(self, base_offset: int, interval: int) -> None:
        self.base_offset = base_offset
        self.interval = interval
        self.entry_position = 0
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.indexed_timestamp_ms = NO_TIMESTAMP

    def entries(self, batches: Sequence[Written]) -> tuple[bytes, bytes]:
        """The entries that these batches add to the offset index and to the time index."""
        base_offset, interval, entry_position = self.base_offset, self.interval, self.entry_position
        offset_entries, time_entries = [], []
        for position, _, last_offset, timestamp_ms in batches:
            if timestamp_ms > self.max_timestamp_ms:
                self.max_timestamp_ms = timestamp_ms
                self.max_timestamp_offset = last_offset
            if position - entry_position > interval:
                offset_entries.append(pack_offset_entry(last_offset - base_offset, position))
                if self.max_timestamp_ms > self.indexed_timestamp_ms:
                    time_entries.append(self.time_entry())
                entry_position = position
        self.entry_position = entry_position
        return b"".join(offset_entries), b"".join(time_entries)

    def time_entry(self) -> bytes:
        """The time index entry for the largest timestamp so far. It is then considered written."""
        self.indexed_timestamp_ms = self.max_timestamp_ms
        return pack_time_entry(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)

    @property
    def is_time_index_incomplete(self) -> bool:
        """True if the time index of a finished segment needs another entry."""
        return self.max_timestamp_ms > self.indexed_timestamp_ms


class Segment(SegmentEnd):
    """The open files of one segment. `PartitionLog` keeps the active one. An append in C updates its numbers, too.

    Attributes:
        base_offset: the offset that names the files.
        path: the path of its ``.log``.
        descriptor: the open ``.log``, or -1 if it is closed.
        size: the size of the whole batches, in bytes.
        next_offset: the offset of the next batch.
        first_timestamp_ms: the largest timestamp of the first batch. A timestamp later by segment.ms causes a roll.
        is_torn: True if the file has bytes after the last whole batch.
        device, inode: the identity of the open ``.log``.
        is_lost: True if the path no longer leads to the file, or bytes are missing.
    """

    def __init__(self, folder: str, base_offset: int, index_interval: int) -> None:
        """Open the files, and create the missing ones.

        Raises:
            OSError: if a file could not be opened. None stays open.
        """
        self.base_offset = base_offset
        self.path = offset_file(folder, base_offset, LOG)
        self.indexer = Indexer(base_offset, index_interval)
        self.next_offset = base_offset
        self.descriptor = open_regular(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            status = os.fstat(self.descriptor)
            self.size, self.device, self.inode = status.st_size, status.st_dev, status.st_ino
            self.offset_index, self.time_index = _index_files(folder, base_offset)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.synced_size = 0

    # --- append

    def write(self, buffers: list[bytes | memoryview], size: int) -> tuple[int, OSError | None]:
        """Write buffers after the last whole batch.

        Args:
            size: the size of all buffers, in bytes.

        Returns:
            The number of bytes that were written, and the error if not all were.
        """
        done = 0
        try:
            self._check_size()
            if self.is_torn:
                self.cut()
            while done < size:
                self.is_torn = True
                count = os.pwritev(
                    self.descriptor, buffers if len(buffers) <= IOV_MAX else buffers[:IOV_MAX], self.size + done
                )
                if count == 0:
                    raise OSError(errno.EIO, f"the batches are {size - done} bytes shorter than their headers say")
                done += count
                if done < size:
                    buffers = rest_of(buffers, count)
            self.check_name(self.size + done)
            self.is_torn = False
        except LogLostError as error:
            return 0, _without_traceback(error)
        except OSError as error:
            return self._write_result(done, error)
        return done, None

    def _write_result(self, done: int, error: OSError) -> tuple[int, OSError]:
        """The result of a failed write."""
        try:
            self.check_name(self.size + done)
        except LogLostError as lost:
            return 0, _without_traceback(lost)
        return done, _without_traceback(error)

    # --- identity

    def check_name(self, size: int = 0) -> None:
        """Check that the path leads to the open file, which must have at least this size.

        Raises:
            LogLostError: if it does not, or if an earlier check failed.
        """
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise self._lost_error(f"cannot be found under its name ({error.strerror})") from None
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            raise self._lost_error("was replaced by another file")
        if found.st_size < max(size, self.size):
            raise self._lost_error(f"was cut to {found.st_size} bytes and should have {max(size, self.size)}")
        if self.is_lost:
            raise self._lost_error("was missing for a moment, or written by another process")

    def check_index_names(self) -> None:
        """Check the paths of the indexes. A lost index costs no record.

        Raises:
            LogLostError: if a path does not lead to the open index.
        """
        for index in (self.offset_index, self.time_index):
            if not is_file_at(index.path, index.descriptor):
                self.is_lost = True
                raise LogLostError(f"{index.path} was removed or replaced, while its writer had it open")

    def _check_size(self) -> None:
        """Check that no other process cut or extended the file. A write after a cut would leave a hole."""
        size = os.fstat(self.descriptor).st_size
        if self.is_lost or size < self.size or (size > self.size and not self.is_torn):
            self.is_lost = True
            self.check_name()

    def tail(self) -> Tail:
        """The last bytes that were written, read from the open file."""
        start = max(self.size - TAIL_SIZE, 0)
        return Tail(self.base_offset, start, self.size, os.pread(self.descriptor, self.size - start, start))

    def _lost_error(self, what: str) -> LogLostError:
        self.is_lost = True
        return LogLostError(f"{self.path} {what}, while its writer had it open")

    def record_written(self, batches: Sequence[Written]) -> OSError | None:
        """Account for batches that were written: update the numbers, and add index entries. Return an index error."""
        if not batches:
            return None
        if not self.size:
            self.first_timestamp_ms = batches[0].max_timestamp_ms
        self.size = batches[-1].end
        self.next_offset = batches[-1].last_offset + 1
        offset_entries, time_entries = self.indexer.entries(batches)
        try:
            if offset_entries:
                self.offset_index.append(offset_entries)
            if time_entries:
                self.time_index.append(time_entries)
        except OSError as error:
            return error
        return None

    def cut(self) -> None:
        """Remove the bytes after the last whole batch.

        Raises:
            OSError: if they are still there. The next write tries again.
        """
        if not self.is_lost:
            os.ftruncate(self.descriptor, self.size)
            self.is_torn = False

    # --- rolling

    @property
    def is_index_full(self) -> bool:
        """True if an index has no space for another entry. Then the segment must be rolled."""
        return self.offset_index.is_full or self.time_index.is_full

    def finish(self) -> None:
        """Complete the time index with the largest timestamp. No more batches may follow. May be repeated."""
        if self.size and self.indexer.is_time_index_incomplete:
            self.time_index.append(self.indexer.time_entry())

    # --- sync

    def sync(self) -> None:
        """Force the batches to disk.

        Raises:
            OSError: if bytes written since the last sync may be lost in a crash of the host.
        """
        os.fdatasync(self.descriptor)
        self.synced_size = self.size

    def rewrite(self) -> None:
        """Write the bytes that were not synced again, in place and unchanged.

        A failed fdatasync marks pages clean that are not on disk, and the next fdatasync would succeed without them.

        Raises:
            OSError: if not all bytes were read or written.
        """
        position = self.synced_size
        while position < self.size:
            content = os.pread(self.descriptor, min(self.size - position, 1 << 20), position)
            position += os.pwrite(self.descriptor, content, position)

    def sync_indexes(self) -> None:
        """Force the index entries to disk. Only useful for a finished segment; other indexes can be rebuilt."""
        self.offset_index.sync()
        self.time_index.sync()

    def close(self) -> None:
        """Close the files."""
        descriptor, self.descriptor = self.descriptor, -1
        with contextlib.ExitStack() as files:
            files.callback(self.time_index.close)
            files.callback(self.offset_index.close)
            files.callback(os.close, descriptor)


def _without_traceback(error: OSError) -> OSError:
    """The error without its traceback, whose frames would keep the arena's buffers referenced."""
    error.__context__ = None
    return error.with_traceback(None)


def _index_files(folder: str, base_offset: int) -> tuple[IndexFile, IndexFile]:
    """Open the offset index and the time index, or none of them."""
    offset_index = IndexFile(offset_file(folder, base_offset, OFFSET_INDEX), OFFSET_ENTRY)
    try:
        return offset_index, IndexFile(offset_file(folder, base_offset, TIME_INDEX), TIME_ENTRY)
    except OSError:
        offset_index.close()
        raise


def rest_of(buffers: list[bytes | memoryview], written: int) -> list[bytes | memoryview]:
    """The buffers that remain after a short write."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []
