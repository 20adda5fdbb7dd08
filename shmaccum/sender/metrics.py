# SPDX-License-Identifier: Apache-2.0
"""The sender's metrics under the names of Kafka's producer (SenderMetricsRegistry, docs/reference/metrics.rst).

They cover the whole host, since one sender delivers for all of its processes. The name of a topic's metric ends in the
topic: ``record-send-total.topic-NAME``. There are at most as many topics as in the arena's registry (topic_count).
Totals count from the sender's start, the other values are recent (`shmaccum.sender.sinks.sensors`).

`Sink.metrics` has the values that only the sink knows (requests, connections, compression). If both have a value, the
sink's is used. Here a batch counts with its size in the arena, which differs from the sent size only with compression.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shmaccum.arena.places import Places
from shmaccum.common.clock import NS_PER_MS
from shmaccum.common.format.batch_header import HEADER_SIZE
from shmaccum.sender.sinks.sensors import Sensor
from shmaccum.sender.sinks.sink import Delivered, WireBatch

TRANSACTION_TIMES = {
    f"txn-{name}-time-ns-total": f"nanoseconds spent {doing} transactions"
    for name, doing in {
        "init": "initializing",
        "begin": "beginning",
        "send-offsets": "sending offsets to",
        "commit": "committing",
        "abort": "aborting",
    }.items()
}
"""Kafka's name of a producer's time -> the counter of the arena, which covers all processes."""
RECORD_SIZE_MIN = 7


def _record_size_bound(wire: WireBatch) -> int:
    """Return an upper bound for the size of the batch's records."""
    return wire.size - HEADER_SIZE - (wire.record_count - 1) * RECORD_SIZE_MIN


def _by_topic(wires: Sequence[WireBatch]) -> Iterable[tuple[str, int, int]]:
    """Return (topic, records, bytes) for each topic."""
    sums: dict[str, tuple[int, int]] = {}
    for wire in wires:
        records, size = sums.get(wire.topic, (0, 0))
        sums[wire.topic] = records + wire.record_count, size + wire.size
    return [(topic, records, size) for topic, (records, size) in sums.items()]


def _compression_rate(batches_sent: Sensor, now_ns: int) -> float:
    """Return the rate of uncompressed batches, which is 1; 0 if none was sent recently."""
    return float(batches_sent.maximum(now_ns) > 0)


def transaction_times(counters: Mapping[str, int]) -> dict[str, float]:
    """Return the times that all processes have spent in transaction calls since the arena was created."""
    return {name: counters[label] for name, label in TRANSACTION_TIMES.items()}


class TopicMetrics:
    """The metrics of one topic (group producer-topic-metrics)."""

    def __init__(self, now_ns: int) -> None:
        self.records_sent = Sensor(now_ns)
        self.bytes_sent = Sensor(now_ns)
        self.records_retried = Sensor(now_ns)
        self.records_failed = Sensor(now_ns)

    def sent(self, record_count: int, size: int, now_ns: int) -> None:
        self.records_sent.add(record_count, now_ns)
        self.bytes_sent.add(size, now_ns)

    def read(self, now_ns: int) -> dict[str, float]:
        """Return the metrics by Kafka's names."""
        return {
            **self.records_sent.meter("record-send", now_ns),
            **self.bytes_sent.meter("byte", now_ns),
            "compression-rate": _compression_rate(self.bytes_sent, now_ns),
            **self.records_retried.meter("record-retry", now_ns),
            **self.records_failed.meter("record-error", now_ns),
        }


class SenderMetrics:
    def __init__(self, now_ns: int, places: Places) -> None:
        self._places = places
        self._batch_size = Sensor(now_ns)
        self._queue_time_ms = Sensor(now_ns)
        self._latency_ms = Sensor(now_ns)
        self._records_sent = Sensor(now_ns)
        self._bytes_sent = Sensor(now_ns)
        self._record_size = Sensor(now_ns)
        self._records_retried = Sensor(now_ns)
        self._records_failed = Sensor(now_ns)
        self._topics: dict[str, TopicMetrics] = {}
        self.batches_split = Sensor(now_ns)

    def _topic(self, topic: str, now_ns: int) -> TopicMetrics:
        known = self._topics.get(topic)
        if known is None:
            known = self._topics[topic] = TopicMetrics(now_ns)
        return known

    def sent(self, wires: Sequence[WireBatch], now_ns: int) -> None:
        """Count a delivery of at least one batch. As in Kafka, a retried batch counts again."""
        sizes = [wire.size for wire in wires]
        ages_ms = [(now_ns - wire.batch.created_ns) / NS_PER_MS for wire in wires]
        records = sum([wire.record_count for wire in wires])
        size = sum(sizes)
        self._batch_size.record(size, len(sizes), max(sizes), now_ns)
        self._queue_time_ms.record(sum(ages_ms), len(ages_ms), max(ages_ms), now_ns)
        self._records_sent.add(records, now_ns)
        self._bytes_sent.add(size, now_ns)
        self._record_size.record(0, 0, self._largest_record(wires, now_ns), now_ns)
        is_one_topic = len({wire.topic for wire in wires}) == 1  # the usual case
        for topic, its_records, its_size in [(wires[0].topic, records, size)] if is_one_topic else _by_topic(wires):
            self._topic(topic, now_ns).sent(its_records, its_size, now_ns)

    def largest_record(self, now_ns: int) -> int:
        """Return the size of the largest recent record, as far as it is known."""
        return int(self._record_size.maximum(now_ns))

    def delivered(self, delivered: Delivered, now_ns: int) -> None:
        """Count the batches, at least one, that a native call delivered and completed."""
        count = delivered.batch_count
        self._batch_size.record(delivered.size, count, delivered.largest_size, now_ns)
        if delivered.age_sum_ns is not None:
            total_ms, largest_ms = delivered.age_sum_ns / NS_PER_MS, delivered.age_max_ns / NS_PER_MS
            self._queue_time_ms.record(total_ms, count, largest_ms, now_ns)
        if delivered.latency_sum_ns is not None:
            total_ms, largest_ms = delivered.latency_sum_ns / NS_PER_MS, delivered.latency_max_ns / NS_PER_MS
            self._latency_ms.record(total_ms, count, largest_ms, now_ns)
        self._records_sent.add(delivered.record_count, now_ns)
        self._bytes_sent.add(delivered.size, now_ns)
        self._record_size.record(0, 0, delivered.largest_record, now_ns)
        for partition_index, _, record_count, size, _ in delivered.rows:
            self._topic(self._places[partition_index].topic, now_ns).sent(record_count, size, now_ns)

    def _largest_record(self, wires: Sequence[WireBatch], now_ns: int) -> int:
        """Return the largest record. Batches whose records cannot exceed the known maximum are not scanned."""
        known = self._record_size.maximum(now_ns)
        return max((wire.batch.record_size_max for wire in wires if _record_size_bound(wire) > known), default=0)

    def acked(self, latencies_ns: Sequence[int], now_ns: int) -> None:
        """Count the latencies of acked batches, at least one."""
        total_ms, largest_ms = sum(latencies_ns) / NS_PER_MS, max(latencies_ns) / NS_PER_MS
        self._latency_ms.record(total_ms, len(latencies_ns), largest_ms, now_ns)

    def retried(self, topic: str, record_count: int, now_ns: int) -> None:
        """Count a batch that will be delivered again."""
        self._records_retried.add(record_count, now_ns)
        self._topic(topic, now_ns).records_retried.add(record_count, now_ns)

    def failed(self, topic: str, record_count: int, now_ns: int) -> None:
        """Count records that were rejected, given up, or expired."""
        self._records_failed.add(record_count, now_ns)
        self._topic(topic, now_ns).records_failed.add(record_count, now_ns)

    def read(self, now_ns: int) -> dict[str, float]:
        """Return the metrics by Kafka's names; times in milliseconds, sizes in bytes, rates per second."""
        records = max(self._records_sent.total, 1)
        return {
            "batch-size-avg": self._batch_size.average(now_ns),
            "batch-size-max": self._batch_size.maximum(now_ns),
            "compression-rate-avg": _compression_rate(self._bytes_sent, now_ns),
            "record-queue-time-avg": self._queue_time_ms.average(now_ns),
            "record-queue-time-max": self._queue_time_ms.maximum(now_ns),
            "request-latency-avg": self._latency_ms.average(now_ns),
            "request-latency-max": self._latency_ms.maximum(now_ns),
            **self._records_sent.meter("record-send", now_ns),
            "records-per-request-avg": self._records_sent.average(now_ns),
            "record-size-avg": self._bytes_sent.total / records,
            "record-size-max": self._record_size.maximum(now_ns),
            **self._bytes_sent.meter("outgoing-byte", now_ns),
            **self._records_retried.meter("record-retry", now_ns),
            **self._records_failed.meter("record-error", now_ns),
            **self.batches_split.meter("batch-split", now_ns),
            **self._read_topics(now_ns),
        }

    def _read_topics(self, now_ns: int) -> dict[str, float]:
        return {
            f"{name}.topic-{topic}": number
            for topic, metrics in self._topics.items()
            for name, number in metrics.read(now_ns).items()
        }
