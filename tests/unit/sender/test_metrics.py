# SPDX-License-Identifier: Apache-2.0
"""The sender's counts per topic, with any sink."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.common.clock import NS_PER_MS, NS_PER_S
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.sender.metrics import SenderMetrics
from shmaccum.sender.sinks.sink import Ack, Delivered, Verdict
from tests.support.sender import TOPIC, Sending

TIMEOUT_MS = 1000
OTHER = "other"


@pytest.fixture
def sending(arena: Arena) -> Iterator[Sending]:
    sending = Sending(arena, linger_ms=0, delivery_timeout_ms=TIMEOUT_MS, request_timeout_ms=500)
    yield sending
    sending.close()


def append(sending: Sending, topic: str, partition: int, *values: bytes) -> None:
    for value in values:
        sending.producer.append(topic, partition, sending.now_ms, None, value)
    sending.producer.flush_begin()


def test_a_delivery_to_many_topics_counts_for_each(sending: Sending) -> None:
    append(sending, TOPIC, 0, b"a", b"b")
    append(sending, TOPIC, 1, b"c" * 300)
    append(sending, OTHER, 0, b"d")
    (delivered,) = sending.run()
    assert (delivered, len(sending.scripted.deliveries)) == (3, 1)
    metrics = sending.sender.metrics()
    assert (metrics[f"record-send-total.topic-{TOPIC}"], metrics[f"record-send-total.topic-{OTHER}"]) == (3, 1)
    bytes_of = [metrics[f"byte-total.topic-{topic}"] for topic in (TOPIC, OTHER)]
    assert sum(bytes_of) == metrics["outgoing-byte-total"]
    assert bytes_of[0] > 300 > bytes_of[1] > 61
    assert metrics[f"compression-rate.topic-{TOPIC}"] == metrics["compression-rate-avg"] == 1


def test_what_expires_is_an_error_of_its_topic(sending: Sending) -> None:
    sending.scripted.is_held = True
    append(sending, TOPIC, 0, b"a", b"b")
    append(sending, OTHER, 0, b"c")
    sending.run()
    sending.scripted.plan_filter = lambda _: False
    append(sending, OTHER, 1, b"d", b"e", b"f")  # expires in its queue, unlike the others
    sending.sleep(TIMEOUT_MS)
    sending.run(2)
    metrics = sending.sender.metrics()
    assert metrics[f"record-error-total.topic-{TOPIC}"] == 2
    assert metrics[f"record-error-total.topic-{OTHER}"] == 4
    assert metrics["record-error-total"] == 6
    assert metrics["record-retry-total"] == 0


def test_out_of_sequence_is_a_retry(sending: Sending) -> None:
    sending.scripted.script = [lambda wire: Ack(wire, Verdict.OUT_OF_SEQUENCE, message="planted")]
    (token, _) = sending.append(count=2)
    sending.run(2)
    assert sending.result(token) is BatchResult.SUCCEEDED
    metrics = sending.sender.metrics()
    assert metrics["record-retry-total"] == metrics[f"record-retry-total.topic-{TOPIC}"] == 2
    assert metrics[f"record-send-total.topic-{TOPIC}"] == 4


def test_a_topic_without_recent_batches_has_no_compression_rate(sending: Sending) -> None:
    append(sending, TOPIC, 0, b"a")
    sending.run()
    sending.sleep(100_000)
    metrics = sending.sender.metrics()
    assert metrics[f"compression-rate.topic-{TOPIC}"] == metrics[f"record-send-rate.topic-{TOPIC}"] == 0
    assert metrics[f"record-send-total.topic-{TOPIC}"] == 1


NOW_NS = 100 * NS_PER_S
PLACES: Any = [TopicPartition(TOPIC, 0), TopicPartition(OTHER, 0)]
ROWS = [(0, 1, 4, 150, 0), (1, 1, 6, 250, 0)]


def wire(topic: str, record_count: int, size: int, age_ms: int = 0, record_size_max: int = 0) -> Any:
    batch = SimpleNamespace(created_ns=NOW_NS - age_ms * NS_PER_MS, record_size_max=record_size_max)
    return SimpleNamespace(topic=topic, record_count=record_count, size=size, batch=batch)


def test_each_metric_has_its_unit_and_counts_what_its_name_says() -> None:
    metrics = SenderMetrics(NOW_NS, PLACES)
    metrics.sent([wire(TOPIC, 2, 161, 3, 40), wire(OTHER, 1, 100, 1, 39)], NOW_NS)
    metrics.acked([4 * NS_PER_MS, 2 * NS_PER_MS], NOW_NS)
    metrics.retried(TOPIC, 5, NOW_NS)
    metrics.failed(OTHER, 7, NOW_NS)
    metrics.batches_split.add(1, NOW_NS)
    for _ in range(2):
        metrics.delivered(
            Delivered(2, 10, 400, 300.0, 6 * NS_PER_MS, 5 * NS_PER_MS, 8 * NS_PER_MS, 7 * NS_PER_MS, 90, rows=ROWS),
            NOW_NS,
        )
        metrics.delivered(Delivered(batch_count=2), NOW_NS)
    of_topics = {
        TOPIC: {"record-send": 2 + 2 * 4, "byte": 161 + 2 * 150, "record-retry": 5, "record-error": 0},
        OTHER: {"record-send": 1 + 2 * 6, "byte": 100 + 2 * 250, "record-retry": 0, "record-error": 7},
    }
    expected = {
        "batch-size-avg": (261 + 2 * 400) / 10,
        "batch-size-max": 300,
        "compression-rate-avg": 1,
        "record-queue-time-avg": (4 + 2 * 6) / 6,
        "record-queue-time-max": 5,
        "request-latency-avg": (6 + 2 * 8) / 6,
        "request-latency-max": 7,
        "records-per-request-avg": 23 / 5,
        "record-size-avg": 1061 / 23,
        "record-size-max": 90,
    }
    meters = {"record-send": 23, "outgoing-byte": 1061, "record-retry": 5, "record-error": 7, "batch-split": 1}
    for topic, its_meters in of_topics.items():
        expected[f"compression-rate.topic-{topic}"] = 1
        meters.update((f"{name}.topic-{topic}", total) for name, total in its_meters.items())
    for key, total in meters.items():
        name, dot, topic = key.partition(".")
        expected.update({f"{name}-rate{dot}{topic}": total, f"{name}-total{dot}{topic}": total})
    assert metrics.read(NOW_NS) == expected


def test_records_are_measured_only_in_batches_that_may_have_a_larger_one() -> None:
    metrics = SenderMetrics(NOW_NS, PLACES)
    metrics.sent([wire(TOPIC, 1, 101, record_size_max=40)], NOW_NS)
    metrics.sent([wire(TOPIC, 3, 61 + 2 * 7 + 40, record_size_max=99)], NOW_NS)  # as large as the largest one at most
    assert metrics.largest_record(NOW_NS) == 40
    metrics.sent([wire(TOPIC, 3, 61 + 2 * 7 + 41, record_size_max=41)], NOW_NS)
    assert metrics.largest_record(NOW_NS) == 41
