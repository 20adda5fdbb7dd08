# SPDX-License-Identifier: Apache-2.0
"""The sender's numbers under the names of Kafka's producer (SenderMetricsRegistry, group producer-metrics).

They are of the whole host, since one sender delivers for all of its processes. Totals count from the sender's start;
rates, averages and maxima are of the last one to two windows of 30 seconds, as Kafka's (metrics.sample.window.ms).
Of what only the sink knows (request latency on the wire, throttling, compression) see `Sink.metrics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shmaccum.sinks.sink import WireBatch

WINDOW_NS = 30_000_000_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
HEADER_SIZE = 61
RECORD_SIZE_MIN = 7


@dataclass(slots=True)
class _Window:
    start_ns: int
    sum: float = 0
    count: int = 0
    max: float = 0


class Sensor:
    """Sum, count and maximum of something, ever and lately."""

    def __init__(self, now_ns: int) -> None:
        self.total: float = 0
        self._start_ns = now_ns
        self._last = self._current = _Window(now_ns)

    def record(self, total: float, count: int, largest: float, now_ns: int) -> None:
        """Adds `count` values whose sum is `total`."""
        if now_ns - self._current.start_ns >= WINDOW_NS:
            self._turn(now_ns)
        self.total += total
        self._current.sum += total
        self._current.count += count
        self._current.max = max(self._current.max, largest)

    def add(self, amount: float, now_ns: int) -> None:
        """Adds one value."""
        self.record(amount, 1, amount, now_ns)

    def _turn(self, now_ns: int) -> None:
        is_recent = now_ns - self._current.start_ns < 2 * WINDOW_NS
        self._last = self._current if is_recent else _Window(now_ns)
        self._current = _Window(now_ns)

    def _windows(self, now_ns: int) -> list[_Window]:
        if now_ns - self._current.start_ns >= WINDOW_NS:
            self._turn(now_ns)
        return [self._current] if self._last is self._current else [self._last, self._current]

    def rate(self, now_ns: int) -> float:
        """Per second."""
        windows = self._windows(now_ns)
        elapsed_ns = max(now_ns - windows[0].start_ns, NS_PER_S)
        return sum(window.sum for window in windows) * NS_PER_S / elapsed_ns

    def average(self, now_ns: int) -> float:
        """0 when there was nothing."""
        windows = self._windows(now_ns)
        return sum(window.sum for window in windows) / max(sum(window.count for window in windows), 1)

    def maximum(self, now_ns: int) -> float:
        """0 when there was nothing."""
        return max(window.max for window in self._windows(now_ns))


def _record_size_bound(wire: WireBatch) -> int:
    """No record of the batch has more bytes."""
    return wire.size - HEADER_SIZE - (wire.record_count - 1) * RECORD_SIZE_MIN


class SenderMetrics:
    """What the sender records, and how it is read."""

    def __init__(self, now_ns: int) -> None:
        self._batch_size = Sensor(now_ns)
        self._queue_time_ms = Sensor(now_ns)
        self._latency_ms = Sensor(now_ns)
        self._records_sent = Sensor(now_ns)
        self._bytes_sent = Sensor(now_ns)
        self._record_size = Sensor(now_ns)
        self.records_retried = Sensor(now_ns)
        self.records_failed = Sensor(now_ns)
        self.batches_split = Sensor(now_ns)

    def sent(self, wires: Sequence[WireBatch], now_ns: int) -> None:
        """A delivery of at least one batch begins. As in Kafka, a batch that is sent again counts again."""
        sizes = [wire.size for wire in wires]
        ages_ms = [(now_ns - wire.batch.created_ns) / NS_PER_MS for wire in wires]
        records = sum(wire.record_count for wire in wires)
        size = sum(sizes)
        self._batch_size.record(size, len(sizes), max(sizes), now_ns)
        self._queue_time_ms.record(sum(ages_ms), len(ages_ms), max(ages_ms), now_ns)
        self._records_sent.add(records, now_ns)
        self._bytes_sent.add(size, now_ns)
        self._record_size.record(0, 0, self._largest_record(wires, now_ns), now_ns)

    def _largest_record(self, wires: Sequence[WireBatch], now_ns: int) -> int:
        """Or less, of batches in which no record can be larger than what is known: they are not looked into."""
        known = self._record_size.maximum(now_ns)
        return max((wire.batch.record_size_max for wire in wires if _record_size_bound(wire) > known), default=0)

    def acked(self, latencies_ns: Sequence[int], now_ns: int) -> None:
        """The sink has answered batches that were delivered to it so long ago; at least one."""
        total_ms, largest_ms = sum(latencies_ns) / NS_PER_MS, max(latencies_ns) / NS_PER_MS
        self._latency_ms.record(total_ms, len(latencies_ns), largest_ms, now_ns)

    def read(self, now_ns: int) -> dict[str, float]:
        """Kafka's names -> numbers; times in milliseconds, sizes in bytes, rates per second."""
        records = max(self._records_sent.total, 1)
        return {
            "batch-size-avg": self._batch_size.average(now_ns),
            "batch-size-max": self._batch_size.maximum(now_ns),
            "record-queue-time-avg": self._queue_time_ms.average(now_ns),
            "record-queue-time-max": self._queue_time_ms.maximum(now_ns),
            "request-latency-avg": self._latency_ms.average(now_ns),
            "request-latency-max": self._latency_ms.maximum(now_ns),
            "record-send-rate": self._records_sent.rate(now_ns),
            "record-send-total": self._records_sent.total,
            "records-per-request-avg": self._records_sent.average(now_ns),
            "record-size-avg": self._bytes_sent.total / records,
            "record-size-max": self._record_size.maximum(now_ns),
            "outgoing-byte-rate": self._bytes_sent.rate(now_ns),
            "outgoing-byte-total": self._bytes_sent.total,
            "record-retry-rate": self.records_retried.rate(now_ns),
            "record-retry-total": self.records_retried.total,
            "record-error-rate": self.records_failed.rate(now_ns),
            "record-error-total": self.records_failed.total,
            "batch-split-rate": self.batches_split.rate(now_ns),
            "batch-split-total": self.batches_split.total,
        }
