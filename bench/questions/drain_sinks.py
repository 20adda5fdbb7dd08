# SPDX-License-Identifier: Apache-2.0
"""How fast does a sender empty an arena that is full of sealed batches: into nothing, a log, a socket?

Each batch is drained, its checksum verified, delivered, and completed. The clock runs from the first delivery, when the
sink has its connection and its topic, to the last completion: not one round longer, for a sender that has nothing to do
rests for a second. The peer is the checksum alone: the same bytes read once by the same function.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from bench.arenas import temporary_arena
from bench.draining_broker import TOPIC, draining_broker
from bench.harness.question import Contender, Figure, Measurement, Question
from bench.segments import tmpfs_folder
from bench.stopwatch import Stopwatch
from shmaccum.arena import Arena
from shmaccum.exceptions import BufferExhaustedError
from shmaccum.sender import Sender
from shmaccum.sinks import open_sink
from shmaccum.sinks.sink import Sink
from tests.accumulator import Accumulator

BUFFER_MEMORY = 64 << 20
BATCH_SIZE = 16 << 10
PARTITION_COUNT = 16
RUN = [b"x" * 100] * 140
PEER = "reading the same bytes once"

Place = Callable[[], AbstractContextManager[Sink]]


def _fill(accumulator: Accumulator) -> None:
    """Until no buffer is left."""
    with contextlib.suppress(BufferExhaustedError):
        while True:
            for partition in range(PARTITION_COUNT):
                accumulator.append_many(TOPIC, partition, RUN)


@contextmanager
def _full_arena() -> Iterator[Arena]:
    with temporary_arena(buffer_memory=BUFFER_MEMORY, batch_size=BATCH_SIZE) as arena:
        with Accumulator(arena, max_block_ms=0) as accumulator:
            _fill(accumulator)
        yield arena


def _used_count(arena: Arena) -> int:
    """Buffers that are not free."""
    return int(arena.geometry["slot_count"]) - arena.statistics().slots["FREE"]


def _drain(place: Place) -> Callable[[], Measurement]:
    def run() -> Measurement:
        with _full_arena() as arena, place() as sink, Sender(arena, sink, linger_ms=0) as sender:
            sender.open()
            batch_count = _used_count(arena)
            first_count = 0
            while not first_count:
                first_count = sender.run_once()
            stopwatch = Stopwatch()
            delivered_count = first_count
            while delivered_count < batch_count:
                delivered_count += sender.run_once()
            while _used_count(arena):
                sender.run_once()
            elapsed = stopwatch.elapsed()
        size = (batch_count - first_count) * BATCH_SIZE
        return {"bytes_per_s": size / elapsed.wall_s, "cpu_s_per_byte": elapsed.cpu_s / size}

    return run


@contextmanager
def _null() -> Iterator[Sink]:
    yield open_sink("null:")


@contextmanager
def _log() -> Iterator[Sink]:
    with tmpfs_folder() as folder:
        yield open_sink(f"log:{folder}", partitions=PARTITION_COUNT)


@contextmanager
def _socket() -> Iterator[Sink]:
    with draining_broker(PARTITION_COUNT) as (port, _):
        yield open_sink(f"kafka:127.0.0.1:{port}")


def _read() -> Measurement:
    from crc32c import crc32c

    memory = memoryview(bytearray(BUFFER_MEMORY))
    stopwatch = Stopwatch()
    for position in range(0, BUFFER_MEMORY, BATCH_SIZE):
        crc32c(memory[position : position + BATCH_SIZE])
    elapsed = stopwatch.elapsed()
    return {"bytes_per_s": BUFFER_MEMORY / elapsed.wall_s, "cpu_s_per_byte": elapsed.cpu_s / BUFFER_MEMORY}


def contenders() -> list[Contender]:
    """The contenders, one for each sink."""
    return [
        Contender("null:", _drain(_null)),
        Contender("log: on tmpfs", _drain(_log)),
        Contender("kafka: a broker that throws away", _drain(_socket)),
        Contender(PEER, _read),
    ]


QUESTION = Question(
    title="a sender empties an arena of 64 MiB, batches of 16 KiB",
    figures=(
        Figure("bytes_per_s", "GiB/s", 1 / 2**30, "higher"),
        Figure("cpu_s_per_byte", "µs", BATCH_SIZE * 1e6, "lower", "processor time per batch"),
    ),
    contenders=contenders,
    peer=PEER,
)
