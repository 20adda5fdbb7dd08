# SPDX-License-Identifier: Apache-2.0
"""Batches that failed are written to a log of their own before their memory is free again (docs/decisions/0025).

A letter is the records of a failed batch as they were, timestamps and all, with headers behind their own that tell what
happened (as Kafka Connect's dead letter queue does). It lies in the log under the topic and partition it was for::

    __shmaccum.errors.topic, .partition     the topic-partition that it was for
    __shmaccum.errors.result                expired: not delivered in time; failed: the sink refused it
    __shmaccum.errors.code, .message        Kafka's number of the error, and the sentence
    __shmaccum.errors.attempts              how often it was sent; 0: never
    __shmaccum.errors.time                  when it was written here, milliseconds since 1970
    __shmaccum.errors.batch                 names the batch, for ever

Procedure for a refused batch: decide (in the arena: no sender sends it again), write, tell the producer, free. A batch
that expires is told at its time and is a dead letter of the arena until it is written.

A death in between: the next sender finds the decision and writes the letter. It may be written already: then it is
the last batch of its partition's log, since a letter is freed before the next one is written, and is recognised by its
name. A letter that cannot be written (disk full) keeps its memory, and is tried again every second: nothing is lost,
and producers wait for buffers when all of them are letters.
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
from shmaccum.sender.lending import Quarantine, damage_of, let_go

PREFIX = "__shmaccum.errors."
BATCH_HEADER = PREFIX + "batch"
MESSAGE_SIZE_MAX = 250
PAUSE_NS = 1_000_000_000
END_NS = 5_000_000_000
"""The time for what waits when the sender leaves."""
LETTERS_PER_ROUND = 8
"""A letter takes about a millisecond: delivering what is well must not wait for many of them."""


class _Waiting(NamedTuple):
    batch: Batch
    reason: Reason


class DeadLetters(Duty):
    """The dead letters of an arena, and the log they are written to.

    Args:
        half: with the sender role, which it took after `want_dead_letters`.
        host: of the sender.
        places: topics and partitions.
        directory: of the log; made when it is missing.

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
        # As durable as the arena that the letter leaves.
        sync = "none" if arena.durability == "process" else "batch"
        make_folder_of_arena(directory, arena.permissions)
        self._directory = LogDirectory(directory, LogSinkOptions(sync=sync), arena_name=arena.name)
        self._reader = LogReader(directory)
        self._waiting: deque[_Waiting] = deque()
        self._has_news = True
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

    def run(self, now_ns: int) -> int:
        self._collect()
        self._work(now_ns)
        return 0

    # --- expired batches

    def expect(self) -> None:
        self._has_news = True

    def _collect(self) -> None:
        """Takes over what the arena has since `expect`, oldest first."""
        if not self._has_news:
            return
        self._has_news = False
        letters = self._half.dead_letters()
        for batch, result, error_code in sorted(letters, key=lambda letter: (letter[0].partition_index, letter[0].seq)):
            reason = Reason(BatchResult(result), error_code, self._why(batch.partition_index))
            self._waiting.append(_Waiting(batch, reason))

    def _why(self, partition_index: int) -> str:
        trouble = self._host.last_failures.get(partition_index) or self._host.last_trouble[0]
        return trouble or f"not delivered within {self._host.options.delivery_timeout_ms} ms"

    def _work(self, now_ns: int, count_max: int = LETTERS_PER_ROUND) -> bool:
        """Writes and frees some of what waits. False when that failed, or failed lately."""
        self._look()
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

    def _look(self) -> None:
        """A log that was removed or replaced is told of, also while no letter is to be written."""
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
        """The reason why a batch in shared memory is not what was appended. One of the overflow is not there."""
        if not isinstance(batch, Batch):
            return None
        buffers = batch.buffers
        try:
            return damage_of(batch, buffers)
        finally:
            let_go(buffers)

    # --- writing

    def write(
        self, batch: Batch, first_record: int, reason: Reason, now_ns: int, record_count: int | None = None
    ) -> bool:
        """Writes records of a batch; True when they are in the log, however they came there.

        Args:
            record_count: of them from `first_record` on; default: the rest.

        Raises:
            CorruptArenaError: a producer appended what is no record, or the batch was changed meanwhile.
        """
        if now_ns < self._not_before_ns:
            return False
        end = batch.record_count if record_count is None else first_record + record_count
        try:
            self._append(batch, range(first_record, end), reason)
        except (OSError, LogError) as error:
            self._not_before_ns = now_ns + PAUSE_NS
            self._last_names.clear()  # a failed write may be there all the same
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
        letter = _letter(batch, rows, headers)
        damage = self._damage(batch)  # a letter has a checksum of its own, which would hide it
        if damage is not None:
            raise CorruptArenaError(damage)
        (outcome,) = self._directory.partition(topic, partition).append([letter])
        if isinstance(outcome, Rejection):
            raise LogError(outcome.message)
        self._last_names[topic, partition] = name
        self.batch_count += 1
        self.record_count += len(rows)

    def _make_topic(self, topic: str, partition: int) -> None:
        try:
            self._directory.create_topic(topic, partition + 1)
        except InvalidArgumentError as error:  # no producer can have said so
            raise CorruptArenaError(str(error)) from None

    def _last_name(self, topic: str, partition: int) -> str | None:
        """Of the youngest letter in a partition of the log."""
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
        """Writes what waits, until that fails or the time is over; the next sender goes on with the rest."""
        deadline_ns = clock.monotonic_ns() + END_NS
        self.expect()
        self._collect()
        while self._waiting and clock.monotonic_ns() < deadline_ns and self._work(now_ns):
            pass

    def close(self) -> None:
        """Lets go of the log. Letters that were not written stay in the arena.

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


def _letter(batch: Batch, rows: range, headers: Sequence[tuple[str, bytes]]) -> MadeBatch:
    records = [
        NewRecord(timestamp_ms, key, value, own)
        for _, timestamp_ms, key, value, own in batch.decode()[rows.start : rows.stop]
    ]
    return make_batch(records, headers)
