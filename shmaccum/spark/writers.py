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
    """The base classes of a stream's writer that takes record batches of Arrow, as the writer of a batch job does.

    Spark 4.0 has no class for it, but hands Arrow to each writer that is a `DataSourceArrowWriter`. Another writer
    would get rows, whose times have lost their time zone.
    """
    found = getattr(datasource, "DataSourceStreamArrowWriter", None)
    return (DataSourceArrowWriter, datasource.DataSourceStreamWriter) if found is None else (found,)


StreamWriterBase: Any = type("StreamWriterBase", _stream_writer_bases(), {})
"""The writer of a stream gets record batches of Arrow, whatever the version of Spark is."""


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
    """

    settings: SinkSettings
    columns: Sequence[str]

    @classmethod
    def of(cls, settings: SinkSettings, schema: StructType) -> SinkPlan:
        """The plan for a frame.

        Raises:
            InvalidArgumentError: a column is missing or of a wrong type.
        """
        return cls(settings, sink_columns(schema, settings.topic))

    def write(self, batches: Iterable[Any]) -> TaskCommit:
        """Delivers the rows of Arrow record batches; runs in a task."""
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
    """The writer of a query (``frame.writeStream``); Spark makes one for each micro-batch, and one to commit it."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan

    def write(self, iterator: Iterator[Any]) -> TaskCommit:
        """Delivers the rows of a task."""
        return self.plan.write(iterator)

    def commit(self, messages: Sequence[TaskCommit | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Does nothing: every task has delivered its records."""

    def abort(self, messages: Sequence[TaskCommit | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Does nothing: delivered records stay."""
