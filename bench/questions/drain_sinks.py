# SPDX-License-Identifier: Apache-2.0
"""How fast does a sender empty an arena of sealed batches into null:, a log and a socket?

Each batch is drained, verified by its checksum, delivered and completed. The peer is the checksum only: the same
function reads the same bytes once, from memory that was written before. For a socket, the peer is the checksum and a
bare ``sendmsg`` of the same batches.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.harness.stopwatch import Stopwatch
from bench.parts.bare_socket import sent_bare
from bench.parts.draining_broker import draining_broker
from bench.parts.full_arenas import BUFFER_MEMORY, Emptied, emptied, full_arena
from bench.parts.segments import tmpfs_folder
from shmaccum.sender.sinks import open_sink
from shmaccum.sender.sinks.sink import Sink

BATCH_SIZE = 16 << 10
PARTITION_COUNT = 16
PEER = "reading the same bytes once"
TO_SOCKET, PEER_TO_SOCKET = "kafka: a broker that throws away", "checksum and bare sendmsg"

Place = Callable[[], AbstractContextManager[Sink]]


def _drain(place: Place) -> Callable[[], Measurement]:
    def run() -> Measurement:
        with full_arena(BATCH_SIZE, PARTITION_COUNT) as arena, place() as sink:
            return _measurement(emptied(arena, sink))

    return run


def _measurement(done: Emptied) -> Measurement:
    size = done.batch_count * BATCH_SIZE
    return {"bytes_per_s": size / done.elapsed.wall_s, "cpu_s_per_byte": done.elapsed.cpu_s / size}


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

    memory = memoryview(bytearray(os.urandom(BATCH_SIZE)) * (BUFFER_MEMORY // BATCH_SIZE))
    stopwatch = Stopwatch()
    for position in range(0, BUFFER_MEMORY, BATCH_SIZE):
        crc32c(memory[position : position + BATCH_SIZE])
    elapsed = stopwatch.elapsed()
    return {"bytes_per_s": BUFFER_MEMORY / elapsed.wall_s, "cpu_s_per_byte": elapsed.cpu_s / BUFFER_MEMORY}


def _bare() -> Measurement:
    from crc32c import crc32c

    with full_arena(BATCH_SIZE, PARTITION_COUNT) as arena:
        return _measurement(sent_bare(arena, PARTITION_COUNT, crc32c))


def contenders() -> list[Contender]:
    """Return a contender for each sink."""
    return [
        Contender("null:", _drain(_null)),
        Contender("log: on tmpfs", _drain(_log)),
        Contender(TO_SOCKET, _drain(_socket), peer=PEER_TO_SOCKET),
        Contender(PEER_TO_SOCKET, _bare),
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
    goals=(
        Goal(
            "a batch to a socket, of the processor time of its checksum and ``sendmsg``",
            TO_SOCKET,
            "cpu_s_per_byte",
            1.3,
            is_ratio=True,
        ),
    ),
    reason=(
        "The peer reads the bytes once. A sender also drains, completes and zeroes each batch; with a socket, "
        "it takes {kafka: a broker that throws away} of the rate of a checksum and a bare ``sendmsg``."
    ),
)
