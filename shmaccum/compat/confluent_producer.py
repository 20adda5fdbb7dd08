# SPDX-License-Identifier: Apache-2.0
"""confluent-kafka's ``Producer`` on an arena (confluent_kafka.Producer, confluent-kafka 2).

::

    produce   appends to the arena, in C for an ordinary record (native/python/producer/confluent_type.c); the core
              counts the records, and a record with a callback joins `CallbackRecords`
    poll      looks up the results of these records, and calls the callbacks of deliveries, errors and statistics in
              the caller's thread
    flush     wakes the sender, and polls until every record has its result

librdkafka stores records of a topic that it does not know yet, and requests the topic in the background. Here, the
first record of such a topic waits in `produce` until the sender reports its partitions. After a timeout, the record is
reported to its callback, as by librdkafka.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, final

from shmaccum._native import BufferWait, ConfluentProducer
from shmaccum.arena.reports import Kind, Report, read_reports
from shmaccum.common import clock
from shmaccum.common.background import log_exception
from shmaccum.common.closing import ClosedOnExit
from shmaccum.common.packages import needed
from shmaccum.common.units import format_count
from shmaccum.compat.confluent_callbacks import Callback, CallbackRecords
from shmaccum.compat.confluent_errors import kafka_error, translated, translated_in_transactions, translated_of_offsets
from shmaccum.compat.confluent_options import DEFAULTS, ROWS
from shmaccum.compat.errors import aborting, translating
from shmaccum.compat.settings import OwnerOptions, of_library
from shmaccum.exceptions import (
    FlushTimeoutError,
    InvalidArgumentError,
    NoTransactionError,
    PartitionCountUnknownError,
    ShmaccumError,
)
from shmaccum.producer.buffer_wait import BufferWaiter
from shmaccum.producer.delivery import DeliveryTracker
from shmaccum.producer.fallback import UNUSABLE, Fallback
from shmaccum.producer.group_offsets import GroupOffsets
from shmaccum.supervisor import kept_producer

if TYPE_CHECKING:
    from typing_extensions import Self

with needed("confluent-kafka", "confluent", "shmaccum.compat.confluent needs"):
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka import Producer as LibraryProducer
    from confluent_kafka.admin import AdminClient

logger = logging.getLogger(__name__)

Headers: TypeAlias = list[tuple[str, Any]]

ANY_PARTITION = -1
FOREVER = -1
PREFIX_DOTTED = "shmaccum."
SERVERS = ("bootstrap.servers", "metadata.broker.list")
TIMEOUT_DEFAULT_MS = 300_000
"""message.timeout.ms of librdkafka."""
PROPAGATION_DEFAULT_MS = 30_000
"""topic.metadata.propagation.max.ms of librdkafka."""
CHECK_S = 1.0
"""The interval between checks of the arena's error log."""
SLICE_S = 0.1
"""The interval at which a flush checks whether callbacks are due."""
CALLBACK_SLICE_S = 0.005
"""The interval if records have callbacks. They are called while the sender delivers other records."""


@final
class _PatientWaiter(BufferWaiter):
    """Waits for buffers only in threads that have set a timeout."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._own = threading.local()

    @contextlib.contextmanager
    def allow_waits(self, timeout_s: float) -> Iterator[None]:
        """In the block, appends of this thread may wait, for this time in total."""
        self._own.limit = int(timeout_s * 1000), clock.monotonic_ns() + int(timeout_s * 1e9)
        try:
            yield
        finally:
            del self._own.limit

    def wait(
        self, need: int, max_block_ms: int, deadline_ns: int, place: BufferWait | None, partition_index: int
    ) -> BufferWait:
        max_block_ms, deadline_ns = getattr(self._own, "limit", (max_block_ms, deadline_ns))
        return super().wait(need, max_block_ms, deadline_ns, place, partition_index)


@final
class _ConfluentProducer(kept_producer.Producer):
    """A producer whose `send` never waits for a buffer, and waits for a new topic as long as librdkafka does."""

    __slots__ = ("patience_ms",)

    _waiter_type = _PatientWaiter

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.patience_ms = PROPAGATION_DEFAULT_MS
        super().__init__(*arguments, max_block_ms=0, **options)

    def _wait_for_partitions(self, topic: str, max_block_ms: int, deadline_ns: int, least: int = 1) -> int:
        # librdkafka immediately rejects a record for a missing partition of a known topic. The sink is asked anyway.
        patience_ms = self.patience_ms if least == 1 else 0
        deadline_ns = clock.monotonic_ns() + patience_ms * 10**6
        return super()._wait_for_partitions(topic, patience_ms, deadline_ns, least)

    @property
    def transaction_timeout_s(self) -> float:
        """The time that a transaction may take."""
        return self.arena.transaction_timeout_ms / 1000

    @property
    def _begin_timeout_s(self) -> float:
        return self.transaction_timeout_s

    def send_offsets_in_time(self, offsets: GroupOffsets, group_metadata: object, timeout_s: float) -> None:
        """Sends offsets of a group, and waits for buffers for at most the timeout.

        Raises:
            BufferExhaustedError: the arena stayed full.
            Exception: as `send_offsets_to_transaction`.
        """
        with self.waiting(timeout_s):
            self.send_offsets_to_transaction(offsets, group_metadata)

    def waiting(self, timeout_s: float) -> contextlib.AbstractContextManager[None]:
        """In the block, this thread waits for buffers, for this time in total."""
        waiter = self._appender.buffer_waiter
        assert isinstance(waiter, _PatientWaiter)
        return waiter.allow_waits(timeout_s)

    def deliveries(self) -> DeliveryTracker:
        """The object that looks results up."""
        return self._tracker


def _as_bytes(data: Any) -> Any:
    return data.encode() if isinstance(data, str) else data


def _listed(headers: Any) -> Headers:
    """Converts headers in librdkafka's forms to a list.

    Raises:
        TypeError: the headers are invalid.
    """
    if not isinstance(headers, (dict, list)):
        raise TypeError(f"expected headers to be dict or list of (key, value) tuples, not {type(headers).__name__}")
    return [_header(item) for item in (headers.items() if isinstance(headers, dict) else headers)]


def _header(item: Any) -> tuple[str, bytes | None]:
    if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str)):
        raise TypeError("Headers are expected to be a list of (key, value) tuples")
    value = _as_bytes(item[1])
    if value is not None and not isinstance(value, bytes):
        raise TypeError(f"expected header value to be None, binary, or unicode string, not {type(item[1]).__name__}")
    return item[0], value


def _configuration(arguments: tuple[Mapping[str, Any], ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options in one dict, with the options of a topic configuration in them."""
    if len(arguments) > 1 or not (arguments or options):
        raise TypeError("expected configuration dict")
    config = {**(arguments[0] if arguments else {}), **options}
    return {**config.pop("default.topic.config", {}), **config}


def _function(config: Mapping[str, Any], name: str) -> Any:
    found = config.get(name)
    if found is not None and not callable(found):
        raise TypeError(f"expected {name} property as a callable function")
    return found


def _milliseconds(config: Mapping[str, Any], name: str, default: int) -> int:
    try:
        return int(float(config.get(name, default)))
    except (TypeError, ValueError):
        raise translated(
            InvalidArgumentError(f'Invalid value for configuration property "{name}": {config[name]!r} is not a number')
        ) from None


def settings_of(config: Mapping[str, Any]) -> OwnerOptions:
    """Returns the settings of arena, sender and sink.

    Raises:
        KafkaException: an option is unknown, refused or invalid.
    """
    with translating(translated):
        return _settings(config)


def _settings(config: Mapping[str, Any]) -> OwnerOptions:
    servers = [config[name] for name in SERVERS if config.get(name)]
    rest = {name: value for name, value in config.items() if name not in SERVERS}
    settings = OwnerOptions.split(rest, ROWS, servers[0] if servers else "localhost")
    timeout_ms = settings.sender.get("delivery_timeout_ms")
    if timeout_ms is not None and int(settings.sender.get("request_timeout_ms", 0)) > int(timeout_ms):
        settings.sender.pop("request_timeout_ms", None)  # librdkafka's message timeout ends a request, too
    if str(settings.sink_options.get("security_protocol", "")).startswith("SASL"):
        settings.sink_options.setdefault("sasl_mechanism", DEFAULTS["sasl.mechanism"])
    settings.complete()
    return settings


class _Own(NamedTuple):
    """The options that this module implements, and not the producer of the arena."""

    on_delivery: Callback | None
    on_error: Callable[[KafkaError], object] | None
    on_statistics: Callable[[str], object] | None
    logger: logging.Logger | None
    statistics_ms: int
    propagation_ms: int

    @property
    def wants_reports(self) -> bool:
        """True if the program wants to receive errors or statistics."""
        return not (self.on_error is None and self.on_statistics is None and self.logger is None)

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        return cls(
            _function(config, "on_delivery"),
            _function(config, "error_cb"),
            _function(config, "stats_cb"),
            config.get("logger"),
            _milliseconds(config, "statistics.interval.ms", 0),
            _milliseconds(config, "topic.metadata.propagation.max.ms", PROPAGATION_DEFAULT_MS),
        )


@final
class _ErrorChecks:
    """Checks for errors and statistics during polls, and passes them to callbacks and a logger."""

    def __init__(self, producer: _ConfluentProducer, own: _Own) -> None:
        self._producer = producer
        self._on_error = own.on_error
        self._on_statistics = own.on_statistics
        self._interval_s = own.statistics_ms / 1000
        self._logger = own.logger
        self._reported = set(read_reports(producer.arena.native))
        self._next_check_s = 0.0
        self._next_statistics_s = clock.monotonic() + self._interval_s

    def run(self, count_waiting: Callable[[], int]) -> int:
        """Calls the callbacks that are due, and returns their number.

        Args:
            count_waiting: returns the number of records without a result, for the statistics.
        """
        return self._check_errors() + self._check_statistics(count_waiting)

    def _check_errors(self) -> int:
        if clock.monotonic() < self._next_check_s or (self._on_error is None and self._logger is None):
            return 0
        self._next_check_s = clock.monotonic() + CHECK_S
        new_reports = [report for report in read_reports(self._producer.arena.native) if report not in self._reported]
        for report in new_reports:
            self._reported.add(report)  # if a callback raises, the next call handles the others
            if self._logger is not None:
                self._logger.error("%s: %s", self._producer.client_id, report.sentence)
            if self._on_error is not None:
                self._on_error(KafkaError(_code_of(report), report.sentence))
        return len(new_reports)

    def _check_statistics(self, count_waiting: Callable[[], int]) -> int:
        if self._on_statistics is None or self._interval_s == 0 or clock.monotonic() < self._next_statistics_s:
            return 0
        self._next_statistics_s = clock.monotonic() + self._interval_s
        self._on_statistics(json.dumps(self._statistics(count_waiting())))
        return 1

    def _statistics(self, waiting_count: int) -> dict[str, Any]:
        """Returns the metrics of this process under librdkafka's names, and those of the arena under shmaccum's."""
        numbers = self._producer.metrics()["producer-metrics"]
        return {
            "name": self._producer.client_id,
            "client_id": self._producer.client_id,
            "type": "producer",
            "ts": clock.monotonic_ns() // 1000,
            "time": int(time.time()),
            "msg_cnt": waiting_count,
            "txmsgs": numbers["record-send-total"],
            "txmsg_bytes": numbers["byte-total"],
            "shmaccum": numbers,
        }


def _code_of(report: Report) -> int:
    """Returns librdkafka's code for a report of the arena's error log."""
    if report.kind is Kind.NOT_KEPT:
        return int(KafkaError._ALL_BROKERS_DOWN)
    return report.error_code if report.error_code > 0 else int(KafkaError._TRANSPORT)


class Producer(ConfluentProducer, ClosedOnExit):
    """Sends records through the arena for these settings, with confluent-kafka's API.

    ::

        producer = Producer({"bootstrap.servers": "kafka1:9092"})
        producer.produce("flights", "...", key="AA11", on_delivery=print)
        producer.flush()

    All threads can use it, and so can a forked child. When `produce` returns, the record outlives this process.

    Args:
        config: librdkafka's options. `ROWS` describes the effect of each. An omitted option has shmaccum's default.
            Options of shmaccum begin with ``shmaccum.``, as in ``"shmaccum.buffer_memory": "256MiB"``.

    Raises:
        KafkaException: an option is unknown, refused or invalid, or no sender could be started.
        RuntimeError: the producer is already open.
        TypeError: the configuration is invalid, or a callback is not a function.
    """

    _producer: _ConfluentProducer | None = None
    _fallback: Fallback | None = None
    _on_delivery: Callback | None = None
    _is_initialized = False

    def __init__(self, *arguments: Mapping[str, Any], **options: Any) -> None:
        if self._producer is not None:
            raise RuntimeError("Producer already __init__:ialized")
        config = _configuration(arguments, options)
        own = _Own.of(config)
        self._on_delivery = own.on_delivery
        self._config = {name: value for name, value in config.items() if not name.startswith(PREFIX_DOTTED)}
        with translating(translated):
            settings = settings_of(config)
            on_unusable = settings.fallback_function(lambda: LibraryProducer(of_library(config)))
            producer = _ConfluentProducer(**settings.make())
            self._fallback = _fallback_of(producer, on_unusable)
        self._begin(producer, own, int(settings.sender.get("delivery_timeout_ms", TIMEOUT_DEFAULT_MS)))

    def _begin(self, producer: _ConfluentProducer, own: _Own, timeout_ms: int) -> None:
        self._times_out_first = timeout_ms <= own.propagation_ms
        self._flush_s = min(timeout_ms, TIMEOUT_DEFAULT_MS) / 1000
        producer.patience_ms = min(timeout_ms, own.propagation_ms)
        self._error_checks = _ErrorChecks(producer, own) if own.wants_reports else None
        self._tracker = producer.deliveries()
        self._producer = producer
        self.reset()
        _producers.add(self)

    def reset(self) -> None:
        """Discards everything that this process waits for. A forked child calls it first."""
        self._callback_records = CallbackRecords(self, self._tracker)
        self._produce_through(self._producer, self._on_delivery, self._callback_records.native)

    def _deliveries(self) -> DeliveryTracker:
        """The object that looks results up."""
        return self._tracker

    def _wait_and_produce(self, produce: Callable[[], None]) -> None:
        """Calls a function that produces, and lets it wait for buffers as long as a flush without a timeout.

        Raises:
            Exception: as `produce`.
        """
        with self._open().waiting(self._flush_s):
            produce()

    def _open(self) -> _ConfluentProducer:
        if self._producer is None:
            raise RuntimeError("Producer has been closed")
        return self._producer

    # --- produce

    def _produce_in_python(
        self,
        error: BaseException | None,
        topic: str,
        value: Any,
        key: Any,
        partition: int | None,
        callback: Callback | None,
        on_delivery: Callback | None,
        timestamp: int | None,
        headers: Any,
    ) -> None:
        """Sends a record of `produce` that C does not send, because it has headers, a partition or a timestamp.

        Args:
            error: the exception if C has tried to send the record.
            partition: None or -1 for the choice of the partitioner. The others are the arguments of `produce`.
        """
        producer, callback = self._open(), callback or on_delivery or self._on_delivery
        if error is not None and not isinstance(error, ShmaccumError):
            raise error
        value, key = _as_bytes(value), _as_bytes(key)
        headers = None if headers is None else _listed(headers)
        partition = ANY_PARTITION if partition is None else partition
        try:
            if error is not None:
                raise error
            future = producer.send(topic, value, key, headers, partition if partition >= 0 else None, timestamp or None)
        except PartitionCountUnknownError as unknown:
            if callback is not None:  # as librdkafka, which requests the topic after the call
                code = KafkaError._MSG_TIMED_OUT if self._times_out_first else KafkaError._UNKNOWN_TOPIC
                record = callback, topic, value, key, headers
                self._callback_records.refuse(record, partition, kafka_error(unknown, code), timestamp or 0)
        except ShmaccumError as refusal:
            if self._fallback is None:
                raise translated(refusal) from None
            rest = {"partition": partition, "on_delivery": callback, "timestamp": timestamp or 0, "headers": headers}
            given = {name: part for name, part in rest.items() if part is not None}
            with translating(translated):
                self._fallback.send(refusal, lambda library: library.produce(topic, value, key, **given))
        else:
            if callback is not None:
                self._join(future, callback, topic, value, key, headers)

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = ANY_PARTITION,
        callback: Callback | None = None,
        on_delivery: Callback | None = None,
    ) -> int:
        """Puts many records of one topic into the arena.

        Args:
            messages: dicts with any of ``value``, ``key``, ``partition``, ``timestamp``, ``headers`` and ``callback``.
                A record that was not accepted gets its error as ``_error``.
            partition: the partition of records that name none, or -1 for the choice of the partitioner.
            callback, on_delivery: for records that have none of their own.

        Returns:
            The number of records that were accepted.

        Raises:
            TypeError: a part has a wrong type.
            RuntimeError: the producer is closed.
        """
        self._open()
        if type(messages) is not list:
            raise TypeError("messages must be a list")
        for index, message in enumerate(messages):
            _check_message(index, message)
        callback = callback or on_delivery
        return sum(self._produce_one(topic, message, partition, callback) for message in messages)

    def _produce_one(self, topic: str, message: dict[str, Any], partition: int, callback: Callback | None) -> bool:
        """Returns True if the record was accepted."""
        try:
            self.produce(
                topic,
                message.get("value"),
                message.get("key"),
                message.get("partition", partition),
                message.get("callback") or callback,
                timestamp=message.get("timestamp") or 0,
                headers=message.get("headers"),
            )
        except BufferError as error:
            message["_error"] = KafkaError(KafkaError._QUEUE_FULL, str(error))
        except KafkaException as error:
            message["_error"] = error.args[0]
        return "_error" not in message

    # --- results

    def poll(self, timeout: float | None = FOREVER) -> int:
        """Calls the callbacks of results, errors and statistics. Waits for the first of them.

        Args:
            timeout: seconds, or -1 or None for no limit.

        Returns:
            The number of callbacks that were called.

        Raises:
            Exception: a callback raised it. The next call handles the other results.
        """
        self._open()
        served = self._serve()
        if served or timeout == 0:
            return served
        end_s = _end_s(timeout)
        while not served and (left_s := end_s - clock.monotonic()) > 0:
            with translating(translated):
                self._tracker.wait_until(self._callback_records.collect, min(left_s, CHECK_S))
            served = self._serve()
        return served

    def _serve(self) -> int:
        """Calls every callback that is due, and returns their number."""
        served = self._callback_records.call()
        if self._fallback is not None:
            served += self._fallback.call("poll", 0) or 0
        return served if self._error_checks is None else served + self._error_checks.run(self.__len__)

    def flush(self, timeout: float | None = FOREVER) -> int:
        """Wakes the sender, and polls until every record of this process has its result.

        Args:
            timeout: seconds. With -1 or None, it is ``message.timeout.ms``, at most five minutes.

        Returns:
            The number of records without a result. They stay in the arena and will be sent.
        """
        producer = self._open()
        timeout_s = self._flush_s if timeout is None or timeout < 0 else timeout
        if self._fallback is not None and self._fallback.target is not None:
            self._serve()
            return int(self._fallback.call("flush", timeout_s))
        end_s = _end_s(timeout_s)
        while True:
            slice_s = CALLBACK_SLICE_S if self._callback_records.pending_count else SLICE_S
            with translating(translated), contextlib.suppress(FlushTimeoutError):
                producer.flush(min(max(end_s - clock.monotonic(), 0), slice_s))
            self._serve()
            if len(self) == 0 or clock.monotonic() >= end_s:
                return len(self)

    def __len__(self) -> int:
        """The number of records without a result, and of callbacks that were not called yet."""
        if self._producer is None:
            return 0
        records = self._callback_records
        records.collect()
        return max(self._producer.incomplete_count, records.pending_count) + records.due_count

    def __bool__(self) -> bool:
        return True

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Not supported, because records in an arena outlive their process, and share batches with other processes.

        Raises:
            KafkaException: always, with the code _NOT_IMPLEMENTED.
        """
        self._open()
        raise _refusal("a record in the arena cannot be removed, because its batch has records of other processes")

    def close(self) -> bool:
        """Flushes, and rejects further records. The remaining records stay in the arena and will be sent.

        Returns:
            True.
        """
        if self._producer is not None:
            producer = self._producer
            try:
                self.flush()
            finally:
                self._call_remaining()
                self._producer = None
                self._produce_through(None, None, self._callback_records.native)
                self._log_uncalled(producer.client_id)
                with translating(translated), self._suppressed_after_fallback():
                    producer.close(0)
        return True

    def _suppressed_after_fallback(self) -> contextlib.AbstractContextManager[None]:
        """Drops the error of an unusable arena if it led to the fallback."""
        has_target = self._fallback is not None and self._fallback.target is not None
        return contextlib.suppress(*UNUSABLE) if has_target else contextlib.nullcontext()

    def _call_remaining(self) -> None:
        """Calls the callbacks that are due after one of them has ended the flush. Their exceptions are logged."""
        while self._callback_records.due_count:
            try:
                self._callback_records.call()
            except BaseException:  # noqa: BLE001, PERF203 - of user code
                log_exception(logger, "a callback failed while its producer was closed")

    def _log_uncalled(self, client_id: str) -> None:
        """Logs how many callbacks will not be called, and forgets them."""
        uncalled = self._callback_records.pending_count + self._callback_records.due_count
        self.reset()
        if uncalled:
            logger.warning("%s: %s will not be called in this process", client_id, format_count(uncalled, "callback"))

    # --- the cluster

    def list_topics(self, topic: str | None = None, timeout: float = FOREVER) -> Any:
        """Returns a ClusterMetadata with brokers and topics, from confluent-kafka's own AdminClient with these options.

        Args:
            topic: the only topic to return.
            timeout: seconds, or -1 for no limit.

        Raises:
            KafkaException: the cluster did not answer in time.
        """
        self._open()
        callbacks = {"on_delivery", "error_cb", "stats_cb"}
        config = {name: value for name, value in self._config.items() if name not in callbacks}
        return AdminClient(config).list_topics(topic, timeout)

    def cluster_id(self, timeout: float = FOREVER) -> str | None:
        """Returns the id of the cluster, requested as by `list_topics`."""
        found: str | None = self.list_topics(timeout=timeout).cluster_id
        return found

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Not supported, because the sender has the credentials.

        Raises:
            KafkaException: always, with the code _NOT_IMPLEMENTED.
        """
        self._open()
        raise _refusal("the sender logs in: set sasl.password to file:PATH, which the sender reads at each login")

    # --- transactions

    def init_transactions(self, timeout: float = FOREVER) -> None:
        """Takes the ``transactional.id`` back if another producer has it. Call it before the first transaction.

        Args:
            timeout: ignored. The call waits only for the end of the last transaction, if another producer has the
                ``transactional.id``, and for at most ``transaction.timeout.ms``.

        Raises:
            KafkaException: with _NOT_CONFIGURED when the options have no ``transactional.id``; with _CONFLICT, which is
                retriable, when the last transaction is not over.
        """
        producer = self._open()
        with translating(translated_in_transactions):
            producer.init_transactions()
        self._is_initialized = True

    def begin_transaction(self) -> None:
        """Begins a transaction of all processes with these settings. It waits until the previous one is over.

        Raises:
            KafkaException: with _STATE before `init_transactions`; with _CONFLICT, which is retriable, when another
                process has begun one, or the last one did not end within ``transaction.timeout.ms``. With _FENCED,
                which is fatal, when another producer has the ``transactional.id``.
        """
        with translating(translated_in_transactions):
            self._initialized().begin_transaction()

    def commit_transaction(self, timeout: float = FOREVER) -> None:
        """Commits, and waits for the outcome.

        Args:
            timeout: seconds, or -1 for ``transaction.timeout.ms``.

        Raises:
            KafkaException: with ``txn_requires_abort()`` when a record could not be delivered, or the transaction was
                open for too long. With _TIMED_OUT, which is retriable, when the outcome is not known in time: call this
                method again for it. With _FENCED, which is fatal, when another producer has the ``transactional.id``.
                With _STATE when this producer has begun no transaction.
        """
        with translating(translated_in_transactions):
            producer = self._initialized()
            producer.commit_transaction(producer.transaction_timeout_s if timeout < 0 else timeout)

    def abort_transaction(self, timeout: float = FOREVER) -> None:
        """Aborts, and discards the records of all processes.

        Args:
            timeout: ignored, because an abort takes effect at once.

        Raises:
            KafkaException: with _STATE when this producer has begun no transaction, or its commit has begun.
        """
        with translating(translated_in_transactions), aborting():
            self._initialized().abort_transaction()

    def send_offsets_to_transaction(self, positions: Any, group_metadata: Any, timeout: float = FOREVER) -> None:
        """Commits offsets of a consumer group with the transaction.

        When this method returns, they are in the arena. If the group does not accept them, `commit_transaction` raises.

        Args:
            positions: a list of TopicPartition, each with its next offset. One without an offset is skipped.
            group_metadata: ``consumer_group_metadata()`` of a Consumer.
            timeout: seconds to wait for a buffer, or -1 for ``transaction.timeout.ms``.

        Raises:
            KafkaException: with _STATE when no transaction is open, or before `init_transactions`; with _INVALID_ARG
                when an offset or the group is invalid; with _TIMED_OUT, which is retriable, when the arena stayed full;
                with _FENCED when another producer has the ``transactional.id``.
        """
        with translating(translated_in_transactions):
            producer = self._initialized()
        with translating(translated_of_offsets):
            producer.send_offsets_in_time(
                positions, group_metadata, producer.transaction_timeout_s if timeout < 0 else timeout
            )

    def _initialized(self) -> _ConfluentProducer:
        producer = self._open()
        producer.check_has_transactions()
        if not self._is_initialized:
            raise NoTransactionError("call init_transactions() before the first transaction")
        return producer


def _fallback_of(producer: _ConfluentProducer, on_unusable: Callable[[], Any] | None) -> Fallback | None:
    """Makes the fallback of a producer. Closes the producer if the function is rejected."""
    try:
        return None if on_unusable is None else Fallback(on_unusable, ("produce", "poll", "flush"), producer.arena)
    except BaseException:
        producer.close(0)
        raise


def _check_message(index: int, message: Any) -> None:
    if not isinstance(message, dict):
        raise TypeError(f"Message at index {index} must be a dict")
    for name in ("value", "key"):
        if not isinstance(message.get(name), (bytes, str, type(None))):
            raise TypeError(f"Message {name} at index {index} must be bytes or str")
    if "partition" in message and not isinstance(message["partition"], int):
        raise TypeError(f"Message partition at index {index} must be int")


def _end_s(timeout: float | None) -> float:
    return float("inf") if timeout is None or timeout < 0 else clock.monotonic() + timeout


def _refusal(reason: str) -> KafkaException:
    return KafkaException(KafkaError(KafkaError._NOT_IMPLEMENTED, reason))


_producers: weakref.WeakSet[Producer] = weakref.WeakSet()


def _reset_in_child() -> None:
    for producer in list(_producers):
        producer.reset()


os.register_at_fork(after_in_child=_reset_in_child)
