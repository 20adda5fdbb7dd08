# SPDX-License-Identifier: Apache-2.0
"""shmaccum_stuck_block_ms: a producer of each library, and a partition that cannot be delivered to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from aiokafka import errors as aiokafka_errors
from kafka import errors as kafka_errors

from shmaccum.arena import Arena
from shmaccum.compat.aiokafka import AIOKafkaProducer
from shmaccum.compat.confluent import Producer as ConfluentProducer
from shmaccum.compat.kafka_python import KafkaProducer
from shmaccum.exceptions import BufferExhaustedError
from tests.support.accumulator import Accumulator
from tests.support.arenas import stuck_topic
from tests.unit.compat.conftest import TOPIC

VALUE = b"v" * 3000
LONG_MS = 600_000
"""A send that waits this long fails the test by its timeout."""


@pytest.fixture
def stuck(unsent: Arena) -> Iterator[Arena]:
    """The only partition has no leader, and its records use half of the buffers."""
    with Accumulator(unsent) as sender, stuck_topic(sender, TOPIC, VALUE):
        yield unsent


def send_by_kafka_python(unkept: dict[str, Any]) -> Exception:
    producer = KafkaProducer(**unkept, max_block_ms=LONG_MS)
    try:
        full: pytest.ExceptionInfo[Exception]
        with pytest.raises(kafka_errors.KafkaTimeoutError) as full:
            producer.send(TOPIC, VALUE, partition=0)
    finally:
        producer.close(timeout=0)
    return full.value


def send_by_aiokafka(unkept: dict[str, Any]) -> Exception:
    async def run() -> Exception:
        producer = AIOKafkaProducer(**unkept, request_timeout_ms=LONG_MS)
        await producer.start()
        try:
            full: pytest.ExceptionInfo[Exception]
            with pytest.raises(aiokafka_errors.KafkaTimeoutError) as full:
                await producer.send(TOPIC, VALUE, partition=0)
        finally:
            await producer.stop()
        return full.value

    return asyncio.run(run())


def send_by_confluent(unkept: dict[str, Any]) -> Exception:
    producer = ConfluentProducer({name.replace("_", ".", 1): value for name, value in unkept.items()})
    try:
        with pytest.raises(BufferError) as full:
            producer.produce(TOPIC, VALUE, partition=0)
    finally:
        producer.close()
    return full.value


@pytest.mark.parametrize("send", [send_by_kafka_python, send_by_aiokafka, send_by_confluent])
@pytest.mark.parametrize("block_ms", [0, 30])
def test_a_send_to_a_stuck_partition_does_not_wait_for_the_time_of_the_library(
    stuck: Arena, unkept: dict[str, Any], send: Callable[[dict[str, Any]], Exception], block_ms: int
) -> None:
    error = send({**unkept, "shmaccum_stuck_block_ms": block_ms})
    assert isinstance(error, BufferExhaustedError)
    given_ms = 0 if send is send_by_confluent else block_ms  # its produce never waits
    assert f"{given_ms} ms: partition 0 of topic {TOPIC!r} has been stuck for" in str(error)
