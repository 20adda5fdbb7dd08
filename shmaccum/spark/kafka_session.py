# SPDX-License-Identifier: Apache-2.0
"""A Kafka sink without an arena, for the duration of a commit or a task.

::

    session ── poll ──> sink ── requests ──> brokers
       │ wait(condition)  ^
       └── deliver ───────┘ batches of staged logs, a stream for each partition

A partition stream has at most as many batches in flight as the broker remembers of a producer. The streams of a broker
advance together, so that each request has a batch of every stream. A batch that must be sent again is sent when none of
its stream is in flight, followed by all later batches. The broker drops duplicates.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

from shmaccum.common import clock
from shmaccum.common.format.batch_header import HEADER_SIZE, TRANSACTIONAL, sealed_header
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config import SenderOptions
from shmaccum.exceptions import TransactionNotAppliedError
from shmaccum.log.files import LogBatch
from shmaccum.log.files.producer_state import SEQUENCE_MASK
from shmaccum.sender.sinks.kafka.sink import KafkaSink
from shmaccum.sender.sinks.kafka.transaction.protocol import TransactionFailure
from shmaccum.sender.sinks.kafka.transaction.requests import TransactionalProducer
from shmaccum.sender.sinks.sink import Ack, Verdict, WireBatch, each_ack

logger = logging.getLogger(__name__)

POLL_S = 0.5
RETRY_PAUSE_S = 0.1
"""The pause of a partition stream after a failed batch."""


class _StagedBatch:
    """The attributes of an arena's batch that a sink uses."""

    is_ended = False


def wire_of(
    batch: LogBatch, place: TopicPartition, index: int, producer: TransactionalProducer, base_sequence: int
) -> WireBatch:
    """Return a staged batch with another header, without copying the records.

    Args:
        batch: a batch of a staged log.
        place: its partition.
        index: the sink's index of the partition.
        producer: the producer in the header.
        base_sequence: the sequence of its first record.
    """
    records = batch.view[HEADER_SIZE:]
    stamped = batch.header._replace(
        base_offset=0,
        leader_epoch=-1,
        attributes=batch.header.attributes | TRANSACTIONAL,
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=base_sequence & SEQUENCE_MASK,
    )
    staged: Any = _StagedBatch()
    return WireBatch(
        *place,
        index,
        (memoryview(sealed_header(stamped, records)), records),
        batch.size,
        batch.record_count,
        producer.producer_id,
        producer.producer_epoch,
        base_sequence & SEQUENCE_MASK,
        batch.max_timestamp_ms,
        1,
        staged,
    )


@dataclass
class PartitionBatches:
    """The stream of batches of one partition.

    Attributes:
        index: the sink's index of the partition.
        batches: the batches that were not read yet.
        resumes_at_s: the time until which the stream pauses.
    """

    index: int
    batches: Iterator[WireBatch]
    resumes_at_s: float = 0.0
    _unsent: deque[WireBatch] = field(default_factory=deque)
    _sent: list[WireBatch] = field(default_factory=list)
    _in_flight: set[WireBatch] = field(default_factory=set)
    _acked: set[WireBatch] = field(default_factory=set)
    _is_known: bool = False
    _has_failed: bool = False

    @property
    def is_done(self) -> bool:
        """True if the broker has every batch."""
        self._read(1)
        return not self._unsent and not self._sent

    def may_send(self, now_s: float) -> bool:
        """Returns whether a batch may be sent when in-flight capacity is available."""
        if self._has_failed or now_s < self.resumes_at_s:
            return False
        self._read(1)
        return bool(self._unsent)

    def free_capacity(self, in_flight_max: int) -> int:
        """Returns how many more batches may be in flight. A broker that does not know the producer yet gets one."""
        self._read(in_flight_max)
        limit = in_flight_max if self._is_known else 1
        return max(min(limit - len(self._sent), len(self._unsent)), 0)

    def _read(self, count: int) -> None:
        while len(self._unsent) < count and (batch := next(self.batches, None)) is not None:
            self._unsent.append(batch)

    def take(self) -> WireBatch:
        """Returns the next batch, which is then in flight."""
        batch = self._unsent.popleft()
        self._sent.append(batch)
        self._in_flight.add(batch)
        return batch

    def handle_ack(self, ack: Ack, now_s: float) -> None:
        """Handles an ack with the verdict DELIVERED or RETRY."""
        self._in_flight.discard(ack.wire)
        if ack.verdict is Verdict.DELIVERED:
            self._is_known = True
            self._acked.add(ack.wire)
        else:
            self._has_failed = True
            self.resumes_at_s = now_s + (RETRY_PAUSE_S if ack.retry_after_ms is None else ack.retry_after_ms / 1000)
        if self._has_failed and not self._in_flight:
            self._unsent.extendleft(batch for batch in reversed(self._sent) if batch not in self._acked)
            self._sent.clear()
            self._acked.clear()
            self._has_failed = False
        while self._sent and self._sent[0] in self._acked:
            self._acked.discard(self._sent.pop(0))


def next_streams(
    streams: Iterable[PartitionBatches], leader_of: Callable[[int], int | None], in_flight_max: int
) -> list[int]:
    """Return the indexes of the streams to send from: one batch of each stream of a leader, then the next of each.

    The streams of a leader advance as far as the slowest one may, so each request has a batch of every stream. If each
    stream advanced with its own acks, requests would shrink to single batches, and each request costs the broker work.

    Args:
        streams: the streams that may send.
        leader_of: returns the broker of a stream's index, or None if it is unknown.
        in_flight_max: the most batches in flight per stream.
    """
    by_leader: dict[int | None, list[PartitionBatches]] = {}
    for stream in streams:
        by_leader.setdefault(leader_of(stream.index), []).append(stream)
    steps = [(its, min(stream.free_capacity(in_flight_max) for stream in its)) for its in by_leader.values()]
    return [stream.index for its, count in steps for _ in range(count) for stream in its]


class _Context:
    """The session as its sink's context (`sinks.sink.SinkHost`)."""

    def __init__(self, name: str, options: SenderOptions, wake: Callable[[], object]) -> None:
        self.arena_name = name
        self.options = options
        self.places: list[TopicPartition] = []
        self._wake = wake
        self._reported: set[str] = set()

    @property
    def durability(self) -> str:
        """The durability: staged records remain until their transaction is over in Kafka."""
        return "process"

    @property
    def sync_interval_ms(self) -> None:
        """Always None, because nothing is forced to disk at intervals."""
        return None

    @property
    def permissions(self) -> tuple[int, int, int]:
        """The permissions without an arena: only this process's user has access."""
        return os.geteuid(), os.getegid(), 0o600

    @property
    def transactions(self) -> None:
        """Always None, because only an arena has transactions."""
        return None

    def topic_partition(self, partition_index: int) -> tuple[str, int]:
        return self.places[partition_index]

    def partition_count(self, topic: str) -> int:  # noqa: ARG002 - records already have their partition
        return 0

    def report(self, sentence: str) -> None:
        if sentence not in self._reported:
            self._reported.add(sentence)
            logger.warning("%s", sentence)

    def show_life(self) -> None:
        """Does nothing: no other process replaces a session."""

    def end_backoff(self, partition_index: int) -> None:
        """Does nothing: a partition stream pauses only briefly."""

    def set_available(self, partition_index: int, is_available: bool) -> None:
        """Does nothing: records of a staged log already have their partition."""

    def wake(self) -> None:
        self._wake()


@final
class KafkaSession:
    """An open sink, from `__enter__` to `__exit__`. Not thread-safe.

    Args:
        place: the bootstrap brokers.
        name: the client name for the brokers' logs.
        sink_options: those of `KafkaSinkOptions`.
        sender_options: those of `SenderOptions`.

    Raises:
        InvalidArgumentError: an option is wrong.
    """

    def __init__(
        self, place: str, name: str, sink_options: Mapping[str, Any], sender_options: Mapping[str, Any]
    ) -> None:
        self.sink = KafkaSink(place, **sink_options)
        self._wake_receiver, self._wake_sender = -1, -1
        self._context = _Context(name, SenderOptions.parse(sender_options), self._wake)

    def __enter__(self) -> KafkaSession:
        self._wake_receiver, self._wake_sender = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self.sink.open(self._context)
        except BaseException:
            self._close_wake_fds()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.sink.close(0)
        self._close_wake_fds()

    def _close_wake_fds(self) -> None:
        os.close(self._wake_receiver)
        os.close(self._wake_sender)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_sender, b"!")

    def poll(self, timeout_s: float = POLL_S) -> list[Ack]:
        """Runs one round of the sink."""
        acks = list(each_ack(self.sink.poll(timeout_s, self._wake_receiver)))
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake_receiver, 4096)
        return acks

    def wait(self, is_over: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Polls until a condition is true.

        Raises:
            TransactionNotAppliedError: it was not true in time.
        """
        deadline_s = clock.monotonic() + timeout_s
        while not is_over():
            if clock.monotonic() >= deadline_s:
                why = self.sink.peer.outage or "the brokers are slow"
                raise TransactionNotAppliedError(f"{self.sink.name}: {what} took more than {timeout_s:g} s: {why}")
            self.poll(min(POLL_S, max(deadline_s - clock.monotonic(), 0)))

    def partition_count(self, topic: str, timeout_s: float) -> int:
        """Returns the number of partitions of a topic.

        Raises:
            UnknownTopicError: the topic does not exist and will not be created.
            TransactionNotAppliedError: no broker answered in time.
        """
        self.wait(lambda: self.sink.partition_count(topic) is not None, f"the metadata of {topic}", timeout_s)
        count = self.sink.partition_count(topic)
        assert count is not None
        return count

    def deliver(
        self,
        batches: Mapping[TopicPartition, Callable[[int], Iterator[WireBatch]]],
        failure: Callable[[], TransactionFailure | None],
        timeout_s: float,
    ) -> None:
        """Delivers all batches, in order within each partition.

        Args:
            batches: for each partition, a function that yields its batches, given its index.
            failure: returns the reason why delivery must stop, or None.
            timeout_s: the time limit for all batches.

        Raises:
            TransactionNotAppliedError: a batch was rejected, or the time limit has passed.
        """
        self._context.places = list(batches)
        streams = [PartitionBatches(index, batches[place](index)) for index, place in enumerate(self._context.places)]
        deadline_s = clock.monotonic() + timeout_s
        while not all(stream.is_done for stream in streams):
            if (failed := failure()) is not None:
                raise TransactionNotAppliedError(f"{self.sink.name}: {failed.message}")
            now_s = clock.monotonic()
            if now_s >= deadline_s:
                raise TransactionNotAppliedError(f"{self.sink.name} did not accept all records within {timeout_s:g} s")
            self._send(streams, now_s)
            pause_s = min([POLL_S, *(stream.resumes_at_s - now_s for stream in streams if stream.resumes_at_s > now_s)])
            for ack in self.poll(pause_s):
                self._handle_ack(streams, ack)

    def _send(self, streams: Sequence[PartitionBatches], now_s: float) -> None:
        ready = next_streams(
            [stream for stream in streams if stream.may_send(now_s)],
            self.sink.leader_of,
            self.sink.limits.in_flight_max,
        )
        for planned in self.sink.plan(ready) if ready else ():
            self.sink.deliver([streams[index].take() for index in planned])

    def _handle_ack(self, streams: Sequence[PartitionBatches], ack: Ack) -> None:
        if ack.verdict in {Verdict.DELIVERED, Verdict.RETRY}:
            streams[ack.wire.partition_index].handle_ack(ack, clock.monotonic())
        else:
            raise TransactionNotAppliedError(ack.message)
