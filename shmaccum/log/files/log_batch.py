# SPDX-License-Identifier: Apache-2.0
"""The results of a reader: batches, which are views of a block of a segment, and records, which are copies."""

from __future__ import annotations

import os
from typing import NamedTuple, final

from shmaccum._native import ConsumerRecord, consume_batch, decode_records
from shmaccum.common.format.batch_header import (
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    OF_A_TRANSACTION,
    BatchHeader,
    crc_problem,
)
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import format_count
from shmaccum.exceptions import CorruptArenaError, CorruptLogError
from shmaccum.log.files.codecs import CODECS, decompress
from shmaccum.log.files.log_file import FileRange, LogFile

DECOMPRESSED_SIZE_MAX = 1 << 30
"""The maximum size of one batch's decompressed records when a reader decompresses them, because a batch is input."""


class LogRecord(NamedTuple):
    """One record of a partition."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class Views(NamedTuple):
    """The parts of records that are memoryviews of the batch. Other parts are bytes."""

    has_keys: bool = False
    has_values: bool = False


class Decodable(NamedTuple):
    """The decompressed records of a batch, and the fields of its header that are needed to decode them."""

    records: memoryview | bytes
    base_offset: int
    base_timestamp_ms: int
    record_count: int
    log_append_time_ms: int | None
    """None if each record has its own time."""


@final
class LogBatch:
    """One record batch in its segment. Nothing is decoded before `records` is called.

    It can be appended to another log unchanged (`PartitionLog.append`). It stays readable while it is referenced, also
    after retention has deleted its segment.

    Attributes:
        header: every field of its header.
        view: its bytes, read-only.
        segment: the path of the ``.log`` file.
        position: the position of the batch in the file.
        size: the size in bytes.
        base_offset: the offset of the first record. In a compacted log, that record may be gone.
        next_offset: the offset at which to continue.
        record_count: the number of its offsets. A compacted batch may have fewer records, `header.record_count`.
    """

    __slots__ = ("base_offset", "header", "next_offset", "position", "record_count", "segment", "size", "view")

    def __init__(self, header: BatchHeader, view: memoryview, segment: str, position: int) -> None:
        self.header = header
        self.view = view
        self.segment = segment
        self.position = position
        self.size = len(view)
        self.base_offset = header.base_offset
        self.record_count = header.last_offset_delta + 1
        self.next_offset = self.base_offset + self.record_count

    @property
    def last_offset(self) -> int:
        """The offset of the last record."""
        return self.header.last_offset

    @property
    def is_control(self) -> bool:
        """True for a broker's transaction marker, whose records are not for users."""
        return bool(self.header.attributes & CONTROL)

    @property
    def is_compressed(self) -> bool:
        """True if the records are compressed."""
        return bool(self.header.attributes & CODEC_MASK)

    @property
    def is_of_transaction(self) -> bool:
        """True for a batch of a transaction, and for a control batch."""
        return bool(self.header.attributes & OF_A_TRANSACTION)

    # --- the interface of Appendable

    @property
    def buffers(self) -> tuple[memoryview, ...]:
        """The wire bytes. Base offset and leader epoch are those of this log."""
        return (self.view,)

    @property
    def producer_id(self) -> int:
        """The producer id, or -1 if the batch is not idempotent."""
        return self.header.producer_id

    @property
    def producer_epoch(self) -> int:
        """The epoch of the producer id."""
        return self.header.producer_epoch

    @property
    def base_sequence(self) -> int:
        """The sequence of the first record."""
        return self.header.base_sequence

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp, as far as the header has it."""
        return self.header.youngest_ms

    # --- its records

    def crc_problem(self) -> str | None:
        """The reason why the bytes are not those that were appended, or None if they are."""
        return crc_problem(self.header, self.view)

    def records(self) -> list[LogRecord]:
        """The records, decompressed if necessary, and decoded by native code.

        Raises:
            CodecMissingError: if no package for the compression is installed.
            CorruptLogError: if the records cannot be read, although the CRC may be right.
        """
        found = self.decodable()
        try:
            return decode_records(found.records, LogRecord, *found[1:])
        except (CorruptArenaError, ValueError) as error:
            raise self.corrupt(error) from None

    def consumed_records(self, place: TopicPartition, first_offset: int, views: Views) -> list[ConsumerRecord]:
        """The records from an offset on, in the form of a consumer.

        Args:
            place: the topic and the partition of the batch.
            first_offset: records below this offset are left out.
            views: the parts that are memoryviews. They keep the block of the log, or the decompressed batch, in memory.

        Raises:
            CodecMissingError, CorruptLogError: as `records`.
        """
        found = self.decodable()
        try:
            return consume_batch(found.records, place, self.header.leader_epoch, first_offset, *found[1:], *views)
        except (CorruptArenaError, ValueError) as error:
            raise self.corrupt(error) from None

    def decodable(self) -> Decodable:
        """The records in the form that native code decodes.

        Raises:
            CodecMissingError: if no package for the compression is installed.
            CorruptLogError: if they cannot be decompressed, or their codec does not exist.
        """
        header, codec = self.header, self.header.attributes & CODEC_MASK
        time_of_all_ms = header.max_timestamp_ms if header.attributes & LOG_APPEND_TIME else None
        records: memoryview | bytes = self.view[HEADER_SIZE:]
        if codec and codec not in CODECS:
            raise self.corrupt(ValueError(f"it is compressed by codec {codec}, which does not exist"))
        try:
            records = decompress(codec, self.view[HEADER_SIZE:], DECOMPRESSED_SIZE_MAX) if codec else records
        except ValueError as error:
            raise self.corrupt(error) from None
        return Decodable(records, header.base_offset, header.base_timestamp_ms, header.record_count, time_of_all_ms)

    def corrupt(self, error: Exception) -> CorruptLogError:
        """The error for records that cannot be read."""
        end = self.position + self.size
        return CorruptLogError(self.segment, self.position, end, str(error), self.next_offset)

    def __repr__(self) -> str:
        records = format_count(self.record_count, "record")
        return f"<LogBatch of {records} from offset {self.base_offset}, {self.size} bytes>"


@final
class UnreadBatch:
    """One record batch in its segment. Only its header was read, and the CRC was not checked.

    The file stays open as long as this object lives.

    Attributes:
        header: every field of its header.
        head: the bytes of its header.
        records: the range of the bytes after the header, in the file.
        size, base_offset, next_offset, record_count: as those of `LogBatch`.
    """

    __slots__ = ("base_offset", "head", "header", "next_offset", "record_count", "records", "size")

    def __init__(self, header: BatchHeader, head: bytes, file: LogFile, position: int) -> None:
        self.header = header
        self.head = head
        self.size = header.size
        self.records = FileRange(file, position + HEADER_SIZE, self.size - HEADER_SIZE)
        self.base_offset = header.base_offset
        self.record_count = header.last_offset_delta + 1
        self.next_offset = self.base_offset + self.record_count

    def crc_problem(self) -> str | None:
        """The reason why the bytes are not those that were appended, or None if they are.

        Raises:
            OSError: if the file cannot be read.
        """
        file, position, size = self.records
        records = os.pread(file.descriptor, size, position)
        return crc_problem(self.header, memoryview(self.head + records))

    def __repr__(self) -> str:
        records = format_count(self.record_count, "record")
        return f"<UnreadBatch of {records} from offset {self.base_offset}, {self.size} bytes>"
