# SPDX-License-Identifier: Apache-2.0
"""Walking the batches of a segment's bytes, over damage if need be. Recovery, replay and verify all walk like this.

Two things look alike and are not. A *torn tail* is where writing stopped: nothing whole comes after it. *Damage* is
followed by whole batches, so it is no interrupted append: somebody scribbled, or a block was lost. A walk tells
both as `Damage`; torn is the one that resumes at the end.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from typing import NamedTuple

from shmaccum.common.format.batch_header import (
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
    """A batch and where in the segment it begins."""

    position: int
    header: BatchHeader


class Damage(NamedTuple):
    """Bytes that are no batch, and where the next batch begins (at the segment's end: none does)."""

    position: int
    resume_position: int
    problem: str


def map_file(path: str) -> memoryview:
    """The bytes of a file nobody else writes to, read-only. The map lives as long as a view of it.

    Raises:
        NotARegularFileError: it is something else.
    """
    with open(path, "rb", buffering=0, opener=open_regular) as file:
        size = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)) if size else memoryview(b"")


class BaseOffsetRange(NamedTuple):
    """Where the next batch may begin. No CRC covers a base offset, so it is held against its neighbours."""

    first: int
    last: int

    @property
    def problem(self) -> str:
        """The end of a sentence about an offset outside."""
        return f"expected was {self.first}" if self.first == self.last else f"expected was {self.first} or more"


def exactly(offset: int) -> BaseOffsetRange:
    """Behind a batch of a log without gaps."""
    return BaseOffsetRange(offset, offset)


def at_least(offset: int, base_offset: int) -> BaseOffsetRange:
    """Behind damage, and in a log that was compacted: anywhere in the rest of the segment with this base offset."""
    return BaseOffsetRange(offset, max(offset, base_offset + RELATIVE_OFFSET_MAX))


def walk(
    view: memoryview, base_offset: int, position: int = 0, *, is_crc_checked: bool, is_gapless: bool
) -> Iterator[LocatedBatch | Damage]:
    """Every batch from a position on, and every damage in between.

    Args:
        view: the whole segment.
        base_offset: of the segment.
        position: where a batch begins.
        is_crc_checked: also reads what is behind the headers.
        is_gapless: every offset is there, as in logs of ours; a broker's compaction leaves gaps.
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
    """Why no whole batch that may stand here begins here; None when one does."""
    room = len(view) - position
    if room < HEADER_SIZE:
        return f"only {room} bytes are left, less than a batch's header"
    header = read_header(view, position)
    if problem := header.problem:
        return problem
    if header.size > room:
        return f"the batch at offset {header.base_offset} has {header.size} bytes, only {room} are left"
    if not expected.first <= header.base_offset <= expected.last:
        return f"its base offset is {header.base_offset}, {expected.problem}"
    return crc_problem(header, view[position : position + header.size]) if is_crc_checked else None


def find_batch(view: memoryview, position: int, expected: BaseOffsetRange) -> int:
    """Where the next sound batch that may stand there begins; the end of the view when none does."""
    end = len(view) - HEADER_SIZE + 1
    for start in range(position, end, SEARCH_SIZE):
        for candidate in _candidates(view, start, min(start + SEARCH_SIZE, end)):
            if batch_problem(view, candidate, expected, is_crc_checked=True) is None:
                return candidate
    return len(view)


def _candidates(view: memoryview, start: int, end: int) -> list[int]:
    """Positions in [start, end) with a 2 where a header has its magic."""
    import numpy as np  # slow to import, and only a damaged log is searched

    magics = np.frombuffer(view[start + MAGIC_POSITION : end + MAGIC_POSITION], dtype=np.uint8)
    found: list[int] = (np.flatnonzero(magics == MAGIC) + start).tolist()
    return found
