# SPDX-License-Identifier: Apache-2.0
"""Iterate over the batches in a segment's bytes, also past damage. Recovery, replay and verification use this.

A *torn tail* is the place where writing stopped: no whole batch follows. *Damage* is followed by whole batches, so it
is not an interrupted append: the bytes were overwritten, or a block was lost. Both are returned as `Damage`; for a torn
tail, the resume position is the end.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import NamedTuple

from shmaccum._native import crc32c
from shmaccum.common.format.batch_header import (
    CRC_START,
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    crc_problem,
    read_header,
)
from shmaccum.log.files.regular_files import open_regular

RELATIVE_OFFSET_MAX = 2**31 - 1
SEARCH_SIZE = 1 << 20


class LocatedBatch(NamedTuple):
    """A batch and its position in the segment."""

    position: int
    header: BatchHeader


class Damage(NamedTuple):
    """Bytes that are not a batch, and the position of the next batch (the segment's end if there is none)."""

    position: int
    resume_position: int
    problem: str


def map_file(path: str) -> memoryview:
    """The bytes of a file that no other process writes, read-only. The mapping lives as long as a view of it.

    Raises:
        NotARegularFileError: if it is not a regular file.
    """
    with open(path, "rb", buffering=0, opener=open_regular) as file:
        size = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)) if size else memoryview(b"")


class BaseOffsetRange(NamedTuple):
    """The base offsets that the next batch may have. No CRC covers a base offset, so it must fit the batch before."""

    first: int
    last: int

    @property
    def problem(self) -> str:
        """The end of a message about an offset outside the range."""
        return f"expected was {self.first}" if self.first == self.last else f"expected was {self.first} or more"


def exactly(offset: int) -> BaseOffsetRange:
    """The range after a batch of a log without gaps."""
    return BaseOffsetRange(offset, offset)


def at_least(offset: int, base_offset: int) -> BaseOffsetRange:
    """The range after damage, or in a compacted log: the rest of the segment with this base offset."""
    return BaseOffsetRange(offset, max(offset, base_offset + RELATIVE_OFFSET_MAX))


def walk(
    view: memoryview, base_offset: int, position: int = 0, *, is_crc_checked: bool, is_gapless: bool
) -> Iterator[LocatedBatch | Damage]:
    """Every batch from a position on, and the damage between them.

    Args:
        view: the whole segment.
        base_offset: the base offset of the segment.
        position: the start of a batch.
        is_crc_checked: also check the CRC of each batch, which reads its records.
        is_gapless: True if every offset exists, as in a log of shmaccum. Compaction by a broker leaves gaps.
    """
    anywhere = at_least(base_offset, base_offset)
    expected = exactly(base_offset) if position == 0 and is_gapless else anywhere
    while position < len(view):
        problem = batch_problem(view, position, expected, is_crc_checked=is_crc_checked)
        if problem is None:
            header = read_header(view, position)
            yield LocatedBatch(position, header)
            position += header.size
            next_offset = header.next_offset
            expected = exactly(next_offset) if is_gapless else at_least(next_offset, base_offset)
        else:
            expected = at_least(expected.first + 1, base_offset)
            resume = find_batch(view, position + 1, expected)
            yield Damage(position, resume, problem)
            position = resume


def batch_problem(view: memoryview, position: int, expected: BaseOffsetRange, *, is_crc_checked: bool) -> str | None:
    """The reason why no whole batch with an expected base offset starts at a position; None if one does."""
    room = len(view) - position
    if room < HEADER_SIZE:
        return f"only {room} bytes are left, less than a batch's header"
    header = read_header(view, position)
    if problem := _header_problem(header, room, expected):
        return problem
    return crc_problem(header, view[position : position + header.size]) if is_crc_checked else None


def _header_problem(header: BatchHeader, room: int, expected: BaseOffsetRange) -> str | None:
    if problem := header.problem:
        return problem
    if header.size > room:
        return f"the batch at offset {header.base_offset} has {header.size} bytes, only {room} are left"
    if not expected.first <= header.base_offset <= expected.last:
        return f"its base offset is {header.base_offset}, {expected.problem}"
    return None


def find_batch(view: memoryview, position: int, expected: BaseOffsetRange) -> int:
    """The position of the next valid batch with an expected base offset, or the end of the view if there is none."""
    end = len(view) - HEADER_SIZE + 1
    for start in range(position, end, SEARCH_SIZE):
        for candidate in _candidates(view, start, min(start + SEARCH_SIZE, end)):
            if batch_problem(view, candidate, expected, is_crc_checked=True) is None:
                return candidate
    return len(view)


def find_batch_in_file(descriptor: int, position: int, size: int, expected: BaseOffsetRange) -> int:
    """The same for the first `size` bytes of a file, which may change meanwhile. Reads a part of the file at a time."""
    for start in range(position, size - HEADER_SIZE + 1, SEARCH_SIZE):
        part = memoryview(os.pread(descriptor, min(SEARCH_SIZE + HEADER_SIZE - 1, size - start), start))
        for candidate in _candidates(part, 0, max(len(part) - HEADER_SIZE + 1, 0)):
            header, at = read_header(part, candidate), start + candidate
            if _header_problem(header, size - at, expected) is None and _has_its_crc(descriptor, at, header):
                return at
    return size


def _has_its_crc(descriptor: int, position: int, header: BatchHeader) -> bool:
    """Whether the whole batch at a position has the CRC in its header."""
    crc, end = 0, position + header.size
    for start in range(position + CRC_START, end, SEARCH_SIZE):
        crc = crc32c(os.pread(descriptor, min(SEARCH_SIZE, end - start), start), crc)
    return crc == header.crc


def _candidates(view: memoryview, start: int, end: int) -> list[int]:
    """The positions in [start, end) that have a 2 at the place of a header's magic byte."""
    import numpy as np  # slow to import, and only a damaged log is searched

    magics = np.frombuffer(view[start + MAGIC_POSITION : end + MAGIC_POSITION], dtype=np.uint8)
    found: list[int] = (np.flatnonzero(magics == MAGIC) + start).tolist()
    return found
