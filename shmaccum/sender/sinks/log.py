# SPDX-License-Identifier: Apache-2.0
"""``log:DIR`` appends to a log directory in Kafka's format: no server is needed to store records.

The batches of a partition in a delivery are written to its file by one system call, directly from the arena. After the
first delivery of a partition, the sender appends its ordinary batches in C (docs/decisions/0071). The log is idempotent
like a broker, so batches that a dead sender had written are recognised and not written twice.

An unset ``sync`` follows the durability of the arena, and a lower level is refused. If the arena is durable, each ack
waits for a sync of the log. With sync=interval, one sync covers the batches of at most `HOLD_MS_MAX`.

With ``compression_type``, threads compress each batch before its append, and no batch is appended in C.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from shmaccum._native import LogEnd
from shmaccum.common import clock
from shmaccum.common.durability import is_lower, log_level_of
from shmaccum.common.format.group_offsets import OFFSETS_TOPIC
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config import LogSinkOptions, ServerOptions
from shmaccum.exceptions import InvalidArgumentError, LogLostError, LogPartitionNotFoundError, UnknownTopicError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.directory import LogDirectory, advised_errors
from shmaccum.log.files.partition_log import Outcome, PartitionLog
from shmaccum.log.files.permissions import make_folder_of_arena
from shmaccum.log.files.producer_state import KEPT_COUNT, Rejection
from shmaccum.sender.sinks.compression import Compression, Form, compressed, compression_of
from shmaccum.sender.sinks.log_transactions import LogTransactions
from shmaccum.sender.sinks.names import one_spelling
from shmaccum.sender.sinks.sink import (
    Ack,
    DeliveredRow,
    Ended,
    Limits,
    LogEnds,
    Peer,
    ProducerIds,
    RecordSource,
    SinkHost,
    SinkTransactions,
    SynchronousSink,
    Verdict,
    WireBatch,
    ended,
)

SomeOptions = TypeVar("SomeOptions", bound=LogSinkOptions)

REQUEST_SIZE_MAX = 16 << 20
HOLD_MS_MAX = 100
"""The longest time that an ack waits for the sync of an interval, which also delays results and freed buffers."""
MEDIUM_ERRORS = frozenset(
    {
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.EROFS,
        errno.ENODEV,
        errno.ENXIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        errno.EREMOTEIO,
        errno.ENOMEM,
        errno.ENFILE,
        errno.EMFILE,
    }
)
"""Errors that concern every partition: the file system, the device, the host's memory or open files."""
NO_OFFSETS = (
    "a sender that writes a log commits no offsets of groups: serve the log (shmaccum serve), and deliver to that "
    "server (kafka:HOST:PORT)"
)
VERDICTS: Mapping[int, Verdict] = {
    BrokerError.KAFKA_STORAGE_ERROR: Verdict.RETRY,
    BrokerError.MESSAGE_TOO_LARGE: Verdict.TOO_LARGE,
    BrokerError.OUT_OF_ORDER_SEQUENCE_NUMBER: Verdict.OUT_OF_SEQUENCE,
    BrokerError.INVALID_PRODUCER_EPOCH: Verdict.OUT_OF_SEQUENCE,
}


class LogSink(SynchronousSink, ProducerIds, SinkTransactions, LogEnds, Peer):
    """Appends to the log directory. It is the only writer while it is open.

    Args:
        place: the directory; created if it is missing.
        options: those of `ServerOptions`; the server's options apply if the sender listens.
    """

    compares_records = True
    limits = Limits(KEPT_COUNT, REQUEST_SIZE_MAX)

    def __init__(self, place: str, **options: Any) -> None:
        super().__init__()
        self.producer_ids = self.transactions = self.fast_path = self.peer = self
        if not place:
            raise InvalidArgumentError("log: needs a directory: write it after the colon, as in log:/var/lib/events")
        self._place = place
        self.name = one_spelling(f"log:{place}")
        self._options = ServerOptions.parse(options)
        self._has_level = "sync" in options
        self._unsynced: list[tuple[Ack, PartitionLog]] = []
        """Acks of batches that are in the log and may not be on disk yet."""
        self._unsynced_counts: Counter[int] = Counter()
        self._sync_at_s = math.inf
        self._is_sync_awaited = False
        self._compression = compression_of(self._options)
        self._directory: LogDirectory | None = None
        self._host: SinkHost | None = None
        self._outage: str | None = None
        self._lost: dict[TopicPartition, str] = {}
        self.log_ends: dict[int, LogEnd] = {}
        self._places: dict[int, TopicPartition] = {}
        self._transactions: LogTransactions | None = None

    @property
    def outage(self) -> str | None:
        """A sentence about a missing file or folder, until it is back; or about the last write, if the medium failed.

        Any other error of one partition is not an outage.
        """
        lost = None if self._directory is None else self._directory.lost
        return lost or self._outage or next(iter(self._lost.values()), None)

    @property
    def directory(self) -> LogDirectory:
        if self._directory is None:
            raise InvalidArgumentError(f"the sink log:{self._place} is not open")
        return self._directory

    @property
    def identity(self) -> bytes:
        return self.directory.uuid

    def open(self, host: SinkHost) -> None:
        self._host = host
        self._options = followed(self._options, host, self.name, has_level=self._has_level)
        self._is_sync_awaited = host.durability != "process" and self._options.sync == "interval"
        with advised_errors(self._place):
            make_folder_of_arena(self._place, host.permissions)
        self._directory = LogDirectory(self._place, self._options, show_life=host.show_life, arena_name=host.arena_name)
        if host.transactions is not None:
            self._transactions = LogTransactions(self._directory, host.transactions, host.arena_name)
        self._report()

    @property
    def log(self) -> tuple[LogDirectory, ServerOptions]:
        return self.directory, self._options

    def new_producer_id(self) -> tuple[int, int]:
        producer_id = self.directory.new_producer_id()
        if self._transactions is not None:
            self._transactions.begin_producer(producer_id)
        return producer_id, 0

    def end_transaction(self, producer_id: int, producer_epoch: int, *, is_commit: bool) -> Ended:
        assert self._transactions is not None
        self._transactions.end(producer_id, producer_epoch, is_commit=is_commit)
        if self._is_sync_awaited:
            self.directory.sync()
        return ended(self, producer_id, producer_epoch, is_commit=is_commit)

    def partition_count(self, topic: str) -> int:
        if topic == OFFSETS_TOPIC and self._transactions is not None:
            return 1
        try:
            return self.directory.create_topic(topic, self.wanted_count(topic))
        except InvalidArgumentError as error:
            raise UnknownTopicError(str(error)) from None

    def wanted_count(self, topic: str) -> int | None:
        """Return the partition count that a topic should have; None for its present count, or the option `partitions`.

        The creator or a former sink stored this number in the arena, and batches may wait for all partitions.
        """
        published = 0 if self._host is None else self._host.partition_count(topic)
        is_new = self.directory.partition_count(topic) == 0
        return max(published, self._options.partitions) if published and is_new else published or None

    def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
        acks: list[Ack] = []
        self._outage = None
        given = batches if self._compression is None else self._compressed(batches, self._compression)
        first = 0
        for end in range(1, len(batches) + 1):
            if end == len(batches) or batches[end].partition_index != batches[first].partition_index:
                acks += self._append(batches[first:end], given[first:end])
                first = end
        self._report()
        return acks

    def _compressed(self, batches: Sequence[WireBatch], compression: Compression) -> list[WireBatch]:
        """Return the batches in the form in which they are appended."""
        jobs = [compression.begin(batch) for batch in batches]
        forms = [
            self._with_form(batch, compressed(job, self._report_sentence))
            for batch, job in zip(batches, jobs, strict=True)
        ]
        sizes = [(batch, form.size) for batch, form in zip(batches, forms, strict=True)]
        compression.metrics.sent(sizes, clock.monotonic_ns())
        return forms

    def _with_form(self, batch: WireBatch, form: Form | None) -> WireBatch:
        if form is None:
            return batch
        return dataclasses.replace(
            batch, buffers=tuple(map(memoryview, form)), size=sum(map(len, form)), shared_crc=None
        )

    def _append(self, batches: Sequence[WireBatch], given: Sequence[WireBatch]) -> list[Ack]:
        """Append batches of one partition, in the given forms."""
        log = self._open(batches[0].topic, batches[0].partition)
        if self._host is not None:
            self._host.show_life()
        outcomes = [log] * len(batches) if isinstance(log, Rejection) else log.append(given)
        self._outage = self._outage or next(filter(None, map(_medium_failure, outcomes)), None)
        self._record_lost(TopicPartition(batches[0].topic, batches[0].partition), outcomes[-1])
        if isinstance(log, PartitionLog) and isinstance(outcomes[-1], int):
            self._open_end(batches[0].partition_index, log)
        acks = [_ack(batch, outcome) for batch, outcome in zip(batches, outcomes, strict=True)]
        if isinstance(log, PartitionLog) and log.sets_time:
            for ack in (each for each in acks if each.verdict is Verdict.DELIVERED):
                ack.log_append_time_ms = log.time_of(ack.wire, ack.base_offset)
        return self._hold(acks, log) if self._is_sync_awaited and isinstance(log, PartitionLog) else acks

    def _record_lost(self, place: TopicPartition, outcome: Outcome) -> None:
        if isinstance(outcome, int):
            self._lost.pop(place, None)
        elif outcome.errno == errno.ESTALE:
            self._lost[place] = outcome.message

    def _open_end(self, partition_index: int, log: PartitionLog) -> None:
        """Open the log's end for appends in C, except for transactions, compression, and acks that wait for a sync."""
        if self._transactions is not None:
            self._transactions.add(log.place)
            return
        is_ordinary = self._compression is None and not self._is_sync_awaited
        log_end = log.log_end() if is_ordinary else None
        if log_end is not None:
            self.log_ends[partition_index] = log_end
            self._places[partition_index] = log.place

    def appended(self, rows: Sequence[DeliveredRow]) -> None:
        self._outage = None
        for partition_index, batch_count, _, _, index_errno in rows:
            with contextlib.suppress(LogLostError):  # the next append also reports it
                self.directory.partition(*self._places[partition_index]).appended(batch_count, index_errno)
        self._report()

    def _open(self, topic: str, partition: int) -> PartitionLog | Rejection:
        """Open the partition's log. Batches of a dead sender may come before its topic's partition count was asked."""
        if topic == OFFSETS_TOPIC and self._transactions is not None:
            return Rejection(BrokerError.INVALID_TOPIC_EXCEPTION, NO_OFFSETS)
        try:
            self.directory.create_topic(topic)
            return self.directory.partition(topic, partition)
        except InvalidArgumentError as error:
            return Rejection(BrokerError.INVALID_TOPIC_EXCEPTION, str(error))
        except LogPartitionNotFoundError as error:
            return Rejection(BrokerError.UNKNOWN_TOPIC_OR_PARTITION, str(error))
        except OSError as error:
            sentence = f"{topic}-{partition} cannot be opened: {error}"
            return Rejection(BrokerError.KAFKA_STORAGE_ERROR, sentence, error.errno or 0)

    def _hold(self, acks: Sequence[Ack], log: PartitionLog) -> list[Ack]:
        """Store the acks of batches that may not be on disk yet. Return the others."""
        if self._sync_at_s == math.inf:
            self._sync_at_s = clock.monotonic() + min(self._options.sync_interval_ms or 0, HOLD_MS_MAX) / 1000
        delivered = [ack for ack in acks if ack.verdict is Verdict.DELIVERED]
        self._unsynced += [(ack, log) for ack in delivered]
        self._unsynced_counts[acks[0].wire.partition_index] += len(delivered)
        return [ack for ack in acks if ack.verdict is not Verdict.DELIVERED]

    def _sync_unsynced(self) -> None:
        """Force the log to disk, and release the acks that waited for it.

        The acks of batches before the recovery point of their log are released. The other batches are retried. If a log
        was closed or lost, its recovery point is that of its last sync.
        """
        unsynced, self._unsynced = self._unsynced, []
        self._unsynced_counts.clear()
        self._sync_at_s = math.inf
        failures = {log.place: failure for log in {log for _, log in unsynced} if (failure := self._synced(log))}
        for ack, log in unsynced:
            if log.recovery_point < ack.base_offset + ack.wire.record_count:
                ack = Ack(ack.wire, Verdict.RETRY, message=failures.get(log.place, f"{log.place} was closed"))
            self._acks.append(ack)

    def _synced(self, log: PartitionLog) -> str | None:
        """Force one partition to disk. Return the sentence of a failure."""
        if log.closed:
            return None
        try:
            log.sync()
        except OSError as error:
            sentence = f"{log.place} could not be synced: {error}. Nothing is lost, it will be tried again"
            if error.errno in MEDIUM_ERRORS:
                self._outage = sentence
            return sentence
        return None

    @property
    def _is_sync_due(self) -> bool:
        """True if an ack has waited long enough, or a partition has so many unacked batches that it cannot continue."""
        if not self._unsynced:
            return False
        is_full = max(self._unsynced_counts.values()) >= self.limits.in_flight_max
        return is_full or clock.monotonic() >= self._sync_at_s

    def poll(self, timeout_s: float, wake_fd: int) -> Sequence[Ack]:
        if self._is_sync_due:
            self._sync_unsynced()
        timeout_s = max(min(timeout_s, self._sync_at_s - clock.monotonic()), 0.0)
        try:
            self.directory.maintain()
        except OSError as error:  # acks do not wait for it; a failed sync is due again at the next poll
            self.directory.findings.append(f"{self._place}: {error}")
        self._report()
        interval_ms = self._options.sync_interval_ms
        return super().poll(timeout_s if interval_ms is None else min(timeout_s, interval_ms / 1000), wake_fd)

    def _report_sentence(self, sentence: str) -> None:
        if self._host is not None:
            self._host.report(sentence)

    def _report(self) -> None:
        """Report what the log found since the last call."""
        if self._host is not None and self.directory.findings:
            for sentence in self.directory.findings:
                self._host.report(sentence)
            self.directory.findings.clear()

    def close(self, timeout_s: float) -> None:  # noqa: ARG002 - each batch has its result when `write` returns
        if self._compression is not None:
            self._compression.close()
        if self._directory is not None:
            self._directory.close()

    def metrics(self) -> Mapping[str, float]:
        of_batches = {} if self._compression is None else self._compression.metrics.read(clock.monotonic_ns())
        return of_batches if self._directory is None else {**of_batches, **self._directory.metrics()}


def followed(options: SomeOptions, source: RecordSource, name: str, *, has_level: bool) -> SomeOptions:
    """Return the options of a log, with the level of the source if they have none.

    Args:
        options: of the log.
        source: the store that frees a record after the log has it.
        name: of the log, for messages.
        has_level: ``sync`` was given explicitly.

    Raises:
        InvalidArgumentError: the level is lower than that of the source.
    """
    wanted = log_level_of(source.durability)
    if not has_level:
        interval_ms = source.sync_interval_ms if wanted == "interval" else None
        return dataclasses.replace(options, sync=wanted, sync_interval_ms=interval_ms)
    if is_lower(options.sync, source.durability):
        raise InvalidArgumentError(
            f"{name} has sync={options.sync}, so a power cut could lose records that {source.arena_name} keeps "
            f"(durability={source.durability}): leave sync out, or set sync={wanted}"
        )
    return options


def _medium_failure(outcome: Outcome) -> str | None:
    """Return the sentence of a write that failed because of the medium; None for any other outcome."""
    return outcome.message if isinstance(outcome, Rejection) and outcome.errno in MEDIUM_ERRORS else None


def _ack(wire: WireBatch, outcome: Outcome) -> Ack:
    if isinstance(outcome, int):
        return Ack(wire, Verdict.DELIVERED, outcome)
    verdict = VERDICTS.get(outcome.error_code, Verdict.REFUSED)
    return Ack(wire, verdict, error_code=int(outcome.error_code), message=outcome.message)
