# SPDX-License-Identifier: Apache-2.0
"""The aborted transactions of a segment: ``.txnindex``, in Kafka's format (TransactionIndex).

::

    entry   version i16 = 0 | producer id i64 | first offset i64 | last offset i64 | last stable offset i64     34 bytes

``first offset`` is the offset of the transaction's first record in the partition, ``last offset`` that of its marker.
The entry is in the segment that has the marker. ``last stable offset`` is the value when the marker was appended: all
transactions that end after it have a later entry.

Rules: last offsets ascend. A segment without an aborted transaction has no file.

Procedure: the entry is written before its marker. If the write fails, it is cut off, and the marker is rejected.

Why it is safe: a reader that sees a marker finds its entry. A death between the two leaves an entry without a marker.
No reader reaches its records, because the transaction is still open, and recovery rewrites the file from the
markers. A torn entry is ignored.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from typing import NamedTuple

from shmaccum.log.files.file_names import TRANSACTION_INDEX, offset_file
from shmaccum.log.files.regular_files import open_regular
from shmaccum.log.files.small_files import write_all

VERSION = 0
_ENTRY = struct.Struct(">hqqqq")
ENTRY_SIZE = _ENTRY.size


class Aborted(NamedTuple):
    """A transaction of one producer that was aborted in a partition."""

    producer_id: int
    first_offset: int
    """The offset of its first record."""
    last_offset: int
    """The offset of its marker."""
    stable_offset: int
    """The last stable offset when the marker was appended."""


def pack_aborted(entries: Sequence[Aborted]) -> bytes:
    """The content of a file that has these entries."""
    return b"".join(_ENTRY.pack(VERSION, *entry) for entry in entries)


def read_aborted(folder: str, base_offset: int) -> list[Aborted]:
    """The entries of a segment, up to the first invalid one; none if the file does not exist.

    Raises:
        OSError: if the file cannot be read.
    """
    try:
        with open(offset_file(folder, base_offset, TRANSACTION_INDEX), "rb", opener=open_regular) as file:
            content = file.read()
    except FileNotFoundError:
        return []
    found: list[Aborted] = []
    for version, *values in _ENTRY.iter_unpack(content[: len(content) // ENTRY_SIZE * ENTRY_SIZE]):
        entry = Aborted(*values)
        former = found[-1].last_offset if found else base_offset - 1
        if version != VERSION or not 0 <= entry.first_offset <= entry.last_offset > former:
            break
        found.append(entry)
    return found


def append_aborted(folder: str, base_offset: int, entry: Aborted) -> None:
    """Append an entry to the file of a segment.

    Raises:
        OSError: if the entry was not written.
    """
    path = offset_file(folder, base_offset, TRANSACTION_INDEX)
    descriptor = open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        try:
            write_all(descriptor, pack_aborted([entry]))
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def remove_last(folder: str, base_offset: int, entry: Aborted) -> None:
    """Remove this entry if it is the last one, because its marker was not written.

    Raises:
        OSError: if the entry is still there.
    """
    entries = read_aborted(folder, base_offset)
    if entries and entries[-1] == entry:
        os.truncate(offset_file(folder, base_offset, TRANSACTION_INDEX), (len(entries) - 1) * ENTRY_SIZE)
