# SPDX-License-Identifier: Apache-2.0
"""Metadata and the other requests about the cluster, which has one node: its address, topics and partitions."""

from __future__ import annotations

import uuid
from typing import final

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import InvalidArgumentError, LogError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.addresses import Address
from shmaccum.log.server.call import Call, Values
from shmaccum.log.server.settings import NODE_ID
from shmaccum.log.server.steps import Stepwise, answer_each
from shmaccum.log.server.topic_requests import TopicRequests
from shmaccum.log.server.topics import NO_TOPIC_ID, LogTopics
from shmaccum.log.server.users import Right

NO_OPERATIONS = -(2**31)
"""The value of authorized operations if they were not requested."""
CREATED_COUNT_MAX = 1000
"""A Metadata request that names more topics creates none of them."""
GROUP_KEY, TRANSACTION_KEY = 0, 1
"""The kinds of keys in FindCoordinator."""
_REFUSED_KEYS = {TRANSACTION_KEY: BrokerError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
"""Ends the retries of a client, which would repeat the request after COORDINATOR_NOT_AVAILABLE."""


@final
class Cluster:
    """The node and its topics.

    Args:
        topics: the topics that the server serves.
        creator: creates topics. None if the server is read-only.
        cluster_id: the id of the log directory.
        address: the advertised address.
    """

    def __init__(
        self, topics: LogTopics, creator: TopicRequests | None, cluster_id: uuid.UUID, address: Address
    ) -> None:
        self._topics = topics
        self._creator = creator
        self._cluster_id = str(cluster_id)
        self.address = address

    # --- the node

    @property
    def _node(self) -> Values:
        return {"node_id": NODE_ID, "host": self.address.host, "port": self.address.port}

    def find_coordinator(self, call: Call) -> Values:
        """FindCoordinator: this node coordinates all groups and, if it is writable, all transactions."""
        message = call.message
        is_known = message.key_type == GROUP_KEY or (message.key_type == TRANSACTION_KEY and self._creator is not None)
        error = BrokerError.NONE if is_known else _REFUSED_KEYS.get(message.key_type, BrokerError.INVALID_REQUEST)
        sentence = (
            None
            if is_known
            else "this server is read-only, so it coordinates only consumer groups: start it with --writable"
        )
        one = {**self._node, "error_code": error, "error_message": sentence}
        coordinators = [{**one, "key": key} for key in message.coordinator_keys] if call.version >= 4 else []
        return {**one, "coordinators": coordinators} if call.version < 4 else {"coordinators": coordinators}

    def describe_cluster(self, call: Call) -> Values:
        """DescribeCluster."""
        broker = {"broker_id": NODE_ID, "host": self.address.host, "port": self.address.port, "rack": None}
        return {
            "error_code": BrokerError.NONE,
            "error_message": None,
            "cluster_id": self._cluster_id,
            "controller_id": NODE_ID,
            "endpoint_type": call.message.endpoint_type if call.version >= 1 else 1,
            "brokers": [{**broker, "is_fenced": False}],
        }

    # --- topics

    def metadata(self, call: Call) -> Stepwise[Values]:
        """Metadata: topics, their partitions, and the leader, which is this node."""
        message = call.message
        is_for_all = message.topics is None or (call.version == 0 and not message.topics)
        asked = list(dict.fromkeys((topic.name, topic.topic_id or NO_TOPIC_ID) for topic in message.topics or ()))
        wanted = [(name, NO_TOPIC_ID) for name in self._topics.names()] if is_for_all else asked
        is_creator = call.version < 4 or message.allow_auto_topic_creation
        may_create = not is_for_all and is_creator and len(wanted) <= CREATED_COUNT_MAX
        topics = []
        for name, topic_id in wanted:
            is_creator = may_create and call.user.may(Right.ADMIN, "topic", name or "")
            topics.append((yield from self._topic(name, topic_id, may_create=is_creator)))
            yield None
        return {
            "brokers": [{**self._node, "rack": None}],
            "cluster_id": self._cluster_id,
            "controller_id": NODE_ID,
            "error_code": BrokerError.NONE,
            "topics": topics,
        }

    def _topic(self, name: str | None, topic_id: uuid.UUID, *, may_create: bool) -> Stepwise[Values]:
        name = name or self._topics.name_of(topic_id)
        if name is None:
            return {"error_code": BrokerError.UNKNOWN_TOPIC_ID, "name": None, "topic_id": topic_id, "partitions": []}
        count = self._topics.partition_count(name)
        error = BrokerError.UNKNOWN_TOPIC_OR_PARTITION
        if not count and may_create and self._creator is not None:
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
        assert self._creator is not None
        try:
            yield from self._creator.create_topic(name, None)
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

    def describe_topic_partitions(self, call: Call) -> Stepwise[Values]:
        """DescribeTopicPartitions (KIP-966): all topics in one response, without a cursor."""
        names = list(dict.fromkeys(topic.name for topic in call.message.topics)) or self._topics.names()
        topics = []
        for name in names:
            topics.append((yield from self._described(name)))
            yield None
        return {"topics": topics, "next_cursor": None}

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
