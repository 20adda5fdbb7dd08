# SPDX-License-Identifier: Apache-2.0
"""Decides when batches of the arena are moved to the overflow, and which.

::

    nothing is acknowledged for overflow_after_ms    the batches of every partition      above overflow_at
    a partition is stuck (stuck_partitions.h)        those of the stuck partitions       above overflow_at, or STUCK_AT
    a partition has batches in the overflow          those of this partition             as above

Rules
    An outage starts at the last acknowledgement, or at the time at which the oldest batch might have been delivered,
    whichever is later. So an idle hour is no outage, and neither is a slow sink that acknowledges.
    The time of the last acknowledgement is in the arena, so the next sender uses it. If no sender ran for
    `overflow_after_ms`, or it was stopped, the outage starts at the end of that time.
    Stuck partitions may use half of the buffers (topic_share.h, R1). Their batches spill before they use as much,
    because producers would wait otherwise.
    While a process waits for a buffer, some buffers are freed even below `overflow_at`, because the share of its topic
    may be used up before that.
    Batches of stuck and held partitions spill before they expire, however many buffers are in use. In an outage that
    the sink reports, no batch ages, so batches stay.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, final

from shmaccum._native import SenderHalf
from shmaccum.common.clock import NS_PER_MS
from shmaccum.config import SenderOptions
from shmaccum.sender.sinks.sink import Sink

PERCENT = 100
STUCK_AT = 40
"""Percent of the buffers; less than half of them."""
WAITED_SHARE = 8
"""This fraction of the buffers is freed while a process waits for one."""


class SpillNeed(NamedTuple):
    """The batches to move to the overflow."""

    surplus: int = 0
    """The number of buffers to free."""
    is_outage: bool = False
    """True if the batches of every partition may be moved."""
    stuck: Collection[int] = ()
    """If not, the partitions whose batches may be moved, besides the held partitions."""


@final
class SpillClock:
    """Decides what to move to the overflow.

    Args:
        half: with the sender role.
        sink: its acknowledgements count.
        options: of the sender.
        slot_count: buffers of the arena.
    """

    def __init__(self, half: SenderHalf, sink: Sink, options: SenderOptions, slot_count: int) -> None:
        self._half = half
        self._sink = sink
        self._slot_count = slot_count
        self._at = options.overflow_at
        self._after_ns = options.overflow_after_ms * NS_PER_MS
        self._late_ns = options.delivery_timeout_ms * NS_PER_MS // 2
        self._checked_ns: int | None = None
        self._begun_ns = 0
        """The end of the last span in which no sender delivered anything."""

    def need(self, linger_ns: int, now_ns: int, *, holds_any: bool) -> SpillNeed:
        """Return what has to be moved now.

        Args:
            linger_ns: of batches whose producer set none.
            now_ns: the arena's clock.
            holds_any: the overflow has batches.
        """
        used, waiter_count, acked_ns, waits_since_ns, former_heartbeat_ns = self._half.pressure(linger_ns, now_ns)
        self._record_check(former_heartbeat_ns if self._checked_ns is None else self._checked_ns, now_ns)
        is_silent = waits_since_ns is not None and self._is_over(max(acked_ns, waits_since_ns), now_ns)
        is_outage = self._sink.peer.outage is not None or is_silent
        stuck = self._half.stuck_partitions()
        if not (is_outage or stuck or holds_any):
            return SpillNeed()
        limit = (min(self._at, STUCK_AT) if stuck else self._at) * self._slot_count // PERCENT
        surplus = max(used - limit, self._slot_count // WAITED_SHARE if waiter_count else 0)
        if self._is_late(now_ns):
            surplus = self._slot_count
        return SpillNeed(surplus, is_outage, stuck) if surplus > 0 else SpillNeed()

    def _record_check(self, checked_ns: int, now_ns: int) -> None:
        if not 0 <= now_ns - checked_ns <= self._after_ns:
            self._begun_ns = now_ns
        self._checked_ns = now_ns

    def _is_over(self, since_ns: int, now_ns: int) -> bool:
        return now_ns - max(since_ns, self._begun_ns) >= self._after_ns

    def _is_late(self, now_ns: int) -> bool:
        oldest_ns = self._half.oldest_created_ns
        return self._sink.peer.outage is None and oldest_ns is not None and now_ns - oldest_ns > self._late_ns
