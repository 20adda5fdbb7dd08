# SPDX-License-Identifier: Apache-2.0
"""Metrics of the Kafka sink under the names of Kafka's producer (producer-metrics, producer-node-metrics)."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 30.0
SAMPLE_COUNT = 2


class Window:
    """Mean and maximum over the last one to two half windows (Kafka's metrics.sample.window.ms, num.samples)."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        # (begin, count, sum, maximum) of each sample
        self._samples: deque[tuple[float, int, float, float]] = deque(maxlen=SAMPLE_COUNT)

    def record(self, value: float) -> None:
        """One more value."""
        now = self._now_s()
        if not self._samples or now - self._samples[-1][0] >= WINDOW_S:
            self._samples.append((now, 1, value, value))
            return
        begin, count, total, maximum = self._samples[-1]
        self._samples[-1] = (begin, count + 1, total + value, max(maximum, value))

    def _living(self) -> list[tuple[float, int, float, float]]:
        oldest = self._now_s() - WINDOW_S * SAMPLE_COUNT
        return [sample for sample in self._samples if sample[0] >= oldest]

    @property
    def average(self) -> float:
        """0 without values."""
        samples = self._living()
        count = sum(sample[1] for sample in samples)
        return sum(sample[2] for sample in samples) / count if count else 0.0

    @property
    def maximum(self) -> float:
        """0 without values."""
        return max((sample[3] for sample in self._living()), default=0.0)


class NodeMetrics:
    """Of the Produce requests to one broker."""

    def __init__(self) -> None:
        self.latency_ms = Window()
        self.throttle_ms = Window()
        self.request_total = 0
        self.record_total = 0


class ProduceMetrics:
    """Of all Produce requests."""

    def __init__(self) -> None:
        self.nodes: dict[int, NodeMetrics] = {}
        self.request_size = Window()
        self.records_per_request = Window()
        self.latency_ms = Window()
        self.throttle_ms = Window()
        self.compression_rate = Window()

    def node(self, node_id: int) -> NodeMetrics:
        """Those of a broker."""
        known = self.nodes.get(node_id)
        if known is None:
            known = self.nodes[node_id] = NodeMetrics()
        return known

    def sent(self, node_id: int, size: int, record_count: int) -> None:
        """A request began."""
        self.request_size.record(size)
        self.records_per_request.record(record_count)
        node = self.node(node_id)
        node.request_total += 1
        node.record_total += record_count

    def answered(self, node_id: int, latency_ms: float, throttle_ms: float) -> None:
        """A request was answered."""
        node = self.node(node_id)
        for latency, throttle in ((self.latency_ms, self.throttle_ms), (node.latency_ms, node.throttle_ms)):
            latency.record(latency_ms)
            throttle.record(throttle_ms)

    def snapshot(self) -> dict[str, float]:
        """By name; those of a broker end in its node id."""
        named = {
            "request-size-avg": self.request_size.average,
            "request-size-max": self.request_size.maximum,
            "records-per-request-avg": self.records_per_request.average,
            "request-latency-avg": self.latency_ms.average,
            "request-latency-max": self.latency_ms.maximum,
            "produce-throttle-time-avg": self.throttle_ms.average,
            "produce-throttle-time-max": self.throttle_ms.maximum,
            "compression-rate-avg": self.compression_rate.average,
        }
        for node_id, node in self.nodes.items():
            named[f"request-latency-avg.node-{node_id}"] = node.latency_ms.average
            named[f"request-latency-max.node-{node_id}"] = node.latency_ms.maximum
            named[f"produce-throttle-time-max.node-{node_id}"] = node.throttle_ms.maximum
            named[f"produce-request-total.node-{node_id}"] = node.request_total
            named[f"record-send-total.node-{node_id}"] = node.record_total
        return named
