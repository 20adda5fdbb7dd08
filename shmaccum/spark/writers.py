# SPDX-License-Identifier: Apache-2.0
"""The sink, as Spark calls it: at-least-once, like Spark's own sink for Kafka (`exactly_once` has the other one).

A writer is made on the driver, pickled to every task, and, for a batch, back to the driver's commit. So it holds plain
data alone; a task opens the arena and the producer for itself. A task returns only when its own records are delivered:
a node that is lost after the task has ended then takes nothing with it that Spark believes to be written.

A job's commit has nothing to do, because delivered records can be read already. Nor has its abort, which Spark also
calls after a commit that failed, and while cancelled tasks still run. Delivered records stay, and a task that is tried
again delivers its rows once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyspark.sql.datasource
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from shmaccum.format.topic_partition import TopicPartition
from shmaccum.producer.deliveries import OffsetRange
from shmaccum.spark.columns import arrow_schema, sink_columns
from shmaccum.spark.settings import SinkSettings
from shmaccum.spark.task_writer import TaskWriter

ROWS_PER_BATCH = 1000
HAS_ARROW_STREAMS = hasattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter")
"""Since 4.1 Spark hands record batches of Arrow to the writer of a stream, before that rows."""
StreamWriterBase: Any = getattr(pyspark.sql.datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """The message of a task to the driver: its attempt, and the offsets of the records that it has delivered."""

    partition_id: int
    attempt_number: int
    task_attempt_id: int
    record_count: int
    offsets: Mapping[TopicPartition, OffsetRange]


@dataclass(frozen=True)
class SinkPlan:
    """Everything a task needs.

    Attributes:
        settings: those of the user.
        columns: the columns of the frame that become records.
        schema: of the frame.
    """

    settings: SinkSettings
    columns: Sequence[str]
    schema: StructType

    @classmethod
    def of(cls, settings: SinkSettings, schema: StructType) -> SinkPlan:
        """The plan for a frame.

        Raises:
            InvalidArgumentError: a column is missing or of a wrong type.
        """
        return cls(settings, sink_columns(schema, settings.topic), schema)

    def write(self, batches: Iterable[Any]) -> TaskCommit:
        """Delivers the rows of Arrow record batches; runs in a task."""
        with TaskWriter(self.settings, self.columns) as task:
            for batch in batches:
                task.append(batch)
            delivered = task.finish()
        context = TaskContext.get()
        assert context is not None, "a sink writes in tasks"
        return TaskCommit(context.partitionId(), context.attemptNumber(), context.taskAttemptId(), *delivered)

    def write_rows(self, rows: Iterator[Any]) -> TaskCommit:
        """The same for Spark's rows, a few times as slow."""
        return self.write(self.arrow_batches(rows))

    def arrow_batches(self, rows: Iterator[Any]) -> Iterator[Any]:
        """Spark's rows as record batches of Arrow."""
        import pyarrow as pa

        schema = arrow_schema(self.schema)
        while chunk := [row.asDict(recursive=True) for row in islice(rows, ROWS_PER_BATCH)]:
            yield pa.RecordBatch.from_pylist(chunk, schema)


class BatchWriter(DataSourceArrowWriter):
    """The writer of a batch job (``frame.write``)."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        """Delivers the rows of a task."""
        return self.plan.write(iterator)

    def commit(self, messages: Sequence[TaskCommit | None]) -> None:
        """Does nothing: every task has delivered its records."""

    def abort(self, messages: Sequence[TaskCommit | None]) -> None:
        """Does nothing: delivered records stay."""


class StreamWriter(StreamWriterBase):
    """The writer of a query (``frame.writeStream``); Spark makes one for each micro-batch, and one to commit it."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        """Delivers the rows of a task: Arrow's record batches, or, before Spark 4.1, rows."""
        return self.plan.write(iterator) if HAS_ARROW_STREAMS else self.plan.write_rows(iterator)

    def commit(self, messages: Sequence[TaskCommit | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Does nothing: every task has delivered its records."""

    def abort(self, messages: Sequence[TaskCommit | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Does nothing: delivered records stay."""
