# SPDX-License-Identifier: Apache-2.0
"""The pipeline of a producer: serializers, interceptors and a partitioner, applied to each record before its append.

::

    prepare   on_send of each interceptor → key and value serialized → partition chosen
    append    native
    conclude  on_acknowledgement of each interceptor, when the result is known

An interceptor is an object with any of ``on_send(record)``, which returns the record or a replacement,
``on_acknowledgement(metadata, exception)``, where one of the two is None, and ``close()`` (KIP-42). An exception of an
interceptor is logged, and the record is sent unchanged. `Producer.send` raises the exceptions of serializers and
partitioners, and the arena is unchanged.

An interceptor may also have ``begin_call()`` and ``end_call(futures, error)``. They are called in the same context at
the beginning and the end of each call of `send` or `send_many`. In between, ``on_send`` is called for each record.
``futures`` maps the number of each appended record in the call to its future.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from shmaccum._native import DeliveryFuture
from shmaccum.common.units import format_count
from shmaccum.config import ProducerOptions
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.producer import partitioners, serializers
from shmaccum.producer.delivery import RecordMetadata

logger = logging.getLogger(__name__)

default_interceptors: list[Any] = []
"""Interceptors of all producers that are created from now on. `Producer.append_arrow` does not call them."""


class ProducerRecord(NamedTuple):
    """A record as an interceptor gets it, before serialization. `_replace` makes a changed record."""

    topic: str
    value: Any = None
    key: Any = None
    headers: serializers.Headers | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


class TopicRecords(NamedTuple):
    """Many records for one topic, by column: None, or as long as `values`. `partition` may be one number for all."""

    values: Iterable[Any]
    keys: Iterable[Any] | None = None
    headers: Iterable[serializers.Headers | None] | None = None
    timestamps_ms: Iterable[int | None] | None = None
    partition: int | Iterable[int | None] | None = None

    def records(self, topic: str) -> Iterator[ProducerRecord]:
        """Iterates over the records.

        Raises:
            ValueError: a column is not as long as the values.
        """
        values, keys, headers, timestamps_ms, partition = self.listed()
        columns = (topic, values, keys, headers, partition, timestamps_ms)
        cells = (column if isinstance(column, list) else itertools.repeat(column) for column in columns)
        return map(ProducerRecord, *cells)

    def listed(self) -> TopicRecords:
        """Returns the same records in lists, which can be read more than once.

        Raises:
            ValueError: a column is not as long as the values.
        """
        values = list(self.values)
        columns = zip(self._fields[1:], self[1:], strict=True)
        return TopicRecords(values, *(_listed(name, column, len(values)) for name, column in columns))

    def pick(self, rows: Sequence[int]) -> TopicRecords:
        """Returns the given rows. The columns must be listed."""
        return TopicRecords(*(_picked(column, rows) for column in self))


def _listed(name: str, column: Any, count: int) -> Any:
    """Returns a column as a list. None, and one partition for all records, are returned unchanged."""
    if column is None or isinstance(column, int):
        return column
    cells = list(column)
    if len(cells) != count:
        raise ValueError(f"{name} has {format_count(len(cells), 'item')} for {format_count(count, 'value')}")
    return cells


def _picked(column: Any, rows: Sequence[int]) -> Any:
    if not isinstance(column, list):
        return column
    return column[rows.start : rows.stop] if isinstance(rows, range) else [column[row] for row in rows]


class PartitionChoices(Protocol):
    """The producer, as a user-defined partitioner needs it."""

    def partitions_to_choose_from(self, topic: str) -> tuple[Sequence[int], Sequence[int]]:
        """Returns all partitions of a topic, and the partitions that can currently be delivered to."""


class Pipeline:
    """The pipeline of one producer."""

    def __init__(self, options: ProducerOptions) -> None:
        self._serialize_key = serializers.resolve(options.key_serializer)
        self._serialize_value = serializers.resolve(options.value_serializer)
        self._choose = partitioners.resolve(options.partitioner)
        self._sees_records = bool(options.interceptors) or self._choose is not None
        self._interceptors = (*options.interceptors, *default_interceptors)
        self._begin_call = _methods(self._interceptors, "begin_call")
        self._end_call = _methods(self._interceptors, "end_call")
        self._on_send = _methods(self._interceptors, "on_send")
        self._on_acknowledgement = _methods(self._interceptors, "on_acknowledgement")
        self._closeables = [
            one
            for one in (*self._interceptors, options.key_serializer, options.value_serializer, options.partitioner)
            if callable(getattr(one, "close", None))
        ]

    @classmethod
    def of(cls, options: ProducerOptions) -> Pipeline | None:
        """Returns the pipeline for these options, or None if they need none.

        Raises:
            InvalidArgumentError: a serializer or partitioner is invalid.
        """
        pipeline = cls(options)
        parts = (pipeline._serialize_key, pipeline._serialize_value, pipeline._choose)
        return pipeline if pipeline._interceptors or any(part is not None for part in parts) else None

    def prepare(
        self,
        topics: PartitionChoices,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: serializers.Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> tuple[Any, ...]:
        """Returns the arguments of `Producer.send` as they are appended."""
        self._begin()
        record = self._intercepted(ProducerRecord(topic, value, key, headers, partition, timestamp_ms))
        try:
            return self._serialized(topics, record)
        except BaseException as error:  # interceptors get every error
            self.conclude(None, error)
            raise

    def conclude(self, future: DeliveryFuture | None, error: BaseException | None) -> None:
        """Passes the result of an appended record, or the error of its append, to the interceptors."""
        self.conclude_many(() if future is None else (future,), error)

    def conclude_many(self, futures: Sequence[DeliveryFuture], error: BaseException | None) -> None:
        """Passes the results of appended records, and the error that ended their call, to the interceptors."""
        self.end_call(futures, getattr(futures, "rows", range(len(futures))), error)
        self.observe_many(futures, error)

    @property
    def observes_results(self) -> bool:
        """True if an interceptor gets results, or the end of each call."""
        return bool(self._on_acknowledgement or self._end_call)

    @property
    def sees_records(self) -> bool:
        """True if an interceptor or a user-defined partitioner gets each record."""
        return self._sees_records

    def prepare_many(self, topics: PartitionChoices, topic: str, columns: TopicRecords) -> TopicRecords:
        """Returns the records as they are appended. None of them is appended yet.

        If it raises, the call has ended, and the caller passes the error to `observe_many`.

        Raises:
            InvalidArgumentError: an interceptor gave a record another topic.
            ValueError: a column is not as long as the values.
        """
        self._begin()
        try:
            return self._prepared(topics, topic, columns.records(topic))
        except BaseException as error:
            self.end_call((), (), error)
            raise

    def _prepared(self, topics: PartitionChoices, topic: str, records: Iterator[ProducerRecord]) -> TopicRecords:
        prepared = [self._serialized(topics, self._intercepted(record)) for record in records]
        names, values, keys, headers, partitions, timestamps_ms = zip(*prepared, strict=True) if prepared else [()] * 6
        if any(name != topic for name in names):
            raise InvalidArgumentError(
                f"an interceptor gave a record of {topic!r} another topic: only send() supports that"
            )
        return TopicRecords(values, keys, headers, timestamps_ms, partitions)

    def end_call(self, futures: Iterable[DeliveryFuture], rows: Iterable[int], error: BaseException | None) -> None:
        """Informs the interceptors that a call of `prepare` or `prepare_many` and its appends have ended.

        Args:
            futures: of the records that were appended.
            rows: for each of them, its number in the call.
        """
        if self._end_call:
            futures_of = dict(zip(rows, futures, strict=True))
            for end_call in self._end_call:
                _guarded("end_call", end_call, futures_of, error)

    def observe_many(self, futures: Iterable[DeliveryFuture], error: BaseException | None) -> None:
        """Passes the results and the error to the interceptors that have ``on_acknowledgement``."""
        if isinstance(error, Exception):
            self._acknowledge(None, error)
        for future in futures if self._on_acknowledgement else ():
            future.add_callback(lambda metadata: self._acknowledge(metadata, None))
            future.add_errback(lambda failure: self._acknowledge(None, failure))

    def _begin(self) -> None:
        for begin_call in self._begin_call:
            _guarded("begin_call", begin_call)

    def _intercepted(self, record: ProducerRecord) -> ProducerRecord:
        for on_send in self._on_send:
            record = _guarded("on_send; the record is sent unchanged", on_send, record) or record
        return record

    def _serialized(self, topics: PartitionChoices, record: ProducerRecord) -> tuple[Any, ...]:
        topic, value, key, headers, partition, timestamp_ms = record
        key_bytes = key if self._serialize_key is None else self._serialize_key(topic, headers, key)
        value_bytes = value if self._serialize_value is None else self._serialize_value(topic, headers, value)
        if partition is None and self._choose is not None:
            partitions, available = topics.partitions_to_choose_from(topic)
            choice = partitioners.Choice(topic, key, key_bytes, value, value_bytes, partitions, available)
            partition = partitioners.checked(self._choose(choice), choice)
        return topic, value_bytes, key_bytes, headers, partition, timestamp_ms

    def _acknowledge(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
        for on_acknowledgement in self._on_acknowledgement:
            _guarded("on_acknowledgement", on_acknowledgement, metadata, error)

    def close(self) -> None:
        """Closes each part that has a close method. An exception is logged."""
        with contextlib.ExitStack() as parts:  # SystemExit and its like are raised after the last part
            for one in reversed(self._closeables):
                parts.callback(_guarded, "close", one.close)


def _methods(objects: Sequence[Any], name: str) -> list[Callable[..., Any]]:
    return [method for one in objects if callable(method := getattr(one, name, None))]


def _guarded(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns the result of a user's function. If it raises, logs the exception and returns None."""
    try:
        return function(*arguments)
    except Exception:  # user code may raise anything
        logger.exception("%r failed in %s", function, what)
        return None
