# SPDX-License-Identifier: Apache-2.0
"""One task's part of an exactly-once write: a separate log, written through a separate arena and sender.

The node's arena cannot be used: its batches are shared, so a batch could have records of winning and losing attempts. A
shared arena saves requests and connections, which a staged log does not need. So the attempt has a small arena, a file
in its staging folder, and a thread that sends from it to the log next to it. All of them are deleted with the folder.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, final

from shmaccum.arena import Arena
from shmaccum.config import ArenaOptions, LogSinkOptions
from shmaccum.exceptions import ArenaError, RecordTooLargeError, SenderNotStartedError
from shmaccum.log.files import StagedAttempt, TransactionId, Winner
from shmaccum.log.files.partition_folders import partitions_of
from shmaccum.log.files.transaction_files import TransactionFiles
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from shmaccum.sender.sinks import split_url
from shmaccum.sender.sinks.log import LogSink, followed
from shmaccum.spark.settings import SinkSettings
from shmaccum.spark.task_writer import RowAppender

ARENA_FILE = "arena"
STAGED_BATCH_SIZE_MAX = 128 << 10
"""The default size of a staged batch. Brokers accept 1 MiB (message.max.bytes)."""
BATCHES_PER_PARTITION = 4
"""An arena that cannot hold this many batches of each partition gets smaller batches."""
OF_THE_STAGED_LOG = ("partitions", "segment_bytes", "index_interval_bytes")
"""The options of the directory that also apply to a staged log. A staged log is neither retained nor synced."""


class StagedSink(LogSink):
    """A log whose topics have the same number of partitions as in the target directory.

    Args:
        place: the directory of the staged log.
        directory: the log directory to which its records will be applied.
        options: those of `LogSinkOptions`.
    """

    def __init__(self, place: str, directory: str, **options: Any) -> None:
        super().__init__(place, **options)
        self._target = directory

    def wanted_count(self, topic: str) -> int | None:
        """Returns the partition count of the topic in the directory, or the option `partitions` for a new topic."""
        return self._known_count(topic) or super().wanted_count(topic)

    def count_before_open(self, topic: str) -> int:
        """Returns the same count before the log is open."""
        return self._known_count(topic) or self._options.partitions

    def _known_count(self, topic: str) -> int:
        return max((place.partition + 1 for place in partitions_of(self._target) if place.topic == topic), default=0)


class StagedForKafka(LogSink):
    """A log whose topics have the same number of partitions as in a Kafka cluster.

    Args:
        place: the directory of the staged log.
        partition_count: returns the number of partitions of a topic; may block.
    """

    def __init__(self, place: str, partition_count: Callable[[str], int]) -> None:
        super().__init__(place)
        self._partition_count = functools.cache(partition_count)

    def wanted_count(self, topic: str) -> int | None:
        """Returns the partition count of the topic in the cluster."""
        return self._partition_count(topic)

    def count_before_open(self, topic: str) -> int:
        """Returns the same count before the log is open."""
        return self._partition_count(topic)


@final
class SenderThread:
    """A sender in a thread, as a context manager. At exit, the sender stops without waiting for deliveries.

    Raises:
        ShmaccumError, OSError: `__enter__`: the sink cannot be opened.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="shmaccum-staging", daemon=True)

    def __enter__(self) -> SenderThread:
        self._sender.open()
        try:
            self._thread.start()
        except RuntimeError:
            self._sender.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.stop(0)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._sender.run()
        except BaseException as error:  # noqa: BLE001 - check() raises it in the waiting task
            self._failure = error

    def check(self) -> None:
        """Checks that the sender is running. Called repeatedly by a waiting task.

        Raises:
            SenderNotStartedError: the sender has ended.
        """
        if not self._thread.is_alive():
            raise SenderNotStartedError(f"the sender of this task has ended: {self._failure}") from self._failure


def stage(
    settings: SinkSettings, columns: Iterable[str], transaction: TransactionId, prefix: str, batches: Iterable[Any]
) -> Winner | None:
    """Stage the rows of Arrow record batches, or return None if there are none.

    Raises:
        TransactionOverError: the transaction is over and accepts no more records.
        DeliveryError, ShmaccumError, OSError: the rows cannot be staged; nothing of them is left.
    """
    rest = (batch for batch in batches if batch.num_rows)
    first = next(rest, None)
    if first is None:
        return None
    with StagedAttempt(settings.directory, transaction, prefix, is_for_kafka=settings.is_for_kafka) as attempt:
        with _appender(settings, columns, attempt) as appender:
            for batch in itertools.chain([first], rest):
                _append(appender, batch)
            record_count = appender.finish().record_count
        attempt.keep(is_synced=settings.is_for_kafka or sink_options(settings).sync != "none")
    return Winner(attempt.name, record_count)


def _append(appender: RowAppender, batch: Any) -> None:
    """Append a record batch. If a record is too large, name the write's options, which size the task's arena."""
    try:
        appender.append(batch)
    except RecordTooLargeError as error:
        facts = str(error).partition("; send a smaller one")[0]
        raise RecordTooLargeError(
            f"{facts}; send a smaller one, or raise the limits of the write: .option('maxRequestSize', '8MiB'), "
            ".option('bufferMemory', '32MiB')"
        ) from error


@contextlib.contextmanager
def _appender(settings: SinkSettings, columns: Iterable[str], attempt: StagedAttempt) -> Iterator[RowAppender]:
    """Open an appender to the staged log. At the end of the block, the log is closed and the arena removed."""
    path = os.path.join(attempt.path, ARENA_FILE)
    with contextlib.ExitStack() as exits:
        sink = exits.enter_context(_staged_sink(settings, attempt))
        options = _arena_options(settings, sink)
        arena = exits.enter_context(
            Arena.create(path, **{option: getattr(options, option) for option in ArenaOptions.table()})
        )
        exits.callback(Arena.remove, path, missing_ok=True)
        producer = Producer(arena, is_supervised=True, **settings.producer_options)
        exits.callback(producer.close, 0)  # undelivered records are no longer needed
        sender = exits.enter_context(SenderThread(Sender(arena, sink, **settings.sender_options)))

        def check() -> None:
            attempt.check()  # first, because a deleted staging also ends the sender
            sender.check()

        yield RowAppender(producer, settings.topic, columns, check)


def _arena_options(settings: SinkSettings, sink: StagedSink | StagedForKafka) -> ArenaOptions:
    """Return the options of the attempt's arena, with a batch size that depends on the number of partitions.

    No reader waits for staged records, so batches are large: each batch costs brokers and commits work.
    """
    options = ArenaOptions.parse(settings.arena_options)
    if "batch_size" in settings.arena_options or settings.topic is None:
        return options
    return replace(options, batch_size=staged_batch_size(options, sink.count_before_open(settings.topic)))


def staged_batch_size(options: ArenaOptions, partition_count: int) -> int:
    """Return a large size for staged batches with which each partition can have `BATCHES_PER_PARTITION` in the arena.

    Args:
        options: those of the arena, whose batch size is the minimum.
        partition_count: the number of partitions of the topic.
    """
    size_max = min(options.buffer_memory // (BATCHES_PER_PARTITION * partition_count), options.max_request_size)
    size = STAGED_BATCH_SIZE_MAX
    while size > max(size_max, options.batch_size):
        size //= 2
    return max(size, options.batch_size)


@contextlib.contextmanager
def _staged_sink(settings: SinkSettings, attempt: StagedAttempt) -> Iterator[StagedSink | StagedForKafka]:
    """Open the sink of the staged log. For Kafka, it has a connection for looking up partition counts."""
    if not settings.is_for_kafka:
        sink_options = {name: value for name, value in settings.sink_options.items() if name in OF_THE_STAGED_LOG}
        yield StagedSink(attempt.log, settings.directory, **sink_options)
        return
    from shmaccum.spark.kafka_session import KafkaSession  # imports kafka-python

    place = split_url(settings.sink or "")[1]
    timeout_s = settings.max_block_ms / 1000
    with KafkaSession(place, attempt.name, settings.sink_options, settings.sender_options) as session:
        yield StagedForKafka(attempt.log, lambda topic: session.partition_count(topic, timeout_s))


def remove_arenas(directory: str, transaction: TransactionId) -> None:
    """Remove the arenas of killed attempts. Deleting their folders would not remove their semaphores."""
    for folder in TransactionFiles(directory).staged():
        if folder.transaction.series == transaction.series:
            with contextlib.suppress(ArenaError, OSError):
                Arena.remove(os.path.join(folder.path, ARENA_FILE), missing_ok=True)


def sink_options(settings: SinkSettings) -> LogSinkOptions:
    """Return the options for writing the directory. An unset sync level is derived from the arena's options.

    Raises:
        InvalidArgumentError: the level is lower than that of the arena.
    """
    options = LogSinkOptions.parse(settings.sink_options)
    arena = ArenaOptions.parse(settings.arena_options)
    levels = _ArenaLevels("the arena", arena.durability, arena.sync_interval_ms)
    return followed(options, levels, settings.directory, has_level="sync" in settings.sink_options)


class _ArenaLevels(NamedTuple):
    """The durability levels in the options of an arena."""

    arena_name: str
    durability: str
    sync_interval_ms: int | None
