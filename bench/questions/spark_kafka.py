# SPDX-License-Identifier: Apache-2.0
"""How many rows per second does Spark write to Apache Kafka through the arena, beside what one writes without it?

That is ``foreachPartition`` with a confluent-kafka producer for each partition, which is flushed at its end. Everybody
on one machine, the broker too; six partitions, acks=all, idempotence, linger 5 ms. The peer has Kafka's batch.size of
16 KiB and once its own default of 1 MB.

Exactly once is asked for, too: tasks stage on tmpfs, and the driver commits one transaction of Kafka. It is compared
with ours at least once.
"""

from __future__ import annotations

import atexit
import shutil
import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from bench.apache_kafka import PARTITION_COUNT, cluster
from bench.harness.belongings import new_name
from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.rows import TASK_COUNT, VALUE_SIZE
from bench.segments import TMPFS
from shmaccum.arena import Arena

ROW_COUNT = 200_000
"""The peer handles every row in Python."""
OURS, PEER = "sink, kafka:", "foreachPartition, confluent-kafka"
ONCE = "sink, kafka:, exactly once"
NAME = new_name()
TOPIC = "flights"
POLL_EVERY = 1000


@cache
def _bootstrap() -> str:
    """A broker with a topic; host and port.

    Raises:
        UnavailableError: Kafka cannot be had here.
    """
    cluster().create_topic(TOPIC, PARTITION_COUNT)
    return str(cluster().bootstrap)


def _measured(write: Callable[[], None]) -> Measurement:
    started_s = time.perf_counter()
    write()
    return {"rows_per_s": ROW_COUNT / (time.perf_counter() - started_s)}


def _through_the_arena() -> Measurement:
    from bench.spark_session import rows

    options = {"arena": NAME, "sink": f"kafka:{_bootstrap()}", "topic": TOPIC, "linger.ms": "5", "idleExitMs": "2s"}
    writer = rows(ROW_COUNT).write.format("shmaccum").mode("append").options(bufferMemory="64MiB", **options)
    return _measured(writer.save)


def _exactly_once() -> Measurement:
    from bench.spark_session import rows

    staging = f"{TMPFS}/{NAME}-staging"
    shutil.rmtree(staging, ignore_errors=True)  # the files of a former run lie in memory
    options = {"deliveryGuarantee": "exactly_once", "stagingPath": staging, "sink": f"kafka:{_bootstrap()}"}
    return _measured(rows(ROW_COUNT).write.format("shmaccum").mode("append").options(topic=TOPIC, **options).save)


def _clean() -> None:
    Arena.remove(NAME, missing_ok=True)
    shutil.rmtree(f"{TMPFS}/{NAME}-staging", ignore_errors=True)


def _partition_writer(config: dict[str, Any]) -> Callable[[Iterable[Any]], None]:
    """The work of a task without shmaccum."""

    def write(rows: Iterable[Any]) -> None:
        from confluent_kafka import Producer

        producer = Producer(config)
        for number, row in enumerate(rows):
            if number % POLL_EVERY == 0:
                producer.poll(0)
            while not _is_queued(producer, row):
                producer.poll(0.1)
        if left := producer.flush():
            raise RuntimeError(f"{left} records were not delivered")

    return write


def _is_queued(producer: Any, row: Any) -> bool:
    """False: the producer's queue is full."""
    try:
        producer.produce(TOPIC, bytes(row.value), row.key)
    except BufferError:
        return False
    return True


def _without_it(**options: Any) -> Callable[[], Measurement]:
    def run() -> Measurement:
        from bench.spark_session import rows

        config = {
            "bootstrap.servers": _bootstrap(),
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            **options,
        }
        frame = rows(ROW_COUNT)
        return _measured(lambda: frame.foreachPartition(_partition_writer(config)))

    return run


def _version() -> str:
    import confluent_kafka

    return f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"


def contenders() -> list[Contender]:
    """Ours with both guarantees, and theirs with Kafka's batch size and their own."""
    atexit.register(_clean)
    return [
        Contender(OURS, _through_the_arena),
        Contender(ONCE, _exactly_once, peer=OURS),
        Contender(PEER, _without_it(**{"batch.size": 16384}), version=_version),
        Contender(f"{PEER}, batch.size 1 MB", _without_it(), version=_version),
    ]


QUESTION = Question(
    title=f"Spark writes {ROW_COUNT:,} rows of a key and {VALUE_SIZE} B to Apache Kafka, local[{TASK_COUNT}]",
    figures=(Figure("rows_per_s", "k rows/s", 1e-3, "higher"),),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
    scope="full",
    goals=(Goal("exactly once, of at least once", ONCE, "rows_per_s", 0.6, is_ratio=True),),
)
