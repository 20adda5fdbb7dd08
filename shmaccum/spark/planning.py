# SPDX-License-Identifier: Apache-2.0
"""From positions to ranges of offsets, one for each task (KafkaOffsetRangeCalculator, KafkaMicroBatchStream)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from shmaccum.format.topic_partition import TopicPartition
from shmaccum.spark.positions import Positions


@dataclass(frozen=True)
class LogRange(InputPartition):
    """The offsets [start, end) of one partition, which one task reads."""

    place: TopicPartition
    start: int
    end: int


def plan_ranges(starts: Positions, ends: Positions, min_count: int | None = None) -> list[InputPartition]:
    """A range for each partition that has records, or several of equal size where more tasks are wanted.

    Args:
        starts, ends: by partition; ends has no others.
        min_count: how many ranges there should be at least.
    """
    ranges = [LogRange(place, starts[place], end) for place, end in sorted(ends.items()) if starts[place] < end]
    if min_count is None or len(ranges) >= min_count:
        return list(ranges)
    total = sum(each.end - each.start for each in ranges)
    return [part for each in ranges for part in _cut(each, round(min_count * (each.end - each.start) / total))]


def _cut(whole: LogRange, count: int) -> Iterator[LogRange]:
    size = whole.end - whole.start
    count = max(min(count, size), 1)
    edges = [whole.start + size * index // count for index in range(count + 1)]
    for start, end in pairwise(edges):
        yield LogRange(whole.place, start, end)


def limit_positions(starts: Positions, ends: Positions, record_count_max: int) -> Positions:
    """The ends of a micro-batch of at most so many records. Each partition gets a share by the records it has."""
    sizes = {place: max(end - starts[place], 0) for place, end in ends.items()}
    total = sum(sizes.values())
    if total <= record_count_max:
        return ends
    shares = {place: record_count_max * size // total for place, size in sizes.items()}
    left = record_count_max - sum(shares.values())
    for place in sorted(place for place, size in sizes.items() if size > shares[place])[:left]:
        shares[place] += 1
    return {place: starts[place] + share for place, share in shares.items()}
