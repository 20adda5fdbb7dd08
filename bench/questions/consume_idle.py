# SPDX-License-Identifier: Apache-2.0
"""How much processor time does an idle consumer use, beside clients of Apache Kafka on the same machine?

The figure is user and system time of this process over some seconds, while a member of a group polls an empty topic
with a time-out of a second. The consumer is already idle when it begins, because an idle consumer of shmaccum
checks less often.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.harness.stopwatch import Stopwatch
from bench.parts.apache_kafka import cluster, new_topic
from bench.parts.segments import create_log, tmpfs_folder
from shmaccum.log.consumer import Consumer

OURS = "shmaccum"
PEER, KAFKA_PYTHON = "confluent-kafka and Apache Kafka", "kafka-python and Apache Kafka"
TOPIC = "flights"
SETTLING_S, SECONDS = 6.0, 10.0
POLL_S = 1.0


def _share(poll: Callable[[], object]) -> Measurement:
    settling = Stopwatch()
    while settling.elapsed().wall_s < SETTLING_S:
        poll()
    stopwatch = Stopwatch()
    while (elapsed := stopwatch.elapsed()).wall_s < SECONDS:
        poll()
    return {"cpu_share": elapsed.cpu_s / elapsed.wall_s}


def _ours() -> Measurement:
    with tmpfs_folder() as folder:
        create_log(folder, TOPIC)
        with Consumer(folder, TOPIC, group_id="bench") as consumer:
            return _share(lambda: consumer.poll(POLL_S * 1000))


def _confluent() -> Measurement:
    import confluent_kafka

    topic = new_topic()
    with contextlib.closing(
        confluent_kafka.Consumer({"bootstrap.servers": cluster().bootstrap, "group.id": topic})
    ) as consumer:
        consumer.subscribe([topic])
        return _share(lambda: consumer.consume(1, POLL_S))


def _kafka_python() -> Measurement:
    from kafka import KafkaConsumer

    topic = new_topic()
    with contextlib.closing(KafkaConsumer(topic, bootstrap_servers=cluster().bootstrap, group_id=topic)) as consumer:
        return _share(lambda: consumer.poll(POLL_S * 1000))


def contenders() -> list[Contender]:
    """Return a member of a local group, and two clients of a coordinator."""
    return [Contender(OURS, _ours), Contender(PEER, _confluent), Contender(KAFKA_PYTHON, _kafka_python)]


QUESTION = Question(
    title="processor time of an idle consumer",
    figures=(Figure("cpu_share", "% of a core", 100.0, "lower"),),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
    scope="full",
    goals=(Goal("idle consumer, percent of a core", OURS, "cpu_share", 0.05),),
)
