# SPDX-License-Identifier: Apache-2.0
"""How long does a process need until it can send?

From nothing to the first record in the arena, in a process that has imported what it needs; and only attaching. The
floor maps a file of the same size and touches one page; confluent-kafka makes a producer, which starts its threads
and asks nobody yet.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable

from bench.harness.question import Contender, Figure, Measurement, Question
from bench.harness.stopwatch import Stopwatch
from bench.parts.arenas import TOPIC, drained_arena, temporary_arena
from bench.parts.sending import VALUE
from shmaccum.arena import Arena
from shmaccum.arena.doorbell import DoorbellButton
from shmaccum.producer import Producer
from shmaccum.producer.appender import Appender

COUNT = 50
FILE_SIZE = 32 << 20
PEER = "confluent-kafka: a producer"


def _timed(work: Callable[[], object]) -> Measurement:
    stopwatch = Stopwatch()
    for _ in range(COUNT):
        work()
    elapsed = stopwatch.elapsed()
    return {"seconds": elapsed.wall_s / COUNT, "cpu_s": elapsed.cpu_s / COUNT}


def _attach() -> Measurement:
    def attach(name: str) -> None:
        with Arena.attach(name) as arena, contextlib.closing(Appender(arena, DoorbellButton(arena))):
            pass

    with temporary_arena() as arena:
        return _timed(lambda: attach(arena.name))


def _first_send() -> Measurement:
    def send(name: str) -> None:
        with Producer(name) as producer:
            producer.send(TOPIC, VALUE)
            producer.flush()

    with drained_arena() as arena:
        return _timed(lambda: send(arena.name))


def _map() -> Measurement:
    descriptor = os.memfd_create("shmaccum-bench")
    os.ftruncate(descriptor, FILE_SIZE)

    def map_once() -> None:
        with mmap.mmap(descriptor, FILE_SIZE) as memory:
            memory[0] = 1

    try:
        return _timed(map_once)
    finally:
        os.close(descriptor)


def _confluent() -> Measurement:
    import confluent_kafka

    def make() -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
        producer.flush(0)

    return _timed(make)


def contenders() -> list[Contender]:
    """Ours, confluent-kafka, and the floor."""
    return [
        Contender("attach, and detach", _attach),
        Contender("attach, send, flush, detach", _first_send),
        Contender(PEER, _confluent),
        Contender("floor: a map of a file of 32 MiB", _map),
    ]


QUESTION = Question(
    title="attaching to an arena of 32 MiB",
    figures=(
        Figure("seconds", "µs", 1e6, "lower"),
        Figure("cpu_s", "µs", 1e6, "lower", "processor time"),
    ),
    contenders=contenders,
    peer=PEER,
)
