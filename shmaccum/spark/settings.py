# SPDX-License-Identifier: Apache-2.0
"""The options of ``.option(...)``, checked once on the driver, then sent to every task.

Spark ignores the case of names, and its users write ``bufferMemory``: here case, dots and underscores are ignored. As
in Spark's Kafka connector, options of Kafka's producer may have the prefix ``kafka.``. Each option is passed to its
owner: the arena, the producer, the sender or the sink.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from shmaccum.config import (
    ArenaOptions,
    Options,
    ProducerOptions,
    SenderOptions,
    SparkSinkOptions,
    SparkSourceOptions,
    folded,
    is_literal_secret,
    parse_together,
)
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.files import TransactionId
from shmaccum.sender.sinks import sink_options_type, sink_type, split_url

CHECKPOINT = "checkpointlocation"
OF_SPARK = {CHECKPOINT, "queryname"}
"""Options that Spark itself adds."""
OF_A_TABLE = {"provider", "location", "owner", "comment", "external", "is_managed_location", "collation"}
"""Properties that Spark adds to the options of a catalog table (TableCatalog.PROP_...)."""
TABLE_OPTION_PREFIX = "option."
"""Spark adds each option of such a table a second time with this prefix."""
KAFKA_PREFIX = "kafka."
BOOTSTRAP_SERVERS = "kafka.bootstrap.servers"
CAST_COLUMNS = "keys and values are the bytes of the columns: cast or encode the columns"
TRANSACTIONS = "to commit in transactions, set .option('deliveryGuarantee', 'exactly_once')"
REFUSED: Mapping[str, str] = {
    "keyserializer": CAST_COLUMNS,
    "valueserializer": CAST_COLUMNS,
    "keydeserializer": "a sink reads nothing",
    "valuedeserializer": "a sink reads nothing",
    "interceptors": "rows are appended in bulk, without record objects for an interceptor",
    "interceptorclasses": "rows are appended in bulk, without record objects for an interceptor",
    "groupid": "a sink has no consumer group",
    "autooffsetreset": "a sink reads nothing",
    "enableautocommit": "a sink reads nothing",
    "path": "set the sink with .option('sink', 'log:DIR') or .option('sink', 'kafka:HOST:PORT')",
    "includeheaders": "a column headers is always used",
    "transactionalid": TRANSACTIONS,
    "transactiontimeoutms": f"{TRANSACTIONS}, and the time-out with commitTimeoutMs",
}
AT_EACH_TRIGGER = "each trigger reads all available records: set the trigger's interval, or maxOffsetsPerTrigger"
NO_CONSUMER = "the source reads files without a Kafka consumer: omit it"
REFUSED_BY_THE_SOURCE: Mapping[str, str] = {
    "kafkabootstrapservers": "the source reads logs and arenas: to read from brokers, use Spark's format('kafka')",
    "minoffsetspertrigger": AT_EACH_TRIGGER,
    "maxtriggerdelay": AT_EACH_TRIGGER,
    "maxrecordsperpartition": "use minPartitions instead",
    "groupidprefix": NO_CONSUMER,
    "kafkaconsumerpolltimeoutms": NO_CONSUMER,
    "fetchoffsetnumretries": NO_CONSUMER,
    "fetchoffsetretryintervalms": NO_CONSUMER,
}
"""Options of Spark's Kafka source. All others with the prefix ``kafka.`` are for a consumer."""
IDLE_EXIT_DEFAULT = "60s"
EXACTLY_ONCE = "exactly_once"
STAGING_SUFFIX = "-staging"
"""By default, tasks stage for Kafka in a folder next to the checkpoint of their query."""
STAGING_MEMORY_DEFAULT = "8MiB"
"""The size of the arena of each task."""
STAGING_WAITER_COUNT = 8
"""Only one thread of the task waits for buffers, and each waiter costs the creation of a semaphore."""
USE_ABSOLUTE_PATH = "and each task has its own working directory: use an absolute path"

OptionsType = TypeVar("OptionsType", bound=Options)


def spelled(given: Mapping[str, Any], tables: Iterable[type[Options]]) -> dict[str, Any]:
    """Return the options under the names of the tables. An unknown name is not changed, for the error message."""
    known = {folded(spelling): name for table in tables for spelling, name in table.spellings().items()}
    return {known.get(folded(name), name): value for name, value in given.items()}


# --- the sink


@dataclass(frozen=True)
class SinkSettings:
    """The settings that a task needs to write. Plain data, because Spark pickles them.

    Attributes:
        arena: name or path.
        topic: the topic of all rows. If None, a column names it.
        sink: the sink of a sender that a task starts. If None, no task starts a sender.
        arena_options, producer_options, sender_options, sink_options: the user's options, by our names.
        is_exactly_once: whether tasks stage records, each with its own arena.
        transaction: the transaction of a batch. None for a new one.
        staging_path: the directory in which tasks stage for Kafka.
        commit_timeout_ms: the time after which the broker aborts the transaction.
    """

    arena: str
    topic: str | None = None
    sink: str | None = None
    arena_options: Mapping[str, Any] = field(default_factory=dict)
    producer_options: Mapping[str, Any] = field(default_factory=dict)
    sender_options: Mapping[str, Any] = field(default_factory=dict)
    sink_options: Mapping[str, Any] = field(default_factory=dict)
    is_exactly_once: bool = False
    transaction: TransactionId | None = None
    staging_path: str | None = None
    commit_timeout_ms: int = 0

    @property
    def max_block_ms(self) -> int:
        """The time that a task waits for a buffer or a sender, in milliseconds."""
        return ProducerOptions.parse(self.producer_options).max_block_ms

    @property
    def directory(self) -> str:
        """The log directory of a sink ``log:``, or the staging directory of a sink to Kafka."""
        return self.staging_path or split_url(self.sink or "")[1]

    @property
    def is_for_kafka(self) -> bool:
        """True if the sink is a Kafka cluster."""
        return split_url(self.sink or "")[0] == "kafka"


def sink_settings(given: Mapping[str, Any]) -> SinkSettings:
    """Return the settings of a write.

    Args:
        given: the options from Spark, with case-insensitive names.

    Raises:
        InvalidArgumentError: an option is missing, unknown, out of bounds, in conflict with another, or not applicable.
    """
    options = _without_prefix(_of_user(given))
    own, rest = _parsed(SparkSinkOptions, options)
    if own.delivery_guarantee == EXACTLY_ONCE:
        # The checkpoint of the query, from its options.
        found = (value for name, value in given.items() if name.lower() == CHECKPOINT)
        checkpoint = next((str(value) for value in found), None)
        return _exactly_once(own, rest, checkpoint)
    if own.arena is None:
        raise InvalidArgumentError(
            "no arena is set: set .option('arena', NAME), or in SQL INSERT INTO table WITH ('arena' = 'NAME', ...); "
            "each node creates it if necessary"
        )
    if "/" in own.arena.lstrip("/") and not os.path.isabs(own.arena):
        raise InvalidArgumentError(f"the arena {own.arena} is a relative path, {USE_ABSOLUTE_PATH}")
    if own.sender == "external":
        return _external(own, rest)
    if own.sink is None:
        raise InvalidArgumentError(
            "no sink is set: set .option('sink', 'kafka:HOST:PORT') or .option('sink', 'log:DIR'), or "
            ".option('sender', 'external') if another program runs the sender"
        )
    return _settings_with_sink(own, rest, _checked_sink(own.sink))


def _of_user(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's options of a read or write, without options that Spark adds."""
    is_table = any(name.lower() == "provider" for name in given)
    return {name: value for name, value in given.items() if not _is_of_spark(name.lower(), is_table=is_table)}


def _is_of_spark(name: str, *, is_table: bool) -> bool:
    return name in OF_SPARK or (is_table and (name in OF_A_TABLE or name.startswith(TABLE_OPTION_PREFIX)))


def _without_prefix(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a write without the prefix of Spark's Kafka connector."""
    options: dict[str, Any] = {}
    for name, value in given.items():
        lowered = name.lower()
        if lowered == BOOTSTRAP_SERVERS:
            name, value = "sink", f"kafka:{value}"
        elif lowered.startswith(KAFKA_PREFIX):
            name = name[len(KAFKA_PREFIX) :]
        if (reason := REFUSED.get(folded(name))) is not None:
            raise InvalidArgumentError(f"{name} cannot be given to the Spark sink: {reason}")
        if name in options:
            raise InvalidArgumentError(f"{given_twice(name)}: give one of them")
        options[name] = value
    return options


def given_twice(name: str) -> str:
    """Return the error message for two sinks, or for an option with and without the prefix."""
    return f"{name} and {BOOTSTRAP_SERVERS if name == 'sink' else KAFKA_PREFIX + name} set the same option"


def _parsed(table: type[OptionsType], given: Mapping[str, Any]) -> tuple[OptionsType, dict[str, Any]]:
    """Return the options of one table, parsed, and the other options."""
    known = {folded(spelling) for spelling in table.spellings()}
    own = {name: value for name, value in given.items() if folded(name) in known}
    rest = {name: value for name, value in given.items() if name not in own}
    return table.parse(spelled(own, [table])), rest


def _checked_sink(sink: str) -> str:
    """Return the sink if every task interprets its name in the same way.

    Raises:
        InvalidArgumentError: the path is relative, or the kind of sink is unknown.
    """
    kind, place = split_url(sink)
    sink_type(kind)
    if kind == "log" and not os.path.isabs(place):
        raise InvalidArgumentError(f"{sink} is a relative path, {USE_ABSOLUTE_PATH}")
    return sink


def _external(own: SparkSinkOptions, rest: Mapping[str, Any]) -> SinkSettings:
    if own.sink is not None:
        raise InvalidArgumentError(
            "sender=external and a sink contradict each other: omit one of them; with sender=external, the sink is "
            "set in the sender that you run"
        )
    arena, producer = _split(rest, (ArenaOptions, ProducerOptions))
    return SinkSettings(own.arena or "", own.topic, None, arena, producer)


def _settings_with_sink(own: SparkSinkOptions, rest: Mapping[str, Any], sink: str) -> SinkSettings:
    of_sink_type = sink_options_type(split_url(sink)[0])
    of_sink = () if of_sink_type is None else (of_sink_type,)
    arena, producer, sender, *others = _split(rest, (ArenaOptions, ProducerOptions, SenderOptions, *of_sink))
    sender.setdefault("idle_exit_ms", IDLE_EXIT_DEFAULT)
    of_the_sink = others[0] if others else {}
    for name in of_the_sink:
        if is_literal_secret(name, of_the_sink[name]):
            raise InvalidArgumentError(
                f"{name} would be sent to every executor and stored there: give it as env:NAME or file:PATH, which "
                "each executor reads"
            )
    return SinkSettings(own.arena or "", own.topic, sink, arena, producer, sender, of_the_sink)


def _exactly_once(own: SparkSinkOptions, rest: Mapping[str, Any], checkpoint: str | None) -> SinkSettings:
    if own.arena is not None or own.sender == "external":
        raise InvalidArgumentError(
            "deliveryGuarantee=exactly_once uses no shared arena and no node sender, because batches of a shared arena "
            "may have records of several attempts. Each task stages through its own arena (bufferMemory is its size): "
            "omit arena and sender"
        )
    kind = None if own.sink is None else split_url(own.sink)[0]
    if own.sink is None or kind not in {"log", "kafka"}:
        raise InvalidArgumentError(
            f"deliveryGuarantee=exactly_once needs .option('sink', 'log:DIR') or .option('sink', 'kafka:HOST:PORT'), "
            f"but the sink is {own.sink}"
        )
    if "{" in own.sink:
        raise InvalidArgumentError(
            f"{own.sink}: with exactly_once, all nodes must share one directory: remove the placeholder"
        )
    settings = _settings_with_sink(own, rest, _checked_sink(own.sink))
    if "idle_exit_ms" in spelled(rest, [SenderOptions]):
        raise InvalidArgumentError(
            "idle_exit_ms has no effect with exactly_once, where a sender ends with its task: omit it"
        )
    sender = {name: value for name, value in settings.sender_options.items() if name != "idle_exit_ms"}
    small = {"buffer_memory": STAGING_MEMORY_DEFAULT, "waiter_count": STAGING_WAITER_COUNT}
    return replace(
        settings,
        arena_options={**small, **settings.arena_options},
        sender_options=sender,
        is_exactly_once=True,
        transaction=_transaction(own),
        staging_path=_staging_path(own, checkpoint, is_for_kafka=kind == "kafka"),
        commit_timeout_ms=own.commit_timeout_ms,
    )


def _staging_path(own: SparkSinkOptions, checkpoint: str | None, *, is_for_kafka: bool) -> str | None:
    """Return the directory in which tasks stage for Kafka."""
    if not is_for_kafka:
        if own.staging_path is not None:
            raise InvalidArgumentError(
                "stagingPath is only for kafka:HOST:PORT, because records for a log are staged in the log: omit it"
            )
        return None
    path = own.staging_path
    if path is None and checkpoint is not None:
        path = re.sub(r"^file:(//)?", "", checkpoint).rstrip("/") + STAGING_SUFFIX
    if path is None or (own.staging_path is None and not os.path.isabs(path)):
        raise InvalidArgumentError(
            "deliveryGuarantee=exactly_once to Kafka stages in files: set .option('stagingPath', DIR), a directory "
            "that the driver and all executors share"
        )
    if not os.path.isabs(path):
        raise InvalidArgumentError(f"stagingPath {path} is relative, {USE_ABSOLUTE_PATH}")
    return path


def _transaction(own: SparkSinkOptions) -> TransactionId | None:
    if own.transaction_series is None:
        return None
    transaction = TransactionId(own.transaction_series, own.transaction_number)
    transaction.check()
    return transaction


def _split(given: Mapping[str, Any], tables: tuple[type[Options], ...]) -> list[dict[str, Any]]:
    """Check the options, and split them by table. An option of several tables is passed to all of them."""
    options = spelled(given, tables)
    parse_together(options, *tables)
    return [{name: value for name, value in options.items() if name in table.table()} for table in tables]


# --- the source


def source_options(given: Mapping[str, Any]) -> SparkSourceOptions:
    """Return the settings of a read.

    Raises:
        InvalidArgumentError: an option is unknown, out of bounds, in conflict with another, or not applicable; not
            exactly one of ``path`` and ``arena`` is set; or, for a log, not exactly one of ``assign``, ``subscribe``
            and ``subscribePattern``.
    """
    kept = _of_user(given)
    for name in kept:
        otherwise = NO_CONSUMER if name.lower().startswith(KAFKA_PREFIX) else None
        if (reason := REFUSED_BY_THE_SOURCE.get(folded(name), otherwise)) is not None:
            raise InvalidArgumentError(f"{name} cannot be given to the Spark source: {reason}")
    options = SparkSourceOptions.parse(spelled(kept, [SparkSourceOptions]))
    if options.path is None and options.arena is None:
        raise InvalidArgumentError(
            "no source is set: set .option('path', DIR) or .load(DIR) for a log directory, or "
            ".option('arena', NAME) to inspect an arena; in SQL, SELECT ... FROM table WITH ('path' = 'DIR', ...)"
        )
    if options.path is not None and options.arena is not None:
        raise InvalidArgumentError("path and arena are both set: set path to read a log, or arena to inspect an arena")
    if options.include_batches and options.arena is None:
        raise InvalidArgumentError("includeBatches applies only to arenas: omit it")
    chosen = [name for name in ("assign", "subscribe", "subscribe_pattern") if asdict(options)[name] is not None]
    if len(chosen) != 1 and not (options.arena is not None and not chosen):
        raise InvalidArgumentError(
            "set exactly one of assign, subscribe and subscribePattern: found " + (" and ".join(chosen) or "none")
        )
    return options
