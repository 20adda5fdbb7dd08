# SPDX-License-Identifier: Apache-2.0
"""The sink for Spark: at-least-once, like Spark's own Kafka sink (`exactly_once` has the other guarantee).

A writer is created on the driver, pickled to every task and, for a batch, also to the commit on the driver. So it holds
only plain data, and a task opens the arena and the producer itself. A task returns only when its records are delivered:
if a node is lost after that, it loses nothing that Spark considers written.

A job's commit does nothing, because delivered records can already be read. Its abort also does nothing; Spark calls it
even after a failed commit, and while cancelled tasks still run. Delivered records stay, and a retried task delivers its
rows again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.producer.deliveries import OffsetRange
from shmaccum.spark.columns import sink_columns
from shmaccum.spark.settings import SinkSettings
from shmaccum.spark.task_writer import TaskWriter


def _stream_writer_bases() -> tuple[Any, ...]:
    """Return the base classes of a stream writer that receives Arrow record batches.

    Spark 4.0 has no class for it, but passes Arrow to any writer that is a `DataSourceArrowWriter`. Another writer
    would receive rows, whose times have lost their time zone.
    """
    found = getattr(datasource, "DataSourceStreamArrowWriter", None)
    return (DataSourceArrowWriter, datasource.DataSourceStreamWriter) if found is None else (found,)


StreamWriterBase: Any = type("StreamWriterBase", _stream_writer_bases(), {})
"""The base of stream writers. It receives Arrow record batches in every version of Spark."""


@dataclass(frozen=True)
class TaskCommit(WriterCommitMessage):
    """A message from a task to the driver: its attempt, and the offsets of its delivered records."""

    partition_id: int
    attempt_number: int
    task_attempt_id: int
    record_count: int
    offsets: Mapping[TopicPartition, OffsetRange]


@dataclass(frozen=True)
class SinkPlan:
    """Everything that a task needs.

    Attributes:
        settings: the user's settings.
        columns: the columns of the frame that become records.
    """

    settings: SinkSettings
    columns: Sequence[str]

    @classmethod
    def of(cls, settings: SinkSettings, schema: StructType) -> SinkPlan:
        """Returns the plan for a frame.

        Raises:
            InvalidArgumentError: a column is missing or of a wrong type.
        """
        return cls(settings, sink_columns(schema, settings.topic))

    def write(self, batches: Iterable[Any]) -> TaskCommit:
        """Delivers the rows of Arrow record batches. Called in a task."""
        with TaskWriter(self.settings, self.columns) as task:
            for batch in batches:
                task.append(batch)
            delivered = task.finish()
        context = TaskContext.get()
        assert context is not None, "a sink writes in tasks"
        return TaskCommit(context.partitionId(), context.attemptNumber(), context.taskAttemptId(), *delivered)


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
    """The writer of a query (``frame.writeStream``). Spark creates one for each micro-batch, and one to commit it."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        """Delivers the rows of a task."""
        return self.plan.write(iterator)

    def commit(self, messages: Sequence[TaskCommit | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Does nothing: every task has delivered its records."""

    def abort(self, messages: Sequence[TaskCommit | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Does nothing: delivered records stay."""
