# SPDX-License-Identifier: Apache-2.0
"""How many rows per second does Spark write to Apache Kafka through the arena, beside a program without it?

The peers are Spark's own sink ``format("kafka")``, which writes the same rows with Kafka's Java producer, and
``foreachPartition`` with a confluent-kafka producer for each partition, which is flushed at its end. All run on one
machine, including the broker: six partitions, acks=all, idempotence, linger 5 ms, and batches of 16 KiB or 128 KiB on
both sides. confluent-kafka also runs with its own default of 1 MB.

The guarantee "exactly once" is measured too: tasks stage on tmpfs, and the driver commits one Kafka transaction. Its
peer is shmaccum with "at least once". Tasks stage larger batches by default, so both are also measured with the same
batch size.

A job that starts a sender or makes a transaction needs some tenths of a second for it, so jobs are long.
"""

from __future__ import annotations

import atexit
import shutil
import time
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

from bench.harness.cleanup import new_name
from bench.harness.packages import installed_version
from bench.harness.question import Contender, Figure, Goal, Measurement, Question, UnavailableError
from bench.harness.rows import TASK_COUNT, VALUE_SIZE
from bench.parts.apache_kafka import PARTITION_COUNT, cluster
from bench.parts.segments import TMPFS
from shmaccum.arena import Arena

ROW_COUNT = 2_000_000
PEER_ROW_COUNT = 700_000
"""The number of rows for confluent-kafka. It gets every row in Python, so fewer rows take the same time."""
LARGE = {"batchSize": "128KiB"}
OURS, PEER = "sink, kafka:", "foreachPartition, confluent-kafka"
SPARKS, SPARKS_LARGE = 'Spark\'s format("kafka")', 'Spark\'s format("kafka"), batches of 128 KiB'
OURS_LARGE = "sink, kafka:, batches of 128 KiB"
ONCE = "sink, kafka:, exactly once"
ONCE_LARGE = "sink, kafka:, exactly once, batches of 128 KiB"
NAME = new_name()
TOPIC = "flights"
POLL_EVERY = 1000


@cache
def _bootstrap() -> str:
    """Start a broker with a topic, and return HOST:PORT.

    Raises:
        UnavailableError: Kafka is not available.
    """
    cluster().create_topic(TOPIC, PARTITION_COUNT)
    return str(cluster().bootstrap)


def _measured(write: Callable[[], None], row_count: int = ROW_COUNT) -> Measurement:
    started_s = time.perf_counter()
    write()
    return {"rows_per_s": row_count / (time.perf_counter() - started_s)}


def _arena_run(arena: str, **options: str) -> Callable[[], Measurement]:
    def run() -> Measurement:
        from bench.parts.spark_session import rows

        given = {"arena": arena, "sink": f"kafka:{_bootstrap()}", "topic": TOPIC, "linger.ms": "5", "idleExitMs": "2s"}
        writer = rows(ROW_COUNT).write.format("shmaccum").mode("append").options(bufferMemory="64MiB", **given)
        return _measured(writer.options(**options).save)

    return run


def _exactly_once(**options: str) -> Callable[[], Measurement]:
    def run() -> Measurement:
        from bench.parts.spark_session import rows

        staging = f"{TMPFS}/{NAME}-staging"
        shutil.rmtree(staging, ignore_errors=True)  # the files of the previous run are in memory
        given = {"deliveryGuarantee": "exactly_once", "stagingPath": staging, "sink": f"kafka:{_bootstrap()}"}
        writer = rows(ROW_COUNT).write.format("shmaccum").mode("append").options(topic=TOPIC, **given)
        return _measured(writer.options(**options).save)

    return run


def _clean() -> None:
    for name in (NAME, f"{NAME}-large"):
        Arena.remove(name, missing_ok=True)
    shutil.rmtree(f"{TMPFS}/{NAME}-staging", ignore_errors=True)


def _partition_writer(config: dict[str, Any]) -> Callable[[Iterable[Any]], None]:
    """Return the work of a task without shmaccum."""

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
    """Return False if the producer's queue is full."""
    try:
        producer.produce(TOPIC, bytes(row.value), row.key)
    except BufferError:
        return False
    return True


def _without_it(**options: Any) -> Callable[[], Measurement]:
    def run() -> Measurement:
        from bench.parts.spark_session import rows

        config = {
            "bootstrap.servers": _bootstrap(),
            "acks": "all",
            "enable.idempotence": True,
            "linger.ms": 5,
            **options,
        }
        frame = rows(PEER_ROW_COUNT)
        return _measured(lambda: frame.foreachPartition(_partition_writer(config)), PEER_ROW_COUNT)

    return run


def _sparks(batch_size: int) -> Callable[[], Measurement]:
    """Return the work of Spark's own sink: the same rows, with options of Kafka's producer that are equal to ours."""

    def run() -> Measurement:
        from bench.parts.spark_session import connector_jars, rows

        if not connector_jars():
            raise UnavailableError("Spark's Kafka connector is missing: install Maven and run `make spark-connector`")
        options = {"kafka.bootstrap.servers": _bootstrap(), "topic": TOPIC, "kafka.acks": "all"}
        batches = {"kafka.linger.ms": "5", "kafka.batch.size": str(batch_size), "kafka.enable.idempotence": "true"}
        return _measured(rows(ROW_COUNT).write.format("kafka").options(**options, **batches).save)

    return run


def _spark_version() -> str:
    """Return the version of Spark."""
    return installed_version("pyspark")


def _version() -> str:
    import confluent_kafka

    return f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"


def contenders() -> list[Contender]:
    """Return shmaccum with both guarantees, Spark's own sink, and confluent-kafka."""
    atexit.register(_clean)
    return [
        Contender(OURS, _arena_run(NAME)),
        Contender(SPARKS, _sparks(16 << 10), version=_spark_version),
        Contender(ONCE, _exactly_once(), peer=OURS),
        Contender(OURS_LARGE, _arena_run(f"{NAME}-large", **LARGE), peer=SPARKS_LARGE),
        Contender(SPARKS_LARGE, _sparks(128 << 10), peer=SPARKS_LARGE, version=_spark_version),
        Contender(ONCE_LARGE, _exactly_once(**LARGE), peer=OURS_LARGE),
        Contender(PEER, _without_it(**{"batch.size": 16384}), version=_version),
        Contender(f"{PEER}, batch.size 1 MB", _without_it(), version=_version),
    ]


WORK = f"{ROW_COUNT:,} rows (confluent-kafka {PEER_ROW_COUNT:,}) of a key and {VALUE_SIZE} B"
QUESTION = Question(
    title=f"Spark writes {WORK} to Apache Kafka, local[{TASK_COUNT}]",
    figures=(Figure("rows_per_s", "k rows/s", 1e-3, "higher"),),
    contenders=contenders,
    peer=SPARKS,
    repetitions=5,
    scope="full",
    limit_s=400.0,
    goals=(Goal("exactly once, of at least once in equal batches", ONCE_LARGE, "rows_per_s", 0.8, is_ratio=True),),
    reason=(
        "With exactly once, each row is written twice: by its task to a staged log, and by the driver, which sends all "
        "of them in one Kafka transaction."
    ),
)
