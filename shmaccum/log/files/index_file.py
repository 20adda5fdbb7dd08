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

A column of a large index is an array of numpy over the bytes. A small one is a list: numpy takes longer to import than
a small index to read, and the sender that follows a dead one begins with the indexes of its log.
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
    """The shape of an index's entries.

    Attributes:
        columns: name -> numpy's spelling of the type.
    """

    struct: struct.Struct
    columns: dict[str, str]

    @property
    def size(self) -> int:
        """Bytes of one entry."""
        return self.struct.size


OFFSET_ENTRY = EntryFormat(struct.Struct(">ii"), {"relative_offset": ">i4", "position": ">i4"})
TIME_ENTRY = EntryFormat(struct.Struct(">qi"), {"timestamp_ms": ">i8", "relative_offset": ">i4"})
pack_offset_entry = OFFSET_ENTRY.struct.pack
pack_time_entry = TIME_ENTRY.struct.pack

NO_TIMESTAMP = -1


LARGE_COUNT = 8192
"""Entries from which on numpy is worth its import."""


@final
class Entries:
    """The whole entries of an index; an index is input, and promises nothing.

    Args:
        content: bytes, of which an entry that was torn at the end is left out.
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
        """One number of each entry."""
        if name not in self._columns:
            place = list(self._entry.columns).index(name)
            is_large = self._count >= LARGE_COUNT
            self._columns[name] = self._array(name) if is_large else [row[place] for row in self.rows()]
        return self._columns[name]

    def _array(self, name: str) -> Sequence[int]:
        import numpy as np  # slow to import: see the head of this file

        dtype = np.dtype(list(self._entry.columns.items()))
        return cast("Sequence[int]", np.frombuffer(self._content, dtype, self._count)[name])

    def rows(self, start: int = 0) -> list[tuple[int, int]]:
        """The entries from one on."""
        return list(self._entry.struct.iter_unpack(self.content[start * self._entry.size :]))

    def head(self, count: int) -> Entries:
        """The first entries."""
        return Entries(self.content[: count * self._entry.size], self._entry)

    def last(self, name: str) -> int:
        """A number of the last entry, of which there has to be one."""
        return int(self.column(name)[-1])


def load_entries(path: str, entry: EntryFormat) -> Entries:
    """A copy of an index; without entries when the file is missing."""
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            return Entries(file.readall(), entry)
    except FileNotFoundError:
        return Entries(b"", entry)


def map_entries(path: str, entry: EntryFormat) -> Entries:
    """A read-only view of a finished segment's index, which is only ever replaced as a whole."""
    try:
        with open(path, "rb", opener=open_regular) as file:
            is_empty = os.fstat(file.fileno()).st_size == 0
            return Entries(b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), entry)
    except FileNotFoundError:
        return Entries(b"", entry)


def last_position(index: Entries) -> int:
    """Where the batch of the last entry begins; 0 without entries."""
    return index.last("position") if len(index) else 0


def last_timestamp(index: Entries) -> int:
    """That of the last entry; NO_TIMESTAMP without entries."""
    return index.last("timestamp_ms") if len(index) else NO_TIMESTAMP


def last_position_for(entries: Entries, relative_offset: int) -> int:
    """Where to begin the walk to a relative offset: at the last batch indexed that does not end behind it.

    An index is input: a position below 0 is as good as none.
    """
    slot = bisect_right(entries.column("relative_offset"), relative_offset) - 1
    return max(int(entries.column("position")[slot]), 0) if slot >= 0 else 0


def last_offset_for(entries: Entries, timestamp_ms: int) -> int:
    """The last relative offset up to which everything is older than the timestamp, -1 when none is."""
    slot = bisect_left(entries.column("timestamp_ms"), timestamp_ms) - 1
    return int(entries.column("relative_offset")[slot]) if slot >= 0 else -1


def ascends(column: Sequence[int]) -> bool:
    """True when every number is larger than the one before it."""
    if isinstance(column, list):
        return all(map(operator.lt, column, islice(column, 1, None)))
    import numpy as np  # which the column is made of

    return bool(np.all(np.greater(column[1:], column[:-1])))


class IndexFile(IndexFileEnd):
    """An index as its writer has it open; an append in C moves its numbers, too.

    Attributes:
        path: of the file.
        descriptor: the open file; -1: it is closed.
        size: bytes of whole entries in it.
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
        """True when there may be no room for another entry and the one a roll adds."""
        return self.size + 2 * self.entry_size > INDEX_FILE_SIZE_MAX

    def append(self, entries: bytes) -> None:
        """Adds whole entries, or none.

        Raises:
            OSError: none was added.
        """
        try:
            write_all(self.descriptor, entries)
        except OSError:
            os.ftruncate(self.descriptor, self.size)
            raise
        self.size += len(entries)

    def sync(self) -> None:
        """Forces the entries to disk."""
        os.fdatasync(self.descriptor)

    def close(self) -> None:
        """Lets go of the file."""
        descriptor, self.descriptor = self.descriptor, -1
        os.close(descriptor)
