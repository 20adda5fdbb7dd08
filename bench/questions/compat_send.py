# SPDX-License-Identifier: Apache-2.0
"""How many records per second does a program send after the change of one import?

Each library, and the producer of `shmaccum.compat` that replaces it, sends to librdkafka's mock cluster in another
process. The time runs from the first `send` to the end of `flush`, when all records are acknowledged. One record is
sent first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

from bench.harness.cleanup import new_name
from bench.harness.packages import installed_version, load
from bench.harness.question import Contender, Figure, Goal, Guarantees, Measurement, Question
from bench.harness.stopwatch import Stopwatch
from bench.parts.arenas import GUARANTEES, TOPIC
from bench.parts.mock_cluster import mock_cluster
from bench.parts.sending import VALUE
from shmaccum.arena import Arena

RECORD_COUNT = 200_000
SLOW_RECORD_COUNT = 10_000
LINGER_MS = 5
PAUSE_S = 0.005
MOCK_CLUSTER_VERSION = (2, 0)
LOST = Guarantees(record="copy", order="partition", checksum="CRC32C", kill="lost")
KAFKA_PYTHON, CONFLUENT = "compat.kafka_python", "compat.confluent"
TOLD = ", on_delivery"
"""The suffix of a contender that sends each record with a callback."""

Produce: TypeAlias = Callable[[Any], Measurement]
"""A function that sends with a producer that has confluent-kafka's API."""


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


def _our_confluent(produce: Produce) -> Measurement:
    from shmaccum.compat.confluent import Producer

    config = {"bootstrap.servers": mock_cluster(), "linger.ms": LINGER_MS}
    with _arena_name() as name, Producer({**config, "shmaccum.arena": name}) as producer:
        return produce(producer)


def _kafka_python() -> Measurement:
    options = {"linger_ms": LINGER_MS, "api_version": MOCK_CLUSTER_VERSION}
    producer = load("kafka", "kafka-python").KafkaProducer(bootstrap_servers=mock_cluster(), **options)
    try:
        return _sent(producer.send, producer.flush, SLOW_RECORD_COUNT)
    finally:
        producer.close()


def _confluent(produce: Produce) -> Measurement:
    config = {"bootstrap.servers": mock_cluster(), "linger.ms": LINGER_MS, "acks": "all", "enable.idempotence": True}
    return produce(load("confluent_kafka", "confluent-kafka").Producer({**config, "log_level": 0}))


def _without_callbacks(producer: Any) -> Measurement:
    """Send with `produce`. If the queue is full, poll and call it again, as confluent-kafka's examples do."""
    produce = producer.produce

    def send(topic: str, value: bytes) -> None:
        try:
            produce(topic, value)
        except BufferError:
            producer.poll(PAUSE_S)
            send(topic, value)

    return _sent(send, producer.flush, RECORD_COUNT)


def _with_callbacks(producer: Any) -> Measurement:
    """Send with a callback for each record, which `poll` and `flush` call."""
    produce, told_count = producer.produce, 0

    def heard(error: Any, _message: Any) -> None:
        nonlocal told_count
        assert error is None, error
        told_count += 1

    def send(topic: str, value: bytes) -> None:
        try:
            produce(topic, value, on_delivery=heard)
        except BufferError:
            producer.poll(PAUSE_S)
            send(topic, value)

    measurement = _sent(send, producer.flush, RECORD_COUNT)
    assert told_count == RECORD_COUNT + 1, told_count
    return measurement


def _confluent_version() -> str:
    return installed_version("confluent-kafka")


def contenders() -> list[Contender]:
    """Return the two libraries, and the producer that replaces each."""
    return [
        Contender(
            CONFLUENT + TOLD,
            partial(_our_confluent, _with_callbacks),
            peer="confluent-kafka" + TOLD,
            guarantees=GUARANTEES,
        ),
        Contender(
            CONFLUENT, partial(_our_confluent, _without_callbacks), peer="confluent-kafka", guarantees=GUARANTEES
        ),
        Contender(KAFKA_PYTHON, _our_kafka_python, peer="kafka-python", guarantees=GUARANTEES),
        Contender("kafka-python", _kafka_python, version=lambda: installed_version("kafka-python"), guarantees=LOST),
        Contender(
            "confluent-kafka", partial(_confluent, _without_callbacks), version=_confluent_version, guarantees=LOST
        ),
        Contender(
            "confluent-kafka" + TOLD, partial(_confluent, _with_callbacks), version=_confluent_version, guarantees=LOST
        ),
    ]


QUESTION = Question(
    title="records of 100 B to a mock cluster after a change of one import",
    figures=(
        Figure("records_per_s", "k records/s", 1e-3, "higher", "from the first send to the last acknowledgement"),
        Figure("call_ns", "ns", 1.0, "lower", "of one send, including all waits for buffers"),
    ),
    contenders=contenders,
    peer="kafka-python",
    goals=(
        Goal("``compat.kafka_python``, records/s", KAFKA_PYTHON, "records_per_s", 50, is_ratio=True),
        Goal(
            "``compat.confluent`` with ``on_delivery``, records/s", CONFLUENT + TOLD, "records_per_s", 2, is_ratio=True
        ),
    ),
    reason=(
        "A callback gets a ``confluent_kafka.Message``. Its constructor takes about 3,000 instructions of the "
        "4,500 from a result to the end of the callback, counted by callgrind. librdkafka's client fills the "
        "object directly."
    ),
)
