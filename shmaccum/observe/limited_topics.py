# SPDX-License-Identifier: Apache-2.0
"""The topics that may hold no more buffers for now, and those to which nothing can be delivered.

::

    stuck     nothing can be delivered to a partition of the topic. Its batches open while more than half of the buffers
              are free
    at share  threads wait because the topic holds its share of the buffers (topic_share_factor)

The sender marks a partition as stuck in the arena, with the reason and the time, and a waiting thread names its
partition. So all of this is read from the arena, and no process is asked. native/arena/topic_share.h has the limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from shmaccum.arena.stuck import stuck_age_ns, stuck_reason

if TYPE_CHECKING:
    from shmaccum.arena import Arena

AT_SHARE = "it holds its share of the buffers (topic_share_factor)"


class LimitedTopic(NamedTuple):
    """A topic that may hold no more buffers for now, or to which nothing can be delivered."""

    topic: str
    partition_count: int
    """Partitions that the arena knows."""
    stuck_partition_count: int
    """Those of them to which nothing can be delivered now. If there are none, the topic is at its share."""
    reasons: Mapping[str, int]
    """no_leader, refused, silent -> partitions that are stuck for this reason."""
    why: str
    """The reasons in words."""
    stuck_age_ns: int | None
    """The time since the first of them became stuck, or since this sender began. If none is stuck, None."""
    held_slot_count: int
    """Buffers that its batches hold."""
    held_size: int
    """Bytes of these buffers."""
    held_share: float
    """Their part of all buffers, 0 to 1."""
    free_needed: int
    """Buffers that have to be free before the topic gets the next one. If it gets one now, 0."""
    waiting_count: int
    """Threads that wait, and are not in the way of others, until so many are free."""
    waiting_age_ns: int | None
    """The time that the first of them has waited. If none waits, None."""
    overflow_batch_count: int
    """At most so many batches of it lie in the overflow."""

    @property
    def is_stuck(self) -> bool:
        """True while nothing can be delivered to a partition of it."""
        return self.stuck_partition_count > 0


class Stuck(NamedTuple):
    """A partition to which nothing can be delivered."""

    partition_index: int
    reason: str
    why: str
    age_ns: int
    free_needed: int


class Parked(NamedTuple):
    """The wait of a thread that its topic lets have no buffer."""

    entry: int
    """The entry of its process."""
    partition_index: int
    age_ns: int
    free_needed: int


def stuck_partitions(arena: Arena, now_ns: int) -> list[Stuck]:
    """The partitions that the living sender has marked."""
    return [
        Stuck(index, *stuck_reason(reason, error_code), stuck_age_ns(now_ns, since_ms), free_needed)
        for index, reason, error_code, since_ms, free_needed in arena.native.stuck_partitions()
    ]


def limited_topics(
    arena: Arena,
    names: Sequence[tuple[str, int]],
    stuck: Iterable[Stuck],
    parked: Iterable[Parked],
    held: Mapping[str, int],
    overflow: Mapping[str, int],
) -> list[LimitedTopic]:
    """The rows of all topics that are stuck or at their share: stuck ones first, then those that hold most.

    Args:
        arena: opened in any way.
        names: topic and partition of each partition index.
        stuck: the partitions that are.
        parked: the waits of all threads that are.
        held: topic -> buffers of its batches.
        overflow: topic -> at most so many batches of it in the overflow.
    """
    found: dict[str, tuple[list[Stuck], list[Parked]]] = {}
    for one in stuck:
        if one.partition_index < len(names):
            found.setdefault(names[one.partition_index][0], ([], []))[0].append(one)
    for wait in parked:
        if 0 <= wait.partition_index < len(names):
            found.setdefault(names[wait.partition_index][0], ([], []))[1].append(wait)
    slot_count, batch_size = arena.geometry["slot_count"], arena.geometry["batch_size"]
    counts = Counter(topic for topic, _ in names)
    rows = [
        LimitedTopic(
            topic=topic,
            partition_count=counts[topic],
            stuck_partition_count=len(marked),
            reasons=dict(Counter(one.reason for one in marked)),
            why="; ".join(sorted({one.why for one in marked})) or AT_SHARE,
            stuck_age_ns=max((one.age_ns for one in marked), default=None),
            held_slot_count=held.get(topic, 0),
            held_size=held.get(topic, 0) * batch_size,
            held_share=held.get(topic, 0) / slot_count,
            free_needed=min(max(_free_needed(marked, waits)), slot_count),
            waiting_count=len(waits),
            waiting_age_ns=max((wait.age_ns for wait in waits), default=None),
            overflow_batch_count=overflow.get(topic, 0),
        )
        for topic, (marked, waits) in found.items()
    ]
    return sorted(rows, key=lambda row: (not row.is_stuck, -row.held_slot_count, row.topic))


def _free_needed(stuck: Iterable[Stuck], parked: Iterable[Parked]) -> Iterator[int]:
    """The free buffers that each of them needs."""
    yield from (one.free_needed for one in stuck)
    yield from (wait.free_needed for wait in parked)
