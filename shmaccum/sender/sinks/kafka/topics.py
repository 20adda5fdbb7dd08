# SPDX-License-Identifier: Apache-2.0
"""The topics of the cluster, their partition counts, and the time limit for unknown topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from shmaccum.common import clock
from shmaccum.exceptions import UnknownTopicError
from shmaccum.sender.sinks.kafka.errors import (
    INVALID_TOPIC_EXCEPTION,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    sentence,
)

PERMANENT_ERRORS = frozenset({INVALID_TOPIC_EXCEPTION, TOPIC_AUTHORIZATION_FAILED})


class TopicStateView(Protocol):
    partition_count: int | None
    error_code: int


class Metadata(Protocol):
    """The part of the client that this module needs."""

    @property
    def is_bootstrapped(self) -> bool: ...

    def watch_topic(self, topic: str) -> None: ...

    def unwatch_topic(self, topic: str) -> None: ...

    def topic_state(self, topic: str) -> TopicStateView: ...


class RequestedTopics:
    """The topics that producers have requested.

    Args:
        metadata: of the cluster.
        max_block_ms: how long a topic may be unknown to a cluster that responds.
        now_s: the clock.
    """

    def __init__(self, metadata: Metadata, max_block_ms: int, now_s: Callable[[], float] = clock.monotonic) -> None:
        self._metadata = metadata
        self._max_block_s = max_block_ms / 1000
        self._now_s = now_s
        self._counts: dict[str, int] = {}
        self._missing_since: dict[str, float] = {}

    def partition_count(self, topic: str) -> int | None:
        """Return the partition count of the topic, or None until it is known, or until the broker has created it.

        Raises:
            UnknownTopicError: the name is not allowed, the user may not see it, or it was unknown for `max_block_ms`.
        """
        self._watch(topic)
        state = self._metadata.topic_state(topic)
        if state.partition_count is not None:
            self._counts[topic] = state.partition_count
            self._missing_since.pop(topic, None)
        elif topic not in self._counts:
            self._check_missing_time(topic, state.error_code)
        # A topic with partitions keeps their number while its metadata is incomplete.
        return self._counts.get(topic)

    def _watch(self, topic: str) -> None:
        try:
            self._metadata.watch_topic(topic)
        except (ValueError, TypeError) as error:
            raise UnknownTopicError(f"{topic!r} is not a valid topic name: {error}") from None

    def _check_missing_time(self, topic: str, error_code: int) -> None:
        if error_code in PERMANENT_ERRORS:
            self._give_up(topic, error_code, "")
        if not self._metadata.is_bootstrapped:
            return
        since = self._missing_since.setdefault(topic, self._now_s())
        if self._now_s() - since >= self._max_block_s:
            self._give_up(topic, error_code or UNKNOWN_TOPIC_OR_PARTITION, f" for {self._max_block_s:g} s")

    def _give_up(self, topic: str, error_code: int, how_long: str) -> None:
        """Raise, and stop waiting. A later call waits again as long, because the topic may have been created."""
        self._metadata.unwatch_topic(topic)
        self._missing_since.pop(topic, None)
        raise UnknownTopicError(
            f"the cluster has no topic {topic!r} that we may write to{how_long} ({sentence(error_code)}): "
            "create it, or let the broker do it (auto.create.topics.enable)"
        )
