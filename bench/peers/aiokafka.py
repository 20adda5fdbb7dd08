# SPDX-License-Identifier: Apache-2.0
"""aiokafka: `send` awaited record by record, and `create_batch`, which it recommends for throughput.

It sends to a mock cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from bench.harness.packages import installed_version, load
from bench.harness.question import Contender, Guarantees, Measurement
from bench.harness.stopwatch import Stopwatch
from bench.parts.apache_kafka import BATCH_SIZE, LINGER_MS, acknowledged, cluster, new_topic
from bench.parts.arenas import TOPIC
from bench.parts.mock_cluster import mock_cluster
from bench.parts.sending import VALUE, per_record

SINGLE_COUNT = 10_000
BATCHED_COUNT = 200_000
OPTIONS = {"linger_ms": LINGER_MS, "max_batch_size": BATCH_SIZE}
GUARANTEES = Guarantees(record="copy", order="partition", checksum="CRC32C", kill="lost")

Work = Callable[[Any], Awaitable[Measurement]]


@asynccontextmanager
async def _producer(bootstrap: str, **options: Any) -> AsyncIterator[Any]:
    module = load("aiokafka", "aiokafka")
    async with module.AIOKafkaProducer(bootstrap_servers=bootstrap, **OPTIONS, **options) as producer:
        await producer.partitions_for(TOPIC)
        yield producer
        await producer.flush()


async def _send_each(producer: Any) -> Measurement:
    stopwatch = Stopwatch()
    for _ in range(SINGLE_COUNT):
        await producer.send(TOPIC, VALUE)
    return per_record(stopwatch.elapsed(), SINGLE_COUNT)


async def _send_batches(producer: Any) -> Measurement:
    partitions = sorted(await producer.partitions_for(TOPIC))
    stopwatch = Stopwatch()
    count = number = 0
    while count < BATCHED_COUNT:
        batch = producer.create_batch()
        while batch.append(key=None, value=VALUE, timestamp=None) is not None:
            pass
        count += batch.record_count()
        await producer.send_batch(batch, TOPIC, partition=partitions[number % len(partitions)])
        number += 1
    elapsed = stopwatch.elapsed()
    return {"records_per_s": count / elapsed.wall_s, "cpu_ns": elapsed.cpu_s * 1e9 / count}


async def _to_kafka() -> Measurement:
    topic = new_topic()
    async with _producer(cluster().bootstrap, acks="all", enable_idempotence=True) as producer:
        await producer.send_and_wait(topic, VALUE)
        stopwatch = Stopwatch()
        for _ in range(SINGLE_COUNT):
            await producer.send(topic, VALUE)
        await producer.flush()
        return acknowledged(stopwatch.elapsed(), SINGLE_COUNT)


async def _to_mock(work: Work, bootstrap: str) -> Measurement:
    async with _producer(bootstrap) as producer:
        return await work(producer)


def _mocked(work: Work) -> Callable[[], Measurement]:
    return lambda: asyncio.run(_to_mock(work, mock_cluster()))


def _contender(name: str, run: Callable[[], Measurement]) -> Contender:
    return Contender(f"aiokafka {name}", run, version=lambda: installed_version("aiokafka"), guarantees=GUARANTEES)


WORKS = {
    "send": lambda: [_contender("send", _mocked(_send_each))],
    "send_many": lambda: [_contender("send_batch", _mocked(_send_batches))],
    "kafka": lambda: [_contender("send", lambda: asyncio.run(_to_kafka()))],
}
