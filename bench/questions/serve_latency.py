# SPDX-License-Identifier: Apache-2.0
"""How long does a record take from its producer through a served log to a consumer, beside Apache Kafka?

A confluent-kafka consumer waits for the next record, and a record is sent when the previous one has arrived. Producer
and consumer are one process with one clock. "writer in the server" is a confluent-kafka producer that sends to
``shmaccum serve --writable``. "sender beside it" is a `shmaccum.Producer` whose sender writes the log, and a server
that reads the log.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from typing import Any

from bench.harness.packages import load
from bench.harness.percentiles import FIGURES, percentiles
from bench.harness.question import Contender, Goal, Measurement, Question
from bench.parts.arenas import temporary_arena
from bench.parts.servers import LOOPBACK, Starter, apache_kafka, free_port, kafka_version, served_command, served_log
from shmaccum.producer import Producer

COUNT = 300
DEADLINE_S = 30.0
TOPIC = "latency"
OURS, BESIDE, PEER = "shmaccum serve, writer in the server", "shmaccum serve, sender beside it", "Apache Kafka"


def _measured(send: Callable[[bytes], object], bootstrap: str) -> Measurement:
    """Send a record, receive it, and send the next one."""
    consumer = _consumer(bootstrap)
    try:
        _take(consumer, send, b"first")
        return percentiles([_take(consumer, send, b"%d" % number) for number in range(COUNT)])
    finally:
        consumer.close()


def _consumer(bootstrap: str) -> Any:
    """Return a consumer at the end of the topic's only partition."""
    kafka = load("confluent_kafka", "confluent-kafka")
    consumer = kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "any", "fetch.wait.max.ms": 5000})
    place = kafka.TopicPartition(TOPIC, 0)
    _, end = consumer.get_watermark_offsets(place, DEADLINE_S)
    consumer.assign([kafka.TopicPartition(TOPIC, 0, end)])
    return consumer


def _take(consumer: Any, send: Callable[[bytes], object], value: bytes) -> int:
    """Return the nanoseconds from the send of a record to its arrival."""
    started_ns = time.perf_counter_ns()
    send(value)
    message = consumer.poll(DEADLINE_S)
    while message is not None and message.error() is None and message.value() != value:
        message = consumer.poll(DEADLINE_S)
    if message is None or message.error() is not None:
        raise TimeoutError(f"a record did not come within {DEADLINE_S:g} s: {message and message.error()}")
    return time.perf_counter_ns() - started_ns


def _through(start: Starter) -> Measurement:
    kafka = load("confluent_kafka", "confluent-kafka")
    bootstrap = start().address
    producer = kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    producer.produce(TOPIC, b"made", partition=0)
    producer.flush(DEADLINE_S)

    def send(value: bytes) -> None:
        producer.produce(TOPIC, value, partition=0)
        producer.poll(0)

    return _measured(send, bootstrap)


@cache
def _reading_server() -> tuple[str, str]:
    """Return a log, and the address of a server that reads it, for the lifetime of this process."""
    folder = tempfile.mkdtemp(prefix="shmaccum-bench-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "shmaccum", "topics", "create", folder, TOPIC, "-n", "1"], check=True)
    port = free_port()
    process = subprocess.Popen(served_command(folder, port))
    atexit.register(process.wait)
    atexit.register(process.terminate)
    return folder, f"{LOOPBACK}:{port}"


def _beside() -> Measurement:
    folder, bootstrap = _reading_server()
    with temporary_arena() as arena:
        command = [sys.executable, "-m", "shmaccum", "sender", arena.name, "--sink", f"log:{folder}", "-q"]
        with subprocess.Popen(command) as sender, Producer(arena, linger_ms=0) as producer:
            try:
                return _measured(lambda value: producer.send(TOPIC, value, partition=0), bootstrap)
            finally:
                producer.flush()
                sender.terminate()


def contenders() -> list[Contender]:
    """Return shmaccum in both forms, and Kafka."""
    return [
        Contender(OURS, lambda: _through(served_log)),
        Contender(BESIDE, _beside),
        Contender(PEER, lambda: _through(apache_kafka), version=kafka_version),
    ]


QUESTION = Question(
    title="one record at a time from a producer to a consumer that waits for it",
    figures=FIGURES,
    contenders=contenders,
    peer=PEER,
    scope="full",
    goals=(
        Goal("end to end, writer in the server, of Apache Kafka's", OURS, "p50_ns", 1.0, is_ratio=True),
        Goal("end to end, sender beside the server", BESIDE, "p50_ns", 3500.0),
    ),
)
