# SPDX-License-Identifier: Apache-2.0
"""Converts requests of a transaction to kafka-python's messages, and its messages to responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

from kafka.protocol.consumer.group import OffsetFetchRequest
from kafka.protocol.metadata.api_versions import ApiVersionsRequest
from kafka.protocol.metadata.find_coordinator import FindCoordinatorRequest
from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from shmaccum.common.format.group_offsets import OffsetToCommit
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.sender.sinks.kafka.transaction.requests import (
    NO_PRODUCER,
    AddOffsets,
    AddPartitions,
    AskVersion,
    CommitOffsets,
    EndTransaction,
    FetchOffsets,
    FindCoordinator,
    InitProducerId,
    Request,
    TransactionResponse,
)

FEATURE = "transaction.version"
IMPLICIT = 2
BEFORE_IMPLICIT = 4
"""The newest version of EndTxn and TxnOffsetCommit in which a broker adds no partitions and groups by itself."""
EPOCH_RAISED = 3
"""The first version of InitProducerId that raises an epoch (KIP-360)."""
NAMES_MEMBERS = 3
"""The first version of TxnOffsetCommit that compares a member with its group (KIP-447)."""
STABLE_ONLY = 7
"""The first version of OffsetFetch that waits for the end of transactions (KIP-447)."""
WITHOUT_TOPIC_IDS = 9
"""The newest version of OffsetFetch that names topics."""


# --- requests


def _find_coordinator(request: FindCoordinator) -> Any:
    kind, key = request.coordinator
    return FindCoordinatorRequest(key=key, key_type=int(kind), coordinator_keys=[key], max_version=4)


def _ask_version(_: AskVersion) -> Any:
    return ApiVersionsRequest(client_software_name="shmaccum", client_software_version="1")


def _init_producer_id(request: InitProducerId) -> Any:
    producer = request.producer
    return InitProducerIdRequest(
        transactional_id=producer.transactional_id,
        transaction_timeout_ms=request.timeout_ms,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        min_version=0 if producer.producer_id == NO_PRODUCER else EPOCH_RAISED,
        max_version=5,
    )


def _add_partitions(request: AddPartitions) -> Any:
    kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=request.producer.transactional_id,
        v3_and_below_producer_id=request.producer.producer_id,
        v3_and_below_producer_epoch=request.producer.producer_epoch,
        v3_and_below_topics=[
            kind(name=topic, partitions=[place.partition for place in places])
            for topic, places in groupby(request.places, key=lambda place: place.topic)
        ],
        max_version=3,
    )


def _add_offsets(request: AddOffsets) -> Any:
    return AddOffsetsToTxnRequest(**request.producer._asdict(), group_id=request.group, max_version=4)


def _commit_offsets(request: CommitOffsets) -> Any:
    topic_kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    member = request.member
    return TxnOffsetCommitRequest(
        **request.producer._asdict(),
        group_id=member.group,
        generation_id=member.generation,
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        topics=[
            topic_kind(name=topic, partitions=[_offset_of(*each) for each in offsets])
            for topic, offsets in groupby(request.offsets, key=lambda each: each[0].topic)
        ],
        min_version=NAMES_MEMBERS if member.is_joined else 0,
        max_version=BEFORE_IMPLICIT if request.version < IMPLICIT else 5,
    )


def _offset_of(place: TopicPartition, offset: OffsetToCommit) -> Any:
    return TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic.TxnOffsetCommitRequestPartition(
        partition_index=place.partition,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        committed_metadata=offset.metadata,
    )


def _end_transaction(request: EndTransaction) -> Any:
    max_version = BEFORE_IMPLICIT if request.version < IMPLICIT else 5
    return EndTxnRequest(**request.producer._asdict(), committed=request.is_commit, max_version=max_version)


def _fetch_offsets(request: FetchOffsets) -> Any:
    return OffsetFetchRequest(
        group_id=request.group,
        topics=None,
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=request.group, topics=None)],
        require_stable=True,
        min_version=STABLE_ONLY,
        max_version=WITHOUT_TOPIC_IDS,
    )


MESSAGES: Mapping[type, Callable[[Any], Any]] = {
    FindCoordinator: _find_coordinator,
    AskVersion: _ask_version,
    InitProducerId: _init_producer_id,
    AddPartitions: _add_partitions,
    AddOffsets: _add_offsets,
    CommitOffsets: _commit_offsets,
    EndTransaction: _end_transaction,
    FetchOffsets: _fetch_offsets,
}


def message_of(request: Request | FetchOffsets) -> Any:
    """Return the message of a request. The connection chooses its version."""
    return MESSAGES[type(request)](request)


# --- responses


def answer_of(request: Request | FetchOffsets, response: Any) -> TransactionResponse:
    """Return the response in a broker's message."""
    if isinstance(request, FindCoordinator):
        found = coordinator_in(response)
        return TransactionResponse(found.error_code, found.error_message or "", node_id=found.node_id)
    if isinstance(request, AskVersion):
        # Without the feature, the version is 1: the broker has classic transactions.
        features = response.finalized_features or ()
        version = next((max(feature.max_version_level, 1) for feature in features if feature.name == FEATURE), 1)
        return TransactionResponse(response.error_code, version=version)
    if isinstance(request, (InitProducerId, EndTransaction)):
        names = {"producer_id": response.producer_id, "producer_epoch": response.producer_epoch}
        return TransactionResponse(
            response.error_code, **{name: given for name, given in names.items() if given is not None}
        )
    if isinstance(request, AddPartitions):
        return TransactionResponse(error_codes=_partition_errors(response.results_by_topic_v3_and_below))
    if isinstance(request, CommitOffsets):
        codes = [
            (TopicPartition(topic.name, partition.partition_index), partition.error_code)
            for topic in response.topics
            for partition in topic.partitions
        ]
        return TransactionResponse(error_codes=dict(codes))
    return _offsets_in(response) if isinstance(request, FetchOffsets) else TransactionResponse(response.error_code)


def coordinator_in(response: Any) -> Any:
    """Return the coordinator in a FindCoordinator response; it has a node_id, host and port."""
    return response.coordinators[0] if response.coordinators else response


def _partition_errors(topics: Iterable[Any]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, partition.partition_index): partition.partition_error_code
        for topic in topics
        for partition in topic.results_by_partition
    }


def _offsets_in(response: Any) -> TransactionResponse:
    group = response.groups[0] if response.groups else response
    partitions = [
        (TopicPartition(topic.name, partition.partition_index), partition)
        for topic in group.topics
        for partition in topic.partitions
    ]
    failed = next((partition.error_code for _, partition in partitions if partition.error_code), 0)
    offsets = {
        place: OffsetToCommit(partition.committed_offset, partition.metadata or "")
        for place, partition in partitions
        if partition.committed_offset >= 0
    }
    return TransactionResponse(group.error_code or failed, offsets=offsets)
