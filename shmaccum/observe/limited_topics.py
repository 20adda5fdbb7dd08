# SPDX-License-Identifier: Apache-2.0
"""The topics that may hold no more buffers for now, and the stuck topics.

::

    stuck     nothing can be delivered to a partition of the topic. New batches are opened only while more than half
              of the buffers are free
    at share  threads wait because the topic holds its share of the buffers (topic_share_factor), or of the buffers for
              records larger than a buffer (oversized_max_bytes)

The sender marks a stuck partition in the arena, with the reason and the time, and a waiting thread names its partition.
So all facts are read from the arena, and no process is contacted. native/arena/topic_share.h defines the limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from shmaccum.arena.stuck import stuck_age_ns, stuck_reason

if TYPE_CHECKING:
    from shmaccum.arena import Arena

AT_SHARE = "it holds its share of the buffers (topic_share_factor)"
AT_LARGE_SHARE = "its records larger than a buffer may take no more of oversized_max_bytes"


class LimitedTopic(NamedTuple):
    """A topic that may hold no more buffers for now, or to which nothing can be delivered."""

    topic: str
    partition_count: int
    """The number of partitions in the arena."""
    stuck_partition_count: int
    """The number of stuck partitions. If it is 0, the topic is at its share."""
    reasons: Mapping[str, int]
    """The number of stuck partitions by reason: no_leader, refused or silent."""
    why: str
    """The reasons as text."""
    stuck_age_ns: int | None
    """The time since the first partition became stuck, or None if none is stuck."""
    held_slot_count: int
    """The number of buffers that its batches hold."""
    held_size: int
    """The size of these buffers."""
    held_share: float
    """Their share of all buffers, 0 to 1."""
    free_needed: int
    """The number of free buffers at which the topic gets its next buffer, or 0 if it gets one now."""
    waiting_count: int
    """The number of parked threads of the topic. They wait for `free_needed`, and do not delay other threads."""
    waiting_age_ns: int | None
    """The time that the first of them has waited, or None if none waits."""
    overflow_batch_count: int
    """An upper bound of its batches in the overflow."""

    @property
    def is_stuck(self) -> bool:
        """True if nothing can be delivered to one of its partitions."""
        return self.stuck_partition_count > 0


class Stuck(NamedTuple):
    """A partition to which nothing can be delivered."""

    partition_index: int
    reason: str
    why: str
    age_ns: int
    free_needed: int


class Parked(NamedTuple):
    """A thread that waits because of the limit of its topic."""

    entry: int
    """The entry of its process."""
    partition_index: int
    age_ns: int
    free_needed: int
    is_large_admitted: bool
    """False if the thread waits because records larger than a buffer have used oversized_max_bytes."""


def stuck_partitions(arena: Arena, now_ns: int) -> list[Stuck]:
    """Return the partitions that the present sender has marked."""
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
    """Return the rows of all topics that are stuck or at their share: stuck ones first, then by buffers held.

    Args:
        arena: opened in any mode.
        names: topic and partition of each partition index.
        stuck: the stuck partitions.
        parked: the parked threads.
        held: the number of buffers of each topic.
        overflow: an upper bound of each topic's batches in the overflow.
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
            why="; ".join(sorted({one.why for one in marked} or {_why_parked(wait) for wait in waits})),
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


def _why_parked(wait: Parked) -> str:
    return AT_SHARE if wait.is_large_admitted else AT_LARGE_SHARE


def _free_needed(stuck: Iterable[Stuck], parked: Iterable[Parked]) -> Iterator[int]:
    """Yield the number of free buffers that each partition and each thread needs."""
    yield from (one.free_needed for one in stuck)
    yield from (wait.free_needed for wait in parked)
