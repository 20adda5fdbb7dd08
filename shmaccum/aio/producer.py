# SPDX-License-Identifier: Apache-2.0
"""The producer of asyncio programs, with aiokafka's call shapes (aiokafka.AIOKafkaProducer)."""

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
"""Records that `send_many` appends before other tasks have their turn."""

Answer = TypeVar("Answer")


@final
class Producer(StoppedOnExit):
    """Sends records through an arena from the tasks of one event loop, which never stands still for it.

    ::

        async with shmaccum.aio.Producer("events", linger_ms=5) as producer:
            future = await producer.send("flights", b"...", key=b"AA11")
            metadata = await future

    Where `shmaccum.Producer.send` would block, for a buffer or for the partition count of a new topic, ``await send``
    waits as a task. Sends to one topic keep the order in which they were called. Results wake the loop through a
    descriptor: the process needs no thread for them. A task that is cancelled in ``send`` has sent nothing, or the
    record is in the arena and will be delivered; it leaves nothing else behind.

    Args:
        arena, mode, sink, options: as for `shmaccum.Producer`.
        on_unusable: as for `shmaccum.Producer`. The object's ``send`` gets the arguments of `send` in this order, from
            `send`, `send_and_wait` and `send_many`. Where a call of the object answers a coroutine, it is awaited. The
            function is called in the thread of the loop.
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
        self._lines: dict[str, _Line] = {}

    # --- begin and end

    async def start(self) -> None:
        """Attaches to the arena and, with a sink, starts the sender. Done again it does nothing.

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
        """No more sends; waits until everything is delivered or has failed. Closing again does nothing.

        A task that waits in a send gets ProducerClosedError; its record was not appended. A record that is not
        delivered in time stays in the arena and will be sent; a warning tells of it.

        Args:
            timeout: seconds, two minutes by default; None waits as long as it takes.

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
        """The object of `on_unusable`; None before it was called."""
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
        """Puts a record into the arena, and comes back when it is there; a sender delivers it.

        The order of the arguments is aiokafka's. They mean what they mean for `shmaccum.Producer.send`.

        Returns:
            A DeliveryFuture: await it for the RecordMetadata, or forget it.

        Raises:
            BufferExhaustedError, PartitionCountUnknownError: the task waited for max_block_ms.
            Exception: as `shmaccum.Producer.send`.
        """
        producer = self._producer or self._started()
        record = topic, value, key, headers, partition, timestamp_ms
        try:
            if producer.is_plain and not self._lines:
                try:
                    return producer.send(topic, value, key, headers, partition, timestamp_ms)
                except WouldWaitError:
                    pass
            return await self._send_in_line(producer, topic, record)
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
            DeliveryError: one of its subclasses: it was not delivered.
            Exception: as `send`.
        """
        future: Any = await self.send(topic, value, key, partition, timestamp_ms, headers)
        metadata: RecordMetadata = await future if inspect.isawaitable(future) else future
        return metadata

    async def _send_in_line(self, producer: LoopProducer, topic: str, record: tuple[Any, ...]) -> DeliveryFuture:
        deadline_ns = producer.deadline_ns()
        async with self._line(topic):
            await producer.wait_for_partitions(topic, deadline_ns)
            arguments = producer.prepare(*record)
            try:
                future = await _appended(producer, arguments[0], deadline_ns, lambda: producer.send(*arguments))
            except Exception as error:
                await producer.conclude(None, error)
                raise
            await producer.conclude(future, None)
            return future

    @contextlib.asynccontextmanager
    async def _line(self, topic: str) -> AsyncIterator[None]:
        """The line of those who send to a topic, first come, first served. It is there while somebody stands in it."""
        line = self._lines.setdefault(topic, _Line())
        line.task_count += 1
        try:
            async with line.lock:
                yield
        finally:
            line.task_count -= 1
            if line.task_count == 0:
                del self._lines[topic]

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
        """Sends many records to one topic; other tasks have their turn after each thousand.

        Args:
            values, keys, headers, timestamps_ms, partition: as for `shmaccum.Producer.send_many`.

        Returns:
            The records and their results: await it for the offsets of all.

        Raises:
            ValueError: the columns are not of equal length.
            Exception: as `send`. One that is raised midway, CancelledError included, has the attribute `appended`, a
                Deliveries with the records that were appended, nothing of which is lost; and, if a record was wrong,
                `record_index`.
        """
        producer = self._started()
        columns = TopicRecords(values, keys, headers, timestamps_ms, partition).listed()
        count = len(list(columns.values))
        sent = Deliveries()
        try:
            async with self._line(topic):
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
        """Takes the transactional_id for this arena, where another producer has taken it (Kafka: initTransactions).

        Raises:
            Exception: as `shmaccum.Producer.init_transactions`.
        """
        await self._started().init_in_loop()

    def transaction(self) -> Transaction:
        """A transaction for an ``async with`` block, which begins it, and commits it or aborts it when it raises.

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

        The task waits until the last one is over, for ``max_block_ms`` at most. A task that is cancelled has begun
        none.

        Raises:
            ArenaBusyError, ArenaRemovedError, InvalidArgumentError, ProducerClosedError, ProducerFencedError: as
                `shmaccum.Producer.begin_transaction`.
        """
        await self._started().begin_in_loop()

    async def commit_transaction(self, timeout: float | None = COMMIT_TIMEOUT_S) -> None:
        """Commits what all processes have sent since `begin_transaction` (Kafka: commitTransaction).

        The commit goes on when the task is cancelled. The same call made again tells the outcome.

        Args:
            timeout: seconds, two minutes by default; None waits as long as it takes.

        Raises:
            TransactionEndedError, ProducerFencedError, TransactionOutcomeUnknownError, NoTransactionError: as
                `shmaccum.Producer.commit_transaction`.
        """
        await self._started().commit_in_loop(None, timeout)

    async def abort_transaction(self) -> None:
        """Throws away what all processes have sent since `begin_transaction` (Kafka: abortTransaction).

        Raises:
            TransactionEndedError, NoTransactionError: as `shmaccum.Producer.abort_transaction`.
        """
        self._started().abort_transaction()

    async def send_offsets_to_transaction(self, offsets: GroupOffsets, group_metadata: object) -> None:
        """Commits offsets of a consumer group with the transaction (Kafka: sendOffsetsToTransaction, KIP-447).

        The offsets lie in the arena when this comes back, and are committed with the records or not at all. Where the
        group does not take them, `commit_transaction` raises. Offsets of two tasks keep the order of their calls.

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
        async with self._line(OFFSETS_TOPIC):
            await _appended(producer, OFFSETS_TOPIC, producer.deadline_ns(), lambda: producer.append_offsets(packed))
        await producer.sync_in_loop()

    def join(self, number: int | None) -> None:
        """From now on this producer sends in one transaction alone, as `shmaccum.Producer.join` has it.

        Raises:
            InvalidArgumentError, ProducerClosedError: as `shmaccum.Producer.join`.
        """
        self._started().join(number)

    # --- flush and facts

    async def flush(self, timeout: float | None = FLUSH_TIMEOUT_S) -> None:
        """Hurries everything sent through this producer so far, and waits until all of it is delivered or has failed.

        Args:
            timeout: seconds, two minutes by default; None waits as long as it takes.

        Raises:
            FlushTimeoutError, ArenaRemovedError, ProducerClosedError: as `shmaccum.Producer.flush`.
        """
        producer = self._started()
        if self._target is not None:
            await _called(self._target, "flush")
        else:
            await producer.flush_in_loop(timeout)

    async def partitions_for(self, topic: str) -> set[int]:
        """The partitions of a topic; waits for a sender to tell them.

        Raises:
            PartitionCountUnknownError: no sender told within ``max_block_ms``.
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
    """Calls a method of the object of `on_unusable`, if it has it."""
    method = getattr(target, name, None)
    answer = method() if callable(method) else None
    if inspect.isawaitable(answer):
        await answer


class _Line:
    """Tasks that send to one topic, one after another."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.task_count = 0


async def _appended(producer: LoopProducer, topic: str, deadline_ns: int, append: Callable[[], Answer]) -> Answer:
    """The answer of `append`, which is called again behind each wait that it asks for."""
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
    """Sends some rows, in as many native calls as the arena's memory needs."""
    left, columns = rows, producer.prepare_rows(topic, columns.pick(rows))

    def append() -> None:
        nonlocal left, columns
        try:
            sent.add(left, producer.append(topic, columns))
        except Exception as error:
            gone = _take_appended(error, left, sent)
            kept = [place for place in range(len(left)) if place not in gone]
            left, columns = [left[place] for place in kept], columns.pick(kept)
            raise

    await _appended(producer, topic, producer.deadline_ns(), append)


def _take_appended(error: Exception, rows: Sequence[int], sent: Deliveries) -> set[int]:
    """Notes which of `rows` were appended before the error; answers their places. The error gets the row to blame."""
    if (index := getattr(error, "record_index", None)) is not None:
        error.record_index = rows[index]  # type: ignore[attr-defined]
    part: native.Deliveries | None = getattr(error, "appended", None)
    if part is None:
        return set()
    sent.add(rows, part)
    return set(part.rows)
