# SPDX-License-Identifier: Apache-2.0
"""The producer inside `shmaccum.aio.Producer`. In the thread of its loop it raises an exception instead of waiting.

The native `send` calls Python if it must wait for a buffer or for the partition count of a topic. Here, these calls
raise `WouldWaitError` in the thread of the loop, and nothing was appended. The task waits, and sends again with the
buffers that it was granted. Other threads can use the same object, and wait as usual.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from shmaccum import _native
from shmaccum._native import DeliveryFuture
from shmaccum.arena.removal import RemovalWatch, check_takes_records
from shmaccum.common import clock
from shmaccum.common.background import listed
from shmaccum.common.units import parse_timeout_s
from shmaccum.exceptions import ArenaRemovedError, BufferExhaustedError, FlushTimeoutError, ProcessShareUsedError
from shmaccum.producer.buffer_wait import RETRY_SLICE_NS, BufferWaiter
from shmaccum.producer.deliveries import Deliveries
from shmaccum.producer.group_offsets import GroupOffsets
from shmaccum.producer.loop_results import LoopResults, WakeUps
from shmaccum.producer.pipeline import TopicRecords
from shmaccum.producer.transaction import Transaction, Waits
from shmaccum.supervisor import kept_producer

SLICE_S = _native.WAITER_SLICE_NS / 1e9
RETRY_SLICE_S = RETRY_SLICE_NS / 1e9
FLUSH_SLICE_S = 0.05
"""The interval between checks of a flush, because a batch may count as flushed shortly after its wake-up."""
PARTITIONS_SLICE_S = 0.002
TRANSACTION_SLICE_S = 0.05
"""The end of a transaction wakes the loop. If that wake-up is lost, the end is noticed after this time."""


class WouldWaitError(Exception):
    """Nothing was appended: the task must wait first.

    Attributes:
        need: the number of buffers to wait for, or 0 to wait for the partition count of the topic.
        least: the minimum partition count of the topic.
        partition_index: the partition that needs the buffers.
    """

    def __init__(self, need: int = 0, least: int = 1, partition_index: int = 0) -> None:
        super().__init__("this call would have to wait")
        self.need = need
        self.least = least
        self.partition_index = partition_index


@final
class LoopBufferWaiter(BufferWaiter):
    """Waits for buffers in a task, in the same queue as the threads of all processes."""

    sleeps_in_append = False
    loop_thread: int | None = None
    _granted: _native.BufferWait | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._wake_ups: set[WakeUps] = set()

    def wait(
        self, need: int, max_block_ms: int, deadline_ns: int, place: _native.BufferWait | None, partition_index: int
    ) -> _native.BufferWait:
        """Returns, in the thread of the loop, the buffers that its task was granted.

        Raises:
            WouldWaitError: it was granted none yet.
        """
        if threading.get_ident() != self.loop_thread:
            return super().wait(need, max_block_ms, deadline_ns, place, partition_index)
        granted, self._granted = self._granted, None
        if granted is None:
            raise WouldWaitError(need, partition_index=partition_index)
        return granted

    async def wait_in_loop(
        self, results: LoopResults, need: int, max_block_ms: int, deadline_ns: int, partition_index: int
    ) -> None:
        """Waits until the next `wait` in this thread returns `need` buffers. A cancelled task leaves the queue.

        Raises:
            Exception: as `BufferWaiter.wait`.
        """
        started_ns = clock.monotonic_ns()
        is_granted = False
        with WakeUps(results) as wake_ups, self._ended_by_refuse(wake_ups):
            place = await self._join_in_loop(wake_ups, need, max_block_ms, deadline_ns, partition_index)
            try:
                self._waker.wake_if_asleep()  # a task waits, so no batch may linger
                while await self._poll_in_loop(wake_ups, place, deadline_ns):
                    is_granted = place.take()
                    if is_granted or (left_s := _left_s(deadline_ns)) <= 0:
                        break
                    await wake_ups.next(min(left_s, RETRY_SLICE_S))
                    self.check_not_refused()
                    check_takes_records(self._arena)
                if not is_granted:
                    raise BufferExhaustedError(self._exhausted(need, max_block_ms, partition_index))
            finally:
                if not is_granted:
                    place.cancel()
                self._arena.native.count_wait(clock.monotonic_ns() - started_ns, not is_granted)
        self._granted = place

    @contextlib.contextmanager
    def _ended_by_refuse(self, wake_ups: WakeUps) -> Iterator[None]:
        """While the block runs, `refuse` also ends a wait for these wake-ups."""
        self._wake_ups.add(wake_ups)
        try:
            yield
        finally:
            self._wake_ups.discard(wake_ups)

    def refuse(self) -> None:
        super().refuse()
        for wake_ups in listed(self._wake_ups):
            wake_ups.end_soon()

    async def wait_until_left(self) -> None:
        """Waits, after `refuse`, until no task waits. A closed arena cannot be told that a task has left its queue."""
        while self._wake_ups:
            await asyncio.sleep(0)

    async def _join_in_loop(
        self, wake_ups: WakeUps, need: int, max_block_ms: int, deadline_ns: int, partition_index: int
    ) -> _native.BufferWait:
        """Joins the queue as soon as this process has not used up its share and is not refused the pool lock."""
        while True:
            check_takes_records(self._arena)
            try:
                return _native.BufferWait.join(self._arena.native, need, partition_index)
            except BufferExhaustedError as error:
                is_share_used = isinstance(error, ProcessShareUsedError)
            self._waker.wake_if_asleep()
            if (left_s := _left_s(deadline_ns)) <= 0:
                raise self._not_joined(is_share_used, need, max_block_ms, partition_index)
            await wake_ups.next(min(left_s, SLICE_S))
            self.check_not_refused()

    async def _poll_in_loop(self, wake_ups: WakeUps, place: _native.BufferWait, deadline_ns: int) -> bool:
        while not place.poll():
            if (left_s := _left_s(self._deadline_of(place, deadline_ns))) <= 0:
                return False
            self._on_wait()
            await wake_ups.next(min(left_s, SLICE_S))
            self.check_not_refused()
            check_takes_records(self._arena)
            place.help()
        return True


@final
class LoopProducer(kept_producer.Producer):
    """A producer that raises instead of waiting in the thread of `bind`, whose tasks wait."""

    __slots__ = ()

    _waiter_type = LoopBufferWaiter

    def bind(self) -> None:
        """From now on a wait in this thread raises `WouldWaitError`."""
        self._waiter.loop_thread = threading.get_ident()

    @property
    def _waiter(self) -> LoopBufferWaiter:
        waiter = self._appender.buffer_waiter
        assert isinstance(waiter, LoopBufferWaiter)
        return waiter

    def _native_hooks(self) -> tuple[Callable[..., tuple[Any, ...]] | None, Callable[..., None] | None]:
        """Returns no hooks, because a record that is sent again must not be prepared twice."""
        return None, None

    # --- a send in parts

    @property
    def is_plain(self) -> bool:
        """True if nothing must be done before or after an append."""
        return self._pipeline is None and not self._is_synchronous

    def prepare(self, *record: Any) -> tuple[Any, ...]:
        """Returns the arguments of a send as they are appended. The topic's partition count must be known."""
        return record if self._pipeline is None else self._pipeline.prepare(self, *record)

    def prepare_rows(self, topic: str, columns: TopicRecords) -> TopicRecords:
        """Returns many records as they are appended, as lists. The topic's partition count must be known."""
        return columns if self._pipeline is None else self._pipeline.prepare_many(self, topic, columns).listed()

    def append(self, topic: str, columns: TopicRecords) -> Deliveries:
        """Appends rows in one native call.

        Raises:
            Exception: with the attribute `appended`, a Deliveries, if some of the rows were appended.
        """
        try:
            made = Deliveries(self.append_columns(topic, *columns), self._tracker)
        except Exception as error:
            self._appended(error)
            raise
        self._made.add(made)
        return made

    def end_rows(self, futures: Iterable[DeliveryFuture], rows: Iterable[int], error: BaseException | None) -> None:
        """Informs the pipeline that rows of `prepare_rows` were appended, all of them or those before an error."""
        if self._pipeline is not None:
            self._pipeline.end_call(futures, rows, error)

    async def conclude_many(self, futures: Iterable[DeliveryFuture], error: Exception | None) -> None:
        """Ends a send of many records after its appends, as `conclude` does."""
        if self._pipeline is not None:
            self._pipeline.observe_many(futures, error)
        if error is None:
            await self.sync_in_loop()

    async def conclude(self, future: DeliveryFuture | None, error: BaseException | None) -> None:
        """Ends a send after its append: informs the pipeline, and waits for the disk in another thread."""
        if self._pipeline is not None:
            self._pipeline.conclude(future, error)
        if future is not None:
            await self.sync_in_loop()

    async def sync_in_loop(self) -> None:
        """Waits for the disk in another thread, if the arena requires it."""
        if self._is_synchronous:
            await asyncio.to_thread(self._sync)

    # --- waits

    def deadline_ns(self) -> int:
        """Returns the deadline of a send that begins now."""
        return clock.monotonic_ns() + self.options.max_block_ms * 10**6

    def _wait_for_partitions(self, topic: str, max_block_ms: int, deadline_ns: int, least: int = 1) -> int:
        if threading.get_ident() != self._waiter.loop_thread:
            return super()._wait_for_partitions(topic, max_block_ms, deadline_ns, least)
        count = self.arena.native.topic_partition_count(topic)
        if count < least:
            raise WouldWaitError(least=least)
        return count

    async def wait_for_partitions(self, topic: str, deadline_ns: int, least: int = 1) -> int:
        """Waits until a sender reports a partition count that is large enough, and returns it.

        Raises:
            Exception: as `Producer.partitions_for`.
        """
        native = self.arena.native
        started_ns = clock.monotonic_ns()
        with self._until_closed():
            while (count := native.topic_partition_count(topic)) < least:
                self._ask_for_partitions(topic, least)
                self._check_may_wait(topic, self.options.max_block_ms, deadline_ns, least)
                await asyncio.sleep(PARTITIONS_SLICE_S)
        self._metrics.metadata_wait_ns += clock.monotonic_ns() - started_ns
        return count

    async def wait_for_buffers(self, need: int, deadline_ns: int, partition_index: int) -> None:
        """Waits until the next send in this task finds `need` buffers for a partition."""
        results = LoopResults.of(self._tracker)
        await self._waiter.wait_in_loop(results, need, self.options.max_block_ms, deadline_ns, partition_index)

    async def flush_in_loop(self, timeout: float | None) -> None:
        """Flushes as `flush`, waiting in the task.

        Raises:
            FlushTimeoutError, ArenaRemovedError: as `flush`.
        """
        self._do_deferred_work()
        deadline_s = clock.monotonic() + parse_timeout_s(timeout)
        ticket = self._appender.begin_flush()
        watch = RemovalWatch(self.arena)
        with WakeUps(LoopResults.of(self._tracker)) as wake_ups:
            while ticket.remaining() > 0:
                left_s = deadline_s - clock.monotonic()
                if left_s <= 0:
                    raise FlushTimeoutError(f"after {timeout} s {self._left_over(ticket.record_count())}")
                if watch.is_abandoned():
                    raise ArenaRemovedError(self._left_over(ticket.record_count()))
                await wake_ups.next(min(FLUSH_SLICE_S, left_s))

    # --- transactions

    async def init_in_loop(self) -> None:
        """Takes the transactional_id back as `init_transactions`, waiting in the task.

        Raises:
            Exception: as `init_transactions`.
        """
        await self._run_step(self._init_waits())

    async def begin_in_loop(self) -> Transaction:
        """Begins a transaction as `transaction`, waiting in the task. A cancelled task has begun none.

        Raises:
            Exception: as `begin_transaction`.
        """
        transaction = self._new_transaction()
        await self._run_step(transaction.begin_waits(self._begin_timeout_s))
        self._transaction = transaction
        return transaction

    async def commit_in_loop(self, transaction: Transaction | None, timeout: float | None) -> None:
        """Commits as `commit_transaction`, waiting in the task. If the task is cancelled, the commit continues.

        Args:
            transaction: the transaction, or None for the one that this producer began last.
            timeout: seconds, or None for no limit.

        Raises:
            Exception: as `commit_transaction`.
        """
        await self._run_step((transaction or self._begun()).commit_waits(timeout))

    def packed_offsets(self, offsets: GroupOffsets, group_metadata: object) -> bytes | None:
        """Returns the value for `append_offsets`, or None if there are no offsets.

        Raises:
            InvalidArgumentError: as `send_offsets_to_transaction`.
        """
        return self._packed_offsets(offsets, group_metadata)

    def append_offsets(self, packed: bytes) -> None:
        """Appends offsets of a group.

        Raises:
            WouldWaitError: no buffer is free.
            Exception: as `send_offsets_to_transaction`.
        """
        with self._metrics.timed("txn-send-offsets"):
            self._append_offsets(packed)

    async def _run_step(self, waits: Waits) -> None:
        """Runs a step of a transaction in this task."""
        with contextlib.closing(waits), WakeUps(LoopResults.of(self._tracker)) as wake_ups:
            for _ in waits:
                await wake_ups.next(TRANSACTION_SLICE_S)

    # --- close

    async def close_in_loop(self, timeout: float | None) -> None:
        """Closes as `close` does. It flushes in the task, and does the rest in another thread."""
        deadline_s = clock.monotonic() + parse_timeout_s(timeout)  # an invalid timeout must not close the producer
        if not self.is_open:
            await asyncio.to_thread(self.close, timeout)
            return
        self._is_being_closed = True
        try:
            self._refuse()
            await self._finish_in_loop(timeout, deadline_s)
        finally:
            self._is_being_closed = False

    async def _finish_in_loop(self, timeout: float | None, deadline_s: float) -> None:
        if self._transaction is not None:
            self._transaction.release()
        try:
            await self._waiter.wait_until_left()
            with contextlib.suppress(FlushTimeoutError, ArenaRemovedError):  # `_finish` reports it
                await self.flush_in_loop(timeout)
        except BaseException:
            self._finish(clock.monotonic())
            raise
        await asyncio.to_thread(self._finish, deadline_s)


def _left_s(deadline_ns: int) -> float:
    return (deadline_ns - clock.monotonic_ns()) / 1e9
