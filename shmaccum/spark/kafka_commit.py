# SPDX-License-Identifier: Apache-2.0
"""Applies a decided transaction to Kafka as one Kafka transaction, in the process that commits for Spark.

::

    stagingPath                                        Kafka
      .staging/SERIES.7.ATTEMPT/log   ── records ──>   the topics           ┐ one transaction of the
      .transactions/SERIES.7.decided                                        │ transactional id SERIES
                    SERIES.7.applying ── offset 8 ──>  group shmaccum-SERIES┘
                    SERIES.over

Rules
    The transactional id is the series: the id of a query. A commit that starts fences an earlier one, and the broker
    aborts the earlier one's open transaction. So only one commit of a series is active.
    The group's offset is one past the last transaction that Kafka has, or 0 before the first one. It is part of the
    transaction with the records: both are committed, or neither.
    `applying` is written after the group has an offset, and before the first record. So if a commit finds `applying`
    but no offset, the broker has lost the group, and the commit raises an error.

Deaths
    ==================================  ==========================================================================
    death of the commit                 the next commit of the same number
    ==================================  ==========================================================================
    before the decision                 decides
    after the decision                  fences, reads an offset below the number, and applies
    in the transaction of the records   the same: the broker aborts the open transaction for the new commit
    while the transaction is ended      waits for its end, then reads the offset, which shows the outcome
    before `over` is written            reads an offset above the number, and writes `over`
    ==================================  ==========================================================================

View of a reader
    A consumer with ``read_committed`` sees all records of a transaction or none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import final

from shmaccum.common.format.group_offsets import GroupMember, OffsetToCommit
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import InvalidArgumentError, LogError, TransactionNotAppliedError
from shmaccum.log.files import TransactionId, Winner, transactions
from shmaccum.log.files.transaction_applier import Staged, sweep
from shmaccum.log.files.transaction_files import Decision, TransactionFiles
from shmaccum.sender.sinks import split_url
from shmaccum.sender.sinks.kafka.transaction.protocol import TransactionOutcome, TransactionProtocol
from shmaccum.sender.sinks.sink import WireBatch
from shmaccum.spark.kafka_session import KafkaSession, wire_of
from shmaccum.spark.settings import SinkSettings

GROUP_PREFIX = "shmaccum-"
NOTHING = 0
"""The offset of a group before its first transaction."""


def conclude(settings: SinkSettings, transaction: TransactionId, winners: Sequence[Winner]) -> None:
    """Decide for these winners, and return when Kafka has committed their records.

    Idempotent, like `shmaccum.log.files.transactions.conclude`.

    Raises:
        TransactionOverError: the transaction was aborted.
        TransactionNotAppliedError: the staging of a winner is missing, or Kafka did not commit it; the message states
            whether to retry.
    """
    files = TransactionFiles(settings.directory)
    transactions.decide(files, transaction, Decision(tuple(winners)))
    if not transactions.is_concluded(files, transaction):
        _apply(settings, files, transaction)
    sweep(files)


def abort(settings: SinkSettings, transaction: TransactionId) -> None:
    """Abort a transaction, unless it was decided, and delete its staging."""
    files = TransactionFiles(settings.directory)
    if not transactions.abandon(files, transaction):
        return
    files.set_over(transaction, is_aborted=True)
    files.end(transaction)
    sweep(files)


def _apply(settings: SinkSettings, files: TransactionFiles, transaction: TransactionId) -> None:
    decision = files.decision(transaction)
    if decision is None:  # another commit has concluded it meanwhile
        return
    if decision.winners:
        place = split_url(settings.sink or "")[1]
        name = f"{GROUP_PREFIX}{transaction.series}"
        with KafkaSession(place, name, settings.sink_options, settings.sender_options) as session:
            _KafkaCommit(settings, files, transaction, session).run(decision)
    files.set_over(transaction, is_aborted=False)
    files.end(transaction)


@final
class _KafkaCommit:
    """One commit in an open session."""

    def __init__(
        self, settings: SinkSettings, files: TransactionFiles, transaction: TransactionId, session: KafkaSession
    ) -> None:
        self._files = files
        self._transaction = transaction
        self._session = session
        self._patience_s = settings.max_block_ms / 1000
        self._timeout_s = settings.commit_timeout_ms / 1000
        self._protocol = TransactionProtocol(transaction.series, settings.commit_timeout_ms)
        self._member = GroupMember(f"{GROUP_PREFIX}{transaction.series}")
        self._number = transaction.number or 0

    def run(self, decision: Decision) -> None:
        """Applies the decision, unless Kafka already has it.

        Raises:
            TransactionNotAppliedError: see `conclude`.
        """
        self._session.sink.take_part(self._protocol)
        self._protocol.initialize()
        self._wait(lambda: self._protocol.is_ready, "the transactional id")
        next_number = self._next_number()
        if next_number is not None and next_number > self._number:
            return
        staged = Staged(self._files, self._transaction, decision)
        staged.check(is_read=False)
        places = [place for place in staged.places() if staged.has_batches(place)]
        self._begin(next_number, places[0])
        self._write(staged, places)

    def _next_number(self) -> int | None:
        """Returns the number in the group's offset, or None if the broker has no offset of the group."""
        asked = self._session.sink.group_offsets(self._member.group)
        found: list[Mapping[TopicPartition, OffsetToCommit]] = []

        def is_found() -> bool:
            offsets = asked.poll()
            if offsets is not None:
                found.append(offsets)
            return bool(found)

        self._wait(is_found, "the group's offset")
        return max((offset.offset for offset in found[0].values()), default=None)

    def _begin(self, next_number: int | None, place: TopicPartition) -> None:
        """Makes sure that a successor can determine whether this transaction is applied."""
        if next_number is None:
            if self._files.has_begun(self._transaction):
                raise TransactionNotAppliedError(self._lost_group_message(place))
            self._protocol.begin()  # this transaction has only an offset, and no records
            self._end(place, NOTHING)
            self._wait(lambda: self._protocol.is_ready, "the producer's epoch")
        self._files.take(self._transaction)

    def _lost_group_message(self, place: TopicPartition) -> str:
        applying = self._files.begun_path(self._transaction)
        return (
            f"{self._session.sink.name} has lost the group {self._member.group}, so it is unknown whether it has "
            f"transaction {self._transaction}: look for its records in {place.topic}. If they are missing, rename "
            f"{applying} to end in .decided, and start the query again. If they exist, delete {applying} and "
            "start the query with a new checkpoint, after these records"
        )

    def _write(self, staged: Staged, places: Sequence[TopicPartition]) -> None:
        """Writes the transaction with the records."""
        self._protocol.begin()
        try:
            batches = {place: self._batches_of(staged, place) for place in places}
            self._session.deliver(batches, lambda: self._protocol.failure, self._timeout_s)
        except (LogError, OSError) as error:  # a successor deletes the staging
            self._abort()
            raise TransactionNotAppliedError(
                f"this commit of transaction {self._transaction} was aborted: {error}"
            ) from None
        self._end(places[0], self._number + 1)

    def _abort(self) -> None:
        """Aborts, so that readers do not wait. If the abort does not reach the broker, the transaction times out
        there.
        """
        with contextlib.suppress(TransactionNotAppliedError, InvalidArgumentError):
            self._protocol.abort()
            self._session.wait(lambda: self._protocol.outcome is not None, "the abort", self._patience_s)

    def _batches_of(self, staged: Staged, place: TopicPartition) -> Callable[[int], Iterator[WireBatch]]:
        """Returns a function that yields the batches of a partition, given its index, with sequences from 0."""

        def batches(index: int) -> Iterator[WireBatch]:
            sequence = 0
            with closing(staged.batches(place)) as found:
                for batch in found:
                    yield wire_of(batch, place, index, self._protocol.producer, sequence)
                    sequence += batch.record_count

        return batches

    def _end(self, place: TopicPartition, next_number: int) -> None:
        """Commits the open transaction with the offset."""
        self._protocol.add_offsets(self._member, {place: OffsetToCommit(next_number, str(self._transaction))})
        self._protocol.commit()
        self._wait(lambda: self._protocol.outcome is not None, "the end of the transaction")
        if self._protocol.outcome is not TransactionOutcome.COMMITTED:
            raise self._failed()

    def _wait(self, is_over: Callable[[], bool], what: str) -> None:
        self._session.wait(lambda: is_over() or self._protocol.failure is not None, what, self._patience_s)
        if self._protocol.failure is not None:
            raise self._failed()

    def _failed(self) -> TransactionNotAppliedError:
        failure = self._protocol.failure
        why = "it was aborted" if failure is None else failure.message
        outcome = (
            "may or may not be committed; retry the commit to find out"
            if self._protocol.outcome is TransactionOutcome.UNKNOWN
            else "is not committed; retry the commit"
        )
        return TransactionNotAppliedError(f"transaction {self._transaction} {outcome}: {why}")
