# SPDX-License-Identifier: Apache-2.0
"""A Kafka sink without an arena, for as long as a commit or a task needs it.

::

    session ── poll ──> sink ── requests ──> brokers
       │ wait(condition)  ^
       └── deliver ───────┘ batches of staged logs, a lane for each partition

A lane has at most as many batches in flight as the broker remembers of a producer. The lanes of a broker go in step, so
that each request has a batch of every lane. A batch that is to come again comes when nothing of its lane is in flight,
and all batches behind it come after it. The broker drops those that it has.
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
"""The pause of a lane whose batch was not taken."""


class _StagedBatch:
    """The part of a batch of an arena that a sink looks at."""

    is_ended = False


def wire_of(
    batch: LogBatch, place: TopicPartition, index: int, producer: TransactionalProducer, base_sequence: int
) -> WireBatch:
    """A staged batch with another header; the records stay where they are.

    Args:
        batch: of a staged log.
        place: its partition.
        index: the number by which the sink knows the partition.
        producer: the names in the header.
        base_sequence: of its first record.
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
    """The batches of one partition on their way.

    Attributes:
        index: the number by which the sink knows the partition.
        batches: those that were not read yet.
        resumes_at_s: the time before which nothing goes.
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
        """True when the broker has every batch."""
        self._read(1)
        return not self._unsent and not self._sent

    def may_go(self, now_s: float) -> bool:
        """True when a batch goes as soon as there is room for it."""
        if self._has_failed or now_s < self.resumes_at_s:
            return False
        self._read(1)
        return bool(self._unsent)

    def room(self, in_flight_max: int) -> int:
        """The number of further batches that may be in flight. A broker that does not know the producer gets one."""
        self._read(in_flight_max)
        limit = in_flight_max if self._is_known else 1
        return max(min(limit - len(self._sent), len(self._unsent)), 0)

    def _read(self, count: int) -> None:
        while len(self._unsent) < count and (batch := next(self.batches, None)) is not None:
            self._unsent.append(batch)

    def take(self) -> WireBatch:
        """The next batch, which is in flight from now on."""
        batch = self._unsent.popleft()
        self._sent.append(batch)
        self._in_flight.add(batch)
        return batch

    def settle(self, ack: Ack, now_s: float) -> None:
        """Takes an ack, which says DELIVERED or RETRY."""
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


def in_step(lanes: Iterable[PartitionBatches], leader_of: Callable[[int], int | None], in_flight_max: int) -> list[int]:
    """The lanes whose batches go now, by index: of each lane of a leader one, then of each the next one.

    They go as far as the slowest of them may, so each request has a batch of every lane, as a sink wants it. Lanes that
    went on with each ack would fall apart into requests of a single batch, and a broker has work for each request.

    Args:
        lanes: those that may go.
        leader_of: from the number of a lane to its broker; None: nobody knows it.
        in_flight_max: of a lane.
    """
    by_leader: dict[int | None, list[PartitionBatches]] = {}
    for lane in lanes:
        by_leader.setdefault(leader_of(lane.index), []).append(lane)
    steps = [(its, min(lane.room(in_flight_max) for lane in its)) for its in by_leader.values()]
    return [lane.index for its, count in steps for _ in range(count) for lane in its]


class _Host:
    """The session as its sink sees it (`sinks.sink.SinkHost`)."""

    def __init__(self, name: str, options: SenderOptions, wake: Callable[[], object]) -> None:
        self.arena_name = name
        self.options = options
        self.batch_size_max = options.max_request_size
        self.places: list[TopicPartition] = []
        self._wake = wake
        self._told: set[str] = set()

    @property
    def durability(self) -> str:
        """The staged records stay until their transaction is over in Kafka."""
        return "process"

    @property
    def sync_interval_ms(self) -> None:
        """Nothing is forced to disk by a clock."""
        return None

    @property
    def permissions(self) -> tuple[int, int, int]:
        """There is no arena; nobody but this process's user is let in."""
        return os.geteuid(), os.getegid(), 0o600

    @property
    def transactions(self) -> None:
        """There is no arena, so it has none."""
        return None

    def topic_partition(self, partition_index: int) -> tuple[str, int]:
        return self.places[partition_index]

    def partition_count(self, topic: str) -> int:  # noqa: ARG002 - records have their partition already
        return 0

    def report(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            logger.warning("%s", sentence)

    def show_life(self) -> None:
        """Nobody replaces a session that shows no life."""

    def end_backoff(self, partition_index: int) -> None:
        """A lane waits for a moment only."""

    def set_available(self, partition_index: int, is_available: bool) -> None:
        """A record of a staged log has its partition already."""

    def wake(self) -> None:
        self._wake()


@final
class KafkaSession:
    """An open sink, from `__enter__` to `__exit__`. One thread uses it at a time.

    Args:
        place: the brokers to begin with.
        name: of the client, for the brokers' logs.
        sink_options: those of `KafkaSinkOptions`.
        sender_options: those of `SenderOptions`.

    Raises:
        InvalidArgumentError: an option is wrong.
    """

    def __init__(
        self, place: str, name: str, sink_options: Mapping[str, Any], sender_options: Mapping[str, Any]
    ) -> None:
        self.sink = KafkaSink(place, **sink_options)
        self._bell, self._rope = -1, -1
        self._host = _Host(name, SenderOptions.parse(sender_options), self._ring)

    def __enter__(self) -> KafkaSession:
        self._bell, self._rope = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            self.sink.open(self._host)
        except BaseException:
            self._close_bell()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.sink.close(0)
        self._close_bell()

    def _close_bell(self) -> None:
        os.close(self._bell)
        os.close(self._rope)

    def _ring(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._rope, b"!")

    def poll(self, timeout_s: float = POLL_S) -> list[Ack]:
        """One round of the sink."""
        acks = list(each_ack(self.sink.poll(timeout_s, self._bell)))
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell, 4096)
        return acks

    def wait(self, is_over: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Polls until something is true.

        Raises:
            TransactionNotAppliedError: it did not become true in time.
        """
        deadline_s = clock.monotonic() + timeout_s
        while not is_over():
            if clock.monotonic() >= deadline_s:
                why = self.sink.peer.outage or "the brokers take longer"
                raise TransactionNotAppliedError(f"{self.sink.name}: {what} took more than {timeout_s:g} s: {why}")
            self.poll(min(POLL_S, max(deadline_s - clock.monotonic(), 0)))

    def partition_count(self, topic: str, timeout_s: float) -> int:
        """How many partitions a topic has.

        Raises:
            UnknownTopicError: there is none of that name, and there will be none.
            TransactionNotAppliedError: no broker told it in time.
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
        """Delivers all batches; each partition in order.

        Args:
            batches: of each partition a function from its number to its batches.
            failure: says why nothing more can be delivered.
            timeout_s: the time for all of them.

        Raises:
            TransactionNotAppliedError: a batch was refused, or the time is over.
        """
        self._host.places = list(batches)
        lanes = [PartitionBatches(index, batches[place](index)) for index, place in enumerate(self._host.places)]
        deadline_s = clock.monotonic() + timeout_s
        while not all(lane.is_done for lane in lanes):
            if (failed := failure()) is not None:
                raise TransactionNotAppliedError(f"{self.sink.name}: {failed.message}")
            now_s = clock.monotonic()
            if now_s >= deadline_s:
                raise TransactionNotAppliedError(f"{self.sink.name} did not take all records in {timeout_s:g} s")
            self._send(lanes, now_s)
            pause_s = min([POLL_S, *(lane.resumes_at_s - now_s for lane in lanes if lane.resumes_at_s > now_s)])
            for ack in self.poll(pause_s):
                self._settle(lanes, ack)

    def _send(self, lanes: Sequence[PartitionBatches], now_s: float) -> None:
        ready = in_step(
            [lane for lane in lanes if lane.may_go(now_s)], self.sink.leader_of, self.sink.limits.in_flight_max
        )
        for planned in self.sink.plan(ready) if ready else ():
            self.sink.deliver([lanes[index].take() for index in planned])

    def _settle(self, lanes: Sequence[PartitionBatches], ack: Ack) -> None:
        if ack.verdict in {Verdict.DELIVERED, Verdict.RETRY}:
            lanes[ack.wire.partition_index].settle(ack, clock.monotonic())
        else:
            raise TransactionNotAppliedError(ack.message)
