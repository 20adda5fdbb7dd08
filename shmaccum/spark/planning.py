# SPDX-License-Identifier: Apache-2.0
"""Conversion of positions to offset ranges, one for each task (KafkaOffsetRangeCalculator, KafkaMicroBatchStream)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.spark.positions import Positions


@dataclass(frozen=True)
class LogRange(InputPartition):
    """The offsets [start, end) of one partition, which one task reads."""

    place: TopicPartition
    start: int
    end: int


def plan_ranges(starts: Positions, ends: Positions, min_count: int | None = None) -> list[InputPartition]:
    """Return one or more ranges for each partition with records.

    Args:
        starts, ends: by partition; `ends` has no other partitions.
        min_count: the least number of ranges, if there are enough records.
    """
    ranges = [LogRange(place, starts[place], end) for place, end in sorted(ends.items()) if starts[place] < end]
    if min_count is None or len(ranges) >= min_count:
        return list(ranges)
    counts = shares({each.place: each.end - each.start for each in ranges}, min_count)
    return [part for each in ranges for part in _cut(each, counts[each.place])]


def _cut(whole: LogRange, count: int) -> Iterator[LogRange]:
    size = whole.end - whole.start
    edges = [whole.start + size * index // count for index in range(count + 1)]
    for start, end in pairwise(edges):
        yield LogRange(whole.place, start, end)


def limit_positions(starts: Positions, ends: Positions, record_count_max: int) -> Positions:
    """Return the ends of a micro-batch of at most `record_count_max` records, spread over the partitions.

    If there are more partitions with records than that, they take turns: the sum of all positions, which grows with
    each micro-batch, determines which partition is first.
    """
    sizes = {place: max(end - starts[place], 0) for place, end in ends.items()}
    with_records = {place: size for place, size in sizes.items() if size}
    if sum(with_records.values()) <= record_count_max:
        return ends
    if len(with_records) <= record_count_max:
        given = shares(with_records, record_count_max)
    else:
        places = sorted(sizes)
        first = sum(starts[place] for place in places) % len(places)
        in_turn = [place for place in places[first:] + places[:first] if place in with_records]
        given = dict.fromkeys(in_turn[:record_count_max], 1)
    return {place: starts[place] + given.get(place, 0) for place in ends}


def shares(sizes: Mapping[TopicPartition, int], total: int) -> dict[TopicPartition, int]:
    """Divide a number among partitions by their sizes. Each gets at least one and at most its size.

    The shares add up to the number, or to the sum of the sizes if that is less.

    Args:
        sizes: by partition, all above 0.
        total: at least the number of partitions.
    """
    given: dict[TopicPartition, int] = {}
    large, left = dict(sizes), min(total, sum(sizes.values()))
    whole = sum(large.values())
    while small := [place for place, size in large.items() if size * left < whole]:
        given.update(dict.fromkeys(small, 1))
        left -= len(small)
        whole -= sum(large.pop(place) for place in small)
    given.update({place: left * size // whole for place, size in large.items()})
    by_remainder = sorted(large, key=lambda place: (-(left * large[place] % whole), place))
    for place in by_remainder[: left - sum(given[place] for place in large)]:
        given[place] += 1
    return given
