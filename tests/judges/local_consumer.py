# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin (``-p tests.judges.local_consumer``) that runs kafka-python's unit tests of consumers with ours.

kafka-python's assignors call ours, and its own record of movements checks whether these are sticky. Its
KafkaConsumer is a `Consumer` of a log with one topic.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import kafka
import pytest
from kafka.coordinator.assignors.abstract import ConsumerProtocolAssignment
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.partition_movements import PartitionMovements
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from shmaccum import Consumer, TopicPartition
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.groups.assignors import Assignment, Subscriptions, assign_in_turn, assign_ranges, assign_sticky

TOPIC = "foo"


class LocalConsumer(Consumer):
    """Our consumer, with the arguments of kafka-python's tests."""

    def __init__(self, *topics: str, api_version: object = None, **options: Any) -> None:
        self._folder = tempfile.TemporaryDirectory()
        with LogDirectory(Path(self._folder.name) / "log") as log:
            log.create_topic(TOPIC)
        super().__init__(Path(self._folder.name) / "log", *topics, **options)

    @property
    def _closed(self) -> bool:
        return self._waiter is None


def _subscriptions(cluster: Any, topics: dict[str, Iterable[str]], former: Assignment) -> Subscriptions:
    wanted = {topic for names in topics.values() for topic in names}
    counts = {topic: len(cluster.partitions_for_topic(topic) or ()) for topic in wanted}
    return Subscriptions(counts, {member: set(names) for member, names in topics.items()}, former)


def _encoded(version: int, found: Assignment) -> dict[str, Any]:
    """An assignment in kafka-python's form."""
    answer = {}
    for member, places in found.items():
        topics: dict[str, list[int]] = {}
        for place in sorted(places):
            topics.setdefault(place.topic, []).append(place.partition)
        answer[member] = ConsumerProtocolAssignment(version, list(topics.items()), b"")
    return answer


def _assigning(assign: Callable[[Subscriptions], Assignment]) -> Any:
    def assign_members(cls: Any, cluster: Any, members: Any) -> dict[str, Any]:
        topics = {member.member_id: member.metadata.topics for member in members}
        return _encoded(cls.version, assign(_subscriptions(cluster, topics, {})))

    return classmethod(assign_members)


def _former(parsed: dict[str, Any]) -> Assignment:
    """Return the former partitions of each member. If two members claim one, the later generation has it."""
    former: Assignment = {member: [] for member in parsed}
    claimed: set[TopicPartition] = set()
    for member in sorted(parsed, key=lambda name: -parsed[name].generation):
        own = {TopicPartition(*place) for place in parsed[member].partitions} - claimed
        former[member] = sorted(own)
        claimed |= own
    return former


def _assign_sticky(self: Any, cluster: Any, members: Any) -> dict[str, Any]:
    parsed = {member.member_id: self.parse_member_metadata(member.metadata) for member in members}
    former = _former(parsed)
    topics = {member: row.subscription for member, row in parsed.items()}
    found = assign_sticky(_subscriptions(cluster, topics, former))
    owners = {place: member for member, places in former.items() for place in places}
    self._latest_partition_movements = PartitionMovements()
    for member, places in found.items():
        for place in places:
            if owners.get(place, member) != member:
                self._latest_partition_movements.move_partition(place, owners[place], member)
    return _encoded(self.version, found)


RangePartitionAssignor.assign = _assigning(assign_ranges)
RoundRobinPartitionAssignor.assign = _assigning(assign_in_turn)
StickyPartitionAssignor.assign = _assign_sticky
kafka.KafkaConsumer = LocalConsumer


@pytest.fixture
def mocker() -> Any:
    """The part of pytest-mock that these tests use."""
    return mock
