# SPDX-License-Identifier: Apache-2.0
"""The partitions of a consumer, and its position in each.

A `Consumer` has three layers: positions, `subscription` (topics and the group), and `consumer` (records).
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config.consumer import MEMORYVIEW, ConsumerOptions
from shmaccum.exceptions import (
    ConsumerStateError,
    InvalidArgumentError,
)
from shmaccum.log.consumer.change_waiter import ChangeWaiter, close_forgotten, forget
from shmaccum.log.consumer.group import GroupMembership
from shmaccum.log.consumer.partition_flow import PartitionFlow
from shmaccum.log.files.log_batch import Views
from shmaccum.log.files.reader import OFFSET_MAX, IsolationLevel, LogReader, OffsetAndTimestamp, PartitionReader
from shmaccum.log.files.topic_ids import TopicIds
from shmaccum.log.groups.plan import PARTITION_MAX

logger = logging.getLogger(__name__)

LOG_PREFIX = "log:"

_open: weakref.WeakSet[Positions] = weakref.WeakSet()


class Positions:
    """The partitions that a consumer reads, its positions and pauses, and the object that waits for changes.

    Args:
        log: the directory, as ``log:DIR`` or as a path.
        options: the options of the consumer.

    Attributes:
        options: the options, with defaults for those that were not given.

    Raises:
        NotALogError: if the directory does not exist or is not a log.
        InvalidArgumentError: if an option does not fit the log.
    """

    def __init__(self, log: str | os.PathLike[str], options: ConsumerOptions) -> None:
        self.options = options
        path, isolation_level = os.fspath(log).removeprefix(LOG_PREFIX), cast(IsolationLevel, options.isolation_level)
        self._reader = LogReader(path, verify_crc=options.check_crcs, isolation_level=isolation_level)
        self._views = Views(options.key_deserializer == MEMORYVIEW, options.value_deserializer == MEMORYVIEW)
        self._ids = TopicIds(self._reader.path)
        self._flows: dict[TopicPartition, PartitionFlow] = {}
        self._byte_count = 0
        self._pid = os.getpid()
        self._group: GroupMembership | None = None
        if options.group_id is not None:
            self._group = self._new_group()
        self._waiter: ChangeWaiter | None = ChangeWaiter()
        _open.add(self)

    def _new_group(self) -> GroupMembership:
        return GroupMembership(self._reader.path, self.options, self.client_id, self._count_of)

    @property
    def client_id(self) -> str:
        """The name of this consumer in messages."""
        return self.options.client_id or f"consumer-{self._pid}"

    def _open_waiter(self) -> ChangeWaiter:
        """The object that waits, if the consumer is open and belongs to this process.

        Raises:
            ConsumerStateError: if the consumer was closed, or belongs to the parent process.
        """
        close_forgotten()
        if self._waiter is not None:
            return self._waiter
        if self._pid != os.getpid():
            raise ConsumerStateError(
                f"this consumer of {self._reader.path} belongs to process {self._pid}, which forked this one: create a "
                "separate consumer in each process"
            )
        raise ConsumerStateError(f"this consumer of {self._reader.path} was closed: create a new one")

    # --- topics and partitions

    def topics(self) -> set[str]:
        """Every topic of the log."""
        return set(self._reader.topics())

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        """The partitions of a topic, or None if the topic does not exist."""
        found = {place.partition for place in self._reader.topic_partitions() if place.topic == topic}
        return found or None

    def assignment(self) -> set[TopicPartition]:
        """The partitions that are assigned now."""
        return set(self._flows)

    def _count_of(self, topic: str) -> int:
        """One more than the highest partition of a topic."""
        places = self._reader.topic_partitions()  # sorted
        end = bisect.bisect(places, TopicPartition(topic, PARTITION_MAX))
        return places[end - 1].partition + 1 if end and places[end - 1].topic == topic else 0

    def _flow(self, place: TopicPartition, *, is_new: bool = False) -> PartitionFlow:
        if place in self._flows:
            return self._flows[place]
        partition = self._reader.partition(*place)
        position = self._first_position(partition, is_new=is_new)
        return PartitionFlow(partition, position, self._views, self._ids.of(place.topic))

    def _first_position(self, partition: PartitionReader, *, is_new: bool) -> int:
        """The committed offset of the group. Without a group, the start of a new partition, or -1 if undetermined."""
        if self._group is not None:
            return self._group.start_of(partition.place)
        return partition.log_start_offset if is_new else -1

    def _set_flows(self, flows: dict[TopicPartition, PartitionFlow]) -> None:
        for place, flow in self._flows.items():
            if place not in flows:
                self._byte_count += flow.byte_count
                flow.close()
        self._flows = flows
        member = self._group.membership if self._group is not None and self._group.membership.is_member else None
        self._open_waiter().watch([self._reader.path, *(flow.partition.folder for flow in flows.values())], member)

    def _assigned(self, partition: TopicPartition) -> PartitionFlow:
        self._open_waiter()
        place = place_of(partition)
        if place not in self._flows:
            raise ConsumerStateError(f"partition {place} is not assigned to this consumer: assign or subscribe first")
        return self._flows[place]

    def _chosen(self, partitions: Sequence[TopicPartition]) -> list[PartitionFlow]:
        """These partitions, or all assigned ones if empty."""
        if not partitions and not self._flows:
            raise ConsumerStateError("no partition is assigned to this consumer: assign or subscribe first")
        return [self._assigned(place) for place in partitions or self._flows]

    # --- positions

    def position(self, partition: TopicPartition) -> int:
        """The offset of the next record that a poll returns.

        Raises:
            ConsumerStateError: if the partition is not assigned, or auto_offset_reset is none and it has no position.
        """
        return self._with_position(self._assigned(partition)).position

    def _positions(self) -> dict[TopicPartition, int]:
        """The positions of all assigned partitions that have one, and whose topic was not deleted."""
        return {
            place: flow.position
            for place, flow in self._flows.items()
            if flow.position >= 0 and not self._is_of_former_topic(flow)
        }

    def _is_of_former_topic(self, flow: PartitionFlow) -> bool:
        """True if the topic of the position was deleted. The position is then invalid for a new topic of this name."""
        if flow.topic_id is None:
            flow.topic_id = self._ids.of(flow.place.topic)
        return flow.topic_id is not None and self._ids.is_another(flow.place.topic, flow.topic_id)

    def _leave_former_topics(self) -> None:
        """In topics that were deleted and created again, start at the position that auto_offset_reset defines."""
        former = [flow for flow in self._flows.values() if self._is_of_former_topic(flow) and self._is_there(flow)]
        for flow in former:
            self._reset_position(flow, f"was deleted and created again, and position {flow.position} was in the former")
        if former:
            self._set_flows(self._flows)  # other folders must be watched

    def _is_there(self, flow: PartitionFlow) -> bool:
        return self._ids.of(flow.place.topic) is not None

    def _reset_position(self, flow: PartitionFlow, reason: str) -> None:
        """Move to the position that auto_offset_reset defines, and log a warning.

        Raises:
            ConsumerStateError: if auto_offset_reset is none.
        """
        flow.partition.forget_transactions()
        position = self._start(flow, reason)
        logger.warning("partition %s %s: its records are read from offset %d on", flow.place, reason, position)
        flow.topic_id = self._ids.of(flow.place.topic)
        flow.seek(position)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at this offset.

        Raises:
            ConsumerStateError: if the partition is not assigned.
            InvalidArgumentError: if the offset is not a whole number of 0 or more.
        """
        self._assigned(partition).seek(_offset(offset))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Move to the first available record.

        Args:
            partitions: Default: all assigned ones.

        Raises:
            ConsumerStateError: if one of them is not assigned, or none is.
        """
        for flow in self._chosen(partitions):
            flow.seek(flow.partition.log_start_offset)

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Move past the last record. Arguments and errors are those of `seek_to_beginning`."""
        for flow in self._chosen(partitions):
            flow.seek(flow.partition.log_end_offset)

    def _with_position(self, flow: PartitionFlow) -> PartitionFlow:
        """The flow, once it has a position."""
        if flow.position < 0:
            flow.seek(self._start(flow, "has no position yet"))
        return flow

    def _start(self, flow: PartitionFlow, reason: str) -> int:
        """The position that auto_offset_reset defines."""
        reset = self.options.auto_offset_reset
        if reset == "none":
            raise ConsumerStateError(
                f"partition {flow.place} {reason}, and auto_offset_reset is none: seek, or set it to earliest or latest"
            )
        return flow.partition.log_start_offset if reset == "earliest" else flow.partition.log_end_offset

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first available offset of each partition.

        Raises:
            LogPartitionNotFoundError: if a partition does not exist.
        """
        return {place: self._reader.partition(*place).log_start_offset for place in map(place_of, partitions)}

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset after the last record that may be read, of each partition. With read_committed, it is the last
        stable offset.

        Raises:
            LogPartitionNotFoundError: if a partition does not exist.
        """
        return {place: self._reader.partition(*place).log_end_offset for place in map(place_of, partitions)}

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record with this timestamp or a later one, of each partition, or None if there is none.

        Args:
            timestamps: milliseconds since 1970.

        Raises:
            LogPartitionNotFoundError: if a partition does not exist.
        """
        return {
            place_of(place): self._reader.partition(*place).offset_for_timestamp(timestamp_ms)
            for place, timestamp_ms in timestamps.items()
        }

    def highwater(self, partition: TopicPartition) -> int:
        """The offset after the last record of an assigned partition, committed or not.

        Raises:
            ConsumerStateError: if the partition is not assigned.
        """
        return self._assigned(partition).partition.high_watermark

    # --- pauses

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until `resume`. Their positions do not change.

        Raises:
            ConsumerStateError: if one of them is not assigned. Then none is paused.
        """
        for flow in [self._assigned(partition) for partition in partitions]:
            flow.is_paused = True

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {place for place, flow in self._flows.items() if flow.is_paused}

    def resume(self, *partitions: TopicPartition) -> None:
        """Return records of these partitions again.

        Raises:
            ConsumerStateError: if one of them is not assigned. Then none is resumed.
        """
        for flow in [self._assigned(partition) for partition in partitions]:
            flow.is_paused = False

    # --- the end

    def wakeup(self) -> None:
        """End the current wait of `poll`, or of the next one, at once. Thread-safe.

        Raises:
            ConsumerStateError: if the consumer was closed, or belongs to the parent process.
        """
        self._open_waiter().wake()

    def _release(self) -> None:
        for flow in self._flows.values():
            flow.close()
        self._flows = {}
        if self._group is not None:
            self._group.membership.leave()
        if self._waiter is not None:
            self._waiter.close()
            self._waiter = None

    def __del__(self) -> None:
        """Release the partitions of a consumer that is garbage collected, without taking a lock of the process."""
        waiter: ChangeWaiter | None = getattr(self, "_waiter", None)
        if waiter is None:
            return
        self._waiter = None
        membership = None if self._group is None else self._group.membership
        with contextlib.suppress(OSError):
            for flow in self._flows.values():
                flow.close()
            if membership is not None:
                membership.locks.leave()
        forget(membership, waiter)


def place_of(partition: Any) -> TopicPartition:
    """The partition for a user's argument, which may be kafka-python's TopicPartition."""
    if type(partition) is TopicPartition and type(partition.topic) is str and type(partition.partition) is int:
        return partition
    try:
        topic, number = partition
    except (TypeError, ValueError):
        raise InvalidArgumentError(f"{partition!r} is not a TopicPartition(topic, partition)") from None
    if not isinstance(topic, str) or not isinstance(number, int):
        raise InvalidArgumentError(f"{partition!r} is not a TopicPartition(topic, partition)")
    return TopicPartition(topic, number)


def _offset(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given <= OFFSET_MAX:
        raise InvalidArgumentError(f"an offset must be a whole number of 0 or more, below 2**63, got {given!r}")
    return given


def _release_in_child() -> None:
    """Release the parent's consumers in a forked child."""
    for consumer in list(_open):
        with contextlib.suppress(OSError):
            consumer._release()  # noqa: SLF001
    close_forgotten()


os.register_at_fork(after_in_child=_release_in_child)
