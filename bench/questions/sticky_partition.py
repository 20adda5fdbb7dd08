# SPDX-License-Identifier: Apache-2.0
"""One sticky partition for all processes of a host, or one for each: how full are batches, and what does a send cost?

"Paced" processes send 4,000 records a second each, as web workers do: the number of records in a batch counts.
"Flat out" they contend for one open batch: the time of a send counts.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from functools import partial

from bench.harness.question import Contender, Figure, Measurement, Question
from bench.parts.arenas import PARTITION_COUNT, TOPIC, drained_arena
from bench.parts.sending import VALUE
from shmaccum import Producer

PEER, PEER_FLAT_OUT = "own, 4 processes paced", "own, 2 processes flat out"

TICK_S = 0.005
BATCH_SIZE = 16384
RECORD_SIZE = 110


def _send_shared(producer: Producer, _worker: int, _number: int) -> None:
    producer.send(TOPIC, VALUE)


def _send_own(producer: Producer, worker: int, number: int) -> None:
    producer.send(TOPIC, VALUE, partition=(worker + number * RECORD_SIZE // BATCH_SIZE) % PARTITION_COUNT)


def _work(
    arena_name: str, send: Callable[[Producer, int, int], None], tick_count: int, records: int, job: int
) -> float:
    """`tick_count` times `records`, a tick apart; a single tick is flat out. Answers the processor's nanoseconds."""
    with Producer(arena_name, linger_ms=5) as producer:
        begin = time.process_time_ns()
        for tick in range(tick_count):
            for number in range(tick * records, (tick + 1) * records):
                send(producer, job, number)
            if tick_count > 1:
                time.sleep(TICK_S)
        return time.process_time_ns() - begin


def _run(
    send: Callable[[Producer, int, int], None], process_count: int, tick_count: int, records: int
) -> Callable[[], Measurement]:
    def run() -> Measurement:
        with drained_arena() as arena, multiprocessing.get_context("spawn").Pool(process_count) as pool:
            work = partial(_work, arena.name, send, tick_count, records)
            elapsed = pool.map(work, range(process_count), chunksize=1)
            record_count = process_count * tick_count * records
            batch_count = arena.native.counters()["batches opened"]
        return {"records_per_batch": record_count / batch_count, "cpu_ns_per_record": sum(elapsed) / record_count}

    return run


def contenders() -> list[Contender]:
    """Paced and flat out, shared and own."""
    return [
        Contender("shared, 4 processes paced", _run(_send_shared, 4, 100, 20)),
        Contender(PEER, _run(_send_own, 4, 100, 20)),
        Contender("shared, 2 processes flat out", _run(_send_shared, 2, 1, 300_000), peer=PEER_FLAT_OUT),
        Contender(PEER_FLAT_OUT, _run(_send_own, 2, 1, 300_000)),
    ]


QUESTION = Question(
    title="one sticky partition per host or per process; 100 B, linger 5 ms, 6 partitions",
    figures=(
        Figure("records_per_batch", "records", 1.0, "higher", "in a batch"),
        Figure("cpu_ns_per_record", "ns", 1.0, "lower", "processor time of a producer, per record"),
    ),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
)
