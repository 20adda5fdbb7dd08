# SPDX-License-Identifier: Apache-2.0
"""The wait of a sender between two rounds: for the sink's I/O or a wake-up, until something is due.

The wait has one of two forms. While the sender is asleep (in ticks of 100 ms, or of a second after an idle second),
every append wakes it, which costs the producer a system call. In the middle of traffic, the sender waits for a short
time instead, and only processes that wait for it (for a buffer, for a flush) wake it. If batches fill up, this time is
a millisecond, after which many batches are full. If batches linger, it lasts until the next one may be due. A producer
that fills a batch, or uses a shorter linger, also wakes the sender. When one batch is due, all batches that have
lingered for half of their time are sent with it, which saves requests and rounds. A sender that was asleep for a second
and finds nothing continues to sleep without a round.
"""

from __future__ import annotations

from collections.abc import Sequence

from shmaccum.common.clock import NS_PER_MS, NS_PER_S
from shmaccum.sender.backoff import NEVER_NS
from shmaccum.sender.duties.ack_settler import AckSettler
from shmaccum.sender.duties.batch_sender import Ready
from shmaccum.sender.duties.duty import TICK_NS, Duty, Shared
from shmaccum.sender.duties.maintenance import Maintenance
from shmaccum.sender.sinks.sink import Ack, Acks

IDLE_TICK_NS = 1000 * NS_PER_MS
"""The tick after an idle second."""
IDLE_WAIT_NS = 1000 * NS_PER_MS


class RoundWait:
    """Polls the sink.

    Args:
        duties: the wait ends when one of them is due.
    """

    def __init__(
        self, shared: Shared, ready: Ready, ack_settler: AckSettler, duties: Sequence[Duty], maintenance: Maintenance
    ) -> None:
        self._half = shared.half
        self._native = shared.native
        self._sink = shared.sink
        self._wake_fifo = shared.wake_fifo
        self._trouble = shared.trouble
        self._short_waits = shared.short_waits
        self._ready = ready
        self._sink_batches = shared.sink_batches
        self._ack_settler = ack_settler
        self._duties = duties
        self._maintenance = maintenance
        self.has_slept_long = False
        """True after a second without any work."""
        self._is_dormant = False

    def can_skip_round(self, now_ns: int) -> bool:
        """True if the last round slept through and nothing has changed, so that a whole round would find nothing.

        A round costs more than the wake-up itself (docs/decisions/0020).
        """
        was_dormant, self._is_dormant = self._is_dormant, False
        if not was_dormant or self._ready.is_closing or self._trouble.failure_count or now_ns >= self.next_ns():
            return False
        return not self._has_batches(now_ns) and not self._is_requested

    def next_ns(self) -> int:
        """Return the time at which a duty is due."""
        return min([duty.due_ns for duty in self._duties])

    @property
    def is_idle(self) -> bool:
        """True if no batch is known, not even an open one, and no duty has work left."""
        has_batches = self._sink_batches or self._ack_settler.kept_count or self._half.oldest_created_ns is not None
        return not has_batches and all(duty.is_idle for duty in self._duties)

    @property
    def _is_requested(self) -> bool:
        return any(duty.is_requested for duty in self._duties)

    def poll(self, wait_ns: int) -> Sequence[Ack | Acks]:
        """Return the acks that the sink has, or that arrive within this time."""
        return self._trouble.ask(lambda: self._sink.poll(wait_ns / NS_PER_S, self._wake_fifo.fileno()), ())

    def wait_until_due(self) -> Sequence[Ack | Acks]:
        """Wait until something is due, or a process wakes the sender."""
        if self._ready.is_closing and self.is_idle:
            return self.poll(0)
        now_ns = self._native.now_ns()
        wake_at_ns = self._short_waits.begin(now_ns, self._sink)
        try:
            return self._wait_until(wake_at_ns, now_ns)
        finally:
            self._short_waits.end()
            if not self._is_dormant:
                self._wake_fifo.clear()

    def _wait_until(self, wake_at_ns: int, now_ns: int) -> Sequence[Ack | Acks]:
        if self._ready.partitions != self._ready.scan(now_ns) or self._is_requested:
            return self.poll(0)  # D2: a batch got ready before producers could see that the sender waits
        due_ns = min(wake_at_ns, self._ready.check_at_ns, self.next_ns())
        tick_at_ns = self._maintenance.due_ns
        is_asleep = wake_at_ns == NEVER_NS  # not every append ends a short wait
        if is_asleep and due_ns > tick_at_ns and self.is_idle:
            return self._sleep()
        return self.poll(max(min(due_ns, tick_at_ns) - now_ns, 0))

    def _sleep(self) -> Sequence[Ack | Acks]:
        """Sleep while nothing is queued. A tick shows life, and checks for work without a wake-up.

        Wake-ups are the cost of an idle sender (docs/decisions/0020), so ticks are rarer after an idle second.
        """
        tick_ns = IDLE_TICK_NS if self.has_slept_long else TICK_NS
        for _ in range(IDLE_WAIT_NS // tick_ns):
            acks = self.poll(tick_ns)
            if acks or self._wake_fifo.clear():
                return acks
            self._half.maintain()
            if self._has_batches(self._native.now_ns()) or self._is_requested:
                return acks
        self.has_slept_long = self._is_dormant = True
        return ()

    def _has_batches(self, now_ns: int) -> bool:
        return bool(self._ready.scan(now_ns)) or self._ready.check_at_ns != NEVER_NS
