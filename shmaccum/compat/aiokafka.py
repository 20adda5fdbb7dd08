# SPDX-License-Identifier: Apache-2.0
"""aiokafka's ``AIOKafkaProducer`` on an arena (aiokafka.AIOKafkaProducer, aiokafka 0.14).

`send` returns a future of the event loop. The results FIFO wakes the loop while a future waits (`LoopResults`), so the
process needs no thread for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

from shmaccum import aio
from shmaccum._native import DeliveryFuture
from shmaccum.common.closing import StoppedOnExit
from shmaccum.common.packages import needed
from shmaccum.compat.errors import IN_TRANSACTIONS, Ours, aborting, classes_of, join, join_of_code, nearest, translating
from shmaccum.compat.options import OBJECT, Rows, batch_size, refused, rows_of, to, to_partitioner, without_use
from shmaccum.compat.settings import OwnerOptions, of_library
from shmaccum.exceptions import InvalidArgumentError, ProducerClosedError, ResultPendingError, ShmaccumError
from shmaccum.producer.loop_results import LoopResults

with needed("aiokafka", "aiokafka", "shmaccum.compat.aiokafka needs"):
    import aiokafka
    import aiokafka.errors as theirs
    from aiokafka.partitioner import DefaultPartitioner
    from aiokafka.producer.message_accumulator import BatchBuilder as TheirBuilder
    from aiokafka.structs import RecordMetadata, TopicPartition
    from aiokafka.util import commit_structure_validate

if TYPE_CHECKING:
    from typing_extensions import Self

CREATE_TIME, LOG_APPEND_TIME = 0, 1
BATCH_SIZE_DEFAULT = 16384
REQUEST_TIMEOUT_DEFAULT_MS = 40_000

THEIRS = classes_of("aiokafka", theirs)
THEIRS_IN_TRANSACTIONS = classes_of("aiokafka", theirs, IN_TRANSACTIONS)


class _Function:
    """A serializer of aiokafka, which also gets None."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def serialize(self, topic: str, data: Any) -> Any:
        return self._function(data)


OWN: Rows = {
    "loop": without_use("the producer uses the running loop"),
    "key_serializer": to("key_serializer", _Function),
    "value_serializer": to("value_serializer", _Function),
    "max_batch_size": to("batch_size", batch_size),
    "partitioner": to_partitioner(DefaultPartitioner),
    "ssl_context": refused(f"{OBJECT}: set shmaccum_ssl_cafile, shmaccum_ssl_certfile, shmaccum_ssl_keyfile"),
}
"""The options that only aiokafka has, or that its own classes implement."""

DEFAULTS = {name: row.default for name, row in inspect.signature(aiokafka.AIOKafkaProducer).parameters.items()}
"""aiokafka's defaults. The default of ``acks`` is a special object."""

ROWS = rows_of(OWN, DEFAULTS)
"""The options of aiokafka, each with its owner or with a reason."""


def translated(error: Ours) -> Ours:
    """Returns the error as one that is also an error of aiokafka."""
    return join_of_code(error, theirs.for_code, THEIRS)


def _translated_in_transactions(error: Ours) -> Ours:
    """Translates the error of a transaction call."""
    return join(error, nearest(error, THEIRS_IN_TRANSACTIONS))


@final
class BatchBuilder(TheirBuilder):  # type: ignore[misc]
    """Records for one partition that are sent together. `AIOKafkaProducer.create_batch` makes it.

    aiokafka's own builder detects a full batch. The rows of the batch are stored here.
    """

    def __init__(self, size_max: int, serialize_key: Any, serialize_value: Any) -> None:
        super().__init__(size_max, 0)
        self._serializers = serialize_key, serialize_value
        self.rows: list[tuple[Any, Any, int, Any]] = []

    def append(self, *, timestamp: int | None, key: Any, value: Any, headers: Any = ()) -> Any:
        """Adds a record. Returns its metadata, or None if the batch is full or closed."""
        key_bytes, value_bytes = (
            data if serialize is None else serialize(data)
            for serialize, data in zip(self._serializers, (key, value), strict=True)
        )
        metadata = super().append(timestamp=timestamp, key=key_bytes, value=value_bytes, headers=list(headers or ()))
        if metadata is not None:
            self.rows.append((key, value, metadata.timestamp, list(headers or ()) or None))
        return metadata


@final
class _Library:
    """aiokafka's own producer, which is started by the first record."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._producer = aiokafka.AIOKafkaProducer(**options)
        self._start_lock = asyncio.Lock()
        self._is_started = False

    async def send(self, *record: Any) -> Any:
        """Sends with aiokafka. Retries its `start` if it failed."""
        async with self._start_lock:
            if not self._is_started:
                await self._producer.start()
                self._is_started = True
        return await self._producer.send(*record)

    async def flush(self) -> None:
        """Waits for the records."""
        if self._is_started:
            await self._producer.flush()

    async def stop(self) -> None:
        """Stops the producer, even if it did not start."""
        await self._producer.stop()


class AIOKafkaProducer(StoppedOnExit):
    """Sends records through the arena for these settings, with aiokafka's API.

    ::

        async with AIOKafkaProducer(bootstrap_servers="kafka1:9092") as producer:
            metadata = await producer.send_and_wait("flights", b"...", key=b"AA11")

    It never blocks the event loop. When `send` returns, the record outlives this process.

    Args:
        options: aiokafka's options. `ROWS` describes the effect of each. An omitted option has shmaccum's default.
            Options of shmaccum begin with ``shmaccum_``, as in ``shmaccum_buffer_memory="256MiB"``.

    Raises:
        ValueError: an option is unknown, refused or invalid.
    """

    _producer: aio.Producer | None = None
    _closed: bool | None = None

    def __init__(self, *, bootstrap_servers: str | Iterable[str] = "localhost", **options: Any) -> None:
        given = _with_defaults(options)
        self._serializers = options.get("key_serializer"), options.get("value_serializer")
        self._batch_size = options.get("max_batch_size", BATCH_SIZE_DEFAULT)
        with translating(translated):
            self._settings = OwnerOptions.split(given, ROWS, bootstrap_servers)
            self._settings.complete()
            self._on_unusable = self._settings.fallback_function(
                lambda: _Library({"bootstrap_servers": bootstrap_servers, **of_library(options)})
            )
        self._has_results = self._settings.sender.get("acks") != "0"
        self._waiting: dict[DeliveryFuture, asyncio.Future[Any]] = {}
        self._listening = contextlib.ExitStack()
        self._closed = False

    # --- begin and end

    async def start(self) -> None:
        """Creates or finds the arena, and makes sure that it has a sender. A second call does nothing.

        With a ``transactional_id``, it takes the id back if another producer has it.

        Raises:
            KafkaConnectionError: no sender could be started.
        """
        if self._producer is None:
            with translating(translated):
                arguments = await asyncio.to_thread(self._settings.make)
                producer = aio.Producer(**arguments, on_unusable=self._on_unusable)
                await producer.start()
                if self._settings.arena.get("transactional_id") is not None:
                    with contextlib.suppress(InvalidArgumentError):  # if the arena has none, begin_transaction raises
                        await producer.init_transactions()
            self._producer = producer

    async def stop(self) -> None:
        """Rejects further records, and waits at most two minutes until all records are delivered or have failed.

        A record that is not delivered in time stays in the arena and will be sent, and a warning is logged.
        """
        if self._closed:
            return
        self._closed = True
        if self._producer is not None:
            try:
                with translating(translated):
                    await self._producer.close()
            finally:
                self._listening.close()
                self._give_up()

    def _give_up(self) -> None:
        """Ends the futures whose results are not known."""
        for future, waiting in list(self._waiting.items()):
            if not waiting.done():
                self._resolve(future)
            if not waiting.done():
                error = ResultPendingError("the producer was stopped: the record is in the arena and will be sent")
                waiting.set_exception(translated(error))
            if not waiting.cancelled():
                waiting.exception()  # marks it as retrieved
        self._waiting.clear()

    def __del__(self) -> None:
        if self._closed is False and self._producer is not None:
            warnings.warn(f"Unclosed AIOKafkaProducer {self!r}", ResourceWarning, source=self, stacklevel=2)

    def _started(self) -> aio.Producer:
        if self._closed or self._producer is None:
            state = "stopped" if self._closed else "not started: await start() first"
            raise translated(ProducerClosedError(f"the producer was {state}"))
        return self._producer

    # --- send

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
    ) -> asyncio.Future[Any]:
        """Puts a record into the arena, and returns. A sender delivers it.

        Returns:
            A future of the loop with aiokafka's RecordMetadata, or with None if ``acks=0``.

        Raises:
            KafkaTimeoutError: no buffer became free for ``request_timeout_ms``.
            UnknownTopicOrPartitionError: the topic stayed unknown for this time, or has no such partition.
            MessageSizeTooLargeError: the record is larger than ``max_request_size``.
            ProducerClosed: the producer is stopped.
        """
        return self._watch(await self._send(topic, value, key, partition, timestamp_ms, headers))

    async def send_and_wait(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
    ) -> Any:
        """Sends a record, and waits until it is delivered.

        Raises:
            KafkaError: the record was not delivered.
        """
        future = await self._send(topic, value, key, partition, timestamp_ms, headers)
        waiting = self._watch(future)
        if isinstance(future, DeliveryFuture):
            future.tracker.wake_waiting_sender(future)
        return await waiting

    async def _send(self, topic: str, value: Any, key: Any, *rest: Any) -> Any:
        producer = self._started()
        if value is None and key is None:
            raise AssertionError("Need at least one: key or value")
        partition, timestamp_ms, headers = rest
        with translating(translated):
            return await producer.send(
                topic, value, key, partition, timestamp_ms, None if headers is None else list(headers)
            )

    def _watch(self, future: Any) -> asyncio.Future[Any]:
        """Returns a future of the loop with the result of a record. A future of the library is returned unchanged."""
        if not isinstance(future, DeliveryFuture):
            return future  # type: ignore[no-any-return]
        waiting = asyncio.get_running_loop().create_future()
        results = LoopResults.of(future.tracker)
        if not self._waiting:
            self._listening.enter_context(results.listening(results.call_observers))
        self._waiting[future] = waiting
        results.watch(future, self._resolve)
        return waiting

    def _resolve(self, future: DeliveryFuture) -> None:
        waiting = self._waiting.pop(future, None)
        if not self._waiting:
            self._listening.close()
        if waiting is None or waiting.done():
            return
        error: Exception | None
        try:
            if not future.is_done:
                return
            error = future.exception
        except ShmaccumError as lost:  # the arena is gone, and the result with it
            error = lost
        if error is not None:
            waiting.set_exception(translated(error))
        else:
            waiting.set_result(self._metadata(future) if self._has_results else None)

    def _metadata(self, future: DeliveryFuture) -> RecordMetadata:
        found = future.value
        assert found is not None
        return RecordMetadata(
            topic=found.topic,
            partition=found.partition,
            topic_partition=TopicPartition(found.topic, found.partition),
            offset=found.offset,
            timestamp=found.timestamp,
            timestamp_type=CREATE_TIME if found.timestamp == future.timestamp_ms else LOG_APPEND_TIME,
            log_start_offset=None,
        )

    # --- batches

    def create_batch(self) -> BatchBuilder:
        """Returns an empty batch of at most ``max_batch_size`` bytes, for `send_batch`."""
        return BatchBuilder(self._batch_size, *self._serializers)

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> asyncio.Future[Any]:
        """Puts the records of a batch into the arena.

        Returns:
            A future of the loop with the RecordMetadata of the first record.

        Raises:
            KafkaError: as `send`.
        """
        producer = self._started()
        batch.close()
        keys, values, timestamps_ms, headers = zip(*batch.rows, strict=True) if batch.rows else [()] * 4
        with translating(translated):
            deliveries = await producer.send_many(
                topic, values, keys=keys, headers=headers, timestamps_ms=timestamps_ms, partition=partition
            )
        return asyncio.ensure_future(self._first_of([self._watch(future) for future in deliveries]))

    async def _first_of(self, waiting: list[asyncio.Future[Any]]) -> Any:
        """Waits for all results, and returns the result of the first record."""
        results = await asyncio.gather(*waiting)
        return results[0] if results else None

    # --- flush and facts

    async def flush(self) -> None:
        """Waits until everything that was sent so far is delivered or has failed.

        Raises:
            KafkaTimeoutError: two minutes have passed. The other records stay in the arena and will be sent.
        """
        with translating(translated):
            await self._started().flush()

    async def partitions_for(self, topic: str) -> set[int]:
        """Returns the partitions of a topic. It waits for a sender to report them.

        Raises:
            UnknownTopicOrPartitionError: no sender reported them within ``request_timeout_ms``.
        """
        with translating(translated):
            return await self._started().partitions_for(topic)

    # --- transactions

    def transaction(self) -> _Transaction:
        """Returns a transaction for an ``async with`` block, which commits it, or aborts it if the block raises.

        Raises:
            ProducerClosed: the producer is not started, or is stopped.
        """
        return _Transaction(self._started().transaction())

    async def begin_transaction(self) -> None:
        """Begins a transaction of all processes with these settings. The task waits until the previous one is over.

        Raises:
            IllegalOperation: the options have no ``transactional_id``.
            ConcurrentTransactions: another process has begun one, or the last one did not end in time.
            ProducerFenced: another producer has the ``transactional_id``. A producer that starts takes it back.
        """
        with translating(_translated_in_transactions):
            await self._started().begin_transaction()

    async def commit_transaction(self) -> None:
        """Commits, and waits for the outcome.

        Raises:
            InvalidTxnState: a record could not be delivered, or the transaction was open for too long: abort it.
            ProducerFenced: another producer has the ``transactional_id``: abort it.
            KafkaTimeoutError: the outcome was not known within two minutes. Call this method again for it.
            IllegalOperation: this producer has begun no transaction.
        """
        with translating(_translated_in_transactions):
            await self._started().commit_transaction()

    async def abort_transaction(self) -> None:
        """Aborts, and discards the records of all processes.

        Raises:
            IllegalOperation: this producer has begun no transaction, or its commit has begun.
        """
        with translating(_translated_in_transactions), aborting():
            await self._started().abort_transaction()

    async def send_offsets_to_transaction(self, offsets: Any, group_id: str) -> None:
        """Commits offsets of a consumer group with the transaction.

        When this method returns, they are in the arena. If the group does not accept them, `commit_transaction` raises.

        Args:
            offsets: the next offset of each TopicPartition: a number, a pair with metadata, or OffsetAndMetadata.
            group_id: the id of the group.

        Raises:
            IllegalOperation: no transaction is open, or the options have no ``transactional_id``.
            ValueError, TypeError: an offset or the group is invalid.
            KafkaTimeoutError: no buffer became free for ``request_timeout_ms``.
            ProducerFenced: another producer has the ``transactional_id``.
        """
        if not isinstance(group_id, str):
            raise TypeError(f"the id of a group is a str, not {group_id!r}")
        with translating(_translated_in_transactions):
            await self._started().send_offsets_to_transaction(commit_structure_validate(offsets), group_id)


@final
class _Transaction:
    """A transaction whose errors are also errors of aiokafka."""

    def __init__(self, transaction: aio.Transaction) -> None:
        self._transaction = transaction

    async def __aenter__(self) -> Self:
        with translating(_translated_in_transactions):
            await self._transaction.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with translating(_translated_in_transactions):
            await self._transaction.__aexit__(kind, error, traceback)


def _with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """Returns the options, with options that follow from them.

    In aiokafka, a `send` waits at most ``request_timeout_ms``, and transactions imply idempotence.
    """
    given = dict(options)
    if given.get("loop") is not None:
        warnings.warn("the loop parameter is deprecated and ignored here", DeprecationWarning, stacklevel=3)
    mechanism = given.pop("sasl_mechanism", DEFAULTS["sasl_mechanism"])
    if str(given.get("security_protocol", "")).startswith("SASL"):
        given["shmaccum_sasl_mechanism"] = mechanism  # aiokafka's default is PLAIN, even without a login
    if given.get("transactional_id") is not None:
        given["enable_idempotence"] = True
    given.setdefault("shmaccum_max_block_ms", given.get("request_timeout_ms", REQUEST_TIMEOUT_DEFAULT_MS))
    return given
