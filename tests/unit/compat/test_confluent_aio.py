# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka's AIOProducer on an arena: its futures, callbacks and calls."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import confluent_kafka.aio
import pytest
from confluent_kafka import KafkaError, KafkaException

from shmaccum.arena import Arena
from shmaccum.compat.confluent import AIOProducer
from shmaccum.log.files import LogReader
from tests.support.arenas import Drainer
from tests.support.processes import WATCHDOG_S
from tests.unit.compat.conftest import TOPIC
from tests.unit.compat.test_confluent import dotted

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(main, WATCHDOG_S))


def test_a_record_becomes_a_message_and_its_result_needs_no_poll(own: dict[str, Any], tmp_path: Path) -> None:
    async def main() -> None:
        async with AIOProducer(dotted(own)) as producer:
            assert (len(producer), bool(producer)) == (0, True)
            future = await producer.produce(TOPIC, "one", "k", partition=0, timestamp=7, headers={"h": "1"})
            message = await future
            assert (message.topic(), message.partition(), message.offset()) == (TOPIC, 0, 0)
            assert (message.key(), message.value(), message.timestamp()) == (b"k", b"one", (1, 7))
            futures = [await producer.produce(TOPIC, b"%d" % number) for number in range(20)]
            assert [(await one).offset() for one in futures] == [*range(1, 21)]
            assert (len(producer), await producer.flush()) == (0, 0)

    run(main())
    records = [*LogReader(tmp_path / "log").partition(TOPIC, 0).records()]
    assert [*records[0].headers] == [("h", b"1")]
    assert [record.value for record in records[1:]] == [b"%d" % number for number in range(20)]


def test_records_of_concurrent_tasks_keep_the_order_of_their_calls(own: dict[str, Any]) -> None:
    async def main() -> list[int | None]:
        async with AIOProducer(dotted(own)) as producer:
            calls = [asyncio.ensure_future(producer.produce(TOPIC, b"%d" % number)) for number in range(10)]
            return [(await future).offset() for future in await asyncio.gather(*calls)]

    assert run(main()) == [*range(10)], "the first one asks for the partitions of the topic in another thread"


def test_a_rejected_record_has_the_error_in_its_future(own: dict[str, Any]) -> None:
    async def main() -> None:
        async with AIOProducer(dotted(own)) as producer:
            for code, options in (
                (KafkaError.MSG_SIZE_TOO_LARGE, {"value": b"x" * (2 << 20)}),
                (KafkaError._UNKNOWN_PARTITION, {"partition": 7}),
            ):
                future = await producer.produce(TOPIC, **options)
                with pytest.raises(KafkaException) as rejected:
                    await future
                assert rejected.value.args[0].code() == code
            with pytest.raises(TypeError, match="colour"):
                await producer.produce(TOPIC, colour="red")
            await asyncio.sleep(0)  # the loop calls what ends a future
            assert not producer._waiting

    run(main())


def test_a_record_waits_for_a_buffer_without_blocking_the_loop(unkept: dict[str, Any], unsent: Arena) -> None:
    async def main() -> None:
        async with AIOProducer(dotted(unkept)) as producer:
            count = unsent.geometry["slot_count"]
            futures = [await producer.produce(TOPIC, b"v" * 3000) for _ in range(count)]
            waiting = asyncio.ensure_future(producer.produce(TOPIC, b"v" * 3000))
            while not producer._produce_lock.locked():
                await asyncio.sleep(0)
            await asyncio.to_thread(lambda: None)
            assert not waiting.done(), "the arena is full"
            with Drainer(unsent):
                futures.append(await waiting)
                assert [(await future).offset() for future in futures] == [*range(count + 1)]

    run(main())


def test_an_arena_that_stays_full_ends_the_future(unkept: dict[str, Any], unsent: Arena) -> None:
    async def main() -> None:
        producer = AIOProducer(dotted(unkept) | {"delivery.timeout.ms": 300})
        for _ in range(unsent.geometry["slot_count"]):
            await producer.produce(TOPIC, b"v" * 3000)
        with pytest.raises(KafkaException, match="Queue full") as full:
            await (await producer.produce(TOPIC, b"v" * 3000))
        assert full.value.args[0].code() == KafkaError._QUEUE_FULL
        await producer.close()

    run(main())


def test_a_close_ends_the_futures_of_records_that_remain(unkept: dict[str, Any], unsent: Arena) -> None:
    async def main() -> None:
        producer = AIOProducer(dotted(unkept) | {"delivery.timeout.ms": 300})
        future = await producer.produce(TOPIC, b"one")
        cancelled = await producer.produce(TOPIC, b"two")
        cancelled.cancel()
        await producer.close()
        await producer.close()
        with pytest.raises(KafkaException, match="is in the arena and will be sent"):
            await future
        assert len(producer) == 0
        for call in (producer.produce(TOPIC), producer.flush(), producer.poll()):
            with pytest.raises(RuntimeError, match="Producer has been closed"):
                await call

    run(main())
    with Drainer(unsent) as drainer:
        pass
    assert [value for _, value in drainer.records[TOPIC, 0]] == [b"one", b"two"]


def test_callbacks_are_coroutines_of_the_loop(own: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    heard: list[tuple[threading.Thread, str]] = []

    async def main() -> None:
        told = asyncio.Event()

        async def on_statistics(text: str) -> None:
            heard.append((threading.current_thread(), json.loads(text)["type"]))
            told.set()
            raise ValueError("of the program")

        async with AIOProducer(dotted(own) | {"stats_cb": on_statistics, "statistics.interval.ms": 1}) as producer:
            await (await producer.produce(TOPIC, b"one"))
            while not told.is_set():
                await producer.poll(0.01)

    run(main())
    assert heard[0] == (threading.main_thread(), "producer")
    assert "a callback of an AIOProducer failed" in caplog.text


def test_an_invalid_option_raises_before_the_first_call(own: dict[str, Any]) -> None:
    async def main() -> None:
        with pytest.raises(KafkaException, match="nonsense"):
            AIOProducer(dotted(own) | {"nonsense": 1})

    run(main())
    with pytest.raises(RuntimeError, match="no running event loop"):
        AIOProducer(dotted(own))


def test_a_transaction_is_committed_or_aborted(own: dict[str, Any], tmp_path: Path) -> None:
    async def main() -> None:
        with ThreadPoolExecutor(1) as executor:
            config = dotted(own) | {"transactional.id": own["shmaccum_arena"]}
            async with AIOProducer(config, executor=executor) as producer:
                await producer.init_transactions()
                await producer.begin_transaction()
                future = await producer.produce(TOPIC, b"kept")
                await producer.commit_transaction()
                assert (await future).value() == b"kept"
                await producer.begin_transaction()
                lost = await producer.produce(TOPIC, b"aborted")
                await producer.abort_transaction()
                with pytest.raises(KafkaException):
                    await lost

    run(main())
    assert b"kept" in (record.value for record in LogReader(tmp_path / "log").partition(TOPIC, 0).records())


def test_its_calls_are_those_of_the_library() -> None:
    theirs = {name for name in vars(confluent_kafka.aio.AIOProducer) if not name.startswith("_")}
    assert theirs - {*dir(AIOProducer)} == set()
    for name in theirs:
        assert inspect.iscoroutinefunction(getattr(AIOProducer, name)), name
    parameters = inspect.signature(confluent_kafka.aio.AIOProducer).parameters
    assert [*inspect.signature(AIOProducer).parameters] == [*parameters]
