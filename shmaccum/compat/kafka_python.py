# SPDX-License-Identifier: Apache-2.0
"""kafka-python's ``KafkaProducer`` on an arena (kafka.producer.kafka.KafkaProducer, kafka-python 3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, final

from shmaccum._native import DeliveryFuture
from shmaccum.common.closing import ClosedOnExit
from shmaccum.common.packages import needed
from shmaccum.compat.errors import (
    IN_TRANSACTIONS,
    OF_OFFSETS,
    Ours,
    aborting,
    classes_of,
    join,
    join_of_code,
    nearest,
    translating,
)
from shmaccum.compat.options import (
    NO_CONNECTIONS,
    OBJECT,
    Rows,
    acks,
    refused,
    rows_of,
    same,
    to,
    to_partitioner,
    without_use,
)
from shmaccum.compat.settings import OwnerOptions, of_library
from shmaccum.config import INT_MAX
from shmaccum.config.sender import IN_FLIGHT_MAX_IDEMPOTENT
from shmaccum.exceptions import DeliveryError, InvalidArgumentError, NoTransactionError, ShmaccumError
from shmaccum.producer.delivery import DeliveryTracker
from shmaccum.producer.producer import FLUSH_TIMEOUT_S
from shmaccum.supervisor import kept_producer

with needed("kafka-python", "kafka", "shmaccum.compat.kafka_python needs"):
    import kafka
    import kafka.errors as theirs
    from kafka.partitioner import DefaultPartitioner, StickyPartitioner
    from kafka.producer.future import RecordMetadata
    from kafka.serializer import SerializeWrapper

MAGIC = 2
"""The version of Kafka's record format that every record here has."""

THEIRS = classes_of("kafka_python", theirs)
THEIRS_IN_TRANSACTIONS = classes_of("kafka_python", theirs, IN_TRANSACTIONS)
THEIRS_OF_OFFSETS = classes_of("kafka_python", theirs, OF_OFFSETS)


def _serializer(given: Any) -> Any:
    """Passes None to a function, too, as kafka-python does."""
    return given if hasattr(given, "serialize") else SerializeWrapper(given)


OWN: Rows = {
    **same(
        "delivery_timeout_ms",
        "max_block_ms",
        "max_in_flight_requests_per_connection",
        "receive_buffer_bytes",
        "send_buffer_bytes",
        "ssl_cafile",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_crlfile",
        "ssl_keyfile",
        "ssl_password",
        "sasl_kerberos_name",
    ),
    "key_serializer": to("key_serializer", _serializer),
    "value_serializer": to("value_serializer", _serializer),
    "retries": to("retries", lambda given: int(min(given, INT_MAX))),
    "partitioner": to_partitioner(DefaultPartitioner, StickyPartitioner),
    "receive_message_max_bytes": without_use("responses to Produce requests are small"),
    "socket_options": without_use("the sender sets TCP_NODELAY, as kafka-python does by default"),
    "ssl_context": refused(f"{OBJECT}: set ssl_cafile, ..."),
    "ssl_ciphers": refused("the sender offers the ciphers of the system's OpenSSL"),
    "bootstrap_timeout_ms": without_use("a producer starts without a broker, and records wait in the arena"),
    "metric_reporters": refused("use metrics() or `shmaccum metrics`"),
    "metrics_enabled": without_use("metrics() costs nothing until it is called"),
    **dict.fromkeys(("metrics_num_samples", "metrics_sample_window_ms"), without_use("metrics() returns totals")),
    "selector": without_use(NO_CONNECTIONS),
    **dict.fromkeys(("proxy_url", "socks5_proxy"), refused("the sender connects to brokers directly")),
    "kafka_client": refused(NO_CONNECTIONS),
}
"""The options that only kafka-python has, or that its own classes implement."""

ROWS = rows_of(OWN, kafka.KafkaProducer.DEFAULT_CONFIG)
"""The options of kafka-python, each with its owner or with a reason."""


def translated(error: Ours) -> Ours:
    """Returns the error as one that is also an error of kafka-python."""
    return join_of_code(error, theirs.for_code, THEIRS)


def _translated_in_transactions(error: Ours) -> Ours:
    """Translates the error of a transaction call."""
    return join(error, nearest(error, THEIRS_IN_TRANSACTIONS))


def _translated_of_offsets(error: Ours) -> Ours:
    """Translates the error of offsets for a transaction."""
    return join(error, nearest(error, THEIRS_OF_OFFSETS))


@final
class _Tracker(DeliveryTracker):
    """Makes results in kafka-python's types."""

    def metadata_of(self, future: DeliveryFuture) -> Any:
        return RecordMetadata(*super().metadata_of(future))

    def translated_error(self, error: DeliveryError) -> DeliveryError:
        return translated(error)


@final
class _KafkaPythonProducer(kept_producer.Producer):
    __slots__ = ()

    _tracker_type = _Tracker


def _conflicts(given: Mapping[str, Any]) -> list[str]:
    """Returns the options that exclude idempotence, as they were given."""
    wrong = {
        "acks": acks(given.get("acks", "all")) != "all",
        "retries": given.get("retries", 1) == 0,
        "max_in_flight_requests_per_connection": given.get("max_in_flight_requests_per_connection", 1)
        > IN_FLIGHT_MAX_IDEMPOTENT,
    }
    return [f"{name}={given[name]!r}" for name, is_wrong in wrong.items() if is_wrong]


def _refuse_conflicts(given: Mapping[str, Any]) -> None:
    """Rejects options that exclude idempotence, if the program requests it, or requests transactions, which need it.

    Raises:
        InvalidArgumentError: there are such options.
    """
    conflicts = _conflicts(given)
    if conflicts and (given.get("enable_idempotence") or given.get("transactional_id")):
        raise InvalidArgumentError(
            f"enable_idempotence=True is incompatible with {', '.join(conflicts)}: omit those, or omit it"
        )


def _check_record(value: Any, key: Any, headers: Any) -> None:
    if value is None and key is None:
        raise ValueError("Need at least one: key or value")
    if headers is not None:
        if not isinstance(headers, list):
            raise TypeError("headers must be list-type")
        if not all(_is_header(item) for item in headers):
            raise TypeError("All headers items must be (str, bytes) tuples")


def _is_header(item: Any) -> bool:
    return isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str) and isinstance(item[1], bytes)


class KafkaProducer(ClosedOnExit):
    """Sends records through the arena for these settings, with kafka-python's API.

    ::

        producer = KafkaProducer(bootstrap_servers="kafka1:9092", acks="all", value_serializer=str.encode)
        producer.send("flights", "...", key=b"AA11").add_callback(print)

    All threads can use it, and so can a forked child. When `send` returns, the record outlives this process.

    Args:
        configs: kafka-python's options. `ROWS` describes the effect of each. An omitted option has shmaccum's default.
            Options of shmaccum begin with ``shmaccum_``, as in ``shmaccum_buffer_memory="256MiB"``.

    Raises:
        KafkaConfigurationError: an option is unknown, refused or invalid. It is also a ValueError.
        KafkaConnectionError: no sender could be started. The message has the reason.
    """

    DEFAULT_CONFIG: ClassVar[dict[str, Any]] = kafka.KafkaProducer.DEFAULT_CONFIG

    def __init__(self, **configs: Any) -> None:
        given = {name: value for name, value in configs.items() if name != "bootstrap_servers"}
        servers = configs.get("bootstrap_servers") or self.DEFAULT_CONFIG["bootstrap_servers"]
        with translating(translated):
            _refuse_conflicts(configs)
            settings = OwnerOptions.split(given, ROWS, servers)
            settings.complete()
            on_unusable = settings.fallback_function(lambda: kafka.KafkaProducer(**of_library(configs)))
            self._producer = _KafkaPythonProducer(**settings.make(), on_unusable=on_unusable)
        acks = configs.get("acks", -1)
        self.config = {
            **self.DEFAULT_CONFIG,
            **configs,
            "acks": -1 if acks == "all" else acks,
            "enable_idempotence": settings.sender.get("enable_idempotence", True),
        }
        self._send = self._producer.send
        self._is_initialized = False

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: list[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> DeliveryFuture:
        """Puts a record into the arena. A sender delivers it.

        Returns:
            A future with the methods of kafka-python's ``FutureRecordMetadata``, without ``retriable``.

        Raises:
            KafkaTimeoutError: no buffer became free, or the topic stayed unknown, for ``max_block_ms``.
            MessageSizeTooLargeError: the record is larger than ``max_request_size``.
            IllegalStateError: the producer is closed.
            TypeError, ValueError: the record is invalid, as for kafka-python.
        """
        if value is None or headers is not None:
            _check_record(value, key, headers)
        try:
            return self._send(topic, value, key, headers, partition, timestamp_ms)
        except ShmaccumError as error:
            raise translated(error) from None

    def flush(self, timeout: float | None = None) -> None:
        """Waits until every record that was sent so far is delivered or has failed.

        Args:
            timeout: seconds. The default is two minutes, after which kafka-python gives records up.

        Raises:
            KafkaTimeoutError: the other records stay in the arena and will be sent.
        """
        with translating(translated):
            self._producer.flush(FLUSH_TIMEOUT_S if timeout is None else timeout)

    def close(self, timeout: float | None = None, null_logger: bool = False) -> None:
        """Waits as `flush`, and rejects further records. Closing again does nothing.

        A record that is not delivered in time stays in the arena and will be sent, and a warning is logged.

        Args:
            timeout: seconds, two minutes by default.
            null_logger: ignored.
        """
        with translating(translated):
            self._producer.close(FLUSH_TIMEOUT_S if timeout is None else timeout)

    def partitions_for(self, topic: str) -> set[int]:
        """Returns the partitions of a topic. It waits for a sender to report them.

        Raises:
            KafkaTimeoutError: no sender reported them within ``max_block_ms``.
        """
        with translating(translated):
            return self._producer.partitions_for(topic)

    def metrics(self, raw: bool = False) -> dict[str, dict[str, float]] | None:
        """Returns the metrics of this process as group -> name -> value, or None with ``metrics_enabled=False``."""
        return self._producer.metrics() if self.config["metrics_enabled"] else None

    def bootstrap_connected(self) -> bool:
        """True while the arena has a sender, or is about to get one."""
        return self._producer.will_be_delivered()

    @classmethod
    def max_usable_produce_magic(cls, api_version: Iterable[int]) -> int:
        """The version of the record format, which is the same for every broker."""
        return MAGIC

    # --- transactions

    def init_transactions(self) -> None:
        """Takes the ``transactional_id`` back if another producer has it. Call it before the first transaction.

        Raises:
            ConcurrentTransactionsError: the last transaction is not over.
            IllegalStateError: the options have no ``transactional_id``.
        """
        with translating(_translated_in_transactions):
            self._producer.init_transactions()
        self._is_initialized = True

    def begin_transaction(self) -> None:
        """Begins a transaction of all processes with these settings. It waits until the previous one is over.

        Raises:
            IllegalStateError: `init_transactions` must be called first.
            ConcurrentTransactionsError: another process has begun one, or the last one did not end in ``max_block_ms``.
            ProducerFencedError: another producer has the ``transactional_id``; `init_transactions` takes it back.
        """
        with translating(_translated_in_transactions):
            self._initialized().begin_transaction()

    def commit_transaction(self) -> None:
        """Commits, and waits for the outcome.

        Raises:
            TransactionAbortableError: a record could not be delivered, or the transaction was open for too long: abort.
            ProducerFencedError: another producer has the ``transactional_id``: abort.
            KafkaTimeoutError: the outcome was not known within two minutes. Call this method again for it.
            IllegalStateError: this producer has begun no transaction.
        """
        with translating(_translated_in_transactions):
            self._initialized().commit_transaction()

    def abort_transaction(self) -> None:
        """Aborts, and discards the records of all processes.

        Raises:
            IllegalStateError: this producer has begun no transaction, or its commit has begun.
        """
        with translating(_translated_in_transactions), aborting():
            self._initialized().abort_transaction()

    def send_offsets_to_transaction(self, offsets: Any, group_metadata: Any) -> None:
        """Commits offsets of a consumer group with the transaction.

        When this method returns, they are in the arena. If the group does not accept them, `commit_transaction` raises.

        Args:
            offsets: the next offset of each TopicPartition, as OffsetAndMetadata.
            group_metadata: the metadata of a KafkaConsumer, or a group id.

        Raises:
            IllegalStateError: no transaction is open, or `init_transactions` must be called first.
            IllegalArgumentError: an offset or the group is invalid.
            KafkaTimeoutError: no buffer became free for ``max_block_ms``.
            ProducerFencedError: another producer has the ``transactional_id``.
        """
        with translating(_translated_in_transactions):
            producer = self._initialized()
        with translating(_translated_of_offsets):
            producer.send_offsets_to_transaction(offsets, group_metadata)

    def _initialized(self) -> _KafkaPythonProducer:
        self._producer.check_has_transactions()
        if not self._is_initialized:
            raise NoTransactionError("call init_transactions() before the first transaction")
        return self._producer

    @property
    def _closed(self) -> bool:
        return self._producer.closed

    def __str__(self) -> str:
        return f"<KafkaProducer client_id={self.config['client_id']} arena={self._producer.arena.name}>"
