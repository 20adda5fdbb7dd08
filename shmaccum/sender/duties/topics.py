# SPDX-License-Identifier: Apache-2.0
"""Publishes the partition count of each topic: a producer names a topic in the arena, and the sink knows its count."""

from __future__ import annotations

import functools

from shmaccum.exceptions import UnknownTopicError
from shmaccum.sender.duties.duty import Duty, Shared

REFRESH_NS = 5_000_000_000
ASK_AGAIN_NS = 5_000_000
FULL_SHARE = 0.75
"""From this share of the table of topics on, unknown topics are reported."""
WANTED_NS = 50_000_000
"""The interval of checks for producers that wait for more partitions. Each check scans every topic."""
WANTED_FOR_NS = 1_000_000_000
"""The time for which more partitions are expected after a producer has requested them."""


class TopicPublisher(Duty):
    """Gets the partition counts of topics from the sink, and publishes them in the arena.

    A new topic is checked in the round after it was named. While the sink does not know a topic yet, it is checked
    every few milliseconds. All topics are checked every few seconds, because they may get more partitions, and every
    few milliseconds for a while after a producer has waited for a partition beyond the known count.
    """

    due_ns = 0

    def __init__(self, shared: Shared) -> None:
        self._native = shared.native
        self._sink = shared.sink
        self._report = shared.host.report
        self._trouble = shared.trouble
        self._seen_count = 0
        self._wanted_at_ns = 0
        self._is_wanted_until_ns = 0

    def run(self, now_ns: int) -> None:
        self._trouble.ask(functools.partial(self._publish, now_ns), None)

    def _publish(self, now_ns: int) -> None:
        if now_ns >= self._wanted_at_ns:
            self._wanted_at_ns = now_ns + WANTED_NS
            self._ask_again(now_ns)
        if now_ns >= self.due_ns or self.is_requested:
            self._check(now_ns)

    @property
    def is_requested(self) -> bool:
        """True if a topic was named since the last check."""
        return self._native.registered_topic_count != self._seen_count

    def _ask_again(self, now_ns: int) -> None:
        for topic in self._native.take_wanted_topics():
            self._sink.peer.ask_again(topic)
            self._is_wanted_until_ns = now_ns + WANTED_FOR_NS
            self.due_ns = now_ns

    def _check(self, now_ns: int) -> None:
        topics = self._native.topics()
        unknown_count = sum(not self._publish_one(topic) for topic in topics)
        self._warn_of_unknown(topics)
        self._seen_count = len(topics)
        is_changing = unknown_count or now_ns < self._is_wanted_until_ns
        self.due_ns = now_ns + (ASK_AGAIN_NS if is_changing else REFRESH_NS)

    def _warn_of_unknown(self, topics: list[str]) -> None:
        """Report unknown topics if the table is nearly full. A misspelt topic also keeps its entry in the arena."""
        room = self._native.geometry["topic_count"]
        if len(topics) < room * FULL_SHARE:
            return
        unknown = [topic for topic in topics if not self._native.topic_partition_count(topic)]
        if unknown:
            self._report(
                f"the arena can have {room} topics, and most names are taken: topics that the sink does not know take "
                f"places, as {unknown[0]!r}. Correct the programs that send to them, and recreate the arena"
            )

    def _publish_one(self, topic: str) -> bool:
        """Return False while the sink does not know the topic yet."""
        try:
            partition_count = self._sink.partition_count(topic)
        except UnknownTopicError as error:
            self._report(str(error))
            return True
        if partition_count is None:
            return False
        if partition_count != self._native.topic_partition_count(topic):
            self._native.set_topic_partition_count(topic, partition_count)
        return True
