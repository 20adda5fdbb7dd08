# SPDX-License-Identifier: Apache-2.0
"""The producer of asyncio programs, with aiokafka's API (aiokafka.AIOKafkaProducer)."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, final

from shmaccum._native import DeliveryFuture
from shmaccum.aio.deliveries import Deliveries
from shmaccum.aio.loop_producer import LoopProducer, WouldWaitError
from shmaccum.aio.transaction import Transaction
from shmaccum.arena import Arena
from shmaccum.common.closing import StoppedOnExit
from shmaccum.common.cooperative import refuse_greenlets
from shmaccum.common.format.group_offsets import OFFSETS_TOPIC
from shmaccum.exceptions import ProducerClosedError
from shmaccum.producer import deliveries as native
from shmaccum.producer.delivery import RecordMetadata
from shmaccum.producer.fallback import UNUSABLE, Fallback, OnUnusable
from shmaccum.producer.group_offsets import GroupOffsets
from shmaccum.producer.pipeline import TopicRecords
from shmaccum.producer.producer import FLUSH_TIMEOUT_S, close_timeout_s
from shmaccum.producer.serializers import Headers
from shmaccum.producer.transaction import COMMIT_TIMEOUT_S

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from shmaccum.config.dicts import KeptProducerOptionsDict
    from shmaccum.supervisor import Recipe

CHUNK_SIZE = 1024
"""The number of records that `send_many` appends before other tasks run."""

Answer = TypeVar("Answer")


@final
class Producer(StoppedOnExit):
    """Sends records through an arena from the tasks of one event loop, without blocking the loop.

    ::

        async with shmaccum.aio.Producer("events", linger_ms=5) as producer:
            future = await producer.send("flights", b"...", key=b"AA11")
            metadata = await future

    If `shmaccum.Producer.send` would block, for a buffer or for the partition count of a new topic, ``await send``
    waits in the task. Sends to one topic keep the order of their calls. Results wake the loop through a descriptor, so
    the process needs no thread for them. If a task is cancelled in ``send``, either nothing was sent, or the record is
    in the arena and will be delivered. No other state is left.

    Args:
        arena, mode, sink, options: as for `shmaccum.Producer`.
        on_unusable: as for `shmaccum.Producer`. The object's ``send`` gets the arguments of `send` in this order, from
            `send`, `send_and_wait` and `send_many`. If it returns a coroutine, the coroutine is awaited. The function
            is called in the thread of the loop.
    """

    def __init__(
        self,
        arena: str | os.PathLike[str] | Arena,
        *,
        mode: int | None = None,
        sink: str | Recipe | None = None,
        on_unusable: OnUnusable | None = None,
        **options: Unpack[KeptProducerOptionsDict],
    ) -> None:
        self._make: Callable[[], LoopProducer] = lambda: LoopProducer(arena, mode=mode, sink=sink, **options)
        self._on_unusable = on_unusable
        self._fallback: Fallback | None = None
        self._producer: LoopProducer | None = None
        self._topic_locks: dict[str, _TopicLock] = {}

    # --- begin and end

    async def start(self) -> None:
        """Attaches to the arena and, with a sink, starts the sender. A second call does nothing.

        Raises:
            Exception: as `shmaccum.Producer`.
        """
        refuse_greenlets("an event loop of asyncio", "use shmaccum.Producer, whose waits let other greenlets run")
        if self._producer is None:
            producer = await asyncio.to_thread(self._make)
            if self._on_unusable is not None:
                try:
                    self._fallback = Fallback(self._on_unusable, ("send",), producer.arena)
                except BaseException:
                    await asyncio.to_thread(producer.close, 0)
                    raise
            producer.bind()
            self._producer = producer

    async def close(self, timeout: float | None = FLUSH_TIMEOUT_S) -> None:
        """Rejects further sends, and waits until all records are delivered or have failed. Closing again does nothing.

        A task that waits in a send gets ProducerClosedError, and its record was not appended. A record that is not
        delivered in time stays in the arena and will be sent, and a warning is logged.

        Args:
            timeout: seconds, two minutes by default, or None for no limit.

        Raises:
            ArenaRemovedError: the arena was removed, and no sender is left. The producer is closed.
        """
        producer = self._producer
        if producer is None:
            return
        if (target := self._target) is None or producer.closed:
            await producer.close_in_loop(timeout)
            return
        try:
            await _called(target, "flush")
            await _called(target, "close" if hasattr(target, "close") else "stop")
        finally:
            with contextlib.suppress(*UNUSABLE):
                await producer.close_in_loop(0)

    @property
    def _target(self) -> Any:
        """The object of `on_unusable`, or None before the function was called."""
        return None if self._fallback is None else self._fallback.target

    async def stop(self) -> None:
        """Closes the producer, as the end of a block does: with ``close_timeout_ms``, if given, as the timeout."""
        if self._producer is not None:
            await self.close(close_timeout_s(self._producer.options, FLUSH_TIMEOUT_S))

    def _started(self) -> LoopProducer:
        if self._producer is None:
            raise ProducerClosedError("the producer was not started: use `async with`, or await start() first")
        return self._producer

    # --- send

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> DeliveryFuture:
        """Puts a record into the arena, and returns. A sender delivers it.

        The arguments are in aiokafka's order, with the meaning of `shmaccum.Producer.send`.

        Returns:
            A DeliveryFuture: await it for the RecordMetadata, or ignore it.

        Raises:
            BufferExhaustedError, PartitionCountUnknownError: the task waited for max_block_ms.
            Exception: as `shmaccum.Producer.send`.
        """
        producer = self._producer or self._started()
        record = topic, value, key, headers, partition, timestamp_ms
        try:
            if producer.is_plain and not self._topic_locks:
                try:
                    return producer.send(topic, value, key, headers, partition, timestamp_ms)
                except WouldWaitError:
                    pass
            return await self._send_in_order(producer, topic, record)
        except UNUSABLE as error:
            answer: DeliveryFuture = await self._send_elsewhere(error, record)
            return answer

    async def _send_elsewhere(self, error: Exception, record: tuple[Any, ...]) -> Any:
        """Sends a record, in the order of `shmaccum.Producer.send`, through the object of `on_unusable`."""
        if self._fallback is None:
            raise error
        topic, value, key, headers, partition, timestamp_ms = record
        answer = self._fallback.send(
            error, lambda target: target.send(topic, value, key, partition, timestamp_ms, headers)
        )
        return await answer if asyncio.iscoroutine(answer) else answer

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Headers | None = None,
    ) -> RecordMetadata:
        """Sends a record, and waits until it is delivered.

        Raises:
            DeliveryError: the record was not delivered.
            Exception: as `send`.
        """
        future: Any = await self.send(topic, value, key, partition, timestamp_ms, headers)
        metadata: RecordMetadata = await future if inspect.isawaitable(future) else future
        return metadata

    async def _send_in_order(self, producer: LoopProducer, topic: str, record: tuple[Any, ...]) -> DeliveryFuture:
        deadline_ns = producer.deadline_ns()
        async with self._topic_lock(topic):
            await producer.wait_for_partitions(topic, deadline_ns)
            arguments = producer.prepare(*record)
            try:
                future = await _appended(producer, arguments[0], deadline_ns, lambda: producer.send(*arguments))
            except BaseException as error:
                await producer.conclude(None, error)
                raise
            await producer.conclude(future, None)
            return future

    @contextlib.asynccontextmanager
    async def _topic_lock(self, topic: str) -> AsyncIterator[None]:
        """Holds the lock of a topic, first come, first served. The lock exists while a task uses it."""
        topic_lock = self._topic_locks.setdefault(topic, _TopicLock())
        topic_lock.task_count += 1
        try:
            async with topic_lock.lock:
                yield
        finally:
            topic_lock.task_count -= 1
            if topic_lock.task_count == 0:
                del self._topic_locks[topic]

    # --- send many

    async def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        headers: Iterable[Headers | None] | None = None,
        timestamps_ms: Iterable[int | None] | None = None,
        partition: int | Iterable[int | None] | None = None,
    ) -> Deliveries:
        """Sends many records to one topic. Other tasks run after each thousand.

        Args:
            values, keys, headers, timestamps_ms, partition: as for `shmaccum.Producer.send_many`.

        Returns:
            The records and their results. Await it for the offsets of all records.

        Raises:
            ValueError: the columns have different lengths.
            Exception: as `send`. If records were appended, the exception, which may be CancelledError, has the
                attribute `appended`, a Deliveries of these records, none of which is lost. If a record was invalid, it
                also has `record_index`.
        """
        producer = self._started()
        columns = TopicRecords(values, keys, headers, timestamps_ms, partition).listed()
        count = len(list(columns.values))
        sent = Deliveries()
        try:
            async with self._topic_lock(topic):
                await producer.wait_for_partitions(topic, producer.deadline_ns())
                for first in range(0, count, CHUNK_SIZE):
                    await _send_rows(producer, topic, columns, range(first, min(first + CHUNK_SIZE, count)), sent)
                    await asyncio.sleep(0)
        except BaseException as error:
            error.appended = sent  # type: ignore[attr-defined]
            await producer.conclude_many(sent, error if isinstance(error, Exception) else None)
            if self._fallback is None or not isinstance(error, UNUSABLE):
                raise
            answers: Any = [await self._send_elsewhere(error, tuple(each)) for each in columns.records(topic)]
            return answers  # type: ignore[no-any-return]
        await producer.conclude_many(sent, None)
        return sent

    # --- transactions

    async def init_transactions(self) -> None:
        """Takes the transactional_id back if another producer has taken it (Kafka: initTransactions).

        Raises:
            Exception: as `shmaccum.Producer.init_transactions`.
        """
        await self._started().init_in_loop()

    def transaction(self) -> Transaction:
        """Returns a transaction for an ``async with`` block, which begins and commits it, or aborts it if it raises.

        ::

            async with producer.transaction() as transaction:
                await producer.send("orders", b"...")

        Raises:
            ProducerClosedError: the producer was not started.
            Exception: the block raises as `begin_transaction` and `commit_transaction`.
        """
        return Transaction(self._started(), self.send_offsets_to_transaction)

    async def begin_transaction(self) -> None:
        """Begins a transaction, in which every process of the arena may send (Kafka: beginTransaction).

        The task waits until the previous one is over, for at most ``max_block_ms``. A cancelled task has begun no
        transaction.

        Raises:
            ArenaBusyError, ArenaRemovedError, InvalidArgumentError, ProducerClosedError, ProducerFencedError: as
                `shmaccum.Producer.begin_transaction`.
        """
        await self._started().begin_in_loop()

    async def commit_transaction(self, timeout: float | None = COMMIT_TIMEOUT_S) -> None:
        """Commits the records that all processes have sent since `begin_transaction` (Kafka: commitTransaction).

        If the task is cancelled, the commit continues. Call this method again for the outcome.

        Args:
            timeout: seconds, two minutes by default, or None for no limit.

        Raises:
            TransactionEndedError, ProducerFencedError, TransactionOutcomeUnknownError, NoTransactionError: as
                `shmaccum.Producer.commit_transaction`.
        """
        await self._started().commit_in_loop(None, timeout)

    async def abort_transaction(self) -> None:
        """Discards the records that all processes have sent since `begin_transaction` (Kafka: abortTransaction).

        Raises:
            TransactionEndedError, NoTransactionError: as `shmaccum.Producer.abort_transaction`.
        """
        self._started().abort_transaction()

    async def send_offsets_to_transaction(self, offsets: GroupOffsets, group_metadata: object) -> None:
        """Commits offsets of a consumer group with the transaction (Kafka: sendOffsetsToTransaction, KIP-447).

        When this method returns, the offsets are in the arena. They are committed with the records or not at all. If
        the group does not accept them, `commit_transaction` raises. Offsets of two tasks keep the order of their calls.

        Args:
            offsets: the next offset of each partition, by a TopicPartition of kafka-python, aiokafka or
                confluent-kafka.
            group_metadata: a group id, or the group metadata of a consumer of kafka-python or confluent-kafka.

        Raises:
            BufferExhaustedError: the task waited for max_block_ms.
            InvalidArgumentError, NoTransactionError, ProducerFencedError: as
                `shmaccum.Producer.send_offsets_to_transaction`.
        """
        producer = self._started()
        packed = producer.packed_offsets(offsets, group_metadata)
        if packed is None:
            return
        async with self._topic_lock(OFFSETS_TOPIC):
            await _appended(producer, OFFSETS_TOPIC, producer.deadline_ns(), lambda: producer.append_offsets(packed))
        await producer.sync_in_loop()

    def join(self, number: int | None) -> None:
        """Restricts this producer to one transaction, as `shmaccum.Producer.join` does.

        Raises:
            InvalidArgumentError, ProducerClosedError: as `shmaccum.Producer.join`.
        """
        self._started().join(number)

    # --- flush and facts

    async def flush(self, timeout: float | None = FLUSH_TIMEOUT_S) -> None:
        """Sends all records of this producer immediately, and waits until each is delivered or has failed.

        Args:
            timeout: seconds, two minutes by default, or None for no limit.

        Raises:
            FlushTimeoutError, ArenaRemovedError, ProducerClosedError: as `shmaccum.Producer.flush`.
        """
        producer = self._started()
        if self._target is not None:
            await _called(self._target, "flush")
        else:
            await producer.flush_in_loop(timeout)

    async def partitions_for(self, topic: str) -> set[int]:
        """Returns the partitions of a topic. It waits for a sender to report them.

        Raises:
            PartitionCountUnknownError: no sender reported them within ``max_block_ms``.
        """
        producer = self._started()
        return set(range(await producer.wait_for_partitions(topic, producer.deadline_ns())))

    def metrics(self) -> dict[str, dict[str, float]]:
        """The numbers of `shmaccum.Producer.metrics`."""
        return self._started().metrics()

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._producer is not None and self._producer.closed

    def __repr__(self) -> str:
        return f"<aio.Producer around {self._producer!r}>"


async def _called(target: Any, name: str) -> None:
    """Calls a method of the object of `on_unusable`, if the object has it."""
    method = getattr(target, name, None)
    answer = method() if callable(method) else None
    if inspect.isawaitable(answer):
        await answer


class _TopicLock:
    """The lock of the tasks that send to one topic."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.task_count = 0


async def _appended(producer: LoopProducer, topic: str, deadline_ns: int, append: Callable[[], Answer]) -> Answer:
    """Calls `append`, again after each wait that it requests, and returns its result."""
    while True:
        try:
            return append()
        except WouldWaitError as wait:
            need, least, partition_index = wait.need, wait.least, wait.partition_index
        if need == 0:
            await producer.wait_for_partitions(topic, deadline_ns, least)
        else:
            await producer.wait_for_buffers(need, deadline_ns, partition_index)


async def _send_rows(
    producer: LoopProducer, topic: str, columns: TopicRecords, rows: Sequence[int], sent: Deliveries
) -> None:
    """Sends some rows. If the arena is too full for all of them, makes several native calls."""
    left, columns = rows, producer.prepare_rows(topic, columns.pick(rows))
    appended = Deliveries()

    def append() -> None:
        nonlocal left, columns
        try:
            part = producer.append(topic, columns)
            sent.add(left, part)
            appended.add(left, part)
        except Exception as error:
            gone = _take_appended(error, left, sent, appended)
            kept = [place for place in range(len(left)) if place not in gone]
            left, columns = [left[place] for place in kept], columns.pick(kept)
            raise

    failure: BaseException | None = None
    try:
        await _appended(producer, topic, producer.deadline_ns(), append)
    except BaseException as error:
        failure = error
        raise
    finally:
        producer.end_rows(appended, (row - rows[0] for row in appended.rows), failure)


def _take_appended(error: Exception, rows: Sequence[int], *targets: Deliveries) -> set[int]:
    """Adds the `rows` that were appended before the error, and returns their places. The error gets `record_index`."""
    if (index := getattr(error, "record_index", None)) is not None:
        error.record_index = rows[index]  # type: ignore[attr-defined]
    part: native.Deliveries | None = getattr(error, "appended", None)
    if part is None:
        return set()
    for target in targets:
        target.add(rows, part)
    return set(part.rows)
