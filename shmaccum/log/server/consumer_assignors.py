# SPDX-License-Identifier: Apache-2.0
"""The partition assignors of a server (KIP-848: uniform and range).

Both are pure functions of members, topics and former places. A place is a topic id and a partition. Each place of a
subscribed topic gets one member. A member gets only places of topics that it subscribes to.

* ``uniform`` leaves a member its former places while the numbers of places are even. It moves a place only to a member
  that has at least two places fewer. So if all members subscribe to the same topics, their numbers of places differ by
  at most one, and a new member takes places from old members, which exchange none among themselves.
* ``range`` divides each topic into ranges in the order of the members. So members with the same topics get the same
  partition numbers of each topic, as needed to join topics.
"""

from __future__ import annotations

import heapq
import uuid
from collections.abc import Callable, Mapping
from typing import final

Place = tuple[uuid.UUID, int]
Places = frozenset[Place]
Subscriptions = Mapping[str, frozenset[uuid.UUID]]
"""The topics of each member, in the order of the members."""
Counts = Mapping[uuid.UUID, int]
"""The number of partitions of each topic."""
Assignor = Callable[[Subscriptions, Counts, Mapping[str, Places]], dict[str, Places]]


def assign_ranges(members: Subscriptions, counts: Counts, _former: Mapping[str, Places]) -> dict[str, Places]:
    """Divide each topic into one range for each member. The first members may get one partition more."""
    places: dict[str, set[Place]] = {member: set() for member in members}
    for topic, names in _subscribers(members, counts).items():
        size, longer = divmod(counts[topic], len(names))
        first = 0
        for index, name in enumerate(names):
            end = first + size + (index < longer)
            places[name].update((topic, partition) for partition in range(first, end))
            first = end
    return {member: frozenset(found) for member, found in places.items()}


def assign_uniformly(members: Subscriptions, counts: Counts, former: Mapping[str, Places]) -> dict[str, Places]:
    """Give members equal numbers of places, with as few moves as possible."""
    loads = _Loads(_subscribers(members, counts))
    owners = _former_owners(members, counts, former)
    for owner in owners.values():
        loads.add(owner, 1)
    for place in ((topic, partition) for topic in loads.topics for partition in range(counts[topic])):
        if place not in owners:
            owners[place] = loads.least(place[0])
            loads.add(owners[place], 1)
    while _balance_loads(owners, loads):
        pass
    places: dict[str, set[Place]] = {member: set() for member in members}
    for place, owner in owners.items():
        places[owner].add(place)
    return {member: frozenset(found) for member, found in places.items()}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
"""The assignors by name."""
DEFAULT_ASSIGNOR = "uniform"


def _subscribers(members: Subscriptions, counts: Counts) -> dict[uuid.UUID, tuple[str, ...]]:
    """Return the members that subscribe to each topic, in their order."""
    found: dict[uuid.UUID, list[str]] = {}
    for member, topics in members.items():
        for topic in topics & counts.keys():
            found.setdefault(topic, []).append(member)
    return {topic: tuple(found[topic]) for topic in sorted(found)}


def _former_owners(members: Subscriptions, counts: Counts, former: Mapping[str, Places]) -> dict[Place, str]:
    """Return the member of each place that had it before and still subscribes to its topic."""
    owners: dict[Place, str] = {}
    for member, topics in members.items():
        for place in former.get(member, ()):
            if place[0] in topics and place[1] < counts.get(place[0], 0):
                owners.setdefault(place, member)
    return owners


def _balance_loads(owners: dict[Place, str], loads: _Loads) -> bool:
    """Move places to members with at least two places fewer. Return False if no place was moved.

    Each move reduces the sum of the squares of all loads, so the moves come to an end.
    """
    has_moved = False
    for place in sorted(owners):
        owner, least = owners[place], loads.least(place[0])
        if loads.of(owner) - loads.of(least) > 1:
            owners[place] = least
            loads.add(owner, -1)
            loads.add(least, 1)
            has_moved = True
    return has_moved


@final
class _Loads:
    """The number of places of each member, and the least loaded subscriber of each topic.

    Topics with the same subscribers share a heap. An outdated heap entry is removed when it reaches the top.

    Attributes:
        topics: the subscribers of each topic.
    """

    def __init__(self, topics: Mapping[uuid.UUID, tuple[str, ...]]) -> None:
        self.topics = topics
        self._loads = {name: 0 for names in topics.values() for name in names}
        self._ranks = {name: rank for rank, name in enumerate(self._loads)}
        self._heaps = {names: [(0, self._ranks[name], name) for name in names] for names in set(topics.values())}
        self._heaps_of: dict[str, list[list[tuple[int, int, str]]]] = {name: [] for name in self._loads}
        for names, heap in self._heaps.items():
            heapq.heapify(heap)
            for name in names:
                self._heaps_of[name].append(heap)

    def of(self, name: str) -> int:
        return self._loads[name]

    def add(self, name: str, count: int) -> None:
        """Changes the load of a member."""
        self._loads[name] += count
        for heap in self._heaps_of[name]:
            heapq.heappush(heap, (self._loads[name], self._ranks[name], name))

    def least(self, topic: uuid.UUID) -> str:
        """Returns the subscriber of a topic with the fewest places. Of equals, it returns the first in order."""
        heap = self._heaps[self.topics[topic]]
        while heap[0][0] != self._loads[heap[0][2]]:
            heapq.heappop(heap)
        return heap[0][2]
