# SPDX-License-Identifier: Apache-2.0
"""Each public method of a producer that appends hands its records over once the arena is unusable.

Each public method is in one of two tables: it appends, or it does not. A new method fails the test until it is in one.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest

import shmaccum
from shmaccum import aio
from shmaccum.arena import Arena
from shmaccum.compat import aiokafka as our_aiokafka
from shmaccum.compat import confluent as our_confluent
from shmaccum.compat import kafka_python as our_kafka_python
from shmaccum.logging import ArenaHandler
from tests.support.arenas import SHARED_MEMORY

TOPIC = "flights"
SIZES: dict[str, Any] = {"buffer_memory": "64KiB", "batch_size": "4KiB", "process_count": 64}
VALUES = [b"a", b"b"]

OTHERS = {
    "close flush errors list_topics metrics partitions_for partitions_to_choose_from synced_together start stop"
    " will_be_delivered check_has_transactions refuse_sends bootstrap_connected max_usable_produce_magic cluster_id"
    " list_topics poll purge set_sasl_credentials reset create_batch": "it appends nothing",
    "init_transactions begin_transaction transaction commit_transaction abort_transaction send_offsets_to_transaction"
    " join": "an arena with transactions has no on_unusable",
    "append_columns append_rows": "the core of send_many and append_arrow, which the package itself calls",
}
"""Public methods that append nothing."""


class Fallback:
    """Accepts the records of each kind of producer."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.is_asynchronous = False

    def send(self, _topic: str, value: Any, *_rest: Any, **_named: Any) -> Any:
        self.values.append(value)
        return self._answer() if self.is_asynchronous else "theirs"

    async def _answer(self) -> asyncio.Future[str]:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        answer.set_result("theirs")
        return answer

    produce = send

    def handle(self, record: logging.LogRecord) -> None:
        self.values.append(record.getMessage().encode())

    def poll(self, _timeout: float) -> int:
        return 0

    def flush(self, *_timeout: Any) -> Any:
        return self._nothing() if self.is_asynchronous else 0

    def close(self, *_timeout: Any) -> Any:
        return self._nothing() if self.is_asynchronous else None

    async def _nothing(self) -> None:
        pass


@pytest.fixture
def lost(arena_name: str) -> Iterator[Arena]:
    arena = Arena.create(arena_name, external_sender=True, topics={TOPIC: 1}, **SIZES)
    yield arena
    gc.collect()
    arena.close()
    Arena.remove(arena_name, missing_ok=True)


def cut(arena: Arena) -> None:
    os.truncate(SHARED_MEMORY / arena.name, 0)


def remove(arena: Arena) -> None:
    Arena.remove(arena.name)
    arena.native.check_name()


# --- the methods: each sends VALUES


def table() -> pa.Table:
    return pa.table({"value": pa.array(VALUES, pa.binary())})


def by_batch(producer: our_aiokafka.AIOKafkaProducer) -> our_aiokafka.BatchBuilder:
    batch = producer.create_batch()
    for value in VALUES:
        batch.append(timestamp=None, key=None, value=value)
    return batch


def log_record(value: bytes) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "app", "msg": value.decode()})


Each = Callable[[Any], Any]
APPENDING: Mapping[type, Mapping[str, Each]] = {
    shmaccum.Producer: {
        "send": lambda one: [one.send(TOPIC, value) for value in VALUES],
        "send_many": lambda one: one.send_many(TOPIC, iter(VALUES)),
        "append_arrow": lambda one: one.append_arrow(table(), topic=TOPIC),
    },
    ArenaHandler: {
        "handle": lambda one: [one.handle(log_record(value)) for value in VALUES],
        "emit": lambda one: [one.emit(log_record(value)) for value in VALUES],
    },
    our_kafka_python.KafkaProducer: {"send": lambda one: [one.send(TOPIC, value) for value in VALUES]},
    our_confluent.Producer: {
        "produce": lambda one: [one.produce(TOPIC, value) for value in VALUES],
        "produce_batch": lambda one: one.produce_batch(TOPIC, [{"value": value} for value in VALUES]),
    },
}


async def _each(call: Callable[[bytes], Awaitable[Any]]) -> None:
    for value in VALUES:
        await call(value)


APPENDING_IN_LOOP: Mapping[type, Mapping[str, Each]] = {
    aio.Producer: {
        "send": lambda one: _each(lambda value: one.send(TOPIC, value)),
        "send_and_wait": lambda one: _each(lambda value: one.send_and_wait(TOPIC, value)),
        "send_many": lambda one: one.send_many(TOPIC, VALUES),
    },
    our_aiokafka.AIOKafkaProducer: {
        "send": lambda one: _each(lambda value: one.send(TOPIC, value)),
        "send_and_wait": lambda one: _each(lambda value: one.send_and_wait(TOPIC, value)),
        "send_batch": lambda one: one.send_batch(by_batch(one), TOPIC, partition=0),
    },
}


def options_of(kind: type, arena: Arena, make: Callable[[], Any]) -> dict[str, Any]:
    """Return the arguments of a producer that has the options of another library."""
    own = {"arena": arena.name, "external_sender": True, "on_unusable": make, **SIZES}
    separator = "." if kind is our_confluent.Producer else "_"
    return {f"shmaccum{separator}{name}": value for name, value in own.items()}


def made(kind: type, arena: Arena, fallback: Fallback) -> Any:
    if kind in (shmaccum.Producer, aio.Producer):
        return kind(arena.name, on_unusable=lambda: fallback)
    if kind is ArenaHandler:
        return ArenaHandler(arena.name, TOPIC, on_unusable=lambda: fallback)
    options = options_of(kind, arena, lambda: fallback)
    return kind(options) if kind is our_confluent.Producer else kind(**options)


def cases(methods: Mapping[type, Mapping[str, Each]]) -> list[Any]:
    return [
        pytest.param(kind, name, id=f"{kind.__module__}-{name}") for kind, names in methods.items() for name in names
    ]


@pytest.mark.parametrize("lose", [cut, remove])
@pytest.mark.parametrize(("kind", "name"), cases(APPENDING))
def test_a_method_hands_its_records_over(lost: Arena, lose: Callable[[Arena], None], kind: type, name: str) -> None:
    fallback = Fallback()
    producer = made(kind, lost, fallback)
    APPENDING[kind][name](producer)
    assert fallback.values == []
    lose(lost)
    APPENDING[kind][name](producer)
    assert fallback.values == VALUES
    producer.close()


@pytest.mark.parametrize("lose", [cut, remove])
@pytest.mark.parametrize(("kind", "name"), cases(APPENDING_IN_LOOP))
def test_a_method_of_a_loop_hands_its_records_over(
    lost: Arena, lose: Callable[[Arena], None], kind: type, name: str
) -> None:
    fallback = Fallback()
    fallback.is_asynchronous = True

    async def run() -> None:
        producer = made(kind, lost, fallback)
        await producer.start()
        await producer.send(TOPIC, b"before")
        assert fallback.values == []
        lose(lost)
        await APPENDING_IN_LOOP[kind][name](producer)
        assert fallback.values == VALUES
        await producer.stop()

    asyncio.run(run())


@pytest.mark.parametrize("kind", [*APPENDING, *APPENDING_IN_LOOP])
def test_each_public_method_is_known(kind: type) -> None:
    """Of the standard library's handler methods, only those in the table take records."""
    known = {name for names in OTHERS for name in names.split()}
    appending = {**APPENDING, **APPENDING_IN_LOOP}[kind].keys()
    assert not known & appending
    public = {name for name, _ in inspect.getmembers(kind, callable) if not name.startswith("_")}
    if kind is ArenaHandler:
        public -= {name for name in dir(logging.Handler) if name not in ArenaHandler.__dict__}
    assert appending <= public
    assert public - appending <= known
