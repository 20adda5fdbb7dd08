# SPDX-License-Identifier: Apache-2.0
"""The answers about the cluster, which is one node: its topics, offsets and settings."""

from __future__ import annotations

import contextlib
import functools
import uuid
from typing import Any, NamedTuple, final

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import (
    CorruptLogError,
    InvalidArgumentError,
    LogError,
    LogPartitionNotFoundError,
    OffsetOutOfRangeError,
)
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.leader_epochs import NO_EPOCH, NO_OFFSET
from shmaccum.log.files.reader import LogReader
from shmaccum.log.server.call import Call, Values
from shmaccum.log.server.fetching import READ_COMMITTED, epoch_problem
from shmaccum.log.server.log_heads import LogHead
from shmaccum.log.server.settings import NODE_ID
from shmaccum.log.server.steps import Steps, Stepwise, answer_each
from shmaccum.log.server.topics import NO_TOPIC_ID, LogTopics
from shmaccum.log.server.users import Right
from shmaccum.log.server.writing import Writing

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
NEVER = 1 << 15
LOOKS_MAX = 3
MEANINGS = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
"""The negative times that mean something in ListOffsets, and the version from which on they do (KIP-734, 405, 1005)."""
NO_OPERATIONS = -(2**31)
"""Of authorized operations: nobody asked."""
CREATED_COUNT_MAX = 1000
"""A Metadata that names more topics creates none of them."""
GROUP_KEY, TRANSACTION_KEY = 0, 1
"""The kinds of keys in FindCoordinator."""
_REFUSED_KEYS = {TRANSACTION_KEY: BrokerError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
"""A client asks again and again after COORDINATOR_NOT_AVAILABLE; this error ends its wait."""


class Address(NamedTuple):
    """Where clients find the node."""

    host: str
    port: int


@final
class Cluster:
    """The node and its topics.

    Args:
        topics: the topics that it serves.
        writing: None: it only reads.
        cluster_id: of the log directory.
        address: asked each time, because the port is known late.
    """

    def __init__(self, topics: LogTopics, writing: Writing | None, cluster_id: uuid.UUID, address: Address) -> None:
        self._topics = topics
        self._writing = writing
        self._cluster_id = str(cluster_id)
        self.address = address
        self._reader = LogReader(topics.directory, verify_crc=False)

    # --- the node

    @property
    def _node(self) -> Values:
        return {"node_id": NODE_ID, "host": self.address.host, "port": self.address.port}

    def find_coordinator(self, call: Call) -> None:
        """FindCoordinator: this node coordinates every group, and every transaction when it writes the log."""
        message = call.message
        is_known = message.key_type == GROUP_KEY or (message.key_type == TRANSACTION_KEY and self._writing is not None)
        error = BrokerError.NONE if is_known else _REFUSED_KEYS.get(message.key_type, BrokerError.INVALID_REQUEST)
        sentence = None if is_known else "this log coordinates consumer groups, and no transactions while it is read"
        one = {**self._node, "error_code": error, "error_message": sentence}
        coordinators = [{**one, "key": key} for key in message.coordinator_keys] if call.version >= 4 else []
        call.answer({**one, "coordinators": coordinators} if call.version < 4 else {"coordinators": coordinators})

    def describe_cluster(self, call: Call) -> None:
        """DescribeCluster."""
        broker = {"broker_id": NODE_ID, "host": self.address.host, "port": self.address.port, "rack": None}
        call.answer(
            {
                "error_code": BrokerError.NONE,
                "error_message": None,
                "cluster_id": self._cluster_id,
                "controller_id": NODE_ID,
                "endpoint_type": call.message.endpoint_type if call.version >= 1 else 1,
                "brokers": [{**broker, "is_fenced": False}],
            }
        )

    # --- topics

    def metadata(self, call: Call) -> Steps:
        """Metadata: topics, their partitions, and where their leader is, which is here."""
        message = call.message
        is_for_all = message.topics is None or (call.version == 0 and not message.topics)
        wanted = [(name, NO_TOPIC_ID) for name in self._topics.names()] if is_for_all else self._asked(call)
        is_creator = call.version < 4 or message.allow_auto_topic_creation
        may_create = not is_for_all and is_creator and len(wanted) <= CREATED_COUNT_MAX
        topics = []
        for name, topic_id in wanted:
            is_creator = may_create and call.user.may(Right.ADMIN, "topic", name or "")
            topics.append((yield from self._topic(name, topic_id, may_create=is_creator)))
            yield None
        call.answer(
            {
                "brokers": [{**self._node, "rack": None}],
                "cluster_id": self._cluster_id,
                "controller_id": NODE_ID,
                "error_code": BrokerError.NONE,
                "topics": topics,
            }
        )

    @staticmethod
    def _asked(call: Call) -> list[tuple[str | None, uuid.UUID]]:
        return list(dict.fromkeys((topic.name, topic.topic_id or NO_TOPIC_ID) for topic in call.message.topics))

    def _topic(self, name: str | None, topic_id: uuid.UUID, *, may_create: bool) -> Stepwise[Values]:
        name = name or self._topics.name_of(topic_id)
        if name is None:
            return {"error_code": BrokerError.UNKNOWN_TOPIC_ID, "name": None, "topic_id": topic_id, "partitions": []}
        count = self._topics.partition_count(name)
        error = BrokerError.UNKNOWN_TOPIC_OR_PARTITION
        if not count and may_create and self._writing is not None:
            error = yield from self._create(name)
            count = self._topics.partition_count(name)
        if not count:
            return {"error_code": error, "name": name, "topic_id": NO_TOPIC_ID, "partitions": []}
        return {
            "error_code": BrokerError.NONE,
            "name": name,
            "topic_id": self._topics.topic_id(name),
            "is_internal": False,
            "partitions": (yield from answer_each(range(count), lambda number: self._partition(name, number))),
        }

    def _create(self, name: str) -> Stepwise[BrokerError]:
        assert self._writing is not None
        try:
            yield from self._writing.create_topic(name, None)
        except InvalidArgumentError:
            return BrokerError.INVALID_TOPIC_EXCEPTION
        except (LogError, OSError):
            return BrokerError.KAFKA_STORAGE_ERROR
        return BrokerError.NONE

    def _partition(self, topic: str, number: int) -> Values:
        return {
            "error_code": BrokerError.NONE,
            "partition_index": number,
            "leader_id": NODE_ID,
            "leader_epoch": self._topics.leader_epoch(TopicPartition(topic, number)),
            "replica_nodes": [NODE_ID],
            "isr_nodes": [NODE_ID],
            "offline_replicas": [],
        }

    def describe_topic_partitions(self, call: Call) -> Steps:
        """DescribeTopicPartitions (KIP-966): all in one answer, without a cursor."""
        names = list(dict.fromkeys(topic.name for topic in call.message.topics)) or self._topics.names()
        topics = []
        for name in names:
            topics.append((yield from self._described(name)))
            yield None
        call.answer({"topics": topics, "next_cursor": None})

    def _described(self, name: str) -> Stepwise[Values]:
        count = self._topics.partition_count(name)
        more: Values = {"eligible_leader_replicas": [], "last_known_elr": []}
        partitions = yield from answer_each(range(count), lambda number: {**self._partition(name, number), **more})
        return {
            "error_code": BrokerError.NONE if count else BrokerError.UNKNOWN_TOPIC_OR_PARTITION,
            "name": name,
            "topic_id": self._topics.topic_id(name) if count else NO_TOPIC_ID,
            "is_internal": False,
            "topic_authorized_operations": NO_OPERATIONS,
            "partitions": partitions,
        }

    # --- offsets

    def list_offsets(self, call: Call) -> Steps:
        """ListOffsets: the first, the last, or that of a time (KIP-79, 734). For a client that reads committed records
        the last stable offset is the end."""
        is_committed = call.message.isolation_level == READ_COMMITTED
        topics: list[Values] = []
        for topic in call.message.topics:
            topics.append({"name": topic.name, "partitions": []})
            for asked in topic.partitions:
                found = yield from self._listed(topic.name, asked, call.version, is_committed=is_committed)
                topics[-1]["partitions"].append(found)
                yield None
        call.answer({"topics": topics})

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
        if (problem := epoch_problem(getattr(asked, "current_leader_epoch", NO_EPOCH), head)) is not None:
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
        """The look at records, in the thread: it reads files alone, and may read and decompress many batches.

        The loop may delete the topic or old segments meanwhile. Then it looks again, at what is left.
        """
        for _ in range(LOOKS_MAX):
            with contextlib.suppress(LogPartitionNotFoundError, FileNotFoundError, OffsetOutOfRangeError):
                partition = self._reader.partition(*place)
                if timestamp_ms == MAX_TIMESTAMP:
                    return partition.offset_of_max_timestamp()
                return partition.offset_for_timestamp(timestamp_ms) if timestamp_ms >= 0 else None
        return None

    def offset_for_leader_epoch(self, call: Call) -> Steps:
        """OffsetForLeaderEpoch (KIP-320): where an epoch ended, so that a consumer sees which offsets are gone."""
        topics = []
        for topic in call.message.topics:
            ends = yield from answer_each(topic.partitions, functools.partial(self._epoch_end, topic.topic))
            topics.append({"topic": topic.topic, "partitions": ends})
        call.answer({"topics": topics})

    def _epoch_end(self, topic: str, asked: Any) -> Values:
        head = self._topics.head(topic, asked.partition)
        error: BrokerError | None = BrokerError.UNKNOWN_TOPIC_OR_PARTITION
        epoch, end = NO_EPOCH, NO_OFFSET
        if head is not None:
            head.refresh()
            error = epoch_problem(asked.current_leader_epoch, head)
            if error is None:
                error, (epoch, end) = BrokerError.NONE, head.epochs.end_of(asked.leader_epoch, head.end_offset)
        return {"error_code": error, "partition": asked.partition, "leader_epoch": epoch, "end_offset": end}
