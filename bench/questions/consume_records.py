# SPDX-License-Identifier: Apache-2.0
"""How many records per second does a consumer on the log's host get, beside clients of Apache Kafka?

All run on the same machine. The same records are in shmaccum's log and in the broker's: 100 bytes, six partitions,
batches of 16 KiB, not compressed. Each round has a new consumer that reads all of them, and the program reads the value
of each record. The time runs from the first record to the last one. shmaccum and kafka-python verify CRCs; librdkafka
does not by default.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.parts.apache_kafka import PARTITION_COUNT, cluster, new_topic
from bench.parts.segments import lasting_folder
from bench.parts.sending import VALUE
from shmaccum.config import LogSinkOptions
from shmaccum.log.consumer import Consumer
from shmaccum.log.files import LogDirectory, LogReader

RECORD_COUNT = 300_000
MANY = 10_000
POLL_S = 1.0
PEER, KAFKA_PYTHON = "confluent-kafka consume(10000) from Apache Kafka", "kafka-python poll from Apache Kafka"
POLL, CONSUME, ARROW = "shmaccum poll", "shmaccum consume(10000)", "shmaccum poll_arrow"


@cache
def _topic() -> str:
    """Create a topic of the broker with all records."""
    import confluent_kafka

    topic = new_topic()
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": cluster().bootstrap, "batch.size": 16_384, "queue.buffering.max.messages": RECORD_COUNT}
    )
    for number in range(RECORD_COUNT):
        producer.produce(topic, VALUE, b"key", partition=number % PARTITION_COUNT)
    producer.flush()
    return topic


@cache
def _folder() -> TemporaryDirectory[str]:
    """Create a log of shmaccum with the broker's batches."""
    folder = lasting_folder()
    broker = LogReader(cluster().brokers[0].log_directory)
    with LogDirectory(folder.name, LogSinkOptions(partitions=PARTITION_COUNT)) as directory:
        directory.create_topic(_topic())
        for number in range(PARTITION_COUNT):
            directory.partition(_topic(), number).append(list(broker.partition(_topic(), number).batches()))
    return folder


def _rate(read_one: Callable[[], int], read: Callable[[int], int]) -> Measurement:
    """Return the records per second after the first record, which arrives when the client has its metadata.

    Args:
        read: reads records. Its argument is the number of remaining records, so that no call waits for more.
    """
    while not read_one():
        pass
    begin_s, done = time.perf_counter(), 1
    while done < RECORD_COUNT:
        done += read(RECORD_COUNT - done)
    return {"records_per_s": (done - 1) / (time.perf_counter() - begin_s)}


def _values_of(polled: Mapping[Any, Sequence[Any]]) -> int:
    """Return the number of records of a poll, after reading each value."""
    return sum(len([record.value for record in records]) for records in polled.values())


def _ours(read: Callable[[Consumer, int], int]) -> Callable[[], Measurement]:
    def run() -> Measurement:
        with Consumer(_folder().name, _topic(), auto_offset_reset="earliest", max_poll_records=MANY) as consumer:
            return _rate(lambda: len(consumer.consume(1, POLL_S)), lambda left: read(consumer, left))

    return run


def _polled(consumer: Consumer, _left: int) -> int:
    return _values_of(consumer.poll(1000 * POLL_S))


def _consumed(consumer: Consumer, left: int) -> int:
    return len([record.value for record in consumer.consume(min(MANY, left), POLL_S)])


def _tabulated(consumer: Consumer, _left: int) -> int:
    count: int = consumer.poll_arrow(1000 * POLL_S).num_rows
    return count


def _confluent() -> Measurement:
    import confluent_kafka

    settings = {"bootstrap.servers": cluster().bootstrap, "group.id": "bench", "enable.auto.commit": False}
    with contextlib.closing(confluent_kafka.Consumer(settings)) as consumer:
        places = [confluent_kafka.TopicPartition(_topic(), number, 0) for number in range(PARTITION_COUNT)]
        consumer.assign(places)
        return _rate(
            lambda: len(consumer.consume(1, POLL_S)),
            lambda left: len([message.value() for message in consumer.consume(min(MANY, left), POLL_S)]),
        )


def _kafka_python() -> Measurement:
    from kafka import KafkaConsumer, TopicPartition

    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "max_poll_records": MANY}
    with contextlib.closing(KafkaConsumer(bootstrap_servers=cluster().bootstrap, **settings)) as consumer:
        consumer.assign([TopicPartition(_topic(), number) for number in range(PARTITION_COUNT)])
        return _rate(
            lambda: len(consumer.poll(1000 * POLL_S, max_records=1)),
            lambda _left: _values_of(consumer.poll(1000 * POLL_S)),
        )


def _version() -> str:
    import confluent_kafka

    return f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"


def contenders() -> list[Contender]:
    """Return three ways to consume with shmaccum, and two clients."""
    return [
        Contender(POLL, _ours(_polled), peer=KAFKA_PYTHON),
        Contender(CONSUME, _ours(_consumed)),
        Contender(ARROW, _ours(_tabulated)),
        Contender(PEER, _confluent, version=_version),
        Contender(KAFKA_PYTHON, _kafka_python),
    ]


QUESTION = Question(
    title="records of 100 B consumed on the log's host, beside clients of Apache Kafka on the same machine",
    figures=(Figure("records_per_s", "k records/s", 1e-3, "higher", "in one process, each value read"),),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
    scope="full",
    goals=(
        Goal("local consumer, of confluent-kafka's records/s", CONSUME, "records_per_s", 3.0, is_ratio=True),
        Goal("local consumer, of kafka-python's records/s", POLL, "records_per_s", 20.0, is_ratio=True),
        Goal("local consumer's tables, of confluent-kafka's records/s", ARROW, "records_per_s", 10.0, is_ratio=True),
    ),
)
