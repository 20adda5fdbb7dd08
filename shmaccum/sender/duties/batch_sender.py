# SPDX-License-Identifier: Apache-2.0
"""Sends the batches of the arena (Kafka's sendProducerData): ready → plan → drain → check → deliver.

The core sends ordinary batches. `SocketBatchSender` passes the sink's sockets to the pump. `LogBatchSender` passes the
ends of the sink's logs to the native call that appends. `BatchSender` delivers the other batches: those for another
sink, a batch that is larger than a buffer, one that has to be split or is damaged, the first batch of a partition, and
everything after an error. Batches of the overflow are sent before any of the arena.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence

from shmaccum._native import Batch
from shmaccum.common.clock import NS_PER_MS
from shmaccum.sender.backoff import NEVER_NS, sentence_of
from shmaccum.sender.duties.ack_settler import AckSettler
from shmaccum.sender.duties.duty import Duty, Shared
from shmaccum.sender.duties.maintenance import Maintenance
from shmaccum.sender.duties.overflow import NoOverflow
from shmaccum.sender.pump import PumpRunner
from shmaccum.sender.sink_batches import release_views
from shmaccum.sender.sinks.sink import Ack, Delivered, LogEnds, Verdict, WireBatch


class Ready:
    """The partitions that have batches to send."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.partitions: list[int] = []
        """The ready partitions of the last scan. Empty after a delivery, so that the next scan reports all of them."""
        self.check_at_ns = shared.native.now_ns()
        """The time at which the next partition becomes ready, or NEVER_NS if no batch is open."""
        self.is_closing = False
        """True if batches no longer linger."""

    def scan(self, now_ns: int) -> list[int]:
        """Scan the arena."""
        self.partitions, next_check_ns = self._shared.half.ready(
            self._shared.linger_ns, self.is_closing, now_ns, self._shared.sink.limits.in_flight_max, True
        )
        self.check_at_ns = NEVER_NS if next_check_ns is None else now_ns + next_check_ns
        return self.partitions


@dataclasses.dataclass(eq=False)
class BatchSender(Duty):
    """Drains ready partitions, and delivers the batches to the sink."""

    shared: Shared
    ready: Ready
    ack_settler: AckSettler
    overflow: NoOverflow
    _left_over: dict[int, int] = dataclasses.field(default_factory=dict, init=False)

    def send(self, now_ns: int) -> int:
        """Send what is ready. Return the number of batches given to the sink."""
        is_settled = self.shared.identity.is_known or self.overflow.is_settled
        if not is_settled or not self.shared.trouble.ask(self.shared.identity.acquire, False):
            self.ready.scan(now_ns)  # otherwise, the next wait would end at once because of these ready partitions
            return 0
        sent = self.overflow.ship_others(self._deliver, now_ns)
        if ready := self._ready(now_ns):
            sent += self._send(ready, now_ns)
        if sent:
            self.ready.partitions = []
        return sent

    def _ready(self, now_ns: int) -> list[int]:
        """Return the partitions with batches. Partitions that did not fit into the last deliveries come first."""
        ready = self.ready.scan(now_ns) + self.shared.batch_splitter.partitions_due()
        if not self.overflow.is_idle:
            ready = [index for index in ready if not self.overflow.holds(index)]
        if self._left_over:
            left_over = self._left_over
            ready.sort(key=lambda partition_index: left_over.get(partition_index, len(left_over)))
        return ready

    def _send(self, ready: Sequence[int], now_ns: int) -> int:
        plan: Sequence[Sequence[int]] = self.shared.trouble.ask(lambda: self.shared.sink.plan(ready), [])
        return sum(self._send_request(request, now_ns) for request in plan)

    def _send_request(self, request: Sequence[int], now_ns: int) -> int:
        batches, seen_count, sent = self._drain_or_append(request, now_ns)
        if self._left_over or seen_count < len(request):
            self._leave_over(request, seen_count)
        wires = self._wires(batches)
        batch_splitter = self.shared.batch_splitter
        if due := batch_splitter.partitions_due():
            wires += [part for index in due if index in request and (part := batch_splitter.take_due(index))]
        return sent + self._deliver(wires, now_ns)

    def _drain_or_append(self, request: Sequence[int], now_ns: int) -> tuple[list[Batch], int, int]:
        """Return the batches to deliver, the number of partitions scanned, and the number of batches with results."""
        limits = self.shared.sink.limits
        return *self.shared.half.drain(request, limits.request_size_max, limits.in_flight_max, now_ns), 0

    def _leave_over(self, request: Sequence[int], seen_count: int) -> None:
        """Remember the partitions that were not scanned, because nothing more fits. They come first the next time."""
        left_over = self._left_over
        for partition_index in request[:seen_count]:
            left_over.pop(partition_index, None)
        left = [*left_over, *(index for index in request[seen_count:] if index not in left_over)]
        self._left_over = {partition_index: place for place, partition_index in enumerate(left)}

    def _wires(self, batches: Iterable[Batch]) -> list[WireBatch]:
        """Return the batches in the form for the sink. A batch that is split is left out, and its next part is sent."""
        wires = []
        for batch in batches:
            wire = self.shared.sink_batches.whole(batch)
            if wire is None:
                continue
            if batch.acked_record_count:
                release_views(wire.buffers)
                self.shared.batch_splitter.continue_batch(batch)
            else:
                wires.append(wire)
        return wires

    def _deliver(self, wires: list[WireBatch], now_ns: int) -> int:
        """Deliver batches to the sink. Return their number."""
        if not wires:
            return 0
        self.shared.short_waits.sent(wires, now_ns)
        self.shared.sink_batches.add(wires, now_ns)
        self.shared.metrics.sent(wires, now_ns)
        try:
            self.shared.sink.deliver(wires)
        except Exception as error:  # noqa: BLE001 - no exception of a sink may lose a batch
            sentence = f"the sink could not start a delivery: {sentence_of(error)}"
            self.ack_settler.settle([Ack(wire, Verdict.RETRY, message=sentence) for wire in wires], now_ns)
        return len(wires)


@dataclasses.dataclass(eq=False)
class LogBatchSender(BatchSender):
    """The core drains, appends ordinary batches to the logs of the sink, and completes them."""

    logs: LogEnds

    def _drain_or_append(self, request: Sequence[int], now_ns: int) -> tuple[list[Batch], int, int]:
        if not self.logs.log_ends:
            return super()._drain_or_append(request, now_ns)
        shared, limits = self.shared, self.shared.sink.limits
        batches, seen_count, numbers = shared.half.append_to_log(
            self.logs.log_ends,
            request,
            limits.request_size_max,
            limits.in_flight_max,
            now_ns,
            shared.metrics.largest_record(now_ns),
        )
        if numbers is None:
            return batches, seen_count, 0
        delivered = Delivered(*numbers)
        shared.results_waker.wake_if_awaited()
        shared.short_waits.record_sent(delivered.largest_size, delivered.linger_ns, now_ns)
        shared.metrics.delivered(delivered, now_ns)
        shared.trouble.ask(lambda: self.logs.appended(delivered.rows), None)
        return batches, seen_count, delivered.batch_count


@dataclasses.dataclass(eq=False)
class SocketBatchSender(BatchSender):
    """Sends ready partitions through sockets of the sink, in the core. Other partitions are sent by `BatchSender`."""

    pump: PumpRunner
    transaction_ender: Duty
    maintenance: Maintenance
    next_ns: Callable[[], int]
    """Returns the time at which another duty is due."""
    _is_stuck: bool = dataclasses.field(default=False, init=False)

    def _send(self, ready: Sequence[int], now_ns: int) -> int:
        if not self._may_pump():
            return super()._send(ready, now_ns)
        newest_expiry_ns = now_ns + self.shared.options.delivery_timeout_ms * NS_PER_MS  # of a batch that is opened now
        due_ns = min(self.next_ns(), newest_expiry_ns, self.maintenance.ends_pump_ns)
        is_stuck = self._is_stuck or not self.overflow.is_idle
        carried = self.shared.trouble.ask(lambda: self.pump.run(ready, due_ns, is_stuck=is_stuck), None)
        if carried is None:
            return super()._send(ready, now_ns)
        if carried.batch_count:
            self.transaction_ender.expect()
        now_ns = self.shared.native.now_ns()
        sent = carried.batch_count + self._deliver(self._wires(carried.left), now_ns)
        foreign = [index for index in self._ready(now_ns) if not self.pump.carries(index)]
        foreign_sent = super()._send(foreign, now_ns) if foreign else 0
        self._is_stuck = bool(foreign) and not foreign_sent
        return sent + foreign_sent

    def _may_pump(self) -> bool:
        """Return False if there is work that the pump cannot do.

        With a manual clock, no time limit of the pump would ever pass.
        """
        is_whole = not self.shared.batch_splitter.partitions_due()
        is_timed = not self.shared.native.has_manual_clock
        return self.pump.may_run and is_whole and is_timed and not self.ready.is_closing
