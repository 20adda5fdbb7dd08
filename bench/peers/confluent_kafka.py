# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka (librdkafka). Without a broker, `produce` only adds to a queue, which is compared with a send.

The queue is emptied between rounds. The options that its documentation recommends for throughput (linger.ms,
batch.size, compression) do not affect the queue. It is large enough for a round, so it is never full. With a mock
cluster, librdkafka's thread sends at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.harness.packages import installed_version, load
from bench.harness.question import Contender, Guarantees, Measurement
from bench.harness.stopwatch import Stopwatch
from bench.parts.apache_kafka import BATCH_SIZE, LINGER_MS, cluster, produced
from bench.parts.arenas import TOPIC
from bench.parts.mock_cluster import mock_cluster
from bench.parts.sending import RECORD_COUNT, VALUE, send_keyed, send_plain

NOWHERE = "127.0.0.1:1"
CALL_SIZE = 10_000
GUARANTEES = Guarantees(record="copy", order="partition", checksum="none", kill="lost")
"""It computes checksums when it sends."""


def _module() -> Any:
    return load("confluent_kafka", "confluent-kafka")


def version() -> str:
    confluent_kafka = _module()
    return f"{installed_version('confluent-kafka')}, librdkafka {confluent_kafka.libversion()[0]}"


@contextmanager
def running_producer(bootstrap: str, **options: Any) -> Iterator[Any]:
    """Yield a producer, and forget its queue at the end."""
    common = {"bootstrap.servers": bootstrap, "queue.buffering.max.messages": RECORD_COUNT + 1, "log_level": 0}
    producer = _module().Producer({**common, **options})
    yield producer
    producer.purge()
    producer.flush(0)


def _queued(work: Callable[[Callable[..., Any]], Measurement]) -> Callable[[], Measurement]:
    def run() -> Measurement:
        with running_producer(NOWHERE) as producer:
            return work(producer.produce)

    return run


def _taken() -> Measurement:
    with running_producer(mock_cluster()) as producer:
        producer.list_topics(TOPIC)
        measured = send_plain(producer.produce)
        producer.flush()
    return measured


def _batches() -> Measurement:
    call = [{"value": VALUE}] * CALL_SIZE
    with running_producer(NOWHERE) as producer:
        stopwatch = Stopwatch()
        for _ in range(RECORD_COUNT // CALL_SIZE):
            producer.produce_batch(TOPIC, call)
        elapsed = stopwatch.elapsed()
    return {"records_per_s": RECORD_COUNT / elapsed.wall_s, "cpu_ns": elapsed.cpu_s * 1e9 / RECORD_COUNT}


def _contender(name: str, run: Callable[[], Measurement]) -> Contender:
    return Contender(f"confluent-kafka {name}", run, version=version, guarantees=GUARANTEES)


def _send() -> list[Contender]:
    return [
        _contender("produce, no key", _queued(send_plain)),
        _contender("produce, key", _queued(send_keyed)),
        _contender("produce, a mock cluster takes", _taken),
    ]


def _to_kafka(**options: Any) -> Callable[[], Measurement]:
    def run() -> Measurement:
        common = {"acks": "all", "enable.idempotence": True, "linger.ms": LINGER_MS}
        with running_producer(cluster().bootstrap, **common, **options) as producer:
            return produced(producer.produce, producer.flush, RECORD_COUNT)

    return run


def _kafka() -> list[Contender]:
    """Return a contender with the batch size of all clients, and one with its own default, with which its throughput is
    highest.
    """
    return [
        _contender("produce", _to_kafka(**{"batch.size": BATCH_SIZE})),
        _contender("produce, batch.size 1 MB", _to_kafka()),
    ]


WORKS = {
    "send": _send,
    "send_many": lambda: [_contender("produce_batch", _batches)],
    "kafka": _kafka,
}
