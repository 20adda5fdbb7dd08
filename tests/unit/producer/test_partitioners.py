# SPDX-License-Identifier: Apache-2.0
"""The partition of a record, through Python. partitioner_test.c tests the weights and the races."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from kafka.partitioner import DefaultPartitioner

from shmaccum import Producer, _native
from shmaccum.arena import Arena
from shmaccum.exceptions import InvalidArgumentError, UnknownPartitionError
from shmaccum.producer.partitioners import Choice, TopicView, resolve
from tests.support.accumulator import Accumulator
from tests.support.arenas import Drainer

TOPIC = "flights"


@pytest.fixture
def topic(arena: Arena) -> str:
    """A topic of five partitions."""
    arena.native.set_topic_partition_count(TOPIC, 5)
    return TOPIC


def partitions_of(drainer: Drainer) -> dict[int, int]:
    """Return the number of records of each partition."""
    return {partition: len(records) for (_, partition), records in drainer.records.items() if records}


def murmur2_partition(key: bytes, partition_count: int) -> int:
    """Return Kafka's partition of a key: ``toPositive(murmur2(key)) % partition_count`` (BuiltInPartitioner)."""
    return (_native.murmur2(key) & 0x7FFFFFFF) % partition_count


def choice_of(key: bytes | None, available: list[int] | None = None) -> Choice:
    return Choice(TOPIC, key, key, None, None, range(5), [0, 1, 2, 3, 4] if available is None else available)


# --- keys


def test_a_key_gets_the_partition_of_kafka_python(arena: Arena, topic: str) -> None:
    keys = [f"tail-{number}".encode() for number in range(100)]
    view = TopicView(choice_of(None))
    with Drainer(arena) as drainer, Producer(arena) as producer:
        for key in keys:
            producer.send(topic, key, key)
    expected = Counter(DefaultPartitioner().partition(topic, key, key, None, None, view) for key in keys)
    assert partitions_of(drainer) == expected
    for (_, partition), records in drainer.records.items():
        assert {murmur2_partition(key or b"", 5) for key, _ in records} <= {partition}


def test_an_empty_key_is_a_key(arena: Arena, topic: str) -> None:
    with Drainer(arena) as drainer, Producer(arena) as producer:
        for _ in range(10):
            producer.send(topic, b"v", b"")
    assert partitions_of(drainer) == {murmur2_partition(b"", 5): 10}


def test_keys_may_be_ignored(arena: Arena, topic: str) -> None:
    with Drainer(arena) as drainer, Producer(arena, partitioner_ignore_keys=True, linger_ms=1000) as producer:
        for number in range(10):
            producer.send(topic, b"v", b"%d" % number)
        sticky = {producer.send(topic, b"v", b"%d" % number).partition_index for number in range(10)}
    assert sum(partitions_of(drainer).values()) == 20
    assert len(sticky) == 1


def test_an_explicit_partition_comes_before_the_key(arena: Arena, topic: str) -> None:
    with Drainer(arena) as drainer, Producer(arena) as producer:
        future = producer.send(topic, b"v", b"k", partition=4)
        assert future.get(60).partition == 4
    assert partitions_of(drainer) == {4: 1}


# --- the sticky partition


def test_without_a_key_full_batches_go_to_all_partitions(arena: Arena, topic: str) -> None:
    """BuiltInPartitionerTest: the partition changes when a batch is full, so no batch is sent in part.

    One of five partitions gets none of 160 batches once in 10^15 runs, and none of 54 once in 35,000.
    """
    with Drainer(arena) as drainer, Producer(arena, linger_ms=60_000) as producer:
        futures = [producer.send(topic, b"%0100d" % number) for number in range(6000)]
        producer.flush(60)
    assert sum(partitions_of(drainer).values()) == len(futures)
    assert set(partitions_of(drainer)) == {0, 1, 2, 3, 4}


def test_two_producers_share_the_sticky_partition(arena: Arena, topic: str) -> None:
    with Arena.attach(arena.name) as other_arena, Producer(arena) as producer, Producer(other_arena) as other:
        mine = {producer.send(topic, b"v").partition_index for _ in range(5)}
        theirs = {other.send(topic, b"v").partition_index for _ in range(5)}
        with Drainer(arena):
            producer.flush(60)
            other.flush(60)
    assert mine == theirs
    assert len(mine) == 1


def test_a_single_partition_is_always_chosen(arena: Arena) -> None:
    arena.native.set_topic_partition_count("single", 1)
    with Drainer(arena) as drainer, Producer(arena) as producer:
        for number in range(500):
            producer.send("single", b"%0100d" % number)
    assert partitions_of(drainer) == {0: 500}


def test_an_unavailable_partition_is_not_chosen(arena: Arena, topic: str) -> None:
    """BuiltInPartitionerTest.unavailablePartitionsTest"""
    with Accumulator(arena) as sender, Producer(arena, linger_ms=0) as producer:
        sender.become_sender()
        for partition in range(4):
            sender.set_available(sender.append(topic, partition, 1, None, b"v").partition_index, False)
        assert producer.partitions_to_choose_from(topic) == (range(5), [4])
        future = producer.send(topic, b"v")
        assert arena.native.partitions()[future.partition_index] == (topic, 4)
        sender.abort()


# --- custom partitioners


def test_round_robin_takes_available_partitions_in_turn(arena: Arena, topic: str) -> None:
    choose = resolve("round_robin")
    assert choose is not None
    assert [choose(choice_of(b"k")) for _ in range(7)] == [0, 1, 2, 3, 4, 0, 1]
    assert [choose(choice_of(None, [1, 3])) for _ in range(3)] == [3, 1, 3]
    assert choose(choice_of(None, [])) in range(5)
    with Drainer(arena) as drainer, Producer(arena, partitioner="round_robin") as producer:
        for _ in range(50):
            producer.send(topic, b"v", b"the same key")
    assert partitions_of(drainer) == dict.fromkeys(range(5), 10)


def test_a_function_gets_key_partitions_and_available(arena: Arena, topic: str) -> None:
    seen: list[Any] = []

    def last(key: bytes | None, all_partitions: list[int], available: list[int]) -> int:
        seen.append((key, list(all_partitions), list(available)))
        return all_partitions[-1]

    with Drainer(arena) as drainer, Producer(arena, partitioner=last, key_serializer="str") as producer:
        producer.send(topic, b"v", "k")
        producer.send(topic, b"v", partition=1)  # the partitioner is not called
    assert seen == [(b"k", [0, 1, 2, 3, 4], [0, 1, 2, 3, 4])]
    assert partitions_of(drainer) == {4: 1, 1: 1}


def test_partitioners_of_kafka_python_work(arena: Arena, topic: str) -> None:
    with Drainer(arena) as drainer, Producer(arena, partitioner=DefaultPartitioner()) as producer:
        for number in range(20):
            producer.send(topic, b"v", b"%d" % number)
    expected = Counter(murmur2_partition(b"%d" % number, 5) for number in range(20))
    assert partitions_of(drainer) == expected


@pytest.mark.parametrize("answer", [5, -1, None, "1", True, 1.0])
def test_an_impossible_partition_is_rejected_and_no_record_appended(arena: Arena, topic: str, answer: Any) -> None:
    with Producer(arena, partitioner=lambda *_: answer) as producer:
        with pytest.raises(UnknownPartitionError, match="the partitioner chose"):
            producer.send(topic, b"v")
        assert producer.record_count == 0


@pytest.mark.parametrize("partitioner", ["sticky", 3])
def test_an_object_that_is_no_partitioner_is_rejected(arena: Arena, partitioner: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        resolve(partitioner)
    with pytest.raises(InvalidArgumentError):
        Producer(arena, partitioner=partitioner)
