# SPDX-License-Identifier: Apache-2.0
"""Applying decided transactions: the part that only the writer of a log directory does.

A writer that opens a directory begins with it, and goes on with it now and then. So the next writer carries out a
decision whose maker died, before anything else gets into the log.

Each transaction gets a producer id of its own, and its records get sequences from 0 on in each partition. So the log
itself tells how far an application came that was cut short: a batch is in it whole or not at all, and the producers'
state knows the last sequence. Nothing is resent, so it does not matter how many batches the state remembers.

As long as one is under way nothing is retained away, for that would delete what tells.
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
from shmaccum.log.files.producer_state import SEQUENCE_MASK, Refusal
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
"""The staging of a transaction that no process decides is deleted after this time (Kafka's
transactional.id.expiration.ms)."""
SINGLES_KEPT_S = 3600.0
"""For this time a directory remembers that a transaction without a series is over, to tell a late attempt. Its staging
is gone, so no process can decide it anew."""
REMOVE_TRIES = 3


class WrittenLog(Protocol):
    """The part of an open `LogDirectory` that applying needs. The directory begins by applying, so it knows this
    module, and this module does not know it."""

    path: str
    options: LogSinkOptions
    findings: list[str]

    def topics(self) -> list[str]: ...

    def partition_count(self, topic: str) -> int: ...

    def create_topic(self, topic: str, partition_count: int) -> object: ...

    def partition(self, topic: str, partition: int) -> PartitionLog: ...

    def new_producer_id(self) -> int: ...

    def sync(self) -> None: ...


# --- the records that the winners have staged


class Staged:
    """The logs of a decision's winners.

    Args:
        files: of the directory.
        transaction: its id.
        decision: names the winners.
    """

    def __init__(self, files: TransactionFiles, transaction: TransactionId, decision: Decision) -> None:
        self._paths = [files.staged_log(transaction, winner.attempt) for winner in decision.winners]
        self._winners = decision.winners

    @cached_property
    def _partitions(self) -> list[dict[TopicPartition, PartitionReader]]:
        """The partitions of each winner."""
        return [_partitions(path) for path in self._paths]

    def places(self) -> list[TopicPartition]:
        """Every partition that has a folder, in order.

        Raises:
            LogError: a log is not there.
        """
        return sorted({place for partitions in self._partitions for place in partitions})

    def has_batches(self, place: TopicPartition) -> bool:
        """True when a winner has records of a partition, as `batches` would give them."""
        with closing(self.batches(place)) as batches:
            return next(batches, None) is not None

    def batches(self, place: TopicPartition) -> Generator[LogBatch, None, None]:
        """All batches of a partition, winner after winner.

        Raises:
            LogError: a log is not there, or damaged.
        """
        for partitions in self._partitions:
            if place in partitions:
                yield from partitions[place].batches()

    def check(self, *, is_read: bool) -> None:
        """Looks whether everything is there that the winners said.

        Args:
            is_read: read every batch; else only the last ones of each partition.

        Raises:
            TransactionNotAppliedError: it is not.
        """
        totals: Counter[TopicPartition] = Counter()
        for path, winner in zip(self._paths, self._winners, strict=True):
            counts = _counts(path, winner, is_read=is_read)
            if counts.total() != winner.record_count:
                raise TransactionNotAppliedError(
                    f"attempt {winner.attempt} staged {format_count(winner.record_count, 'record')}, and {path} has "
                    f"{counts.total():,}"
                )
            totals += counts
        for place, total in totals.items():
            if total > SEQUENCE_MASK:
                raise TransactionNotAppliedError(
                    f"a transaction can have {SEQUENCE_MASK} records of a partition, this one has {total} of {place}: "
                    "write them in several jobs"
                )


def _partitions(path: str) -> dict[TopicPartition, PartitionReader]:
    reader = LogReader(path)
    return {place: PartitionReader(reader, place) for place in reader.topic_partitions()}


def _counts(path: str, winner: Winner, *, is_read: bool) -> Counter[TopicPartition]:
    """How many records of each partition are there."""
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
    """A staged batch with the producer id and the sequence of its transaction; the rest of its bytes where they lie."""

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
        """Bytes of the batch."""
        return self.batch.size

    @property
    def record_count(self) -> int:
        """How many offsets and sequences it takes."""
        return self.batch.record_count

    @property
    def max_timestamp_ms(self) -> int:
        """The timestamp of the youngest record."""
        return self.batch.max_timestamp_ms


# --- one transaction


def apply_decided(directory: WrittenLog, *, is_same_boot: bool = True) -> None:
    """Brings every decided transaction of a directory to its end, and clears the staging of those that are over.

    One that fails is reported in the directory's findings and left as it is; it is tried again at the next opening.

    Args:
        directory: open for writing.
        is_same_boot: the host has not crashed since the directory was last written.
    """
    files = TransactionFiles(directory.path)
    stuck: set[str] = set()
    for transaction in files.undone():
        if transaction.series not in stuck:
            try:
                _finish(directory, files, transaction, is_same_boot=is_same_boot)
            except (LogError, OSError) as error:
                stuck.add(transaction.series)
                directory.findings.append(f"transaction {transaction} is decided and could not be applied: {error}")
    with contextlib.suppress(LogError, OSError):  # the rest is cleared the next time
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
        assert decision.producer_id is not None, "nothing is applied without one"
        directory.partition(*place).producers.forget(decision.producer_id)


def _drop(
    directory: WrittenLog,
    files: TransactionFiles,
    transaction: TransactionId,
    decision: Decision,
    error: TransactionNotAppliedError,
) -> None:
    """The staging went, in a crash of the host: as long as nothing was applied, the decision can be forgotten.

    Raises:
        TransactionNotAppliedError: a part of it is in the log.
    """
    if any(_applied_count(directory, place, decision.producer_id) for place in _places_of(directory)):
        raise error
    files.end(transaction)
    directory.findings.append(f"transaction {transaction} was dropped, nothing of it was applied: {error}")


def _places_of(directory: WrittenLog) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for topic in directory.topics() for n in range(directory.partition_count(topic))]


def _applied_count(directory: WrittenLog, place: TopicPartition, producer_id: int | None) -> int:
    """How many records of a transaction are in a partition already."""
    if producer_id is None:
        return 0
    known = directory.partition(*place).producers.batches_of(producer_id)
    return known[-1].last_sequence + 1 if known else 0


def _apply(directory: WrittenLog, staged: Staged, producer_id: int | None) -> list[TopicPartition]:
    """Appends what is not in the log yet; answers the partitions that have some of it.

    Raises:
        LogError: a staged log is damaged, or the log does not take a batch.
        OSError: no space, or an I/O error.
    """
    applied: list[TopicPartition] = []
    places = staged.places()
    counts = {place.topic: place.partition + 1 for place in places}  # the last one of a topic is its highest
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
                if isinstance(outcome, Refusal):
                    raise LogError(outcome.message)


def _restamped(batches: Iterable[LogBatch], producer_id: int) -> Iterator[RestampedBatch]:
    sequence = 0
    for batch in batches:
        yield RestampedBatch(batch, producer_id, sequence)
        sequence += batch.record_count


def _runs(batches: Iterator[RestampedBatch], applied_count: int) -> Iterator[list[RestampedBatch]]:
    """Those that are not applied, as many together as one call should append."""
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


# --- clearing up


def sweep(files: TransactionFiles) -> None:
    """Deletes what was staged for transactions that are over, by winners, losers and zombies alike.

    Also what nobody has decided about in a week, unless somebody writes it still. Anybody may do that at any time.

    Raises:
        OSError: something could not be deleted.
    """
    for transaction in files.undone():
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
    if age_s(folder.path) < STAGING_KEPT_S or files.is_undone(folder.transaction):
        return False
    return not is_locked(os.path.join(folder.path, LOG_FOLDER, LOCK_FILE))


def remove_tree(path: str) -> None:
    """Deletes a folder that a zombie may still be writing into; a new file of the zombie makes this try again.

    Raises:
        OSError: it is still there.
    """
    from shutil import rmtree  # slow to import, and a log without transactions deletes none

    for tries_left in reversed(range(REMOVE_TRIES)):
        rmtree(path, ignore_errors=tries_left > 0)
        if not os.path.lexists(path):
            return
