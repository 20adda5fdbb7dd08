# SPDX-License-Identifier: Apache-2.0
"""Writes failed batches to a log of their own before their memory is freed (docs/decisions/0025).

The log has the records of a failed batch unchanged, with their timestamps, under their topic and partition. Headers
that are added to each record state what happened, as in Kafka Connect::

    __shmaccum.errors.topic, .partition     the topic-partition that it was for
    __shmaccum.errors.result                expired: not delivered in time; failed: the sink rejected it
    __shmaccum.errors.code, .message        Kafka's error code, and the sentence
    __shmaccum.errors.attempts              how often it was sent; 0 if never
    __shmaccum.errors.time                  when it was written here, in milliseconds since 1970
    __shmaccum.errors.batch                 the unique name of the batch

Procedure for a rejected batch: decide (in the arena, so that no sender sends it again), write, complete, free. A batch
that expires gets its result in time, and keeps its memory until it is written.

Deaths: the next sender finds the decision and writes the batch. If it was written already, it is the last batch in the
log of its partition, since its memory is freed before the next one is written. The sender recognises it by its name.
If a batch cannot be written (disk full), it keeps its memory, and writing is tried again every second. Nothing is lost.
When failed batches use all buffers, producers wait.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from shmaccum._native import Batch, SenderHalf
from shmaccum.arena.places import Places
from shmaccum.arena.reports import Kind, Reason, Report
from shmaccum.arena.results import BatchResult
from shmaccum.common import clock
from shmaccum.config import LogSinkOptions
from shmaccum.exceptions import CorruptArenaError, InvalidArgumentError, LogError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.permissions import make_folder_of_arena
from shmaccum.log.files.producer_state import Rejection
from shmaccum.log.files.reader import LogReader
from shmaccum.log.files.record_writer import MadeBatch, NewRecord, make_batch
from shmaccum.sender.backoff import NEVER_NS
from shmaccum.sender.duties.duty import Duty
from shmaccum.sender.host import Host
from shmaccum.sender.sink_batches import Quarantine, damage_of

PREFIX = "__shmaccum.errors."
BATCH_HEADER = PREFIX + "batch"
MESSAGE_SIZE_MAX = 250
PAUSE_NS = 1_000_000_000
END_NS = 5_000_000_000
"""The time for writing failed batches when the sender exits."""
BATCHES_PER_ROUND = 8
"""Writing a batch takes about a millisecond. Many of them must not delay the delivery of others."""


class _Waiting(NamedTuple):
    batch: Batch
    reason: Reason


class DeadLetters(Duty):
    """The failed batches of an arena, and the log to which they are written.

    Args:
        half: with the sender role, taken after `want_dead_letters`.
        host: of the sender.
        places: topics and partitions.
        directory: of the log; created if it is missing.

    Raises:
        LogBusyError, NotALogError, LogForbiddenError, OSError: as `LogDirectory`.
    """

    def __init__(
        self,
        half: SenderHalf,
        host: Host,
        places: Places,
        directory: str,
    ) -> None:
        arena = host.arena
        self._half = half
        self._host = host
        self._places = places
        self._report = host.report
        self._quarantine = Quarantine(half, arena.native, places)
        self._uuid = arena.native.uuid.hex()
        # The log is as durable as the arena.
        sync = "none" if arena.durability == "process" else "batch"
        make_folder_of_arena(directory, arena.permissions)
        self._directory = LogDirectory(directory, LogSinkOptions(sync=sync), arena_name=arena.name)
        self._reader = LogReader(directory)
        self._waiting: deque[_Waiting] = deque()
        self._is_requested = True
        self._opened_count = self._directory.opened_count
        self._last_names: dict[tuple[str, int], str | None] = {}
        self._not_before_ns = 0
        self.batch_count = 0
        self.record_count = 0

    @property
    def due_ns(self) -> int:
        return self._not_before_ns if self._waiting else NEVER_NS

    @property
    def is_idle(self) -> bool:
        return not self._waiting

    def run(self, now_ns: int) -> None:
        self._collect()
        self._work(now_ns)

    # --- expired batches

    def expect(self) -> None:
        self._is_requested = True

    def _collect(self) -> None:
        """Collect the failed batches of the arena since `expect`, oldest first."""
        if not self._is_requested:
            return
        self._is_requested = False
        found = self._half.dead_letters()
        for batch, result, error_code in sorted(found, key=lambda row: (row[0].partition_index, row[0].seq)):
            reason = Reason(BatchResult(result), error_code, self._reason_for(batch.partition_index))
            self._waiting.append(_Waiting(batch, reason))

    def _reason_for(self, partition_index: int) -> str:
        trouble = self._host.last_failures.get(partition_index) or self._host.last_trouble[0]
        return trouble or f"not delivered within {self._host.options.delivery_timeout_ms} ms"

    def _work(self, now_ns: int, count_max: int = BATCHES_PER_ROUND) -> bool:
        """Write and free some of the waiting batches. Return False if that failed, or failed recently."""
        self._check()
        for _ in range(min(count_max, len(self._waiting))):
            batch, reason = self._waiting[0]
            try:
                damage = self._damage(batch)
                if damage is not None:
                    self._quarantine.take(batch, damage)
                elif not self.write(batch, batch.acked_record_count, reason, now_ns):
                    return False
                else:
                    self._half.complete(batch, int(reason.result))
            except CorruptArenaError as error:
                self._quarantine.take(batch, str(error))
            self._waiting.popleft()
        return True

    def _check(self) -> None:
        """Report a log that was removed or replaced, even if no batch has to be written."""
        self._directory.check_paths()
        if self._opened_count != self._directory.opened_count:
            self._opened_count = self._directory.opened_count
            self._last_names.clear()
        if (lost := self._directory.lost) is not None:
            self._report(Report(Kind.IMPAIRED, f"dead letters: {lost}"))
        for sentence in self._directory.findings:
            if sentence != lost:
                self._report(f"dead letters: {sentence}")
        self._directory.findings.clear()

    @staticmethod
    def _damage(batch: object) -> str | None:
        """Return a clause about the damage of a batch in the arena; None if it is sound, or is in the overflow."""
        if not isinstance(batch, Batch):
            return None
        return damage_of(batch, batch.buffers)

    # --- writing

    def write(
        self, batch: Batch, first_record: int, reason: Reason, now_ns: int, record_count: int | None = None
    ) -> bool:
        """Write records of a batch. Return True if they are in the log, by this call or a former one.

        Args:
            record_count: the number of records from `first_record` on; by default, all others.

        Raises:
            CorruptArenaError: a producer appended invalid records, or the batch has changed meanwhile.
        """
        if now_ns < self._not_before_ns:
            return False
        end = batch.record_count if record_count is None else first_record + record_count
        try:
            self._append(batch, range(first_record, end), reason)
        except (OSError, LogError) as error:
            self._not_before_ns = now_ns + PAUSE_NS
            self._last_names.clear()  # a failed write may still be in the log
            sentence = f"dead letters cannot be written, and keep their memory in the arena until they are: {error}"
            self._report(Report(Kind.IMPAIRED, sentence))
            return False
        return True

    def _append(self, batch: Batch, rows: range, reason: Reason) -> None:
        topic, partition = self._places[batch.partition_index]
        self._make_topic(topic, partition)
        name = f"{self._uuid}:{batch.partition_index}:{batch.seq}:{rows.start}"
        if self._last_name(topic, partition) == name:
            return
        headers = _headers(topic, partition, batch.attempt_count, reason, name)
        dead_letter = _dead_letter(batch, rows, headers)
        damage = self._damage(batch)  # the checksum of the written batch would hide the damage
        if damage is not None:
            raise CorruptArenaError(damage)
        (outcome,) = self._directory.partition(topic, partition).append([dead_letter])
        if isinstance(outcome, Rejection):
            raise LogError(outcome.message)
        self._last_names[topic, partition] = name
        self.batch_count += 1
        self.record_count += len(rows)

    def _make_topic(self, topic: str, partition: int) -> None:
        try:
            self._directory.create_topic(topic, partition + 1)
        except InvalidArgumentError as error:  # no producer can have named this topic
            raise CorruptArenaError(str(error)) from None

    def _last_name(self, topic: str, partition: int) -> str | None:
        """Return the name of the youngest batch in a partition of the log."""
        place = topic, partition
        if place not in self._last_names:
            end_offset = self._directory.partition(topic, partition).log_end_offset
            self._last_names[place] = self._read_name(topic, partition, end_offset - 1) if end_offset else None
        return self._last_names[place]

    def _read_name(self, topic: str, partition: int, offset: int) -> str | None:
        for record in itertools.islice(self._reader.partition(topic, partition).records(offset), 1):
            return (dict(record.headers).get(BATCH_HEADER) or b"").decode()
        return None

    # --- the end

    def finish(self, now_ns: int) -> None:
        """Write the waiting batches, until that fails or the time has passed; the next sender writes the rest."""
        deadline_ns = clock.monotonic_ns() + END_NS
        self.expect()
        self._collect()
        while self._waiting and clock.monotonic_ns() < deadline_ns and self._work(now_ns):
            pass

    def close(self) -> None:
        """Close the log. Batches that were not written stay in the arena.

        Raises:
            OSError: the last sync failed.
        """
        self._waiting.clear()
        self._directory.close()

    def metrics(self) -> dict[str, float]:
        return {
            "dead-letter-batch-total": self.batch_count,
            "dead-letter-record-total": self.record_count,
            "dead-letters-waiting": len(self._waiting),
        }


def _headers(topic: str, partition: int, attempt_count: int, reason: Reason, name: str) -> list[tuple[str, bytes]]:
    facts = {
        "topic": topic,
        "partition": partition,
        "result": reason.result.name.lower(),
        "code": reason.error_code,
        "message": reason.message[:MESSAGE_SIZE_MAX],
        "attempts": attempt_count,
        "time": time.time_ns() // 1_000_000,
        "batch": name,
    }
    return [(PREFIX + key, str(value).encode()) for key, value in facts.items()]


def _dead_letter(batch: Batch, rows: range, headers: Sequence[tuple[str, bytes]]) -> MadeBatch:
    records = [
        NewRecord(timestamp_ms, key, value, own)
        for _, timestamp_ms, key, value, own in batch.decode()[rows.start : rows.stop]
    ]
    return make_batch(records, headers)
