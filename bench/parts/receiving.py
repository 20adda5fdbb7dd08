# SPDX-License-Identifier: Apache-2.0
"""The work "drained": two processes send records of 100 bytes to a third one. The time runs from their start."""

from __future__ import annotations

import multiprocessing
import resource
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import Any

from bench.harness.question import Figure, Measurement
from bench.harness.stopwatch import Stopwatch

PRODUCER_COUNT = 2
VALUE = bytes(100)

FIGURES = (
    Figure("records_per_s", "M records/s", 1e-6, "higher"),
    Figure("cpu_per_record_s", "ns", 1e9, "lower", "processor time of all three processes, per record"),
    Figure("taker_cpu_share", "cores", 1, "lower", "cores that the receiver uses"),
    Figure("taker_cpu_per_piece_s", "µs", 1e6, "lower", "processor time of the receiver, per batch or chunk"),
)


def forked(work: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> list[BaseProcess]:
    """Return a process for each tuple of arguments, not started."""
    context = multiprocessing.get_context("fork")
    return [context.Process(target=work, args=each) for each in arguments]


Take = Callable[[], tuple[int, int]]
"""Read some records. Return the number of records, and of the batches or chunks that contained them."""


def taken(producers: Sequence[BaseProcess], take: Take, record_count: int) -> Measurement:
    """Start the producers, and read until all records have arrived."""
    stopwatch = Stopwatch()
    for producer in producers:
        producer.start()
    taken_count = piece_count = 0
    while taken_count < record_count:
        records, pieces = take()
        taken_count += records
        piece_count += pieces
    elapsed = stopwatch.elapsed()
    return {
        "records_per_s": record_count / elapsed.wall_s,
        "cpu_per_record_s": (elapsed.cpu_s + _joined_cpu_s(producers)) / record_count,
        "taker_cpu_share": elapsed.cpu_s / elapsed.wall_s,
        "taker_cpu_per_piece_s": elapsed.cpu_s / piece_count,
    }


def _joined_cpu_s(producers: Sequence[BaseProcess]) -> float:
    """Return the processor time of the producers, including start and end."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for producer in producers:
        producer.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
