# SPDX-License-Identifier: Apache-2.0
"""Requests of a transaction as messages of the library, and its messages as responses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum.common.format.group_offsets import GroupMember, OffsetToCommit
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.sender.sinks.kafka.transaction.requests import (
    AddOffsets,
    AddPartitions,
    AskVersion,
    CommitOffsets,
    CoordinatorKey,
    CoordinatorKind,
    EndTransaction,
    FetchOffsets,
    FindCoordinator,
    InitProducerId,
    TransactionalProducer,
    TransactionResponse,
)

broker_version_data = pytest.importorskip("kafka.protocol.broker_version_data")
errors = pytest.importorskip("kafka.errors")
messages = pytest.importorskip("shmaccum.sender.sinks.kafka.library.transaction_messages")

PRODUCER = TransactionalProducer("orders-1", 7, 2)
PLACES = TopicPartition("a", 0), TopicPartition("a", 3), TopicPartition("b", 1)
FIND = FindCoordinator(CoordinatorKey(CoordinatorKind.TRANSACTION, "orders-1"))
INIT = InitProducerId(PRODUCER, 60_000)
END = EndTransaction(PRODUCER, True, 2)
ADD = AddPartitions(PRODUCER, PLACES)
OFFSETS = tuple((place, OffsetToCommit(10 + number, "m", number)) for number, place in enumerate(PLACES))


def commit(version: int, generation: int) -> CommitOffsets:
    return CommitOffsets(PRODUCER, GroupMember("g", "me" if generation >= 0 else "", generation), OFFSETS, version)


# --- requests


def broker_of(message: Any, oldest: int, newest: int) -> Any:
    """A broker that understands these versions of a message."""
    return broker_version_data.BrokerVersionData(api_versions={message.API_KEY: (oldest, newest)})


@pytest.mark.parametrize(
    ("request_", "versions"),
    [
        (FIND, (0, 4)),
        (INIT, (3, 5)),
        (INIT._replace(producer=TransactionalProducer("orders-1")), (0, 5)),
        (ADD, (0, 3)),
        (AddOffsets(PRODUCER, "g"), (0, 4)),
        (commit(1, 5), (3, 4)),
        (commit(1, -1), (0, 4)),
        (commit(2, 5), (3, 5)),
        (END._replace(version=1), (0, 4)),
        (END, (0, 5)),
        (FetchOffsets("g"), (7, 9)),
    ],
)
def test_a_message_has_a_version_that_a_broker_of_this_transaction_version_understands(
    request_: Any, versions: tuple[int, int]
) -> None:
    """The connection chooses one, so the newest one that is asked for, and none that a broker lacks."""
    message = messages.message_of(request_)
    oldest, newest = versions
    assert broker_of(message, 0, 99).api_version(message) == newest
    assert broker_of(message, oldest, oldest).api_version(message) == oldest
    if oldest:
        with pytest.raises(errors.IncompatibleBrokerVersion):
            broker_of(message, 0, oldest - 1).api_version(message)


def test_partitions_and_offsets_are_grouped_by_topic() -> None:
    added = messages.message_of(ADD)
    assert [(topic.name, topic.partitions) for topic in added.v3_and_below_topics] == [("a", [0, 3]), ("b", [1])]
    assert (added.v3_and_below_producer_id, added.v3_and_below_producer_epoch) == (7, 2)
    committed = messages.message_of(commit(2, 5))
    assert [
        (topic.name, [(one.partition_index, one.committed_offset, one.committed_leader_epoch) for one in partitions])
        for topic in committed.topics
        for partitions in [topic.partitions]
    ] == [("a", [(0, 10, 0), (3, 11, 1)]), ("b", [(1, 12, 2)])]
    assert (committed.group_id, committed.generation_id, committed.member_id) == ("g", 5, "me")


@pytest.mark.parametrize("is_commit", [True, False])
def test_an_end_names_its_producer(is_commit: bool) -> None:
    message = messages.message_of(END._replace(is_commit=is_commit))
    names = message.transactional_id, message.producer_id, message.producer_epoch, message.committed
    assert names == (*PRODUCER, is_commit)


# --- responses


def fields(**values: Any) -> SimpleNamespace:
    return SimpleNamespace(**values)


def features(**levels: int) -> list[SimpleNamespace]:
    return [fields(name=name.replace("_", "."), max_version_level=level) for name, level in levels.items()]


COORDINATOR = fields(node_id=3, host="h", port=1, error_code=0, error_message=None)
NO_COORDINATOR = fields(coordinators=[], node_id=-1, error_code=15, error_message="not yet")


@pytest.mark.parametrize(
    ("request_", "response", "expected"),
    [
        (FIND, fields(coordinators=[COORDINATOR]), TransactionResponse(node_id=3)),
        (FIND, NO_COORDINATOR, TransactionResponse(15, "not yet")),
        (AskVersion(), fields(error_code=0, finalized_features=None), TransactionResponse(version=1)),
        (
            AskVersion(),
            fields(error_code=0, finalized_features=features(metadata_version=20, transaction_version=2)),
            TransactionResponse(version=2),
        ),
        (
            AskVersion(),
            fields(error_code=35, finalized_features=features(transaction_version=0)),
            TransactionResponse(35, version=1),
        ),
        (
            INIT,
            fields(error_code=0, producer_id=8, producer_epoch=0),
            TransactionResponse(producer_id=8, producer_epoch=0),
        ),
        (END, fields(error_code=51, producer_id=None, producer_epoch=None), TransactionResponse(51)),
        (
            END,
            fields(error_code=0, producer_id=None, producer_epoch=3),
            TransactionResponse(producer_epoch=3),
        ),
        (AddOffsets(PRODUCER, "g"), fields(error_code=16), TransactionResponse(16)),
    ],
)
def test_a_response_has_what_its_message_says(request_: Any, response: Any, expected: TransactionResponse) -> None:
    assert messages.answer_of(request_, response) == expected


def test_the_errors_of_partitions_are_by_their_place() -> None:
    codes = dict(zip(PLACES, (0, 3, 29), strict=True))

    def topics(key: str, **names: str) -> list[SimpleNamespace]:
        return [
            fields(
                name=topic,
                **{
                    key: [
                        fields(**{names["index"]: place.partition, names["code"]: code})
                        for place, code in codes.items()
                        if place.topic == topic
                    ]
                },
            )
            for topic in ("a", "b")
        ]

    added = topics("results_by_partition", index="partition_index", code="partition_error_code")
    response = messages.answer_of(ADD, fields(results_by_topic_v3_and_below=added))
    assert response == TransactionResponse(error_codes=codes)
    committed = topics("partitions", index="partition_index", code="error_code")
    assert messages.answer_of(commit(2, 5), fields(topics=committed)) == TransactionResponse(error_codes=codes)


@pytest.mark.parametrize("has_groups", [True, False])
@pytest.mark.parametrize(("group_code", "codes", "code"), [(0, (0, 0, 0), 0), (0, (0, 88, 3), 88), (16, (0, 3, 0), 16)])
def test_offsets_of_a_group_are_those_that_were_committed(
    has_groups: bool, group_code: int, codes: tuple[int, ...], code: int
) -> None:
    """Versions before 8 have no list of groups."""
    partitions = [
        fields(partition_index=partition, committed_offset=offset, metadata=metadata, error_code=its_code)
        for partition, offset, metadata, its_code in zip((0, 1, 2), (-1, 0, 9), ("", None, "m"), codes, strict=True)
    ]
    group = fields(error_code=group_code, topics=[fields(name="a", partitions=partitions)])
    response = fields(groups=[group]) if has_groups else fields(groups=[], **vars(group))
    assert messages.answer_of(FetchOffsets("g"), response) == TransactionResponse(
        code, offsets={TopicPartition("a", 1): OffsetToCommit(0, ""), TopicPartition("a", 2): OffsetToCommit(9, "m")}
    )
