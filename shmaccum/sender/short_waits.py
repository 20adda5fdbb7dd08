# SPDX-License-Identifier: Apache-2.0
"""Short timed waits: how a sender waits between rounds, and which processes wake it meanwhile (docs/decisions/0020).

::

    asleep       nothing was sent lately    each append that opens a batch wakes the sender
                 and the sink is full       only processes that wait for the sender wake it
    short wait   batches fill up            for a millisecond, only processes that wait for the sender wake it
    open wait    batches have few records   the same, but a batch that is due before the end of the wait wakes it, too
    long wait    batches linger             the same as an open wait, until the next batch may be due
"""

from __future__ import annotations

from collections.abc import Sequence

from shmaccum import _native
from shmaccum.common.clock import NS_PER_MS
from shmaccum.sender.backoff import NEVER_NS
from shmaccum.sender.sinks.sink import Sink, WireBatch

SHORT_WAIT_NS = NS_PER_MS
LONG_WAIT_NS = 5 * NS_PER_MS
"""The wait while batches linger. A batch that is due earlier ends it."""
BUSY_NS = 10 * NS_PER_MS
FEW_SHARE = 16
"""A batch has few records if it takes less than this part of a buffer. A producer that appends without a pause exceeds
it before the next round, so it wakes the sender no more often than without this rule."""
NS_PER_US = 1_000


class ShortWaits:
    """Chooses the next wait from the batches that were sent last.

    Args:
        linger_ns: of batches whose producer set none.
    """

    def __init__(self, native: _native.Arena, linger_ns: int) -> None:
        self._native = native
        self._linger_ns = linger_ns
        self._full_size = native.geometry["batch_size"] // 2
        self._few_size = native.geometry["batch_size"] // FEW_SHARE
        self._last_sent_ns = 0
        self._wait_ns = SHORT_WAIT_NS
        self._is_open = False
        """A producer whose batch is due before the end of the wait wakes the sender."""

    def sent(self, wires: Sequence[WireBatch], now_ns: int) -> None:
        said_ns = [wire.batch.linger_ns for wire in wires if wire.batch.linger_ns >= 0]
        self.record_sent(max([wire.size for wire in wires]), min(said_ns, default=-1), now_ns)

    def record_sent(self, size: float, linger_ns: int, now_ns: int) -> None:
        """Record that batches are being sent, or were sent.

        Args:
            size: bytes of the largest.
            linger_ns: the shortest that a producer set; -1 if none did.
        """
        self._last_sent_ns = now_ns
        self._wait_ns = SHORT_WAIT_NS if size > self._full_size else self._wait_after(linger_ns)
        self._is_open = size < self._few_size or self._wait_ns > SHORT_WAIT_NS

    def spilled(self, now_ns: int) -> None:
        """Record that full batches are moved to the overflow."""
        self._last_sent_ns = now_ns
        self._wait_ns = SHORT_WAIT_NS

    @property
    def depth(self) -> tuple[int, int]:
        """The length of the next wait in nanoseconds, and the value for producers in microseconds. The latter is 0 if
        no batch is to wake the sender.
        """
        return self._wait_ns, self._wait_ns // NS_PER_US if self._is_open else 0

    def begin(self, now_ns: int, sink: Sink) -> int:
        """Publish how the sender waits. Return the end of the short wait; NEVER_NS if it is asleep."""
        if now_ns - self._last_sent_ns >= BUSY_NS:
            if sink.peer.is_full:
                self._native.set_sender_short_wait(0)
            else:
                self._native.set_sender_asleep(True)
            return NEVER_NS
        short_wait_ns, short_wait_us = self.depth
        self._native.set_sender_short_wait(short_wait_us)
        return now_ns + short_wait_ns

    def end(self) -> None:
        """Publish that the sender is awake, so no process wakes it."""
        self._native.set_sender_asleep(False)

    def _wait_after(self, linger_ns: int) -> int:
        """Return the time during which no producer has to wake the sender, after batches that are far from full.

        If batches are sent because they have lingered, the next ones will linger, too, for the shortest of these
        times. A producer with a batch that is due earlier wakes the sender. If a producer set no linger, its batches
        have the sender's.
        """
        shortest_ns = min(self._linger_ns, LONG_WAIT_NS)
        return max(SHORT_WAIT_NS, shortest_ns if linger_ns < 0 else min(shortest_ns, linger_ns))
