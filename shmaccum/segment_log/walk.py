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

import numpy as np

from shmaccum.segment_log.batch_header import (
    HEADER_SIZE,
    MAGIC,
    MAGIC_POSITION,
    BatchHeader,
    crc_problem,
    read_header,
)

RELATIVE_OFFSET_MAX = 2**31 - 1
SEARCH_SIZE = 1 << 20


class Found(NamedTuple):
    """A batch and where in the segment it begins."""

    position: int
    header: BatchHeader


class Damage(NamedTuple):
    """Bytes that are no batch, and where the next batch begins (at the segment's end: none does)."""

    position: int
    resume_position: int
    problem: str


def map_file(path: str) -> memoryview:
    """The bytes of a file, read-only. The map lives as long as a view of it."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)) if size else memoryview(b"")


def walk(view: memoryview, position: int, offset: int, *, is_crc_checked: bool) -> Iterator[Found | Damage]:
    """Every batch from a position on, and every damage in between.

    Args:
        view: the whole segment.
        position: where a batch begins.
        offset: no batch from there on begins below it.
        is_crc_checked: also reads what is behind the headers.
    """
    while position < len(view):
        problem = batch_problem(view, position, offset, is_crc_checked=is_crc_checked)
        if problem is None:
            header = read_header(view, position)
            yield Found(position, header)
            position += header.size
            offset = header.next_offset
        else:
            resume = find_batch(view, position + 1, offset + 1)
            yield Damage(position, resume, problem)
            position = resume


def batch_problem(view: memoryview, position: int, offset: int, *, is_crc_checked: bool) -> str | None:
    """Why no whole batch with at least this base offset begins here; None when one does."""
    room = len(view) - position
    if room < HEADER_SIZE:
        return f"only {room} bytes are left, less than a batch's header"
    header = read_header(view, position)
    if problem := header.problem:
        return problem
    if header.size > room:
        return f"the batch at offset {header.base_offset} has {header.size} bytes, only {room} are left"
    if not 0 <= header.base_offset - offset <= RELATIVE_OFFSET_MAX:
        return f"its base offset is {header.base_offset}, expected was {offset}"
    return crc_problem(header, view[position : position + header.size]) if is_crc_checked else None


def find_batch(view: memoryview, position: int, offset: int) -> int:
    """Where the next sound batch with at least this base offset begins; the end of the view when none does."""
    end = len(view) - HEADER_SIZE + 1
    for start in range(position, end, SEARCH_SIZE):
        for candidate in _candidates(view, start, min(start + SEARCH_SIZE, end)):
            if batch_problem(view, candidate, offset, is_crc_checked=True) is None:
                return candidate
    return len(view)


def _candidates(view: memoryview, start: int, end: int) -> list[int]:
    """Positions in [start, end) with a 2 where a header has its magic."""
    magics = np.frombuffer(view[start + MAGIC_POSITION : end + MAGIC_POSITION], dtype=np.uint8)
    found: list[int] = (np.flatnonzero(magics == MAGIC) + start).tolist()
    return found
