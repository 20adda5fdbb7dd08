# SPDX-License-Identifier: Apache-2.0
"""Fails batches that are older than delivery_timeout_ms on the delivery clock.

The reason is reported before the result is set, because a reader of the result looks for the reason in the error log.
A round with no batch that is old enough only reads the time of the next expiry.
"""

from __future__ import annotations

from shmaccum.arena.reports import Kind, Report
from shmaccum.common.clock import NS_PER_MS
from shmaccum.exceptions import CorruptArenaError
from shmaccum.sender.backoff import NEVER_NS
from shmaccum.sender.delivery_clock import DeliveryClock
from shmaccum.sender.duties.duty import Duty, Shared


class Expiry(Duty):
    """Advances the delivery clock, and ends the batches that are too old.

    Args:
        dead_letters: takes batches that have expired.
    """

    due_ns = NEVER_NS
    """The time at which the next batch expires if the clock does not stop."""

    def __init__(self, shared: Shared, clock: DeliveryClock, dead_letters: Duty) -> None:
        self._half = shared.half
        self._host = shared.host
        self._clock = clock
        self._metrics = shared.metrics
        self._results_waker = shared.results_waker
        self._dead_letters = dead_letters
        self._timeout_ns = shared.options.delivery_timeout_ms * NS_PER_MS

    def run(self, now_ns: int) -> None:
        self._clock.check(now_ns)
        next_ns = self._half.next_expiry_ns(self._timeout_ns, now_ns)
        if next_ns == 0:
            next_ns = self._expire(now_ns)
        self.due_ns = NEVER_NS if next_ns is None or self._clock.stands_still else now_ns + next_ns

    def _expire(self, now_ns: int) -> int | None:
        self._report_reason(now_ns)
        _, next_ns = self._half.expire(self._timeout_ns, now_ns)
        self._results_waker.wake_if_awaited()
        self._count(now_ns)
        self._dead_letters.expect()
        return next_ns

    def _count(self, now_ns: int) -> None:
        """Count the expired records in the metrics."""
        for partition_index, record_count in self._half.take_expired().items():
            try:
                topic, _ = self._host.topic_partition(partition_index)
            except CorruptArenaError:  # the batch or the table is damaged
                topic = ""
            self._metrics.failed(topic, record_count, now_ns)

    def _report_reason(self, now_ns: int) -> None:
        trouble, trouble_ns = self._host.last_trouble
        is_young = now_ns - trouble_ns < self._timeout_ns
        timeout = f"{self._host.options.delivery_timeout_ms} ms"
        self._host.report(Report(Kind.EXPIRED, trouble if is_young else "", timeout))
