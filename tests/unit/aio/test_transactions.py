# SPDX-License-Identifier: Apache-2.0
"""Transactions of asyncio programs wait in tasks, and a cancelled task leaves a defined state."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

import pytest

from shmaccum import Producer as KeptProducer
from shmaccum import Sender
from shmaccum.aio import Producer
from shmaccum.arena import Arena
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import (
    ArenaBusyError,
    BufferExhaustedError,
    DeliveryAbortedError,
    InvalidArgumentError,
    NoTransactionError,
    ProducerClosedError,
    ProducerFencedError,
    TransactionEndedError,
    TransactionOutcomeUnknownError,
)
from shmaccum.sender.sinks.memory import MemorySink
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.transactions import fence, is_over, offsets_in

TOPIC = "t"
INPUT = TopicPartition("in", 0)


class MistakeError(Exception):
    """Ends a block early."""


@pytest.fixture
def transactional(arena_name: str) -> Iterator[Arena]:
    sizes: dict[str, Any] = {"buffer_memory": 16 * 1024, "batch_size": 1024, "process_count": 8, "waiter_count": 8}
    with Arena.create(arena_name, topics={TOPIC: 4}, transactional_id="orders-1", **sizes) as arena:
        yield arena


@contextlib.asynccontextmanager
async def sending(arena: Arena) -> AsyncIterator[MemorySink]:
    """A sender in a thread. Other tasks run while it ends."""
    sink = MemorySink(partitions=4)
    sender = Sender(arena, sink, linger_ms=0)
    thread = threading.Thread(target=sender.run)
    thread.start()
    try:
        await asyncio.to_thread(wait_until, lambda: sender.is_open, "the sender is open")
        yield sink
    finally:
        sender.stop()
        await asyncio.to_thread(thread.join, WATCHDOG_S)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run with a timeout."""

    async def watched() -> None:
        await asyncio.wait_for(main, WATCHDOG_S)

    asyncio.run(watched())


def values(sink: MemorySink) -> list[bytes | None]:
    return [value for place in sink.topic_partitions() for value in sink.values(*place)]


async def until_committing(arena: Arena) -> None:
    while arena.native.transaction[1] != "committing":
        await asyncio.sleep(0.001)


def test_a_block_commits_and_one_that_raises_aborts(transactional: Arena) -> None:
    async def main() -> None:
        async with sending(transactional) as sink, Producer(transactional) as producer:
            await producer.init_transactions()
            async with producer.transaction() as transaction:
                assert (transaction.number, transaction.is_over) == (1, False)
                await producer.send_and_wait(TOPIC, b"kept", partition=0)
                assert values(sink) == []
            assert transaction.is_over
            assert values(sink) == [b"kept"]
            with contextlib.suppress(MistakeError):
                async with producer.transaction():
                    await producer.send_and_wait(TOPIC, b"thrown away", partition=1)
                    raise MistakeError
            async with producer.transaction() as early:
                await producer.send(TOPIC, b"kept, too", partition=2)
                await early.commit()
                assert early.is_over
            async with producer.transaction() as given_up:
                await given_up.abort()
            assert sorted(filter(None, values(sink))) == [b"kept", b"kept, too"]

    run(main())


def test_the_names_of_kafka(transactional: Arena) -> None:
    async def main() -> None:
        async with sending(transactional) as sink, Producer(transactional) as producer:
            await producer.begin_transaction()
            await producer.send(TOPIC, b"kept", partition=0)
            await producer.commit_transaction()
            await producer.begin_transaction()
            thrown_away = await producer.send(TOPIC, b"thrown away", partition=0)
            await producer.abort_transaction()
            await producer.begin_transaction()
            await producer.commit_transaction()
            assert values(sink) == [b"kept"]
            with contextlib.suppress(DeliveryAbortedError):  # it may have been delivered earlier
                await thrown_away
            times = producer.metrics()["producer-metrics"]
            assert all(times[f"txn-{step}-time-ns-total"] > 0 for step in ("init", "begin", "commit", "abort"))

    run(main())


def test_offsets_of_a_group_go_with_the_transaction_or_not_at_all(transactional: Arena) -> None:
    async def main() -> None:
        async with sending(transactional) as sink, Producer(transactional) as producer:
            async with producer.transaction() as transaction:
                await producer.send(TOPIC, b"1", partition=0)
                await transaction.send_offsets({INPUT: 5}, "readers")
                await producer.send_offsets_to_transaction({INPUT: 7}, "readers")
                await producer.send_offsets_to_transaction({}, "readers")
            with contextlib.suppress(MistakeError):
                async with producer.transaction() as given_up:
                    await given_up.send_offsets({INPUT: 9}, "readers")
                    raise MistakeError
            with pytest.raises(NoTransactionError, match="is over"):
                await given_up.send_offsets({INPUT: 9}, "readers")
            with pytest.raises(NoTransactionError):
                await producer.send_offsets_to_transaction({INPUT: 9}, "readers")
            with pytest.raises(InvalidArgumentError, match="names no group"):
                await producer.send_offsets_to_transaction({INPUT: 9}, None)
            async with producer.transaction():
                pass
            assert [offsets[INPUT].offset for _, offsets in offsets_in(sink)] == [5, 7]
            assert producer.metrics()["producer-metrics"]["txn-send-offsets-time-ns-total"] > 0

    run(main())


def test_other_tasks_continue_while_offsets_wait_for_room_and_keep_their_order(transactional: Arena) -> None:
    async def main() -> None:
        async with Producer(transactional) as producer:
            await producer.begin_transaction()
            other = KeptProducer(transactional, max_block_ms=0)
            with contextlib.suppress(BufferExhaustedError):
                while True:
                    other.send(TOPIC, b"x" * 900, partition=0)
            other.close(0)
            waiting = [
                asyncio.ensure_future(producer.send_offsets_to_transaction({INPUT: number}, "readers"))
                for number in range(3)
            ]
            while not transactional.statistics().waiting_count:
                await asyncio.sleep(0)
            assert not any(task.done() for task in waiting)
            async with sending(transactional) as sink:
                await asyncio.gather(*waiting)
                await producer.commit_transaction()
                assert [offsets[INPUT].offset for _, offsets in offsets_in(sink)] == [0, 1, 2]

    run(main())


async def fenced_transaction(producer: Producer, arena: Arena) -> None:
    """The send fails, and the block suppresses its exception."""
    async with producer.transaction():
        await asyncio.to_thread(fence, arena)
        with contextlib.suppress(ProducerFencedError):
            await producer.send(TOPIC, b"1", partition=0)


def test_a_block_of_a_fenced_arena_gives_its_role_up(transactional: Arena) -> None:
    async def main() -> None:
        async with Producer(transactional) as producer:
            with pytest.raises(ProducerFencedError, match="init_transactions"):
                await fenced_transaction(producer, transactional)
            async with sending(transactional) as sink:
                await asyncio.to_thread(wait_until, lambda: is_over(transactional), "the transaction is over")
                with pytest.raises(ProducerFencedError):
                    await producer.begin_transaction()
                await producer.init_transactions()
                async with producer.transaction():
                    await producer.send(TOPIC, b"2", partition=0)
                assert values(sink) == [b"2"]

    run(main())


def test_a_worker_joins_and_sends_in_that_transaction_alone(transactional: Arena) -> None:
    async def main() -> None:
        async with sending(transactional), Producer(transactional) as producer, Producer(transactional) as worker:
            async with producer.transaction() as first:
                worker.join(first.number)
                await worker.send(TOPIC, b"1", partition=0)
            async with producer.transaction():
                with pytest.raises(TransactionEndedError):
                    await worker.send(TOPIC, b"2", partition=0)

    run(main())


def test_calls_out_of_order(transactional: Arena) -> None:
    async def main() -> None:
        with pytest.raises(ProducerClosedError):
            Producer(transactional).transaction()
        async with Producer(transactional) as producer, Producer(transactional) as other:
            with pytest.raises(NoTransactionError):
                await producer.send(TOPIC, b"outside", partition=0)
            for call in (producer.commit_transaction, producer.abort_transaction):
                with pytest.raises(NoTransactionError, match="has begun no transaction"):
                    await call()
            with pytest.raises(NoTransactionError, match="has not begun"):
                _ = producer.transaction().number
            await producer.begin_transaction()
            for begin in (producer.begin_transaction, other.begin_transaction):
                with pytest.raises(ArenaBusyError):
                    await begin()
            await producer.abort_transaction()

    run(main())


def test_a_plain_arena_refuses_transactions(arena: Arena) -> None:
    async def main() -> None:
        async with Producer(arena) as producer:
            for call in (producer.init_transactions, producer.begin_transaction):
                with pytest.raises(InvalidArgumentError, match="has no transactional_id"):
                    await call()

    run(main())


def test_other_tasks_continue_while_a_task_waits_for_its_commit(transactional: Arena) -> None:
    async def main() -> None:
        async with Producer(transactional) as producer:
            await producer.begin_transaction()
            await producer.send(TOPIC, b"1", partition=0)
            commit = asyncio.ensure_future(producer.commit_transaction())
            await until_committing(transactional)
            assert not commit.done()
            async with sending(transactional) as sink:
                await commit
                assert values(sink) == [b"1"]

    run(main())


def test_a_task_that_is_cancelled_in_its_block_aborts(transactional: Arena) -> None:
    async def main() -> None:
        begun = asyncio.Event()

        async def work(producer: Producer) -> None:
            async with producer.transaction():
                await producer.send(TOPIC, b"1", partition=0)
                begun.set()
                await asyncio.Event().wait()

        async with sending(transactional) as sink, Producer(transactional) as producer:
            task = asyncio.ensure_future(work(producer))
            await begun.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            async with producer.transaction():
                await producer.send(TOPIC, b"2", partition=0)
            assert values(sink) == [b"2"]

    run(main())


def test_a_commit_continues_when_its_task_is_cancelled(transactional: Arena) -> None:
    async def main() -> None:
        async with Producer(transactional) as producer:
            await producer.begin_transaction()
            await producer.send(TOPIC, b"1", partition=0)
            task = asyncio.ensure_future(producer.commit_transaction())
            await until_committing(transactional)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            with pytest.raises(TransactionOutcomeUnknownError, match="call commit_transaction"):
                await producer.commit_transaction(0)
            async with sending(transactional) as sink:
                await producer.commit_transaction()
                assert values(sink) == [b"1"]

    run(main())


def test_a_task_that_is_cancelled_while_it_waits_to_begin_has_begun_none(transactional: Arena) -> None:
    async def main() -> None:
        async with Producer(transactional) as producer, Producer(transactional) as other:
            await producer.begin_transaction()
            await producer.send(TOPIC, b"1", partition=0)
            await producer.abort_transaction()  # without a sender it cannot end
            task = asyncio.ensure_future(producer.begin_transaction())
            await asyncio.sleep(0)
            assert not task.done()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            with pytest.raises(NoTransactionError):
                await producer.commit_transaction()
            async with sending(transactional):
                await other.begin_transaction()
                await other.commit_transaction()

    run(main())


def test_a_close_aborts_what_the_producer_began(transactional: Arena) -> None:
    async def main() -> None:
        async with sending(transactional) as sink:
            async with Producer(transactional) as producer:
                await producer.begin_transaction()
                await producer.send(TOPIC, b"1", partition=0)
            async with Producer(transactional) as producer, producer.transaction():
                pass
            assert values(sink) == []

    run(main())


def test_a_block_whose_producer_was_closed_in_it_does_not_look_committed(transactional: Arena) -> None:
    async def main() -> None:
        async with sending(transactional) as sink:
            producer = Producer(transactional)

            async def close_early() -> None:
                async with producer.transaction():
                    await producer.send(TOPIC, b"1", partition=0)
                    await producer.close()

            await producer.start()
            with pytest.raises(TransactionEndedError, match="the close of its producer"):
                await close_early()
            assert values(sink) == []

    run(main())


def test_a_commit_in_its_block_that_learns_no_outcome_can_be_asked_again(transactional: Arena) -> None:
    async def main() -> None:
        async with Producer(transactional) as producer:

            async def send_and_commit() -> None:
                async with producer.transaction() as transaction:
                    await producer.send(TOPIC, b"1", partition=0)
                    await transaction.commit(0)

            with pytest.raises(TransactionOutcomeUnknownError, match="call commit_transaction"):
                await send_and_commit()
            async with sending(transactional) as sink:
                await producer.commit_transaction()
                assert values(sink) == [b"1"]

    run(main())


def test_a_commit_that_fails_reports_why_and_aborts(transactional: Arena) -> None:
    async def main() -> None:
        async with sending(transactional), Producer(transactional) as producer:
            with pytest.raises(TransactionEndedError, match="its coordinator aborted it"):
                async with producer.transaction() as transaction:
                    transactional.native.abort_transaction(transaction.number)
            async with producer.transaction():
                pass

    run(main())
