# SPDX-License-Identifier: Apache-2.0
"""How many rows per second does Spark read from a segment log, beside a source that returns prebuilt batches?"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from kafka.record.default_records import DefaultRecordBatchBuilder

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.harness.rows import ROW_COUNT, TASK_COUNT, VALUE_SIZE
from bench.parts.segments import FullBatch, lasting_folder
from shmaccum.config import LogSinkOptions
from shmaccum.log.files import LogDirectory

OURS, PEER = "source", "a source that gives prebuilt batches"
COPIES = f"{PEER}, copied"
"""The contender that copies batches: nothing is read or decoded, but every batch has its own memory."""

READ_COUNT = 5 * ROW_COUNT
"""The number of read records. A short job would measure its planning."""
RECORDS_PER_BATCH = 125
"""The number of records in a batch of 14 KB, which results from Kafka's default batch.size."""
RECORDS_PER_LARGE_BATCH = 500
APPENDED_AT_ONCE = 12_500
TIMESTAMP_MS = 1_700_000_000_000


def _batch(record_count: int) -> FullBatch:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for index in range(record_count):
        builder.append(index, TIMESTAMP_MS, b"key-%d" % index, b"x" * VALUE_SIZE, [])
    wire = bytes(builder.build())
    return FullBatch((memoryview(wire),), len(wire), record_count, -1, -1, -1, TIMESTAMP_MS)


@cache
def _folder(records_per_batch: int) -> tempfile.TemporaryDirectory[str]:
    """Create a log that is removed at the end of the process."""
    folder = lasting_folder()
    with LogDirectory(folder.name, LogSinkOptions(partitions=TASK_COUNT)) as directory:
        directory.create_topic("flights")
        for partition in range(TASK_COUNT):
            log = directory.partition("flights", partition)
            for _ in range(READ_COUNT // TASK_COUNT // APPENDED_AT_ONCE):
                log.append([_batch(records_per_batch)] * (APPENDED_AT_ONCE // records_per_batch))
    return folder


def _read(reader: Callable[[], Any]) -> Callable[[], Measurement]:
    def run() -> Measurement:
        frame = reader()
        started_s = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return {"rows_per_s": READ_COUNT / (time.perf_counter() - started_s)}

    return run


def _source(records_per_batch: int) -> Any:
    from bench.parts.spark_session import session

    folder = _folder(records_per_batch).name
    return session().read.format("shmaccum").options(path=folder, subscribe="flights").load()


def _prebuilt(**options: str) -> Any:
    from bench.parts.spark_session import session

    return session().read.format("peer").options(rowCount=str(READ_COUNT), **options).load()


def contenders() -> list[Contender]:
    """Return the source, the peer, and the steps between them."""
    return [
        Contender(OURS, _read(lambda: _source(RECORDS_PER_BATCH))),
        Contender(f"{OURS}, batches of 57 KB", _read(lambda: _source(RECORDS_PER_LARGE_BATCH))),
        Contender(COPIES, _read(lambda: _prebuilt(isCopied="true"))),
        Contender(PEER, _read(_prebuilt)),
    ]


QUESTION = Question(
    title=f"Spark reads {READ_COUNT:,} records of a key and {VALUE_SIZE} B, local[{TASK_COUNT}], from a log on tmpfs",
    figures=(Figure("rows_per_s", "M rows/s", 1e-6, "higher"),),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
    scope="full",
    limit_s=240.0,
    goals=(Goal("Spark source, of a source that gives prebuilt batches", OURS, "rows_per_s", 0.97, is_ratio=True),),
    reason=(
        "The source reads, verifies and decodes each record, which takes about 30 of the 180 ns of a row. The batches "
        "of the peer exist before the measurement. Copying them reaches {a source that gives prebuilt batches, copied}."
    ),
)
