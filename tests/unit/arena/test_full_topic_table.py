# SPDX-License-Identifier: Apache-2.0
"""A program that sends to misspelt topics fills the topic table. A warning names the remedy before it is full."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shmaccum.arena import Arena
from shmaccum.config import ArenaOptions
from shmaccum.exceptions import InvalidArgumentError, PartitionCountUnknownError, TableFullError
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from tests.support.sender import ScriptedSink

ROOM = 8


class KnowingSink(ScriptedSink):
    """A sink that has the topics whose names begin with a k."""

    def partition_count(self, topic: str) -> int | None:
        return 1 if topic.startswith("k") else None


@pytest.fixture
def small(arena_name: str) -> Iterator[Arena]:
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", topic_count=ROOM) as arena:
        yield arena


def misspell(arena: Arena, count: int) -> None:
    with Producer(arena, max_block_ms=0) as producer:
        for number in range(count):
            with pytest.raises(PartitionCountUnknownError):
                producer.send(f"oops-{number}", b"v")


def test_a_full_table_names_a_topic_that_no_sink_knows(small: Arena) -> None:
    small.declare_topic("known", 1)
    misspell(small, ROOM - 1)
    no_room = pytest.raises(TableFullError, match="has 8, and no sink knows 7 of them, such as 'oops-0'")
    with Producer(small, max_block_ms=0) as producer, no_room:
        producer.send("another", b"v")
    with Producer(small, linger_ms=0) as producer, Sender(small, KnowingSink(), linger_ms=0) as sender:
        future = producer.send("known", b"v")
        sender.open()
        while not future.is_done:
            sender.run_once()


def test_a_table_full_of_known_topics_is_too_small(small: Arena) -> None:
    for number in range(ROOM):
        small.declare_topic(f"known-{number}", 1)
    too_small = pytest.raises(TableFullError, match="create it with a larger topic_count")
    with Producer(small, max_block_ms=0) as producer, too_small:
        producer.send("another", b"v")


@pytest.mark.parametrize(("misspelt", "is_told"), [(4, False), (5, True)])
def test_the_sender_reports_when_little_room_is_left(
    small: Arena, caplog: pytest.LogCaptureFixture, misspelt: int, is_told: bool
) -> None:
    small.declare_topic("known", 1)
    misspell(small, misspelt)
    with Sender(small, KnowingSink(), linger_ms=0) as sender:
        sender.open()
        sender.run_once()
    assert ("topics that the sink does not know take places, as 'oops-0'" in caplog.text) == is_told


@pytest.mark.parametrize("name", ["a" * 250, "", ".", "..", "a b", "a\x1b[0m", "ä"])
def test_a_name_that_no_topic_can_have_takes_no_place(small: Arena, name: str) -> None:
    with Producer(small, max_block_ms=0) as producer, pytest.raises(InvalidArgumentError, match="is not a topic name"):
        producer.send(name, b"v")
    assert small.native.topics() == []


def test_the_longest_name_and_empty_parts_arrive(small: Arena) -> None:
    name = "k" * 249
    sink = KnowingSink()
    small.declare_topic(name, 1)
    with Producer(small, linger_ms=0) as producer, Sender(small, sink, linger_ms=0) as sender:
        future = producer.send(name, b"", key=b"", headers=[("", b""), ("n", None)])
        tombstone = producer.send(name, None)
        sender.open()
        while not (future.is_done and tombstone.is_done):
            sender.run_once()
        assert (future.get(0).topic, future.get(0).offset, tombstone.get(0).offset) == (name, 0, 1)


@pytest.mark.parametrize("number", ["9" * 5000, "-" + "9" * 5000])
def test_a_number_of_thousands_of_digits_is_refused_by_name(number: str) -> None:
    with pytest.raises(InvalidArgumentError, match="topic_count"):
        ArenaOptions.parse({"topic_count": number})
