# SPDX-License-Identifier: Apache-2.0
"""A member of a consumer group as a process: ``python -m tests.support.group_member CLIENT ADDRESS``.

It prints its partitions whenever they change, and the value of every record that it reads, one JSON document per line.
CLIENT is kafka-python, confluent or aiokafka.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from tests.support.segment_log import TOPIC

GROUP = "g"
SESSION_MS, HEARTBEAT_MS = 2000, 200
POLL_S = 0.1


class Told:
    """Prints changes."""

    def __init__(self) -> None:
        self._partitions: list[int] | None = None

    def partitions(self, found: list[int]) -> None:
        if found != self._partitions:
            self._partitions = found
            print(json.dumps({"partitions": found}), flush=True)

    @staticmethod
    def value(value: bytes) -> None:
        print(json.dumps({"value": int(value)}), flush=True)


def use_kafka_python(address: str, told: Told) -> None:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=address,
        group_id=GROUP,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    while True:
        for records in consumer.poll(timeout_ms=int(POLL_S * 1000)).values():
            for record in records:
                told.value(record.value)
        told.partitions(sorted(place.partition for place in consumer.assignment()))


def use_confluent(address: str, told: Told) -> None:
    import confluent_kafka

    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "group.id": GROUP,
        "auto.offset.reset": "earliest",
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": HEARTBEAT_MS,
    }
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([TOPIC])
    while True:
        message = consumer.poll(POLL_S)
        if message is not None and message.error() is None:
            told.value(message.value() or b"")
        told.partitions(sorted(place.partition for place in consumer.assignment()))


async def use_aiokafka(address: str, told: Told) -> None:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=address,
        group_id=GROUP,
        auto_offset_reset="earliest",
        session_timeout_ms=SESSION_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    await consumer.start()
    while True:
        for records in (await consumer.getmany(timeout_ms=int(POLL_S * 1000))).values():
            for record in records:
                told.value(record.value)
        told.partitions(sorted(place.partition for place in consumer.assignment()))


def main() -> None:
    client, address = sys.argv[1:]
    if client == "aiokafka":
        asyncio.run(use_aiokafka(address, Told()))
    else:
        {"kafka-python": use_kafka_python, "confluent": use_confluent}[client](address, Told())


if __name__ == "__main__":
    main()
