# SPDX-License-Identifier: Apache-2.0
"""The 61-byte header of every record batch (native/format/record_batch.h has the diagram).

No other module of Python knows the positions of its fields.
"""

from __future__ import annotations

import mmap
import struct
from typing import NamedTuple

from shmaccum._native import crc32c, crc32c_combine

Source = bytes | bytearray | memoryview | mmap.mmap

HEADER = struct.Struct(">qiiBIhiqqqhii")
HEADER_SIZE = HEADER.size
assert HEADER_SIZE == 61

PREFIX = struct.Struct(">qii")
"""Base offset, batch length, partition leader epoch: the fields that a log sets and that the CRC does not cover."""
PREFIX_SIZE = PREFIX.size
UNCOUNTED_SIZE = 12
"""The number of bytes before the part that the batch length counts."""
CRC_START = 21
MAGIC = 2
MAGIC_POSITION = 16

ATTRIBUTES_POSITION = 22
"""The low byte of the attributes, which contains all of them."""
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
OF_A_TRANSACTION = TRANSACTIONAL | CONTROL
"""A batch with one of these attributes belongs to a transaction, or ends one."""

PRODUCER_EPOCH_MAX = 2**15 - 1
"""The field is a signed integer of 16 bits. A producer whose epochs are exhausted gets a new id (KIP-360)."""


class BatchHeader(NamedTuple):
    """All fields of a header, in the order of the bytes."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.batch_length + UNCOUNTED_SIZE

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after the last record."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def is_time_missing(self) -> bool:
        """True if the header's largest timestamp is too small to be one of the records', as some clients write it."""
        return self.max_timestamp_ms < (0 if self.attributes & LOG_APPEND_TIME else max(self.base_timestamp_ms, 0))

    @property
    def youngest_ms(self) -> int:
        """The largest timestamp in the header, or the first record's if the largest of all is missing."""
        is_own = not self.attributes & LOG_APPEND_TIME
        return max(self.max_timestamp_ms, self.base_timestamp_ms) if is_own else self.max_timestamp_ms

    @property
    def problem(self) -> str | None:
        """The reason why this is not a header of a record batch, or None if it may be one. Does not check the CRC."""
        if self.magic != MAGIC:
            return f"magic is {self.magic}, not {MAGIC}"
        if self.batch_length < HEADER_SIZE - UNCOUNTED_SIZE:
            return f"a batch length of {self.batch_length} is too small"
        if self.base_offset < 0 or self.last_offset_delta < 0 or self.record_count < 0:
            return (
                f"base offset {self.base_offset}, last offset delta {self.last_offset_delta} "
                f"and {self.record_count} records contradict each other"
            )
        return None


def read_header(source: Source, position: int = 0) -> BatchHeader:
    """Returns the header at this position. The caller must know that 61 bytes are there."""
    return BatchHeader._make(HEADER.unpack_from(source, position))


def sealed_header(header: BatchHeader, records: bytes | memoryview) -> bytes:
    """Returns the bytes of the header for these records. Length and CRC are computed from the records."""
    fitted = header._replace(batch_length=HEADER_SIZE - UNCOUNTED_SIZE + len(records))
    crc = crc32c(records, crc32c(HEADER.pack(*fitted)[CRC_START:]))
    return HEADER.pack(*fitted._replace(crc=crc))


def changed_header(header: BatchHeader, changed: BatchHeader) -> bytes:
    """Returns the bytes of a changed header in front of the same records.

    A CRC is linear, so the new one follows from the former one and from the two headers, and no record is read. If the
    records do not have the former CRC, they do not have the new one either.

    Args:
        header: the former one.
        changed: the new one. Its CRC is ignored.
    """
    difference = _header_crc(header) ^ _header_crc(changed)
    return HEADER.pack(*changed._replace(crc=crc32c_combine(difference, header.crc, header.size - HEADER_SIZE)))


def _header_crc(header: BatchHeader) -> int:
    return crc32c(HEADER.pack(*header)[CRC_START:])


def crc_problem(header: BatchHeader, batch: memoryview) -> str | None:
    """Returns the problem if the bytes of a whole batch do not have the CRC in its header, or None."""
    found = crc32c(batch[CRC_START:])
    return None if found == header.crc else f"the CRC is {header.crc:08x}, the batch's bytes give {found:08x}"
