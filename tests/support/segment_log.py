# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of the segment log: record batches by kafka-python's encoder, and logs made of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka.record.default_records import DefaultRecordBatchBuilder

from shmaccum.common.format.batch_header import HEADER_SIZE, read_header
from shmaccum.config import LogSinkOptions
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.partition_log import Outcome
from shmaccum.log.files.producer_state import Rejection
from shmaccum.log.files.reader import IsolationLevel, LogReader

TOPIC = "flights"
START_MS = 1_700_000_000_000
PRODUCER_ID = 4711
A, B = 71, 72
"""Two transactional producers."""


@dataclass(frozen=True)
class MadeBatch:
    """Wire bytes with the interface of `Appendable`, in any number of pieces."""

    wire: bytes
    piece_count: int = 1

    @property
    def buffers(self) -> tuple[memoryview, ...]:
        view = memoryview(self.wire)
        step = max((len(view) - HEADER_SIZE) // self.piece_count, 1)
        ends = [HEADER_SIZE + step * piece for piece in range(1, self.piece_count)]
        return tuple(view[start:end] for start, end in zip([0, *ends], [*ends, len(view)], strict=True))

    @property
    def size(self) -> int:
        return len(self.wire)

    @property
    def record_count(self) -> int:
        return read_header(self.wire).record_count

    @property
    def producer_id(self) -> int:
        return read_header(self.wire).producer_id

    @property
    def producer_epoch(self) -> int:
        return read_header(self.wire).producer_epoch

    @property
    def base_sequence(self) -> int:
        return read_header(self.wire).base_sequence

    @property
    def max_timestamp_ms(self) -> int:
        return read_header(self.wire).max_timestamp_ms


def make_batch(
    values: Sequence[bytes | None],
    *,
    timestamp_ms: int = START_MS,
    producer: tuple[int, int, int] = (-1, -1, -1),
    codec: int = 0,
    piece_count: int = 1,
    headers: Sequence[tuple[str, bytes | None]] = (),
    key: bytes | None = None,
) -> MadeBatch:
    """Return a batch of these values, one millisecond apart.

    Args:
        producer: producer id, epoch, base sequence.
        key: the key of every record.
    """
    builder = DefaultRecordBatchBuilder(2, codec, False, *producer, 1 << 30)
    for index, value in enumerate(values):
        builder.append(index, timestamp_ms + index, key, value, list(headers))
    return MadeBatch(bytes(builder.build()), piece_count)


def batch_of(producer_id: int, sequence: int, *values: bytes, epoch: int = 0) -> MadeBatch:
    """Return a batch of a transaction."""
    builder = DefaultRecordBatchBuilder(2, 0, True, producer_id, epoch, sequence, 1 << 20)
    for index, value in enumerate(values):
        builder.append(index, START_MS + index, None, value, [])
    return MadeBatch(bytes(builder.build()))


def make_batches(
    count: int, *, record_count: int = 3, value_size: int = 100, first: int = 0, start_ms: int = START_MS
) -> list[MadeBatch]:
    """Return batches of one idempotent producer, in sequence. Each record has a unique value.

    Args:
        start_ms: the timestamp of the producer's first record.
    """
    numbers = itertools.count(first * record_count)
    return [
        make_batch(
            [b"%08d" % next(numbers) + b"." * value_size for _ in range(record_count)],
            timestamp_ms=start_ms + 1000 * index,
            producer=(PRODUCER_ID, 0, index * record_count),
        )
        for index in range(first, first + count)
    ]


def open_log(path: Path, **options: Any) -> LogDirectory:
    """Return a log directory with one topic."""
    directory = LogDirectory(path, LogSinkOptions.parse(options))
    try:
        directory.create_topic(TOPIC)
    except BaseException:
        directory.close()
        raise
    return directory


def partition_folder(path: Path) -> Path:
    """Return the folder of partition 0 of the topic."""
    return path / f"{TOPIC}-0"


def log_files(path: Path, suffix: str = ".log") -> list[Path]:
    """Return the files of partition 0, oldest first."""
    return sorted(partition_folder(path).glob(f"*{suffix}"))


def offsets(outcomes: Sequence[Outcome]) -> list[int]:
    """Return the offsets of batches that were all accepted."""
    refused = [outcome for outcome in outcomes if isinstance(outcome, Rejection)]
    assert refused == []
    return [outcome for outcome in outcomes if isinstance(outcome, int)]


def wire_in_files(path: Path) -> bytes:
    """Return all batches of partition 0, as the segments contain them."""
    return b"".join(file.read_bytes() for file in log_files(path))


def without_prefixes(batches: Sequence[MadeBatch]) -> bytes:
    """Return the bytes of batches that an append does not change, which are all but the first 16 of each."""
    return b"".join(batch.wire[16:] for batch in batches)


def values_of(path: Path, topic: str = TOPIC, isolation_level: IsolationLevel = "read_committed") -> list[bytes]:
    """Return the values that a reader gets, by partition and offset. By default, it reads only committed records. If
    the topic is missing, return an empty list.
    """
    reader = LogReader(path, isolation_level=isolation_level)
    numbers = reader.partitions(topic) if topic in reader.topics() else []
    return [record.value or b"" for number in numbers for record in reader.partition(topic, number).records()]
