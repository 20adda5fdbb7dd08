# SPDX-License-Identifier: Apache-2.0
"""The offsets and times of a batch's records, in bounded memory, whatever size the compressed records have.

A few compressed bytes can expand to a gigabyte. If the records are small together, native code decompresses and decodes
them at once. Otherwise they are decompressed in pieces: the fields of each record are read, and the bytes of its key,
value and headers are skipped. `STREAMED_SIZE_MAX` and `STREAMED_COUNT_MAX` bound the work.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shmaccum._native import decode_records
from shmaccum.common.format.batch_header import CODEC_MASK, HEADER_SIZE, LOG_APPEND_TIME
from shmaccum.exceptions import CorruptArenaError
from shmaccum.log.files.codecs import CODECS, DecompressedTooLargeError, decompress, stream
from shmaccum.log.files.log_batch import LogBatch, LogRecord

AT_ONCE_SIZE_MAX = 4 << 20
STREAMED_SIZE_MAX = 1 << 30
STREAMED_COUNT_MAX = 1_000_000
"""Records that are read field by field, at some 10 µs each."""
VARINT_SIZE_MAX = 10
NULL = -1


class RecordTime(NamedTuple):
    """The offset and the timestamp of a record."""

    offset: int
    timestamp_ms: int


class StreamedRecord(NamedTuple):
    """A record that was read piece by piece."""

    offset_delta: int
    time_delta: int
    has_key: bool


def record_times(batch: LogBatch) -> Iterator[RecordTime]:
    """The offset and the time of each record, in order.

    Raises:
        DecompressedTooLargeError: if the records exceed the bounds of this module.
        CodecMissingError: if no package for the compression is installed.
        CorruptLogError: if the records cannot be read.
    """
    header = batch.header
    codec, records = header.attributes & CODEC_MASK, batch.view[HEADER_SIZE:]
    if codec and codec not in CODECS:
        raise batch.corrupt(ValueError(f"it is compressed by codec {codec}, which does not exist"))
    try:
        plain = decompress(codec, records, AT_ONCE_SIZE_MAX) if codec else records
    except DecompressedTooLargeError:
        yield from _streamed(batch)
        return
    except ValueError as error:
        raise batch.corrupt(error) from None
    log_time_ms = header.max_timestamp_ms if header.attributes & LOG_APPEND_TIME else None
    bounds = header.base_offset, header.base_timestamp_ms, header.record_count
    try:
        found = decode_records(plain, LogRecord, *bounds, log_time_ms)
    except (CorruptArenaError, ValueError) as error:
        raise batch.corrupt(error) from None
    yield from (RecordTime(record.offset, record.timestamp_ms) for record in found)


def _streamed(batch: LogBatch) -> Iterator[RecordTime]:
    header = batch.header
    is_of_log = bool(header.attributes & LOG_APPEND_TIME)
    try:
        for record in streamed_records(header.attributes & CODEC_MASK, batch.view[HEADER_SIZE:], header.record_count):
            time_ms = header.max_timestamp_ms if is_of_log else header.base_timestamp_ms + record.time_delta
            yield RecordTime(header.base_offset + record.offset_delta, time_ms)
    except DecompressedTooLargeError:
        raise
    except ValueError as error:
        raise batch.corrupt(error) from None


def streamed_records(codec: int, records: memoryview, count: int) -> Iterator[StreamedRecord]:
    """The fields of each record. The compressed bytes must end after the last record.

    Raises:
        DecompressedTooLargeError: if the records exceed the bounds of this module.
        CodecMissingError: if no package for the compression is installed.
        ValueError: if the bytes are not such records.
    """
    if count > STREAMED_COUNT_MAX:
        raise DecompressedTooLargeError(AT_ONCE_SIZE_MAX)
    source = _Source(stream(codec, records))
    for _ in range(count):
        yield _read_record(source)
    source.expect_end()


def _read_record(source: _Source) -> StreamedRecord:
    size = source.varint()
    start = source.position
    source.skip(1)  # attributes
    time_delta, offset_delta = source.varint(), source.varint()
    has_key = source.skip_field() != NULL
    source.skip_field()
    header_count = source.varint()
    if not 0 <= header_count <= size:
        raise ValueError(f"a record has {header_count} headers")
    for _ in range(header_count):
        source.skip_field()
        source.skip_field()
    if source.position - start != size:
        raise ValueError(f"a record of {source.position - start} bytes says that it has {size}")
    return StreamedRecord(offset_delta, time_delta, has_key)


class _Source:
    """A stream of bytes that arrive in pieces.

    Attributes:
        position: the number of bytes that were read or skipped.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._piece = b""
        self._at = 0
        self._size = 0
        self.position = 0

    def _take_piece(self) -> bool:
        """Take the next piece that is not empty; return False at the end."""
        self._piece, self._at = next(filter(None, self._pieces), b""), 0
        self._size += len(self._piece)
        if self._size > STREAMED_SIZE_MAX:
            raise DecompressedTooLargeError(STREAMED_SIZE_MAX)
        return bool(self._piece)

    def varint(self) -> int:
        """Read a zigzag varint."""
        value = 0
        for group in range(VARINT_SIZE_MAX):
            if self._at == len(self._piece) and not self._take_piece():
                raise ValueError("the records are cut short")
            byte = self._piece[self._at]
            self._at += 1
            self.position += 1
            value |= (byte & 0x7F) << 7 * group
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
        raise ValueError("a number has no end")

    def skip(self, size: int) -> None:
        self.position += size
        while size > len(self._piece) - self._at:
            size -= len(self._piece) - self._at
            if not self._take_piece():
                raise ValueError("the records are cut short")
        self._at += size

    def skip_field(self) -> int:
        """Skip a field: its size, and that many bytes; return the size. The size of null is -1."""
        size = self.varint()
        if size < NULL:
            raise ValueError(f"a field of {size} bytes")
        self.skip(max(size, 0))
        return size

    def expect_end(self) -> None:
        if self._at < len(self._piece) or self._take_piece():
            raise ValueError("bytes follow the last record")
