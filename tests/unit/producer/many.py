# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of send_many and append_arrow: the expected and actual places of records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kafka.partitioner.default import murmur2

from shmaccum.arena.results import BatchResult
from tests.support.accumulator import Accumulator
from tests.support.arenas import drain

PARTITION_COUNTS = {"flights": 7, "weather": 3, "planes": 1}


class Sent(NamedTuple):
    """A record that was read from a batch."""

    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


Places = Mapping[tuple[str, int], list[Sent]]


def encoded(part: Any) -> bytes | None:
    return part.encode() if isinstance(part, str) else None if part is None else bytes(part)


def sent(row: Mapping[str, Any], now_ms: int) -> Sent:
    """Return the expected record of a row, which is a dict by column names."""
    timestamp_ms = row.get("timestamp")
    headers = tuple((header["key"], encoded(header["value"])) for header in row.get("headers") or ())
    return Sent(
        now_ms if timestamp_ms is None else timestamp_ms, encoded(row.get("key")), encoded(row["value"]), headers
    )


def wanted_partition(row: Mapping[str, Any], partition_count: int) -> int | None:
    """As kafka-python's DefaultPartitioner, if the cluster is available. None stands for any partition."""
    if row.get("partition") is not None:
        return int(row["partition"])
    key = encoded(row.get("key"))
    return None if key is None else int((murmur2(key) & 0x7FFFFFFF) % partition_count)


def deliver(sender: Accumulator) -> Places:
    """Drain and complete everything. Return the records of each topic-partition, with offsets from 0."""
    places: dict[tuple[str, int], list[Sent]] = {}
    while batches := drain(sender):
        for batch in batches:
            records = places.setdefault((batch.topic, batch.partition), [])
            base_offset = len(records)
            records += [Sent(*record[1:4], tuple(record[4])) for record in batch.decode()]
            sender.complete(batch, BatchResult.SUCCEEDED, base_offset=base_offset)
    return places


def check_places(places: Places, rows: Iterable[Mapping[str, Any]], now_ms: int) -> None:
    """Check that every row is once in its partition, and that rows of a known partition are in order."""
    ordered: dict[tuple[str, int], list[Sent]] = {}
    free: dict[str, Counter[Sent]] = {}
    for row in rows:
        partition = wanted_partition(row, PARTITION_COUNTS[row["topic"]])
        if partition is None:
            free.setdefault(row["topic"], Counter())[sent(row, now_ms)] += 1
        else:
            ordered.setdefault((row["topic"], partition), []).append(sent(row, now_ms))
    for (topic, partition), records in places.items():
        assert 0 <= partition < PARTITION_COUNTS[topic]
        left = iter(ordered.pop((topic, partition), []))
        awaited = next(left, None)
        for record in records:
            if record == awaited:
                awaited = next(left, None)
            else:
                free[topic][record] -= 1
        assert awaited is None, f"{topic}-{partition} lacks {awaited}, or has it too early"
    assert not ordered
    assert not any(count for counter in free.values() for count in counter.values())
