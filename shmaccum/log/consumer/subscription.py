# SPDX-License-Identifier: Apache-2.0
"""The topics of a consumer: all of their partitions, or those that its group assigns to it. See `positions`."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config.consumer import ConsumerOptions
from shmaccum.exceptions import ConsumerError, ConsumerStateError, InvalidArgumentError
from shmaccum.log.consumer.group import REVOCATION_TIMEOUT_S, GroupMembership, OffsetAndMetadata
from shmaccum.log.consumer.positions import Positions, place_of
from shmaccum.log.groups.members import LocalMember

logger = logging.getLogger("shmaccum.log.consumer.sharing")  # users configure this name


class Subscription(Positions):
    """The topics that a consumer subscribes to, its assigned partitions, and the offsets of its group."""

    def __init__(self, log: str | os.PathLike[str], options: ConsumerOptions) -> None:
        super().__init__(log, options)
        self._topics: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        self._listener: Any = None
        self._is_assigned_by_hand = False

    def subscribe(self, topics: Iterable[str] = (), pattern: str | None = None, listener: Any = None) -> None:
        """Consume all partitions of these topics, including future ones. With a group_id, consume this member's share.

        Args:
            topics: their names. A topic that does not exist is consumed from its first record on once it is created.
            pattern: instead of names, a regular expression that matches names from their start.
            listener: an object whose methods ``on_partitions_assigned``, ``on_partitions_revoked`` and
                ``on_partitions_lost`` are called with lists of the partitions that change. A partition is lost if its
                topic was deleted. Without ``on_partitions_lost``, ``on_partitions_revoked`` is called for it.

        Raises:
            ConsumerStateError: if partitions were assigned by `assign`, or the group has a living member with this
                group_instance_id, or no common assignor.
            InvalidArgumentError: if both or neither of topics and pattern were given, or the pattern is invalid.
        """
        self._open_waiter()
        names = _names(topics)
        if self._is_assigned_by_hand:
            raise ConsumerStateError("partitions were assigned by assign(): call unsubscribe() before subscribe()")
        if bool(names) == (pattern is not None):
            raise InvalidArgumentError("subscribe takes either topics or a pattern: give one of them")
        self._pattern = None if pattern is None else _compiled(pattern)
        self._topics = names
        self._listener = listener
        self._find_partitions(is_first=True)

    def subscription(self) -> set[str] | None:
        """The topics of `subscribe`, or those that its pattern matches now, or None without a subscription."""
        if not self._topics and self._pattern is None:
            return None
        return set(self._topics) or {topic for topic in self.topics() if self._wants(topic)}

    def unsubscribe(self) -> None:
        """Consume nothing until the next `subscribe` or `assign`."""
        self._open_waiter()
        if self._group is not None and self._group.membership.is_member:
            self._release_partitions(self._group, self._group.membership.locks.owned.copy())
            self._group.membership.leave()
            self._group = self._new_group()
        self._topics, self._pattern, self._is_assigned_by_hand = (), None, False
        self._set_flows({})

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Consume these partitions. A partition that was assigned before keeps its position.

        Raises:
            ConsumerStateError: if `subscribe` was called.
            LogPartitionNotFoundError: if a partition does not exist. The former ones stay assigned.
        """
        self._open_waiter()
        if self._topics or self._pattern is not None:
            raise ConsumerStateError("topics were subscribed to by subscribe(): call unsubscribe() before assign()")
        places = [place_of(partition) for partition in partitions]
        self._set_flows({place: self._flow(place) for place in places})
        self._is_assigned_by_hand = bool(places)

    def _wants(self, topic: str) -> bool:
        return topic in self._topics or (self._pattern is not None and self._pattern.match(topic) is not None)

    def _find_partitions(self, *, is_first: bool = False) -> None:
        """Add new partitions, and drop those whose topic was deleted.

        A partition that appears after the first look-up is read from its first record on, so no record is missed.
        """
        if self._group is not None:
            self._subscribe_in_group()
        elif self._topics or self._pattern is not None:
            former = set(self._flows)
            wanted = [place for place in self._reader.topic_partitions() if self._wants(place.topic)]
            self._set_flows({place: self._flow(place, is_new=not is_first) for place in wanted})
            self._call_listener("on_partitions_revoked", former - set(wanted))
            self._call_listener("on_partitions_assigned", set(wanted) - former)

    def _call_listener(self, event: str, places: set[TopicPartition]) -> None:
        """Call a method of the listener, if it exists and there are partitions to report."""
        method = getattr(self._listener, event, None)
        if method is not None and places:
            method(sorted(places))

    # --- the group

    def _subscribe_in_group(self) -> None:
        """Subscribe in the group if the topics have changed, and take part in the following plans."""
        assert self._group is not None
        wanted = self.subscription()
        if wanted is not None:
            if not self._group.membership.wants(wanted):
                self._group.membership.subscribe(wanted)
            self._set_flows(self._flows)  # the lock file is watched from now on
            self._open_waiter().request_check()

    def _rebalance(self, group: GroupMembership, *, is_checked: bool) -> None:
        """Release the partitions that the plan assigns to others, and take those that it assigns to this member."""
        member = group.membership
        try:
            is_current = group.check_plan(is_checked=is_checked)
        finally:  # the group's files may have been removed, and another member may have taken partitions since
            self._drop_lost(set(self._flows) - member.locks.owned)
        self._open_waiter().checked(member.plan, group.pause_s)
        if not is_current:
            return
        self._release_partitions(group, member.locks.owned - member.wanted)
        member.take()
        begun = {place: self._flow(place) for place in sorted(member.locks.owned - set(self._flows))}
        if begun:
            self._set_flows(self._flows | begun)
            self._call_listener("on_partitions_assigned", set(begun))

    def _release_partitions(self, group: GroupMembership, places: set[TopicPartition]) -> None:
        """Commit, call the listener, and release these partitions for other members."""
        if not places:
            return
        lost = places.difference(self._reader.topic_partitions())
        ends = {place: offset for place, offset in self._positions().items() if place in places - lost}
        group.auto_commit(ends, REVOCATION_TIMEOUT_S)
        self._call_listener("on_partitions_revoked", places - lost)
        self._drop_lost(lost)
        self._set_flows({place: flow for place, flow in self._flows.items() if place not in places})
        group.membership.give_up(places)

    def _drop_lost(self, places: set[TopicPartition]) -> None:
        """Call the listener for partitions that this member no longer owns, and stop reading them."""
        if places:
            has_lost = hasattr(self._listener, "on_partitions_lost")
            self._call_listener("on_partitions_lost" if has_lost else "on_partitions_revoked", places)
            self._set_flows({place: flow for place, flow in self._flows.items() if place not in places})

    def _in_group(self) -> GroupMembership:
        self._open_waiter()
        if self._group is None:
            raise ConsumerStateError("this consumer has no group: set group_id to commit offsets")
        return self._group

    def commit(self, offsets: Mapping[TopicPartition, Any] | None = None, timeout_ms: float = 60_000) -> None:
        """Commit offsets of this member's partitions, all of them or none.

        Args:
            offsets: the next offset to consume of each partition, as a number or an `OffsetAndMetadata`. Default: the
                positions after the records that were returned.
            timeout_ms: the longest time to wait while another member is writing.

        Raises:
            ConsumerStateError: if the consumer has no group, or a partition is not assigned, or its topic was deleted.
            GroupBusyError: if another member, which is probably stopped, has been writing all the time.
            OSError: if the file cannot be written.
        """
        group = self._in_group()
        wanted = self._positions() if offsets is None else {place_of(key): offsets[key] for key in offsets}
        for place in wanted:
            if place in self._flows and self._is_of_former_topic(self._flows[place]):
                raise ConsumerStateError(
                    f"the topic of {place} was deleted since its records were read: poll again, and commit offsets of "
                    "the present topic"
                )
        group.commit(wanted, timeout_ms / 1000)

    def commit_async(
        self, offsets: Mapping[TopicPartition, Any] | None = None, callback: Callable[[Any, Any], None] | None = None
    ) -> None:
        """As `commit`, with the result by callback. A commit takes microseconds, so it is made during this call.

        Args:
            offsets: as for `commit`.
            callback: called with the offsets, and with None or the error.

        Raises:
            ConsumerStateError: if the consumer has no group.
        """
        self._in_group()
        failure: Exception | None = None
        try:
            self.commit(offsets)
        except (ConsumerError, OSError) as error:
            failure = error
        if callback is not None:
            callback(offsets, failure)
        elif failure is not None:
            logger.warning("a commit of the group %r failed: %s", self.options.group_id, failure)

    def committed(self, partition: TopicPartition, metadata: bool = False) -> int | OffsetAndMetadata | None:
        """The offset that the group has committed for a partition, or None.

        Args:
            metadata: If True, return an `OffsetAndMetadata`.

        Raises:
            ConsumerStateError: if the consumer has no group.
            CorruptLogError: if the offsets file is invalid.
        """
        found = self._in_group().committed(place_of(partition))
        return found if metadata or found is None else found.offset

    def group_members(self) -> list[LocalMember]:
        """Every member of the group, with its process and partitions, and whether it lives and is stopped.

        A consumer that is not a member sees the last plan that the members published.

        Raises:
            ConsumerStateError: if the consumer has no group.
        """
        member = self._in_group().membership
        member.check_plan()
        return member.members()


def _names(topics: Iterable[Any]) -> tuple[str, ...]:
    if isinstance(topics, str):
        raise InvalidArgumentError(f"topics must be a list of names, got the text {topics!r}")
    names = tuple(topics)
    if not all(isinstance(name, str) and name for name in names):
        raise InvalidArgumentError(f"topics must be a list of names, got {list(names)!r}")
    return names


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidArgumentError(f"{pattern!r} is not a regular expression: {error}") from None
