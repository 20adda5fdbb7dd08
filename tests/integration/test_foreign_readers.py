# SPDX-License-Identifier: Apache-2.0
"""Other Kafka libraries read sealed batches correctly.

kafka-python reads the wire bytes with its own record classes. librdkafka has no reader without a broker, so its mock
cluster acts as one: kafka-python sends the bytes in a Produce request, and confluent-kafka consumes them.
"""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from kafka.record import MemoryRecords

from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from tests.support.accumulator import Accumulator
from tests.support.arenas import drain
from tests.support.processes import WATCHDOG_S

Headers = list[tuple[str, bytes | None]]
TOPIC = "flights"
PRODUCE_VERSION = 7


@dataclass(frozen=True)
class Record:
    """The fields on which all readers must agree."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


PLAIN = [
    Record(1_700_000_000_000, b"key", b"value", []),
    Record(1_700_000_000_005, None, b"no key", []),
    Record(1_699_999_999_000, b"tombstone, earlier than the first", None, []),
    Record(1_700_000_000_001, b"", b"", [("empty", b""), ("null", None), ("twice", b"1"), ("twice", b"2")]),
]
OVERSIZED = [Record(1_700_000_000_000, b"k", bytes(range(256)) * 100, [("h", b"x" * 300)])]


def random_records(generator: random.Random, count: int) -> list[Record]:
    def some_bytes(size_max: int) -> bytes | None:
        return None if generator.random() < 0.2 else generator.randbytes(generator.randrange(size_max))

    return [
        Record(
            1_700_000_000_000 + generator.randrange(-(10**6), 10**6),
            some_bytes(20),
            some_bytes(300),
            [(f"h{generator.randrange(5)}", some_bytes(30)) for _ in range(generator.choice((0, 0, 1, 3)))],
        )
        for _ in range(count)
    ]


@pytest.fixture
def roomy(arena_name: str) -> Iterator[Accumulator]:
    """A sender whose arena can contain the oversized record."""
    with (
        Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena,
        Accumulator(arena) as accumulator,
    ):
        accumulator.become_sender()
        yield accumulator


def seal(sender: Accumulator, records: list[Record]) -> list[bytes]:
    """Return the wire bytes of the records' batches. Check that they equal the content of the buffers."""
    for record in records:
        sender.append(TOPIC, 0, record.timestamp_ms, record.key, record.value, record.headers)
    sealed = []
    while batches := drain(sender):
        for batch in batches:
            buffers = batch.buffers
            sealed.append(b"".join(buffers))
            for buffer in buffers:
                buffer.release()
            assert sealed[-1] == batch.tobytes()
            sender.complete(batch, BatchResult.SUCCEEDED)
    return sealed


# --- kafka-python


def read_with_kafka_python(sealed: list[bytes]) -> list[Record]:
    records = []
    for wire in sealed:
        memory = MemoryRecords(wire)
        batch = memory.next_batch()
        assert batch.validate_crc()
        for offset, record in enumerate(batch):
            assert record.offset == offset
            records.append(Record(record.timestamp, record.key, record.value, list(record.headers)))
        assert not memory.has_next()
    return records


@pytest.mark.parametrize("records", [PLAIN, OVERSIZED], ids=["plain", "oversized"])
def test_kafka_python_reads_the_same(roomy: Accumulator, records: list[Record]) -> None:
    assert read_with_kafka_python(seal(roomy, records)) == records


def test_kafka_python_reads_the_same_of_random_records(roomy: Accumulator, seeded: Callable[[], random.Random]) -> None:
    records = random_records(seeded(), 400)
    assert read_with_kafka_python(seal(roomy, records)) == records


def test_kafka_python_sees_the_idempotence_triple(roomy: Accumulator) -> None:
    roomy.set_producer_id(4711, 2)
    first, second = seal(roomy, PLAIN), seal(roomy, PLAIN)
    headers = [MemoryRecords(wire).next_batch() for wire in first + second]
    assert [(batch.producer_id, batch.producer_epoch, batch.base_sequence) for batch in headers] == [
        (4711, 2, 0),
        (4711, 2, len(PLAIN)),
    ]


# --- confluent-kafka, through librdkafka's mock cluster


@dataclass(frozen=True)
class MockCluster:
    """One broker inside a librdkafka client, which lives as long as that client."""

    owner: Any
    host: str
    port: int


@pytest.fixture
def mock_cluster() -> MockCluster:
    silent = logging.getLogger("mock cluster")
    silent.setLevel(logging.CRITICAL)
    owner = Producer({"bootstrap.servers": "mock:1", "test.mock.num.brokers": 1, "logger": silent})
    (broker,) = owner.list_topics(TOPIC, timeout=WATCHDOG_S).brokers.values()
    return MockCluster(owner, broker.host, broker.port)


def produce(cluster: MockCluster, wire: bytes) -> int:
    """Send one batch unchanged. Return the base offset that the broker assigned."""
    partition = ProduceRequest.TopicProduceData.PartitionProduceData(index=0, records=wire)
    topic = ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[partition])
    request = ProduceRequest(
        version=PRODUCE_VERSION, transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=[topic]
    )
    request.with_header(correlation_id=1)
    with socket.create_connection((cluster.host, cluster.port), timeout=WATCHDOG_S) as connection:
        connection.sendall(request.encode(header=True, framed=True))
        stream = connection.makefile("rb")
        answer = stream.read(int.from_bytes(stream.read(4), "big"))
    response = ProduceResponse[PRODUCE_VERSION].decode(answer[4:])
    (result,) = response.responses[0].partition_responses
    assert result.error_code == 0
    return int(result.base_offset)


def consume(cluster: MockCluster, count: int) -> list[Record]:
    options = {"bootstrap.servers": f"{cluster.host}:{cluster.port}", "group.id": "reader", "check.crcs": True}
    consumer = Consumer(options)
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    records: list[Record] = []
    try:
        while len(records) < count:
            message = consumer.poll(WATCHDOG_S)
            assert message is not None
            assert message.error() is None, message.error()
            assert message.offset() == len(records)
            headers: Any = list(message.headers() or [])
            records.append(Record(message.timestamp()[1], message.key(), message.value(), headers))
    finally:
        consumer.close()
    return records


def test_confluent_kafka_reads_the_same(
    roomy: Accumulator, mock_cluster: MockCluster, seeded: Callable[[], random.Random]
) -> None:
    records = PLAIN + OVERSIZED + random_records(seeded(), 100)
    sealed = seal(roomy, records)
    assert len(sealed) > 3
    offsets = [produce(mock_cluster, wire) for wire in sealed]
    assert offsets == sorted(set(offsets))
    assert consume(mock_cluster, len(records)) == records
