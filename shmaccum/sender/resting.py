# SPDX-License-Identifier: Apache-2.0
"""The rest of a sender between two rounds: on the sink's I/O and the doorbell, until something is due.

A rest has one of two depths. Asleep (in ticks of 100 ms, and of a second when nothing came for one), every append
wakes the sender, at the price of a system call for the producer. So in the middle of traffic the sender naps instead,
and only processes that wait for it ring (for a buffer, for a flush). Where batches fill up, a nap is a millisecond, and
then many are full. Where they linger, a nap lasts until the next one may be due; a producer that fills a batch, or lets
one linger for less, rings as well. A batch that is due takes those along that have lingered for half of their time:
they share its request and save a round of their own. A sender that slept through a second and finds nothing sleeps on
without a round.
"""

from __future__ import annotations

from collections.abc import Sequence

from shmaccum.common.clock import NS_PER_MS, NS_PER_S
from shmaccum.sender.backoff import NEVER_NS
from shmaccum.sender.duties.duty import TICK_NS, Duty, Shared
from shmaccum.sender.duties.maintenance import Maintenance
from shmaccum.sender.duties.sending import Ready
from shmaccum.sender.duties.settling import Settling
from shmaccum.sender.sinks.sink import Ack, Acks

IDLE_TICK_NS = 1000 * NS_PER_MS
"""Once a second has passed without anything."""
IDLE_REST_NS = 1000 * NS_PER_MS


class Rest:
    """Polls the sink.

    Args:
        duties: those that a rest must not outlast.
    """

    def __init__(
        self, shared: Shared, ready: Ready, settling: Settling, duties: Sequence[Duty], maintenance: Maintenance
    ) -> None:
        self._half = shared.half
        self._native = shared.native
        self._sink = shared.sink
        self._doorbell = shared.doorbell
        self._trouble = shared.trouble
        self._naps = shared.naps
        self._ready = ready
        self._lending = shared.lending
        self._settling = settling
        self._duties = duties
        self._maintenance = maintenance
        self.has_slept_long = False
        """A second has passed without anything."""
        self._is_dormant = False

    def goes_on(self, now_ns: int) -> bool:
        """True when the last round slept through and there is no news: a whole round would find nothing.

        It costs more than coming awake (docs/decisions/0020).
        """
        was_dormant, self._is_dormant = self._is_dormant, False
        if not was_dormant or self._ready.is_closing or self._trouble.failure_count or now_ns >= self.next_ns():
            return False
        return not self._has_batches(now_ns) and not self._is_news

    def next_ns(self) -> int:
        """When a duty is due."""
        return min([duty.due_ns for duty in self._duties])

    @property
    def is_idle(self) -> bool:
        """True when no batch is known, not even one that is filling, and no duty has anything left."""
        is_settled = not self._lending and not self._settling.kept_count and self._half.oldest_created_ns is None
        return is_settled and all(duty.is_idle for duty in self._duties)

    @property
    def _is_news(self) -> bool:
        return any(duty.is_news for duty in self._duties)

    def poll(self, rest_ns: int) -> Sequence[Ack | Acks]:
        """The acks that the sink has, or those that come within this time."""
        return self._trouble.ask(lambda: self._sink.poll(rest_ns / NS_PER_S, self._doorbell.fileno()), ())

    def until_due(self) -> Sequence[Ack | Acks]:
        """Waits until something is due. A process with news in the meantime rings."""
        if self._ready.is_closing and self.is_idle:
            return self.poll(0)
        now_ns = self._native.now_ns()
        wake_at_ns = self._naps.begin(now_ns, self._sink)
        try:
            return self._until(wake_at_ns, now_ns)
        finally:
            self._naps.end()
            if not self._is_dormant:
                self._doorbell.clear()

    def _until(self, wake_at_ns: int, now_ns: int) -> Sequence[Ack | Acks]:
        if self._ready.partitions != self._ready.look(now_ns) or self._is_news:
            return self.poll(0)  # D2: it came before anybody knew that we rest
        due_ns = min(wake_at_ns, self._ready.check_at_ns, self.next_ns())
        tick_at_ns = self._maintenance.due_ns
        is_asleep = wake_at_ns == NEVER_NS  # nobody rings a nap for all there is
        if is_asleep and due_ns > tick_at_ns and self.is_idle:
            return self._sleep()
        return self.poll(max(min(due_ns, tick_at_ns) - now_ns, 0))

    def _sleep(self) -> Sequence[Ack | Acks]:
        """Nothing is queued: for a second a tick is a sign of life and a look for what nobody rang for, no more.

        Coming awake is what an idle sender costs (docs/decisions/0020), so after such a second ticks are rarer.
        """
        tick_ns = IDLE_TICK_NS if self.has_slept_long else TICK_NS
        for _ in range(IDLE_REST_NS // tick_ns):
            acks = self.poll(tick_ns)
            if acks or self._doorbell.clear():
                return acks
            self._half.maintain()
            if self._has_batches(self._native.now_ns()) or self._is_news:
                return acks
        self.has_slept_long = self._is_dormant = True
        return ()

    def _has_batches(self, now_ns: int) -> bool:
        return bool(self._ready.look(now_ns)) or self._ready.check_at_ns != NEVER_NS
