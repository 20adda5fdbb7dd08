# SPDX-License-Identifier: Apache-2.0
"""One task's part of a write: appends rows to the node's arena, and waits until all of them are delivered.

Results are in a ring that is overwritten, so they are collected while the task appends: large batches of rows are split
so that no call appends more than a fraction of the arena, and after each call all receipts are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, final

from shmaccum.arena.delivery_span import DeliveryClockReading
from shmaccum.common import clock
from shmaccum.common.clock import NS_PER_S
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import format_count
from shmaccum.exceptions import FlushTimeoutError, InvalidArgumentError
from shmaccum.producer import Producer
from shmaccum.producer.deliveries import Deliveries, OffsetRange
from shmaccum.producer.producer import FLUSH_TIMEOUT_S
from shmaccum.spark.node import node_producer
from shmaccum.spark.node_sender import NodeSender
from shmaccum.spark.settings import SinkSettings, sink_settings

PIECE_FRACTION = 16
"""One call appends at most the arena's buffer memory divided by this number."""
FLUSH_SLICE_S = 0.1


def check_instants(rows: Any) -> None:
    """Check that the times of a `pyarrow.RecordBatch` from Spark have a time zone.

    Raises:
        InvalidArgumentError: the column ``timestamp`` has no time zone.
    """
    index = rows.schema.get_field_index("timestamp")
    if index >= 0 and getattr(rows.schema.field(index).type, "tz", None) is None:
        kind = rows.schema.field(index).type
        raise InvalidArgumentError(
            f"the column 'timestamp' is {kind}, which has no time zone: cast it to timestamp, or drop it"
        )


class TaskDelivery(NamedTuple):
    """The records that a task has delivered."""

    record_count: int
    offsets: Mapping[TopicPartition, OffsetRange]


class RowAppender:
    """Appends Arrow record batches through a producer, and collects the results.

    Args:
        producer: the producer of this process.
        topic: the topic of all rows. If None, a column names it.
        columns: the columns that become records. None for all.
        check: raises if waiting is useless.
    """

    def __init__(
        self, producer: Producer, topic: str | None, columns: Iterable[str] | None, check: Callable[[], None]
    ) -> None:
        self._producer = producer
        self._topic = topic
        self._columns = None if columns is None else list(columns)
        self._check = check
        self._piece_size = max(producer.arena.geometry["buffer_memory"] // PIECE_FRACTION, 1)
        self._pending: list[Deliveries] = []
        self._record_count = 0
        self._offsets: dict[TopicPartition, OffsetRange] = {}

    def append(self, batch: Any) -> None:
        """Appends the rows of a `pyarrow.RecordBatch`, without copying them first.

        Raises:
            DeliveryError: a record appended earlier was not delivered.
            Exception: as `Producer.append_arrow`.
        """
        self._check()
        rows = batch if self._columns is None else batch.select(self._columns)
        check_instants(rows)
        for piece in self._pieces(rows):
            self._pending.append(self._producer.append_arrow(piece, topic=self._topic))
            self._collect()

    def finish(self) -> TaskDelivery:
        """Flushes the appended records, and waits until all of them are delivered.

        The wait is bounded: it fails if no record was delivered for the sender's ``delivery_timeout_ms``. If the sink
        works, it waits twice as long, because the sender then lets the records expire. Other records stay in the arena
        and are delivered later, in addition to those of a retry.

        Raises:
            DeliveryError: a record was not delivered, or its result is unknown.
            FlushTimeoutError: no record was delivered for that time; the message has the reason.
            SenderNotStartedError: no sender delivers them, see `NodeSender.check`.
        """
        known_count, since_s = self._record_count, clock.monotonic()
        while not self._is_flushed():
            self._check()
            self._collect()
            if self._record_count > known_count:
                known_count, since_s = self._record_count, clock.monotonic()
            self._expect_progress_since(since_s)
        self._collect()
        return TaskDelivery(self._record_count, self._offsets)

    def _expect_progress_since(self, since_s: float) -> None:
        delivery = DeliveryClockReading.of(self._producer.arena.native)
        patience_s = FLUSH_TIMEOUT_S if delivery.timeout_ns is None else delivery.timeout_ns / NS_PER_S
        why = delivery.sentence()
        if not why:
            patience_s *= 2
        if clock.monotonic() - since_s >= patience_s:
            left_count = format_count(sum(deliveries.counts.pending for deliveries in self._pending), "record")
            raise FlushTimeoutError(
                f"no record of this task was delivered for {patience_s:g} s ({why or 'the sink is slow'}): "
                f"{left_count} remain in the arena {self._producer.arena.name!r} and are delivered later"
            )

    def _pieces(self, rows: Any) -> Iterator[Any]:
        row_count: int = rows.num_rows
        step = max(row_count * self._piece_size // max(rows.nbytes, 1), 1)
        for start in range(0, row_count, step):
            yield rows.slice(start, step)

    def _is_flushed(self) -> bool:
        try:
            self._producer.flush(FLUSH_SLICE_S)
        except FlushTimeoutError:
            return False
        return all(deliveries.is_done for deliveries in self._pending)

    def _collect(self) -> None:
        """Collects all available results, because they may be overwritten."""
        pending = []
        for deliveries in self._pending:
            if deliveries.is_done:
                self._take(deliveries)
            else:
                pending.append(deliveries)
        self._pending = pending

    def _take(self, deliveries: Deliveries) -> None:
        for place, found in deliveries.get(0).items():
            known = self._offsets.get(place)
            self._offsets[place] = found if known is None else _joined(known, found)
        self._record_count += len(deliveries)


def _joined(left: OffsetRange, right: OffsetRange) -> OffsetRange:
    return OffsetRange(left.record_count + right.record_count, min(left.first, right.first), max(left.last, right.last))


@final
class TaskWriter(RowAppender):
    """Appends to the node's arena. As a context manager, it supervises the node's sender.

    Args:
        settings: the settings of the write.
        columns: the columns that become records. None for all.

    Raises:
        ShmaccumError: there is no arena or sender, see `node_producer` and `NodeSender`.
    """

    def __init__(self, settings: SinkSettings, columns: Iterable[str] | None = None) -> None:
        producer = node_producer(settings.arena, settings.producer_options, settings.arena_options)
        self._sender = NodeSender(producer.arena, settings)
        super().__init__(producer, settings.topic, columns, self._sender.check)

    def __enter__(self) -> TaskWriter:
        self._sender.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.__exit__()


def arrow_appender(arena: str, **options: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function for ``DataFrame.mapInArrow`` that appends every row and returns one row with their number.

    ::

        append = shmaccum.spark.arrow_appender("events", sink="log:/data/log", topic="flights")
        frame.mapInArrow(append, "record_count bigint").collect()

    A retried task appends its rows again, and each attempt waits for its own records.

    Args:
        arena: name or path of the arena on each node.
        options: those of ``.option(...)`` for the sink.

    Raises:
        InvalidArgumentError: an option is wrong.
    """
    settings = sink_settings({"arena": arena, **options})
    if settings.is_exactly_once:
        raise InvalidArgumentError(
            "a function of mapInArrow has no commit, so it cannot write exactly once: use the sink"
        )

    def append(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        with TaskWriter(settings) as task:
            for batch in batches:
                task.append(batch)
            yield pa.record_batch({"record_count": pa.array([task.finish().record_count], pa.int64())})

    return append
