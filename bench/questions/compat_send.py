# SPDX-License-Identifier: Apache-2.0
"""How many records a second does a program send after a change of one import, until a cluster has acknowledged all?

Each library sends to librdkafka's mock cluster, which is a process of its own, and so does the producer of
`shmaccum.compat` that stands for it. The clock runs from the first `send` to the end of `flush`; a first record comes
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench.arenas import GUARANTEES, TOPIC
from bench.harness.belongings import new_name
from bench.harness.question import Contender, Figure, Goal, Guarantees, Measurement, Question
from bench.mock_cluster import mock_cluster
from bench.packages import installed_version, load
from bench.sending import VALUE
from bench.stopwatch import Stopwatch
from shmaccum.arena import Arena

RECORD_COUNT = 200_000
SLOW_RECORD_COUNT = 10_000
LINGER_MS = 5
PAUSE_S = 0.005
MOCK_CLUSTER_VERSION = (2, 0)
LOST = Guarantees(record="copy", order="partition", checksum="CRC32C", kill="lost")
KAFKA_PYTHON, CONFLUENT = "compat.kafka_python", "compat.confluent"


def _sent(send: Callable[[str, bytes], object], flush: Callable[[], object], record_count: int) -> Measurement:
    send(TOPIC, VALUE)
    flush()
    stopwatch = Stopwatch()
    for _ in range(record_count):
        send(TOPIC, VALUE)
    call_ns = stopwatch.elapsed().wall_s * 1e9 / record_count
    flush()
    return {"records_per_s": record_count / stopwatch.elapsed().wall_s, "call_ns": call_ns}


@contextmanager
def _arena_name() -> Iterator[str]:
    name = new_name()
    try:
        yield name
    finally:
        Arena.remove(name, missing_ok=True)


def _our_kafka_python() -> Measurement:
    from shmaccum.compat.kafka_python import KafkaProducer

    with (
        _arena_name() as name,
        KafkaProducer(bootstrap_servers=mock_cluster(), shmaccum_arena=name, linger_ms=LINGER_MS) as producer,
    ):
        return _sent(producer.send, producer.flush, RECORD_COUNT)


def _our_confluent() -> Measurement:
    from shmaccum.compat.confluent import Producer

    config = {"bootstrap.servers": mock_cluster(), "linger.ms": LINGER_MS}
    with _arena_name() as name, Producer({**config, "shmaccum.arena": name}) as producer:
        return _sent(_unless_full(producer), producer.flush, RECORD_COUNT)


def _kafka_python() -> Measurement:
    options = {"linger_ms": LINGER_MS, "api_version": MOCK_CLUSTER_VERSION}
    producer = load("kafka", "kafka-python").KafkaProducer(bootstrap_servers=mock_cluster(), **options)
    try:
        return _sent(producer.send, producer.flush, SLOW_RECORD_COUNT)
    finally:
        producer.close()


def _confluent() -> Measurement:
    config = {"bootstrap.servers": mock_cluster(), "linger.ms": LINGER_MS, "acks": "all", "enable.idempotence": True}
    producer = load("confluent_kafka", "confluent-kafka").Producer({**config, "log_level": 0})
    return _sent(_unless_full(producer), producer.flush, RECORD_COUNT)


def _unless_full(producer: Any) -> Callable[[str, bytes], object]:
    """`produce`, again after a poll where the queue is full, as confluent-kafka's examples have it."""
    produce = producer.produce

    def send(topic: str, value: bytes) -> None:
        try:
            produce(topic, value)
        except BufferError:
            producer.poll(PAUSE_S)
            send(topic, value)

    return send


def contenders() -> list[Contender]:
    """The two libraries, and the producer that takes the place of each."""
    return [
        Contender(KAFKA_PYTHON, _our_kafka_python, peer="kafka-python", guarantees=GUARANTEES),
        Contender(CONFLUENT, _our_confluent, peer="confluent-kafka", guarantees=GUARANTEES),
        Contender("kafka-python", _kafka_python, version=lambda: installed_version("kafka-python"), guarantees=LOST),
        Contender("confluent-kafka", _confluent, version=lambda: installed_version("confluent-kafka"), guarantees=LOST),
    ]


QUESTION = Question(
    title="records of 100 B to a mock cluster after a change of one import",
    figures=(
        Figure("records_per_s", "k records/s", 1e-3, "higher", "from the first send to the last acknowledgement"),
        Figure("call_ns", "ns", 1.0, "lower", "of one send, with all waits for room"),
    ),
    contenders=contenders,
    peer="kafka-python",
    goals=(
        Goal("``compat.kafka_python``, records/s", KAFKA_PYTHON, "records_per_s", 50, is_ratio=True),
        Goal("``compat.confluent``, records/s", CONFLUENT, "records_per_s", 2, is_ratio=True),
    ),
)
