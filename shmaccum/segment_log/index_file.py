# SPDX-License-Identifier: Apache-2.0
"""The two sparse indexes of a segment: entries of fixed size, big-endian, one after another (Kafka's AbstractIndex).

::

    .index       | relative offset i32 | position i32 |                           8 bytes
                   the batch that begins at `position` has the last offset base + relative offset
    .timeindex   | timestamp i64 | relative offset i32 |                          12 bytes
                   no record of this segment up to that offset is younger than `timestamp` (and the batch ending there
                   holds a record of just that age)

Rules: both columns of ``.index`` and the timestamps of ``.timeindex`` strictly ascend; a time index's offsets never
descend. One entry is written for a batch when more than ``index_interval_bytes`` went by since the last, so never for
the first batch, and no position is 0. A finished segment's time index ends with the segment's largest timestamp.

Procedure: entries are appended by write(2) after the batches they tell of. Kafka maps 10 MiB of zeros and fills them
in; here the file is always exactly its entries (docs/decisions/0016).

Why it is safe: an index is a cache of its ``.log``. Its writer may die between the two, or in the middle of an entry;
`recovery.py` cuts the torn entry, checks the others against the batches, and writes the index anew when one is wrong.
A reader checks the header it is led to. So a bad index costs time, never a record.
"""

from __future__ import annotations

import os
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from shmaccum.segment_log.regular_files import open_regular
from shmaccum.segment_log.small_files import write_all

Entries = npt.NDArray[Any]

OFFSET_ENTRY = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
TIME_ENTRY = np.dtype([("timestamp_ms", ">i8"), ("relative_offset", ">i4")])
pack_offset_entry = struct.Struct(">ii").pack
pack_time_entry = struct.Struct(">qi").pack

INDEX_SIZE_MAX = 10 << 20
"""Kafka's segment.index.bytes: a segment whose index would outgrow it is rolled."""
NO_TIMESTAMP = -1


def load_entries(path: str, entry: np.dtype[Any]) -> Entries:
    """A copy of all whole entries of an index; none when the file is missing."""
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            content = np.fromfile(file, dtype=np.uint8)
    except FileNotFoundError:
        return np.empty(0, entry)
    return content[: content.size - content.size % entry.itemsize].view(entry)


def map_entries(path: str, entry: np.dtype[Any]) -> Entries:
    """A read-only view of a finished segment's index, which is only ever replaced as a whole; none when it is empty."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            count = os.fstat(file.fileno()).st_size // entry.itemsize
            return np.memmap(file, dtype=entry, mode="r", shape=(count,)) if count else np.empty(0, entry)
    except FileNotFoundError:
        return np.empty(0, entry)


def last_position(index: Entries) -> int:
    """Where the batch of the last entry begins; 0 without entries."""
    return int(index["position"][-1]) if len(index) else 0


def last_timestamp(index: Entries) -> int:
    """That of the last entry; NO_TIMESTAMP without entries."""
    return int(index["timestamp_ms"][-1]) if len(index) else NO_TIMESTAMP


def last_position_for(entries: Entries, relative_offset: int) -> int:
    """Where to begin the walk to a relative offset: at the last batch indexed that does not end behind it.

    An index is input: a position below 0 is as good as none.
    """
    slot = int(np.searchsorted(entries["relative_offset"], relative_offset, side="right")) - 1
    return max(int(entries["position"][slot]), 0) if slot >= 0 else 0


def last_offset_for(entries: Entries, timestamp_ms: int) -> int:
    """The last relative offset up to which everything is older than the timestamp, -1 when none is."""
    slot = int(np.searchsorted(entries["timestamp_ms"], timestamp_ms, side="left")) - 1
    return int(entries["relative_offset"][slot]) if slot >= 0 else -1


def ascends(column: Entries) -> bool:
    """True when every number is larger than the one before it."""
    return bool(np.all(column[1:] > column[:-1]))


class IndexFile:
    """An index as its writer has it open.

    Attributes:
        path: of the file.
        size: bytes of whole entries in it.
    """

    def __init__(self, path: str, entry: np.dtype[Any]) -> None:
        self.path = path
        self.entry_size = entry.itemsize
        self._descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
        try:
            self.size = os.fstat(self._descriptor).st_size
        except OSError:
            os.close(self._descriptor)
            raise

    @property
    def is_full(self) -> bool:
        """True when there may be no room for another entry and the one a roll adds."""
        return self.size + 2 * self.entry_size > INDEX_SIZE_MAX

    def append(self, entries: bytes) -> None:
        """Adds whole entries, or none.

        Raises:
            OSError: none was added.
        """
        try:
            write_all(self._descriptor, entries)
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(entries)

    def sync(self) -> None:
        """Forces the entries to disk."""
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Lets go of the file."""
        os.close(self._descriptor)
