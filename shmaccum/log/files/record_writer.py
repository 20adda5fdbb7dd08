# SPDX-License-Identifier: Apache-2.0
"""Encode record batches in Python, for the few records that are rewritten with other headers.

Native code encodes the records of producers (native/format/record.c). The format is that of KIP-98.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shmaccum.common.format.batch_header import MAGIC, BatchHeader, sealed_header

Header = tuple[str, bytes | None]


@dataclass(frozen=True)
class MadeBatch:
    """A batch in private memory that `PartitionLog.append` accepts. Without a producer id, it is not idempotent."""

    wire: bytes
    record_count: int
    max_timestamp_ms: int
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1

    @property
    def buffers(self) -> tuple[memoryview, ...]:
        """The batch as one buffer."""
        return (memoryview(self.wire),)

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self.wire)


@dataclass(frozen=True)
class NewRecord:
    """One record to write."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header]


def varint(number: int) -> bytes:
    """A signed zigzag varint, as records use it."""
    rest = number << 1 if number >= 0 else (-number << 1) - 1
    encoded = bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    encoded.append(rest)
    return bytes(encoded)


def sized(content: bytes | None) -> bytes:
    """Bytes, preceded by their size. The size of None is -1."""
    return varint(-1) if content is None else varint(len(content)) + content


def encode_headers(headers: Iterable[Header]) -> bytes:
    """The concatenated headers, without their count."""
    return b"".join(sized(name.encode()) + sized(value) for name, value in headers)


NO_IDENTITY = (-1, -1, -1)


def make_batch(
    records: Sequence[NewRecord], headers: Sequence[Header] = (), identity: tuple[int, int, int] = NO_IDENTITY
) -> MadeBatch:
    """A batch of these records. `headers` are added after the headers of each record.

    Args:
        identity: producer id, epoch and base sequence.
    """
    base_ms = records[0].timestamp_ms
    common = encode_headers(headers)
    body = b"".join(_record(index, record, base_ms, len(headers), common) for index, record in enumerate(records))
    max_ms = max(record.timestamp_ms for record in records)
    header = BatchHeader(0, 0, -1, MAGIC, 0, 0, len(records) - 1, base_ms, max_ms, *identity, len(records))
    return MadeBatch(sealed_header(header, body) + body, len(records), max_ms, *identity)


def _record(index: int, record: NewRecord, base_ms: int, more_count: int, more: bytes) -> bytes:
    attributes = b"\x00"
    content = (
        attributes
        + varint(record.timestamp_ms - base_ms)
        + varint(index)
        + sized(record.key)
        + sized(record.value)
        + varint(len(record.headers) + more_count)
        + encode_headers(record.headers)
        + more
    )
    return sized(content)
