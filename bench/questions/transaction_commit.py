# SPDX-License-Identifier: Apache-2.0
"""How long do a transaction of eight workers and an empty transaction take, beside one producer of confluent-kafka?

shmaccum's transaction begins when the coordinator begins it, and ends when the sink has committed. Eight worker
processes wait for it, append 1,000 records of 100 bytes each, and report. The peer is one producer with all 8,000
records. librdkafka ends an empty transaction without a request to the broker, so a transaction with one record is
measured too.

shmaccum's sink is a log, with a served log for the peer, or Apache Kafka for both. The topic has one partition.

A request has one batch of a partition. shmaccum's batches have 16 KiB, as those of Kafka's Java producer do, and
librdkafka's have a million bytes. So each side has a contender with the batch size of the other.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

from bench.harness.packages import load
from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.parts.arenas import TOPIC, temporary_arena
from bench.parts.sending import VALUE
from bench.parts.servers import apache_kafka, served_log
from shmaccum.producer import Producer
from shmaccum.supervisor import ensure_sender

WORKER_COUNT, RECORD_COUNT, ROUNDS = 8, 1_000, 10
OURS, OURS_EMPTY, OURS_ONE = "log:, 8 workers", "log:, empty", "log:, one record"
OURS_KAFKA, OURS_KAFKA_EMPTY, OURS_KAFKA_ONE = "kafka:, 8 workers", "kafka:, empty", "kafka:, one record"
OURS_KAFKA_LARGE = "kafka:, 8 workers, batch_size of librdkafka"
PEER, PEER_EMPTY, PEER_ONE = (
    f"confluent-kafka, served log, {what}" for what in ("8,000 records", "empty", "one record")
)
PEER_KAFKA, PEER_KAFKA_EMPTY, PEER_KAFKA_ONE = (
    f"confluent-kafka, Apache Kafka, {what}" for what in ("8,000 records", "empty", "one record")
)
PEER_KAFKA_SMALL = "confluent-kafka, Apache Kafka, 8,000 records, batch.size 16 KiB"
LINGER_MS = 5
BATCH_SIZE, LARGE_BATCH_SIZE = 16_384, 1_000_000
TIMEOUT_S = 60.0

_open = contextlib.ExitStack()
_numbers = itertools.count()
Transact = Callable[[], None]
"""A function that runs a transaction from its beginning to its commit."""


def _timed(transact: Transact) -> Measurement:
    transact()  # connections and metadata
    started_s = time.perf_counter()
    for _ in range(ROUNDS):
        transact()
    return {"s_per_transaction": (time.perf_counter() - started_s) / ROUNDS}


# --- shmaccum


def _work(arena_name: str, pipe: Connection) -> None:
    """Run a worker that sends its records after each message, and reports."""
    with Producer(arena_name, linger_ms=LINGER_MS) as producer:
        pipe.send(True)
        while pipe.recv():
            for _ in range(RECORD_COUNT):
                producer.send(TOPIC, VALUE)
            pipe.send(True)


@contextlib.contextmanager
def _workers(arena_name: str) -> Iterator[list[Connection]]:
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(WORKER_COUNT)]
    processes = [context.Process(target=_work, args=(arena_name, theirs)) for _, theirs in pairs]
    pipes = [ours for ours, _ in pairs]
    for process in processes:
        process.start()
    try:
        yield [pipe for pipe in pipes if pipe.recv()]
    finally:
        for pipe in pipes:
            pipe.send(False)
        for process in processes:
            process.join()


@cache
def _coordinator(sink: str, batch_size: int) -> tuple[Producer, list[Connection]]:
    """Start a coordinator and its workers for the lifetime of this process."""
    transactional_id = f"bench-{next(_numbers)}"
    arena = _open.enter_context(
        temporary_arena(topics={TOPIC: 1}, transactional_id=transactional_id, batch_size=batch_size)
    )
    ensure_sender(arena.name, sink, linger_ms=LINGER_MS)
    producer = _open.enter_context(Producer(arena))
    return producer, _open.enter_context(_workers(arena.name))


def _of_workers(sink: Callable[[], str], batch_size: int = BATCH_SIZE) -> Callable[[], Measurement]:
    def run() -> Measurement:
        producer, pipes = _coordinator(sink(), batch_size)

        def transact() -> None:
            with producer.transaction():
                for pipe in pipes:
                    pipe.send(True)
                for pipe in pipes:
                    pipe.recv()

        return _timed(transact)

    return run


def _alone(sink: Callable[[], str], record_count: int) -> Callable[[], Measurement]:
    def run() -> Measurement:
        producer, _ = _coordinator(sink(), BATCH_SIZE)

        def transact() -> None:
            with producer.transaction():
                for _ in range(record_count):
                    producer.send(TOPIC, VALUE)

        return _timed(transact)

    return run


@cache
def _log() -> str:
    folder = tempfile.mkdtemp(prefix="shmaccum-bench-")
    _open.callback(shutil.rmtree, folder, ignore_errors=True)
    return f"log:{folder}"


# --- confluent-kafka


@cache
def _client(address: str, batch_size: int) -> Any:
    """Return a transactional producer for the lifetime of this process."""
    confluent_kafka = load("confluent_kafka", "confluent-kafka")
    options = {"bootstrap.servers": address, "linger.ms": LINGER_MS, "batch.size": batch_size}
    client = confluent_kafka.Producer({**options, "transactional.id": f"bench-{next(_numbers)}"})
    client.init_transactions(TIMEOUT_S)
    return client


def _theirs(
    address: Callable[[], str], record_count: int, batch_size: int = LARGE_BATCH_SIZE
) -> Callable[[], Measurement]:
    def run() -> Measurement:
        client = _client(address(), batch_size)

        def transact() -> None:
            client.begin_transaction()
            for _ in range(record_count):
                client.produce(TOPIC, VALUE)
            client.commit_transaction(TIMEOUT_S)

        return _timed(transact)

    return run


def _served() -> str:
    return served_log().address


def _kafka() -> str:
    return apache_kafka().address


def _to_kafka() -> str:
    return f"kafka:{_kafka()}"


def _version() -> str:
    import confluent_kafka

    return f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"


def contenders() -> list[Contender]:
    """Return both sides with all records, with one and with none."""
    atexit.register(_open.close)
    all_records = WORKER_COUNT * RECORD_COUNT
    return [
        Contender(OURS, _of_workers(_log)),
        Contender(PEER, _theirs(_served, all_records), version=_version),
        Contender(OURS_KAFKA, _of_workers(_to_kafka), peer=PEER_KAFKA),
        Contender(OURS_KAFKA_LARGE, _of_workers(_to_kafka, LARGE_BATCH_SIZE), peer=PEER_KAFKA),
        Contender(PEER_KAFKA, _theirs(_kafka, all_records), peer=PEER_KAFKA, version=_version),
        Contender(PEER_KAFKA_SMALL, _theirs(_kafka, all_records, BATCH_SIZE), peer=PEER_KAFKA, version=_version),
        Contender(OURS_ONE, _alone(_log, 1), peer=PEER_ONE),
        Contender(PEER_ONE, _theirs(_served, 1), peer=PEER_ONE, version=_version),
        Contender(OURS_KAFKA_ONE, _alone(_to_kafka, 1), peer=PEER_KAFKA_ONE),
        Contender(PEER_KAFKA_ONE, _theirs(_kafka, 1), peer=PEER_KAFKA_ONE, version=_version),
        Contender(OURS_EMPTY, _alone(_log, 0), peer=PEER_EMPTY),
        Contender(PEER_EMPTY, _theirs(_served, 0), peer=PEER_EMPTY, version=_version),
        Contender(OURS_KAFKA_EMPTY, _alone(_to_kafka, 0), peer=PEER_KAFKA_EMPTY),
        Contender(PEER_KAFKA_EMPTY, _theirs(_kafka, 0), peer=PEER_KAFKA_EMPTY, version=_version),
    ]


QUESTION = Question(
    title=f"a transaction: {WORKER_COUNT} workers with {RECORD_COUNT:,} records of 100 B each, one record, none",
    figures=(Figure("s_per_transaction", "ms", 1e3, "lower", "from begin to the end of the commit"),),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
    limit_s=240.0,
    scope="full",
    goals=tuple(
        Goal(what, contender, "s_per_transaction", bound, is_ratio=True)
        for what, bound, contenders_of_it in (
            ("a transaction of 8 workers, of one producer's", 2.0, (OURS, OURS_KAFKA, OURS_KAFKA_LARGE)),
            ("an empty transaction, of confluent-kafka's", 1.5, (OURS_EMPTY, OURS_KAFKA_EMPTY)),
            ("a transaction of one record, of confluent-kafka's", 1.5, (OURS_ONE, OURS_KAFKA_ONE)),
        )
        for contender in contenders_of_it
    ),
)
