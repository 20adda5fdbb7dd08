# SPDX-License-Identifier: Apache-2.0
"""The sink delivers to librdkafka's mock cluster, an independent broker that needs only pip."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from shmaccum.arena import Arena
from tests.kafka.conftest import OpenLoop
from tests.kafka.reading import consume
from tests.support.accumulator import Accumulator

TOPIC = "flights"


@pytest.fixture
def mock_bootstrap() -> Iterator[str]:
    """Start three mock brokers, which live as long as their client."""
    mock_cluster = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "ignored", "log_level": 0})
    brokers = mock_cluster.list_topics(timeout=30).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    mock_cluster.flush()


@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_everything_arrives_once_and_in_order(
    compression: str, mock_bootstrap: str, arena: Arena, open_loop: OpenLoop
) -> None:
    loop = open_loop(mock_bootstrap, compression_type=compression)
    loop.run_until(lambda: loop.sink.partition_count(TOPIC) is not None)
    partition_count = loop.sink.partition_count(TOPIC)
    assert partition_count is not None
    sent: dict[int, list[bytes | None]] = {partition: [] for partition in range(partition_count)}
    with Accumulator(arena) as accumulator:
        for number in range(400):
            value = b"value %d " % number * 5
            accumulator.append(TOPIC, number % partition_count, None, b"key", value, [("h", None)])
            sent[number % partition_count].append(value)
    loop.run_until_idle()
    assert consume(mock_bootstrap, TOPIC, partition_count, 400) == sent
    assert loop.sink.metrics()["connection-count"] <= 3
