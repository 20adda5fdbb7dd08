# SPDX-License-Identifier: Apache-2.0
"""How long does a commit of a consumer take, beside clients of Apache Kafka on the same machine?

Each consumer commits one offset of one partition repeatedly and waits for each response. shmaccum's consumer is a
member of a group on the log's host and does not sync. Kafka's brokers do not sync by default either.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.parts.apache_kafka import cluster, new_topic
from bench.parts.segments import create_log, tmpfs_folder
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.consumer import Consumer

OURS = "shmaccum"
PEER, KAFKA_PYTHON = "confluent-kafka and Apache Kafka", "kafka-python and Apache Kafka"
TOPIC = "flights"
COUNT, REMOTE_COUNT = 20_000, 500


def _timed(commit: Callable[[int], object], count: int) -> Measurement:
    commit(0)  # before the measurement, so that a client has found its coordinator
    started_s = time.perf_counter()
    for offset in range(1, count + 1):
        commit(offset)
    return {"s_per_commit": (time.perf_counter() - started_s) / count}


def _ours() -> Measurement:
    place = TopicPartition(TOPIC, 0)
    with tmpfs_folder() as folder:
        create_log(folder, TOPIC)
        with Consumer(folder, TOPIC, group_id="bench", enable_auto_commit=False) as consumer:
            while not consumer.assignment():
                consumer.poll()
            return _timed(lambda offset: consumer.commit({place: offset}), COUNT)


def _confluent() -> Measurement:
    import confluent_kafka

    topic = new_topic()
    settings = {"bootstrap.servers": cluster().bootstrap, "group.id": topic, "enable.auto.commit": False}
    with contextlib.closing(confluent_kafka.Consumer(settings)) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])

        def commit(offset: int) -> None:
            consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, offset)], asynchronous=False)

        return _timed(commit, REMOTE_COUNT)


def _kafka_python() -> Measurement:
    from kafka import KafkaConsumer, OffsetAndMetadata
    from kafka import TopicPartition as Place

    topic = new_topic()
    place = Place(topic, 0)
    with contextlib.closing(
        KafkaConsumer(bootstrap_servers=cluster().bootstrap, group_id=topic, enable_auto_commit=False)
    ) as consumer:
        consumer.assign([place])
        return _timed(lambda offset: consumer.commit({place: OffsetAndMetadata(offset, "", -1)}), REMOTE_COUNT)


def contenders() -> list[Contender]:
    """Return a member of a local group, and two clients of a coordinator."""
    return [Contender(OURS, _ours), Contender(PEER, _confluent), Contender(KAFKA_PYTHON, _kafka_python)]


QUESTION = Question(
    title="a commit of a consumer, one offset, not synced",
    figures=(Figure("s_per_commit", "µs", 1e6, "lower"),),
    contenders=contenders,
    peer=PEER,
    scope="full",
    goals=(Goal("a commit of a consumer", OURS, "s_per_commit", 10.0),),
    reason=(
        "A commit makes nine system calls: it acquires and releases a lock, writes, and compares three files "
        "with those of the last commit, because other processes may have replaced them."
    ),
)
