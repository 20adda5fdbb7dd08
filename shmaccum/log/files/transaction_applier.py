# SPDX-License-Identifier: Apache-2.0
"""Apply decided transactions. Only the writer of a log directory does this.

A writer applies them when it opens a directory, and then periodically. So if the process that decided dies, the next
writer applies the decision before anything else is appended to the log.

Each transaction gets its own producer id, and its records get sequences from 0 on in each partition. So the log itself
shows the progress of an interrupted application: a batch is appended whole or not at all, and the producers' state
has the last sequence. Nothing is sent again, so the number of batches that the state remembers does not matter.

While a transaction is partly applied, retention deletes nothing, because the records in the log show the progress.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from shmaccum.common.format.batch_header import HEADER_SIZE, sealed_header
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import format_count
from shmaccum.config import LogSinkOptions
from shmaccum.exceptions import LogError, TransactionNotAppliedError
from shmaccum.log.files.file_names import LOCK_FILE
from shmaccum.log.files.lock_file import is_locked
from shmaccum.log.files.log_batch import LogBatch
from shmaccum.log.files.partition_log import PartitionLog
from shmaccum.log.files.producer_state import SEQUENCE_MASK, Rejection
from shmaccum.log.files.reader import LogReader, PartitionReader
from shmaccum.log.files.transaction_files import (
    LOG_FOLDER,
    Decision,
    StagedFolder,
    TransactionFiles,
    TransactionId,
    Winner,
    age_s,
)

RUN_SIZE_MAX = 8 << 20
RUN_COUNT_MAX = 256
STAGING_KEPT_S = 7 * 86400.0
"""The staging of a transaction is deleted after this time if no process decides it (Kafka's
transactional.id.expiration.ms)."""
SINGLES_KEPT_S = 3600.0
"""A directory remembers for this time that a transaction without a series is over, to inform a late attempt. Its
staging is deleted, so no process can decide it again."""
REMOVE_TRIES = 3


class WrittenLog(Protocol):
    """The part of an open `LogDirectory` that is needed here. `LogDirectory` imports this module, so this module cannot
    import it."""

    path: str
    options: LogSinkOptions
    findings: list[str]

    def topics(self) -> list[str]: ...

    def partition_count(self, topic: str) -> int: ...

    def create_topic(self, topic: str, partition_count: int) -> object: ...

    def partition(self, topic: str, partition: int) -> PartitionLog: ...

    def new_producer_id(self) -> int: ...

    def sync(self) -> None: ...


# --- the staged records of the winners


class Staged:
    """The staged logs of a decision's winners.

    Args:
        files: the transaction files of the directory.
        transaction: its id.
        decision: the decision that names the winners.
    """

    def __init__(self, files: TransactionFiles, transaction: TransactionId, decision: Decision) -> None:
        self._paths = [files.staged_log(transaction, winner.attempt) for winner in decision.winners]
        self._winners = decision.winners

    @cached_property
    def _partitions(self) -> list[dict[TopicPartition, PartitionReader]]:
        """The partitions of each winner."""
        return [_partitions(path) for path in self._paths]

    def places(self) -> list[TopicPartition]:
        """Every partition that has a folder, sorted.

        Raises:
            LogError: if a log does not exist.
        """
        return sorted({place for partitions in self._partitions for place in partitions})

    def has_batches(self, place: TopicPartition) -> bool:
        """True if a winner has records of a partition."""
        with closing(self.batches(place)) as batches:
            return next(batches, None) is not None

    def batches(self, place: TopicPartition) -> Generator[LogBatch, None, None]:
        """All batches of a partition, one winner after the other.

        Raises:
            LogError: if a log does not exist, or is damaged.
        """
        for partitions in self._partitions:
            if place in partitions:
                yield from partitions[place].batches()

    def check(self, *, is_read: bool) -> None:
        """Check that the staged logs have all records of the winners.

        Args:
            is_read: If True, read every batch. If False, only read the last batches of each partition.

        Raises:
            TransactionNotAppliedError: if records are missing or cannot be read.
        """
        totals: Counter[TopicPartition] = Counter()
        for path, winner in zip(self._paths, self._winners, strict=True):
            counts = _counts(path, winner, is_read=is_read)
            if counts.total() != winner.record_count:
                raise TransactionNotAppliedError(
                    f"attempt {winner.attempt} staged {format_count(winner.record_count, 'record')}, but {path} has "
                    f"{counts.total():,}"
                )
            totals += counts
        for place, total in totals.items():
            if total > SEQUENCE_MASK:
                raise TransactionNotAppliedError(
                    f"a transaction can have {SEQUENCE_MASK} records of a partition, but this one has {total} of "
                    f"{place}: write them in several jobs"
                )


def _partitions(path: str) -> dict[TopicPartition, PartitionReader]:
    reader = LogReader(path)
    return {place: PartitionReader(reader, place) for place in reader.topic_partitions()}


def _counts(path: str, winner: Winner, *, is_read: bool) -> Counter[TopicPartition]:
    """The number of records of each partition."""
    try:
        return Counter({place: _count(each, is_read=is_read) for place, each in _partitions(path).items()})
    except (LogError, OSError) as error:
        raise TransactionNotAppliedError(
            f"the records that attempt {winner.attempt} staged cannot be read: {error}"
        ) from None


def _count(partition: PartitionReader, *, is_read: bool) -> int:
    return sum(batch.record_count for batch in partition.batches()) if is_read else partition.log_end_offset


@dataclass(frozen=True)
class RestampedBatch:
    """A staged batch with the producer id and the sequences of its transaction. Its records are not copied."""

    batch: LogBatch
    producer_id: int
    base_sequence: int
    producer_epoch: int = 0

    @property
    def buffers(self) -> tuple[memoryview, ...]:
        """The new header, and the records."""
        records = self.batch.view[HEADER_SIZE:]
        stamped = self.batch.header._replace(
            producer_id=self.producer_id, producer_epoch=self.producer_epoch, base_sequence=self.base_sequence
        )
        return memoryview(sealed_header(stamped, records)), records

    @property
    def size(self) -> int:
        """The size of the batch in bytes."""
        return self.batch.size

    @property
    def record_count(self) -> int:
        """The number of offsets and sequences of the batch."""
        return self.batch.record_count

    @property
    def max_timestamp_ms(self) -> int:
        """The largest timestamp."""
        return self.batch.max_timestamp_ms


# --- one transaction


def apply_decided(directory: WrittenLog, *, is_same_boot: bool = True) -> None:
    """Apply every decided transaction of a directory, and delete the staging of those that are over.

    A failure is added to the directory's findings, and the transaction stays as it is until the next attempt.

    Args:
        directory: a directory that is open for writing.
        is_same_boot: True if the host has not crashed since the directory was last written.
    """
    files = TransactionFiles(directory.path)
    stuck: set[str] = set()
    for transaction in files.unfinished():
        if transaction.series not in stuck:
            try:
                _finish(directory, files, transaction, is_same_boot=is_same_boot)
            except (LogError, OSError) as error:
                stuck.add(transaction.series)
                directory.findings.append(f"transaction {transaction} is decided and could not be applied: {error}")
    with contextlib.suppress(LogError, OSError):  # the next call deletes the rest
        sweep(files)
        files.clear_temporaries()


def _finish(directory: WrittenLog, files: TransactionFiles, transaction: TransactionId, *, is_same_boot: bool) -> None:
    if files.over_of(transaction) is not None:
        files.end(transaction)
        return
    decision = files.take(transaction)
    if decision is None:
        return
    staged = Staged(files, transaction, decision)
    if decision.producer_id is None or not is_same_boot:
        try:
            staged.check(is_read=not is_same_boot)
        except TransactionNotAppliedError as error:
            _drop(directory, files, transaction, decision, error)
            return
    if decision.producer_id is None and decision.winners:
        decision = files.begin(transaction, decision, directory.new_producer_id())
    applied = _apply(directory, staged, decision.producer_id)
    if directory.options.sync != "none":
        directory.sync()
    files.set_over(transaction, is_aborted=decision.is_aborted)
    files.end(transaction)
    for place in applied:
        assert decision.producer_id is not None, "a transaction is applied under a producer id"
        directory.partition(*place).producers.forget(decision.producer_id)


def _drop(
    directory: WrittenLog,
    files: TransactionFiles,
    transaction: TransactionId,
    decision: Decision,
    error: TransactionNotAppliedError,
) -> None:
    """Drop a decision whose staging was lost in a crash of the host, if nothing of it was applied.

    Raises:
        TransactionNotAppliedError: if a part of it is in the log.
    """
    if any(_applied_count(directory, place, decision.producer_id) for place in _places_of(directory)):
        raise error
    files.end(transaction)
    directory.findings.append(f"transaction {transaction} was dropped, nothing of it was applied: {error}")


def _places_of(directory: WrittenLog) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for topic in directory.topics() for n in range(directory.partition_count(topic))]


def _applied_count(directory: WrittenLog, place: TopicPartition, producer_id: int | None) -> int:
    """The number of records of a transaction that are in a partition already."""
    if producer_id is None:
        return 0
    known = directory.partition(*place).producers.batches_of(producer_id)
    return known[-1].last_sequence + 1 if known else 0


def _apply(directory: WrittenLog, staged: Staged, producer_id: int | None) -> list[TopicPartition]:
    """Append the batches that are not in the log yet; return the partitions that have records of the transaction.

    Raises:
        LogError: if a staged log is damaged, or the log rejects a batch.
        OSError: if there is no space, or an I/O error.
    """
    applied: list[TopicPartition] = []
    places = staged.places()
    counts = {place.topic: place.partition + 1 for place in places}  # the highest partition of a topic is the last
    for place in places:
        directory.create_topic(place.topic, counts[place.topic])
        if producer_id is not None and staged.has_batches(place):
            _apply_to(directory, place, staged, producer_id)
            applied.append(place)
    return applied


def _apply_to(directory: WrittenLog, place: TopicPartition, staged: Staged, producer_id: int) -> None:
    applied_count = _applied_count(directory, place, producer_id)
    with closing(staged.batches(place)) as batches:
        for run in _runs(_restamped(batches, producer_id), applied_count):
            for outcome in directory.partition(*place).append(run):
                if isinstance(outcome, Rejection):
                    raise LogError(outcome.message)


def _restamped(batches: Iterable[LogBatch], producer_id: int) -> Iterator[RestampedBatch]:
    sequence = 0
    for batch in batches:
        yield RestampedBatch(batch, producer_id, sequence)
        sequence += batch.record_count


def _runs(batches: Iterator[RestampedBatch], applied_count: int) -> Iterator[list[RestampedBatch]]:
    """The batches that are not applied yet, grouped for `PartitionLog.append`."""
    run: list[RestampedBatch] = []
    size = 0
    for batch in batches:
        if batch.base_sequence < applied_count:
            continue
        if run and (size + batch.size > RUN_SIZE_MAX or len(run) == RUN_COUNT_MAX):
            yield run
            run, size = [], 0
        run.append(batch)
        size += batch.size
    if run:
        yield run


# --- deletion


def sweep(files: TransactionFiles) -> None:
    """Delete the staging of transactions that are over, including that of losers and zombies.

    Also deletes the staging of transactions that were not decided for a week, unless a process still writes it. Any
    process may call this at any time.

    Raises:
        OSError: if something could not be deleted.
    """
    for transaction in files.unfinished():
        if files.over_of(transaction) is not None:
            files.end(transaction)
    folders = files.staged()
    overs = {series: files.over(series) for series in {folder.transaction.series for folder in folders}}
    for folder in folders:
        over = overs[folder.transaction.series]
        if (over is not None and over.covers(folder.transaction)) or _is_abandoned(files, folder):
            remove_tree(folder.path)
    files.forget_singles(SINGLES_KEPT_S)


def _is_abandoned(files: TransactionFiles, folder: StagedFolder) -> bool:
    if age_s(folder.path) < STAGING_KEPT_S or files.is_unfinished(folder.transaction):
        return False
    return not is_locked(os.path.join(folder.path, LOG_FOLDER, LOCK_FILE))


def remove_tree(path: str) -> None:
    """Delete a folder into which a zombie may still write. If the zombie creates a file, this tries again.

    Raises:
        OSError: if the folder still exists.
    """
    from shutil import rmtree  # slow to import, and a log without transactions deletes none

    for tries_left in reversed(range(REMOVE_TRIES)):
        rmtree(path, ignore_errors=tries_left > 0)
        if not os.path.lexists(path):
            return
