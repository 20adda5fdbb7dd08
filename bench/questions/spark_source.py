# SPDX-License-Identifier: Apache-2.0
"""How many rows per second does Spark read from a segment log, beside a source that gives batches it has already?"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from kafka.record.default_records import DefaultRecordBatchBuilder

from bench.harness.question import Contender, Figure, Measurement, Question
from bench.rows import ROW_COUNT, TASK_COUNT, VALUE_SIZE
from bench.segments import FullBatch, lasting_folder
from shmaccum.config import LogSinkOptions
from shmaccum.segment_log import LogDirectory

PEER = "a source that gives prebuilt batches"

RECORDS_PER_BATCH = 125
TIMESTAMP_MS = 1_700_000_000_000


def _batch() -> FullBatch:
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 20)
    for index in range(RECORDS_PER_BATCH):
        builder.append(index, TIMESTAMP_MS, b"key-%d" % index, b"x" * VALUE_SIZE, [])
    wire = bytes(builder.build())
    return FullBatch((memoryview(wire),), len(wire), RECORDS_PER_BATCH, -1, -1, -1, TIMESTAMP_MS)


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """A log that is gone with the process."""
    folder = lasting_folder()
    with LogDirectory(folder.name, LogSinkOptions(partitions=TASK_COUNT)) as directory:
        directory.create_topic("flights")
        for partition in range(TASK_COUNT):
            log = directory.partition("flights", partition)
            for _ in range(ROW_COUNT // TASK_COUNT // RECORDS_PER_BATCH // 100):
                log.append([_batch()] * 100)
    return folder


def _read(reader: Callable[[], Any]) -> Callable[[], Measurement]:
    def run() -> Measurement:
        frame = reader()
        started_s = time.perf_counter()
        frame.write.format("noop").mode("overwrite").save()
        return {"rows_per_s": ROW_COUNT / (time.perf_counter() - started_s)}

    return run


def _source() -> Any:
    from bench.spark_session import session

    return session().read.format("shmaccum").options(path=_folder().name, subscribe="flights").load()


def _prebuilt() -> Any:
    from bench.spark_session import session

    return session().read.format("peer").load()


def contenders() -> list[Contender]:
    """The source, and the peer."""
    return [
        Contender("source", _read(_source)),
        Contender(PEER, _read(_prebuilt)),
    ]


QUESTION = Question(
    title=f"Spark reads {ROW_COUNT:,} records of a key and {VALUE_SIZE} B, local[{TASK_COUNT}], from a log on tmpfs",
    figures=(Figure("rows_per_s", "M rows/s", 1e-6, "higher"),),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
    scope="full",
)
