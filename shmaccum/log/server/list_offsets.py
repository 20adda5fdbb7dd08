# SPDX-License-Identifier: Apache-2.0
"""ListOffsets and OffsetForLeaderEpoch: find the offset of a time, and the end of a leader epoch."""

from __future__ import annotations

import contextlib
import functools
from typing import Any, final

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import CorruptLogError, LogPartitionNotFoundError, OffsetOutOfRangeError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.leader_epochs import NO_EPOCH, NO_OFFSET
from shmaccum.log.files.reader import LogReader
from shmaccum.log.server.call import Call, Values
from shmaccum.log.server.fetch_frames import READ_COMMITTED
from shmaccum.log.server.log_heads import LogHead
from shmaccum.log.server.steps import Stepwise, answer_each
from shmaccum.log.server.topics import LogTopics

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
NEVER = 1 << 15
TRIES_MAX = 3
MEANINGS = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""The negative times of ListOffsets, and the version that introduced each (KIP-734, 405, 1005)."""


@final
class OffsetLookup:
    """Finds offsets in the partitions of a log."""

    def __init__(self, topics: LogTopics) -> None:
        self._topics = topics
        self._reader = LogReader(topics.directory, verify_crc=False)

    def list(self, call: Call) -> Stepwise[Values]:
        """ListOffsets: the first or last offset, or that of a time (KIP-79, 734). For a client that reads committed
        records, the last stable offset is the end."""
        is_committed = call.message.isolation_level == READ_COMMITTED
        topics: list[Values] = []
        for topic in call.message.topics:
            topics.append({"name": topic.name, "partitions": []})
            for asked in topic.partitions:
                found = yield from self._listed(topic.name, asked, call.version, is_committed=is_committed)
                topics[-1]["partitions"].append(found)
                yield None
        return {"topics": topics}

    def _listed(self, topic: str, asked: Any, version: int, *, is_committed: bool) -> Stepwise[Values]:
        answer = {
            "partition_index": asked.partition_index,
            "error_code": BrokerError.NONE,
            "timestamp": -1,
            "offset": -1,
            "leader_epoch": -1,
        }
        if asked.timestamp < 0 and version < MEANINGS.get(asked.timestamp, NEVER):
            return {**answer, "error_code": BrokerError.UNSUPPORTED_VERSION}
        head = self._topics.head(topic, asked.partition_index)
        if head is None:
            return {**answer, "error_code": BrokerError.UNKNOWN_TOPIC_OR_PARTITION}
        head.refresh()
        if (problem := head.epoch_problem(getattr(asked, "current_leader_epoch", NO_EPOCH))) is not None:
            return {**answer, "error_code": problem}
        try:
            found = yield from self._offset_at(head, asked.timestamp, head.readable_end(is_committed=is_committed))
        except CorruptLogError:
            return {**answer, "error_code": BrokerError.CORRUPT_MESSAGE}
        if found is None:
            return answer
        return {**answer, "offset": found[0], "timestamp": found[1], "leader_epoch": head.epochs.at(found[0])}

    def _offset_at(self, head: LogHead, timestamp_ms: int, end_offset: int) -> Stepwise[tuple[int, int] | None]:
        if timestamp_ms == LATEST:
            return end_offset, -1
        if timestamp_ms in (EARLIEST, EARLIEST_LOCAL):
            return head.start_offset, -1
        found: tuple[int, int] | None = yield lambda: self._offset_of_record(head.place, timestamp_ms)
        return None if found is None or found[0] >= end_offset else found

    def _offset_of_record(self, place: TopicPartition, timestamp_ms: int) -> tuple[int, int] | None:
        """Finds the offset of a time. Runs in the thread, because it may read and decompress many batches.

        The loop may delete the topic or old segments meanwhile. Then the search is repeated on the remaining records.
        """
        for _ in range(TRIES_MAX):
            with contextlib.suppress(LogPartitionNotFoundError, FileNotFoundError, OffsetOutOfRangeError):
                partition = self._reader.partition(*place)
                if timestamp_ms == MAX_TIMESTAMP:
                    return partition.offset_of_max_timestamp()
                return partition.offset_for_timestamp(timestamp_ms) if timestamp_ms >= 0 else None
        return None

    def of_leader_epochs(self, call: Call) -> Stepwise[Values]:
        """OffsetForLeaderEpoch (KIP-320): the end of an epoch, by which a consumer detects lost offsets."""
        topics = []
        for topic in call.message.topics:
            ends = yield from answer_each(topic.partitions, functools.partial(self._epoch_end, topic.topic))
            topics.append({"topic": topic.topic, "partitions": ends})
        return {"topics": topics}

    def _epoch_end(self, topic: str, asked: Any) -> Values:
        head = self._topics.head(topic, asked.partition)
        error: BrokerError | None = BrokerError.UNKNOWN_TOPIC_OR_PARTITION
        epoch, end = NO_EPOCH, NO_OFFSET
        if head is not None:
            head.refresh()
            error = head.epoch_problem(asked.current_leader_epoch)
            if error is None:
                error, (epoch, end) = BrokerError.NONE, head.epochs.end_of(asked.leader_epoch, head.end_offset)
        return {"error_code": error, "partition": asked.partition, "leader_epoch": epoch, "end_offset": end}
