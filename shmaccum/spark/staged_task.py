# SPDX-License-Identifier: Apache-2.0
"""One task's part of a write that is to be seen once: a log of its own, through an arena and a sender of its own.

The node's arena does not fit. Its batches are shared, so one batch would have records of attempts that win and of
attempts that lose. Its gain, fewer requests and connections, does not exist on the way to a staged log. So the attempt
has a small arena, a file in its staging folder, and a thread that sends from there to the log beside it. All of it goes
with the folder.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, final

from shmaccum.arena import Arena
from shmaccum.config import ArenaOptions, LogSinkOptions
from shmaccum.exceptions import ArenaError, SenderNotStartedError
from shmaccum.producer import Producer
from shmaccum.segment_log import StagedAttempt, TransactionId, Winner
from shmaccum.segment_log.file_names import partitions_of
from shmaccum.segment_log.transaction_files import TransactionFiles
from shmaccum.sender import Sender
from shmaccum.sinks import split_url
from shmaccum.sinks.log import LogSink
from shmaccum.spark.settings import SinkSettings
from shmaccum.spark.task_writer import RowAppender

ARENA_FILE = "arena"
OF_THE_STAGED_LOG = ("partitions", "segment_bytes", "index_interval_bytes")
"""The options of the directory that hold for a staged log, too. A staged log is neither retained nor synced."""


class StagedSink(LogSink):
    """A log whose topics have as many partitions as they have in the directory they are staged for.

    Args:
        place: of the staged log.
        directory: the log directory that its records will go to.
        options: of `LogSinkOptions`.
    """

    def __init__(self, place: str, directory: str, **options: Any) -> None:
        super().__init__(place, **options)
        self._target = directory

    def wanted_count(self, topic: str) -> int | None:
        """The number of partitions of the topic in the directory; for a new topic that of the option `partitions`."""
        known = [place.partition + 1 for place in partitions_of(self._target) if place.topic == topic]
        return max(known) if known else super().wanted_count(topic)


class StagedForKafka(LogSink):
    """A log whose topics have as many partitions as they have in a cluster of Kafka.

    Args:
        place: of the staged log.
        partition_count: tells the number of partitions of a topic, and waits for it.
    """

    def __init__(self, place: str, partition_count: Callable[[str], int]) -> None:
        super().__init__(place)
        self._partition_count = functools.cache(partition_count)

    def wanted_count(self, topic: str) -> int | None:
        """The number of partitions of the topic in the cluster."""
        return self._partition_count(topic)


@final
class SenderThread:
    """A sender in a thread, for as long as a task: a context manager, at whose end the sender stops without waiting.

    Raises:
        ShmaccumError, OSError: `__enter__`: the sink cannot be opened.
    """

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="shmaccum-staging", daemon=True)

    def __enter__(self) -> SenderThread:
        self._sender.open()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.stop(0)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._sender.run()
        except BaseException as error:  # noqa: BLE001 - check() raises it to the task that waits
            self._failure = error

    def check(self) -> None:
        """Checks that the sender runs; a task that waits calls it again and again.

        Raises:
            SenderNotStartedError: the sender has ended.
        """
        if not self._thread.is_alive():
            raise SenderNotStartedError(f"the sender of this task has ended: {self._failure}") from self._failure


def stage(
    settings: SinkSettings, columns: Iterable[str], transaction: TransactionId, prefix: str, batches: Iterable[Any]
) -> Winner | None:
    """Stages the rows of Arrow record batches; None when there are none.

    Raises:
        TransactionOverError: the transaction is over and takes no more records.
        DeliveryError, ShmaccumError, OSError: the rows cannot be staged; nothing is left of them.
    """
    rest = (batch for batch in batches if batch.num_rows)
    first = next(rest, None)
    if first is None:
        return None
    with StagedAttempt(settings.directory, transaction, prefix, is_for_kafka=settings.is_for_kafka) as attempt:
        with _appender(settings, columns, attempt) as appender:
            for batch in _chained(first, rest):
                attempt.check()
                appender.append(batch)
            record_count = appender.finish().record_count
        attempt.keep(is_synced=settings.sink_options.get("sync", "none") != "none")
    return Winner(attempt.name, record_count)


def _chained(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


@contextlib.contextmanager
def _appender(settings: SinkSettings, columns: Iterable[str], attempt: StagedAttempt) -> Iterator[RowAppender]:
    """The appender to the staged log; when the body ends, the log is closed and the arena gone."""
    options = ArenaOptions.parse(settings.arena_options)
    path = os.path.join(attempt.path, ARENA_FILE)
    with contextlib.ExitStack() as exits:
        arena = exits.enter_context(
            Arena.create(path, **{option: getattr(options, option) for option in ArenaOptions.table()})
        )
        exits.callback(Arena.remove, path, missing_ok=True)
        sink = exits.enter_context(_staged_sink(settings, attempt))
        producer = Producer(arena, **settings.producer_options)
        exits.callback(producer.close, 0)  # records that are not delivered by then never will be
        sender = exits.enter_context(SenderThread(Sender(arena, sink, **settings.sender_options)))
        yield RowAppender(producer, settings.topic, columns, sender.check)


@contextlib.contextmanager
def _staged_sink(settings: SinkSettings, attempt: StagedAttempt) -> Iterator[LogSink]:
    """The sink of the staged log; for Kafka with a connection that asks for the partitions of topics."""
    if not settings.is_for_kafka:
        sink_options = {name: value for name, value in settings.sink_options.items() if name in OF_THE_STAGED_LOG}
        yield StagedSink(attempt.log, settings.directory, **sink_options)
        return
    from shmaccum.spark.kafka_session import KafkaSession  # with kafka-python

    place = split_url(settings.sink or "")[1]
    timeout_s = settings.max_block_ms / 1000
    with KafkaSession(place, attempt.name, settings.sink_options, settings.sender_options) as session:
        yield StagedForKafka(attempt.log, lambda topic: session.partition_count(topic, timeout_s))


def remove_arenas(directory: str, transaction: TransactionId) -> None:
    """Takes the arenas away that killed attempts left: their semaphores are not in the folder that will be deleted."""
    for folder in TransactionFiles(directory).staged():
        if folder.transaction.series == transaction.series:
            with contextlib.suppress(ArenaError, OSError):
                Arena.remove(os.path.join(folder.path, ARENA_FILE), missing_ok=True)


def sink_options(settings: SinkSettings) -> LogSinkOptions:
    """The options by which the directory is written."""
    return LogSinkOptions.parse(settings.sink_options)
