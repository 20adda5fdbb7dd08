# SPDX-License-Identifier: Apache-2.0
"""kafka-python: `send` from one thread, with larger batches and a linger as its documentation recommends.

It sends to a mock cluster. It cannot parse that cluster's rejection of the newest ApiVersions request, so `api_version`
names the version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.harness.packages import installed_version, load
from bench.harness.question import Contender, Guarantees, Measurement
from bench.parts.apache_kafka import BATCH_SIZE, LINGER_MS, cluster, produced
from bench.parts.arenas import TOPIC
from bench.parts.mock_cluster import mock_cluster
from bench.parts.sending import send_plain

RECORD_COUNT = 10_000
OPTIONS = {"linger_ms": LINGER_MS, "batch_size": BATCH_SIZE}
MOCK_CLUSTER_VERSION = (2, 0)


def _to_mock() -> Measurement:
    with _producer(mock_cluster(), api_version=MOCK_CLUSTER_VERSION) as producer:
        producer.partitions_for(TOPIC)
        measured = send_plain(producer.send, RECORD_COUNT)
        producer.flush()
    return measured


def _to_kafka() -> Measurement:
    with _producer(cluster().bootstrap) as producer:
        return produced(producer.send, producer.flush, RECORD_COUNT)


@contextmanager
def _producer(bootstrap: str, **options: Any) -> Iterator[Any]:
    producer = load("kafka", "kafka-python").KafkaProducer(bootstrap_servers=bootstrap, **OPTIONS, **options)
    yield producer
    producer.close()


def _contender(run: Callable[[], Measurement]) -> Contender:
    guarantees = Guarantees(record="copy", order="partition", checksum="CRC32C", kill="lost")
    return Contender("kafka-python send", run, version=lambda: installed_version("kafka-python"), guarantees=guarantees)


WORKS = {"send": lambda: [_contender(_to_mock)], "kafka": lambda: [_contender(_to_kafka)]}
