# SPDX-License-Identifier: Apache-2.0
"""What do eight workers gain by sharing one connection to Apache Kafka, beside eight with a producer each?

All run on the same cores, including the broker: keyed records of 100 bytes, six partitions, acks=all, idempotence,
linger 5 ms. Both run with Kafka's batch.size of 16 KiB, and with the size at which their throughput is highest: 1 MB
for the peer, which is its default, and 128 KiB for shmaccum. "Flat out" workers send without a pause. Each "paced"
worker sends 1,000 records a second, five at a time, at other times than the other workers. The same workers repeat each
paced job without a send. The processor time of that job is the cost of the sleeps and wake-ups, and is subtracted.
The cores used by clients and broker show which of them limits the throughput. If both together use every core, a client
that uses less leaves more to the broker.

A run takes five seconds, in the short form half a second. Each fleet has one run before its first one, for the JIT
compiler of the broker. The broker writes up to 1 GB in a run into the folder for temporary files, and deletes it
afterwards.
"""

from __future__ import annotations

import atexit
import contextlib
from collections.abc import Callable
from functools import cache

from bench.harness.form import job_seconds
from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.parts.kafka_fleet import BATCH_SIZE, Fleet, Job, arena_fleet, client_fleet

WORKER_COUNT = 8
RATE = 1_000
FLAT_OUT = Job(seconds=job_seconds(5))
PACED = Job(round(RATE * job_seconds(5)), rate=RATE)
OURS, PEER = "shmaccum, flat out", "confluent-kafka each, flat out"
OURS_LARGE, PEER_LARGE = "shmaccum, batches of 128 KiB, flat out", "confluent-kafka each, batch.size 1 MB, flat out"
LARGE = 128 << 10
OURS_PACED, PEER_PACED = "shmaccum, paced", "confluent-kafka each, paced"

_open = contextlib.ExitStack()


def _warm(fleet: contextlib.AbstractContextManager[Fleet]) -> Fleet:
    warm = _open.enter_context(fleet)
    warm.run(FLAT_OUT)
    return warm


@cache
def _arena() -> Fleet:
    return _warm(arena_fleet(WORKER_COUNT))


@cache
def _arena_of_large_batches() -> Fleet:
    return _warm(arena_fleet(WORKER_COUNT, LARGE))


@cache
def _clients() -> Fleet:
    return _warm(client_fleet(WORKER_COUNT, **{"batch.size": BATCH_SIZE}))


@cache
def _clients_with_their_own_batches() -> Fleet:
    return _warm(client_fleet(WORKER_COUNT))


def _run(fleet: Callable[[], Fleet], job: Job) -> Callable[[], Measurement]:
    return lambda: fleet().run(job)


def _run_paced(fleet: Callable[[], Fleet]) -> Callable[[], Measurement]:
    def measure() -> Measurement:
        measurement = fleet().run(PACED)
        pacing_us = fleet().pacing_cpu_us(PACED)
        net_us = measurement["cpu_us_per_record"] - pacing_us
        return {**measurement, "pacing_us_per_record": pacing_us, "net_cpu_us_per_record": net_us}

    return measure


def _version() -> str:
    import confluent_kafka

    return f"confluent-kafka {confluent_kafka.__version__}, librdkafka {confluent_kafka.libversion()[0]}"


def contenders() -> list[Contender]:
    """Return both designs, flat out and paced."""
    atexit.register(_open.close)
    return [
        Contender(OURS, _run(_arena, FLAT_OUT)),
        Contender(PEER, _run(_clients, FLAT_OUT), version=_version),
        Contender(OURS_LARGE, _run(_arena_of_large_batches, FLAT_OUT), peer=PEER_LARGE),
        Contender(PEER_LARGE, _run(_clients_with_their_own_batches, FLAT_OUT), version=_version),
        Contender(OURS_PACED, _run_paced(_arena), peer=PEER_PACED),
        Contender(PEER_PACED, _run_paced(_clients), version=_version),
    ]


QUESTION = Question(
    title=f"{WORKER_COUNT} workers produce keyed records of 100 B to Apache Kafka on the same cores",
    figures=(
        Figure("records_per_s", "k records/s", 1e-3, "higher", "delivered, from the first send to the last flush"),
        Figure("cpu_us_per_record", "us CPU/record", 1, "lower", "user and system, of all client processes"),
        Figure("cores", "cores", 1, "lower", "cores that the client processes use"),
        Figure("broker_cores", "cores of the broker", 1, "lower", "cores that it uses"),
        Figure("broker_cpu_us_per_record", "us CPU/record of the broker", 1, "lower"),
        Figure("pacing_us_per_record", "us CPU/record of pacing", 1, "lower", "of workers that send nothing"),
        Figure("net_cpu_us_per_record", "us CPU/record without pacing", 1, "lower", "of all client processes"),
        Figure("connections", "connections", 1, "lower", "to the broker"),
        Figure("records_per_batch", "records/batch", 1, "higher", "in the broker's log"),
    ),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
    limit_s=600,
    scope="full",
    goals=(
        Goal("8 workers to Kafka, of the peer's delivered records/s", OURS, "records_per_s", 2.5, is_ratio=True),
        Goal("8 workers to Kafka, of the peer's CPU per record", OURS, "cpu_us_per_record", 0.2, is_ratio=True),
        Goal(
            "8 workers to Kafka, each side's best batches, of the peer's CPU per record",
            OURS_LARGE,
            "cpu_us_per_record",
            0.2,
            is_ratio=True,
        ),
        Goal(
            "8 paced workers, without pacing, of the peer's CPU per record",
            OURS_PACED,
            "net_cpu_us_per_record",
            1 / 3,
            is_ratio=True,
        ),
        Goal("8 workers to Kafka, of the peer's connections", OURS, "connections", 1 / 8, is_ratio=True),
    ),
)
