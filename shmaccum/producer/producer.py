# SPDX-License-Identifier: Apache-2.0
"""The producer, with which users send records (org.apache.kafka.clients.producer.KafkaProducer, kafka-python's shapes).

`send` itself is native (native/python/producer/producer_type.c) and runs once per record. This module runs once per
producer or per batch. Serializers, interceptors and a partitioner of the user's own make a pipeline, which `send` calls
before its append and behind it (`shmaccum.producer.pipeline`); a producer without them has none.
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
from shmaccum.arena.doorbell import DoorbellButton
from shmaccum.arena.removal import check_takes_records, is_abandoned, removed_error
from shmaccum.arena.reports import read_reports
from shmaccum.arena.sender_state import sender_state
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
from shmaccum.producer.notice import SenderNotice
from shmaccum.producer.pipeline import Pipeline, TopicRecords
from shmaccum.producer.serializers import Headers
from shmaccum.producer.transaction import COMMIT_TIMEOUT_S, Transaction, Waits, rest_between, unfence_waits

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self, Unpack

    from shmaccum.config.dicts import ProducerOptionsDict

logger = logging.getLogger(__name__)

PARTITION_COUNT_MAX = 2**31 - 1
PARTITIONS_SLICE_S = 0.002
CLOSE_SLICE_S = 0.001
CLOSE_SLICE_MAX_S = 0.25
CALLS_END_S = 1.0
"""The longest time that close waits for calls of other threads, which were told to end, whatever its timeout is."""
VIEWS_END_S = 600.0
"""So long a thread looks whether the views and calls have ended that keep a closed producer attached."""
FLUSH_TIMEOUT_S = 120.0
"""How long flush and close wait by default. Without a sender, or while its sink does not work, nothing ends them."""
EXIT_TIMEOUT_S = 10.0
"""How long the end of a process waits by default."""
TRANSACTION_STEPS = ("txn-init", "txn-begin", "txn-send-offsets", "txn-commit", "txn-abort")
"""The steps whose times Kafka's producer measures, in the order in which the core counts them."""


def _attached(arena: str | os.PathLike[str] | Arena, mode: int | None) -> Arena:
    """The arena of a name; an Arena stays as it is."""
    if not isinstance(arena, Arena):
        return Arena.attach(arena, mode=DEFAULT_MODE if mode is None else mode)
    if mode is not None:
        raise InvalidArgumentError(
            f"{arena.name} is attached already, with mode {arena.mode:#o}: give mode= to Arena.attach, or give the "
            "producer the arena's name"
        )
    return arena


class Producer(_native.NativeProducer):
    """Sends records through an arena: any number of them, in any number of processes.

    Users have `shmaccum.Producer`, which is this one and may keep a sender.

    `send` puts the record into the arena and comes back. From that moment on it outlives this process; a sender
    (``shmaccum sender``) delivers it. Usable by all threads; a child of a fork goes on using the same object; pickled,
    it attaches again by the arena's name.

    Args:
        arena: the name or path of an arena, which this producer then attaches to, or an Arena, which stays its owner's.
        mode: for a name, the widest permissions of the arena to put up with, as `Arena.attach` takes it: an arena that
            is shared with other users needs the mode it was created with (``mode=0o660``). Default 0600.
        is_kept: somebody in this process keeps a sender: without one, this producer warns nobody and waits for it.
        on_unusable: called without arguments, once in each process, when the arena is poisoned or removed, or its
            memory is lost. `send` and `send_many` pass their arguments on to the ``send`` of the object that it
            returns, as they were given, from the record on that failed, and `append_arrow` passes on its rows. None:
            they raise as without the option. Not for an arena with transactions; a pickled producer leaves it behind.
        options: those of `shmaccum.config.ProducerOptions`, in either spelling.

    Raises:
        ArenaError: see `Arena.attach`.
        InvalidArgumentError: an option is unknown or out of bounds.
    """

    __slots__ = (
        "__weakref__",
        "_appender",
        "_doorbell",
        "_fallback",
        "_is_being_closed",
        "_is_ended",
        "_is_kept",
        "_is_left",
        "_is_synchronous",
        "_made",
        "_metrics",
        "_notice",
        "_options",
        "_owns_arena",
        "_pipeline",
        "_tracker",
        "_transaction",
        "arena",
    )

    _waiter_type: ClassVar[type[BufferWaiter]] = BufferWaiter
    """How a `send` waits for a buffer."""
    _callbacks_patience_s: ClassVar[float] = float("inf")
    """The longest time that `close` gives to callbacks, of its own timeout."""
    _tracker_type: ClassVar[type[DeliveryTracker]] = DeliveryTracker
    """The shape of results, and the exceptions of records that were not delivered."""

    def __init__(
        self,
        arena: str | os.PathLike[str] | Arena,
        *,
        mode: int | None = None,
        is_kept: bool = False,
        on_unusable: OnUnusable | None = None,
        **options: Unpack[ProducerOptionsDict],
    ) -> None:
        if self.tracker is not None:
            raise TypeError("a producer is initialized once")
        self._options = ProducerOptions.parse(options)
        self._owns_arena = not isinstance(arena, Arena)
        self.arena = _attached(arena, mode)
        self._fallback = self._new_fallback(on_unusable)
        self._doorbell = DoorbellButton(self.arena)
        self._is_kept = is_kept
        self._notice = SenderNotice(self.arena, is_kept=is_kept)
        is_impatient = self._options.linger_ms == 0
        self._tracker = self._tracker_type(self.arena, self._doorbell.ring_if_asleep if is_impatient else None)
        self._appender = Appender(
            self.arena,
            self._doorbell,
            max_block_ms=self._options.max_block_ms,
            stuck_block_ms=self._options.stuck_block_ms,
            linger_ms=self._options.linger_ms,
            ring=self._ring,
            on_wait=self._look,
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
            rescue=None if self._fallback is None else self._rescue,
            is_adaptive=self._options.partitioner_adaptive_partitioning_enable,
            ignores_keys=self._options.partitioner_ignore_keys,
        )
        _producers.add(self)
        self._notice.look()

    def _new_fallback(self, on_unusable: OnUnusable | None) -> Fallback | None:
        """Leaves the arena again, where the function is refused."""
        try:
            return None if on_unusable is None else Fallback(on_unusable, ("send",), self.arena)
        except BaseException:
            if self._owns_arena:
                self.arena.close()
            raise

    def _ring(self) -> None:
        """Wakes the sender when it has something to send: once per batch at most."""
        self._doorbell.ring()
        self._look()

    def _look(self) -> None:
        """Does what a signal handler or a failed start of a thread left to the next call."""
        self._notice.look()
        self._tracker.ensure_thread()
        self.arena.ensure_threads()

    # --- send

    def _native_hooks(self) -> tuple[Callable[..., tuple[Any, ...]] | None, Callable[..., None] | None]:
        """The two functions that a native `send` calls, before its append and behind it; None: nothing."""
        conclude = self._conclude if self._is_synchronous else None
        if self._pipeline is None:
            return None, conclude
        prepare = functools.partial(self._pipeline.prepare, self)
        return prepare, self._conclude if self._pipeline.hears_of_results else conclude

    def _conclude(self, future: DeliveryFuture | None, error: BaseException | None) -> None:
        """Ends a `send` behind its append, which answered a future or raised: tells the pipeline, and syncs."""
        if self._pipeline is not None:
            self._pipeline.conclude(future, error)
        if future is not None:
            self._sync()

    def _sync(self) -> None:
        """With durability=sync nothing comes back that is not on disk, but within `synced_together`."""
        if self._is_synchronous and self not in _synced_together.get():
            self.arena.sync()

    @contextlib.contextmanager
    def synced_together(self) -> Iterator[None]:
        """With durability=sync: sends within the block come back at once, and its end waits until all are on disk.

        ::

            with producer.synced_together():
                for order in orders:
                    producer.send("orders", order)
            # all of them survive a power cut from here on

        One wait for the disk instead of one for each record; other threads and processes share it. It holds for this
        thread (this task of asyncio) alone. With another durability it changes nothing. Blocks within blocks wait once,
        at the end of the outermost. Leaving by an exception waits, too: records sent before it are acknowledged.

        Raises:
            FlushTimeoutError, ArenaPoisonedError: it was sent, but is not known to be on disk.
        """
        token = _synced_together.set((*_synced_together.get(), self))
        try:
            yield
        finally:
            _synced_together.reset(token)
            self._sync()

    def _rescue(self, error: Exception, /, *arguments: Any, **named: Any) -> Any:
        """Sends a record whose send raised through the object of `on_unusable`."""
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
            """Puts a record into the arena and comes back; a sender delivers it, also when this process dies.

            Args:
                topic: a str of 1 to 249 of the characters a-z A-Z 0-9 . _ -.
                value, key: bytes-like, or None for null; with serializers whatever these take.
                headers: a list of (str, bytes or None).
                partition: its number, from 0; None: by the key's hash as in Kafka, without a key the one that all
                    processes of the host are filling.
                timestamp_ms: milliseconds since 1970; None: now.

            Returns:
                A DeliveryFuture: wait with get(timeout), await it, or give it callbacks; or forget it.

            Other than Java's, it raises what is wrong, instead of answering a future that failed. The arena is
            untouched then, but for the last line.

            Raises:
                BufferExhaustedError: no memory came free within max_block_ms.
                PartitionCountUnknownError: no sender told the topic's partition count within max_block_ms.
                UnknownPartitionError: the topic has no such partition.
                RecordTooLargeError: the record is larger than the arena takes.
                InvalidArgumentError, TypeError: the topic's name, the timestamp, the type of key, value or headers.
                ProducerClosedError: after close.
                FlushTimeoutError, ArenaPoisonedError: with durability=sync; it was appended, but may not be on disk.
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
        """Sends many records to one topic in one call, some ten times as fast as a call for each.

        Each record goes where `send` would put it, those of a partition in the order given. Without a timestamp of its
        own a record has the time of the call.

        Args:
            values: each as for `send`, and so are the items of the other columns, which are as long as this one.
            partition: one for all, or one (or None) for each.

        Returns:
            The records and their results: a sequence of futures, each made when it is asked for.

        Raises:
            ValueError: the columns are not of equal length.
            Exception: as `send`. One that is raised midway has the attribute `appended`, a Deliveries with the
                records that were appended, nothing of which is lost; and, if a record was wrong, `record_index`: then
                those before it were appended, and no others.
        """
        columns = TopicRecords(values, keys, headers, timestamps_ms, partition)
        if self._fallback is not None:
            return self._send_many_or_rescue(self._fallback, topic, columns.listed())
        return self._append_many(topic, columns)

    def _append_many(self, topic: str, columns: TopicRecords) -> Deliveries:
        if self._pipeline is not None:
            columns = self._pipeline.prepare_many(self, topic, columns)
        return self._deliveries(lambda: self.append_columns(topic, *columns))

    def _send_many_or_rescue(self, fallback: Fallback, topic: str, columns: TopicRecords) -> Deliveries:
        """Sends all of them through the object of `on_unusable` where some could not be appended; which, is not known.

        Returns:
            There: a list of what the object answered to each record.
        """
        try:
            return self._append_many(topic, columns)
        except Exception as error:  # noqa: BLE001 - every other one is raised again
            records = list(columns.records(topic))
            answers: Any = fallback.send(error, lambda target: [target.send(*each) for each in records], len(records))
            return answers  # type: ignore[no-any-return]

    def append_arrow(self, batch: object, *, topic: str | None = None) -> Deliveries:
        """Sends the rows of Arrow data, read where they lie: nothing is copied but into the arena.

        The columns are those of Spark's Kafka connector, in any order: ``value`` (required; binary or string in any of
        their forms, a null is a tombstone), and, if they are there, ``key`` (the same), ``topic`` (string),
        ``partition`` (int32, int64), ``timestamp`` (of any unit, or int64 in milliseconds) and ``headers`` (a list of
        structs of ``key`` and ``value``). A null is as good as no column.

        Serializers are not applied: these are bytes already.

        Args:
            batch: a record batch, a table, a struct array, a reader: anything with the Arrow PyCapsule interface
                (``__arrow_c_array__`` or ``__arrow_c_stream__``), of pyarrow or any other library.
            topic: of all rows, whatever the column says.

        Raises:
            InvalidArgumentError: a column is missing, unknown or of a wrong type, a row contradicts itself or has no
                topic; or the producer has interceptors or a partitioner of the user's, which cannot see rows.
            TypeError: that is no Arrow data.
            OSError: the stream failed.
            Exception: as `send_many`, with `appended` and `record_index`.
        """
        if self._pipeline is not None and self._pipeline.sees_records:
            raise InvalidArgumentError(
                "append_arrow() reads rows in place, which interceptors and a partitioner of your own cannot see: use "
                "send_many(), or another producer"
            )
        if self._fallback is not None:
            return self._append_arrow_or_rescue(self._fallback, batch, topic)
        return self._deliveries(lambda: self.append_rows(batch, topic))

    def _append_arrow_or_rescue(self, fallback: Fallback, batch: object, topic: str | None) -> Deliveries:
        """Sends the rows that could not be appended, and all that follow, through the object of `on_unusable`.

        Returns:
            There: a list of what the object answered to each of these rows.
        """
        try:
            return self._deliveries(lambda: self.append_rows(batch, topic))
        except UNUSABLE as error:
            rows: list[tuple[Any, ...]] | None = getattr(error, "unsent", None)
            if rows is None:  # they were appended, and could not be forced to disk
                raise
            answers: Any = fallback.send(error, lambda target: [target.send(*row) for row in rows], len(rows))
            return answers  # type: ignore[no-any-return]

    def _deliveries(self, append: Callable[[], Receipt]) -> Deliveries:
        """The deliveries of a native call of many appends, also where it raises."""
        try:
            deliveries = Deliveries(append(), self._tracker)
        except Exception as error:
            self._observe(self._appended(error), error)
            raise
        except BaseException as error:
            self._appended(error)
            raise
        self._made.add(deliveries)
        self._sync()
        self._observe(deliveries, None)
        return deliveries

    def _appended(self, error: BaseException) -> Sequence[DeliveryFuture]:
        """The records that are there all the same; the error tells of them from now on."""
        receipt = getattr(error, "appended", None)
        if not isinstance(receipt, Receipt):
            return ()
        deliveries = Deliveries(receipt, self._tracker)
        self._made.add(deliveries)
        error.appended = deliveries  # type: ignore[attr-defined]
        return deliveries

    def _observe(self, futures: Iterable[DeliveryFuture], error: Exception | None) -> None:
        if self._pipeline is not None:
            self._pipeline.observe_many(futures, error)

    def _wait_for_partitions(self, topic: str, max_block_ms: int, deadline_ns: int, least: int = 1) -> int:
        """The partition count of a topic, as soon as a sender tells one that is large enough.

        Args:
            topic: its name.
            max_block_ms: for the message.
            deadline_ns: on the clock of time.monotonic_ns().
            least: the partitions that the topic must have. More than one: the sink may have to be asked again.
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
        """Has the sender look at a topic that is new, or find out whether one has more partitions by now."""
        if least > 1:
            self.arena.native.want_partitions(topic, min(least, PARTITION_COUNT_MAX))
        self._doorbell.ring_if_asleep()

    def _check_may_wait(self, topic: str, max_block_ms: int, deadline_ns: int, least: int) -> None:
        """Ends a wait for partitions with an exception, where it has to end.

        Raises:
            PartitionCountUnknownError, UnknownPartitionError: the deadline has passed.
            ProducerClosedError, ArenaRemovedError: nobody will tell.
        """
        if not self.is_open:
            raise ProducerClosedError("the producer was closed while this waited: nothing was appended")
        check_takes_records(self.arena)
        count = self.arena.native.topic_partition_count(topic)
        if count and least > PARTITION_COUNT_MAX:
            raise UnknownPartitionError(f"no topic has a partition {least - 1}: {topic!r} has {count}, from 0 on")
        if clock.monotonic_ns() >= deadline_ns:
            if count:
                raise UnknownPartitionError(
                    f"topic {topic!r} has no partition {least - 1}: its partition count is {count}, from 0 on, and it "
                    f"did not get more within {max_block_ms} ms (max_block_ms)"
                )
            raise PartitionCountUnknownError(self._partitions_unknown(topic, max_block_ms))
        self._notice.look()

    def _partitions_unknown(self, topic: str, max_block_ms: int) -> str:
        if self.arena.native.sender_is_alive:
            advice = "The sender runs, but its sink did not tell: look at its log, or wait longer (max_block_ms)."
        else:
            advice = sender_state(self.arena)
        return f"it is not known within {max_block_ms} ms how many partitions topic {topic!r} has. {advice}"

    def partitions_for(self, topic: str) -> set[int]:
        """The partitions of a topic; waits for a sender to tell them, as `send` does.

        Raises:
            PartitionCountUnknownError: nobody told within ``max_block_ms``.
        """
        max_block_ms = self._options.max_block_ms
        deadline_ns = clock.monotonic_ns() + max_block_ms * 10**6
        return set(range(self._wait_for_partitions(topic, max_block_ms, deadline_ns)))

    def partitions_to_choose_from(self, topic: str) -> tuple[Sequence[int], Sequence[int]]:
        """All partitions of a topic, and those that can be delivered to now, in order.

        Raises:
            PartitionCountUnknownError: nobody told within ``max_block_ms``.
        """
        count = len(self.partitions_for(topic))
        return range(count), self.arena.native.available_partitions(topic)

    # --- transactions

    def init_transactions(self) -> None:
        """Takes the transactional_id for this arena, where another producer has taken it (Kafka: initTransactions).

        The sender gets the producer id of the transactional_id, so nothing else is to be done here. In an arena that is
        fenced it waits until the last transaction is over, for ``max_block_ms`` at most; in any other it does nothing.

        Raises:
            ArenaBusyError: this process has to abort its transaction first, or the last one did not end in time.
            ArenaRemovedError: the arena is fenced, and was removed.
            InvalidArgumentError: the arena has no transactional_id.
        """
        with self._until_closed():
            rest_between(self.arena.native, self._init_waits())

    def _init_waits(self) -> Waits:
        """The waits of `init_transactions`."""
        self.check_has_transactions()
        yield from unfence_waits(self.arena, self._doorbell.ring_if_asleep, self._begin_timeout_s)
        self._doorbell.ring_if_asleep()

    def check_has_transactions(self) -> None:
        """Refuses an arena without transactions.

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

        It waits until the last one is over, for ``max_block_ms`` at most. A transaction whose process has died is
        aborted first.

        Raises:
            ArenaBusyError: another transaction is open, or the last one did not end in time.
            ArenaRemovedError: the arena was removed.
            InvalidArgumentError: the arena has no transactional_id.
            ProducerFencedError: another producer has the transactional_id; `init_transactions` takes it back.
            ProducerClosedError: after `close`.
        """
        self.transaction()

    def transaction(self) -> Transaction:
        """Begins a transaction, for a ``with`` block that commits it, or aborts it when the block raises.

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
        """A transaction that is not begun yet."""
        if not self.is_open:
            raise ProducerClosedError("the producer is closed: it begins no transaction")
        self.check_has_transactions()
        return Transaction(
            self.arena, self._doorbell.ring_if_asleep, self._metrics.timed, self.send_offsets_to_transaction
        )

    @property
    def _begin_timeout_s(self) -> float:
        """How long a transaction waits for the end of the last one."""
        return self._options.max_block_ms / 1000

    def commit_transaction(self, timeout: float | None = COMMIT_TIMEOUT_S) -> None:
        """Commits what all processes have sent since `begin_transaction` (Kafka: commitTransaction).

        Args:
            timeout: seconds, two minutes by default; None waits as long as it takes.

        Raises:
            TransactionEndedError: the transaction is aborted, or has to be (`abort_transaction`): the message says why.
            ProducerFencedError: the same, because another producer has the transactional_id.
            TransactionOutcomeUnknownError: the outcome is not known in time. Call this again to learn it. Or the
                brokers do not tell it, and the message says so.
            NoTransactionError: this producer has begun none.
        """
        with self._until_closed():
            self._begun().commit(timeout)

    def abort_transaction(self) -> None:
        """Throws away what all processes have sent since `begin_transaction` (Kafka: abortTransaction).

        Raises:
            TransactionEndedError: the commit has begun.
            NoTransactionError: this producer has begun none.
        """
        with self._until_closed():
            self._begun().abort()

    def send_offsets_to_transaction(self, offsets: GroupOffsets, group_metadata: object) -> None:
        """Commits offsets of a consumer group with the transaction (Kafka: sendOffsetsToTransaction, KIP-447).

        The offsets lie in the arena when this comes back, and are committed with the records or not at all. Where the
        group does not take them, for example because it was rebalanced, `commit_transaction` raises.

        Args:
            offsets: the next offset of each partition, by kafka-python's or confluent-kafka's TopicPartition.
            group_metadata: a group id, or the group metadata of a consumer of kafka-python. Metadata let the broker
                refuse a member that lost its partitions.

        Raises:
            InvalidArgumentError: an offset or the group is wrong, or the arena has no transactional_id.
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
        """The value of a record of `OFFSETS_TOPIC`; None: there are no offsets."""
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
        """From now on this producer sends in one transaction alone, which another process has begun.

        Args:
            number: of the transaction; None: from now on it sends in any transaction that is open.

        A worker without `join` sends in any transaction that is open. A worker that must not slip into the next one
        joins with the number that it was handed (`Transaction.number`), and joins the next one in the same way.
        A send that comes too late raises TransactionEndedError.

        Raises:
            InvalidArgumentError: the arena has no transactional_id, or the number is none.
            ProducerClosedError: after `close`.
        """
        if not self.is_open:
            raise ProducerClosedError("the producer is closed: it joins no transaction")
        self.check_has_transactions()
        if number == 0:
            raise InvalidArgumentError("no transaction has the number 0: join one by the number of its Transaction")
        self._appender.native.join(number or 0)

    # --- flush and close

    def flush(self, timeout: float | None = FLUSH_TIMEOUT_S) -> None:
        """Hurries everything sent through this producer so far, and waits until all of it is delivered or has failed.

        It waits for nothing that other processes sent, but for what shares a batch with it. Where records go to the
        object of `on_unusable`, it calls ``flush(timeout)`` of that object, if it has one, and nothing else.

        Args:
            timeout: seconds, two minutes by default; None waits as long as it takes.

        Raises:
            FlushTimeoutError: time was over. The other records stay in the arena and will be sent.
            ArenaRemovedError: the arena was removed, and no sender is left. The message says how many records are lost.
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
        """Raises ProducerClosedError where a signal handler or another thread ended a wait by `close`."""
        try:
            yield
        except (ProducerClosedError, ArenaClosedError):
            if self.is_open:
                raise
            raise ProducerClosedError(
                "the producer was closed while this waited: what was sent stays in the arena and will be delivered"
            ) from None

    def _flush(self, timeout: float | None) -> int:
        """Answers how many records may be left, at most.

        Raises:
            ArenaRemovedError: none of them will be delivered.
        """
        self._look()
        with contextlib.suppress(ArenaRemovedError):  # which does not know the count
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
            f"not delivered yet: at most {format_count(record_count, 'record')}, not lost; they stay in the arena "
            f"{self.arena.name!r}. {sender_state(self.arena)}"
        )

    def will_be_delivered(self) -> bool:
        """True when there is a sender, or the keeper of this process is about to start one."""
        native = self.arena.native
        if native.is_lost:
            return False
        return native.sender_is_alive or (self._is_kept and native.sender_died)

    def close(self, timeout: float | None = FLUSH_TIMEOUT_S) -> None:
        """No more sends; waits until everything is delivered or has failed. Closing again does nothing.

        A record that is not delivered in time stays in the arena and will be sent; a warning tells of it. When this
        returns, callbacks of delivered records have been called, and no others will be. If a callback runs longer than
        `timeout`, it is left to its thread, and those after it are not called. Threads that wait in a send for memory
        or for a partition count get ProducerClosedError at once, as in Kafka; their records were not appended.

        A signal handler, a callback and a finalizer may call it. The call that a handler interrupts raises
        ProducerClosedError. While a call of another thread has not ended, this process stays attached, and a thread
        leaves the arena after that call.

        A producer that attached to its arena by name leaves it. A future that is asked later looks for its result
        without attaching, and raises ArenaRemovedError when the arena is not there any more.

        Args:
            timeout: seconds, two minutes by default; None waits as long as it takes.

        Raises:
            ArenaRemovedError: the arena was removed, and no sender is left. The producer is closed, and the message
                says how many of its records are lost.
        """
        deadline_s = clock.monotonic() + parse_timeout_s(timeout)  # a wrong timeout must not close the producer
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
        """No more sends, and no more waits for memory or for a partition count."""
        self.refuse_sends()
        self._appender.buffer_waiter.refuse()
        _producers.discard(self)

    def _finish(self, deadline_s: float) -> None:
        """The rest of a close: waits, and lets go of everything."""
        warning = ""
        if self._transaction is not None:
            self._transaction.let_go()
        try:
            timeout_s = None if deadline_s == float("inf") else max(deadline_s - clock.monotonic(), 0.0)
            if self._fallback is not None and self._fallback.target is not None:
                self._close_fallback(self._fallback, timeout_s)
            else:
                left = self._flush(timeout_s)
                warning = self._left_over(left) if left else ""
        except (ArenaRemovedError, CorruptArenaError) as error:
            logger.error("%s: %s", self.client_id, error)  # the end of a process calls close, and raises nothing
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
        """Each step may be done again. An exception of the user's code leaves none out."""
        is_ended, self._is_ended = self._is_ended, True
        try:
            if not is_ended:
                self._let_go_of_sender()
                self._end_callbacks(warning, deadline_s)
        finally:
            if not self._wait_for_calls() or not self._leave_arena(deadline_s):
                started_thread(self._leave_later, "shmaccum-closing", logger)

    def _end_callbacks(self, warning: str, deadline_s: float) -> None:
        untold = self._tracker.stop(min(max(deadline_s - clock.monotonic(), 0.0), self._callbacks_patience_s))
        if warning:
            logger.warning("%s: %s", self.client_id, warning)
        if untold:
            logger.warning(
                "%s: %s will not be called in this process", self.client_id, format_count(untold, "callback")
            )
        if self._pipeline is not None:
            self._pipeline.close()

    def _let_go_of_sender(self) -> None:
        """Nothing here: this producer keeps none."""

    def _wait_for_calls(self) -> bool:
        """Threads that were in a call when it was refused are on their way out. False when one stays: it is stopped, or
        it is the call that a signal handler in this thread interrupted."""
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
        """False while a call or a view of the arena that the user holds keeps this process attached.

        Deliveries keep what is known now.
        """
        self._doorbell.close()
        if self._owns_arena and not self.arena.closed:
            for deliveries in listed(self._made):
                deliveries.read()
            self._tracker.let_go()
            with contextlib.suppress(ArenaInUseError):
                self.arena.close_within(max(deadline_s - clock.monotonic(), 0.0))
            self._is_left = self.arena.closed
        else:
            self._is_left = True
        return self._is_left

    def _leave_later(self) -> None:
        """The thread that leaves the arena after the last call."""
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
        """As they were given, with the defaults."""
        return self._options

    @property
    def incomplete_count(self) -> int:
        """The number of records that were sent through this producer and have no result yet.

        The records of a batch get their results together. Of a batch that was split each part has a result of its own,
        and records of other processes may be counted until the last part has it. A partition with batches in the
        overflow counts as one more.

        Raises:
            ProducerClosedError: after `close`.
        """
        if self._appender.closed:
            raise ProducerClosedError("the producer is closed: ask for its incomplete records before close()")
        return self._appender.native.incomplete_count

    def list_topics(self) -> dict[str, int]:
        """The topics of the arena, each with the number of partitions that the sink told last; 0: it has not told yet.

        A topic is known from its first record or its declaration on (``shmaccum create --topic``).
        """
        return self.arena.topics()

    def errors(self) -> list[str]:
        """A sentence for each trouble in the arena's error log, in the order in which they came first.

        The log is that of all processes and of the sender. It keeps 64 different troubles since the arena was made.
        """
        return [report.sentence for report in read_reports(self.arena.native)]

    def metrics(self) -> dict[str, dict[str, float]]:
        """Group -> name -> value, with the names of Kafka's producer, of what this process knows.

        The sender tells the counts of the whole host itself: latencies, retries, errors. Where the memory of the arena
        is lost, the numbers of the arena are left out.
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
    """The time of a producer's rare paths, in nanoseconds."""

    def __init__(self, arena: Arena) -> None:
        self._native = arena.native
        self.flush_ns = 0
        self.metadata_wait_ns = 0
        self.transactions_ns = dict.fromkeys(TRANSACTION_STEPS, 0)

    @contextlib.contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Adds the time of the block to that of a step of transactions, here and in the counters of the arena."""
        started_ns = clock.monotonic_ns()
        try:
            yield
        finally:
            time_ns = clock.monotonic_ns() - started_ns
            self.transactions_ns[step] += time_ns
            with contextlib.suppress(ShmaccumError):  # the block raises what is wrong with the arena
                self._native.count_transaction_time(TRANSACTION_STEPS.index(step), time_ns)


# --- producers of this process

_producers: weakref.WeakSet[Producer] = weakref.WeakSet()
_synced_together: ContextVar[tuple[Producer, ...]] = ContextVar("synced_together", default=())
"""Whose sends do not wait for the disk, in this thread or task, because a block around them will."""


def _producer_from(arena: Arena, options: Mapping[str, Any]) -> Producer:
    """The producer of a pickled one."""
    return Producer(arena, **options)


def close_timeout_s(options: ProducerOptions, default_s: float) -> float:
    """Seconds that an end without a timeout of its own waits for deliveries."""
    return default_s if options.close_timeout_ms is None else options.close_timeout_ms / 1000


def _close_at_exit() -> None:
    """All producers have one deadline, the latest of their ``close_timeout_ms``.

    Where no sender runs there is nothing to wait for: the records stay in the arena for the next one.
    """
    begun_s = clock.monotonic()
    failure: BaseException | None = None
    for producer in listed(_producers):
        try:
            wait_s = close_timeout_s(producer.options, EXIT_TIMEOUT_S) if producer.will_be_delivered() else 0.0
            left_s = 0.0 if failure is not None else begun_s + wait_s - clock.monotonic()
            producer.close(max(left_s, 0.0))
        except Exception:  # noqa: PERF203 - the process ends: its records are in the arena
            logger.debug("%r was not closed in order", producer, exc_info=True)
        except BaseException as error:  # noqa: BLE001 - Ctrl-C ends the waits
            failure = error
    if failure is not None:
        raise failure


atexit.register(_close_at_exit)
