# SPDX-License-Identifier: Apache-2.0
"""Records whose callbacks wait for a result.

::

    produce ──> chain of the native producer ──> batches ──> due ──> callback
                (confluent_type.c)               scan()      call()

No result is looked up for a record while its batch has none. `CallbackRecords.scan` reads the results that came since
the last scan. New records stay in the chain until a result has come. `CallbackRecords.call` creates the messages of a
batch's records one by one. So few objects are alive at a time, and if a callback raises, the next call continues with
the other records.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby
from operator import itemgetter, length_hint
from typing import Any, NamedTuple, TypeAlias, final

from shmaccum._native import RESULT_SUCCEEDED, ConfluentProducer
from shmaccum.common.background import listed
from shmaccum.common.packages import needed
from shmaccum.compat.confluent_errors import kafka_error
from shmaccum.exceptions import ArenaClosedError, InvalidArgumentError
from shmaccum.producer.delivery import DeliveryTracker

with needed("confluent-kafka", "confluent", "shmaccum.compat.confluent needs"):
    from confluent_kafka import OFFSET_INVALID, KafkaError, Message

Callback: TypeAlias = Callable[[KafkaError | None, Message], object]
Record: TypeAlias = tuple[Any, ...]
Batch: TypeAlias = tuple[int, int]
"""Partition index and sequence."""

INDEX, FUTURE, CALLBACK, TOPIC, VALUE, KEY, HEADERS, BATCH = range(8)
"""The items of a record (confluent_type.c)."""
CREATE_TIME = 1
PARTITION_UNKNOWN = -1


class _Due(NamedTuple):
    """Records of a batch with the same result.

    Attributes:
        records: the records whose callbacks were not called yet.
        completion: as `DeliveryFuture.completion`.
    """

    records: Iterator[Record]
    partition: int
    completion: tuple[int, ...]


@final
class CallbackRecords:
    """The records of this process that have a callback, until it is called.

    One thread at a time scans. It removes records from one place and adds them to the next one without a call between,
    so an exception of a signal handler neither loses nor repeats a record.

    Args:
        source: has the chain of new records.
    """

    def __init__(self, source: ConfluentProducer, tracker: DeliveryTracker) -> None:
        self._source = source
        self._tracker = tracker
        self._refused: deque[tuple[Record, int, KafkaError, int]] = deque()
        self._due: deque[_Due] = deque()
        self.reset()

    def reset(self) -> None:
        """Discards all records. A forked child calls it first."""
        self._source._take_told([])
        self._new: list[Record] = []
        self._batches: dict[Batch, list[Record]] = {}
        self._tail = 0
        self._is_whole = True
        self._scan_lock = threading.Lock()  # no thread waits for it
        self._refused.clear()  # emptied in place, because a callback that forks is iterating over them
        self._due.clear()

    @property
    def pending_count(self) -> int:
        """The number of records without a result."""
        new_count = self._source._chain_count + len(self._new)
        return new_count + sum(len(records) for records in listed(self._batches.values()))

    @property
    def due_count(self) -> int:
        """The number of callbacks that are due."""
        return len(self._refused) + sum(length_hint(due.records) for due in listed(self._due))

    def refuse(self, record: Record, partition: int, error: KafkaError, timestamp_ms: int) -> None:
        """Adds a record that was not appended to the arena."""
        self._refused.append((record, partition, error, timestamp_ms))

    # --- scan

    def scan(self) -> bool:
        """Finds the records whose results came since the last scan. Returns True if a callback is due."""
        try:
            tail = self._tracker.result_count
            is_quiet = self._is_whole and tail == self._tail and not self._source._has_late
            if not is_quiet and self._scan_lock.acquire(blocking=False):
                try:
                    self._scan()
                finally:
                    self._scan_lock.release()
        except ArenaClosedError:  # by another thread
            pass
        return bool(self._refused or self._due)

    def _scan(self) -> None:
        tail, was_whole = self._tracker.result_count, self._is_whole
        self._is_whole = False  # after an exception here, the next scan queries each result
        self._source._take_told(self._new)
        late = self._add_new()
        for batch in late if self._walk(tail) and was_whole else list(self._batches):
            self._look_up_each(batch)
        self._tail, self._is_whole = tail, True

    def _add_new(self) -> list[Batch]:
        """Moves new records to their batches. Returns batches whose results may be older than the last scan."""
        late: list[Batch] = []
        for batch, records in groupby(self._new.copy(), itemgetter(BATCH)):
            if batch is not None:
                self._add(batch, list(records))
                continue
            for record in records:
                future = record[FUTURE]
                late.append((future.partition_index, future.seq))
                self._add(late[-1], [(future.record_index, *record[1:])])
        return late

    def _add(self, batch: Batch, records: list[Record]) -> None:
        found = self._batches.setdefault(batch, [])
        del self._new[: len(records)]
        found.extend(records)

    def _walk(self, tail: int) -> bool:
        """Reads the results since the last scan. Returns False if each record must be queried instead.

        That is so if there are fewer records than results, if results were overwritten, or if the memory of the arena
        is lost (`tail` is negative).
        """
        if tail < 0 or tail - self._tail > self.pending_count:
            return False
        results = self._tracker.results(self._tail, tail)
        for _, partition_index, seq, *completion in results:
            records = self._batches.get((partition_index, seq))
            if records is not None:
                records.sort(key=itemgetter(INDEX))
                first, count = completion[4:]
                begin, end = bisect_left(records, (first,)), bisect_left(records, (first + count,))
                self._end((partition_index, seq), begin, end, tuple(completion))
        return len(results) == tail - self._tail

    def _look_up_each(self, batch: Batch) -> None:
        records = self._batches.get(batch, [])
        records.sort(key=itemgetter(INDEX))
        place = 0
        while place < len(records):
            future = records[place][FUTURE]
            if self._tracker.is_known(future):
                self._end(batch, place, place + 1, future.completion)
            else:
                place += 1

    def _end(self, batch: Batch, begin: int, end: int, completion: tuple[int, ...]) -> None:
        records = self._batches[batch]
        ended = records[begin:end]
        try:
            partition = self._tracker.topic_partition(batch[0]).partition
        except InvalidArgumentError:  # the memory of the arena is lost, and its table with it
            partition = PARTITION_UNKNOWN
        due = _Due(iter(ended), partition, completion)
        del records[begin:end]
        if not records:
            del self._batches[batch]
        self._due.append(due)

    # --- call

    def call(self) -> int:
        """Calls the callbacks that are due, and returns their number."""
        count = 0
        while self._refused:
            with contextlib.suppress(IndexError):
                record, partition, error, timestamp_ms = self._refused.popleft()
            record[CALLBACK](error, _message_of(record, partition, error, timestamp_ms))
            count += 1
        while self._due:
            due = self._due[0]
            count += self._call(due)
            with contextlib.suppress(ValueError):  # another thread has removed it
                self._due.remove(due)
        return count

    def _call(self, due: _Due) -> int:
        records, partition, completion = due
        result, _, base_offset, _, first, _ = completion
        if result == RESULT_SUCCEEDED:
            return self._source._call(records, Message, partition, CREATE_TIME, base_offset, first, time.time())
        count = 0
        for record in records:
            self._call_failed(record, partition, completion)
            count += 1
        return count

    def _call_failed(self, record: Record, partition: int, completion: tuple[int, ...]) -> None:
        future = record[FUTURE]
        future.completion = completion
        failure = self._tracker.exception_of(future)
        assert failure is not None
        error = kafka_error(failure)
        record[CALLBACK](error, _message_of(record, partition, error, future.timestamp_ms))


def _message_of(record: Record, partition: int, error: KafkaError, timestamp_ms: int) -> Message:
    """Makes the message of a record that was not delivered."""
    return Message(
        topic=record[TOPIC],
        partition=partition,
        offset=OFFSET_INVALID,
        key=record[KEY],
        value=record[VALUE],
        headers=record[HEADERS],
        error=error,
        timestamp=(CREATE_TIME, timestamp_ms),
        latency=max(time.time() - timestamp_ms / 1000, 0.0),
    )
