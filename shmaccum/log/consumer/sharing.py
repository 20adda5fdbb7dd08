# SPDX-License-Identifier: Apache-2.0
"""The topics of a consumer: all of their partitions, or the part that its group gives to it. See `positions`."""

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

logger = logging.getLogger(__name__)


class Sharing(Positions):
    """The topics that a consumer subscribes to, the partitions that it is assigned, and the offsets of its group."""

    def __init__(self, log: str | os.PathLike[str], options: ConsumerOptions) -> None:
        super().__init__(log, options)
        self._topics: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        self._listener: Any = None
        self._is_assigned_by_hand = False

    def subscribe(self, topics: Iterable[str] = (), pattern: str | None = None, listener: Any = None) -> None:
        """Consumes all partitions of these topics, also of those that come later; with a group_id, this member's share.

        Args:
            topics: their names. A topic that is missing is consumed from its first record on when it is created.
            pattern: instead of names, a regular expression that matches names from their start.
            listener: an object whose ``on_partitions_assigned``, ``on_partitions_revoked`` and ``on_partitions_lost``
                get lists of the partitions that change. A lost partition is one whose topic was deleted; a listener
                without ``on_partitions_lost`` is told that it was revoked.

        Raises:
            ConsumerStateError: partitions were assigned by `assign`; or the group has a living member with this
                group_instance_id, or no common assignor.
            InvalidArgumentError: both or none of topics and pattern were given, or the pattern is none.
        """
        self._living()
        names = _names(topics)
        if self._is_assigned_by_hand:
            raise ConsumerStateError("partitions were assigned by assign(): call unsubscribe() before subscribe()")
        if bool(names) == (pattern is not None):
            raise InvalidArgumentError("subscribe takes topics or a pattern: give one of them")
        self._pattern = None if pattern is None else _compiled(pattern)
        self._topics = names
        self._listener = listener
        self._look_for_partitions(is_first=True)

    def subscription(self) -> set[str] | None:
        """The topics of `subscribe`, or those that its pattern matches now; None without a subscription."""
        if not self._topics and self._pattern is None:
            return None
        return set(self._topics) or {topic for topic in self.topics() if self._wants(topic)}

    def unsubscribe(self) -> None:
        """Consumes nothing any more, until the next `subscribe` or `assign`."""
        self._living()
        if self._group is not None and self._group.membership.is_member:
            self._give_up(self._group, self._group.membership.locks.owned.copy())
            self._group.membership.leave()
            self._group = self._new_group()
        self._topics, self._pattern, self._is_assigned_by_hand = (), None, False
        self._set_flows({})

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Consumes these partitions. A partition that was assigned before keeps its position.

        Raises:
            ConsumerStateError: topics were subscribed to.
            LogPartitionNotFoundError: the log has no such partition; the former ones stay assigned.
        """
        self._living()
        if self._topics or self._pattern is not None:
            raise ConsumerStateError("topics were subscribed to by subscribe(): call unsubscribe() before assign()")
        places = [place_of(partition) for partition in partitions]
        self._set_flows({place: self._flow(place) for place in places})
        self._is_assigned_by_hand = bool(places)

    def _wants(self, topic: str) -> bool:
        return topic in self._topics or (self._pattern is not None and self._pattern.match(topic) is not None)

    def _look_for_partitions(self, *, is_first: bool = False) -> None:
        """Takes partitions that are new, and lets go of those whose topic was deleted.

        A partition that comes after the first look is read from its first record on, so none of its records is missed.
        """
        if self._group is not None:
            self._share()
        elif self._topics or self._pattern is not None:
            former = set(self._flows)
            wanted = [place for place in self._reader.topic_partitions() if self._wants(place.topic)]
            self._set_flows({place: self._flow(place, is_new=not is_first) for place in wanted})
            self._tell("on_partitions_revoked", former - set(wanted))
            self._tell("on_partitions_assigned", set(wanted) - former)

    def _tell(self, event: str, places: set[TopicPartition]) -> None:
        """Calls the listener, if it has a method of this name and there are partitions to tell."""
        told = getattr(self._listener, event, None)
        if told is not None and places:
            told(sorted(places))

    # --- the group

    def _share(self) -> None:
        """Tells the group which topics are wanted, if that is news, and takes part in the plans that follow."""
        assert self._group is not None
        wanted = self.subscription()
        if wanted is not None:
            if not self._group.membership.wants(wanted):
                self._group.membership.subscribe(wanted)
            self._set_flows(self._flows)  # the lock file is watched from now on
            self._living().strike()

    def _rebalance(self, group: GroupMembership, *, is_told: bool) -> None:
        """Gives up the partitions that the plan has for others, and takes those that it has for this member."""
        member = group.membership
        try:
            is_current = group.look(is_told=is_told)
        finally:  # the group's files may have been removed, and another member has taken partitions since
            self._lose(set(self._flows) - member.locks.owned)
        self._living().looked(member.plan, group.pause_s)
        if not is_current:
            return
        self._give_up(group, member.locks.owned - member.wanted)
        member.take()
        begun = {place: self._flow(place) for place in sorted(member.locks.owned - set(self._flows))}
        if begun:
            self._set_flows(self._flows | begun)
            self._tell("on_partitions_assigned", set(begun))

    def _give_up(self, group: GroupMembership, places: set[TopicPartition]) -> None:
        """Commits, tells the listener, and lets other members have these partitions."""
        if not places:
            return
        lost = places.difference(self._reader.topic_partitions())
        ends = {place: offset for place, offset in self._positions().items() if place in places - lost}
        group.commit_by_itself(ends, REVOCATION_TIMEOUT_S)
        self._tell("on_partitions_revoked", places - lost)
        self._lose(lost)
        self._set_flows({place: flow for place, flow in self._flows.items() if place not in places})
        group.membership.give_up(places)

    def _lose(self, places: set[TopicPartition]) -> None:
        """Tells the listener of partitions that are this member's no more, and reads them no longer."""
        if places:
            has_lost = hasattr(self._listener, "on_partitions_lost")
            self._tell("on_partitions_lost" if has_lost else "on_partitions_revoked", places)
            self._set_flows({place: flow for place, flow in self._flows.items() if place not in places})

    def _in_group(self) -> GroupMembership:
        self._living()
        if self._group is None:
            raise ConsumerStateError("this consumer has no group: set group_id to commit offsets")
        return self._group

    def commit(self, offsets: Mapping[TopicPartition, Any] | None = None, timeout_ms: float = 60_000) -> None:
        """Commits offsets of this member's partitions, all of them or none.

        Args:
            offsets: the next offset to consume, of each partition: a number, or an `OffsetAndMetadata`. default: the
                positions behind the records that were returned.
            timeout_ms: the longest time to wait for another member that writes.

        Raises:
            ConsumerStateError: the consumer has no group, a partition is not assigned to it, or its topic was deleted.
            GroupBusyError: another member has been writing all the time; it is probably stopped.
            OSError: the file cannot be written.
        """
        group = self._in_group()
        wanted = self._positions() if offsets is None else {place_of(key): offsets[key] for key in offsets}
        for place in wanted:
            if place in self._flows and self._is_of_former_topic(self._flows[place]):
                raise ConsumerStateError(
                    f"the topic of {place} was deleted since its records were read: poll, and commit offsets of the "
                    "topic that is there then"
                )
        group.commit(wanted, timeout_ms / 1000)

    def commit_async(
        self, offsets: Mapping[TopicPartition, Any] | None = None, callback: Callable[[Any, Any], None] | None = None
    ) -> None:
        """As `commit`, with the result by callback. A commit takes microseconds, so it is made at once.

        Args:
            offsets: as for `commit`.
            callback: called with the offsets, and with None or the error.

        Raises:
            ConsumerStateError: the consumer has no group.
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
        """The offset that the group has committed for a partition; None without one.

        Args:
            partition: any partition.
            metadata: return an `OffsetAndMetadata`.

        Raises:
            ConsumerStateError: the consumer has no group.
            CorruptLogError: the file of the offsets makes no sense.
        """
        found = self._in_group().committed(place_of(partition))
        return found if metadata or found is None else found.offset

    def group_members(self) -> list[LocalMember]:
        """Every member of the group, with its process and partitions, and whether it lives and is stopped.

        A consumer that is no member sees the plan as the members published it last.

        Raises:
            ConsumerStateError: the consumer has no group.
        """
        member = self._in_group().membership
        member.look()
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
        raise InvalidArgumentError(f"{pattern!r} is no regular expression: {error}") from None
