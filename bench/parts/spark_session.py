# SPDX-License-Identifier: Apache-2.0
"""Parts of questions about Spark: a session, and peers that do only the work that Spark requires."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

from bench.harness.rows import ROW_COUNT, ROWS_PER_RECORD_BATCH, TASK_COUNT, VALUE_SIZE
from setup import ROOT
from shmaccum.spark.columns import source_schema


class DroppingWriter(DataSourceArrowWriter):
    """Discards Arrow batches."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Run one task."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


class PrebuiltReader(DataSourceReader):
    """Returns one record batch repeatedly.

    Args:
        row_count: the number of rows of all partitions together.
        is_copied: copy the batch each time. A batch that is read also has its own memory.
    """

    def __init__(self, row_count: int, *, is_copied: bool) -> None:
        self._row_count = row_count
        self._is_copied = is_copied

    def partitions(self) -> list[InputPartition]:
        """Return as many partitions as the log has."""
        return [InputPartition(number) for number in range(TASK_COUNT)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Run one task."""
        count = ROWS_PER_RECORD_BATCH
        numbers = list(range(count))
        columns = [
            [b"key-%d" % (number % 1000) for number in numbers],
            [b"x" * VALUE_SIZE] * count,
            ["flights"] * count,
            [partition.value] * count,
            numbers,
            numbers,
            [0] * count,
        ]
        schema = to_arrow_schema(source_schema(has_headers=False), timezone="UTC")
        arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        for _ in range(self._row_count // TASK_COUNT // count):
            yield _copied(batch) if self._is_copied else batch


def _copied(batch: Any) -> Any:
    """Copy a record batch into new buffers."""
    arrays = []
    for column in batch.columns:
        buffers = [buffer and pa.py_buffer(buffer.to_pybytes()) for buffer in column.buffers()]
        arrays.append(pa.Array.from_buffers(column.type, len(column), buffers, column.null_count))
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


class PeerSource(DataSource):
    """The source and the sink ``format("peer")``. The source has the options ``isCopied`` and ``rowCount``."""

    @classmethod
    def name(cls) -> str:
        """Return the argument of ``format(...)``."""
        return "peer"

    def schema(self) -> Any:
        """Return the schema of the Kafka connector."""
        return source_schema(has_headers=False)

    def reader(self, schema: Any) -> PrebuiltReader:  # noqa: ARG002 - Spark's interface
        """Return the reader of the source."""
        return PrebuiltReader(int(self.options["rowCount"]), is_copied="isCopied" in self.options)

    def writer(self, schema: Any, overwrite: bool) -> DroppingWriter:  # noqa: ARG002 - Spark's interface
        """Return the writer of the sink."""
        return DroppingWriter()


@cache
def rows(count: int = ROW_COUNT, times: int = 1) -> Any:
    """Return a frame of a key and a value of `VALUE_SIZE` bytes, cached in Spark's memory.

    Args:
        count: the number of cached rows.
        times: the number of times that the frame has each of them.
    """
    if times > 1:
        return rows(count).selectExpr("key", "value", f"explode(sequence(1, {times})) number").drop("number")
    columns = ("concat('key-', id % 1000) key", f"cast(repeat('x', {VALUE_SIZE}) as binary) value")
    frame = session().range(count, numPartitions=TASK_COUNT).selectExpr(*columns).cache()
    frame.count()
    return frame


def connector_jars() -> list[Path]:
    """Return the jars of Spark's own Kafka connector, or an empty list if they were not fetched."""
    from tests.spark.connector_jars import directory

    return sorted(directory().glob("*.jar"))


@cache
def session() -> Any:
    """Return a session with ``local[2]`` in which shmaccum and the peers are registered."""
    import shmaccum.spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master(f"local[{TASK_COUNT}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.jars", ",".join(map(str, connector_jars())))
    found = builder.config("spark.ui.showConsoleProgress", "false").config("spark.driver.memory", "2g").getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    found.dataSource.register(PeerSource)
    shmaccum.spark.register(found)
    return found
