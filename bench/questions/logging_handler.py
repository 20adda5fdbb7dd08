# SPDX-License-Identifier: Apache-2.0
"""How many log records per second does a handler send to a cluster that acknowledges them?

All write the same JSON and send it to librdkafka's mock cluster in another process. The peer is a handler with
confluent-kafka, whose `produce` only adds to librdkafka's queue. The other contender is the standard library's solution
for a slow handler: a `QueueHandler`, whose thread passes the records to kafka-python. The time runs from the first
record to the end of the flush. It is measured once with calls of a logger, whose own time is the same for all
contenders, and once with prepared records.
"""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Callable, Iterator
from logging.handlers import QueueHandler, QueueListener
from typing import Any

from bench.harness.cleanup import new_name
from bench.harness.packages import installed_version, load
from bench.harness.question import Contender, Figure, Goal, Guarantees, Measurement, Question
from bench.harness.stopwatch import Stopwatch
from bench.parts.arenas import GUARANTEES, TOPIC
from bench.parts.mock_cluster import mock_cluster
from shmaccum.arena import Arena
from shmaccum.logging import ArenaHandler, JsonFormatter

RECORD_COUNT = 20_000
SLOW_RECORD_COUNT = 3_000
LINGER_MS = 5
PATIENT_MS = 60_000
FLUSH_TIMEOUT_S = 60
MOCK_CLUSTER_VERSION = (2, 0)
OURS = "ArenaHandler"
CONFLUENT, QUEUED = "handler with confluent-kafka", "QueueHandler + kafka-python"


class _KafkaHandler(logging.Handler):
    """A handler with kafka-python's producer, written as programs usually do."""

    def __init__(self, producer: Any) -> None:
        super().__init__()
        self._producer = producer
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self._producer.send(TOPIC, self.format(record).encode())


class _ConfluentHandler(logging.Handler):
    """A handler with confluent-kafka's producer."""

    def __init__(self, producer: Any) -> None:
        super().__init__()
        self._producer = producer
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self._producer.produce(TOPIC, self.format(record).encode())
        self._producer.poll(0)


def _logged(handler: logging.Handler, flush: Callable[[], object], record_count: int) -> Measurement:
    log = logging.getLogger("bench.logging")
    log.setLevel(logging.INFO)
    log.propagate = False
    log.handlers = [handler]
    log.info("first")
    flush()
    stopwatch = Stopwatch()
    for number in range(record_count):
        log.info("flight %d boards", number)
    flush()
    logged_s = stopwatch.elapsed().wall_s
    records = [_record(number) for number in range(record_count)]
    stopwatch = Stopwatch()
    for record in records:
        handler.handle(record)
    handle_s = stopwatch.elapsed().wall_s
    flush()
    return {
        "records_per_s": record_count / stopwatch.elapsed().wall_s,
        "logged_per_s": record_count / logged_s,
        "handle_ns": handle_s * 1e9 / record_count,
    }


def _record(number: int) -> logging.LogRecord:
    return logging.LogRecord("bench", logging.INFO, __file__, 1, "flight %d boards", (number,), None, "run")


def _arena_handler() -> Measurement:
    name = new_name()
    sink = f"kafka:{mock_cluster()}"
    try:
        handler = ArenaHandler(
            name, TOPIC, sink=sink, linger_ms=LINGER_MS, max_block_ms=PATIENT_MS, close_timeout_ms=PATIENT_MS
        )
        with contextlib.closing(handler):
            return _logged(handler, handler.flush, RECORD_COUNT)
    finally:
        Arena.remove(name, missing_ok=True)


@contextlib.contextmanager
def _listening(handler: logging.Handler) -> Iterator[tuple[QueueHandler, queue.Queue[Any]]]:
    """Yield a handler that fills a queue, while a thread passes its records to `handler`."""
    records: queue.Queue[Any] = queue.Queue()
    listener = QueueListener(records, handler)
    listener.start()
    try:
        yield QueueHandler(records), records
    finally:
        listener.stop()


def _queue_handler() -> Measurement:
    options = {"linger_ms": LINGER_MS, "api_version": MOCK_CLUSTER_VERSION}
    producer = load("kafka", "kafka-python").KafkaProducer(bootstrap_servers=mock_cluster(), **options)
    try:
        with _listening(_KafkaHandler(producer)) as (handler, records):

            def flush() -> None:
                records.join()
                producer.flush(FLUSH_TIMEOUT_S)

            return _logged(handler, flush, SLOW_RECORD_COUNT)
    finally:
        producer.close()


def _confluent_handler() -> Measurement:
    options = {"bootstrap.servers": mock_cluster(), "linger.ms": LINGER_MS, "acks": "all", "log_level": 0}
    producer = load("confluent_kafka", "confluent-kafka").Producer(options)
    return _logged(_ConfluentHandler(producer), lambda: producer.flush(FLUSH_TIMEOUT_S), RECORD_COUNT)


def contenders() -> list[Contender]:
    """Return shmaccum's handler, a queue in front of kafka-python, and a handler with confluent-kafka."""
    lost = Guarantees(record="copy", order="partition", checksum="CRC32C", kill="lost")
    version = installed_version
    return [
        Contender(OURS, _arena_handler, guarantees=GUARANTEES),
        Contender(QUEUED, _queue_handler, version=lambda: version("kafka-python"), guarantees=lost),
        Contender(CONFLUENT, _confluent_handler, version=lambda: version("confluent-kafka"), guarantees=lost),
    ]


QUESTION = Question(
    title="log records as JSON to a mock cluster",
    figures=(
        Figure("records_per_s", "k records/s", 1e-3, "higher", "of the handler, until all are acknowledged"),
        Figure("logged_per_s", "k records/s", 1e-3, "higher", "including the logger's own time"),
        Figure("handle_ns", "ns", 1.0, "lower", "time of the handler in a log call"),
    ),
    contenders=contenders,
    peer=CONFLUENT,
    goals=(Goal("``ArenaHandler``, records/s", OURS, "records_per_s", 10, is_ratio=True, peer=QUEUED),),
)
