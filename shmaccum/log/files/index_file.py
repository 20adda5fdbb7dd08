# SPDX-License-Identifier: Apache-2.0
"""The two sparse indexes of a segment: entries of fixed size, big-endian, in sequence (Kafka's AbstractIndex).

::

    .index       | relative offset i32 | position i32 |                           8 bytes
                   the batch that begins at `position` has the last offset base + relative offset
    .timeindex   | timestamp i64 | relative offset i32 |                          12 bytes
                   no record of this segment up to that offset has a larger timestamp, and the batch that ends there
                   has a record with this timestamp

Rules: both columns of ``.index`` and the timestamps of ``.timeindex`` strictly ascend. A time index's offsets never
descend. An entry is written for a batch if more than ``index_interval_bytes`` follow the last entry. So the first
batch has no entry, and no position is 0. A finished segment's time index ends with the segment's largest timestamp.

Procedure: entries are appended by write(2) after their batches. Kafka maps 10 MiB of zeros and fills them in; here, the
file only contains its entries (docs/decisions/0016).

Why it is safe: an index is a cache of its ``.log``. The writer may die between the two writes, or in the middle of an
entry. `recovery.py` cuts the torn entry, checks the others against the batches, and rewrites the index if one is wrong.
A reader checks the header at the position it found. So a bad index costs time, but no record.

A column of a large index is a numpy array over the bytes. For a small index it is a list: importing numpy takes longer
than reading a small index, and a sender that takes over from a dead one begins with the indexes of its log.
"""

from __future__ import annotations

import mmap
import operator
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple, cast, final

from shmaccum._native import INDEX_FILE_SIZE_MAX, IndexFileEnd
from shmaccum.log.files.regular_files import open_regular
from shmaccum.log.files.small_files import write_all


class EntryFormat(NamedTuple):
    """The format of an index's entries.

    Attributes:
        columns: column name -> numpy type.
    """

    struct: struct.Struct
    columns: dict[str, str]

    @property
    def size(self) -> int:
        """The size of one entry, in bytes."""
        return self.struct.size


OFFSET_ENTRY = EntryFormat(struct.Struct(">ii"), {"relative_offset": ">i4", "position": ">i4"})
TIME_ENTRY = EntryFormat(struct.Struct(">qi"), {"timestamp_ms": ">i8", "relative_offset": ">i4"})
pack_offset_entry = OFFSET_ENTRY.struct.pack
pack_time_entry = TIME_ENTRY.struct.pack

NO_TIMESTAMP = -1


LARGE_COUNT = 8192
"""An index with at least this number of entries is read by numpy. For a smaller one, the import takes longer."""


@final
class Entries:
    """The whole entries of an index. They are input, so they may be wrong.

    Args:
        content: the bytes. A torn entry at the end is left out.
    """

    def __init__(self, content: bytes | mmap.mmap, entry: EntryFormat) -> None:
        self._content = content
        self._entry = entry
        self._count = len(content) // entry.size
        self._columns: dict[str, Sequence[int]] = {}

    def __len__(self) -> int:
        return self._count

    @property
    def content(self) -> bytes:
        """The bytes of all whole entries."""
        return self._content[: self._count * self._entry.size]

    def column(self, name: str) -> Sequence[int]:
        """One column of all entries."""
        if name not in self._columns:
            place = list(self._entry.columns).index(name)
            is_large = self._count >= LARGE_COUNT
            self._columns[name] = self._array(name) if is_large else [row[place] for row in self.rows()]
        return self._columns[name]

    def _array(self, name: str) -> Sequence[int]:
        import numpy as np  # slow to import: see the module docstring

        dtype = np.dtype(list(self._entry.columns.items()))
        return cast("Sequence[int]", np.frombuffer(self._content, dtype, self._count)[name])

    def rows(self, start: int = 0) -> list[tuple[int, int]]:
        """The entries from an index on."""
        return list(self._entry.struct.iter_unpack(self.content[start * self._entry.size :]))

    def head(self, count: int) -> Entries:
        """The first entries."""
        return Entries(self.content[: count * self._entry.size], self._entry)

    def last(self, name: str) -> int:
        """A number of the last entry. There must be one."""
        return int(self.column(name)[-1])


def load_entries(path: str, entry: EntryFormat) -> Entries:
    """A copy of an index, empty if the file does not exist."""
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            return Entries(file.readall(), entry)
    except FileNotFoundError:
        return Entries(b"", entry)


def map_entries(path: str, entry: EntryFormat) -> Entries:
    """A read-only mapping of a finished segment's index, which is only ever replaced as a whole."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            is_empty = os.fstat(file.fileno()).st_size == 0
            return Entries(b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), entry)
    except FileNotFoundError:
        return Entries(b"", entry)


def last_position(index: Entries) -> int:
    """The position of the batch of the last entry, or 0 without entries."""
    return index.last("position") if len(index) else 0


def last_timestamp(index: Entries) -> int:
    """The timestamp of the last entry, or NO_TIMESTAMP without entries."""
    return index.last("timestamp_ms") if len(index) else NO_TIMESTAMP


def last_position_for(entries: Entries, relative_offset: int) -> int:
    """The position to scan from to find a relative offset: the last indexed batch that does not end after it.

    A negative position in the index is treated as 0.
    """
    slot = bisect_right(entries.column("relative_offset"), relative_offset) - 1
    return max(int(entries.column("position")[slot]), 0) if slot >= 0 else 0


def last_offset_for(entries: Entries, timestamp_ms: int) -> int:
    """The last relative offset up to which all records have a smaller timestamp, or -1."""
    slot = bisect_left(entries.column("timestamp_ms"), timestamp_ms) - 1
    return int(entries.column("relative_offset")[slot]) if slot >= 0 else -1


def ascends(column: Sequence[int]) -> bool:
    """True if every number is larger than the one before it."""
    if isinstance(column, list):
        return all(map(operator.lt, column, islice(column, 1, None)))
    import numpy as np  # the column is a numpy array

    return bool(np.all(np.greater(column[1:], column[:-1])))


class IndexFile(IndexFileEnd):
    """An index that is open for writing. An append in C updates its numbers, too.

    Attributes:
        path: the path of the file.
        descriptor: the open file, or -1 if it is closed.
        size: the size of the whole entries, in bytes.
    """

    def __init__(self, path: str, entry: EntryFormat) -> None:
        self.path = path
        self.entry_size = entry.size
        self.descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
        try:
            self.size = os.fstat(self.descriptor).st_size
        except OSError:
            os.close(self.descriptor)
            raise

    @property
    def is_full(self) -> bool:
        """True if there may be no space for two more entries. The second one is for a roll, which adds an entry."""
        return self.size + 2 * self.entry_size > INDEX_FILE_SIZE_MAX

    def append(self, entries: bytes) -> None:
        """Append whole entries, or none.

        Raises:
            OSError: if none was appended.
        """
        try:
            write_all(self.descriptor, entries)
        except OSError:
            os.ftruncate(self.descriptor, self.size)
            raise
        self.size += len(entries)

    def sync(self) -> None:
        """Force the entries to disk."""
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        """Close the file."""
        descriptor, self.descriptor = self.descriptor, -1
        os.close(descriptor)
