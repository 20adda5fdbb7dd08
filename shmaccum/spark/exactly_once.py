# SPDX-License-Identifier: Apache-2.0
"""The sink with ``deliveryGuarantee=exactly_once``: tasks stage records, and the commit decides.

Records are staged in the log directory itself or, for a Kafka cluster, in ``stagingPath``. `kafka_commit` applies them
to Kafka.

A transaction (`shmaccum.log.files.transactions`) has a name that survives a restart of Spark. For a micro-batch, it is
the query's id, which is in its checkpoint, with the batch id. For a batch job, it is a uuid that is created when the
job is planned, or it comes from the user's options. Spark runs a micro-batch again with the same id until its commit
has returned. The second commit changes nothing, and the records that its tasks staged are deleted.

Only Spark knows which attempt won: it passes one message for each partition to the commit. An attempt is not informed
that it lost. It may still be running when the transaction is over, and then finds its folder deleted.

A commit runs in its own process on the driver, and has only the messages and what they contain.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from shmaccum.exceptions import InvalidArgumentError, TransactionOverError
from shmaccum.log.files import TransactionId, Winner, transactions
from shmaccum.spark.settings import SinkSettings
from shmaccum.spark.staged_task import remove_arenas, sink_options, stage
from shmaccum.spark.writers import SinkPlan, StreamWriterBase

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
"""Local properties that Spark sets for the tasks of a micro-batch."""


@dataclass(frozen=True)
class StagedCommit(WriterCommitMessage):
    """A message from a task to the driver: its attempt, its transaction, and its staged records.

    Attributes:
        winner: the staged attempt. None if it had no rows, or if the transaction was over when it began.
    """

    partition_id: int
    attempt_number: int
    task_attempt_id: int
    transaction: TransactionId
    winner: Winner | None

    @property
    def record_count(self) -> int:
        """The number of staged records."""
        return 0 if self.winner is None else self.winner.record_count


def _stage(plan: SinkPlan, transaction: TransactionId, batches: Iterator[Any]) -> StagedCommit:
    """Stage the rows of a task. If the transaction is already over and Spark runs it again, stage nothing."""
    context = TaskContext.get()
    assert context is not None, "a sink writes in tasks"
    attempt_id = context.taskAttemptId()
    winner = None
    try:
        winner = stage(plan.settings, plan.columns, transaction, f"{context.partitionId()}-{attempt_id}", batches)
    except TransactionOverError as error:
        if error.is_aborted:
            raise
    return StagedCommit(context.partitionId(), context.attemptNumber(), attempt_id, transaction, winner)


def _conclude(settings: SinkSettings, transaction: TransactionId, messages: Sequence[StagedCommit | None]) -> None:
    """Commit: the attempts in Spark's messages are the winners, in the order of their partitions."""
    sorted_messages = sorted(
        (message for message in messages if message is not None), key=lambda each: each.partition_id
    )
    winners = [message.winner for message in sorted_messages if message.winner is not None]
    remove_arenas(settings.directory, transaction)
    if settings.is_for_kafka:
        kafka_commit().conclude(settings, transaction, winners)
        return
    transactions.conclude(
        settings.directory, transaction, winners, sink_options(settings), timeout_s=settings.max_block_ms / 1000
    )


def _abort(settings: SinkSettings, transaction: TransactionId) -> None:
    remove_arenas(settings.directory, transaction)
    if settings.is_for_kafka:
        kafka_commit().abort(settings, transaction)
    else:
        transactions.abort(settings.directory, transaction)


def kafka_commit() -> ModuleType:
    """Import the module that commits to Kafka. It needs kafka-python, which a query that writes a log does not."""
    from shmaccum.spark import kafka_commit as module

    return module


class ExactlyOnceBatchWriter(DataSourceArrowWriter):
    """The writer of a batch job. Spark pickles it for the tasks and the commit, so all have the same transaction."""

    def __init__(self, plan: SinkPlan) -> None:
        self.plan = plan
        self.transaction = plan.settings.transaction or TransactionId(f"job-{uuid.uuid4().hex}")

    def write(self, iterator: Iterator[Any]) -> StagedCommit:
        """Stages the rows of a task."""
        return _stage(self.plan, self.transaction, iterator)

    def commit(self, messages: Sequence[StagedCommit | None]) -> None:
        """Applies the staged records to the log."""
        _conclude(self.plan.settings, self.transaction, messages)

    def abort(self, messages: Sequence[StagedCommit | None]) -> None:  # noqa: ARG002
        """Deletes the staged records, unless the commit was decided. Spark also calls this after a failed commit."""
        _abort(self.plan.settings, self.transaction)


class ExactlyOnceStreamWriter(StreamWriterBase):
    """The writer of a query. Spark creates one for each micro-batch, and another one to commit it."""

    def __init__(self, plan: SinkPlan) -> None:
        if plan.settings.transaction is not None:
            raise InvalidArgumentError(
                "transactionSeries and transactionNumber are for foreachBatch: a stream has its query's id and batch id"
            )
        self.plan = plan

    def write(self, iterator: Iterator[Any]) -> StagedCommit:
        """Stages the rows of a task."""
        return _stage(self.plan, _transaction_of_task(), iterator)

    def commit(self, messages: Sequence[StagedCommit | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Applies the staged records to the log, unless an earlier commit did."""
        if (transaction := _transaction_of(messages, batchId)) is not None:
            _conclude(self.plan.settings, transaction, messages)

    def abort(self, messages: Sequence[StagedCommit | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Deletes the staged records, unless the commit was decided.

        If no task has ended, no message names the query. Then the next commit of that query deletes the records.
        """
        if (transaction := _transaction_of(messages, batchId)) is not None:
            _abort(self.plan.settings, transaction)


def _transaction_of_task() -> TransactionId:
    context = TaskContext.get()
    assert context is not None, "a sink writes in tasks"
    query_id, batch_id = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
    if query_id is None or batch_id is None:
        raise InvalidArgumentError(
            f"Spark has not set the query and batch of this task ({QUERY_ID}, {BATCH_ID}), which exactly_once needs: "
            "use foreachBatch with transactionSeries and transactionNumber"
        )
    return TransactionId(query_id, int(batch_id))


def _transaction_of(messages: Sequence[StagedCommit | None], batch_id: int) -> TransactionId | None:
    """Return the transaction in the messages, or None if no task has ended."""
    known = next((message.transaction for message in messages if message is not None), None)
    return None if known is None else known._replace(number=batch_id)
