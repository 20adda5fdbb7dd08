# SPDX-License-Identifier: Apache-2.0
"""The effect of an Ack on its batch: complete, requeue, split, start over (Kafka's Sender.completeBatch).

::

    verdict           batch of one or more records                  its partition
    DELIVERED         succeeded                                     continues
    RETRY             requeued, with a pause; after `retries`       continues after the requeue; younger batches wait
                      attempts, failed
    REFUSED           failed, all records or the invalid ones       continues
    TOO_LARGE         delivered in parts; a single record fails     muted while there are parts
    OUT_OF_SEQUENCE   requeued; if it had been sent as the          starts over in the next epoch
                      oldest, with another sequence

A batch that expired or was aborted while the sink had it has its result already. Its Ack only frees its memory, and it
is neither retried nor split. Records that were not delivered are written to the ``dead_letter`` log, if there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from shmaccum.arena.reports import UNAFFECTED, Kind, Reason, Report
from shmaccum.arena.results import BatchResult
from shmaccum.arena.stuck import REPLICAS_MISSING
from shmaccum.common.clock import NS_PER_MS
from shmaccum.exceptions import BatchInUseError, CorruptArenaError
from shmaccum.sender.batch_splitter import is_part
from shmaccum.sender.duties.duty import Shared
from shmaccum.sender.duties.overflow import NoOverflow
from shmaccum.sender.record_errors import MESSAGE_TOO_LARGE, RECORD_ERRORS_MAX, error_runs
from shmaccum.sender.sink_batches import release_views
from shmaccum.sender.sinks.sink import Ack, Acks, Verdict, each_ack

if TYPE_CHECKING:
    from shmaccum.sender.duties.dead_letters import DeadLetters

SUCCEEDED = int(BatchResult.SUCCEEDED)
FAILED = int(BatchResult.FAILED)


class AckSettler:
    """Handles acks, in the sender's thread.

    Args:
        dead_letters: takes the records of failed batches; None to discard them.
        overflow: takes the acks of its batches.
    """

    def __init__(self, shared: Shared, dead_letters: DeadLetters | None, overflow: NoOverflow) -> None:
        self._half = shared.half
        self._sink_batches = shared.sink_batches
        self._batch_splitter = shared.batch_splitter
        self._identity = shared.identity
        self._metrics = shared.metrics
        self._host = shared.host
        self._report = shared.host.report
        self._retries = shared.options.retries
        self._backoff = shared.backoff
        self._dead_letters = dead_letters
        self._overflow = overflow
        self._kept: list[Ack] = []
        self._handlers: dict[Verdict, Callable[[Ack, int], None]] = {
            Verdict.DELIVERED: self._deliver,
            Verdict.RETRY: self._retry,
            Verdict.REFUSED: self._refuse,
            Verdict.TOO_LARGE: self._too_large,
            Verdict.OUT_OF_SEQUENCE: self._out_of_sequence,
        }

    @property
    def kept_count(self) -> int:
        """Acks of batches whose bytes are still in use, or whose failed records could not be written."""
        return len(self._kept)

    def settle(self, acks: Iterable[Ack | Acks], now_ns: int) -> None:
        """Apply the acks, in their order."""
        latencies_ns: list[int] = []
        for ack in acks:
            wires = ack.wires if isinstance(ack, Acks) else (ack.wire,)
            added_ns = self._sink_batches.remove(wires)
            latencies_ns += [now_ns - time_ns for time_ns in added_ns if time_ns is not None]
            if isinstance(ack, Acks) and None not in added_ns and not self._overflow.is_spilled(ack.wires[0]):
                self._deliver_all(ack, now_ns)
                continue
            for one, time_ns in zip(each_ack([ack]), added_ns, strict=True):
                if time_ns is not None:
                    self._handle(one, now_ns)
                    continue
                self._report(f"the sink acknowledged a batch of {one.wire.topic} that it does not have: ignored")
        if latencies_ns:
            self._metrics.acked(latencies_ns, now_ns)

    def _deliver_all(self, acks: Acks, now_ns: int) -> None:
        """Complete batches in one call, and unusual ones one by one."""
        batches = [wire.batch for wire in acks.wires]
        counts = [wire.record_count for wire in acks.wires]
        left = self._half.complete_many(batches, counts, acks.base_offsets, acks.log_append_times_ms)
        if left:
            singles = list(acks)
            for place in left:
                self._handle(singles[place], now_ns)

    def settle_kept(self, now_ns: int) -> None:
        """Retry the acks that could not be applied, because views of their bytes were still in use."""
        kept, self._kept = self._kept, []
        for ack in kept:
            release_views(ack.wire.buffers)
            self._handle(ack, now_ns)

    def _handle(self, ack: Ack, now_ns: int) -> None:
        if self._overflow.is_spilled(ack.wire):
            self._overflow.settle(ack, now_ns)
            return
        try:
            if ack.wire.batch.is_ended:
                self._release(ack)
            else:
                self._handlers[ack.verdict](ack, now_ns)
        except BatchInUseError:
            self._report("the sink keeps the bytes of a batch it has acknowledged: its memory cannot be used again")
            self._kept.append(ack)

    # --- verdicts

    def _deliver(self, ack: Ack, _now_ns: int) -> None:
        wire = ack.wire
        if not is_part(wire):
            self._half.complete(wire.batch, SUCCEEDED, ack.base_offset, ack.log_append_time_ms)
            return
        self._half.complete_part(wire.batch, wire.record_count, SUCCEEDED, ack.base_offset, ack.log_append_time_ms)
        self._batch_splitter.continue_batch(wire.batch)

    def _retry(self, ack: Ack, now_ns: int) -> None:
        batch = ack.wire.batch
        if batch.attempt_count > self._retries:
            self._fail(ack, f"given up after {batch.attempt_count} attempts: {ack.message}", now_ns)
            return
        if ack.error_code in REPLICAS_MISSING:
            self._half.set_refused(ack.wire.partition_index, ack.error_code)
        if ack.message:
            self._host.last_failures[ack.wire.partition_index] = ack.message
            self._report(Report(Kind.RETRIED, ack.message, self._name(ack)))
        self._send_again(ack, now_ns + self._pause_ns(ack), now_ns)

    def _refuse(self, ack: Ack, now_ns: int) -> None:
        self._fail(ack, ack.message or "refused", now_ns)

    def _too_large(self, ack: Ack, now_ns: int) -> None:
        if ack.wire.record_count == 1:
            ack.error_code = ack.error_code or MESSAGE_TOO_LARGE
            self._fail(ack, f"a record of {ack.wire.size} bytes is too large for the sink: {ack.message}", now_ns)
            return
        self._metrics.batches_split.add(1, now_ns)
        self._batch_splitter.halve(ack.wire)

    def _out_of_sequence(self, ack: Ack, now_ns: int) -> None:
        """Retry. After a second attempt, the partition starts over in a new epoch.

        The first attempt proves nothing, because the batch may have overtaken an older one.
        """
        was_oldest = ack.wire.batch.attempt_count > 1
        partition_index = ack.wire.partition_index
        self._send_again(ack, now_ns, now_ns)
        if was_oldest and ack.wire.producer_id >= 0:
            self._report(f"{self._name(ack)} starts over in a new epoch: {ack.message}")
            self._identity.start_over(partition_index)

    # --- parts of the verdicts

    def _name(self, ack: Ack) -> str:
        return f"{ack.wire.topic}-{ack.wire.partition}"

    def _pause_ns(self, ack: Ack) -> int:
        if ack.retry_after_ms is not None:
            return ack.retry_after_ms * NS_PER_MS
        return self._backoff.pause_ns(ack.wire.batch.attempt_count)

    def _send_again(self, ack: Ack, retry_at_ns: int, now_ns: int) -> None:
        self._metrics.retried(ack.wire.topic, ack.wire.record_count, now_ns)
        self._requeue(ack, retry_at_ns)

    def _requeue(self, ack: Ack, retry_at_ns: int) -> None:
        self._half.requeue(ack.wire.batch, retry_at_ns)
        if is_part(ack.wire):
            self._batch_splitter.leave(ack.wire.batch)

    def _release(self, ack: Ack) -> None:
        """Requeue a batch that has its result, which frees its memory or marks undelivered records as failed."""
        if self._dead_letters is not None:
            self._dead_letters.expect()
            if ack.verdict is Verdict.DELIVERED:
                self._half.complete_part(ack.wire.batch, ack.wire.record_count, SUCCEEDED)
        if ack.wire.batch.is_over:
            self._batch_splitter.leave(ack.wire.batch)
        else:
            self._requeue(ack, 0)

    def _write_dead_letter(self, ack: Ack, sentence: str, now_ns: int) -> bool:
        """Write the records of a failed batch. Return False if the batch cannot be completed now."""
        assert self._dead_letters is not None
        wire = ack.wire
        self._host.last_failures[wire.partition_index] = sentence
        try:
            if not is_part(wire):  # other parts of the batch may still be delivered
                self._half.decide(wire.batch, FAILED, ack.error_code)
            reason = Reason(BatchResult.FAILED, ack.error_code, sentence)
            is_written = self._dead_letters.write(wire.batch, wire.first_record, reason, now_ns, wire.record_count)
        except CorruptArenaError as error:
            self._sink_batches.quarantine.take(wire.batch, str(error))
            self._batch_splitter.leave(wire.batch)
            return False
        if not is_written:
            self._kept.append(ack)
        return is_written

    def _fail(self, ack: Ack, sentence: str, now_ns: int) -> None:
        wire = ack.wire
        if self._dead_letters is not None and not self._write_dead_letter(ack, sentence, now_ns):
            return
        # Reported before the result is set, because futures read the reason with the result.
        self._report(Report(Kind.REFUSED, sentence, self._name(ack), ack.error_code))
        self._complete_failed(ack)
        self._metrics.failed(wire.topic, wire.record_count, now_ns)
        if is_part(wire):
            self._batch_splitter.continue_batch(wire.batch)

    def _complete_failed(self, ack: Ack) -> None:
        wire = ack.wire
        runs = list(error_runs(wire.record_count, ack.record_errors)) if ack.record_errors else []
        if 1 < len(runs) <= RECORD_ERRORS_MAX:
            for count, is_invalid in runs:
                self._half.complete_part(
                    wire.batch, count, FAILED, None, None, ack.error_code if is_invalid else UNAFFECTED
                )
        elif is_part(wire):
            self._half.complete_part(wire.batch, wire.record_count, FAILED, None, None, ack.error_code)
        else:
            self._half.complete(wire.batch, FAILED, None, None, ack.error_code)
