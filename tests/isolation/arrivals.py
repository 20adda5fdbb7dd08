# SPDX-License-Identifier: Apache-2.0
"""Compare the records that an independent consumer reads with the records that were sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, TopicPartition

REQUEST_S = 120.0


@dataclass
class Verdict:
    """Counts of records.

    Attributes:
        arrived_count: different records.
        lost_count: records that did not arrive although their send returned.
        doubled_count: records that arrived again.
        disordered_count: records that come after a later record of the same producer and place in their partition.
    """

    arrived_count: int = 0
    lost_count: int = 0
    doubled_count: int = 0
    disordered_count: int = 0

    @property
    def is_clean(self) -> bool:
        """True if no record is lost, doubled or out of order."""
        return not (self.lost_count or self.doubled_count or self.disordered_count)

    def __str__(self) -> str:
        return (
            f"{self.arrived_count:,} records: {self.lost_count:,} lost, {self.doubled_count:,} doubled, "
            f"{self.disordered_count:,} out of order"
        )


def judge(sent: Mapping[int, Sequence[int]], arrived: Iterable[tuple[str, int, bytes]]) -> dict[int, Verdict]:
    """Return the verdict for each producer.

    Args:
        sent: producer -> the number of records of each of its places.
        arrived: the topic, partition and value of all records. Those of a partition are in order.

    Raises:
        AssertionError: a record arrived that was never sent.
    """
    verdicts = {producer: Verdict() for producer in sent}
    seen = {producer: [bytearray(count) for count in counts] for producer, counts in sent.items()}
    last: dict[tuple[str, int, int, int], int] = {}
    for topic, partition, value in arrived:
        producer, place, number = map(int, value.split(maxsplit=3)[:3])
        verdict, flags = verdicts[producer], seen[producer][place]
        assert number < len(flags), f"{topic}-{partition} has {value[:40]!r}, which no send took"
        if flags[number]:
            verdict.doubled_count += 1
            continue
        flags[number] = 1
        verdict.arrived_count += 1
        author = topic, partition, producer, place
        verdict.disordered_count += number < last.get(author, -1)
        last[author] = max(number, last.get(author, -1))
    for producer, places in seen.items():
        verdicts[producer].lost_count = sum(flags.count(0) for flags in places)
    return verdicts


def read_all(bootstrap: str, topics: Sequence[str]) -> Iterator[tuple[str, int, bytes]]:
    """Return the topic, partition and value of all records."""
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": "isolation", "check.crcs": True}
    settings |= {"log_level": 0, "enable.auto.commit": False, "fetch.wait.max.ms": 50}
    consumer = Consumer({**settings, "queued.max.messages.kbytes": 65_536})
    found = consumer.list_topics(timeout=REQUEST_S).topics
    places = [TopicPartition(topic, partition, 0) for topic in topics for partition in found[topic].partitions]
    missing = sum(consumer.get_watermark_offsets(place, timeout=REQUEST_S)[1] for place in places)
    consumer.assign(places)
    while missing > 0:
        for message in consumer.consume(20_000, timeout=0.2):
            assert message.error() is None, message.error()
            topic, partition, value = message.topic(), message.partition(), message.value()
            assert topic is not None
            assert partition is not None
            assert value is not None
            missing -= 1
            yield topic, partition, value
    consumer.close()
