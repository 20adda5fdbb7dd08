# SPDX-License-Identifier: Apache-2.0
"""shmaccum_on_unusable: if the arena becomes unusable, the library's own producer takes the records."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any

import aiokafka
import kafka
import pytest
from confluent_kafka import KafkaException
from kafka.errors import KafkaError

from shmaccum.arena import Arena
from shmaccum.compat import aiokafka as ours_aiokafka
from shmaccum.compat import confluent as ours_confluent
from shmaccum.compat import confluent_producer
from shmaccum.compat import kafka_python as ours_kafka_python
from tests.support.arenas import SHARED_MEMORY
from tests.unit.compat.conftest import TOPIC


class Library:
    """A replacement for a library's producer."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.options = {**arguments[0]} if arguments else options
        self.records: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.calls: list[str] = []
        made.append(self)

    def send(self, *record: Any, **named: Any) -> str:
        self.records.append((record, named))
        return "theirs"

    produce = send

    def poll(self, _timeout: float) -> int:
        self.calls.append("poll")
        return 2

    def flush(self, *_timeout: Any) -> int:
        self.calls.append("flush")
        return 3

    def close(self) -> None:
        self.calls.append("close")


class LoopLibrary(Library):
    """The same for an event loop."""

    async def start(self) -> None:
        self.calls.append("start")

    async def send(self, *record: Any) -> asyncio.Future[str]:  # type: ignore[override]
        self.records.append((record, {}))
        future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        future.set_result("theirs")
        return future

    async def flush(self) -> None:  # type: ignore[override]
        self.calls.append("flush")

    async def stop(self) -> None:
        self.calls.append("stop")


made: list[Library] = []


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    made.clear()
    monkeypatch.setattr(kafka, "KafkaProducer", Library)
    monkeypatch.setattr(aiokafka, "AIOKafkaProducer", LoopLibrary)
    monkeypatch.setattr(confluent_producer, "LibraryProducer", Library)


def remove(arena: Arena) -> None:
    Arena.remove(arena.name)
    arena.native.check_name()


def test_kafka_python(unkept: dict[str, Any], unsent: Arena) -> None:
    producer = ours_kafka_python.KafkaProducer(
        bootstrap_servers="b:9092", value_serializer=str.encode, **unkept, shmaccum_on_unusable="library"
    )
    remove(unsent)
    assert producer.send(TOPIC, "v", key=b"k", partition=0) == "theirs"
    (library,) = made
    assert library.options == {"bootstrap_servers": "b:9092", "value_serializer": str.encode}
    assert library.records == [((TOPIC, "v", b"k", None, 0, None), {})]
    producer.flush()
    producer.close()
    assert library.calls == ["flush", "flush", "close"]


def test_confluent(unkept: dict[str, Any], unsent: Arena) -> None:
    told: list[Any] = []
    own = {name.replace("shmaccum_", "shmaccum."): value for name, value in unkept.items()}
    config = {"bootstrap.servers": "b:9092", "on_delivery": told.append}
    producer = ours_confluent.Producer({**config, **own, "shmaccum.on_unusable": "library"})
    remove(unsent)
    producer.produce(TOPIC, "v", key="k")
    producer.produce(TOPIC, "w", partition=0, headers={"h": "1"}, timestamp=5)
    (library,) = made
    assert library.options == config
    assert library.records == [
        ((TOPIC, b"v", b"k"), {"partition": -1, "on_delivery": told.append, "timestamp": 0}),
        (
            (TOPIC, b"w", None),
            {"partition": 0, "on_delivery": told.append, "timestamp": 5, "headers": [("h", b"1")]},
        ),
    ]
    assert producer.poll(0) == 2
    assert producer.flush(1) == 3
    producer.close()


def cut(arena: Arena) -> None:
    os.truncate(SHARED_MEMORY / arena.name, 0)


@pytest.mark.parametrize("lose", [cut, remove])
def test_confluent_ends_in_order_with_records_that_were_in_the_arena(
    unkept: dict[str, Any], unsent: Arena, lose: Callable[[Arena], None]
) -> None:
    """If the memory is lost, the callback of each record reports that its result is unknown."""
    told: list[Any] = []
    own = {name.replace("shmaccum_", "shmaccum."): value for name, value in unkept.items()}
    producer = ours_confluent.Producer({**own, "shmaccum.on_unusable": Library})
    producer.produce(TOPIC, "before", on_delivery=lambda error, _message: told.append(error))
    lose(unsent)
    producer.produce(TOPIC, "v")
    assert producer.flush(1) == 3
    producer.close()
    assert [record[0][1] for record in made[0].records] == [b"v"]
    assert [error is not None for error in told] == ([True] if lose is cut else [])
    if lose is cut:
        Arena.remove(unsent.name)


@pytest.mark.parametrize("lose", [cut, remove])
def test_aiokafka_stops_in_order_with_records_that_were_in_the_arena(
    unkept: dict[str, Any], unsent: Arena, lose: Callable[[Arena], None]
) -> None:
    async def run() -> None:
        producer = ours_aiokafka.AIOKafkaProducer(**unkept, shmaccum_on_unusable=LoopLibrary)
        await producer.start()
        before = await producer.send(TOPIC, b"before")
        lose(unsent)
        assert await producer.send_and_wait(TOPIC, b"v") == "theirs"
        await producer.stop()
        assert before.exception() is not None

    asyncio.run(run())
    if lose is cut:
        Arena.remove(unsent.name)


def test_aiokafka(unkept: dict[str, Any], unsent: Arena) -> None:
    async def run() -> None:
        producer = ours_aiokafka.AIOKafkaProducer(bootstrap_servers="b:9092", **unkept, shmaccum_on_unusable="library")
        await producer.start()
        remove(unsent)
        assert await (await producer.send(TOPIC, b"v", b"k", 0)) == "theirs"
        assert await producer.send_and_wait(TOPIC, b"w") == "theirs"
        await producer.flush()
        await producer.stop()

    asyncio.run(run())
    (library,) = made
    assert library.options == {"bootstrap_servers": "b:9092"}
    assert [record[0][:3] for record in library.records] == [(TOPIC, b"v", b"k"), (TOPIC, b"w", None)]
    assert library.calls[0] == "start"
    assert library.calls[-1] == "stop"


@pytest.mark.parametrize("given", ["kafka", 3])
def test_a_wrong_one_is_refused(unkept: dict[str, Any], unsent: Arena, given: Any) -> None:
    own = {name.replace("shmaccum_", "shmaccum."): value for name, value in unkept.items()}
    ways: list[tuple[type[Exception], Callable[[], object]]] = [
        (ValueError, lambda: ours_kafka_python.KafkaProducer(**unkept, shmaccum_on_unusable=given)),
        (ValueError, lambda: ours_aiokafka.AIOKafkaProducer(**unkept, shmaccum_on_unusable=given)),
        (KafkaException, lambda: ours_confluent.Producer({**own, "shmaccum.on_unusable": given})),
    ]
    for error, make in ways:
        with pytest.raises(error, match="shmaccum_on_unusable is 'library' or a function"):
            make()


def test_without_it_the_library_raises(unkept: dict[str, Any], unsent: Arena) -> None:
    producer = ours_kafka_python.KafkaProducer(**unkept)
    remove(unsent)
    with pytest.raises(KafkaError):
        producer.send(TOPIC, b"v")
    assert made == []
    with contextlib.suppress(KafkaError):
        producer.close(0)
