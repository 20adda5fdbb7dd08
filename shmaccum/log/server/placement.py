# SPDX-License-Identifier: Apache-2.0
"""Requests about the places of partitions: log directories, leaders and reassignments.

A log on one host has one directory and one replica of each partition. So no election is needed, no reassignment is ever
in progress, and a move to the present place succeeds at once, as in Kafka.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from typing import Any, final

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.file_names import LOG
from shmaccum.log.server.call import Call, Values
from shmaccum.log.server.settings import NODE_ID
from shmaccum.log.server.steps import Stepwise, answer_each
from shmaccum.log.server.topics import LogTopics

ONE_REPLICA = f"the log is on one host: the only replica of a partition is on node {NODE_ID}"
NO_MOVE = "no reassignment is in progress: the log is on one host"


@final
class Placement:
    """The places of all partitions: one directory on one node."""

    def __init__(self, topics: LogTopics) -> None:
        self._topics = topics
        self._directory = os.path.abspath(topics.directory)

    def _has(self, topic: str, partition: int) -> bool:
        return 0 <= partition < self._topics.partition_count(topic)

    # --- log directories

    def describe_log_dirs(self, call: Call) -> Stepwise[Values]:
        """DescribeLogDirs (KIP-113, 827): the directory, its volume, and the size of each partition."""
        volume = os.statvfs(self._directory)
        asked = self._asked(call.message.topics)
        topics = []
        for topic, partitions in asked.items():
            sized = yield from answer_each(sorted(partitions), functools.partial(self._partition_size, topic))
            topics.append({"name": topic, "partitions": sized})
        result = {
            "error_code": BrokerError.NONE,
            "log_dir": self._directory,
            "topics": topics,
            "total_bytes": volume.f_blocks * volume.f_frsize,
            "usable_bytes": volume.f_bavail * volume.f_frsize,
            "is_cordoned": False,
        }
        return {"error_code": BrokerError.NONE, "results": [result]}

    def _asked(self, topics: Iterable[Any] | None) -> dict[str, set[int]]:
        """Returns the requested partitions that exist. None requests all."""
        if topics is None:
            return {name: set(range(self._topics.partition_count(name))) for name in self._topics.names()}
        asked: dict[str, set[int]] = {}
        for each in topics:
            known = {one for one in each.partitions if self._has(each.topic, one)}
            if known:
                asked.setdefault(each.topic, set()).update(known)
        return asked

    def _partition_size(self, topic: str, partition: int) -> Values:
        size = segments_size(os.path.join(self._directory, str(TopicPartition(topic, partition))))
        return {"partition_index": partition, "partition_size": size, "offset_lag": 0, "is_future_key": False}

    def alter_log_dirs(self, call: Call) -> Values:
        """AlterReplicaLogDirs (KIP-113): every partition is already in the only directory."""

        results = [
            {
                "topic_name": topic.name,
                "partitions": [
                    {"partition_index": one, "error_code": self._move_problem(each.path, topic.name, one)}
                    for one in topic.partitions
                ],
            }
            for each in call.message.dirs
            for topic in each.topics
        ]
        return {"results": results}

    def _move_problem(self, path: str, topic: str, partition: int) -> BrokerError:
        if not self._has(topic, partition):
            return BrokerError.UNKNOWN_TOPIC_OR_PARTITION
        return BrokerError.NONE if path.rstrip("/") == self._directory else BrokerError.LOG_DIR_NOT_FOUND

    # --- leaders and replicas

    def elect_leaders(self, call: Call) -> Values:
        """ElectLeaders (KIP-183, 460): this node leads every partition. Without names, the result is empty."""
        results = [
            {"topic": each.topic, "partition_result": [self._elected(each.topic, one) for one in each.partitions]}
            for each in call.message.topic_partitions or ()
        ]
        return {"error_code": BrokerError.NONE, "replica_election_results": results}

    def _elected(self, topic: str, partition: int) -> Values:
        error = BrokerError.UNKNOWN_TOPIC_OR_PARTITION
        sentence = f"there is no partition {partition} of {topic}"
        if self._has(topic, partition):
            error, sentence = BrokerError.ELECTION_NOT_NEEDED, f"node {NODE_ID} leads every partition"
        return {"partition_id": partition, "error_code": error, "error_message": sentence}

    def alter_reassignments(self, call: Call) -> Values:
        """AlterPartitionReassignments (KIP-455): the only replica is already on this node."""
        responses = [
            {"name": topic.name, "partitions": [self._reassigned(topic.name, one) for one in topic.partitions]}
            for topic in call.message.topics
        ]
        return {"error_code": BrokerError.NONE, "error_message": None, "responses": responses}

    def _reassigned(self, topic: str, wanted: Any) -> Values:
        error, sentence = self._reassignment_problem(topic, wanted)
        return {"partition_index": wanted.partition_index, "error_code": error, "error_message": sentence}

    def _reassignment_problem(self, topic: str, wanted: Any) -> tuple[BrokerError, str | None]:
        if not self._has(topic, wanted.partition_index):
            return BrokerError.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {wanted.partition_index} of {topic}"
        if wanted.replicas is None:
            return BrokerError.NO_REASSIGNMENT_IN_PROGRESS, NO_MOVE
        if wanted.replicas != [NODE_ID]:
            return BrokerError.INVALID_REPLICA_ASSIGNMENT, ONE_REPLICA
        return BrokerError.NONE, None

    @staticmethod
    def list_reassignments(_call: Call) -> Values:
        """ListPartitionReassignments (KIP-455): no reassignment is ever in progress."""
        return {"error_code": BrokerError.NONE, "error_message": None, "topics": []}


def segments_size(folder: str) -> int:
    """Return the size of the segments of one partition. A segment that is deleted meanwhile is not counted."""
    size = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(LOG):
                    size += entry.stat().st_size
    except FileNotFoundError:  # deleted by retention or with the topic
        pass
    return size
