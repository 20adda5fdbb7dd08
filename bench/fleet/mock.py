# SPDX-License-Identifier: Apache-2.0
"""Real runs of workers on librdkafka's mock cluster. It needs little processor time, so the
workers seldom wait for a core.

The clients count their requests: librdkafka in its statistics, and shmaccum in the sender's metrics and the arena's
counters.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from bench.parts.apache_kafka import LINGER_MS
from bench.parts.arenas import temporary_arena
from bench.parts.kafka_fleet import (
    BATCH_SIZE,
    KEYS,
    Job,
    Workers,
    produce,
    send_by_client,
    sender_of,
    work_with_arena,
)
from bench.parts.mock_cluster import mock_cluster
from tests.kafka.broker import free_port

TOPIC = "fleet"
PARTITION_COUNT = 4
"""The number of partitions of a topic of the mock cluster."""
STATISTICS_MS = 200
REQUESTS = re.compile(r"^\S*produce_request_total\S* (\S+)$", re.MULTILINE)

Counts = tuple[float, float]
"""The numbers of batches and requests."""
Run = Callable[[Job], dict[str, float]]


def by_a_counting_client(pipe: Connection, topic: str, options: dict[str, Any]) -> None:
    """Run a worker with confluent-kafka's producer, which reports requests in place of processor time."""
    import confluent_kafka

    told: list[dict[str, Any]] = []
    producer = confluent_kafka.Producer({**options, "stats_cb": lambda text: told.append(json.loads(text))})
    send = send_by_client(producer, topic)

    def request_count() -> int:
        told.clear()
        while not told:
            producer.poll(1)
        return sum(broker["req"].get("Produce", 0) for broker in told[-1]["brokers"].values())

    send(KEYS[0])
    producer.flush()
    pipe.send("warm")
    while (job := pipe.recv()) is not None:
        before = request_count()
        begin_s = time.perf_counter()
        count = produce(job, send)
        producer.flush()
        elapsed_s = time.perf_counter() - begin_s
        pipe.send((count, elapsed_s, request_count() - before))


def requests_of(place: str) -> float:
    """Return the number of Produce requests of the sender with metrics at this address."""
    with urllib.request.urlopen(f"http://{place}/metrics") as answer:
        found = REQUESTS.search(answer.read().decode())
    return float(found.group(1)) if found else 0.0


@contextlib.contextmanager
def clients(worker_count: int, batches_per_request: float) -> Iterator[Run]:
    """Yield workers with a confluent-kafka producer each, whose requests have this many batches."""
    options = {"bootstrap.servers": mock_cluster(), "linger.ms": LINGER_MS, "enable.idempotence": True, "log_level": 0}
    options |= {"acks": "all", "batch.size": BATCH_SIZE, "statistics.interval.ms": STATISTICS_MS}
    workers = Workers(TOPIC, worker_count, by_a_counting_client, options)

    def run(job: Job) -> dict[str, float]:
        told = workers.work(job)
        request_count = sum(each[2] for each in told)
        return {
            "work_s": max(each[1] for each in told),
            "record_count": sum(each[0] for each in told),
            "batch_count": request_count * batches_per_request,
            "request_count": request_count,
        }

    try:
        yield run
    finally:
        workers.close()


@contextlib.contextmanager
def arena(worker_count: int) -> Iterator[Run]:
    """Yield workers that share an arena."""
    place = f"127.0.0.1:{free_port()}"
    with (
        temporary_arena(buffer_memory="32MiB", batch_size=BATCH_SIZE) as shared,
        sender_of(shared.name, mock_cluster(), f"metrics_listen={place}"),
    ):
        workers = Workers(TOPIC, worker_count, work_with_arena, shared.name)

        def counts() -> Counts:
            return shared.native.counters()["batches completed"], requests_of(place)

        def run(job: Job) -> dict[str, float]:
            before = counts()
            begin_s = time.perf_counter()
            told = workers.work(job)
            elapsed_s = time.perf_counter() - begin_s
            batch_count, request_count = (now - then for now, then in zip(counts(), before, strict=True))
            return {
                "work_s": elapsed_s,
                "record_count": sum(count for count, _ in told),
                "batch_count": batch_count,
                "request_count": request_count,
            }

        try:
            yield run
        finally:
            workers.close()
