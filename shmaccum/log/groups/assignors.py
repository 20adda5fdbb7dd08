# SPDX-License-Identifier: Apache-2.0
"""Assignors: rules that assign the partitions to the members of a group. Pure functions of a `Subscriptions`.

::

    range                for each topic, a range of partitions for each member
    roundrobin           all partitions of all topics, one member after the other
    sticky               balanced, with as few changes of owners as possible
    cooperative-sticky   the same: every change is incremental here, with any assignor
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias, final

from shmaccum.common.format.topic_partition import TopicPartition

Assignment: TypeAlias = dict[str, list[TopicPartition]]
Kind: TypeAlias = frozenset[str]
Audience: TypeAlias = tuple[Kind, ...]


class Subscriptions(NamedTuple):
    """The state of a group that an assignor needs."""

    counts: Mapping[str, int]
    """The number of partitions of each topic."""
    topics: Mapping[str, Collection[str]]
    """The topics of each member."""
    former: Mapping[str, Collection[TopicPartition]]
    """The partitions that each member had before."""

    def partitions(self) -> list[TopicPartition]:
        """All partitions of topics that a member subscribes to, sorted."""
        wanted = {topic for topics in self.topics.values() for topic in topics}
        return [
            TopicPartition(topic, number) for topic in sorted(wanted) for number in range(self.counts.get(topic, 0))
        ]

    def members_by_topic(self) -> dict[str, list[str]]:
        """The members that subscribe to each topic, sorted."""
        found: dict[str, list[str]] = {}
        for member in sorted(self.topics):
            for topic in set(self.topics[member]):
                found.setdefault(topic, []).append(member)
        return found


def assign_ranges(group: Subscriptions) -> Assignment:
    """Assign, for each topic, a range of partitions to each member (Kafka's RangeAssignor)."""
    found: Assignment = {member: [] for member in group.topics}
    for topic, members in sorted(group.members_by_topic().items()):
        share, extra = divmod(group.counts.get(topic, 0), len(members))
        start = 0
        for number, member in enumerate(members):
            end = start + share + (number < extra)
            found[member] += [TopicPartition(topic, partition) for partition in range(start, end)]
            start = end
    return found


def assign_in_turn(group: Subscriptions) -> Assignment:
    """Assign the partitions of all topics to one member after the other (Kafka's RoundRobinAssignor)."""
    found: Assignment = {member: [] for member in group.topics}
    turn = itertools.cycle(sorted(group.topics))
    for place in group.partitions():
        member = next(member for member in turn if place.topic in group.topics[member])
        found[member].append(place)
    return found


def assign_sticky(group: Subscriptions) -> Assignment:
    """Balance the partitions with as few changes of owners as possible (Kafka's StickyAssignor)."""
    shares = _Shares(group)
    shares.assign_free_places()
    shares.balance()
    return shares.assignment()


class _Move(NamedTuple):
    giver: str
    receiver: str
    audience: Audience


@final
class _Shares:
    """A sticky assignment while it is computed.

    Members with the same topics are of one kind. The kinds that subscribe to a partition are its audience. Most groups
    have one kind and one audience. Each kind has a heap of its members by load, and each audience has a heap of the
    owners of its partitions. So a step examines the tops of a few heaps instead of all members. A heap entry is skipped
    if the load of its member has changed since.
    """

    def __init__(self, group: Subscriptions) -> None:
        self._kinds = {member: frozenset(group.topics[member]) for member in sorted(group.topics)}
        self._audiences = _audiences(self._kinds)
        self._lightest: dict[Kind, list[tuple[int, str]]] = {kind: [] for kind in self._kinds.values()}
        self._heaviest: dict[Audience, list[tuple[int, str]]] = {one: [] for one in self._audiences.values()}
        self._owned: dict[str, dict[Audience, list[TopicPartition]]] = {member: {} for member in self._kinds}
        self._loads = dict.fromkeys(self._kinds, 0)
        self._free = set(group.partitions())
        for member in self._kinds:
            self._keep_former(member, group.former.get(member, ()))

    def _keep_former(self, member: str, former: Iterable[TopicPartition]) -> None:
        """Keep a member's former partitions, without those that are gone, unwanted, or claimed twice."""
        for place in sorted(former):
            if place in self._free and place.topic in self._kinds[member]:
                self._free.remove(place)
                self._add(place, member)
        self._push_load(member)

    def _add(self, place: TopicPartition, member: str) -> None:
        self._owned[member].setdefault(self._audiences[place.topic], []).append(place)
        self._loads[member] += 1

    def _push_load(self, member: str) -> None:
        """Push the load of a member on the heaps."""
        load = self._loads[member]
        heappush(self._lightest[self._kinds[member]], (load, member))
        for audience in self._owned[member]:
            heappush(self._heaviest[audience], (-load, member))

    def _lightest_of(self, audience: Audience) -> str:
        """The member with the smallest load in an audience."""
        for kind in audience:
            heap = self._lightest[kind]
            while heap[0][0] != self._loads[heap[0][1]]:
                heappop(heap)
        return min(self._lightest[kind][0] for kind in audience)[1]

    def _heaviest_of(self, audience: Audience) -> str | None:
        """The member with the largest load among the owners of an audience's partitions."""
        heap = self._heaviest[audience]
        while heap and not (-heap[0][0] == self._loads[heap[0][1]] and self._owned[heap[0][1]].get(audience)):
            heappop(heap)
        return heap[0][1] if heap else None

    def assign_free_places(self) -> None:
        """Assign each free partition to its member with the smallest load. Partitions with few members come first."""
        sizes = Counter(self._kinds.values())
        wanting = {topic: sum(sizes[kind] for kind in audience) for topic, audience in self._audiences.items()}
        for place in sorted(self._free, key=lambda place: (wanting[place.topic], place)):
            receiver = self._lightest_of(self._audiences[place.topic])
            self._add(place, receiver)
            self._push_load(receiver)

    def balance(self) -> None:
        """Move partitions to members that have at least two fewer than their owners, until there is no such move."""
        while (move := self._best_move()) is not None:
            place = self._owned[move.giver][move.audience].pop()
            self._loads[move.giver] -= 1
            self._add(place, move.receiver)
            self._push_load(move.giver)
            self._push_load(move.receiver)

    def _best_move(self) -> _Move | None:
        """The move from the owner with the largest load, or None if all loads are balanced."""
        found: list[_Move] = []
        for audience in self._heaviest:
            giver, receiver = self._heaviest_of(audience), self._lightest_of(audience)
            if giver is not None and self._loads[giver] > self._loads[receiver] + 1:
                found.append(_Move(giver, receiver, audience))
        return min(found, key=lambda move: (-self._loads[move.giver], self._loads[move.receiver]), default=None)

    def assignment(self) -> Assignment:
        """The partitions of each member, sorted."""
        return {member: sorted(itertools.chain(*owned.values())) for member, owned in self._owned.items()}


def _audiences(kinds: Mapping[str, Kind]) -> dict[str, Audience]:
    """The kinds of members that subscribe to each topic."""
    found: dict[str, list[Kind]] = {}
    for kind in dict.fromkeys(kinds.values()):
        for topic in sorted(kind):
            found.setdefault(topic, []).append(kind)
    return {topic: tuple(audience) for topic, audience in found.items()}


BY_NAME: Mapping[str, Callable[[Subscriptions], Assignment]] = {
    "range": assign_ranges,
    "roundrobin": assign_in_turn,
    "sticky": assign_sticky,
    "cooperative-sticky": assign_sticky,
}
