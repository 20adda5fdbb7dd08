# SPDX-License-Identifier: Apache-2.0
"""How many records per second does a reader get from a segment log, beside kafka-python's reader of the same files?"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from kafka.record import MemoryRecords
from kafka.record.default_records import DefaultRecordBatchBuilder

from bench.harness.question import Contender, Figure, Measurement, Question
from bench.parts.segments import FullBatch, lasting_folder
from shmaccum.log.files import LogDirectory, LogReader

PEER = "kafka-python MemoryRecords"

BATCH_COUNT = 1000
BATCH_SIZE = 16384
VALUE = b"x" * 100


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Create a log that is removed at the end of the process."""
    folder = lasting_folder()
    wire, count = _wire()
    with LogDirectory(folder.name) as directory:
        directory.create_topic("flights")
        batch = FullBatch((memoryview(wire),), len(wire), count, -1, -1, -1, 1_700_000_000_000)
        directory.partition("flights", 0).append([batch] * BATCH_COUNT)
    return folder


def _wire() -> tuple[bytes, int]:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, BATCH_SIZE)
    count = 0
    while builder.append(count, 1_700_000_000_000 + count, b"key", VALUE, []) is not None:
        count += 1
    return bytes(builder.build()), count


def _timed(records: Callable[[], Iterator[object]]) -> Callable[[], Measurement]:
    def run() -> Measurement:
        _folder()
        started_s = time.perf_counter()
        count = sum(1 for _ in records())
        return {"records_per_s": count / (time.perf_counter() - started_s)}

    return run


def _ours() -> Iterator[object]:
    return LogReader(_folder().name).partition("flights", 0).records()


def _batches_only() -> Iterator[object]:
    """Yield None for each record: the cost of finding and verifying the batches."""
    for batch in LogReader(_folder().name).partition("flights", 0).batches():
        yield from [None] * batch.record_count


def _kafka_python() -> Iterator[object]:
    (file,) = Path(_folder().name).glob("*/*.log")
    records = MemoryRecords(file.read_bytes()[: BATCH_SIZE * 100])
    while (batch := records.next_batch()) is not None:
        assert batch.validate_crc()
        yield from batch


def contenders() -> list[Contender]:
    """Return shmaccum's reader, its batches without decoding, and the peer."""
    return [
        Contender("LogReader records", _timed(_ours)),
        Contender("LogReader batches, not decoded", _timed(_batches_only)),
        Contender(PEER, _timed(_kafka_python)),
    ]


QUESTION = Question(
    title="records of 100 B read from a log of 16 KiB batches, CRCs verified",
    figures=(Figure("records_per_s", "M records/s", 1e-6, "higher"),),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
)
