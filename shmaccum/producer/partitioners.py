# SPDX-License-Identifier: Apache-2.0
"""User-defined partitioners, and round robin. The built-in partitioner is native (native/producer/partitioner.h).

A partitioner chooses the partition of records that name none. It is a callable ``(key, all_partitions, available)``
with the serialized key, or an object with kafka-python's method ``partition(topic, key, serialized_key, value,
serialized_value, cluster)``. `resolve` converts both to a `ChoosePartition`. None means the built-in partitioner.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shmaccum.common.units import format_count
from shmaccum.exceptions import InvalidArgumentError, UnknownPartitionError


@dataclass(frozen=True)
class Choice:
    """A record that needs a partition.

    Attributes:
        key, value: the objects that were sent; `serialized_key` and `serialized_value` are their bytes.
        partitions: all partitions of the topic, in order.
        available: the partitions that can currently be delivered to.
    """

    topic: str
    key: Any
    serialized_key: bytes | None
    value: Any
    serialized_value: bytes | None
    partitions: Sequence[int]
    available: Sequence[int]


class ChoosePartition(Protocol):
    """A partitioner as returned by `resolve`."""

    def __call__(self, choice: Choice, /) -> int: ...


@dataclass(frozen=True)
class TopicView:
    """The cluster argument of kafka-python's partitioners, limited to one topic."""

    choice: Choice

    def topics(self) -> set[str]:
        """The topic."""
        return {self.choice.topic}

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """Returns all partitions, or None for another topic."""
        return set(self.choice.partitions) if topic == self.choice.topic else None

    def available_partitions_for_topic(self, topic: str) -> set[int] | None:
        """Returns the partitions that can currently be delivered to, or None for another topic."""
        return set(self.choice.available) if topic == self.choice.topic else None


class RoundRobinPartitioner:
    """Chooses available partitions in turn, regardless of the key (Kafka's RoundRobinPartitioner).

    Each producer counts separately for each topic. Batches fill slowly this way: with many partitions, the built-in
    partitioner has a higher throughput.
    """

    def __init__(self) -> None:
        self._turns: dict[str, Iterator[int]] = {}

    def __call__(self, choice: Choice, /) -> int:
        partitions = choice.available or choice.partitions
        turn = next(self._turns.setdefault(choice.topic, itertools.count()))
        return partitions[turn % len(partitions)]


def _of_object(partition: Callable[..., int]) -> ChoosePartition:
    return lambda choice: partition(
        choice.topic, choice.key, choice.serialized_key, choice.value, choice.serialized_value, TopicView(choice)
    )


def resolve(partitioner: Any) -> ChoosePartition | None:
    """Returns the function to call with a `Choice`, or None for the built-in partitioner.

    Raises:
        InvalidArgumentError: the object is not a partitioner.
    """
    if partitioner is None or partitioner == "builtin":
        return None
    if partitioner == "round_robin":
        return RoundRobinPartitioner()
    if not isinstance(partitioner, str) and callable(getattr(partitioner, "partition", None)):
        return _of_object(partitioner.partition)
    if callable(partitioner):
        return lambda choice: partitioner(choice.serialized_key, choice.partitions, choice.available)
    raise InvalidArgumentError(
        f"{partitioner!r} is not a partitioner: give a function (key, all_partitions, available), an object with "
        "kafka-python's partition(), or one of builtin, round_robin"
    )


def checked(partition: Any, choice: Choice) -> int:
    """Checks the partition that a user's partitioner chose, and returns it.

    Raises:
        UnknownPartitionError: the topic has no such partition.
    """
    if isinstance(partition, bool) or not isinstance(partition, int) or not 0 <= partition < len(choice.partitions):
        raise UnknownPartitionError(
            f"the partitioner chose {partition!r}; topic {choice.topic!r} has "
            f"{format_count(len(choice.partitions), 'partition')}, numbered from 0"
        )
    return partition
