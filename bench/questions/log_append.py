# SPDX-License-Identifier: Apache-2.0
"""How close does appending to the segment log come to writing the same bytes with a bare writev? Both on tmpfs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.segments import FullBatch, tmpfs_folder
from bench.stopwatch import Elapsed, Stopwatch
from shmaccum.format.batch_header import HEADER
from shmaccum.segment_log import LogDirectory

OURS, PEER = "segment log, 32 a call", "bare writev, 32 a call"
PEER_OF_FIVE = "bare writev, 5 a call"

BATCH_SIZE = 16384
BATCH_COUNT = 16384
"""256 MiB in all, out of 32 MiB of memory: as many buffers as an arena has by default."""
BUFFER_COUNT = 2048
RECORD_COUNT = 140
TIMESTAMP_MS = 1_700_000_000_000


@cache
def batches() -> list[FullBatch]:
    """Idempotent batches in sequence, whose bytes lie in as much memory as an arena's."""
    memory = memoryview(bytearray(os.urandom(BATCH_SIZE)) * BUFFER_COUNT)
    return [_batch(memory[index % BUFFER_COUNT * BATCH_SIZE :][:BATCH_SIZE], index) for index in range(BATCH_COUNT)]


def _batch(view: memoryview, index: int) -> FullBatch:
    facts = (RECORD_COUNT, 7, 0, index * RECORD_COUNT, TIMESTAMP_MS + index)
    count, producer_id, epoch, sequence, timestamp_ms = facts
    HEADER.pack_into(
        view, 0, 0, BATCH_SIZE - 12, -1, 2, 0, 0, count - 1, timestamp_ms, timestamp_ms, producer_id, epoch, 0, count
    )
    return FullBatch((view.toreadonly(),), BATCH_SIZE, count, producer_id, epoch, sequence, timestamp_ms)


def _calls(batch_count: int) -> list[Sequence[FullBatch]]:
    everything = batches()
    return [everything[first : first + batch_count] for first in range(0, BATCH_COUNT, batch_count)]


def _measurement(elapsed: Elapsed) -> Measurement:
    return {
        "bytes_per_s": BATCH_COUNT * BATCH_SIZE / elapsed.wall_s,
        "cpu_ns_per_batch": elapsed.cpu_s * 1e9 / BATCH_COUNT,
    }


def _bare(batch_count: int) -> Callable[[], Measurement]:
    def run() -> Measurement:
        calls = [[batch.buffers[0] for batch in call] for call in _calls(batch_count)]
        with tmpfs_folder() as folder:
            descriptor = os.open(folder / "bytes", os.O_WRONLY | os.O_CREAT)
            stopwatch = Stopwatch()
            for buffers in calls:
                os.writev(descriptor, buffers)
            measurement = _measurement(stopwatch.elapsed())
            os.close(descriptor)
        return measurement

    return run


def _log(batch_count: int) -> Callable[[], Measurement]:
    def run() -> Measurement:
        calls = _calls(batch_count)
        with tmpfs_folder() as folder, LogDirectory(folder) as directory:
            directory.create_topic("flights")
            stopwatch = Stopwatch()
            for call in calls:
                directory.partition("flights", 0).append(call)
            return _measurement(stopwatch.elapsed())

    return run


def contenders() -> list[Contender]:
    """The log and a bare writev, as many batches a call."""
    return [
        Contender(OURS, _log(32)),
        Contender(PEER, _bare(32)),
        Contender("segment log, 5 a call", _log(5), peer=PEER_OF_FIVE),
        Contender(PEER_OF_FIVE, _bare(5)),
    ]


QUESTION = Question(
    title="Append full 16 KiB batches of one partition to a log on tmpfs, 32 a call (as the sink does) and 5",
    figures=(
        Figure("bytes_per_s", "GiB/s", 1 / 2**30, "higher"),
        Figure("cpu_ns_per_batch", "µs", 1e-3, "lower", "processor time per batch"),
    ),
    contenders=contenders,
    peer=PEER,
    goals=(Goal("drain to a segment log on tmpfs, of a bare ``writev``", OURS, "bytes_per_s", 0.7, is_ratio=True),),
)
