# SPDX-License-Identifier: Apache-2.0
"""A segment as its writer has it open (Kafka's LogSegment): the log, and its two indexes.

::

    .log   | batch | batch | batch | ... | batch |            no header, no padding, nothing between two batches
           0                                      size

A batch is the arena's own bytes but for its first 16: base offset, batch length, partition leader epoch. Those are the
log's to give and its CRC does not cover them.

Rules: batches are only added, at `size`, whole. Base offsets ascend from the one in the name; relative offsets and
positions fit 31 bits. Bytes of the file beyond `size` are no part of the log.

Procedure: `write` puts batches at `size` with one pwritev; `note` moves `size` over those that are whole and adds their
index entries. For ordinary batches of a sender both are one step in C (native/log/segment_end.h), on the same numbers.
Identity: a batch counts only while the path leads to the file that it was written to, with all of its bytes. So each
write looks at the path behind it. A file that fails is lost: nothing is written to it any more, not even a cut.
A write that came back short or failed leaves part of a batch behind: the file is cut to the last whole one before
anything else is written, at once or (when that fails too) with the next write.

Why it is safe: a reader takes a batch only when all of its length is there, and the kernel makes a file longer only
after the bytes are in it. A whole batch that a reader saw is never taken back, because only bytes behind the last whole
batch are ever cut. A death between pwritev and index leaves an index that lags, which recovery sees.
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
    """A batch as the indexes see it."""

    position: int
    end: int
    last_offset: int
    max_timestamp_ms: int


class Tail(NamedTuple):
    """The end of a segment, by which it is known again when its file was away."""

    base_offset: int
    start: int
    end: int
    content: bytes
    """Shorter than from start to end where the file was cut."""

    def is_in(self, folder: str) -> bool:
        """True when a folder has the segment, with all that was written to it."""
        try:
            with open(offset_file(folder, self.base_offset, LOG), "rb", buffering=0, opener=open_regular) as file:
                found = os.pread(file.fileno(), self.end - self.start, self.start)
        except FileNotFoundError:
            return False
        return len(found) == self.end - self.start and found.startswith(self.content)


class Indexer(IndexPosition):
    """Which batches get entries in the indexes (Kafka's LogSegment.append); an append in C moves its numbers, too.

    Attributes:
        base_offset: of the segment.
        interval: more bytes than this lie between two entries.
        entry_position: where the batch of the last entry begins.
        max_timestamp_ms: the largest so far.
        max_timestamp_offset: the last offset of the batch that has it.
        indexed_timestamp_ms: that of the time index's last entry.
    """

    def __init__(self, base_offset: int, interval: int) -> None:
        self.base_offset = base_offset
        self.interval = interval
        self.entry_position = 0
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        self.indexed_timestamp_ms = NO_TIMESTAMP

    def entries(self, batches: Sequence[Written]) -> tuple[bytes, bytes]:
        """The entries of the offset index and of the time index that these batches add."""
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
        """The time index's entry for the largest timestamp so far; it counts as written."""
        self.indexed_timestamp_ms = self.max_timestamp_ms
        return pack_time_entry(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)

    @property
    def is_time_index_behind(self) -> bool:
        """True when a finished segment would need another entry."""
        return self.max_timestamp_ms > self.indexed_timestamp_ms


class Segment(SegmentEnd):
    """The open files of one segment; `PartitionLog` has one, the active one. An append in C moves its numbers, too.

    Attributes:
        base_offset: the offset it is named by.
        path: of its ``.log``.
        descriptor: the open ``.log``; -1: it is closed.
        size: bytes of whole batches.
        next_offset: the offset of the next batch.
        first_timestamp_ms: the largest timestamp of the first batch, by whose age the segment is rolled, if it has one.
        is_torn: something stands behind the last whole batch.
        device, inode: the identity of the open ``.log``.
        is_lost: the path does not lead to it any more, or bytes are missing.
    """

    def __init__(self, folder: str, base_offset: int, index_interval: int) -> None:
        """Opens the files, makes those that are missing.

        Raises:
            OSError: one could not be opened; none is left open.
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
        """Puts buffers behind the last whole batch.

        Args:
            size: bytes of all buffers.

        Returns:
            How many bytes got there, and why not all.
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
                    raise OSError(errno.EIO, f"the batches are {size - done} bytes shorter than they say")
                done += count
                if done < size:
                    buffers = rest_of(buffers, count)
            self.check_name(self.size + done)
            self.is_torn = False
        except LogLostError as error:
            return 0, _bare(error)
        except OSError as error:
            return self._done(done, error)
        return done, None

    def _done(self, done: int, error: OSError) -> tuple[int, OSError]:
        """The answer of a write that failed."""
        try:
            self.check_name(self.size + done)
        except LogLostError as lost:
            return 0, _bare(lost)
        return done, _bare(error)

    # --- identity

    def check_name(self, size: int = 0) -> None:
        """Looks whether the path leads to the open file, with so many bytes at least.

        Raises:
            LogLostError: it does not, or did not before.
        """
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise self._lost(f"cannot be found under its name ({error.strerror})") from None
        if (found.st_dev, found.st_ino) != (self.device, self.inode):
            raise self._lost("was replaced by another file")
        if found.st_size < max(size, self.size):
            raise self._lost(f"was cut to {found.st_size} bytes and should have {max(size, self.size)}")
        if self.is_lost:
            raise self._lost("was away for a moment, or written by another process")

    def check_index_names(self) -> None:
        """The same for the indexes. Their entries cost no record when they are lost.

        Raises:
            LogLostError: a path does not lead to the open index.
        """
        for index in (self.offset_index, self.time_index):
            if not is_file_at(index.path, index.descriptor):
                self.is_lost = True
                raise LogLostError(f"{index.path} was removed or replaced, while its writer had it open")

    def _check_size(self) -> None:
        """Nobody else has cut the file, or added to it: a write behind a cut would leave a hole."""
        size = os.fstat(self.descriptor).st_size
        if self.is_lost or size < self.size or (size > self.size and not self.is_torn):
            self.is_lost = True
            self.check_name()

    def tail(self) -> Tail:
        """The last bytes that were written, as they are in the open file."""
        start = max(self.size - TAIL_SIZE, 0)
        return Tail(self.base_offset, start, self.size, os.pread(self.descriptor, self.size - start, start))

    def _lost(self, what: str) -> LogLostError:
        self.is_lost = True
        return LogLostError(f"{self.path} {what}, while its writer had it open")

    def note(self, batches: Sequence[Written]) -> OSError | None:
        """These batches are in the file: moves the numbers, adds index entries. Answers why an index has none."""
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
        """Takes away what stands behind the last whole batch.

        Raises:
            OSError: it is still there; the next write tries again.
        """
        if not self.is_lost:
            os.ftruncate(self.descriptor, self.size)
            self.is_torn = False

    # --- rolling

    @property
    def is_index_full(self) -> bool:
        """True when an index has no room for another entry: the segment must be rolled."""
        return self.offset_index.is_full or self.time_index.is_full

    def finish(self) -> None:
        """Ends the time index with the largest timestamp: no more batches will come. May be done twice."""
        if self.size and self.indexer.is_time_index_behind:
            self.time_index.append(self.indexer.time_entry())

    # --- sync

    def sync(self) -> None:
        """Forces the batches to disk.

        Raises:
            OSError: bytes written since the last sync may be lost in a crash of the host.
        """
        os.fdatasync(self.descriptor)
        self.synced_size = self.size

    def rewrite(self) -> None:
        """Writes again, in place and unchanged, what was not synced.

        A failed fdatasync leaves pages marked clean that are not on disk, and the next one would succeed without them.

        Raises:
            OSError: not all was read or written.
        """
        position = self.synced_size
        while position < self.size:
            content = os.pread(self.descriptor, min(self.size - position, 1 << 20), position)
            position += os.pwrite(self.descriptor, content, position)

    def sync_indexes(self) -> None:
        """Forces the index entries to disk; only a finished segment's are worth it, others can be made anew."""
        self.offset_index.sync()
        self.time_index.sync()

    def close(self) -> None:
        """Lets go of the files."""
        descriptor, self.descriptor = self.descriptor, -1
        with contextlib.ExitStack() as files:
            files.callback(self.time_index.close)
            files.callback(self.offset_index.close)
            files.callback(os.close, descriptor)


def _bare(error: OSError) -> OSError:
    """Without the frames of the calls, which would go on holding the arena's buffers."""
    error.__context__ = None
    return error.with_traceback(None)


def _index_files(folder: str, base_offset: int) -> tuple[IndexFile, IndexFile]:
    """The offset index and the time index, both or none."""
    offset_index = IndexFile(offset_file(folder, base_offset, OFFSET_INDEX), OFFSET_ENTRY)
    try:
        return offset_index, IndexFile(offset_file(folder, base_offset, TIME_INDEX), TIME_ENTRY)
    except OSError:
        offset_index.close()
        raise


def rest_of(buffers: list[bytes | memoryview], written: int) -> list[bytes | memoryview]:
    """The rest of the buffers after a short write."""
    for index, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[index + 1 :]]
        written -= len(buffer)
    return []
