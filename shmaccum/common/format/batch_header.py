# SPDX-License-Identifier: Apache-2.0
"""The 61 bytes in front of every record batch (native/format/record_batch.h has the picture).

No other module of Python knows where a field of the header lies.
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
"""Bytes in front of what the batch length counts."""
CRC_START = 21
MAGIC = 2
MAGIC_POSITION = 16

ATTRIBUTES_POSITION = 22
"""The low byte of the attributes, which has them all."""
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
OF_A_TRANSACTION = TRANSACTIONAL | CONTROL
"""A batch with one of these attributes belongs to a transaction, or decides about one."""

PRODUCER_EPOCH_MAX = 2**15 - 1
"""The field has 16 bits and a sign. A producer whose epoch is spent gets a new id (KIP-360)."""


class BatchHeader(NamedTuple):
    """Every field, in the order of the bytes."""

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
        """True where the largest timestamp is none of the records', as clients write it that do not know better."""
        return self.max_timestamp_ms < (0 if self.attributes & LOG_APPEND_TIME else max(self.base_timestamp_ms, 0))

    @property
    def youngest_ms(self) -> int:
        """The largest timestamp that the header tells: of the first record, where that of all is missing."""
        is_own = not self.attributes & LOG_APPEND_TIME
        return max(self.max_timestamp_ms, self.base_timestamp_ms) if is_own else self.max_timestamp_ms

    @property
    def problem(self) -> str | None:
        """Why this is no header of a record batch; None when it may be one (its CRC is not looked at)."""
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
    """The header at this position; the caller knows that 61 bytes are there."""
    return BatchHeader._make(HEADER.unpack_from(source, position))


def sealed_header(header: BatchHeader, records: bytes | memoryview) -> bytes:
    """The header's bytes in front of these records: length and CRC are theirs, whatever the header says."""
    fitted = header._replace(batch_length=HEADER_SIZE - UNCOUNTED_SIZE + len(records))
    crc = crc32c(records, crc32c(HEADER.pack(*fitted)[CRC_START:]))
    return HEADER.pack(*fitted._replace(crc=crc))


def changed_header(header: BatchHeader, changed: BatchHeader) -> bytes:
    """The bytes of a header that stands in front of the same records in place of another one.

    A CRC is linear, so the new one follows from the former one and from the two headers, and no record is read. Where
    the records do not have the former CRC, they do not have the new one either.

    Args:
        header: the former one.
        changed: the new one; its CRC is not looked at.
    """
    difference = _header_crc(header) ^ _header_crc(changed)
    return HEADER.pack(*changed._replace(crc=crc32c_combine(difference, header.crc, header.size - HEADER_SIZE)))


def _header_crc(header: BatchHeader) -> int:
    return crc32c(HEADER.pack(*header)[CRC_START:])


def crc_problem(header: BatchHeader, batch: memoryview) -> str | None:
    """Why the bytes of a whole batch do not have the CRC its header tells; None when they do."""
    found = crc32c(batch[CRC_START:])
    return None if found == header.crc else f"the CRC is {header.crc:08x}, the batch's bytes give {found:08x}"
