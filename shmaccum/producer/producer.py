# SPDX-License-Identifier: Apache-2.0
"""The producer, which sends records (org.apache.kafka.clients.producer.KafkaProducer, with kafka-python's API).

`send` is native (native/python/producer/producer_type.c) and runs once per record. The code in this module runs once
per producer or per batch. User-defined serializers, interceptors and partitioners form a pipeline, which `send` calls
before and after its append (`shmaccum.producer.pipeline`). A producer without them has no pipeline.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar

from shmaccum import _native
from shmaccum._native import DeliveryFuture, Receipt
from shmaccum.arena import DEFAULT_MODE, Arena
from shmaccum.arena.delivery_span import DeliveryClockReading
from shmaccum.arena.removal import check_takes_records, is_abandoned, removed_error
from shmaccum.arena.reports import read_reports
from shmaccum.arena.sender_state import sender_state
from shmaccum.arena.wake_fifo import SenderWaker
from shmaccum.common import clock
from shmaccum.common.background import listed, started_thread
from shmaccum.common.format.group_offsets import OFFSETS_TOPIC, pack_offsets
from shmaccum.common.units import format_count, parse_timeout_s
from shmaccum.config import ProducerOptions
from shmaccum.exceptions import (
    ArenaClosedError,
    ArenaInUseError,
    ArenaRemovedError,
    CorruptArenaError,
    FlushTimeoutError,
    InvalidArgumentError,
    NoTransactionError,
    PartitionCountUnknownError,
    ProducerClosedError,
    ShmaccumError,
    UnknownPartitionError,
)
from shmaccum.producer.appender import Appender
from shmaccum.producer.buffer_wait import BufferWaiter
from shmaccum.producer.deliveries import Deliveries
from shmaccum.producer.delivery import DeliveryTracker
from shmaccum.producer.fallback import UNUSABLE, Fallback, OnUnusable
from shmaccum.producer.group_offsets import GroupOffsets, parse_group, parse_offsets
from shmaccum.producer.pipeline import Pipeline, TopicRecords
from shmaccum.producer.sender_warning import SenderWarning
from shmaccum.producer.serializers import Headers
from shmaccum.producer.transaction import COMMIT_TIMEOUT_S, Transaction, Waits, run_step, unfence_waits

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self, Unpack

    from shmaccum.config.dicts import ProducerOptionsDict

logger = logging.getLogger(__name__)

PARTITION_COUNT_MAX = 2**31 - 1
PARTITIONS_SLICE_S = 0.002
CLOSE_SLICE_S = 0.001
CLOSE_SLICE_MAX_S = 0.25
CALLS_END_S = 1.0
"""The longest time that close waits for interrupted calls of other threads, regardless of its timeout."""
VIEWS_END_S = 600.0
"""The longest time that a thread waits for views and calls that keep a closed producer attached."""
FLUSH_TIMEOUT_S = 120.0
"""The default timeout of flush and close. If no sender runs, or its sink does not work, only this timeout ends them."""
EXIT_TIMEOUT_S = 10.0
"""The default time that the end of a process waits."""
TRANSACTION_STEPS = ("txn-init", "txn-begin", "txn-send-offsets", "txn-commit", "txn-abort")
"""The steps whose times Kafka's producer measures, in the order in which the core counts them."""


def _attached(arena: str | os.PathLike[str] | Arena, mode: int | None) -> Arena:
    """Attaches to an arena by name. An Arena is returned unchanged."""
    if not isinstance(arena, Arena):
        return Arena.attach(arena, mode=DEFAULT_MODE if mode is None else mode)
    if mode is not None:
        raise InvalidArgumentError(
            f"{arena.name} is already attached, with mode {arena.mode:#o}: pass mode= to Arena.attach, or pass the "
            "arena's name to the producer"
        )
    return arena


class Producer(_native.NativeProducer):
    """Sends records through an arena. Any number of producers in any number of processes can use one arena.

    Users use `shmaccum.Producer`, a subclass that can also start and supervise a sender.

    `send` puts the record into the arena and returns. From then on, the record outlives this process. A sender
    (``shmaccum sender``) delivers it. All threads can use a producer, and so can a forked child. A pickled producer
    attaches again by the arena's name.

    Args:
        arena: the name or path of an arena, to which the producer attaches, or an Arena, which the caller owns.
        mode: with a name, the widest permissions of the arena to accept, as in `Arena.attach`. An arena that is shared
            with other users requires the mode it was created with (``mode=0o660``). The default is 0600.
        is_supervised: this process supervises a sender. Without a running sender, the producer waits and does not warn.
        on_unusable: called without arguments, once in each process, when the arena is poisoned or removed, or its
            memory is lost. It returns an object with a method ``send``. `send` and `send_many` pass the arguments of
            the failed record and of all later records to it, and `append_arrow` passes its rows. If it returns None,
            they raise as without the option. Not for an arena with transactions. A pickled producer does not have it.
        options: the options of `shmaccum.config.ProducerOptions`, in either spelling.

    Raises:
        ArenaError: see `Arena.attach`.
        InvalidArgumentError: an option is unknown or out of bounds.
    """

    __slots__ = (
        "__weakref__",
        "_appender",
        "_fallback",
        "_is_being_closed",
        "_is_ended",
        "_is_left",
        "_is_supervised",
        "_is_synchronous",
        "_made",
        "_metrics",
        "_options",
        "_owns_arena",
        "_pipeline",
        "_sender_warning",
        "_tracker",
        "_transaction",
        "_waker",
        "arena",
    )

    _waiter_type: ClassVar[type[BufferWaiter]] = BufferWaiter
    """The class that waits for a buffer."""
    _callbacks_patience_s: ClassVar[float] = float("inf")
    """The longest part of its timeout that `close` waits for callbacks."""
    _tracker_type: ClassVar[type[DeliveryTracker]] = DeliveryTracker
    """The class of the tracker. It makes the metadata of a delivered record, and the exception of any other record."""

    def __init__(
        self,
        arena: str | os.PathLike[str] | Arena,
        *,
        mode: int | None = None,
        is_supervised: bool = False,
        on_unusable: OnUnusable | None = None,
        **options: Unpack[ProducerOptionsDict],
    ) -> None:
        if self.tracker is not None:
            raise TypeError("a producer is initialized once")
        self._options = ProducerOptions.parse(options)
        self._owns_arena = not isinstance(arena, Arena)
        self.arena = _attached(arena, mode)
        self._fallback = self._new_fallback(on_unusable)
        self._waker = SenderWaker(self.arena)
        self._is_supervised = is_supervised
        self._sender_warning = SenderWarning(self.arena, is_supervised=is_supervised)
        is_impatient = self._options.linger_ms == 0
        self._tracker = self._tracker_type(self.arena, self._waker.wake_if_asleep if is_impatient else None)
        self._appender = Appender(
            self.arena,
            self._waker,
            max_block_ms=self._options.max_block_ms,
            stuck_block_ms=self._options.stuck_block_ms,
            linger_ms=self._options.linger_ms,
            wake=self._wake,
            on_wait=self._do_deferred_work,
            waiter_type=self._waiter_type,
        )
        self._metrics = _Times(self.arena)
        self._transaction: Transaction | None = None
        self._made: weakref.WeakSet[Deliveries] = weakref.WeakSet()
        self._is_being_closed = self._is_ended = self._is_left = False
        self._pipeline = Pipeline.of(self._options)
        self._is_synchronous = self.arena.durability == "sync"
        super().__init__(
            self._appender.native,
            self._tracker,
            self._wait_for_partitions,
            *self._native_hooks(),
            fallback=None if self._fallback is None else self._send_elsewhere,
            is_adaptive=self._options.partitioner_adaptive_partitioning_enable,
            ignores_keys=self._options.partitioner_ignore_keys,
        )
        _producers.add(self)
        self._sender_warning.check()

    def _new_fallback(self, on_unusable: OnUnusable | None) -> Fallback | None:
        """Makes the fallback. Detaches from the arena if the function is rejected."""
        try:
            return None if on_unusable is None else Fallback(on_unusable, ("send",), self.arena)
        except BaseException:
            if self._owns_arena:
                self.arena.close()
            raise

    def _wake(self) -> None:
        """Wakes the sender when there is something to send, at most once per batch."""
        self._waker.wake()
        self._do_deferred_work()

    def _do_deferred_work(self) -> None:
        """Does the work that a signal handler, or a failed start of a thread, deferred to the next call."""
        self._sender_warning.check()
        self._tracker.ensure_thread()
        self.arena.ensure_threads()

    # --- send

    def _native_hooks(self) -> tuple[Callable[..., tuple[Any, ...]] | None, Callable[..., None] | None]:
        """Returns the functions that a native `send` calls before and after its append. None means no call."""
        conclude = self._conclude if self._is_synchronous else None
        if self._pipeline is None:
            return None, conclude
        prepare = functools.partial(self._pipeline.prepare, self)
        return prepare, self._conclude if self._pipeline.observes_results else conclude

    def _conclude(self, future: DeliveryFuture | None, error: BaseException | None) -> None:
        """Ends a `send` whose append returned a future or raised: informs the pipeline, and syncs."""
        if self._pipeline is not None:
            self._pipeline.conclude(future, error)
        if future is not None:
            self._sync()

    def _sync(self) -> None:
        """With durability=sync, waits until the appended records are on disk, except within `synced_together`."""
        if self._is_synchronous and self not in _synced_together.get():
            self.arena.sync()

    @contextlib.contextmanager
    def synced_together(self) -> Iterator[None]:
        """With durability=sync, sends in the block return at once, and its end waits until all of them are on disk.

        ::

            with producer.synced_together():
                for order in orders:
                    producer.send("orders", order)
            # all of them survive a power cut from here on

        The records share one wait for the disk, also with other threads and processes. The block affects only this
        thread (or asyncio task). With another durability it has no effect. Nested blocks wait once, at the end of the
        outermost. A block that raises an exception waits, too, so the records sent before it are acknowledged.

        Raises:
            FlushTimeoutError, ArenaPoisonedError: the records were sent, but may not be on disk.
        """
        token = _synced_together.set((*_synced_together.get(), self))
        try:
            yield
        finally:
            _synced_together.reset(token)
            self._sync()

    def _send_elsewhere(self, error: Exception, /, *arguments: Any, **named: Any) -> Any:
        """Passes a record that could not be appended to the object of `on_unusable`."""
        assert self._fallback is not None
        return self._fallback.send(error, lambda target: target.send(*arguments, **named))

    # --- send many

    if TYPE_CHECKING:
        # The method is C, because it runs for each record (native/python/producer/producer_type.c: producer_send).

        def send(
            self,
            topic: str,
            value: Any = None,
            key: Any = None,
            headers: Sequence[tuple[str, Buffer | None]] | None = None,
            partition: int | None = None,
            timestamp_ms: int | None = None,
        ) -> DeliveryFuture:
            """Puts a record into the arena and returns. A sender delivers it, even if this process dies.

            Args:
                topic: 1 to 249 of the characters a-z A-Z 0-9 . _ -.
                value, key: bytes-like, or None for null. With serializers, any object that they accept.
                headers: a list of (str, bytes or None).
                partition: its number, from 0. If it is None, the hash of the key chooses the partition, as in
                    Kafka. A record without a key goes to the partition that all processes of the host currently fill.
                timestamp_ms: milliseconds since 1970, or None for the current time.

            Returns:
                A DeliveryFuture. Call get(timeout), await it, add callbacks, or ignore it.

            Unlike Java's producer, it raises an error instead of returning a failed future. After an error, the arena
            is unchanged, except for the errors in the last line.

            Raises:
                BufferExhaustedError: no memory became free within max_block_ms.
                PartitionCountUnknownError: no sender reported the topic's partition count within max_block_ms.
                UnknownPartitionError: the topic has no such partition.
                RecordTooLargeError: the record is larger than the arena allows.
                InvalidArgumentError, TypeError: the topic name, the timestamp, or a type is invalid.
                ProducerClosedError: after close.
                FlushTimeoutError, ArenaPoisonedError: with durability=sync, the record was appended, but may not be
                    on disk.
            """

    def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        headers: Iterable[Headers | None] | None = None,
        timestamps_ms: Iterable[int | None] | None = None,
        partition: int | Iterable[int | None] | None = None,
    ) -> Deliveries:
        """Sends many records to one topic in one call, about ten times as fast as one call per record.

        Each record goes to the partition that `send` would choose. The records of a partition stay in the given order.
        A record without a timestamp gets the time of the call.

        Args:
            values: the values, each as for `send`. The other columns have as many items, each as for `send`.
            partition: one for all records, or one (or None) for each record.

        Returns:
            The records and their results, as a sequence of futures, each created on access.

        Raises:
            ValueError: the columns have different lengths.
            Exception: as `send`. If some records were appended, the exception has the attribute `appended`, a
                Deliveries of these records, none of which is lost. If a record was invalid, the exception also has
                `record_index`, and exactly the records before it were appended.
        """
        columns = TopicRecords(values, keys, headers, timestamps_ms, partition)
        if self._fallback is not None:
            return self._send_many_or_elsewhere(self._fallback, topic, columns.listed())
        return self._append_many(topic, columns)

    def _append_many(self, topic: str, columns: TopicRecords) -> Deliveries:
        if self._pipeline is not None:
            try:
                columns = self._pipeline.prepare_many(self, topic, columns)
            except BaseException as error:  # interceptors get every error
                self._pipeline.observe_many((), error)
                raise
        return self._deliveries(lambda: self.append_columns(topic, *columns), self._pipeline)

    def _send_many_or_elsewhere(self, fallback: Fallback, topic: str, columns: TopicRecords) -> Deliveries:
        """If some records could not be appended, sends all of them through the object of `on_unusable`.

        It is unknown which records were appended.

        Returns:
            In that case, a list of what the object returned for each record.
        """
        try:
            return self._append_many(topic, columns)
        except Exception as error:  # noqa: BLE001 - `fallback.send` raises all others again
            records = list(columns.records(topic))
            answers: Any = fallback.send(error, lambda target: [target.send(*each) for each in records], len(records))
            return answers  # type: ignore[no-any-return]

    def append_arrow(self, batch: object, *, topic: str | None = None) -> Deliveries:
        """Sends the rows of Arrow data. They are read in place, and copied only into the arena.

        The columns are the columns of Spark's Kafka connector, in any order: ``value`` (required; any binary or string
        type, a null is a tombstone), and optionally ``key`` (the same types), ``topic`` (string), ``partition`` (int32,
        int64), ``timestamp`` (any unit, or int64 in milliseconds) and ``headers`` (a list of structs of ``key`` and
        ``value``). A null is equivalent to a missing column.

        Serializers are not applied, because the data are already bytes.

        Args:
            batch: a record batch, table, struct array or reader, or any other object with the Arrow PyCapsule interface
                (``__arrow_c_array__`` or ``__arrow_c_stream__``), from pyarrow or another library.
            topic: the topic of all rows, instead of the column.

        Raises:
            InvalidArgumentError: a column is missing, unknown or of a wrong type; a row contradicts itself or has no
                topic; or the producer has interceptors or a user-defined partitioner, which cannot see rows.
            TypeError: `batch` is not Arrow data.
            OSError: the stream failed.
            Exception: as `send_many`, with `appended` and `record_index`.
        """
        if self._pipeline is not None and self._pipeline.sees_records:
            raise InvalidArgumentError(
                "append_arrow() reads rows in place, which interceptors and user-defined partitioners cannot see: use "
                "send_many(), or another producer"
            )
        if self._fallback is not None:
            return self._append_arrow_or_elsewhere(self._fallback, batch, topic)
        return self._deliveries(lambda: self.append_rows(batch, topic))

    def _append_arrow_or_elsewhere(self, fallback: Fallback, batch: object, topic: str | None) -> Deliveries:
        """Sends the first row that cannot be appended, and all later rows, through the object of `on_unusable`.

        Returns:
            In that case, a list of what the object returned for each of these rows.
        """
        try:
            return self._deliveries(lambda: self.append_rows(batch, topic))
        except UNUSABLE as error:
            rows: list[tuple[Any, ...]] | None = getattr(error, "unsent", None)
            if rows is None:  # they were appended, and could not be forced to disk
                raise
            answers: Any = fallback.send(error, lambda target: [target.send(*row) for row in rows], len(rows))
            return answers  # type: ignore[no-any-return]

    def _deliveries(self, append: Callable[[], Receipt], pipeline: Pipeline | None = None) -> Deliveries:
        """Makes the deliveries of a native call that appends many records, even if it raises.

        Args:
            append: makes the call.
            pipeline: has prepared the records, if any.
        """
        try:
            deliveries = Deliveries(append(), self._tracker)
        except BaseException as error:
            appended = self._appended(error)
            if pipeline is not None:
                pipeline.conclude_many(appended, error)
            raise
        self._made.add(deliveries)
        try:
            self._sync()
        finally:
            if pipeline is not None:
                pipeline.conclude_many(deliveries, None)
        return deliveries

    def _appended(self, error: BaseException) -> Sequence[DeliveryFuture]:
        """Returns the records that were appended despite the error, and attaches them to the error."""
        receipt = getattr(error, "appended", None)
        if not isinstance(receipt, Receipt):
            return ()
        deliveries = Deliveries(receipt, self._tracker)
        self._made.add(deliveries)
        error.appended = deliveries  # type: ignore[attr-defined]
        return deliveries

    def _wait_for_partitions(self, topic: str, max_block_ms: int, deadline_ns: int, least: int = 1) -> int:
        """Waits until a sender reports a partition count that is large enough, and returns it.

        Args:
            topic: its name.
            max_block_ms: for the message.
            deadline_ns: on the clock of time.monotonic_ns().
            least: the minimum count. If it is more than one, the sink may have to be asked again.
        """
        native = self.arena.native
        started_ns = clock.monotonic_ns()
        try:
            with self._until_closed(), self._appender.buffer_waiter.waiting_here():
                while (count := native.topic_partition_count(topic)) < least:
                    self._ask_for_partitions(topic, least)
                    self._check_may_wait(topic, max_block_ms, deadline_ns, least)
                    time.sleep(PARTITIONS_SLICE_S)
        finally:
            self._metrics.metadata_wait_ns += clock.monotonic_ns() - started_ns
        return count

    def _ask_for_partitions(self, topic: str, least: int) -> None:
        """Asks the sender to look up a new topic, or to check whether a topic has more partitions."""
        if least > 1:
            self.arena.native.want_partitions(topic, min(least, PARTITION_COUNT_MAX))
        self._waker.wake_if_asleep()

    def _check_may_wait(self, topic: str, max_block_ms: int, deadline_ns: int, least: int) -> None:
        """Raises an exception if a wait for partitions must end.

        Raises:
            PartitionCountUnknownError, UnknownPartitionError: the deadline has passed.
            ProducerClosedError, ArenaRemovedError: no sender will report the count.
        """
        if not self.is_open:
            raise ProducerClosedError("the producer was closed while this call waited: nothing was appended")
        check_takes_records(self.arena)
        count = self.arena.native.topic_partition_count(topic)
        if count and least > PARTITION_COUNT_MAX:
            raise UnknownPartitionError(f"no topic has a partition {least - 1}: {topic!r} has {count}, numbered from 0")
        if clock.monotonic_ns() >= deadline_ns:
            if count:
                raise UnknownPartitionError(
                    f"topic {topic!r} has no partition {least - 1}: its partition count is {count}, and it did not "
                    f"increase within {max_block_ms} ms (max_block_ms)"
                )
            raise PartitionCountUnknownError(self._partitions_unknown(topic, max_block_ms))
        self._sender_warning.check()

    def _partitions_unknown(self, topic: str, max_block_ms: int) -> str:
        if DeliveryClockReading.of(self.arena.native).outage is None:
            advice = "The sender runs, but its sink did not report it: check its log, or wait longer (max_block_ms)."
        else:
            advice = sender_state(self.arena)
        return f"the partition count of topic {topic!r} was not known within {max_block_ms} ms. {advice}"

    def partitions_for(self, topic: str) -> set[int]:
        """Returns the partitions of a topic. Like `send`, it waits for a sender to report them.

        Raises:
            PartitionCountUnknownError: no sender reported them within ``max_block_ms``.
        """
        max_block_ms = self._options.max_block_ms
        deadline_ns = clock.monotonic_ns() + max_block_ms * 10**6
        return set(range(self._wait_for_partitions(topic, max_block_ms, deadline_ns)))

    def partitions_to_choose_from(self, topic: str) -> tuple[Sequence[int], Sequence[int]]:
        """Returns all partitions of a topic, and the partitions that can currently be delivered to, in order.

        Raises:
            PartitionCountUnknownError: no sender reported them within ``max_block_ms``.
        """
        count = len(self.partitions_for(topic))
        return range(count), self.arena.native.available_partitions(topic)

    # --- transactions

    def init_transactions(self) -> None:
        """Takes the transactional_id back if another producer has taken it (Kafka: initTransactions).

        In a fenced arena, it waits until the last transaction is over, for at most ``max_block_ms``. In any other arena
        it does nothing, because the sender obtains the producer id of the transactional_id.

        Raises:
            ArenaBusyError: this process must abort its transaction first, or the last one did not end in time.
            ArenaRemovedError: the arena is fenced, and was removed.
            InvalidArgumentError: the arena has no transactional_id.
        """
        with self._until_closed():
            run_step(self.arena.native, self._init_waits())

    def _init_waits(self) -> Waits:
        """The step of `init_transactions`."""
        self.check_has_transactions()
        yield from unfence_waits(self.arena, self._waker.wake_if_asleep, self._begin_timeout_s)
        self._waker.wake_if_asleep()

    def check_has_transactions(self) -> None:
        """Rejects an arena without transactions.

        Raises:
            InvalidArgumentError: the arena has no transactional_id.
        """
        with self._metrics.timed("txn-init"):
            transactional_id = self.arena.transactional_id
        if transactional_id is None:
            raise InvalidArgumentError(
                f"{self.arena.name} has no transactional_id, and so no transactions: create an arena with one"
            )

    def begin_transaction(self) -> None:
        """Begins a transaction, in which every process of the arena may send (Kafka: beginTransaction).

        It waits until the previous transaction is over, for at most ``max_block_ms``. If the process of that
        transaction has died, the transaction is aborted first.

        Raises:
            ArenaBusyError: another transaction is open, or the previous one did not end in time.
            ArenaRemovedError: the arena was removed.
            InvalidArgumentError: the arena has no transactional_id.
            ProducerFencedError: another producer has the transactional_id; `init_transactions` takes it back.
            ProducerClosedError: after `close`.
        """
        self.transaction()

    def transaction(self) -> Transaction:
        """Begins a transaction for a ``with`` block, which commits it, or aborts it if the block raises.

        ::

            with producer.transaction() as transaction:
                producer.send("orders", b"...")

        Raises:
            Exception: as `begin_transaction`. The end of the block raises as `commit_transaction`.
        """
        transaction = self._new_transaction()
        with self._until_closed():
            transaction.begin(self._begin_timeout_s)
        self._transaction = transaction
        return transaction

    def _new_transaction(self) -> Transaction:
        """Returns a transaction that has not begun."""
        if not self.is_open:
            raise ProducerClosedError("the producer is closed, so it cannot begin a transaction")
        self.check_has_transactions()
        return Transaction(
            self.arena, self._waker.wake_if_asleep, self._metrics.timed, self.send_offsets_to_transaction
        )

    @property
    def _begin_timeout_s(self) -> float:
        """The longest time that a transaction waits for the end of the previous one."""
        return self._options.max_block_ms / 1000

    def commit_transaction(self, timeout: float | None = COMMIT_TIMEOUT_S) -> None:
        """Commits the records that all processes have sent since `begin_transaction` (Kafka: commitTransaction).

        Args:
            timeout: seconds, two minutes by default, or None for no limit.

        Raises:
            TransactionEndedError: the transaction was aborted, or must be (`abort_transaction`). The message has the
                reason.
            ProducerFencedError: the same, because another producer has the transactional_id.
            TransactionOutcomeUnknownError: the outcome was not known in time. Call this method again to wait for it. If
                the brokers do not report the outcome, the message states that.
            NoTransactionError: this producer has begun no transaction.
        """
        with self._until_closed():
            self._begun().commit(timeout)

    def abort_transaction(self) -> None:
        """Discards the records that all processes have sent since `begin_transaction` (Kafka: abortTransaction).

        Raises:
            TransactionEndedError: the commit has begun.
            NoTransactionError: this producer has begun no transaction.
        """
        with self._until_closed():
            self._begun().abort()

    def send_offsets_to_transaction(self, offsets: GroupOffsets, group_metadata: object) -> None:
        """Commits offsets of a consumer group with the transaction (Kafka: sendOffsetsToTransaction, KIP-447).

        When this method returns, the offsets are in the arena. They are committed with the records or not at all. If
        the group does not accept them, for example after a rebalance, `commit_transaction` raises.

        Args:
            offsets: the next offset of each partition, by kafka-python's or confluent-kafka's TopicPartition.
            group_metadata: a group id, or the group metadata of a consumer of kafka-python. With metadata, the broker
                rejects a member that lost its partitions.

        Raises:
            InvalidArgumentError: an offset or the group is invalid, or the arena has no transactional_id.
            NoTransactionError: no transaction is open.
            ProducerFencedError: the same, because another producer has the transactional_id.
            Exception: as `send`.
        """
        packed = self._packed_offsets(offsets, group_metadata)
        if packed is not None:
            with self._metrics.timed("txn-send-offsets"):
                self._append_offsets(packed)
                self._sync()

    def _packed_offsets(self, offsets: GroupOffsets, group_metadata: object) -> bytes | None:
        """Returns the value of a record of `OFFSETS_TOPIC`, or None if there are no offsets."""
        self.check_has_transactions()
        member, parsed = parse_group(group_metadata), parse_offsets(offsets)
        return pack_offsets(member, parsed) if parsed else None

    def _append_offsets(self, packed: bytes) -> None:
        native = self.arena.native
        if not native.topic_partition_count(OFFSETS_TOPIC):  # the same for every sink
            native.set_topic_partition_count(OFFSETS_TOPIC, 1)
        self.append_columns(OFFSETS_TOPIC, [packed], partition=0)

    def _begun(self) -> Transaction:
        if self._transaction is None:
            raise NoTransactionError("this producer has begun no transaction: call begin_transaction() first")
        return self._transaction

    def join(self, number: int | None) -> None:
        """Restricts this producer to one transaction, which another process has begun.

        Args:
            number: the number of the transaction, or None to send in any open transaction again.

        Without `join`, a worker sends in any open transaction. A worker that must not send in a later transaction joins
        each transaction by its number (`Transaction.number`). A send after the end of that transaction raises
        TransactionEndedError.

        Raises:
            InvalidArgumentError: the arena has no transactional_id, or the number is invalid.
            ProducerClosedError: after `close`.
        """
        if not self.is_open:
            raise ProducerClosedError("the producer is closed, so it cannot join a transaction")
        self.check_has_transactions()
        if number == 0:
            raise InvalidArgumentError("no transaction has the number 0: use the number of a Transaction")
        self._appender.native.join(number or 0)

    # --- flush and close

    def flush(self, timeout: float | None = FLUSH_TIMEOUT_S) -> None:
        """Sends all records of this producer immediately, and waits until each is delivered or has failed.

        It does not wait for records of other processes, except for records in the same batches. If records go to the
        object of `on_unusable`, it only calls ``flush(timeout)`` of that object, if the object has this method.

        Args:
            timeout: seconds, two minutes by default, or None for no limit.

        Raises:
            FlushTimeoutError: the timeout expired. The other records stay in the arena and will be sent.
            ArenaRemovedError: the arena was removed, and no sender is left. The message has the count of lost records.
            ProducerClosedError: after `close`, which has flushed.
        """
        if self._appender.closed:
            raise ProducerClosedError("the producer is closed: close() has flushed all records")
        if self._fallback is not None and self._fallback.target is not None:
            self._fallback.call("flush", *(() if timeout is None else (timeout,)))
            return
        started_ns = clock.monotonic_ns()
        try:
            with self._until_closed():
                left = self._flush(timeout)
        finally:
            self._metrics.flush_ns += clock.monotonic_ns() - started_ns
        if left:
            raise FlushTimeoutError(f"after {timeout} s {self._left_over(left)}")

    @contextlib.contextmanager
    def _until_closed(self) -> Iterator[None]:
        """Raises ProducerClosedError if a signal handler or another thread ended a wait with `close`."""
        try:
            yield
        except (ProducerClosedError, ArenaClosedError):
            if self.is_open:
                raise
            raise ProducerClosedError(
                "the producer was closed while this call waited: sent records stay in the arena and will be delivered"
            ) from None

    def _flush(self, timeout: float | None) -> int:
        """Flushes, and returns the maximum number of records that are left.

        Raises:
            ArenaRemovedError: none of these records will be delivered.
        """
        self._do_deferred_work()
        with contextlib.suppress(ArenaRemovedError):  # the error has no count of records
            if self._appender.flush(timeout):
                return 0
        left = self._appender.flush_begin().record_count()
        if left and is_abandoned(self.arena):
            raise ArenaRemovedError(self._left_over(left))
        return left

    def _left_over(self, record_count: int) -> str:
        if self.arena.native.closing != "not":
            return f"not delivered: at most {format_count(record_count, 'record')}. {removed_error(self.arena)}"
        return (
            f"not delivered yet: at most {format_count(record_count, 'record')}, not lost: they stay in the arena "
            f"{self.arena.name!r}. {sender_state(self.arena)}"
        )

    def will_be_delivered(self) -> bool:
        """True if a sender runs, or the supervisor of this process is about to start one."""
        native = self.arena.native
        if native.is_lost:
            return False
        return native.sender_is_alive or (self._is_supervised and native.sender_died)

    def close(self, timeout: float | None = FLUSH_TIMEOUT_S) -> None:
        """Rejects further sends, and waits until all records are delivered or have failed. Closing again does nothing.

        A record that is not delivered in time stays in the arena and will be sent, and a warning is logged. When this
        method returns, the callbacks of delivered records have been called, and no further callbacks will be called.
        If a callback runs longer than `timeout`, it continues in its thread, and later callbacks are not called.
        Threads that wait in a send for memory or for a partition count immediately get ProducerClosedError, as in
        Kafka. Their records were not appended.

        A signal handler, a callback or a finalizer may call it. The call that a handler interrupted raises
        ProducerClosedError. While a call of another thread runs, this process stays attached, and a thread detaches
        after that call.

        A producer that attached to its arena by name detaches. A future that is queried later looks up its result
        without attaching, and raises ArenaRemovedError if the arena no longer exists.

        Args:
            timeout: seconds, two minutes by default, or None for no limit.

        Raises:
            ArenaRemovedError: the arena was removed, and no sender is left. The producer is closed, and the message
                has the count of its lost records.
        """
        deadline_s = clock.monotonic() + parse_timeout_s(timeout)  # an invalid timeout must not close the producer
        if self._is_left or self._is_being_closed:
            return
        self._is_being_closed = True
        try:
            if self.is_open:
                self._refuse()
                self._finish(deadline_s)
            else:  # a signal or an exception ended the first close
                self._end("", deadline_s)
        finally:
            self._is_being_closed = False

    def _refuse(self) -> None:
        """Rejects sends, and ends waits for memory and for partition counts."""
        self.refuse_sends()
        self._appender.buffer_waiter.refuse()
        _producers.discard(self)

    def _finish(self, deadline_s: float) -> None:
        """Waits for deliveries, and releases all resources."""
        warning = ""
        if self._transaction is not None:
            self._transaction.release()
        try:
            timeout_s = None if deadline_s == float("inf") else max(deadline_s - clock.monotonic(), 0.0)
            if self._fallback is not None and self._fallback.target is not None:
                self._close_fallback(self._fallback, timeout_s)
            else:
                left = self._flush(timeout_s)
                warning = self._left_over(left) if left else ""
        except (ArenaRemovedError, CorruptArenaError) as error:
            logger.error("%s: %s", self.client_id, error)  # the exit handler calls close, and raises nothing
            raise
        finally:
            self._end(warning, deadline_s)

    @staticmethod
    def _close_fallback(fallback: Fallback, timeout_s: float | None) -> None:
        """Flushes and closes the object of `on_unusable`, which belongs to this producer."""
        try:
            fallback.call("flush", *(() if timeout_s is None else (timeout_s,)))
        finally:
            fallback.call("close")

    def _end(self, warning: str, deadline_s: float) -> None:
        """Each step can be repeated. Every step runs, even if user code raises an exception."""
        is_ended, self._is_ended = self._is_ended, True
        try:
            if not is_ended:
                self._release_sender()
                self._end_callbacks(warning, deadline_s)
        finally:
            if not self._wait_for_calls() or not self._leave_arena(deadline_s):
                started_thread(self._leave_later, "shmaccum-closing", logger)

    def _end_callbacks(self, warning: str, deadline_s: float) -> None:
        uncalled = self._tracker.stop(min(max(deadline_s - clock.monotonic(), 0.0), self._callbacks_patience_s))
        if warning:
            logger.warning("%s: %s", self.client_id, warning)
        if uncalled:
            logger.warning(
                "%s: %s will not be called in this process", self.client_id, format_count(uncalled, "callback")
            )
        if self._pipeline is not None:
            self._pipeline.close()

    def _release_sender(self) -> None:
        """Does nothing, because this producer supervises no sender."""

    def _wait_for_calls(self) -> bool:
        """Waits for interrupted calls of other threads. Returns False if a call remains, because its thread is stopped
        or because a signal handler in this thread interrupted it.
        """
        deadline_s = clock.monotonic() + CALLS_END_S
        while not self._has_closed_appender():
            if self._appender.buffer_waiter.is_waiting_here() or clock.monotonic() >= deadline_s:
                return False
            time.sleep(CLOSE_SLICE_S)
        return True

    def _has_closed_appender(self) -> bool:
        try:
            self._appender.close()
        except ArenaInUseError:
            return False
        return True

    def _leave_arena(self, deadline_s: float) -> bool:
        """Returns False while a call, or a view that the user holds, keeps this process attached.

        Deliveries retain the results that are known now.
        """
        self._waker.close()
        if self._owns_arena and not self.arena.closed:
            for deliveries in listed(self._made):
                deliveries.read()
            self._tracker.release()
            with contextlib.suppress(ArenaInUseError):
                self.arena.close_within(max(deadline_s - clock.monotonic(), 0.0))
            self._is_left = self.arena.closed
        else:
            self._is_left = True
        return self._is_left

    def _leave_later(self) -> None:
        """Detaches from the arena after the last call. It runs in its own thread."""
        pause_s, end_s = CLOSE_SLICE_S, clock.monotonic() + VIEWS_END_S
        while not self._is_left and clock.monotonic() < end_s:
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, CLOSE_SLICE_MAX_S)
            with contextlib.suppress(ShmaccumError, OSError):
                if self._has_closed_appender() and self._leave_arena(end_s):
                    return

    @property
    def closed(self) -> bool:
        """True after close()."""
        return not self.is_open

    # --- facts

    @property
    def client_id(self) -> str:
        """The name of this producer in metrics and messages."""
        return self._options.client_id or f"producer-{os.getpid()}"

    @property
    def options(self) -> ProducerOptions:
        """The given options, with the defaults."""
        return self._options

    @property
    def incomplete_count(self) -> int:
        """The number of records that were sent through this producer and have no result yet.

        All records of a batch get their results together. If a batch was split, each part has its own result, and
        records of other processes may be counted until the last part has its result. A partition with batches in the
        overflow adds one to the count.

        Raises:
            ProducerClosedError: after `close`.
        """
        if self._appender.closed:
            raise ProducerClosedError("the producer is closed: read incomplete_count before close()")
        return self._appender.native.incomplete_count

    def list_topics(self) -> dict[str, int]:
        """Maps each topic of the arena to the partition count that the sink last reported, or to 0 before a report.

        A topic is known after its first record or its declaration (``shmaccum create --topic``).
        """
        return self.arena.topics()

    def errors(self) -> list[str]:
        """Returns a sentence for each error in the arena's error log, in the order of their first occurrence.

        All processes and the sender share the log. It stores 64 different errors since the creation of the arena.
        """
        return [report.sentence for report in read_reports(self.arena.native)]

    def metrics(self) -> dict[str, dict[str, float]]:
        """Returns the metrics of this process as group -> name -> value, with the names of Kafka's producer.

        The sender reports the metrics of the whole host: latencies, retries, errors. If the memory of the arena is
        lost, the metrics of the arena are omitted.
        """
        records, size = self.record_count, self.record_bytes
        own = {
            "record-send-total": records,
            "byte-total": size,
            "record-size-avg": size / records if records else 0.0,
            "flush-time-ns-total": self._metrics.flush_ns,
            "metadata-wait-time-ns-total": self._metrics.metadata_wait_ns,
            **{f"{step}-time-ns-total": time_ns for step, time_ns in self._metrics.transactions_ns.items()},
        }
        if self._fallback is not None:
            own["fallback-record-send-total"] = self._fallback.record_count
        if self.arena.native.is_lost:
            return {"producer-metrics": own}
        statistics = self.arena.statistics()
        free = statistics.slots["FREE"]
        return {
            "producer-metrics": {
                **own,
                "buffer-total-bytes": statistics.buffer_memory,
                "buffer-available-bytes": free * statistics.batch_size,
                "waiting-threads": statistics.waiting_count,
                "bufferpool-wait-time-ns-total": statistics.counters["nanoseconds spent waiting for a buffer"],
                "buffer-exhausted-total": statistics.counters["allocations that gave up waiting"],
            }
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close(close_timeout_s(self._options, FLUSH_TIMEOUT_S))

    def __reduce__(self) -> tuple[Any, ...]:
        given = {name: getattr(self._options, name) for name in ProducerOptions.table()}
        return _producer_from, (self.arena, given)

    def __repr__(self) -> str:
        return f"<Producer {self.client_id} of {self.arena.name!r}, {'open' if self.is_open else 'closed'}>"


class _Times:
    """The time that a producer spent in rare paths, in nanoseconds."""

    def __init__(self, arena: Arena) -> None:
        self._native = arena.native
        self.flush_ns = 0
        self.metadata_wait_ns = 0
        self.transactions_ns = dict.fromkeys(TRANSACTION_STEPS, 0)

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Adds the duration of the block to a transaction step, here and in the counters of the arena."""
        started_ns = clock.monotonic_ns()
        try:
            yield
        finally:
            time_ns = clock.monotonic_ns() - started_ns
            self.transactions_ns[step] += time_ns
            with contextlib.suppress(ShmaccumError):  # if the arena is unusable, the block has raised that
                self._native.count_transaction_time(TRANSACTION_STEPS.index(step), time_ns)


# --- producers of this process

_producers: weakref.WeakSet[Producer] = weakref.WeakSet()
_synced_together: ContextVar[tuple[Producer, ...]] = ContextVar("synced_together", default=())
"""The producers whose sends in this thread or task do not wait for the disk, because an enclosing block will."""


def _producer_from(arena: Arena, options: Mapping[str, Any]) -> Producer:
    """Unpickles a producer."""
    return Producer(arena, **options)


def close_timeout_s(options: ProducerOptions, default_s: float) -> float:
    """Returns the seconds that a close without an explicit timeout waits for deliveries."""
    return default_s if options.close_timeout_ms is None else options.close_timeout_ms / 1000


def _close_at_exit() -> None:
    """Closes all producers with one deadline, the latest of their ``close_timeout_ms``.

    Without a sender it does not wait: the records stay in the arena for the next sender.
    """
    begun_s = clock.monotonic()
    failure: BaseException | None = None
    for producer in listed(_producers):
        try:
            wait_s = close_timeout_s(producer.options, EXIT_TIMEOUT_S) if producer.will_be_delivered() else 0.0
            left_s = 0.0 if failure is not None else begun_s + wait_s - clock.monotonic()
            producer.close(max(left_s, 0.0))
        except Exception:  # noqa: PERF203 - the process ends: its records are in the arena
            logger.debug("%r was not closed cleanly", producer, exc_info=True)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C ends the waits
            failure = error
    if failure is not None:
        raise failure


atexit.register(_close_at_exit)
