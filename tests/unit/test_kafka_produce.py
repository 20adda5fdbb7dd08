# SPDX-License-Identifier: Apache-2.0
"""Our Produce request, byte for byte what kafka-python's own encoder writes; and every row of the table of errors."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from kafka import errors as library_errors
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from shmaccum.kafka.errors import TREATMENTS, Action, sentence, treatment
from shmaccum.kafka.produce import (
    PartitionRecords,
    ProduceHead,
    TopicRecords,
    encode,
    read_plain_answer,
    uvarint,
    version_for,
)

FLIGHTS, HOPS = uuid.UUID(int=17), uuid.UUID(int=4)
CLIENT_ID = "shmaccum-äöü"


def batch(partition: int, *pieces: bytes) -> PartitionRecords:
    return PartitionRecords(partition, [memoryview(piece) for piece in pieces], sum(map(len, pieces)))


TOPICS = [
    TopicRecords("flights", FLIGHTS, [batch(0, b"a" * 61, b"b" * 200), batch(300, b"c" * 20_000)]),
    TopicRecords("hops", HOPS, [batch(1, b"d" * 63)]),
]


def encoded_by_the_library(head: ProduceHead, topics: list[TopicRecords]) -> bytes:
    kind = ProduceRequest.TopicProduceData
    request: Any = ProduceRequest(
        transactional_id=None,
        acks=head.acks,
        timeout_ms=head.timeout_ms,
        topic_data=[
            kind(
                name=topic.topic,
                topic_id=topic.topic_id,
                partition_data=[
                    kind.PartitionProduceData(index=data.partition, records=b"".join(data.buffers))
                    for data in topic.partitions
                ],
            )
            for topic in topics
        ],
    )
    request.API_VERSION = head.version
    request.with_header(correlation_id=head.correlation_id, client_id=head.client_id)
    return bytes(request.encode(header=True, framed=True))


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("topics", [TOPICS, TOPICS[1:]], ids=["many", "one"])
def test_the_request_is_the_library_s_to_the_last_byte(version: int, topics: list[TopicRecords]) -> None:
    head = ProduceHead(version, 2**31 - 1, CLIENT_ID, -1, 30_000)
    assert b"".join(encode(head, topics)) == encoded_by_the_library(head, topics)


def test_the_arena_s_buffers_are_passed_on_and_not_copied() -> None:
    pieces = encode(ProduceHead(13, 1, CLIENT_ID, 1, 1), TOPICS)
    lent = [buffer for topic in TOPICS for data in topic.partitions for buffer in data.buffers]
    assert [piece for piece in pieces if isinstance(piece, memoryview)] == lent
    assert all(any(piece is buffer for piece in pieces) for buffer in lent)


def test_unsigned_varints() -> None:
    vectors = {0: "00", 127: "7f", 128: "8001", 16_383: "ff7f", 16_384: "808001", 2**32 - 1: "ffffffff0f"}
    assert {number: uvarint(number).hex() for number in vectors} == vectors


def test_the_newest_common_version_is_chosen_and_ids_only_when_all_are_known() -> None:
    nameless = [*TOPICS, TopicRecords("new", None, [])]
    assert version_for((0, 13), TOPICS) == 13
    assert version_for((0, 20), TOPICS) == 13
    assert version_for((0, 13), nameless) == 12
    assert version_for((3, 9), TOPICS) == 9


# --- errors

# Kafka's own classes, where kafka-python's differ: CorruptRecordException is retriable there, ThrottlingQuotaExceeded
# too; ListenerNotFound and the two epochs of leaders say that metadata are stale.
RETRIABLE_IN_KAFKA = {2}
NOT_STALE_IN_KAFKA: set[int] = set()
OF_SEQUENCES = {45, 46, 47, 59}


@pytest.mark.parametrize("code", [code for code in TREATMENTS if code != 0])
def test_a_row_agrees_with_the_class_of_the_error(code: int) -> None:
    row, kind = treatment(code), library_errors.for_code(code)
    is_retriable = issubclass(kind, library_errors.RetriableError) or code in RETRIABLE_IN_KAFKA
    if code not in OF_SEQUENCES | {10}:
        assert (row.action is Action.RETRY) == is_retriable, kind
    assert row.is_metadata_stale == issubclass(kind, library_errors.InvalidMetadataError)
    assert row.sentence


def test_every_error_of_the_produce_path_has_a_row() -> None:
    of_the_reference = {-1, 2, 3, 5, 6, 7, 9, 10, 13, 14, 15, 16, 17, 18, 19, 20, 21, 29, 31, 32, 35, 43, 45, 46, 47}
    of_the_reference |= {48, 49, 51, 53, 56, 59, 74, 75, 76, 87, 89, 90, 100, 103, 120}
    assert of_the_reference <= set(TREATMENTS)


def test_an_unknown_error_is_refused_by_its_number() -> None:
    assert treatment(9_999).action is Action.REFUSE
    assert "ERROR_9999" in sentence(9_999)
    assert sentence(17, "no!").endswith("(broker: no!)")


# --- answers


def response_of(version: int, **changed: Any) -> bytes:
    """A response without its header, as the library encodes it: two topics, three partitions."""
    kind = ProduceResponse.TopicProduceResponse
    partitions = [
        kind.PartitionProduceResponse(index=index, base_offset=2**40 + index, log_append_time_ms=-1, log_start_offset=0)
        for index in range(3)
    ]
    for name, value in changed.items():
        setattr(partitions[1], name, value)
    topics = [
        kind(name="flights", topic_id=FLIGHTS, partition_responses=partitions[:2]),
        kind(name="hops", topic_id=HOPS, partition_responses=partitions[2:]),
    ]
    return bytes(ProduceResponse(responses=topics, throttle_time_ms=7).encode(version=version))


@pytest.mark.parametrize("version", range(9, 14))
def test_an_answer_in_which_all_is_well_is_read_without_the_library(version: int) -> None:
    answer = read_plain_answer(version, response_of(version))
    assert answer is not None
    assert answer.throttle_time_ms == 7
    topics: list[object] = [FLIGHTS, FLIGHTS, HOPS] if version >= 13 else ["flights", "flights", "hops"]
    assert [partition.topic for partition in answer.partitions] == topics
    assert [partition.partition for partition in answer.partitions] == [0, 1, 2]
    assert [partition.base_offset for partition in answer.partitions] == [2**40, 2**40 + 1, 2**40 + 2]
    assert {partition.error_code for partition in answer.partitions} == {0}


@pytest.mark.parametrize(
    "changed",
    [
        {"error_code": 6},
        {"error_message": "no"},
        {"current_leader": ProduceResponse.TopicProduceResponse.PartitionProduceResponse.LeaderIdAndEpoch(1, 2)},
    ],
)
def test_any_other_answer_is_left_to_the_library(changed: dict[str, Any]) -> None:
    assert read_plain_answer(13, response_of(13, **changed)) is None


def test_half_an_answer_is_left_to_the_library() -> None:
    whole = response_of(13)
    assert all(read_plain_answer(13, whole[:size]) is None for size in range(len(whole)))
    assert read_plain_answer(13, whole + b"\0") is None
    assert read_plain_answer(8, whole) is None
