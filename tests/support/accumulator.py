# SPDX-License-Identifier: Apache-2.0
"""Kafka's RecordAccumulator for tests: both sides of an arena in one object.

The product has no such object: a `Producer` appends, a `Sender` delivers, and they share only the arena. This one
combines an appender and a native sender half, so that a test can take single steps of each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, NamedTuple, final

from shmaccum import _native
from shmaccum._native import SenderHalf, Token
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.arena.wake_fifo import SenderWaker
from shmaccum.producer.appender import DEFAULT_MAX_BLOCK_MS, Appender

PARTITION_COUNT = 2**31 - 1
"""The largest number of partitions, so that no append waits until a sink reports the partition count of its topic."""


class Completion(NamedTuple):
    """The result of records [first_record, first_record + record_count) of a batch."""

    result: BatchResult
    error_code: int
    base_offset: int
    log_append_time_ms: int
    first_record: int
    record_count: int

    def offset_of(self, token: Token) -> int:
        """Return Kafka's offset of the token's record, or -1 if it is unknown."""
        return -1 if self.base_offset < 0 else self.base_offset + token.record_index - self.first_record


class _Tickets:
    """The flush tickets of several appenders as one."""

    def __init__(self, tickets: list[_native.FlushTicket]) -> None:
        self._tickets = tickets

    def remaining(self) -> int:
        return sum(ticket.remaining() for ticket in self._tickets)

    def record_count(self) -> int:
        return sum(ticket.record_count() for ticket in self._tickets)


@final
class Accumulator:
    """Appends records to an arena's batches, and takes single steps of a sender.

    Args:
        arena: an attached arena, which stays open until the accumulator is closed.
        max_block_ms: the default time for which an append waits for a buffer.
        linger_ms: the linger of the batches that it opens. If it is None, the sender's linger applies.
        ring: a function that wakes a sleeping sender. If it is None, the arena's wake call is used.
    """

    def __init__(
        self,
        arena: Arena,
        *,
        max_block_ms: int = DEFAULT_MAX_BLOCK_MS,
        linger_ms: int | None = None,
        ring: Callable[[], object] | None = None,
    ) -> None:
        self.arena = arena
        self._waker = SenderWaker(arena)
        self._appender = Appender(arena, self._waker, max_block_ms=max_block_ms, linger_ms=linger_ms)
        self.buffer_waiter = self._appender.buffer_waiter
        self._ring = ring or self._waker.wake
        self._max_block_ms = max_block_ms
        self._linger_ns = None if linger_ms is None else linger_ms * 10**6
        self._natives: dict[int, tuple[_native.Appender, _native.NativeProducer]] = {}
        self._appender.native.close()
        self._appender.native = self._native(max_block_ms)[0]
        flush_begin: Any = self.flush_begin
        self._appender.flush_begin = flush_begin
        half = SenderHalf(arena.native)
        self.half = half
        self.become_sender = half.become_sender
        self.set_sink_name = half.set_sink_name
        self.resign = half.resign
        self.ready = half.ready
        self.drain = half.drain
        self.complete = half.complete
        self.complete_many = half.complete_many
        self.complete_part = half.complete_part
        self.requeue = half.requeue
        self.decide = half.decide
        self.want_dead_letters = half.want_dead_letters
        self.dead_letters = half.dead_letters
        self.quarantine = half.quarantine
        self.publish_delivery_timeout = half.publish_delivery_timeout
        self.run_delivery_clock = half.run_delivery_clock
        self.publish_outage = half.publish_outage
        self.expire = half.expire
        self.take_expired = half.take_expired
        self.abort = half.abort
        self.mute = half.mute
        self.end_backoff = half.end_backoff
        self.set_available = half.set_available
        self.publish_queues = half.publish_queues
        self.maintain = half.maintain
        self.show_life = half.show_life
        self.set_producer_id = half.set_producer_id
        self.resequence = half.resequence
        self.statistics = half.statistics

    def _native(self, max_block_ms: int | None) -> tuple[_native.Appender, _native.NativeProducer]:
        """Return the native appender for a value of max_block_ms. Each appender has one value."""
        wanted = self._max_block_ms if max_block_ms is None else max_block_ms
        if wanted not in self._natives:
            waiter = self.buffer_waiter
            appender = _native.Appender(self.arena.native, waiter.wait, self._ring, wanted, self._linger_ns)
            tracker: Any = None
            producer = _native.NativeProducer(appender, tracker, lambda *_: PARTITION_COUNT)
            self._natives[wanted] = (appender, producer)
        return self._natives[wanted]

    def append(
        self,
        topic: str,
        partition: int,
        timestamp_ms: int | None,
        key: Any,
        value: Any,
        headers: Any = None,
        max_block_ms: int | None = None,
    ) -> Token:
        """Append one record."""
        token = self.append_unforced(topic, partition, timestamp_ms, key, value, headers, max_block_ms)
        if self.arena.durability == "sync":
            self.arena.sync()
        return token

    def append_unforced(
        self,
        topic: str,
        partition: int,
        timestamp_ms: int | None,
        key: Any,
        value: Any,
        headers: Any = None,
        max_block_ms: int | None = None,
    ) -> Token:
        """Append one record without waiting for a disk."""
        return self._native(max_block_ms)[1].send(topic, value, key, headers, partition, timestamp_ms)

    def append_many(
        self,
        topic: str,
        partition: int,
        values: Iterable[Any],
        keys: Any = None,
        timestamps_ms: Any = None,
        headers: Any = None,
    ) -> list[tuple[Token, int]]:
        """Append records to one partition. Return the first token and the record count of each batch."""
        none = itertools.repeat(None)
        rows = zip(values, keys or none, timestamps_ms or none, headers or none, strict=False)
        tokens = [
            self.append_unforced(topic, partition, time_ms, key, value, pairs) for value, key, time_ms, pairs in rows
        ]
        if self.arena.durability == "sync":
            self.arena.sync()
        runs = [list(run) for _, run in itertools.groupby(tokens, key=lambda token: (token.slot_index, token.seq))]
        return [(run[0], len(run)) for run in runs]

    def partition_index(self, topic: str, partition: int) -> int:
        """Return the index of a topic-partition that has appended records."""
        return self.arena.native.partitions().index((topic, partition))

    def find(self, token: Token) -> Completion | None:
        """Return the completion of an appended record, or None while it is pending."""
        found = self.arena.native.find(token)
        return None if found is None else Completion(BatchResult(found[0]), *found[1:])

    def flush_begin(self) -> _Tickets:
        """Seal the batches to which this process has appended."""
        return _Tickets([appender.flush_begin() for appender, _ in self._natives.values()])

    def flush(self, timeout: float | None = None) -> bool:
        """Seal the appended records of this process and wait until all are complete. Return False after *timeout*."""
        return self._appender.flush(timeout)

    @property
    def is_sender(self) -> bool:
        """True while it has the sender role."""
        return self.half.is_sender

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._appender.closed and self.half.closed

    def close(self) -> None:
        """Leave the role and end appending. Appended records stay in the arena."""
        for appender, _ in self._natives.values():
            if appender is not self._appender.native:
                appender.close()
        self._appender.close()
        self._waker.close()
        self.half.close()

    def __enter__(self) -> Accumulator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
