# SPDX-License-Identifier: Apache-2.0
"""Assignors: which member of a group consumes which partitions. Pure functions of a `Subscriptions`.

::

    range                of each topic a range of partitions for each member
    roundrobin           all partitions of all topics are dealt in turn
    sticky               balanced, and as few partitions as possible change hands
    cooperative-sticky   the same: here every change is incremental, whatever the assignor
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import cycle
from typing import NamedTuple, TypeAlias

from shmaccum.format.topic_partition import TopicPartition

Assignment: TypeAlias = dict[str, list[TopicPartition]]


class Subscriptions(NamedTuple):
    """The facts of a group that an assignor needs."""

    counts: Mapping[str, int]
    """The number of partitions of each topic."""
    topics: Mapping[str, Collection[str]]
    """The topics of each member."""
    former: Mapping[str, Collection[TopicPartition]]
    """The partitions that each member had before."""

    def partitions(self) -> list[TopicPartition]:
        """All partitions of topics that a member subscribes to, in order."""
        wanted = {topic for topics in self.topics.values() for topic in topics}
        return [
            TopicPartition(topic, number) for topic in sorted(wanted) for number in range(self.counts.get(topic, 0))
        ]

    def members_of(self, topic: str) -> list[str]:
        """The members that subscribe to a topic, in order."""
        return sorted(member for member, topics in self.topics.items() if topic in topics)


def assign_ranges(group: Subscriptions) -> Assignment:
    """Of each topic a range of partitions for each member (Kafka's RangeAssignor)."""
    found: Assignment = {member: [] for member in group.topics}
    for topic in sorted({topic for topics in group.topics.values() for topic in topics}):
        members = group.members_of(topic)
        share, extra = divmod(group.counts.get(topic, 0), len(members))
        start = 0
        for number, member in enumerate(members):
            end = start + share + (number < extra)
            found[member] += [TopicPartition(topic, partition) for partition in range(start, end)]
            start = end
    return found


def assign_in_turn(group: Subscriptions) -> Assignment:
    """All partitions of all topics in turn (Kafka's RoundRobinAssignor)."""
    found: Assignment = {member: [] for member in group.topics}
    turn = cycle(sorted(group.topics))
    for place in group.partitions():
        member = next(member for member in turn if place.topic in group.topics[member])
        found[member].append(place)
    return found


def assign_sticky(group: Subscriptions) -> Assignment:
    """Balanced, and with as few changes of owners as possible (Kafka's StickyAssignor)."""
    found = _kept(group)
    owned = {place for places in found.values() for place in places}
    free = [place for place in group.partitions() if place not in owned]
    for place in sorted(free, key=lambda place: (len(group.members_of(place.topic)), place)):
        found[_least_loaded(found, group.members_of(place.topic))].append(place)
    while _move_one(group, found):
        pass
    return {member: sorted(places) for member, places in found.items()}


def _kept(group: Subscriptions) -> Assignment:
    """The former assignment without partitions that are gone, unwanted, or claimed twice."""
    free = set(group.partitions())
    found: Assignment = {}
    for member in sorted(group.topics):
        former = sorted(set(group.former.get(member, ())))
        found[member] = [place for place in former if place in free and place.topic in group.topics[member]]
        free -= set(found[member])
    return found


def _least_loaded(found: Assignment, members: Iterable[str]) -> str:
    return min(members, key=lambda member: (len(found[member]), member))


def _move_one(group: Subscriptions, found: Assignment) -> bool:
    """Moves one partition to a member that has at least two fewer than its owner; False when there is none."""
    by_load = sorted(found, key=lambda member: (len(found[member]), member))
    for receiver in by_load:
        for giver in reversed(by_load):
            if len(found[giver]) <= len(found[receiver]) + 1:
                break
            place = next((place for place in found[giver][::-1] if place.topic in group.topics[receiver]), None)
            if place is not None:
                found[giver].remove(place)
                found[receiver].append(place)
                return True
    return False


BY_NAME: Mapping[str, Callable[[Subscriptions], Assignment]] = {
    "range": assign_ranges,
    "roundrobin": assign_in_turn,
    "sticky": assign_sticky,
    "cooperative-sticky": assign_sticky,
}
