# SPDX-License-Identifier: Apache-2.0
"""Metrics of the sink for Kafka: its requests, under the names of Kafka's producer.

Connections and bytes on the wire are in `traffic`, and compressed sizes in `shmaccum.sender.sinks.compression`.
"""

from __future__ import annotations

from shmaccum.common.clock import NS_PER_MS
from shmaccum.sender.sinks.sensors import Sensor, average_of, maximum_of
from shmaccum.sender.sinks.sink import Delivered


class NodeMetrics:
    """The metrics of the Produce requests to one broker."""

    def __init__(self, now_ns: int) -> None:
        self.latency_ms = Sensor(now_ns)
        self.throttle_ms = Sensor(now_ns)
        self.request_total = 0
        self.record_total = 0

    def read(self, now_ns: int) -> dict[str, float]:
        """Return the values by name."""
        return {
            "request-latency-avg": self.latency_ms.average(now_ns),
            "request-latency-max": self.latency_ms.maximum(now_ns),
            "produce-throttle-time-max": self.throttle_ms.maximum(now_ns),
            "produce-request-total": self.request_total,
            "record-send-total": self.record_total,
        }


class ProduceMetrics:
    def __init__(self, now_ns: int) -> None:
        self._nodes: dict[int, NodeMetrics] = {}
        self._records_per_request = Sensor(now_ns)

    def _node(self, node_id: int, now_ns: int) -> NodeMetrics:
        known = self._nodes.get(node_id)
        if known is None:
            known = self._nodes[node_id] = NodeMetrics(now_ns)
        return known

    def sent(self, node_id: int, record_count: int, now_ns: int) -> None:
        self._records_per_request.add(record_count, now_ns)
        node = self._node(node_id, now_ns)
        node.request_total += 1
        node.record_total += record_count

    def count_borrowed(self, node_id: int, delivered: Delivered, throttle_ms: int, now_ns: int) -> None:
        """Count the requests that a borrower sent through a socket."""
        count = delivered.request_count
        node = self._node(node_id, now_ns)
        node.request_total += count
        node.record_total += delivered.record_count
        if not count:
            return
        self._records_per_request.record(delivered.record_count, count, delivered.record_count / count, now_ns)
        if delivered.latency_sum_ns is not None:
            latency_ms, latency_max_ms = delivered.latency_sum_ns / NS_PER_MS, delivered.latency_max_ns / NS_PER_MS
            node.latency_ms.record(latency_ms, count, latency_max_ms, now_ns)
            node.throttle_ms.record(throttle_ms, count, throttle_ms, now_ns)

    def answered(self, node_id: int, latency_ms: float, throttle_ms: float, now_ns: int) -> None:
        node = self._node(node_id, now_ns)
        node.latency_ms.add(latency_ms, now_ns)
        node.throttle_ms.add(throttle_ms, now_ns)

    def read(self, now_ns: int) -> dict[str, float]:
        """Return the metrics by name. Those of a broker end in its node id."""
        latencies = [node.latency_ms for node in self._nodes.values()]
        throttles = [node.throttle_ms for node in self._nodes.values()]
        named = {
            "records-per-request-avg": self._records_per_request.average(now_ns),
            "request-latency-avg": average_of(latencies, now_ns),
            "request-latency-max": maximum_of(latencies, now_ns),
            "produce-throttle-time-avg": average_of(throttles, now_ns),
            "produce-throttle-time-max": maximum_of(throttles, now_ns),
        }
        for node_id, node in self._nodes.items():
            named.update((f"{name}.node-{node_id}", number) for name, number in node.read(now_ns).items())
        return named
