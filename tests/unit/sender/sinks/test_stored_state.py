# SPDX-License-Identifier: Apache-2.0
"""The recovery state of a transaction in 64 bits, and the offsets of a group in a record."""

from __future__ import annotations

import json
import sys
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from hypothesis import given
from hypothesis import strategies as some

from shmaccum.arena.results import FENCED_STATE, LOST_STATE
from shmaccum.common.format.group_offsets import (
    TEXT_SIZE_MAX,
    GroupMember,
    OffsetToCommit,
    pack_offsets,
    unpack_offsets,
)
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.producer.group_offsets import parse_group, parse_offsets
from shmaccum.sender.sinks.kafka.transaction.protocol import RecoveryState, State, TransactionOutcome
from shmaccum.sender.sinks.kafka.transaction.stored_state import StoredState, pack, unpack

PLACE = TopicPartition("flights", 1)

STANDINGS = some.builds(
    RecoveryState,
    producer_id=some.just(7),
    producer_epoch=some.integers(0, 2**15 - 1),
    state=some.sampled_from([state for state in State if state is not State.NEW]),
    version=some.integers(1, 63),
    is_known=some.booleans(),
    is_confirmed=some.booleans(),
    is_end_sent=some.booleans(),
    needs_epoch=some.booleans(),
    outcome=some.sampled_from([None, *TransactionOutcome]),
    partitions=some.just(frozenset()),
    groups=some.just(frozenset()),
)


# --- the recovery state


@given(STANDINGS, some.integers(0, 2**30 - 1), some.booleans())
def test_a_recovery_state_is_read_as_it_was_stored(recovery_state: RecoveryState, number: int, is_fenced: bool) -> None:
    stored = StoredState(recovery_state, number, is_fenced)
    word = pack(stored)
    assert 0 < word < 2**64
    assert bool(word & FENCED_STATE) is is_fenced
    assert unpack(word, 7, recovery_state.producer_epoch, 99) == stored


@given(some.integers(0, 2**64 - 1), some.integers(-1, 9), some.integers(-1, 2**15 - 1))
def test_any_bits_are_a_standing_or_a_lost_one(word: int, producer_id: int, epoch: int) -> None:
    recovery_state, _, is_fenced = unpack(word, producer_id, epoch, 5)
    assert isinstance(recovery_state.state, State)
    assert is_fenced <= bool(word & FENCED_STATE)


def test_nothing_stored_is_a_new_producer() -> None:
    assert pack(StoredState(RecoveryState(), 3)) == 0
    assert unpack(0, -1, -1, 3) == StoredState(RecoveryState())


def test_a_lost_standing_leaves_the_outcome_of_the_newest_transaction_open() -> None:
    assert unpack(LOST_STATE, 7, 4, 3) == StoredState(RecoveryState(outcome=TransactionOutcome.UNKNOWN), 3)


def test_names_that_a_dead_sender_did_not_write_down_are_asked_for_again() -> None:
    word = pack(StoredState(RecoveryState(8, 0, State.READY, outcome=TransactionOutcome.COMMITTED), 3))
    assert unpack(word, 7, 2**15 - 2, 3) == StoredState(RecoveryState(outcome=TransactionOutcome.COMMITTED), 3)
    assert unpack(word, -1, -1, 3) == StoredState(RecoveryState(outcome=TransactionOutcome.COMMITTED), 3)


# --- offsets in a record

MEMBERS = some.builds(
    GroupMember, some.text(min_size=1), some.text(), some.integers(-1, 2**31 - 1), some.none() | some.text()
)
PLACES = some.builds(TopicPartition, some.text(), some.integers(0, 2**31 - 1))
OFFSETS = some.builds(OffsetToCommit, some.integers(0, 2**63 - 1), some.text(), some.integers(-1, 2**31 - 1))


@given(MEMBERS, some.dictionaries(PLACES, OFFSETS, max_size=3))
def test_offsets_survive_a_round_trip(member: GroupMember, offsets: dict[TopicPartition, OffsetToCommit]) -> None:
    assert unpack_offsets(pack_offsets(member, offsets)) == (member, offsets)


JSON = some.recursive(some.none() | some.integers() | some.text(), lambda inner: some.lists(inner, max_size=5))


@given(some.binary(max_size=40) | JSON.map(lambda given: json.dumps(given).encode()))
def test_a_record_of_another_owner_is_refused_with_advice(value: bytes) -> None:
    with pytest.raises(ValueError, match="is not one of send_offsets_to_transaction"):
        unpack_offsets(value)


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"[" * 100_000,
        b'["g","",-1,null,[["t",-1,5,"",-1]]]',
        b'["g","",-1,null,[["t",0,-5,"",-1]]]',
        b'["g","",-1,null,[["t",0,true,"",-1]]]',
        b'["g","",-1,7,[]]',
        b'["g\\ud800","",-1,null,[]]',
        b'["g","",-1,null,[["t",0,5,"\\udfff",-1]]]',
        b'["g","",-1,null,[["t",0,5,"%s",-1]]]' % (b"." * (TEXT_SIZE_MAX + 1)),
    ],
)
def test_wrong_offsets_are_refused(value: bytes | None) -> None:
    with pytest.raises(ValueError, match="is not one of"):
        unpack_offsets(value)


# --- input from programs

OffsetAndMetadata = namedtuple("OffsetAndMetadata", "offset metadata leader_epoch")  # noqa: PYI024 - as kafka-python


@pytest.mark.parametrize(
    ("given_offsets", "wanted"),
    [
        ({PLACE: 5}, OffsetToCommit(5)),
        ({PLACE: OffsetAndMetadata(5, "words", 3)}, OffsetToCommit(5, "words", 3)),
        ([SimpleNamespace(topic="flights", partition=1, offset=5, metadata=None, leader_epoch=-1)], OffsetToCommit(5)),
        ([confluent_kafka.TopicPartition("flights", 1, 5), confluent_kafka.TopicPartition("t", 0)], OffsetToCommit(5)),
    ],
)
def test_the_offsets_of_each_client_are_taken(given_offsets: Any, wanted: OffsetToCommit) -> None:
    assert parse_offsets(given_offsets) == {PLACE: wanted}


def with_words(words: Any, leader_epoch: Any = None) -> dict[TopicPartition, Any]:
    return {PLACE: OffsetAndMetadata(5, words, leader_epoch)}


WRONG: list[Any] = [{PLACE: -1001}, {PLACE: None}, {PLACE: "5"}, 7, ["flights"], {PLACE: 2**63}]
WRONG += [with_words(b"words"), with_words("\ud800"), with_words("." * (TEXT_SIZE_MAX + 1))]
WRONG += [with_words("", "3"), with_words("", -2), with_words("", 2**31), with_words("", float("inf"))]
WRONG_PLACES: list[Any] = [(None, 0), (b"flights", 0), ("\udfff", 0), ("t", 0.5), ("t", "0"), ("t", -1), ("t", 2**31)]
WRONG += [{TopicPartition(*place): 5} for place in WRONG_PLACES]


@pytest.mark.parametrize("wrong", WRONG)
def test_offsets_that_cannot_be_are_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"give \{TopicPartition|it must be 0 or more"):
        parse_offsets(wrong)


def test_a_group_is_named_by_its_id_or_by_metadata() -> None:
    metadata = SimpleNamespace(group_id="g", generation_id=4, member_id="m", group_instance_id=None)
    assert parse_group("g") == GroupMember("g")
    assert parse_group(metadata) == GroupMember("g", "m", 4)


@pytest.mark.parametrize("instance_id", [None, "i"])
def test_the_metadata_of_librdkafka_name_a_group(instance_id: str | None) -> None:
    settings = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}
    consumer = confluent_kafka.Consumer(settings | ({"group.instance.id": instance_id} if instance_id else {}))
    metadata: Any = consumer.consumer_group_metadata()
    consumer.close()
    assert parse_group(metadata) == GroupMember("g", "", -1, instance_id)
    joined = metadata.replace(b"\xff\xff\xff\xffg\0\0", b"\4\0\0\0g\0m\0")
    assert parse_group(joined) == GroupMember("g", "m", int.from_bytes(b"\4\0\0\0", sys.byteorder), instance_id)


@pytest.mark.parametrize(
    "wrong",
    [
        *("", None, 7, b"g", b"CGMDv2:", b"CGMDv2:\0\0\0\0\xff\0\0\1", SimpleNamespace(group_id=b"g")),
        *("g\ud800", "g" * (TEXT_SIZE_MAX + 1)),
    ],
)
def test_no_group_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="names no group"):
        parse_group(wrong)
