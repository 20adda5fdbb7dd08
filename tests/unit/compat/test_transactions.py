# SPDX-License-Identifier: Apache-2.0
"""Transactions in the API of each library: complete ones, calls out of order, and failures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest
from aiokafka import errors as of_aiokafka
from confluent_kafka import KafkaError, KafkaException
from kafka import errors as of_kafka_python

from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.common.format.group_offsets import GroupMember, OffsetToCommit
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.compat import confluent
from shmaccum.compat.aiokafka import AIOKafkaProducer
from shmaccum.compat.kafka_python import KafkaProducer
from shmaccum.exceptions import ArenaBusyError, NoTransactionError, TransactionEndedError
from shmaccum.sender.sinks.memory import MemorySink
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.segment_log import values_of
from tests.support.transactions import fence, offsets_in, sending
from tests.unit.compat.conftest import TOPIC
from tests.unit.compat.test_confluent import dotted

ID = "orders-1"


class MistakeError(Exception):
    """Ends a block early."""


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), WATCHDOG_S))


@pytest.fixture
def outside(unkept: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Settings of an arena with transactions and without a sender."""
    sizes: dict[str, Any] = {"buffer_memory": "128KiB", "batch_size": "4KiB", "process_count": 64}
    name = unkept["shmaccum_arena"]
    with Arena.create(name, topics={TOPIC: 1}, transactional_id=ID, external_sender=True, **sizes):
        yield unkept


@pytest.fixture
def inside(outside: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The same after another producer has begun a transaction."""
    with Producer(outside["shmaccum_arena"]) as producer:
        producer.begin_transaction()
        yield outside
        producer.abort_transaction()


@pytest.fixture
def served(outside: dict[str, Any]) -> Iterator[tuple[dict[str, Any], MemorySink]]:
    """Settings of an arena with transactions, whose sender has a sink in memory."""
    sink = MemorySink(partitions=1)
    with Arena.attach(outside["shmaccum_arena"]) as arena, sending(arena, sink):
        yield {**outside, "shmaccum_sink": "memory:"}, sink


# --- kafka-python


def test_kafka_python_commits_and_aborts(own: dict[str, Any], tmp_path: Path) -> None:
    with KafkaProducer(**own, transactional_id=ID) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(TOPIC, b"kept").get(WATCHDOG_S)
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(TOPIC, b"thrown away").get(WATCHDOG_S)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.commit_transaction()
    assert values_of(tmp_path / "log", TOPIC) == [b"kept"]


def test_kafka_python_refuses_calls_out_of_order(inside: dict[str, Any]) -> None:
    with KafkaProducer(**inside, transactional_id=ID) as producer:
        for call in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(of_kafka_python.IllegalStateError, match="call init_transactions"):
                call()
        producer.init_transactions()
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(of_kafka_python.IllegalStateError, match="has begun no transaction"):
                call()
        with pytest.raises(of_kafka_python.ConcurrentTransactionsError) as busy:
            producer.begin_transaction()
        assert isinstance(busy.value, ArenaBusyError)


def test_kafka_python_sends_offsets_of_a_group(served: tuple[dict[str, Any], MemorySink]) -> None:
    options, sink = served
    position = {kafka.TopicPartition("in", 3): kafka.OffsetAndMetadata(5, "words", 2)}
    member = kafka.ConsumerGroupMetadata("readers", 4, "member-1", None)
    with KafkaProducer(**options, transactional_id=ID) as producer:
        with pytest.raises(of_kafka_python.IllegalStateError, match="call init_transactions"):
            producer.send_offsets_to_transaction(position, member)
        producer.init_transactions()
        with pytest.raises(of_kafka_python.IllegalStateError, match="no transaction is open"):
            producer.send_offsets_to_transaction(position, member)
        producer.begin_transaction()
        producer.send_offsets_to_transaction(position, member)
        producer.send_offsets_to_transaction({kafka.TopicPartition("in", 3): 6}, "others")
        for wrong in ({kafka.TopicPartition("in", 3): -1}, member), (position, ""):
            with pytest.raises(of_kafka_python.IllegalArgumentError) as refused:
                producer.send_offsets_to_transaction(*wrong)
            assert isinstance(refused.value, ValueError)
        producer.commit_transaction()
    assert offsets_in(sink) == [
        (GroupMember("readers", "member-1", 4), {TopicPartition("in", 3): OffsetToCommit(5, "words", 2)}),
        (GroupMember("others"), {TopicPartition("in", 3): OffsetToCommit(6)}),
    ]


def test_kafka_python_is_fenced_until_it_takes_its_id_back(outside: dict[str, Any]) -> None:
    with KafkaProducer(**outside, transactional_id=ID) as producer, Arena.attach(outside["shmaccum_arena"]) as arena:
        producer.init_transactions()
        fence(arena)
        for call in (producer.begin_transaction, producer.begin_transaction, lambda: producer.send(TOPIC, b"1")):
            with pytest.raises(of_kafka_python.ProducerFencedError, match="init_transactions"):
                call()
        producer.init_transactions()
        producer.begin_transaction()
        producer.abort_transaction()


def test_kafka_python_needs_an_id_and_idempotence(unkept: dict[str, Any], unsent: Arena) -> None:
    with KafkaProducer(**unkept) as producer:
        for call in (producer.init_transactions, producer.begin_transaction, producer.commit_transaction):
            with pytest.raises(of_kafka_python.IllegalStateError, match="has no transactional_id"):
                call()
    with pytest.raises(of_kafka_python.KafkaConfigurationError, match="Cannot set transactional_id without"):
        KafkaProducer(**unkept, transactional_id=ID, enable_idempotence=False)
    with pytest.raises(of_kafka_python.KafkaConfigurationError, match="incompatible with acks=1"):
        KafkaProducer(**unkept, transactional_id=ID, acks=1)


def test_kafka_python_learns_that_a_transaction_has_to_be_aborted(own: dict[str, Any]) -> None:
    with KafkaProducer(**own, transactional_id=ID) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        arena = producer._producer.arena
        arena.native.abort_transaction(arena.native.transaction[0])
        with pytest.raises(of_kafka_python.TransactionAbortableError) as ended:
            producer.commit_transaction()
        assert isinstance(ended.value, TransactionEndedError)
        with pytest.raises(of_kafka_python.IllegalStateError) as outside:
            producer.send(TOPIC, b"outside")
        assert isinstance(outside.value, NoTransactionError)
        producer.abort_transaction()


# --- confluent-kafka


def code_of(error: pytest.ExceptionInfo[KafkaException]) -> int:
    return int(error.value.args[0].code())


def test_confluent_commits_and_aborts(own: dict[str, Any], tmp_path: Path) -> None:
    with confluent.Producer(dotted(own, **{"transactional.id": ID, "transaction.timeout.ms": 30_000})) as producer:
        producer.init_transactions(WATCHDOG_S)
        for value in ("kept", "thrown away", "kept, too"):
            producer.begin_transaction()
            producer.produce(TOPIC, value)
            producer.flush()
            if value == "thrown away":
                producer.abort_transaction(WATCHDOG_S)
            else:
                producer.commit_transaction(WATCHDOG_S)
    assert values_of(tmp_path / "log", TOPIC) == [b"kept", b"kept, too"]


def test_confluent_refuses_calls_out_of_order(inside: dict[str, Any]) -> None:
    with confluent.Producer(dotted(inside, **{"transactional.id": ID})) as producer:
        for call in (producer.begin_transaction, producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(KafkaException, match="call init_transactions") as early:
                call()
            assert code_of(early) == KafkaError._STATE
        producer.init_transactions()
        for call in (producer.commit_transaction, producer.abort_transaction):
            with pytest.raises(KafkaException, match="has begun no transaction") as none_begun:
                call()
            assert code_of(none_begun) == KafkaError._STATE
        with pytest.raises(KafkaException) as busy:
            producer.begin_transaction()
        assert (code_of(busy), busy.value.args[0].retriable()) == (KafkaError._CONFLICT, True)


@pytest.fixture
def readers() -> Iterator[Any]:
    """The group metadata of a consumer of librdkafka, which connects to no broker."""
    consumer = confluent_kafka.Consumer(
        {"group.id": "readers", "bootstrap.servers": "127.0.0.1:1", "log_level": 0, "auto.offset.reset": "earliest"}
    )
    try:
        yield consumer.consumer_group_metadata()
    finally:
        consumer.close()


def test_confluent_sends_offsets_of_a_group(served: tuple[dict[str, Any], MemorySink], readers: Any) -> None:
    options, sink = served
    positions = [confluent_kafka.TopicPartition("in", 3, 5), confluent_kafka.TopicPartition("in", 4)]
    with confluent.Producer(dotted(options, **{"transactional.id": ID})) as producer:
        producer.init_transactions()
        with pytest.raises(KafkaException, match="no transaction is open") as outside:
            producer.send_offsets_to_transaction(positions, readers, WATCHDOG_S)
        assert code_of(outside) == KafkaError._STATE
        producer.begin_transaction()
        producer.send_offsets_to_transaction(positions, readers)
        producer.send_offsets_to_transaction(positions[1:], readers)
        for wrong in ([confluent_kafka.TopicPartition("in", 3, 5)], None), (5, readers):
            with pytest.raises(KafkaException) as refused:
                producer.send_offsets_to_transaction(*wrong)
            assert code_of(refused) == KafkaError._INVALID_ARG
        producer.commit_transaction()
    assert offsets_in(sink) == [(GroupMember("readers"), {TopicPartition("in", 3): OffsetToCommit(5)})]


def fill(producer: confluent.Producer) -> None:
    while True:
        producer.produce(TOPIC, b"x" * 4000, partition=0)


def test_confluent_waits_for_room_for_offsets_as_long_as_configured(outside: dict[str, Any], readers: Any) -> None:
    positions = [confluent_kafka.TopicPartition("in", 0, 5)]
    sink = MemorySink(partitions=1)
    with (
        Arena.attach(outside["shmaccum_arena"]) as arena,
        confluent.Producer(dotted(outside, **{"transactional.id": ID})) as producer,
        ThreadPoolExecutor(1) as threads,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        with pytest.raises(BufferError):
            fill(producer)
        with pytest.raises(KafkaException) as full:
            producer.send_offsets_to_transaction(positions, readers, 0.001)
        assert (code_of(full), full.value.args[0].retriable()) == (KafkaError._TIMED_OUT, True)
        waiting = threads.submit(producer.send_offsets_to_transaction, positions, readers, WATCHDOG_S)
        wait_until(lambda: arena.statistics().waiting_count > 0, "the offsets wait")
        with sending(arena, sink):
            waiting.result(WATCHDOG_S)
            producer.commit_transaction()
    assert len(offsets_in(sink)) == 1


def test_confluent_is_fenced_until_it_takes_its_id_back(outside: dict[str, Any], readers: Any) -> None:
    positions = [confluent_kafka.TopicPartition("in", 0, 5)]
    settings = dotted(outside, **{"transactional.id": ID})
    with confluent.Producer(settings) as producer, Arena.attach(outside["shmaccum_arena"]) as arena:
        producer.init_transactions()
        fence(arena)
        for call in (
            producer.begin_transaction,
            producer.begin_transaction,
            lambda: producer.produce(TOPIC, b"1", partition=0),
            lambda: producer.send_offsets_to_transaction(positions, readers),
        ):
            with pytest.raises(KafkaException, match="init_transactions") as fenced:
                call()
            assert (code_of(fenced), fenced.value.args[0].fatal()) == (KafkaError._FENCED, True)
        producer.init_transactions()
        producer.begin_transaction()
        producer.abort_transaction()


def test_confluent_needs_an_id_and_idempotence(unkept: dict[str, Any], unsent: Arena) -> None:
    with confluent.Producer(dotted(unkept)) as producer:
        for call in (producer.init_transactions, producer.begin_transaction):
            with pytest.raises(KafkaException, match="has no transactional_id") as without:
                call()
            assert code_of(without) == KafkaError._NOT_CONFIGURED
    for wrong in {"shmaccum.enable_idempotence": False}, {"acks": 1}:
        with pytest.raises(KafkaException, match="Cannot set transactional_id without") as refused:
            confluent.Producer(dotted(unkept, **{"transactional.id": ID, **wrong}))
        assert code_of(refused) == KafkaError._INVALID_ARG


def test_confluent_gets_flags_for_its_reaction(outside: dict[str, Any]) -> None:
    """A commit with an unknown outcome is retried. A failed one is aborted."""
    with confluent.Producer(dotted(outside, **{"transactional.id": ID})) as producer:
        producer.init_transactions()
        with pytest.raises(KafkaException) as refused:
            producer.produce(TOPIC, b"outside", partition=0)
        assert code_of(refused) == KafkaError._STATE
        producer.begin_transaction()
        producer.produce(TOPIC, b"inside", partition=0)
        with pytest.raises(KafkaException) as unknown:
            producer.commit_transaction(0.001)
        assert (code_of(unknown), unknown.value.args[0].retriable()) == (KafkaError._TIMED_OUT, True)
        with pytest.raises(KafkaException, match="commit has begun") as late:
            producer.abort_transaction()
        assert code_of(late) == KafkaError._STATE
        with Arena.attach(outside["shmaccum_arena"]) as arena, sending(arena, MemorySink(partitions=1)):
            producer.commit_transaction(WATCHDOG_S)


def test_confluent_learns_that_a_transaction_has_to_be_aborted(outside: dict[str, Any]) -> None:
    with confluent.Producer(dotted(outside, **{"transactional.id": ID})) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        with Arena.attach(outside["shmaccum_arena"]) as arena:
            arena.native.abort_transaction(1)
        with pytest.raises(KafkaException) as ended:
            producer.commit_transaction(WATCHDOG_S)
        assert ended.value.args[0].txn_requires_abort()
        producer.abort_transaction()


# --- aiokafka


def test_aiokafka_commits_and_aborts(own: dict[str, Any], tmp_path: Path) -> None:
    async def main() -> None:
        async with AIOKafkaProducer(**own, transactional_id=ID) as producer:
            async with producer.transaction():
                await producer.send_and_wait(TOPIC, b"kept")
            with contextlib.suppress(MistakeError):
                async with producer.transaction():
                    await producer.send_and_wait(TOPIC, b"thrown away")
                    raise MistakeError
            await producer.begin_transaction()
            await producer.send_and_wait(TOPIC, b"kept, too")
            await producer.commit_transaction()
            await producer.begin_transaction()
            await producer.abort_transaction()

    run(main)
    assert values_of(tmp_path / "log", TOPIC) == [b"kept", b"kept, too"]


def test_aiokafka_refuses_calls_out_of_order(inside: dict[str, Any]) -> None:
    async def main() -> None:
        async with AIOKafkaProducer(**inside, transactional_id=ID) as producer:
            for call in (producer.commit_transaction, producer.abort_transaction):
                with pytest.raises(of_aiokafka.IllegalOperation, match="has begun no transaction"):
                    await call()
            with pytest.raises(of_aiokafka.ConcurrentTransactions):
                await producer.begin_transaction()
            with pytest.raises(of_aiokafka.ConcurrentTransactions):
                async with producer.transaction():
                    pass
        with pytest.raises(of_aiokafka.ProducerClosed):
            producer.transaction()

    run(main)


def test_aiokafka_sends_offsets_of_a_group(served: tuple[dict[str, Any], MemorySink]) -> None:
    options, sink = served
    place = aiokafka.TopicPartition("in", 3)

    async def main() -> None:
        async with AIOKafkaProducer(**options, transactional_id=ID) as producer:
            with pytest.raises(of_aiokafka.IllegalOperation, match="no transaction is open"):
                await producer.send_offsets_to_transaction({place: 5}, "readers")
            async with producer.transaction():
                for given in (5, (6, "words"), aiokafka.OffsetAndMetadata(7, "")):
                    await producer.send_offsets_to_transaction({place: given}, "readers")
                wrong = [({}, "readers", "{}"), ({place: -1}, "readers", "no offset -1"), ({place: 5}, "", "no group")]
                for offsets, group_id, message in wrong:
                    with pytest.raises(ValueError, match=message):
                        await producer.send_offsets_to_transaction(offsets, group_id)
                with pytest.raises(TypeError):
                    await producer.send_offsets_to_transaction({place: 5}, 7)  # type: ignore[arg-type]

    run(main)
    assert [offsets[TopicPartition("in", 3)] for _, offsets in offsets_in(sink)] == [
        OffsetToCommit(5),
        OffsetToCommit(6, "words"),
        OffsetToCommit(7),
    ]


def test_aiokafka_takes_its_id_back_when_it_starts(outside: dict[str, Any]) -> None:
    async def main() -> None:
        with Arena.attach(outside["shmaccum_arena"]) as arena:
            async with AIOKafkaProducer(**outside, transactional_id=ID) as producer:
                await asyncio.to_thread(fence, arena)
                with pytest.raises(of_aiokafka.ProducerFenced, match="init_transactions"):
                    await producer.begin_transaction()
            async with AIOKafkaProducer(**outside, transactional_id=ID) as producer:
                await producer.begin_transaction()
                await producer.abort_transaction()

    run(main)


def test_aiokafka_needs_an_id_and_brings_idempotence_along(unkept: dict[str, Any], unsent: Arena) -> None:
    async def main() -> None:
        async with AIOKafkaProducer(**unkept) as producer:
            with pytest.raises(of_aiokafka.IllegalOperation, match="has no transactional_id"):
                await producer.begin_transaction()

    run(main)
    with pytest.raises(ValueError, match="acks=1"):
        AIOKafkaProducer(**unkept, transactional_id=ID, acks=1)
    settings = AIOKafkaProducer(**unkept, transactional_id=ID, enable_idempotence=False)._settings
    assert settings.sender["enable_idempotence"] is True


def test_aiokafka_learns_that_a_transaction_has_to_be_aborted(outside: dict[str, Any]) -> None:
    async def main() -> None:
        async with AIOKafkaProducer(**outside, transactional_id=ID, request_timeout_ms=20) as producer:
            with pytest.raises(of_aiokafka.IllegalOperation):
                await producer.send(TOPIC, b"outside", partition=0)
            transaction = producer.transaction()
            await transaction.__aenter__()
            with Arena.attach(outside["shmaccum_arena"]) as arena:
                arena.native.abort_transaction(1)
            with pytest.raises(of_aiokafka.InvalidTxnState):
                await transaction.__aexit__(None, None, None)

    run(main)
