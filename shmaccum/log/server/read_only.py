# SPDX-License-Identifier: Apache-2.0
"""The requests that change a log, on a read-only server, which rejects all of them."""

from __future__ import annotations

from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.call import Call, Response, Values
from shmaccum.log.server.produce import refused_topic
from shmaccum.log.server.topic_requests import CREATED_NOT, topics_to_delete

READ_ONLY = "this server is read-only: if no sender writes the log, start shmaccum serve with --writable"


def produce(call: Call) -> Response:
    """Produce."""
    if call.message.acks == 0:
        return []
    error = BrokerError.TOPIC_AUTHORIZATION_FAILED
    return {"responses": [refused_topic(topic, error, READ_ONLY) for topic in call.message.topic_data]}


def init_producer_id(_call: Call) -> Values:
    """InitProducerId."""
    return {"error_code": BrokerError.CLUSTER_AUTHORIZATION_FAILED, "producer_id": -1, "producer_epoch": -1}


def _refusal(name: str | None) -> Values:
    return {"name": name, "error_code": BrokerError.CLUSTER_AUTHORIZATION_FAILED, "error_message": READ_ONLY}


def create_topics(call: Call) -> Values:
    """CreateTopics."""
    return {"topics": [{**CREATED_NOT, **_refusal(topic.name)} for topic in call.message.topics]}


def delete_topics(call: Call) -> Values:
    """DeleteTopics."""
    asked = topics_to_delete(call)
    return {"responses": [{**_refusal(name), "topic_id": topic_id} for name, topic_id in asked]}


def delete_records(call: Call) -> Values:
    """DeleteRecords."""
    refused = {"low_watermark": -1, "error_code": BrokerError.TOPIC_AUTHORIZATION_FAILED}
    topics = [
        {
            "name": topic.name,
            "partitions": [{"partition_index": one.partition_index, **refused} for one in topic.partitions],
        }
        for topic in call.message.topics
    ]
    return {"topics": topics}


def alter_settings(call: Call) -> Values:
    """AlterConfigs and IncrementalAlterConfigs."""
    refused = {"error_code": BrokerError.CLUSTER_AUTHORIZATION_FAILED, "error_message": READ_ONLY}
    answers = [
        {"resource_type": one.resource_type, "resource_name": one.resource_name, **refused}
        for one in call.message.resources
    ]
    return {"responses": answers}


def create_partitions(call: Call) -> Values:
    """CreatePartitions."""
    return {"results": [_refusal(topic.name) for topic in call.message.topics]}
