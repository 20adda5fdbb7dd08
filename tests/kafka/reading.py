# SPDX-License-Identifier: Apache-2.0
"""Read records by confluent-kafka's consumer, which checks the CRC."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, TopicPartition

from tests.support.processes import WATCHDOG_S


def consume(
    bootstrap: str, topic: str, partition_count: int, record_count: int, **options: str
) -> dict[int, list[bytes | None]]:
    """Wait for the expected number of records, and return the values of each partition in order.

    Raises:
        AssertionError: a record is missing, repeated, or in a damaged batch.
    """
    return {
        partition: [value for _, value in records]
        for partition, records in consume_records(bootstrap, topic, partition_count, record_count, **options).items()
    }


def consume_records(
    bootstrap: str, topic: str, partition_count: int, record_count: int, **options: str
) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """Like `consume`, with the keys."""
    told: list[str] = []
    settings = {"bootstrap.servers": bootstrap, "group.id": "tests", "check.crcs": True, "log_level": 0}
    settings |= {"enable.auto.commit": False, "fetch.wait.max.ms": 50}
    settings |= {key.replace("_", "."): value for key, value in options.items()}
    consumer = Consumer({**settings, "error_cb": lambda error: told.append(str(error))})
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partition_count)])
        found = _consumed(consumer, partition_count, record_count, told)
        ends = [consumer.get_watermark_offsets(TopicPartition(topic, partition))[1] for partition in found]
    finally:
        consumer.close()
    counts = {partition: len(records) for partition, records in found.items()}
    assert sum(counts.values()) == sum(ends) == record_count, (counts, ends, record_count)
    return found


def _consumed(
    consumer: Consumer, partition_count: int, record_count: int, told: list[str]
) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    found: dict[int, list[tuple[bytes | None, bytes | None]]] = {partition: [] for partition in range(partition_count)}
    deadline = time.monotonic() + WATCHDOG_S
    while sum(map(len, found.values())) < record_count:
        assert time.monotonic() < deadline, ({place: len(records) for place, records in found.items()}, told)
        for message in consumer.consume(10_000, timeout=0.2):
            partition = message.partition()
            assert message.error() is None, message.error()
            assert partition is not None
            found[partition].append((message.key(), message.value()))
    return found
