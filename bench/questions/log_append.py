# SPDX-License-Identifier: Apache-2.0
"""How close does a sender with a segment log come to a bare writev of the same bytes?

Both write to tmpfs. Each lap fills an arena and empties it. Only the emptying is measured. The sender drains batches,
compares their checksums, appends them in C (docs/decisions/0071), completes them, and zeroes their buffers. Its first
round runs in Python and is not counted. The log accepts at most 32 batches of a partition in flight, so one call writes
that many. The peer drains the same batches before its measurement, and writes their buffers by a bare ``writev``, 32
a call. All calls write to one file, and the kernel allocates its pages.

The arena is small and there are many laps, so a lap uses the pages that the previous lap freed. In larger laps, the
first touch of a page costs more than everything else (docs/decisions/0071).

There are two floors. The first is the peer plus a checksum of each batch, computed by the function that the sender
uses. The second also zeroes each buffer after its write. A sender that verifies its writes and leaves no records in
free buffers does at least the work of the second.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.harness.stopwatch import Stopwatch
from bench.parts.full_arenas import Emptied, emptied, full_arena
from bench.parts.segments import tmpfs_folder
from shmaccum._native import Batch, crc32c
from shmaccum.arena import Arena
from shmaccum.log.files.producer_state import KEPT_COUNT
from shmaccum.sender.sinks import open_sink
from tests.support.accumulator import Accumulator

OURS, PEER, FLOOR = "segment log, 32 a call", "bare writev, 32 a call", "a checksum and bare writev, 32 a call"
ZEROING_FLOOR = "a checksum, bare writev and zeroing, 32 a call"

BATCH_SIZE = 16 << 10
BUFFER_MEMORY = 64 << 20
VALUE_SIZE = 1000
"""Larger records fill an arena faster with the same number of bytes."""
LAP_COUNT = 8
"""512 MiB in total."""

Call = list[Batch]
Lap = Callable[[Arena], Emptied]


def _in_laps(lap: Lap) -> Callable[[], Measurement]:
    def run() -> Measurement:
        batch_count, wall_s, cpu_s = 0, 0.0, 0.0
        for _ in range(LAP_COUNT):
            with full_arena(BATCH_SIZE, 1, BUFFER_MEMORY, VALUE_SIZE) as arena:
                done = lap(arena)
            batch_count += done.batch_count
            wall_s += done.elapsed.wall_s
            cpu_s += done.elapsed.cpu_s
        return {"bytes_per_s": batch_count * BATCH_SIZE / wall_s, "cpu_ns_per_batch": cpu_s * 1e9 / batch_count}

    return run


def _sent(arena: Arena) -> Emptied:
    with tmpfs_folder() as folder:
        return emptied(arena, open_sink(f"log:{folder}", partitions=1))


@contextmanager
def _drained(arena: Arena) -> Iterator[list[Call]]:
    """Drain all batches of the arena. Each call drains as many as a partition of a log may have in flight."""
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        accumulator.ready(0, True)
        calls: list[Call] = []
        while batches := accumulator.drain([0] * KEPT_COUNT, 1 << 30, 1 << 20)[0]:
            calls.append(list(batches))
        yield calls


Span = tuple[int, int]
"""The address of a buffer and the number of its bytes."""


def _bare(inspect: Callable[[memoryview], object] | None = None, *, zeroes: bool = False) -> Lap:
    """Write batches by a bare writev.

    Args:
        inspect: called with each buffer before it is written.
        zeroes: write zeros to each buffer after its call.
    """

    def lap(arena: Arena) -> Emptied:
        with _drained(arena) as calls, tmpfs_folder() as folder:
            pieces = [[buffer for batch in call for buffer in batch.buffers] for call in calls]
            spans = [[_span(buffer) for buffer in buffers] if zeroes else [] for buffers in pieces]
            descriptor = os.open(folder / "bytes", os.O_WRONLY | os.O_CREAT)
            stopwatch = Stopwatch()
            for buffers, written in zip(pieces, spans, strict=True):
                if inspect is not None:
                    for buffer in buffers:
                        inspect(buffer)
                os.writev(descriptor, buffers)
                for address, size in written:
                    ctypes.memset(address, 0, size)
            elapsed = stopwatch.elapsed()
            os.close(descriptor)
            for buffer in (buffer for buffers in pieces for buffer in buffers):
                buffer.release()
            return Emptied(sum(map(len, calls)), elapsed)

    return lap


def _span(buffer: memoryview) -> Span:
    return numpy.frombuffer(buffer, numpy.uint8).ctypes.data, len(buffer)


def contenders() -> list[Contender]:
    """Return the sender, a bare writev, and the floors between them."""
    return [
        Contender(OURS, _in_laps(_sent)),
        Contender(PEER, _in_laps(_bare())),
        Contender(FLOOR, _in_laps(_bare(crc32c))),
        Contender(ZEROING_FLOOR, _in_laps(_bare(crc32c, zeroes=True))),
    ]


QUESTION = Question(
    title="a sender appends full batches of 16 KiB of one partition to a log on tmpfs, 512 MiB",
    figures=(
        Figure("bytes_per_s", "GiB/s", 1 / 2**30, "higher"),
        Figure("cpu_ns_per_batch", "µs", 1e-3, "lower", "processor time per batch"),
    ),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
    limit_s=240.0,
    goals=(Goal("drain to a segment log on tmpfs, of a bare ``writev``", OURS, "bytes_per_s", 0.9, is_ratio=True),),
    reason=(
        "A sender verifies each batch and zeroes its buffer. The peer with both reaches {a checksum, bare "
        "writev and zeroing, 32 a call} of a bare ``writev``."
    ),
)
