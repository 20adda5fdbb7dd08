# SPDX-License-Identifier: Apache-2.0
"""Parts of the answers about transactions, by the names of Kafka's schemas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.server.call import Values
from shmaccum.log.server.transactional_id import NO_PRODUCER_ID


def described_transaction(name: str, error: BrokerError) -> Values:
    """An element of DescribeTransactions that tells nothing but an error."""
    return {
        "error_code": error,
        "transactional_id": name,
        "transaction_state": "",
        "transaction_timeout_ms": 0,
        "transaction_start_time_ms": -1,
        "producer_id": NO_PRODUCER_ID,
        "producer_epoch": -1,
        "topics": [],
    }


def added_values(topic: Any, errors: Mapping[TopicPartition, BrokerError], rest: BrokerError) -> Values:
    """A topic of AddPartitionsToTxn: the errors of single partitions, and that of all others."""
    results = [
        {
            "partition_index": number,
            "partition_error_code": errors.get(TopicPartition(topic.name, number), rest),
        }
        for number in topic.partitions
    ]
    return {"name": topic.name, "results_by_partition": results}


def committed_values(topic: Any, errors: Mapping[TopicPartition, BrokerError], rest: BrokerError) -> Values:
    """A topic of TxnOffsetCommit: the errors of single partitions, and that of all others."""
    partitions = [
        {
            "partition_index": one.partition_index,
            "error_code": errors.get(TopicPartition(topic.name, one.partition_index), rest),
        }
        for one in topic.partitions
    ]
    return {"name": topic.name, "partitions": partitions}
