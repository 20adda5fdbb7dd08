# SPDX-License-Identifier: Apache-2.0
"""A segment that is open for reading while its writer may append to it, roll it, or delete it.

Rules: the file is read by pread, one block at a time. Readers get views of blocks, which are never changed.
It is not mapped, because the writer may cut off a torn batch at any time, and an access to a mapped page past the end
of the file kills the reader. The file may change after a block was read: a torn batch may be cut off, and another
one written in its place. So a wrong or missing part is read again, and counts only if it is the same twice.
A deleted file stays readable while it is open.

The active segment ends with its last whole batch. Bytes after it belong to a batch that is being written, or that was
being written when the writer died. In both cases a reader waits.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from shmaccum._native import ConsumerRecord, consume_block, decode_block
from shmaccum.common.format.batch_header import HEADER_SIZE, crc_problem, read_header
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.columns import RecordColumns
from shmaccum.log.files.file_names import LOG, OFFSET_INDEX, TIME_INDEX, offset_file
from shmaccum.log.files.index_file import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    Entries,
    EntryFormat,
    ascends,
    last_offset_for,
    last_position_for,
    last_timestamp,
    load_entries,
    map_entries,
)
from shmaccum.log.files.log_batch import LogBatch, UnreadBatch, Views
from shmaccum.log.files.log_file import LogFile
from shmaccum.log.files.walk import BaseOffsetRange, Damage, find_batch_in_file

READ_AHEAD_SIZE = 256 << 10
"""This fits in a core's cache until it is decoded."""
HEADERS_SIZE = 4 << 10
"""Bytes per read if only headers are read. With small batches, they contain several headers."""
UNREAD_SIZE_MAX = 64 << 20
"""A larger batch is read before its header is trusted."""
REREADS_MAX = 3


class Missing(NamedTuple):
    """The reason why no batch can be read at a position."""

    problem: str
    is_unfinished: bool = False
    """True if the bytes may be right, but are too few."""
    size: int = 0
    """The size of the whole batch, if it is known."""


class SegmentView:
    """The bytes of one segment.

    Attributes:
        base_offset: the offset that names the segment.
        path: the path of its ``.log``.
        is_finished: True if another segment follows, so nothing will be appended.
        size: the size of the file at the last check, in bytes.
        block_size: bytes per read. If None, `READ_AHEAD_SIZE` is used.
    """

    block_size: int | None = None

    def __init__(self, folder: str, base_offset: int, *, is_finished: bool, is_crc_checked: bool) -> None:
        """Open the segment.

        Raises:
            FileNotFoundError: if retention deleted it.
            NotARegularFileError: if it is not a regular file.
        """
        self.folder = folder
        self.base_offset = base_offset
        self.is_finished = is_finished
        self.path = offset_file(folder, base_offset, LOG)
        self._is_crc_checked = is_crc_checked
        self._block = memoryview(b"")
        self._block_position = 0
        self._file: LogFile | None = LogFile(self.path)
        self._descriptor = self._file.descriptor
        self.size = 0
        try:
            self.refresh()
        except OSError:
            self.close()
            raise

    def has_its_name(self) -> bool:
        """False if another file has the name of the open one."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._descriptor))
        except FileNotFoundError:
            return True  # the next listing of the folder shows this

    def refresh(self) -> bool:
        """Read the file's size again; return True if the file has grown."""
        former, self.size = self.size, os.fstat(self._descriptor).st_size
        return self.size > former

    def finish(self) -> None:
        """Mark the segment as finished: another segment follows it."""
        self.is_finished = True
        self.refresh()

    @property
    def file(self) -> LogFile:
        """The open file."""
        assert self._file is not None
        return self._file

    def close(self) -> None:
        """Close the file. Batches that were returned stay readable, and keep the file open while they need it."""
        self._block = memoryview(b"")
        self._file = None
        self._descriptor = -1

    # --- batches

    def batch(self, position: int, expected: BaseOffsetRange) -> LogBatch | Missing:
        """The whole batch at a position, if its base offset is expected; else the reason why there is none (yet)."""
        found = self._batch(position, expected)
        if isinstance(found, LogBatch):
            return found
        for _ in range(REREADS_MAX):
            former = found
            self._read_ahead(position, former.size)
            found = self._batch(position, expected)
            if isinstance(found, LogBatch) or found == former:
                return found
        return Missing("it changes while it is read", is_unfinished=True)

    def _batch(self, position: int, expected: BaseOffsetRange) -> LogBatch | Missing:
        """The same, from the block that was read last."""
        start = position - self._block_position
        room = len(self._block) - start
        if start < 0 or room < HEADER_SIZE:
            return Missing("less than a batch's header is left", is_unfinished=True)
        header = read_header(self._block, start)
        if problem := header.problem:
            return Missing(problem)
        if not expected.first <= header.base_offset <= expected.last:
            return Missing(f"its base offset is {header.base_offset}, {expected.problem}")
        if (size := header.size) > room:
            text = f"the batch at offset {header.base_offset} has {size} bytes, {room} are left"
            return Missing(text, is_unfinished=True, size=size)
        view = self._block[start : start + size]
        problem = crc_problem(header, view) if self._is_crc_checked else None
        return Missing(problem) if problem else LogBatch(header, view, self.path, position)

    def unread_batch(self, position: int, expected: BaseOffsetRange) -> UnreadBatch | None:
        """The batch at a position; its records are not read.

        Returns None if no whole batch with an expected base offset is found at once. `batch` then returns the reason.
        """
        start = position - self._block_position
        if start < 0 or start + HEADER_SIZE > len(self._block):
            self._block = memoryview(os.pread(self._descriptor, HEADERS_SIZE, position))
            self._block_position, start = position, 0
            if len(self._block) < HEADER_SIZE:
                return None
        header = read_header(self._block, start)
        if header.problem or not expected.first <= header.base_offset <= expected.last:
            return None
        size = header.size
        is_whole = position + size <= self.size or (self.refresh() and position + size <= self.size)
        if size > UNREAD_SIZE_MAX or not is_whole:
            return None
        assert self._file is not None
        return UnreadBatch(header, bytes(self._block[start : start + HEADER_SIZE]), self._file, position)

    def _read_ahead(self, position: int, size: int) -> None:
        """Read a block from this position on: at least this many bytes, if the file has them."""
        self.refresh()
        there = max(self.size - position, 0)
        self._block = memoryview(
            os.pread(self._descriptor, min(max(size, self.block_size or READ_AHEAD_SIZE), there), position)
        )
        self._block_position = position

    def consume(
        self, place: TopicPartition, position: int, expected: BaseOffsetRange, first_offset: int, views: Views
    ) -> tuple[list[ConsumerRecord], int, int]:
        """The records of the plain batches from a position on, up to the end of the block that was read last.

        Native code reads them in one call. It stops at each batch that `batch` has to examine: a compressed batch, a
        transaction marker, damage, or the end of the block.

        Returns:
            The records from `first_offset` on, and the position and the offset after the last batch.
        """
        start = position - self._block_position
        if not 0 <= start < len(self._block):
            return [], position, expected.first
        records, end, next_offset = consume_block(
            self._block, start, place, first_offset, *expected, self._is_crc_checked, *views
        )
        return records, end + self._block_position, next_offset

    def columns(
        self, position: int, expected: BaseOffsetRange, wanted: BaseOffsetRange, *, has_headers: bool
    ) -> tuple[RecordColumns, int, int]:
        """The same records as columns, limited to the wanted offsets.

        Returns:
            The columns, and the position and the offset after the last batch.
        """
        found, end, next_offset = decode_block(
            self._block,
            position - self._block_position,
            wanted.first,
            wanted.last + 1,
            has_headers,
            *expected,
            self._is_crc_checked,
        )
        return RecordColumns.of(found), end + self._block_position, next_offset

    def damage(self, position: int, expected: BaseOffsetRange, problem: str) -> Damage:
        """The extent of the damage at a position: up to the next batch with an expected base offset."""
        self.refresh()
        resume_position = find_batch_in_file(self._descriptor, position + 1, self.size, expected)
        return Damage(position, resume_position, problem)

    # --- look-ups

    def position_before(self, offset: int) -> int:
        """The position to scan from to find an offset: the last indexed batch that does not end after it."""
        index = self._entries(OFFSET_INDEX, OFFSET_ENTRY)
        if not len(index) or offset <= self.base_offset or not ascends(index.column("relative_offset")):
            return 0
        position = last_position_for(index, min(offset - self.base_offset, 2**31 - 1))
        content = os.pread(self._descriptor, HEADER_SIZE, position)
        header = read_header(content) if len(content) == HEADER_SIZE else None
        return 0 if header is None or header.problem or header.last_offset > offset else position

    def offset_older_than(self, timestamp_ms: int) -> int:
        """The offset up to which the index proves that all records have a smaller timestamp."""
        index = self._entries(TIME_INDEX, TIME_ENTRY)
        return self.base_offset + (
            last_offset_for(index, timestamp_ms) if ascends(index.column("timestamp_ms")) else -1
        )

    def is_older_than(self, timestamp_ms: int) -> bool:
        """True if the index proves that all records of a finished segment have a smaller timestamp."""
        index = self._entries(TIME_INDEX, TIME_ENTRY)
        return self.is_finished and len(index) > 0 and last_timestamp(index) < timestamp_ms

    def _entries(self, suffix: str, entry: EntryFormat) -> Entries:
        path = offset_file(self.folder, self.base_offset, suffix)
        return map_entries(path, entry) if self.is_finished else load_entries(path, entry)
