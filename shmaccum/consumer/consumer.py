# SPDX-License-Identifier: Apache-2.0
"""The consumer of a log on this host, with the names and shapes of kafka-python's KafkaConsumer.

It reads the files of the log (`shmaccum.segment_log`): no server, no socket, no heartbeat. Batches are checked and
decoded by the native core. As in kafka-python, one thread at a time uses a consumer; `wakeup` alone may be called by
any other.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from shmaccum.config.consumer import ConsumerOptions
from shmaccum.consumer import arrow
from shmaccum.consumer.deserializers import Deserializers
from shmaccum.consumer.group import ConsumerGroup, OffsetAndMetadata
from shmaccum.consumer.news import News
from shmaccum.consumer.partition_flow import PartitionFlow
from shmaccum.consumer.record import ConsumerRecord
from shmaccum.exceptions import (
    ConsumerClosedError,
    ConsumerError,
    ConsumerStateError,
    InvalidArgumentError,
    LogPartitionNotFoundError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
    RecordDeserializationError,
)
from shmaccum.format.topic_partition import TopicPartition
from shmaccum.groups.membership import GroupMember
from shmaccum.segment_log.log_batch import LogBatch
from shmaccum.segment_log.reader import LogReader, OffsetAndTimestamp

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

LOG_PREFIX = "log:"
ARROW_SIZE_MAX = 64 << 20
"""Bytes of batches, as they lie in the log, that one `Consumer.poll_arrow` reads at most."""

Records = dict[TopicPartition, list[ConsumerRecord]]

_open: weakref.WeakSet[Consumer] = weakref.WeakSet()


class Consumer:
    """Reads topics of a log directory.

    Args:
        log: the directory, as ``log:DIR`` or as a path.
        topics: topics to subscribe to.
        options: see `ConsumerOptions`; names and defaults are those of Kafka's consumer.

    Attributes:
        options: the options, with the defaults of those that were not given.

    Raises:
        NotALogError: the directory is missing or holds something else.
        InvalidArgumentError: an option is unknown or has a wrong value.
    """

    def __init__(self, log: str | os.PathLike[str], *topics: str, **options: Any) -> None:
        self.options = ConsumerOptions.parse(options)
        self._reader = LogReader(os.fspath(log).removeprefix(LOG_PREFIX), verify_crc=self.options.check_crcs)
        if self.options.isolation_level == "read_committed" and not self._reader.is_gapless:
            raise InvalidArgumentError(
                f"isolation_level=read_committed is refused for {self._reader.path}, the log of a Kafka broker: its "
                "aborted records would be read; consume it through the broker, or with read_uncommitted"
            )
        self._deserializers = Deserializers(self.options.key_deserializer, self.options.value_deserializer)
        self._flows: dict[TopicPartition, PartitionFlow] = {}
        self._turn = 0
        self._topics: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        self._listener: Any = None
        self._is_assigned_by_hand = False
        self._iterated: PartitionFlow | None = None
        self._record_count = self._poll_count = self._byte_count = 0
        self._pid = os.getpid()
        self._group: ConsumerGroup | None = None
        if self.options.group_id is not None:
            self._group = ConsumerGroup(self._reader.path, self.options, self.client_id, self._count_of)
        self._news: News | None = News()
        _open.add(self)
        try:
            if topics:
                self.subscribe(topics)
        except BaseException:
            self._let_go()
            raise

    @property
    def client_id(self) -> str:
        """The name of this consumer in messages."""
        return self.options.client_id or f"consumer-{self._pid}"

    def _living(self) -> News:
        """The means to wait, of an open consumer of this process.

        Raises:
            ConsumerClosedError: the consumer was closed, or is the parent's.
        """
        if self._news is not None:
            return self._news
        if self._pid != os.getpid():
            raise ConsumerClosedError(
                f"this consumer of {self._reader.path} belongs to process {self._pid}, which forked this one: make a "
                "consumer of its own in each process"
            )
        raise ConsumerClosedError(f"this consumer of {self._reader.path} was closed: make a new one")

    # --- topics and partitions

    def topics(self) -> set[str]:
        """Every topic of the log."""
        return set(self._reader.topics())

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """The partitions of a topic; None when there is no such topic."""
        found = {place.partition for place in self._reader.topic_partitions() if place.topic == topic}
        return found or None

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
            self._group = ConsumerGroup(self._reader.path, self.options, self.client_id, self._count_of)
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
        places = [_place(partition) for partition in partitions]
        self._set_flows({place: self._flow(place) for place in places})
        self._is_assigned_by_hand = bool(places)

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are consumed now."""
        return set(self._flows)

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

    def _count_of(self, topic: str) -> int:
        """One more than the highest partition of a topic."""
        found = [place.partition for place in self._reader.topic_partitions() if place.topic == topic]
        return max(found, default=-1) + 1

    # --- the group

    def _share(self) -> None:
        """Tells the group which topics are wanted, if that is news, and takes part in what follows."""
        assert self._group is not None
        wanted = self.subscription()
        if wanted is not None:
            self._group.membership.subscribe(wanted)
            self._group.next_look_s = 0.0
            self._set_flows(self._flows)  # the lock file is watched from now on

    def _rebalance(self, group: ConsumerGroup) -> None:
        """Gives up the partitions that the plan has for others, and takes those that it has for this member."""
        member = group.membership
        member.look()
        self._give_up(group, member.locks.owned - member.wanted)
        member.take()
        begun = {place: self._flow(place) for place in sorted(member.locks.owned - set(self._flows))}
        if begun:
            self._set_flows(self._flows | begun)
            self._tell("on_partitions_assigned", set(begun))

    def _give_up(self, group: ConsumerGroup, places: set[TopicPartition]) -> None:
        """Commits, tells the listener, and lets other members have these partitions."""
        if not places:
            return
        lost = {place for place in places if not os.path.isdir(os.path.join(self._reader.path, str(place)))}
        group.maybe_commit(self._positions(places - lost), is_due=True)
        self._tell("on_partitions_revoked", places - lost)
        has_lost = hasattr(self._listener, "on_partitions_lost")
        self._tell("on_partitions_lost" if has_lost else "on_partitions_revoked", lost)
        self._set_flows({place: flow for place, flow in self._flows.items() if place not in places})
        group.membership.give_up(places)

    def _positions(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The positions of these partitions, of those that have one."""
        flows = [self._flows[place] for place in places if place in self._flows]
        return {flow.place: flow.position for flow in flows if flow.position >= 0}

    def _in_group(self) -> ConsumerGroup:
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
            ConsumerStateError: the consumer has no group.
            CommitFailedError: a partition is not assigned to this consumer.
            GroupBusyError: another member has been writing all the time; it is probably stopped.
            OSError: the file cannot be written.
        """
        group = self._in_group()
        wanted = self._positions(self._flows) if offsets is None else {_place(key): offsets[key] for key in offsets}
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
        found = self._in_group().committed(_place(partition))
        return found if metadata or found is None else found.offset

    def group_members(self) -> list[GroupMember]:
        """Every member of the group, with its process and partitions, and whether it is stopped.

        Raises:
            ConsumerStateError: the consumer has no group.
        """
        member = self._in_group().membership
        member.look()
        return member.members()

    def _tell(self, event: str, places: set[TopicPartition]) -> None:
        """Calls the listener, if it has a method of this name and there are partitions to tell."""
        told = getattr(self._listener, event, None)
        if told is not None and places:
            told(sorted(places))

    def _flow(self, place: TopicPartition, *, is_new: bool = False) -> PartitionFlow:
        if place in self._flows:
            return self._flows[place]
        partition = self._reader.partition(*place)
        if self._group is not None:
            return PartitionFlow(partition, self._group.start_of(place))
        return PartitionFlow(partition, partition.log_start_offset if is_new else -1)

    def _set_flows(self, flows: dict[TopicPartition, PartitionFlow]) -> None:
        for place, flow in self._flows.items():
            if place not in flows:
                self._byte_count += flow.byte_count
                flow.close()
        self._flows = flows
        shared = [self._group.membership.locks.path] if self._group is not None else []
        self._living().watch([self._reader.path, *shared, *(flow.partition.folder for flow in flows.values())])

    def _assigned(self, partition: TopicPartition) -> PartitionFlow:
        self._living()
        place = _place(partition)
        if place not in self._flows:
            raise ConsumerStateError(f"partition {place} is not assigned to this consumer: assign or subscribe first")
        return self._flows[place]

    def _chosen(self, partitions: Sequence[TopicPartition]) -> list[PartitionFlow]:
        """These partitions, or all assigned ones."""
        if not partitions and not self._flows:
            raise ConsumerStateError("no partition is assigned to this consumer: assign or subscribe first")
        return [self._assigned(place) for place in partitions or self._flows]

    # --- positions

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that a poll returns.

        Raises:
            ConsumerStateError: the partition is not assigned.
            NoOffsetForPartitionError: nothing says where to begin.
        """
        return self._placed(self._assigned(partition)).position

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Goes on at this offset.

        Raises:
            ConsumerStateError: the partition is not assigned.
            InvalidArgumentError: the offset is no whole number of 0 or more.
        """
        self._assigned(partition).seek(_offset(offset))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Goes to the first record that is still there.

        Args:
            partitions: default: all assigned ones.

        Raises:
            ConsumerStateError: one of them is not assigned, or none is.
        """
        for flow in self._chosen(partitions):
            flow.seek(flow.partition.log_start_offset)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Goes behind the last record.

        Args:
            partitions: default: all assigned ones.

        Raises:
            ConsumerStateError: one of them is not assigned, or none is.
        """
        for flow in self._chosen(partitions):
            flow.seek(flow.partition.log_end_offset)

    def _placed(self, flow: PartitionFlow) -> PartitionFlow:
        """The flow, with a position."""
        if flow.position < 0:
            flow.seek(self._start(flow, "has no position yet"))
        return flow

    def _start(self, flow: PartitionFlow, reason: str) -> int:
        """Where auto_offset_reset says to begin."""
        reset = self.options.auto_offset_reset
        if reset == "none":
            raise NoOffsetForPartitionError(
                f"partition {flow.place} {reason}, and auto_offset_reset is none: seek, or set it to earliest or latest"
            )
        return flow.partition.log_start_offset if reset == "earliest" else flow.partition.log_end_offset

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that is still there, of each partition.

        Raises:
            LogPartitionNotFoundError: the log has no such partition.
        """
        return {place: self._reader.partition(*place).log_start_offset for place in map(_place, partitions)}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset behind the last record, of each partition.

        Raises:
            LogPartitionNotFoundError: the log has no such partition.
        """
        return {place: self._reader.partition(*place).log_end_offset for place in map(_place, partitions)}

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record with this timestamp or a larger one, of each partition; None when there is none.

        Args:
            timestamps: milliseconds since 1970.

        Raises:
            LogPartitionNotFoundError: the log has no such partition.
        """
        return {
            _place(place): self._reader.partition(*place).offset_for_timestamp(timestamp_ms)
            for place, timestamp_ms in timestamps.items()
        }

    def highwater(self, partition: TopicPartition) -> int:
        """The offset behind the last record of an assigned partition.

        Raises:
            ConsumerStateError: the partition is not assigned.
        """
        return self._assigned(partition).partition.log_end_offset

    # --- pauses

    def pause(self, *partitions: TopicPartition) -> None:
        """Returns no records of these partitions until `resume`. Their positions stay.

        Raises:
            ConsumerStateError: one of them is not assigned; none is paused.
        """
        for flow in [self._assigned(partition) for partition in partitions]:
            flow.is_paused = True

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {place for place, flow in self._flows.items() if flow.is_paused}

    def resume(self, *partitions: TopicPartition) -> None:
        """Returns records of these partitions again.

        Raises:
            ConsumerStateError: one of them is not assigned; none is resumed.
        """
        for flow in [self._assigned(partition) for partition in partitions]:
            flow.is_paused = False

    # --- records

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Records:
        """The next records, by partition.

        Args:
            timeout_ms: how long to wait when there are none; 0 does not wait.
            max_records: the most that are returned; default: max_poll_records.

        Returns:
            Partitions without records are not in it. It is empty when the time is over, or `wakeup` was called.

        Raises:
            ConsumerClosedError: the consumer was closed, or belongs to the parent process.
            ConsumerStateError: there is neither a subscription nor an assignment.
            NoOffsetForPartitionError: nothing says where to begin, or the position is no longer in the log.
            RecordDeserializationError: a deserializer refuses the record at the position.
            CorruptLogError: damage in the log; `seek` passes it.
        """
        limit = self.options.max_poll_records if max_records is None else max_records
        if limit < 1:
            raise InvalidArgumentError(f"max_records must be at least 1, got {max_records}")
        found = self._wait(lambda: self._take(limit), timeout_ms / 1000)
        return self._intercepted(found) if found else {}

    def _intercepted(self, found: Records) -> Records:
        """The records as the interceptors leave them."""
        for interceptor in self.options.interceptors:
            found = _result_of(interceptor, found)
        return found

    def _wait(self, take: Callable[[], Any], timeout_s: float) -> Any:
        """The first find of `take`; None when the time is over, or `wakeup` was called."""
        news = self._living()
        if not self._flows and self.subscription() is None:
            raise ConsumerStateError("the consumer has neither a subscription nor an assignment: subscribe or assign")
        self._poll_count += 1
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._hear(news)
            found = take()
            if found or news.take_ring() or time.monotonic() >= deadline_s or news.wait(self._next_s(deadline_s)):
                return found

    def _next_s(self, deadline_s: float) -> float:
        """The time until which the consumer may sleep."""
        return deadline_s if self._group is None else min(deadline_s, self._group.next_look_s)

    def _hear(self, news: News) -> None:
        """Marks the partitions that may have more records than were read."""
        changed = news.take()
        for flow in self._flows.values():
            flow.may_have_more = flow.may_have_more or flow.partition.folder in changed
        if self._reader.path in changed:
            self._look_for_partitions()
        group = self._group
        if group is not None:
            group.maybe_commit(self._positions(self._flows))
            is_rung = group.membership.locks.path in news.heard
            if group.membership.is_member and group.is_look_due(is_rung=is_rung, has_watch=news.has_watch):
                self._rebalance(group)

    def _ready(self) -> Iterator[PartitionFlow]:
        """The partitions that may have records, in turn."""
        flows = list(self._flows.values())
        self._turn += 1
        for number in range(len(flows)):
            flow = flows[(self._turn + number) % len(flows)]
            if not flow.is_paused and (flow.has_records or flow.may_have_more):
                yield flow

    def _take(self, limit: int) -> Records:
        """Up to `limit` records of all partitions."""
        found: Records = {}
        count = 0
        for flow in self._ready():
            try:
                count += self._take_of(flow, limit - count, found)
            except Exception:
                if not found:
                    raise
                break  # records that were taken are handed out first; the next poll raises
            if count >= limit:
                break
        self._record_count += count
        return found

    def _take_of(self, flow: PartitionFlow, limit: int, found: Records) -> int:
        """Adds up to `limit` records of one partition; answers how many."""
        count = 0
        while count < limit and (records := self._peek(flow, limit - count)):
            done = self._deserialized(records, is_first=not count)
            found.setdefault(flow.place, []).extend(done)
            flow.advance(len(done))
            count += len(done)
            if len(done) < len(records):
                break
        return count

    def _deserialized(self, records: list[ConsumerRecord], *, is_first: bool) -> list[ConsumerRecord]:
        """The records up to one that is refused. Only a refused record that comes first raises."""
        try:
            return self._deserializers.apply(records)
        except RecordDeserializationError:
            if is_first:
                raise
            return []

    def _peek(self, flow: PartitionFlow, count: int) -> list[ConsumerRecord]:
        try:
            return self._placed(flow).peek(count)
        except OffsetOutOfRangeError:
            flow.seek(self._start(flow, f"has no offset {flow.position} in the log"))
            return flow.peek(count)
        except LogPartitionNotFoundError:
            if self._is_assigned_by_hand:
                raise
            flow.may_have_more = False  # its topic is being deleted; the look at the topics lets go of the partition
            return []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record. The iteration ends when none came for consumer_timeout_ms.

        Raises:
            ConsumerClosedError, NoOffsetForPartitionError, CorruptLogError: as `poll`.
        """
        found = self._next_of_batch()
        timeout_ms = self.options.consumer_timeout_ms
        deadline_s = time.monotonic() + timeout_ms / 1000 if timeout_ms >= 0 else float("inf")
        while found is None:
            left_s = deadline_s - time.monotonic()
            for place, records in self.poll(max(left_s, 0) * 1000, 1).items():
                self._iterated, found = self._flows.get(place), records[0]
            if found is None and left_s <= 0:
                raise StopIteration
        return found

    def _next_of_batch(self) -> ConsumerRecord | None:
        """The record behind the last one of an iteration, while its batch has more: no poll is needed for it."""
        flow = self._iterated
        if flow is None or flow.is_paused or not flow.has_records or self.options.interceptors:
            return None
        if self._flows.get(flow.place) is not flow:
            return None
        (record,) = self._deserializers.apply(flow.peek(1))
        flow.advance(1)
        self._record_count += 1
        return record

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[ConsumerRecord]:
        """Up to so many records of all partitions, as confluent_kafka's Consumer.consume.

        Args:
            num_messages: the most that are returned.
            timeout: seconds to wait for all of them; -1: for ever. The records that came until then are returned.

        Raises:
            InvalidArgumentError: num_messages is no number of 1 or more.
            ConsumerClosedError, NoOffsetForPartitionError, CorruptLogError: as `poll`.
        """
        if num_messages < 1:
            raise InvalidArgumentError(f"num_messages must be at least 1, got {num_messages}")
        deadline_s = float("inf") if timeout < 0 else time.monotonic() + timeout
        found: list[ConsumerRecord] = []
        while len(found) < num_messages:
            left_ms = max(deadline_s - time.monotonic(), 0) * 1000
            try:
                polled = self.poll(left_ms, num_messages - len(found))
            except Exception:
                if not found:
                    raise
                break  # records that came are handed out first; the next call raises
            for records in polled.values():
                found += records
            if time.monotonic() >= deadline_s:
                break
        return found

    def batches(self, timeout_ms: float | None = None) -> Iterator[tuple[TopicPartition, LogBatch]]:
        """Whole batches as they lie in the log, with their partition; the position is then behind the batch.

        The first batch may begin before the position. Transaction markers are left out.

        Args:
            timeout_ms: ends it when nothing came for so long; default: consumer_timeout_ms.

        Raises:
            ConsumerClosedError, NoOffsetForPartitionError, CorruptLogError: as `poll`.
        """
        limit_ms = self.options.consumer_timeout_ms if timeout_ms is None else timeout_ms
        while found := self._wait(self._take_batch, limit_ms / 1000 if limit_ms >= 0 else float("inf")):
            yield found

    def _take_batch(self) -> tuple[TopicPartition, LogBatch] | None:
        for flow in self._ready():
            while batch := self._next_batch(flow):
                if not batch.is_control:
                    self._record_count += batch.header.record_count
                    return flow.place, batch
        return None

    def _next_batch(self, flow: PartitionFlow) -> LogBatch | None:
        try:
            return self._placed(flow).next_batch()
        except OffsetOutOfRangeError:
            flow.seek(self._start(flow, f"has no offset {flow.position} in the log"))
            return flow.next_batch()

    def poll_arrow(self, timeout_ms: float = 0) -> Any:
        """The next records as a `pyarrow.Table`, at most 64 MiB of batches.

        The columns are topic, partition, offset, timestamp, timestamp_type, key, value and headers. Keys and values
        are binary; deserializers and interceptors do not see them.

        Args:
            timeout_ms: how long to wait when there are none; 0 does not wait.

        Raises:
            CodecMissingError: pyarrow is not installed, or no package for a compression.
            ConsumerClosedError, NoOffsetForPartitionError, CorruptLogError: as `poll`.
        """
        return self._wait(self._take_runs, timeout_ms / 1000) or arrow.table([])

    def _take_runs(self) -> Any:
        """A table of what is there, None when there is nothing; positions move only when the table is made."""
        runs: list[arrow.Run] = []
        size = 0
        for flow in self._ready():
            wanted = flow.position
            run = self._run(flow, ARROW_SIZE_MAX - size, is_first=not runs)
            size += sum(batch.size for batch in run)
            if run:
                # A reset of the position may have led to batches before the wanted one.
                first = wanted if run[0].base_offset <= wanted < run[0].next_offset else run[0].base_offset
                runs.append(arrow.Run(flow.place, first, run))
        try:
            found = arrow.table(runs) if runs else None
        except Exception:
            for run_of in runs:
                self._flows[run_of.place].seek(run_of.first_offset)
            raise
        if found is None or not found.num_rows:
            return None
        self._record_count += found.num_rows
        return found

    def _run(self, flow: PartitionFlow, size: int, *, is_first: bool) -> list[LogBatch]:
        """Batches of one partition, of about `size` bytes. An error raises only when nothing was read before it."""
        run: list[LogBatch] = []
        try:
            self._placed(flow)
            while size > 0 and (batch := self._next_batch(flow)):
                size -= batch.size
                run.append(batch)
        except Exception:
            if is_first and not run:
                raise
        return run

    # --- the rest

    def wakeup(self) -> None:
        """Ends a wait of `poll`, or of the next one, at once; from any thread.

        Raises:
            ConsumerClosedError: the consumer was closed, or belongs to the parent process.
        """
        self._living().ring()

    def metrics(self) -> dict[str, dict[str, float]]:
        """Group -> name -> value, with the names of Kafka's consumer."""
        lags = [
            max(flow.partition.log_end_offset - flow.position, 0) for flow in self._flows.values() if flow.position >= 0
        ]
        byte_count = self._byte_count + sum(flow.byte_count for flow in self._flows.values())
        return {
            "consumer-fetch-manager-metrics": {
                "records-consumed-total": self._record_count,
                "bytes-consumed-total": byte_count,
                "records-lag-max": max(lags, default=0),
            },
            "consumer-metrics": {"poll-total": self._poll_count},
            "consumer-coordinator-metrics": {
                "assigned-partitions": len(self._flows),
                "commit-total": self._group.commit_count if self._group is not None else 0,
            },
        }

    def close(self, autocommit: bool = True) -> None:
        """Lets go of everything. Doing it twice does nothing.

        Args:
            autocommit: with enable_auto_commit, commit the positions before.
        """
        if self._news is None:
            return
        try:
            if self._group is not None:
                self._group.maybe_commit(self._positions(self._flows) if autocommit else {}, is_due=True)
                self._tell("on_partitions_revoked", set(self._group.membership.locks.owned))
        finally:
            self._let_go()

    def _let_go(self) -> None:
        for flow in self._flows.values():
            flow.close()
        self._flows = {}
        if self._group is not None:
            self._group.membership.leave()
        if self._news is not None:
            self._news.close()
            self._news = None

    def __del__(self) -> None:
        """A consumer that nobody uses any more gives its partitions up."""
        if getattr(self, "_news", None) is not None:
            with contextlib.suppress(OSError):
                self._let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Closes the consumer. After an error nothing is committed by itself, so its records are read again."""
        self.close(autocommit=error is None)

    def __repr__(self) -> str:
        return f"<Consumer {self.client_id!r} of {self._reader.path!r}, {len(self._flows)} partitions>"


def _result_of(interceptor: Any, records: Records) -> Records:
    """The records that an interceptor returns. As in Kafka, an interceptor that fails is passed over."""
    try:
        result: Records = interceptor.on_consume(records)
    except Exception:
        logger.exception("the interceptor %r failed in on_consume and was passed over", interceptor)
        return records
    return result


def _place(partition: Any) -> TopicPartition:
    """A partition as a user names it; kafka-python's TopicPartition is as good as ours."""
    try:
        topic, number = partition
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{partition!r} is no TopicPartition(topic, partition)") from None
    if not isinstance(topic, str) or not isinstance(number, int):
        raise InvalidArgumentError(f"{partition!r} is no TopicPartition(topic, partition)")
    return TopicPartition(topic, number)


def _offset(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise InvalidArgumentError(f"an offset must be a whole number of 0 or more, got {given!r}")
    return given


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


def _let_go_in_child() -> None:
    """A forked child lets go of its parent's consumers."""
    for consumer in list(_open):
        with contextlib.suppress(OSError):
            consumer._let_go()  # noqa: SLF001


os.register_at_fork(after_in_child=_let_go_in_child)
