# SPDX-License-Identifier: Apache-2.0
"""Batches from clients are untrusted: they are validated before they are appended (Kafka's LogValidator).

::

    split              length, magic, CRC, attributes, count, producer       of each batch, in the loop
    validate_batches   the records: their count, numbers from 0,             uncompressed or small: in the loop
                       times, and the keys of a compacted topic              otherwise: in a thread, up to a bound

Rules: a header field that follows from the records is checked against them. A batch that a reader could not read is
rejected with Apache Kafka's error. The log sets the largest timestamp and the LogAppendTime bit. If a client's values
differ, the header and its CRC are rewritten. A record may not be further in the future than
message.timestamp.after.max.ms, because look-ups by time and retention would not work on its segment.

Compressed records are decompressed for validation, as in Apache Kafka, and the result is discarded. Small requests are
decompressed in the loop, others in a thread. At most `decompressed_size_max` bytes of a request are in memory at once:
records of a batch beyond that are read piece by piece (`log/files/record_times.py`), up to a bound. A batch beyond that
bound is rejected as too large, and the client then sends smaller batches.
"""

from __future__ import annotations

from typing import NamedTuple

from shmaccum._native import decode_records, records_summary
from shmaccum.common.format.batch_header import (
    CODEC_MASK,
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    changed_header,
    crc_problem,
    read_header,
)
from shmaccum.exceptions import CodecMissingError, CorruptArenaError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.codecs import CODECS, DecompressedTooLargeError, decompress
from shmaccum.log.files.log_batch import LogBatch, LogRecord
from shmaccum.log.files.producer_state import Rejection
from shmaccum.log.files.record_times import streamed_records

NO_TIMESTAMP = -1
OF_A_PRODUCER = CODEC_MASK | LOG_APPEND_TIME | TRANSACTIONAL
"""The attributes that a client may set. Apache Kafka clears LOG_APPEND_TIME, too."""
FORMER_FORMATS, FORMER_SIZE_MIN = (0, 1), 14
"""The formats before Kafka 0.11, and the size of their smallest message."""
ZSTD, ZSTD_VERSION = 4, 7
"""The codec, and the version of Produce that introduced it (KIP-110)."""
AT_ONCE_SIZE_MAX = 1 << 20
"""The most bytes that are decompressed in the loop, which takes a millisecond or two."""
INDEXED_COUNT_MAX = 10_000
"""The most records of a batch in which those without a key are found. librdkafka sends no larger batch by default."""
DECOMPRESSED_SIZE_MIN = 32 << 20
DECOMPRESSED_RATIO = 16


class Rules(NamedTuple):
    """The rules of a topic."""

    version: int
    """The version of Produce."""
    size_max: int
    """max.message.bytes."""
    timestamp_max_ms: int
    """The latest time that a record may have."""
    sets_time: bool
    """Whether the log replaces the time of each batch by the time of its append."""
    needs_keys: bool
    """Whether each record needs a key, because the topic is compacted."""


class Budget:
    """The most decompressed bytes of a request.

    Attributes:
        left: the number of bytes left.
        may_stream: whether a batch beyond the budget is read piece by piece.
    """

    def __init__(self, left: int, *, may_stream: bool = False) -> None:
        self.left = left
        self.may_stream = may_stream

    def take(self, size: int) -> None:
        self.left -= size


def decompressed_size_max(request_size: int) -> int:
    """Return the most decompressed bytes for a request of this size."""
    return max(DECOMPRESSED_SIZE_MIN, DECOMPRESSED_RATIO * request_size)


# --- headers


def split(records: memoryview, rules: Rules) -> list[LogBatch] | Rejection:
    """Split the records of a partition into batches and validate their headers, or return the reason to reject all."""
    batches: list[LogBatch] = []
    position = 0
    while position < len(records):
        if len(records) - position < HEADER_SIZE:
            return Rejection(BrokerError.CORRUPT_MESSAGE, "the data is shorter than a batch header")
        header = read_header(records, position)
        if header.magic in FORMER_FORMATS and header.batch_length >= FORMER_SIZE_MIN:
            return Rejection(
                BrokerError.INVALID_RECORD, f"a batch has format {header.magic}, but only format {MAGIC} is supported"
            )
        view = records[position : position + header.size] if header.problem is None else records[:0]
        problem = header.problem or ("it is cut short" if len(view) < header.size else crc_problem(header, view))
        if problem is not None:
            return Rejection(BrokerError.CORRUPT_MESSAGE, f"a record batch is corrupt: {problem}")
        if header.size > rules.size_max:
            return Rejection(
                BrokerError.MESSAGE_TOO_LARGE, f"a batch has {header.size} bytes, more than {rules.size_max}"
            )
        refusal = _header_problem(header, rules)
        if refusal is not None:
            return refusal
        batches.append(LogBatch(header, view, "", 0))
        position += header.size
    return batches or Rejection(BrokerError.CORRUPT_MESSAGE, "the data has no record batch")


def _header_problem(header: BatchHeader, rules: Rules) -> Rejection | None:
    """Return the reason why a header is not valid for a producer, or None."""
    if header.attributes & CONTROL:
        return Rejection(BrokerError.INVALID_RECORD, "a transaction marker, which only a broker may write")
    if header.attributes & ~OF_A_PRODUCER:
        return Rejection(
            BrokerError.INVALID_RECORD, f"attributes {header.attributes:#x} are not allowed for a producer"
        )
    codec = header.attributes & CODEC_MASK
    if (codec and codec not in CODECS) or (codec == ZSTD and rules.version < ZSTD_VERSION):
        return Rejection(
            BrokerError.UNSUPPORTED_COMPRESSION_TYPE,
            f"codec {codec} in version {rules.version} of Produce: use gzip, snappy or lz4, or zstd from version 7 on",
        )
    if header.record_count < 1 or header.record_count != header.last_offset_delta + 1:
        return Rejection(
            BrokerError.INVALID_RECORD,
            f"{header.record_count} records with a last offset delta of {header.last_offset_delta}",
        )
    has_producer, is_transactional = header.producer_id >= 0, bool(header.attributes & TRANSACTIONAL)
    is_numbered = header.producer_epoch >= 0 and header.base_sequence >= 0
    if header.producer_id < -1 or (has_producer and not is_numbered) or (is_transactional and not has_producer):
        return Rejection(
            BrokerError.INVALID_RECORD,
            f"producer id {header.producer_id} with epoch {header.producer_epoch} and sequence {header.base_sequence}",
        )
    return None


# --- records


def validate_batches(batches: list[LogBatch], rules: Rules, budget: Budget) -> list[LogBatch] | Rejection:
    """Return the validated batches, or the reason to reject all of them.

    Raises:
        DecompressedTooLargeError: the decompressed size exceeds the budget.
    """
    validated: list[LogBatch] = []
    for batch in batches:
        found = _validate(batch, rules, budget)
        if isinstance(found, Rejection):
            return found
        validated.append(found)
    return validated


def _summary(batch: LogBatch, codec: int, records: memoryview, budget: Budget) -> tuple[int, int, bool]:
    """Check the records; return the times of the first and of the latest one, and whether a key is null. If the batch
    exceeds the budget, it is read piece by piece, in the thread."""
    header = batch.header
    try:
        plain = decompress(codec, records, budget.left) if codec else records
    except DecompressedTooLargeError:
        if not budget.may_stream:
            raise
        times_ms, has_null_key = [], False
        for number, record in enumerate(streamed_records(codec, records, header.record_count)):
            if record.offset_delta != number:
                raise ValueError(f"record {number} has offset delta {record.offset_delta}") from None
            times_ms.append(header.base_timestamp_ms + record.time_delta)
            has_null_key |= not record.has_key
        return min(times_ms), max(times_ms), has_null_key
    budget.take(len(plain) if codec else 0)
    return records_summary(plain, header.base_timestamp_ms, header.record_count)


def _validate(batch: LogBatch, rules: Rules, budget: Budget) -> LogBatch | Rejection:
    header = batch.header
    codec, records = header.attributes & CODEC_MASK, batch.view[HEADER_SIZE:]
    try:
        first_ms, last_ms, has_null_key = _summary(batch, codec, records, budget)
    except CodecMissingError as error:
        return Rejection(BrokerError.UNSUPPORTED_COMPRESSION_TYPE, str(error))
    except DecompressedTooLargeError:
        raise
    except (CorruptArenaError, ValueError) as error:
        return Rejection(BrokerError.INVALID_RECORD, f"a record batch is corrupt: {error}")
    if not rules.sets_time and (first_ms < NO_TIMESTAMP or last_ms > rules.timestamp_max_ms):
        wrong_ms = first_ms if first_ms < NO_TIMESTAMP else last_ms
        return Rejection(
            BrokerError.INVALID_TIMESTAMP,
            f"a record has the time {wrong_ms} ms since 1970; allowed are -1 (none) and 0 to "
            f"{rules.timestamp_max_ms} (message.timestamp.after.max.ms ahead of the server's clock)",
        )
    if rules.needs_keys and has_null_key:
        return Rejection(
            BrokerError.INVALID_RECORD,
            "a compacted topic accepts no record without a key: produce it with a key",
            record_indexes=_keyless_records(header, codec, records),
        )
    right = header._replace(attributes=header.attributes & ~LOG_APPEND_TIME, max_timestamp_ms=last_ms)
    if right == header:
        return batch
    content = memoryview(changed_header(header, right) + bytes(records))
    return LogBatch(read_header(content), content, "", 0)


def _keyless_records(header: BatchHeader, codec: int, records: memoryview) -> tuple[int, ...]:
    """Return the indexes of the validated records without a key, or none if the batch is large."""
    if header.record_count > INDEXED_COUNT_MAX:
        return ()
    try:
        plain = decompress(codec, records, AT_ONCE_SIZE_MAX) if codec else records
    except DecompressedTooLargeError:
        return ()
    if len(plain) > AT_ONCE_SIZE_MAX:
        return ()
    found = decode_records(plain, LogRecord, 0, header.base_timestamp_ms, header.record_count, None)
    return tuple(index for index, record in enumerate(found) if record.key is None)
