# SPDX-License-Identifier: Apache-2.0
"""The consumer of a log on this host, with the names and signatures of kafka-python's KafkaConsumer.

It reads the files of the log (`shmaccum.log.files`): no server, no socket, no heartbeat. Native code checks and decodes
batches. As in kafka-python, a consumer is not thread-safe, except for `wakeup`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from shmaccum.common import clock
from shmaccum.common.cooperative import refuse_greenlets
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import parse_timeout_ms
from shmaccum.config.consumer import ConsumerOptions
from shmaccum.exceptions import (
    ConsumerStateError,
    GroupBusyError,
    InvalidArgumentError,
    LogPartitionNotFoundError,
    OffsetOutOfRangeError,
    RecordDeserializationError,
)
from shmaccum.log.consumer import arrow
from shmaccum.log.consumer.change_waiter import ChangeWaiter
from shmaccum.log.consumer.deserializers import Deserializers
from shmaccum.log.consumer.group import REVOCATION_TIMEOUT_S
from shmaccum.log.consumer.partition_flow import PartitionFlow
from shmaccum.log.consumer.record import ConsumerRecord
from shmaccum.log.consumer.subscription import Subscription
from shmaccum.log.files.log_batch import LogBatch

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)

default_interceptors: list[Any] = []
"""Interceptors of all consumers that are created from now on."""

COMMIT_INTERVAL_S_MIN = 0.0005
COMMIT_INTERVAL_S_MAX = 0.05
ARROW_SIZE_MAX = 4 << 20
"""The maximum size of the batches in the log for one `Consumer.poll_arrow`.

A table of 64 MiB takes 50% more time per record, because its memory is never in the CPU caches.
"""

Records = dict[TopicPartition, list[ConsumerRecord]]


class Consumer(Subscription):
    """Reads topics of a log directory.

    Args:
        log: the directory, as ``log:DIR`` or as a path.
        topics: topics to subscribe to.
        options: see `ConsumerOptions`. Names and defaults are those of Kafka's consumer.

    Attributes:
        options: the options, with defaults for those that were not given.

    Raises:
        NotALogError: if the directory does not exist or is not a log.
        InvalidArgumentError: if an option is unknown or invalid, or gevent or eventlet has patched the process.
    """

    def __init__(self, log: str | os.PathLike[str], *topics: str, **options: Any) -> None:
        refuse_greenlets("a consumer", "run it in another process")
        self._waiting_thread = 0
        self._close_asked: bool | None = None
        parsed = ConsumerOptions.parse(options)
        super().__init__(log, replace(parsed, interceptors=(*parsed.interceptors, *default_interceptors)))
        self._turn = 0
        self._iterated: PartitionFlow | None = None
        self._record_count = self._poll_count = 0
        try:
            self._deserializers = Deserializers(self.options.key_deserializer, self.options.value_deserializer)
            if topics:
                self.subscribe(topics)
        except BaseException:
            self._release()
            raise

    def _open_waiter(self) -> ChangeWaiter:
        asked, self._close_asked = self._close_asked, None
        if asked is not None and not self._waiting_thread:
            self.close(asked)
        elif asked is not None:
            self._close_asked = asked
        return super()._open_waiter()

    # --- records

    def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> Records:
        """The next records, by partition.

        Args:
            timeout_ms: the time to wait if there are none. 0 does not wait.
            max_records: the maximum number of records. Default: max_poll_records.

        Returns:
            The records of each partition that has any. It is empty after the timeout, or if `wakeup` was called.

        Raises:
            ConsumerStateError: if the consumer was closed or belongs to the parent process, if it has neither a
                subscription nor an assignment, or if there is no valid position and auto_offset_reset is none.
            RecordDeserializationError: if a deserializer fails for the record at the position.
            CorruptLogError: if there is damage in the log. `seek` can skip it.
        """
        limit = self._limit(max_records)
        found = self._wait(lambda: self._take(limit), parse_timeout_ms(timeout_ms))
        return self._intercepted(found) if found else {}

    def _limit(self, max_records: int | None) -> int:
        given: object = max_records
        limit = self.options.max_poll_records if given is None else given
        if not isinstance(limit, int) or limit < 1:
            raise InvalidArgumentError(f"max_records must be a whole number of 1 or more, got {max_records!r}")
        return limit

    def _intercepted(self, found: Records) -> Records:
        """The records that the interceptors return."""
        for interceptor in self.options.interceptors:
            found = _result_of(interceptor, found)
        return found

    def _wait(self, take: Callable[[], Any], timeout_s: float) -> Any:
        """The first result of `take` that is not empty, or None after the timeout or `wakeup`."""
        waiter, deadline_s = self._begin_wait(), clock.monotonic() + timeout_s
        self._waiting_thread = threading.get_ident()
        try:
            while True:
                self._mark_changed(waiter)
                found = take()
                if found or waiter.take_wakeup() or clock.monotonic() >= deadline_s or waiter.wait(deadline_s):
                    break
        finally:
            self._waiting_thread = 0
        if not found:
            self._open_waiter()  # a handler may have closed it
        return found

    def _begin_wait(self) -> ChangeWaiter:
        waiter = self._open_waiter()
        if not self._flows and self.subscription() is None:
            raise ConsumerStateError("the consumer has neither a subscription nor an assignment: subscribe or assign")
        self._poll_count += 1
        return waiter

    def _mark_changed(self, waiter: ChangeWaiter) -> None:
        """Mark the partitions that may have unread records, and check the group if necessary."""
        changed = waiter.take()
        for flow in self._flows.values():
            flow.may_have_more = flow.may_have_more or flow.partition.folder in changed
        if self._reader.path in changed:
            self._leave_former_topics()
            self._find_partitions()
        group = self._group
        if group is not None:
            if group.is_commit_due():
                group.auto_commit(self._positions())
            is_changed = group.membership.locks.path in changed
            if group.membership.is_member and (is_changed or waiter.must_check_plan):
                self._rebalance(group, is_checked=not is_changed)

    def _ready(self) -> Iterator[PartitionFlow]:
        """The partitions that may have records. The first one changes with each call."""
        flows = list(self._flows.values())
        self._turn += 1
        for number in range(len(flows)):
            flow = flows[(self._turn + number) % len(flows)]
            if not flow.is_paused and (flow.has_records or flow.may_have_more):
                yield flow

    def _take(self, limit: int) -> Records:
        """Up to `limit` records of all partitions."""
        found: Records = {}
        count = 0
        for flow in self._ready():
            try:
                count += self._take_of(flow, limit - count, found)
            except Exception:
                if not found:
                    raise
                break  # return the records that were taken; the next poll raises
            if count >= limit:
                break
        self._record_count += count
        return found

    def _take_of(self, flow: PartitionFlow, limit: int, found: Records) -> int:
        """Add up to `limit` records of one partition; return their number."""
        count = 0
        while count < limit and (records := self._peek(flow, limit - count)):
            done = self._deserialized(records, is_first=not count)
            found.setdefault(flow.place, []).extend(done)
            flow.advance(len(done))
            count += len(done)
            if len(done) < len(records):
                break
        return count

    def _deserialized(self, records: list[ConsumerRecord], *, is_first: bool) -> list[ConsumerRecord]:
        """The records before the first one for which a deserializer fails. Only an error of the first record raises."""
        try:
            return self._deserializers.apply(records)
        except RecordDeserializationError:
            if is_first:
                raise
            return []

    def _peek(self, flow: PartitionFlow, count: int) -> list[ConsumerRecord]:
        try:
            return self._with_position(flow).peek(count)
        except OffsetOutOfRangeError:
            self._reset_position(flow, f"has no offset {flow.position} in the log")
            return flow.peek(count)
        except LogPartitionNotFoundError:
            if self._is_assigned_by_hand:
                raise
            flow.may_have_more = False  # its topic is being deleted; the look-up of the topics drops the partition
            return []

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        """The next record. The iteration ends if none arrives within consumer_timeout_ms.

        Raises:
            ConsumerStateError, CorruptLogError: as `poll`.
        """
        end_s = self._iteration_end_s()
        while (found := self._next_of_batch() or self._iterate(self.poll(_left_ms(end_s), 1))) is None:
            if clock.monotonic() >= end_s:
                raise StopIteration
        return found

    def _iteration_end_s(self) -> float:
        """The time at which an iteration without a record ends."""
        return clock.monotonic() + self._silence_s()

    def _iterate(self, polled: Records) -> ConsumerRecord | None:
        """The record of a poll for one record. Remembers its partition."""
        for place, records in polled.items():
            self._iterated = self._flows.get(place)
            return records[0]
        return None

    def _next_of_batch(self) -> ConsumerRecord | None:
        """The record after the last one of an iteration, if it is in the same batch, so that no poll is needed."""
        flow = self._iterated
        if flow is None or flow.is_paused or not flow.has_records or self.options.interceptors:
            return None
        if self._flows.get(flow.place) is not flow:
            return None
        (record,) = self._deserializers.apply(flow.peek(1))
        flow.advance(1)
        self._record_count += 1
        return record

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[ConsumerRecord]:
        """Up to this number of records of all partitions, as confluent_kafka's Consumer.consume.

        Args:
            num_messages: the maximum number of records.
            timeout: seconds to wait for all of them. If it is -1, wait forever. After that time, fewer are returned.

        Raises:
            InvalidArgumentError: if num_messages is not 1 or more.
            ConsumerStateError, CorruptLogError: as `poll`.
        """
        if num_messages < 1:
            raise InvalidArgumentError(f"num_messages must be at least 1, got {num_messages}")
        deadline_s = float("inf") if timeout < 0 else clock.monotonic() + timeout
        found: list[ConsumerRecord] = []
        while len(found) < num_messages:
            left_ms = max(deadline_s - clock.monotonic(), 0) * 1000
            try:
                polled = self.poll(left_ms, num_messages - len(found))
            except Exception:
                if not found:
                    raise
                break  # return the records that were taken; the next call raises
            for records in polled.values():
                found += records
            if clock.monotonic() >= deadline_s:
                break
        return found

    def batches(self, timeout_ms: float | None = None) -> Iterator[tuple[TopicPartition, LogBatch]]:
        """Whole batches as they are in the log, with their partition. The position then follows the batch.

        The first batch may begin before the position. Transaction markers are left out.

        Args:
            timeout_ms: stop if no batch arrives for this long. Default: consumer_timeout_ms.

        Raises:
            ConsumerStateError, CorruptLogError: as `poll`.
        """
        limit_s = self._silence_s(timeout_ms)
        while found := self._wait(self._take_batch, limit_s):
            yield found

    def _silence_s(self, timeout_ms: float | None = None) -> float:
        """The time after which an iteration without a record ends. The default is consumer_timeout_ms."""
        limit_ms = self.options.consumer_timeout_ms if timeout_ms is None else timeout_ms
        return limit_ms / 1000 if limit_ms >= 0 else float("inf")

    def _take_batch(self) -> tuple[TopicPartition, LogBatch] | None:
        for flow in self._ready():
            while batch := self._next_batch(flow):
                if not batch.is_control:
                    self._record_count += batch.header.record_count
                    return flow.place, batch
        return None

    def _next_batch(self, flow: PartitionFlow) -> LogBatch | None:
        try:
            return self._with_position(flow).next_batch()
        except OffsetOutOfRangeError:
            self._reset_position(flow, f"has no offset {flow.position} in the log")
            return flow.next_batch()

    def poll_arrow(self, timeout_ms: float = 0) -> Any:
        """The next records as a `pyarrow.Table`, with at most 4 MiB of batches.

        The columns are topic, partition, offset, timestamp, timestamp_type, key, value and headers. Keys and values
        are binary; deserializers and interceptors are not called.

        Args:
            timeout_ms: the time to wait if there are none. 0 does not wait.

        Raises:
            CodecMissingError: if pyarrow, or a package for a compression, is not installed.
            ConsumerStateError, CorruptLogError: as `poll`.
        """
        return self._wait(self._take_runs, parse_timeout_ms(timeout_ms)) or arrow.table([])

    def _take_runs(self) -> Any:
        """A table of the available records, or None. Positions advance only if the table was created."""
        runs: list[arrow.BatchRun] = []
        size = 0
        for flow in self._ready():
            wanted = flow.position
            run = self._run(flow, ARROW_SIZE_MAX - size, is_first=not runs)
            size += sum(batch.size for batch in run)
            if run:
                # A reset of the position may have led to batches before the wanted one.
                first = wanted if run[0].base_offset <= wanted < run[0].next_offset else run[0].base_offset
                runs.append(arrow.BatchRun(flow.place, first, run))
        try:
            found = arrow.table(runs) if runs else None
        except Exception:
            for run_of in runs:
                self._flows[run_of.place].seek(run_of.first_offset)
            raise
        if found is None or not found.num_rows:
            return None
        self._record_count += found.num_rows
        return found

    def _run(self, flow: PartitionFlow, size: int, *, is_first: bool) -> list[LogBatch]:
        """Batches of one partition, of about `size` bytes. An error raises only if no batch was read before it."""
        run: list[LogBatch] = []
        try:
            self._with_position(flow)
            while size > 0 and (batch := self._next_batch(flow)):
                size -= batch.size
                run.append(batch)
        except Exception:
            if is_first and not run:
                raise
        return run

    # --- in an event loop

    async def apoll(self, timeout_ms: float = 0, max_records: int | None = None) -> Records:
        """As `poll`, without blocking the event loop.

        The call waits for one descriptor and needs no thread. If it is cancelled while it waits, it has taken no
        record. Records are read and deserialized in the loop, which takes a millisecond for 500 records of 100 bytes.

        Args:
            timeout_ms, max_records: as for `poll`.

        Raises:
            ConsumerStateError: as `poll`, or if the consumer was closed during this call, or another task is waiting
                in a call of this consumer.
            RecordDeserializationError, CorruptLogError: as `poll`.
        """
        limit = self._limit(max_records)
        found = await self._wait_in_loop(lambda: self._take(limit), parse_timeout_ms(timeout_ms))
        return self._intercepted(found) if found else {}

    async def _wait_in_loop(self, take: Callable[[], Any], timeout_s: float) -> Any:
        """As `_wait`, in an event loop. It does not await between taking records and returning them."""
        waiter, deadline_s = self._begin_wait(), clock.monotonic() + timeout_s
        found, is_over = None, False
        while not (found or is_over):
            await asyncio.sleep(0)  # let other tasks run, even if every call finds records
            self._open_waiter()
            self._mark_changed(waiter)
            found = take()
            is_over = waiter.take_wakeup() or clock.monotonic() >= deadline_s
            if not (found or is_over):
                is_over = await waiter.wait_in_loop(deadline_s)
        self._open_waiter()
        return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        """The next record, as `__next__`."""
        end_s = self._iteration_end_s()
        while (found := self._next_of_batch() or self._iterate(await self.apoll(_left_ms(end_s), 1))) is None:
            if clock.monotonic() >= end_s:
                raise StopAsyncIteration
        return found

    async def abatches(self, timeout_ms: float | None = None) -> AsyncIterator[tuple[TopicPartition, LogBatch]]:
        """Whole batches, as `batches`, without blocking the event loop.

        Args:
            timeout_ms: as for `batches`.

        Raises:
            ConsumerStateError, CorruptLogError: as `apoll`.
        """
        limit_s = self._silence_s(timeout_ms)
        while found := await self._wait_in_loop(self._take_batch, limit_s):
            yield found

    async def apoll_arrow(self, timeout_ms: float = 0) -> Any:
        """As `poll_arrow`, without blocking the event loop.

        Args:
            timeout_ms: as for `poll_arrow`.

        Raises:
            CodecMissingError: as `poll_arrow`.
            ConsumerStateError, CorruptLogError: as `apoll`.
        """
        return await self._wait_in_loop(self._take_runs, parse_timeout_ms(timeout_ms)) or arrow.table([])

    async def acommit(self, offsets: Mapping[TopicPartition, Any] | None = None, timeout_ms: float = 60_000) -> None:
        """As `commit`, without blocking the event loop while another member is writing.

        Args:
            offsets, timeout_ms: as for `commit`.

        Raises:
            ConsumerStateError, GroupBusyError, OSError: as `commit`.
        """
        group = self._in_group()
        wanted = self._positions() if offsets is None else offsets
        deadline_s, interval_s = clock.monotonic() + parse_timeout_ms(timeout_ms), COMMIT_INTERVAL_S_MIN
        while True:
            try:
                return self.commit(wanted, 0)
            except GroupBusyError as error:
                if clock.monotonic() >= deadline_s:
                    raise GroupBusyError(f"{error}{group.membership.stopped()}") from None
            await asyncio.sleep(interval_s)
            interval_s = min(2 * interval_s, COMMIT_INTERVAL_S_MAX)

    # --- metrics and closing

    def metrics(self) -> dict[str, dict[str, float]]:
        """Group -> name -> value, with the names of Kafka's consumer."""
        lags = [
            max(flow.partition.log_end_offset - flow.position, 0) for flow in self._flows.values() if flow.position >= 0
        ]
        byte_count = self._byte_count + sum(flow.byte_count for flow in self._flows.values())
        return {
            "consumer-fetch-manager-metrics": {
                "records-consumed-total": self._record_count,
                "bytes-consumed-total": byte_count,
                "records-lag-max": max(lags, default=0),
            },
            "consumer-metrics": {"poll-total": self._poll_count},
            "consumer-coordinator-metrics": {
                "assigned-partitions": len(self._flows),
                "commit-total": self._group.commit_count if self._group is not None else 0,
            },
        }

    def close(self, autocommit: bool = True) -> None:
        """Close the consumer, and leave the group. A second call does nothing.

        In a signal handler that interrupts a `poll`, it requests that this poll closes the consumer and raises
        ConsumerStateError. If the poll has taken records, it returns them, and the next call raises.

        Args:
            autocommit: with enable_auto_commit, commit the positions first.
        """
        if self._waiter is None:
            return
        if self._waiting_thread == threading.get_ident():  # a signal handler interrupted a poll of this thread
            self._close_asked = autocommit
            self.wakeup()
            return
        try:
            if self._group is not None:
                self._group.auto_commit(self._positions() if autocommit else {}, REVOCATION_TIMEOUT_S)
                self._call_listener("on_partitions_revoked", set(self._group.membership.locks.owned))
        finally:
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the consumer. After an error, no positions are committed, so the last records are read again."""
        self.close(autocommit=error is None)

    def __repr__(self) -> str:
        return f"<Consumer {self.client_id!r} of {self._reader.path!r}, {len(self._flows)} partitions>"


def _left_ms(end_s: float) -> float:
    """The time until a time on the monotonic clock, in milliseconds."""
    return max(end_s - clock.monotonic(), 0) * 1000


def _result_of(interceptor: Any, records: Records) -> Records:
    """The records that an interceptor returns. As in Kafka, an error of the interceptor is ignored."""
    try:
        result: Records = interceptor.on_consume(records)
    except Exception:
        logger.exception("the interceptor %r failed in on_consume and was skipped", interceptor)
        return records
    return result
