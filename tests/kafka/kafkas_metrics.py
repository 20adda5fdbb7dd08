# SPDX-License-Identifier: Apache-2.0
"""The names of all metrics of Kafka's producer (4.1.1), and the names that shmaccum lacks, by group.

From SenderMetricsRegistry, KafkaProducerMetrics, BufferPool, RecordAccumulator and Selector's SelectorMetrics. Reasons
for missing names are in docs/reference/metrics.rst.
"""

from __future__ import annotations

from collections.abc import Mapping


def _meters(*names: str) -> frozenset[str]:
    return frozenset(f"{name}-{ending}" for name in names for ending in ("rate", "total"))


def _summaries(*names: str) -> frozenset[str]:
    return frozenset(f"{name}-{ending}" for name in names for ending in ("avg", "max"))


KAFKAS: Mapping[str, frozenset[str]] = {
    "producer-metrics": frozenset(
        {
            *_meters("batch-split", "record-error", "record-retry", "record-send"),
            *_summaries("batch-size", "produce-throttle-time", "record-queue-time", "record-size", "request-latency"),
            *("compression-rate-avg", "metadata-age", "records-per-request-avg", "requests-in-flight"),
            *("flush-time-ns-total", "metadata-wait-time-ns-total", "txn-abort-time-ns-total"),
            *("txn-begin-time-ns-total", "txn-commit-time-ns-total", "txn-init-time-ns-total"),
            *("txn-prepare-time-ns-total", "txn-send-offsets-time-ns-total"),
            *("buffer-available-bytes", "buffer-total-bytes", "waiting-threads"),
            *("buffer-exhausted-rate", "buffer-exhausted-total"),
            *("bufferpool-wait-ratio", "bufferpool-wait-time-ns-total"),
            *_meters("connection-close", "connection-creation", "network-io", "outgoing-byte", "incoming-byte"),
            *_meters("request", "response", "select"),
            *_meters("successful-authentication", "failed-authentication"),
            *_meters("successful-reauthentication", "failed-reauthentication"),
            *_summaries("request-size", "reauthentication-latency"),
            *("connection-count", "connections", "successful-authentication-no-reauth-total"),
            *("io-ratio", "io-time-ns-avg", "io-time-ns-total"),
            *("io-wait-ratio", "io-wait-time-ns-avg", "io-wait-time-ns-total"),
        }
    ),
    "producer-node-metrics": _meters("request", "response", "outgoing-byte", "incoming-byte")
    | _summaries("request-size", "request-latency"),
    "producer-topic-metrics": _meters("record-send", "byte", "record-retry", "record-error") | {"compression-rate"},
}

LEFT_OUT: Mapping[str, frozenset[str]] = {
    "producer-metrics": frozenset(
        {
            "txn-prepare-time-ns-total",
            *("buffer-exhausted-rate", "bufferpool-wait-ratio"),
            *("connections", "successful-authentication-no-reauth-total"),
            *_meters("successful-reauthentication", "failed-reauthentication"),
            *_summaries("reauthentication-latency"),
        }
    ),
    "producer-node-metrics": frozenset(),
    "producer-topic-metrics": frozenset(),
}

OURS: Mapping[str, frozenset[str]] = {
    "producer-metrics": frozenset({"batch-quarantine-total", "batches-in-flight", "byte-total"}),
    "producer-node-metrics": _meters("connection-close", "connection-creation")
    | {"produce-request-total", "produce-throttle-time-max", "record-send-total"},
    "producer-topic-metrics": frozenset(),
}
"""Names that Kafka does not have, in that group."""
