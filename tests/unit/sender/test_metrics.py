# SPDX-License-Identifier: Apache-2.0
"""The sender's counts per topic, with any sink."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.sender.sinks.sink import Ack, Verdict
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
