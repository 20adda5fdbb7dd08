# SPDX-License-Identifier: Apache-2.0
"""A topic gets more partitions. A producer requests a missing one and waits for it up to max_block_ms."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka.admin import KafkaAdminClient, NewTopic

from shmaccum import aio
from shmaccum.arena import Arena
from shmaccum.exceptions import PartitionCountUnknownError, ProducerClosedError, UnknownPartitionError
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from tests.support.log_server import served
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.sender import ScriptedSink

TOPIC = "words"
MAX_BLOCK_MS = 60_000


class GrowingSink(ScriptedSink):
    """A sink whose topic has one partition, and three after `growth_at` more requests."""

    growth_at = 1

    def __init__(self) -> None:
        super().__init__(partitions=3)
        self.asked: list[str] = []

    def ask_again(self, topic: str) -> None:
        self.asked.append(topic)

    def partition_count(self, topic: str) -> int | None:
        return 3 if len(self.asked) >= self.growth_at else 1


@contextlib.contextmanager
def running(sender: Sender) -> Iterator[None]:
    is_over = threading.Event()

    def run() -> None:
        while not is_over.is_set():
            sender.run_once()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(WATCHDOG_S)


@pytest.fixture
def sink(arena: Arena) -> Iterator[GrowingSink]:
    """The sink of a running sender, which has published that the topic has one partition."""
    sink = GrowingSink()
    arena.declare_topic(TOPIC, 1)
    with Sender(arena, sink) as sender:
        sender.open()
        with running(sender):
            yield sink


def rows(*partitions: int) -> pa.RecordBatch:
    return pa.record_batch({"value": [b"v"] * len(partitions), "partition": pa.array(partitions, pa.int32())})


CALLS: dict[str, Callable[[Producer], Any]] = {
    "send": lambda producer: [producer.send(TOPIC, b"v", partition=2)],
    "send_many of one partition": lambda producer: producer.send_many(TOPIC, [b"v"], partition=2),
    "send_many of several": lambda producer: producer.send_many(TOPIC, [b"v", b"v"], partition=[0, 2]),
    "append_arrow": lambda producer: producer.append_arrow(rows(0, 2), topic=TOPIC),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("growth_at", [1, 4])
def test_a_record_for_a_new_partition_waits_for_it(arena: Arena, sink: GrowingSink, call: str, growth_at: int) -> None:
    sink.growth_at = growth_at
    with Producer(arena, max_block_ms=MAX_BLOCK_MS) as producer:
        futures = CALLS[call](producer)
        assert [future.get(WATCHDOG_S).partition for future in futures][-1] == 2
    assert len(sink.asked) >= growth_at
    assert set(sink.asked) == {TOPIC}


@pytest.mark.parametrize("growth_at", [1, 4])
def test_a_task_waits_for_it(arena: Arena, sink: GrowingSink, growth_at: int) -> None:
    sink.growth_at = growth_at

    async def send() -> list[int]:
        async with aio.Producer(arena, max_block_ms=MAX_BLOCK_MS) as producer:
            one = await producer.send_and_wait(TOPIC, b"v", partition=1)
            return [one.partition]

    assert asyncio.run(send()) == [1]


@pytest.mark.parametrize("partition", [1, [0, 1]])
def test_a_task_waits_for_it_with_many_records(arena: Arena, sink: GrowingSink, partition: Any) -> None:
    sink.growth_at = 2

    async def send() -> int:
        async with aio.Producer(arena, max_block_ms=MAX_BLOCK_MS) as producer:
            sent = await producer.send_many(TOPIC, [b"v", b"w"], partition=partition)
            return [one.partition for one in await sent][-1]

    assert asyncio.run(send()) == 1


@pytest.mark.parametrize("call", CALLS)
def test_a_partition_that_never_comes_is_refused_after_max_block_ms(arena: Arena, sink: GrowingSink, call: str) -> None:
    sink.growth_at = 10**9
    with Producer(arena, max_block_ms=300) as producer:
        began_s = time.monotonic()
        with pytest.raises(UnknownPartitionError, match=r"partition 2: its partition count is 1.* 300 ms"):
            CALLS[call](producer)
        assert time.monotonic() - began_s >= 0.3
    assert sink.asked


def test_no_place_of_the_arena_is_taken_by_a_partition_that_never_comes(arena: Arena, sink: GrowingSink) -> None:
    sink.growth_at = 10**9
    with Producer(arena, max_block_ms=0) as producer:
        for partition in range(1, 100):
            with pytest.raises(UnknownPartitionError):
                producer.send(TOPIC, b"v", partition=partition)
        assert len(arena.native.partitions()) == 0


def test_a_partition_that_no_topic_can_have_is_refused_at_once(arena: Arena, sink: GrowingSink) -> None:
    with Producer(arena, max_block_ms=MAX_BLOCK_MS) as producer:
        with pytest.raises(UnknownPartitionError, match="no topic has a partition 2147483647"):
            producer.send(TOPIC, b"v", partition=2**31 - 1)
        with pytest.raises(UnknownPartitionError, match="no topic has a partition 2147483647"):
            producer.send_many(TOPIC, [b"v"], partition=2**31 - 1)
    assert sink.asked == []


def test_without_a_sender_the_wait_ends_in_time(arena: Arena) -> None:
    arena.declare_topic(TOPIC, 1)
    with Producer(arena, max_block_ms=50) as producer:
        with pytest.raises(UnknownPartitionError, match="50 ms"):
            producer.send(TOPIC, b"v", partition=1)
        with pytest.raises(PartitionCountUnknownError, match="50 ms"):
            producer.send("others", b"v", partition=1)


def test_close_ends_the_wait(arena: Arena) -> None:
    arena.declare_topic(TOPIC, 1)
    raised: list[BaseException] = []
    producer = Producer(arena, max_block_ms=MAX_BLOCK_MS)

    def send() -> None:
        try:
            producer.send(TOPIC, b"v", partition=1)
        except ProducerClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    wait_until(lambda: TOPIC in arena.native.take_wanted_topics(), "the producer asks")
    producer.close(WATCHDOG_S)
    thread.join(WATCHDOG_S)
    assert len(raised) == 1


def test_one_that_waits_asks_again_and_one_that_has_gone_does_not(arena: Arena) -> None:
    arena.declare_topic(TOPIC, 1)
    arena.native.want_partitions(TOPIC, 2)
    arena.native.want_partitions(TOPIC, 3)
    assert arena.native.take_wanted_topics() == [TOPIC]
    assert arena.native.take_wanted_topics() == []
    arena.native.want_partitions(TOPIC, 2)
    arena.native.set_topic_partition_count(TOPIC, 2)
    assert arena.native.take_wanted_topics() == []


def test_a_partition_of_a_broker_is_known_at_once(arena: Arena, tmp_path: Path) -> None:
    with served(tmp_path / "log") as address, contextlib.closing(KafkaAdminClient(bootstrap_servers=address)) as admin:
        admin.create_topics([NewTopic(TOPIC, 1, 1)])
        with Producer(arena, max_block_ms=MAX_BLOCK_MS) as producer, Sender(arena, f"kafka:{address}") as sender:
            sender.open()
            with running(sender):
                producer.send(TOPIC, b"v").get(WATCHDOG_S)
                admin.create_partitions({TOPIC: {"count": 2, "assignments": [[1]]}})
                assert producer.send(TOPIC, b"v", partition=1).get(WATCHDOG_S).partition == 1
