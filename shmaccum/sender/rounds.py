# SPDX-License-Identifier: Apache-2.0
"""The rounds of a sender while it has the role (Kafka's Sender.runOnce).

`Rounds.run` is one round: the duties in order, then a wait, then the acks. `shmaccum.sender.duties` has the duties.

Rules, and differences from Kafka's sender:

* Expiry comes before drain, and the sink omits batches that expire while it has them. So no request is started with a
  batch whose producer has read that it failed.
* A partition that backs off, is muted or has enough in flight is skipped, and delays no other partition.
* No user code runs here: the producing processes run callbacks.
* A partition without batches costs nothing: a round looks only at partitions that have some.
* After a sink raises, it is not called for a while. Batches that it has stay there, and the others are retried.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from shmaccum.arena.wake_fifo import wait_readable
from shmaccum.common import clock
from shmaccum.common.clock import NS_PER_S
from shmaccum.sender.delivery_clock import DeliveryClock
from shmaccum.sender.duties.ack_settler import AckSettler
from shmaccum.sender.duties.batch_sender import BatchSender, LogBatchSender, Ready, SocketBatchSender
from shmaccum.sender.duties.duty import TICK_NS, Duty, Shared
from shmaccum.sender.duties.expiry import Expiry
from shmaccum.sender.duties.maintenance import Maintenance
from shmaccum.sender.duties.overflow import NoOverflow, OverflowDuty
from shmaccum.sender.duties.topics import TopicPublisher
from shmaccum.sender.duties.transaction_ender import TransactionEnder
from shmaccum.sender.pump import PumpRunner
from shmaccum.sender.round_wait import RoundWait
from shmaccum.sender.sink_batches import requeue_all
from shmaccum.sender.sinks.sink import Ack, Acks, logs_of, sockets_of

if TYPE_CHECKING:
    from shmaccum.sender.duties.dead_letters import DeadLetters
    from shmaccum.sender.overflow import Overflow


class Rounds:
    """The work of a sender between taking the role and leaving it.

    Args:
        dead_letters: already open; None to discard failed records.
        overflow: already open; None to keep batches in the arena while the sink does not work.
    """

    def __init__(self, shared: Shared, dead_letters: DeadLetters | None, overflow: Overflow | None) -> None:
        self._shared = shared
        self._half = shared.half
        self._native = shared.native
        self._trouble = shared.trouble
        self._sink_batches = shared.sink_batches
        self._overflow = NoOverflow() if overflow is None else OverflowDuty(shared, overflow, dead_letters)
        self._ack_settler = ack_settler = AckSettler(shared, dead_letters, self._overflow)
        self._maintenance = Maintenance(shared.half, ack_settler, has_overflow=overflow is not None)
        self.delivery_clock = DeliveryClock(shared, self._overflow)
        self._dead_letters = Duty() if dead_letters is None else dead_letters
        self._expiry = Expiry(shared, self.delivery_clock, self._dead_letters)
        self._transaction_ender = Duty() if shared.host.transactions is None else TransactionEnder(shared)
        self._topics = TopicPublisher(shared)
        self._duties = self._expiry, self._dead_letters, self._transaction_ender, self._overflow, self._topics
        self._ready = ready = Ready(shared)
        self._wait = RoundWait(shared, ready, ack_settler, self._duties, self._maintenance)
        sockets, logs = sockets_of(shared.sink), logs_of(shared.sink)
        if sockets is not None:
            pump, next_ns = PumpRunner(shared, sockets, self._overflow.holds), self._wait.next_ns
            self._batch_sender: BatchSender = SocketBatchSender(
                shared, ready, ack_settler, self._overflow, pump, self._transaction_ender, self._maintenance, next_ns
            )
        elif logs is not None:
            self._batch_sender = LogBatchSender(shared, ready, ack_settler, self._overflow, logs)
        else:
            self._batch_sender = BatchSender(shared, ready, ack_settler, self._overflow)

    def run(self, *, is_closing: bool = False) -> int:
        """Run one round. Return the number of batches delivered to the sink.

        The order is written out, without a loop over `_duties`. The overflow has two steps, a pause of the sink ends
        the round between them, and only some of the counts affect the wait. `RoundWait` asks `_duties` only for the
        time at which they are due.

        Args:
            is_closing: batches no longer linger.
        """
        self._ready.is_closing = is_closing
        failure_count = self._trouble.failure_count
        now_ns = self._native.now_ns()
        if self._wait.can_skip_round(now_ns):
            self._settle(self._wait.wait_until_due())
            return 0
        self._maintenance.run(now_ns)
        self._expiry.run(now_ns)
        self._dead_letters.run(now_ns)
        self._transaction_ender.run(now_ns)
        spilled = self._overflow.spill(now_ns)
        if pause_ns := self._trouble.pause_left_ns(now_ns):
            self._wait_for_stop(pause_ns)
            return 0
        shipped = self._overflow.ship(now_ns)
        now_ns = self._native.now_ns() if shipped else now_ns
        self._topics.run(now_ns)
        sent = self._batch_sender.send(now_ns)
        if spilled or shipped or sent:
            self._wait.has_slept_long = False
        self._settle(self._wait.poll(0) if spilled or shipped else self._wait.wait_until_due())
        if failure_count == self._trouble.failure_count:
            self._trouble.end()
        return shipped + sent

    def _wait_for_stop(self, pause_ns: int) -> None:
        """Do not call the sink. Producers wake a sender only while its sleep flag is set, which is clear here."""
        wait_readable([self._shared.wake_fifo], min(pause_ns, TICK_NS) / NS_PER_S)
        self._shared.wake_fifo.clear()

    def _settle(self, acks: Iterable[Ack | Acks]) -> None:
        self._ack_settler.settle(acks, self._native.now_ns())
        self._overflow.record()
        self._shared.results_waker.wake_if_awaited()

    # --- facts

    @property
    def is_closing(self) -> bool:
        """True if no batch lingered in the last round."""
        return self._ready.is_closing

    @property
    def oldest_created_ns(self) -> int | None:
        """The time at which the oldest batch without a result was opened, as of the last round; None if there is none.

        A batch in the overflow counts as older than all others.
        """
        return self._half.oldest_created_ns if self._overflow.is_idle else 0

    @property
    def transaction_state(self) -> str:
        """The state of the arena's transaction, by the core's name; "none" in an arena without transactions."""
        return self._native.transaction[1]

    @property
    def has_overflow(self) -> bool:
        """True while the overflow has batches."""
        return not self._overflow.is_idle

    @property
    def is_idle(self) -> bool:
        """True if no batch is known, not even an open one, and no duty has work left."""
        return self._wait.is_idle

    def metrics(self) -> dict[str, float]:
        """Return the metrics by Kafka's names, including the sink's own."""
        numbers = {
            **self._shared.metrics.read(self._native.now_ns()),
            "batches-in-flight": len(self._sink_batches),
            "batch-quarantine-total": self._sink_batches.quarantine.count,
        }
        for each in (self._transaction_ender, self._dead_letters, self._overflow, self._shared.sink):
            numbers.update(each.metrics())
        return numbers

    # --- the end

    def abort(self) -> None:
        """Fail every batch with ABORTED. The memory of batches in flight is freed when the sink is closed."""
        self._half.abort(True)

    def finish(self, timeout_s: float) -> None:
        """Wait for batches in flight, and send nothing more."""
        deadline_ns = clock.monotonic_ns() + int(timeout_s * NS_PER_S)
        while self._sink_batches and (left_ns := deadline_ns - clock.monotonic_ns()) > 0:
            failure_count = self._trouble.failure_count
            self._settle(self._wait.poll(min(left_ns, TICK_NS)))
            if failure_count != self._trouble.failure_count:
                return

    def requeue(self) -> None:
        """Requeue the batches of the closed sink for the next sender."""
        now_ns = self._native.now_ns()
        self._ack_settler.settle_kept(now_ns)
        self._shared.batch_splitter.clear()
        if requeue_all(self._half, self._sink_batches.remove_all(), 0):
            self._shared.host.report("the sink keeps bytes after it was closed: the next sender delivers their batches")
        self._dead_letters.finish(now_ns)
        self._half.maintain()  # frees batches that a producer was still writing to when they ended
