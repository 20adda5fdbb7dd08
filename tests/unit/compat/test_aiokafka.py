# SPDX-License-Identifier: Apache-2.0
"""aiokafka's AIOKafkaProducer on an arena: its options, futures and exceptions."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiokafka
import pytest
from aiokafka import errors
from aiokafka.structs import RecordMetadata, TopicPartition

from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.compat.aiokafka import ROWS, AIOKafkaProducer
from shmaccum.exceptions import BufferExhaustedError, DeliveryFailedError
from shmaccum.log.files import LogReader
from tests.support.arenas import Drainer
from tests.support.processes import WATCHDOG_S
from tests.unit.compat.conftest import TOPIC


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), WATCHDOG_S))


def test_every_option_of_the_library_has_a_row() -> None:
    theirs = set(inspect.signature(aiokafka.AIOKafkaProducer).parameters)
    assert set(ROWS) == theirs - {"bootstrap_servers"}


def test_records_are_delivered_and_futures_are_the_loops(own: dict[str, Any], tmp_path: Path) -> None:
    async def main() -> None:
        async with AIOKafkaProducer(**own, value_serializer=str.encode, linger_ms=1) as producer:
            future = await producer.send(TOPIC, "one", key=b"k", headers=iter([("h", b"1")]), timestamp_ms=7)
            assert isinstance(future, asyncio.Future)
            expected = RecordMetadata(TOPIC, 0, TopicPartition(TOPIC, 0), 0, 7, 0, None)
            assert await future == expected
            done, _ = await asyncio.wait([await producer.send(TOPIC, str(number)) for number in range(3)])
            assert sorted(each.result().offset for each in done) == [1, 2, 3]
            assert (await producer.send_and_wait(TOPIC, "last")).offset == 4
            await producer.flush()
            assert await producer.partitions_for(TOPIC) == {0}

    run(main)
    values = [record.value for record in LogReader(tmp_path / "log").partition(TOPIC, 0).records()]
    assert values == [b"one", b"0", b"1", b"2", b"last"]


def test_a_batch_is_filled_to_its_size_and_sent_to_its_partition(own: dict[str, Any]) -> None:
    async def main() -> None:
        async with AIOKafkaProducer(**own, max_batch_size=2000, value_serializer=str.encode) as producer:
            batch = producer.create_batch()
            count = 0
            while batch.append(key=None, value="v" * 100, timestamp=None) is not None:
                count += 1
            assert batch.record_count() == count > 10
            first = await (await producer.send_batch(batch, TOPIC, partition=0))
            assert (first.partition, first.offset) == (0, 0)
            assert (await producer.send_and_wait(TOPIC, "v")).offset == count

    run(main)


def test_a_batch_without_records_has_no_first_record(own: dict[str, Any]) -> None:
    async def main() -> None:
        async with AIOKafkaProducer(**own) as producer:
            assert await (await producer.send_batch(producer.create_batch(), TOPIC, partition=0)) is None

    run(main)


def test_a_timeout_is_an_exception_of_the_library_and_of_shmaccum(unkept: dict[str, Any], unsent: Arena) -> None:
    async def main() -> None:
        producer = AIOKafkaProducer(**unkept, request_timeout_ms=20)
        with pytest.raises(errors.ProducerClosed):
            await producer.send(TOPIC, b"v")
        await producer.start()
        with pytest.raises(errors.UnknownTopicOrPartitionError):
            await producer.partitions_for("unknown")
        with pytest.raises(errors.UnknownTopicOrPartitionError):
            await producer.send("unknown", b"v")
        for _ in range(unsent.geometry["slot_count"] * 13 // 16):  # the share of one topic of several
            await producer.send(TOPIC, b"v" * 3000)
        with pytest.raises(errors.KafkaTimeoutError) as full:
            await producer.send(TOPIC, b"v" * 3000)
        assert isinstance(full.value, BufferExhaustedError)
        with pytest.raises(errors.MessageSizeTooLargeError):
            await producer.send(TOPIC, b"v" * (2 << 20))
        with pytest.raises(AssertionError, match="at least one"):
            await producer.send(TOPIC)
        with Drainer(unsent):
            await producer.stop()
        await producer.stop()
        for call in (lambda: producer.send(TOPIC, b"v"), producer.flush, producer.begin_transaction):
            with pytest.raises(errors.ProducerClosed):
                await call()

    run(main)


def test_a_record_beyond_the_largest_is_refused_also_where_a_batch_would_hold_it(own: dict[str, Any]) -> None:
    async def main() -> None:
        async with AIOKafkaProducer(**own | {"shmaccum_batch_size": "16KiB"}, max_request_size=1000) as producer:
            assert (await producer.send_and_wait(TOPIC, b"v" * 500)).offset == 0
            with pytest.raises(errors.MessageSizeTooLargeError):
                await producer.send(TOPIC, b"v" * 5000)

    run(main)


def test_a_rejected_record_has_the_librarys_exception_for_its_code(unkept: dict[str, Any], unsent: Arena) -> None:
    async def main() -> None:
        async with AIOKafkaProducer(**unkept) as producer:
            with Drainer(unsent, result=BatchResult.FAILED, error_code=10):
                with pytest.raises(errors.MessageSizeTooLargeError) as refusal:
                    await producer.send_and_wait(TOPIC, b"v")
                assert isinstance(refusal.value, DeliveryFailedError)

    run(main)


def test_a_cancelled_future_leaves_the_record_and_the_others_alone(unkept: dict[str, Any], unsent: Arena) -> None:
    async def main() -> None:
        async with AIOKafkaProducer(**unkept) as producer:
            first, second = await producer.send(TOPIC, b"1"), await producer.send(TOPIC, b"2")
            first.cancel()
            with Drainer(unsent):
                assert (await second).offset == 1

    run(main)


def test_a_stop_gives_results_that_were_not_read_and_ends_the_other_waits(
    unkept: dict[str, Any], unsent: Arena
) -> None:
    async def main() -> None:
        producer = AIOKafkaProducer(**unkept)
        await producer.start()
        delivered = await producer.send(TOPIC, b"1")
        producer._listening.close()  # no result is read any more
        with Drainer(unsent):
            await producer.flush()
        left = await producer.send(TOPIC, b"2")
        assert not delivered.done()
        producer._give_up()
        assert (await delivered).offset == 0
        with pytest.raises(errors.KafkaTimeoutError, match="the producer was stopped"):
            await left
        with Drainer(unsent):
            await producer.stop()

    run(main)


def test_without_acknowledgements_a_future_has_no_metadata(own: dict[str, Any]) -> None:
    async def main() -> None:
        async with AIOKafkaProducer(**own, acks=0) as producer:
            assert await producer.send_and_wait(TOPIC, b"v") is None

    run(main)


def test_a_producer_that_was_not_stopped_warns(unkept: dict[str, Any], unsent: Arena) -> None:
    async def main() -> None:
        await AIOKafkaProducer(**unkept).start()
        gc.collect()

    with pytest.warns(ResourceWarning, match="Unclosed AIOKafkaProducer"):
        run(main)


@pytest.mark.parametrize(
    "options", [{"acks": 122}, {"compression_type": "my_custom"}, {"ssl_context": "an object"}, {"colour": 1}], ids=str
)
def test_wrong_options_are_value_errors(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the message is that of the table
        AIOKafkaProducer(**options)
