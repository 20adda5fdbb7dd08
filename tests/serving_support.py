# SPDX-License-Identifier: Apache-2.0
"""A server of a log for tests, and clients of it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, KafkaProducer

from shmaccum.serving import LogServer
from tests.log_support import TOPIC

DEADLINE_S = 60.0
PARTITION_COUNT = 3


@contextlib.contextmanager
def served(path: Path, *, is_writable: bool = True, **options: Any) -> Iterator[str]:
    """A server in a thread; its address."""
    with LogServer(path, "127.0.0.1:0", is_writable=is_writable, partitions=PARTITION_COUNT, **options) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield f"127.0.0.1:{server.address.port}"
        finally:
            server.stop()
            thread.join()


def produce(address: str, values: range, topic: str = TOPIC, **options: Any) -> None:
    """By kafka-python, idempotently, spread over all partitions."""
    with contextlib.closing(KafkaProducer(bootstrap_servers=address, **options)) as producer:
        for number in values:
            producer.send(topic, b"%d" % number, key=b"%d" % number)
        producer.flush()


def consume_with_kafka_python(address: str, count: int, **options: Any) -> list[int]:
    consumer = KafkaConsumer(
        TOPIC, bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=DEADLINE_S * 1000, **options
    )
    with contextlib.closing(consumer):
        return [int(next(consumer).value) for _ in range(count)]
