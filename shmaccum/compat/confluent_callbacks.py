# SPDX-License-Identifier: Apache-2.0
"""Records whose callbacks wait for a result.

::

    produce ──> ResultWaiters ──> ended waiters ──> callback
                           collect()        call()

`produce` adds a waiter for each record with a callback (confluent_type.c). `CallbackRecords.call` creates the messages
one by one. So few objects are alive at a time, and if a callback raises, the next call continues with the other
records.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias, final

from shmaccum._native import ConfluentProducer, DeliveryFuture, ResultWaiters
from shmaccum.common.packages import needed
from shmaccum.compat.confluent_errors import kafka_error
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.producer.delivery import DeliveryTracker

with needed("confluent-kafka", "confluent", "shmaccum.compat.confluent needs"):
    from confluent_kafka import OFFSET_INVALID, KafkaError, Message

Callback: TypeAlias = Callable[[KafkaError | None, Message], object]
Headers: TypeAlias = list[tuple[str, Any]]
Record: TypeAlias = tuple[Callback, str, bytes | None, bytes | None, Headers | None]
"""Callback, topic, value, key and headers."""

CREATE_TIME = 1
PARTITION_UNKNOWN = -1


@final
class CallbackRecords:
    """The records of this process that have a callback, until it is called.

    Args:
        source: calls the callbacks of delivered records.
    """

    def __init__(self, source: ConfluentProducer, tracker: DeliveryTracker) -> None:
        self._source = source
        self._tracker = tracker
        self.native = ResultWaiters()
        self._refused: deque[Callable[[], object]] = deque()

    @property
    def pending_count(self) -> int:
        """The number of records without a result."""
        return self.native.waiting_count

    @property
    def due_count(self) -> int:
        """The number of callbacks that are due."""
        return len(self._refused) + self.native.ended_count

    def refuse(self, record: Record, partition: int, error: KafkaError, timestamp_ms: int) -> None:
        """Adds a record that was not appended to the arena."""
        message = _message_of(record, partition, error, timestamp_ms)
        self._refused.append(functools.partial(record[0], error, message))

    def collect(self) -> bool:
        """Finds the results since the last call. Returns True if a callback is due."""
        return self._source._collect() or bool(self._refused)

    def call(self) -> int:
        """Finds the results since the last call, calls the callbacks that are due, and returns their number."""
        count = 0
        while self._refused:
            try:
                call = self._refused.popleft()
            except IndexError:  # another thread has removed it
                break
            call()
            count += 1
        return count + self._source._call(self, Message, CREATE_TIME)

    def partition_of(self, partition_index: int) -> int:
        try:
            return self._tracker.topic_partition(partition_index).partition
        except InvalidArgumentError:  # the memory of the arena is lost, and its table with it
            return PARTITION_UNKNOWN

    def report(self, future: DeliveryFuture, record: Record) -> None:
        """Calls the callback of a record that was not delivered, or whose result must be queried."""
        self._tracker.is_known(future)
        failure = self._tracker.exception_of(future)
        error = None if failure is None else kafka_error(failure)
        offset = OFFSET_INVALID if failure is not None else self._tracker.offset_of(future)
        partition = self.partition_of(future.partition_index)
        record[0](error, _message_of(record, partition, error, future.timestamp_ms, offset))


def _message_of(
    record: Record, partition: int, error: KafkaError | None, timestamp_ms: int, offset: int = OFFSET_INVALID
) -> Message:
    """Makes the message of a record that C does not report."""
    _, topic, value, key, headers = record
    return Message(
        topic=topic,
        partition=partition,
        offset=offset,
        key=key,
        value=value,
        headers=headers,
        error=error,
        timestamp=(CREATE_TIME, timestamp_ms),
        latency=max(time.time() - timestamp_ms / 1000, 0.0),
    )
