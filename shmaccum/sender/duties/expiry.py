# SPDX-License-Identifier: Apache-2.0
"""Fails batches that are older than delivery_timeout_ms on the delivery clock.

The reason is reported before the result is set, because a reader of the result looks for the reason in the error log.
While no batch can be old enough, a round only reads the time of the next expiry from the arena.
"""

from __future__ import annotations

from shmaccum.arena.reports import Kind, Report
from shmaccum.common.clock import NS_PER_MS
from shmaccum.exceptions import CorruptArenaError
from shmaccum.sender.backoff import NEVER_NS
from shmaccum.sender.delivery_clock import DeliveryClock
from shmaccum.sender.duties.duty import Duty, Shared

FAR_NS = 2**62
"""A span in which nothing expires."""


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
        self._timeout_ms = shared.options.delivery_timeout_ms
        self._is_reported = False
        self._stood_still = True
        """True in the first round, and after an outage, when batches may have any age."""

    def run(self, now_ns: int) -> None:
        self._clock.check(now_ns)
        if self._expire(now_ns):
            self._results_waker.wake_if_awaited()
            self._count(now_ns)
            self._dead_letters.expect()

    def _expire(self, now_ns: int) -> int:
        timeout_ns = self._timeout_ms * NS_PER_MS
        # As of the last round, no batch is old enough before `due_ns`.
        self._is_reported = (self._stood_still or now_ns >= self.due_ns) and self._oldest_age_ns(now_ns) >= timeout_ns
        if self._is_reported:
            self._report_reason(now_ns)
        expired_count, next_ns = self._half.expire(timeout_ns, now_ns)
        self._stood_still = self._clock.stands_still
        self.due_ns = NEVER_NS if next_ns is None or self._stood_still else now_ns + next_ns
        return expired_count

    def _count(self, now_ns: int) -> None:
        """Count the expired records in the metrics, and report the reason if `_expire` has not done so."""
        for partition_index, record_count in self._half.take_expired().items():
            try:
                topic, _ = self._host.topic_partition(partition_index)
            except CorruptArenaError:  # the batch or the table is damaged
                topic = ""
            self._metrics.failed(topic, record_count, now_ns)
        if not self._is_reported:
            self._report_reason(now_ns)

    def _oldest_age_ns(self, now_ns: int) -> int:
        """Return the age, on the delivery clock, of the oldest batch without a result; 0 if there is none."""
        _, left_ns = self._half.expire(FAR_NS, now_ns)
        return 0 if left_ns is None else FAR_NS - left_ns

    def _report_reason(self, now_ns: int) -> None:
        trouble, trouble_ns = self._host.last_trouble
        is_young = now_ns - trouble_ns < self._timeout_ms * NS_PER_MS
        self._host.report(Report(Kind.EXPIRED, trouble if is_young else "", f"{self._timeout_ms} ms"))
