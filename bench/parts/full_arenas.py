# SPDX-License-Identifier: Apache-2.0
"""Arenas full of sealed batches, and the time in which a sender empties one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from bench.harness.stopwatch import Elapsed, Stopwatch
from bench.parts.arenas import temporary_arena
from bench.parts.draining_broker import TOPIC
from shmaccum.arena import Arena
from shmaccum.exceptions import BufferExhaustedError
from shmaccum.sender import Sender
from shmaccum.sender.sinks.sink import Sink
from tests.support.accumulator import Accumulator

BUFFER_MEMORY = 64 << 20
VALUE_SIZE = 100
RECORD_HEAD_SIZE = 10
"""The most bytes of a record besides its value."""
HEADER_SIZE_MAX = 128


class Emptied(NamedTuple):
    """The batches after the first delivery, and the time for them."""

    batch_count: int
    elapsed: Elapsed


@contextmanager
def full_arena(
    batch_size: int, partition_count: int, buffer_memory: int = BUFFER_MEMORY, value_size: int = VALUE_SIZE
) -> Iterator[Arena]:
    """Yield an arena without a free buffer. Its nearly full batches belong to the partitions in turn."""
    record_count = (batch_size - HEADER_SIZE_MAX) // (value_size + RECORD_HEAD_SIZE)
    with temporary_arena(buffer_memory=buffer_memory, batch_size=batch_size) as arena:
        with Accumulator(arena, max_block_ms=0) as accumulator:
            _fill(accumulator, [bytes(value_size)] * record_count, partition_count)
        yield arena


def _fill(accumulator: Accumulator, run: list[bytes], partition_count: int) -> None:
    """Append until no buffer is free."""
    with contextlib.suppress(BufferExhaustedError):
        while True:
            for partition in range(partition_count):
                accumulator.append_many(TOPIC, partition, run)


def used_count(arena: Arena) -> int:
    """Return the number of buffers that are not free."""
    return int(arena.geometry["slot_count"]) - arena.statistics().slots["FREE"]


def emptied(arena: Arena, sink: Sink) -> Emptied:
    """Let a sender deliver every batch.

    The time runs from the first delivery, when the sink has its connection and its topic, to the last completion. There
    is no further round, because a sender without work waits for a second.
    """
    with Sender(arena, sink, linger_ms=0) as sender:
        sender.open()
        batch_count = used_count(arena)
        first_count = 0
        while not first_count:
            first_count = sender.run_once()
        stopwatch = Stopwatch()
        delivered_count = first_count
        while delivered_count < batch_count:
            delivered_count += sender.run_once()
        while used_count(arena):
            sender.run_once()
        return Emptied(batch_count - first_count, stopwatch.elapsed())
