# SPDX-License-Identifier: Apache-2.0
"""A log server for tests, and its clients."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
from kafka import KafkaConsumer, KafkaProducer

from shmaccum.log.server import LogServer
from shmaccum.sender import Sender
from tests.support.segment_log import TOPIC

DEADLINE_S = 60.0
PARTITION_COUNT = 3


@contextlib.contextmanager
def running(path: Path, *, is_writable: bool = True, **options: Any) -> Iterator[LogServer]:
    """Run a server in a thread. An exception ends it, and pytest reports the exception."""
    with LogServer(path, "127.0.0.1:0", is_writable=is_writable, partitions=PARTITION_COUNT, **options) as server:
        thread = threading.Thread(target=_run, args=[server])
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


def _run(server: LogServer) -> None:
    while not server._is_stopped:
        server.run_once()


@contextlib.contextmanager
def served(path: Path, *, is_writable: bool = True, **options: Any) -> Iterator[str]:
    """Run a server in a thread, and yield its address."""
    with running(path, is_writable=is_writable, **options) as server:
        yield address_of(server)


def address_of(server: LogServer) -> str:
    return f"127.0.0.1:{server.address.port}"


@contextlib.contextmanager
def stranger(address: str) -> Iterator[socket.socket]:
    """Yield a client that sends arbitrary bytes."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as connection:
        yield connection


def api(key: int, version: int, body: bytes = b"", number: int = 7) -> bytes:
    """Return a request with a header of version 1, without a client id."""
    return struct.pack(">ihhih", 10 + len(body), key, version, number, -1) + body


def string(content: bytes) -> bytes:
    return struct.pack(">h", len(content)) + content


def fetch(offset: int, *, max_wait_ms: int, min_bytes: int = 1, number: int = 7) -> bytes:
    """Return a Fetch of the first partition, by version 4."""
    head = struct.pack(">iiiib", -1, max_wait_ms, min_bytes, 1 << 30, 0)
    return api(
        1, 4, head + struct.pack(">i", 1) + string(TOPIC.encode()) + struct.pack(">iiqi", 1, 0, offset, 1 << 30), number
    )


def answer_of(connection: socket.socket) -> bytes:
    """Return the next response without its size, or nothing at the end."""
    size = _exactly(connection, 4)
    return _exactly(connection, struct.unpack(">i", size)[0]) if len(size) == 4 else b""


def _exactly(connection: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size and (more := connection.recv(size - len(content))):
        content += more
    return bytes(content)


def produce(address: str, values: range, topic: str = TOPIC, **options: Any) -> None:
    """Produce with kafka-python, idempotently, to all partitions."""
    with contextlib.closing(KafkaProducer(bootstrap_servers=address, **options)) as producer:
        for number in values:
            producer.send(topic, b"%d" % number, key=b"%d" % number)
        producer.flush()


def consume_with_kafka_python(address: str, count: int, **options: Any) -> list[int]:
    consumer = KafkaConsumer(
        bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=DEADLINE_S * 1000, **options
    )
    with contextlib.closing(consumer):
        consumer.partitions_for_topic(TOPIC)  # kafka-python 3.0 ignores a subscription during a metadata request
        consumer.subscribe([TOPIC])
        return [int(next(consumer).value) for _ in range(count)]


def confluent_consumer(address: str, group: str, **options: Any) -> confluent_kafka.Consumer:
    settings = {"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest", **options}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([TOPIC])
    return consumer


def consume_with_confluent(consumer: confluent_kafka.Consumer, count: int) -> list[int]:
    values: list[int] = []
    end_s = time.monotonic() + DEADLINE_S
    while len(values) < count and time.monotonic() < end_s:
        for message in consumer.consume(count - len(values), 0.2):
            assert message.error() is None
            values.append(int(message.value() or b""))
    return values


@contextlib.contextmanager
def transactional(address: str, name: str = "etl", timeout_ms: int = 60_000) -> Iterator[confluent_kafka.Producer]:
    """Yield a producer of librdkafka with the transactional id."""
    settings: dict[str, Any] = {"bootstrap.servers": address, "transactional.id": name}
    producer = confluent_kafka.Producer({**settings, "transaction.timeout.ms": timeout_ms})
    producer.init_transactions(DEADLINE_S)
    try:
        yield producer
    finally:
        producer.purge()
        with contextlib.suppress(confluent_kafka.KafkaException):  # a fenced producer fails here again
            producer.flush(DEADLINE_S)


def port_of(sender: Sender) -> int:
    """Return the port at which an open sender serves its log."""
    assert sender._log_server is not None
    return sender._log_server.port
