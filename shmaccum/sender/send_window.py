# SPDX-License-Identifier: Apache-2.0
"""The batches of one partition of a log, from the log to the acks of a sink. A shipper and an overflow use it.

::

    log       │ delivered │ acked │ in flight │ read │ not read yet ...
                          ^ position                 ^ next offset
                          └──────── window ──────────┘ at most as many batches as the sink remembers

Rules
    The window begins at the written position, not at the last ack. A sink recognises the last few batches of a
    producer (a broker: five). So every batch whose state is unknown after a death is among those batches.

    A batch that failed is sent again when nothing of its partition is in flight, and alone.

    The first batch of a producer id or epoch is sent alone until it is acked. A sink that does not know the producer
    takes any sequence as its first, so a batch that overtakes a failed one would stay in front of it.

    A sink may report that a sequence cannot follow. The rest of the partition then starts over in another epoch. The
    position with that epoch is written before any batch is sent with it.

The native batch loop (batch_loop.py) sends ordinary batches. The window sends the others: the first batch of a producer
id or epoch, the first one after damage or at the start of a segment, and a batch that the sink did not take.

The owner of the window reads batches into it, gives them their headers, records results and writes the position:
`shipping/log_stream.py` for a log that is shipped, `backlog.py` for an overflow.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, final

from shmaccum._native import header_for_producer
from shmaccum.common.format.batch_header import HEADER_SIZE
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import CorruptLogError
from shmaccum.log.files import LogBatch, PartitionReader
from shmaccum.log.files.log_batch import UnreadBatch
from shmaccum.log.files.log_file import LogFile
from shmaccum.log.files.reader import Cursor
from shmaccum.sender.backoff import Backoff
from shmaccum.sender.sinks.sink import WireBatch
from shmaccum.sender.sinks.stream_end import StreamEnd, StreamState

if TYPE_CHECKING:
    from typing_extensions import Self


class Shipment:
    """A batch of a log that is being sent. A `WireBatch` refers to it in place of a batch of the arena.

    Attributes:
        batch: of the log.
        wire: the same batch, or a part of it, with the header that the sink gets.
        attempt_count: deliveries started.
        is_in_flight: the sink has not acked it yet.
        is_settled: the sink has the records of `wire`, or has rejected them permanently.
        is_ended: always False, because a batch of a log does not expire.
    """

    __slots__ = ("attempt_count", "batch", "is_in_flight", "is_settled", "wire")
    is_ended = False
    wire: WireBatch

    def __init__(self, batch: LogBatch | UnreadBatch) -> None:
        self.batch = batch
        self.attempt_count = 0
        self.is_in_flight = False
        self.is_settled = False

    @classmethod
    def of(cls, wire: WireBatch) -> Self:
        """Return the shipment that a `WireBatch` refers to."""
        shipment: object = wire.batch
        assert isinstance(shipment, cls)
        return shipment

    @property
    def is_complete(self) -> bool:
        """True if it is settled, and no part of its batch follows."""
        return self.is_settled

    @property
    def first_offset(self) -> int:
        """The offset of the first record of `wire`."""
        return self.batch.base_offset + self.wire.first_record

    @property
    def end_offset(self) -> int:
        """The offset after the last record of `wire`."""
        return self.first_offset + self.wire.record_count

    def build_wire(self, target: TopicPartition, index: int, producer: tuple[int, int, int]) -> None:
        """Make `wire`: the records as they are in the log, after a header as a producer writes it.

        Args:
            target: topic and partition at the sink.
            index: of the partition, by which the sink knows it.
            producer: id, epoch and sequence.
        """
        batch = self.batch
        buffers: tuple[memoryview, ...]
        if isinstance(batch, UnreadBatch):
            buffers, records = (memoryview(header_for_producer(batch.head, *producer)),), batch.records
        else:
            buffers, records = (memoryview(header_for_producer(batch.view, *producer)), batch.view[HEADER_SIZE:]), None
        carried: Any = self
        self.wire = WireBatch(
            *target,
            index,
            buffers,
            batch.size,
            batch.record_count,
            *producer,
            batch.header.max_timestamp_ms,
            self.attempt_count,
            carried,
            records=records,
        )


AnyShipment = TypeVar("AnyShipment", bound=Shipment)


@final
class SendWindow(Generic[AnyShipment]):
    """The batches of a partition that were read and are not delivered, and the place in the log after them.

    Attributes:
        shipments: the batches, in the order of the log.
        failure_count: failed deliveries in a row.
        resume_ns: nothing is sent before this time of the owner's clock.
        wants_epoch: the rest has to start over in another epoch.
        confirmed: the producer id and epoch of an acked batch; None after a new start.
        must_read: the native batch loop may be unable to send the next batch, so it is read here.
    """

    def __init__(self, reader: PartitionReader, backoff: Backoff, *, block_size: int | None = None) -> None:
        """Nothing is opened before the first `cursor`.

        Args:
            reader: of the partition.
            backoff: the pauses after failures.
            block_size: bytes per read of a verified batch, at least; None for the default of the reader. A batch in
                the window keeps its block in memory.
        """
        self.shipments: deque[AnyShipment] = deque()
        self.failure_count = 0
        self.resume_ns = 0
        self.wants_epoch = False
        self.confirmed: tuple[int, int] | None = None
        self.must_read = True
        self._reader = reader
        self._backoff = backoff
        self._block_size = block_size
        self._cursor: Cursor | None = None
        self._batches: Iterator[LogBatch] | None = None

    # --- facts

    @property
    def is_in_flight(self) -> bool:
        return any(shipment.is_in_flight for shipment in self.shipments)

    @property
    def is_open(self) -> bool:
        """True while the files of the log are open."""
        return self._cursor is not None

    @property
    def unread_place(self) -> tuple[LogFile, int] | None:
        """The file and the byte of the next header; None if only a read can find it."""
        return None if self._cursor is None else self._cursor.unread_place()

    def is_ordinary(self, now_ns: int) -> bool:
        """True if the native batch loop may send the next batches, once the window is empty."""
        is_sound = not (self.failure_count or self.wants_epoch or self.must_read)
        return is_sound and self.confirmed is not None and now_ns >= self.resume_ns and self.unread_place is not None

    def is_first(self, shipment: AnyShipment) -> bool:
        """True if all batches before it are complete."""
        return shipment is next((one for one in self.shipments if one is shipment or not one.is_complete), None)

    # --- read

    def next_offset(self, position: int) -> int:
        """Return the offset of the next batch to read, if the window begins at this position."""
        return self.shipments[-1].batch.next_offset if self.shipments else position

    def cursor(self, offset: int) -> Cursor:
        """Return the place in the log, at this offset if the files are not open yet."""
        if self._cursor is None:
            self._cursor = self._reader.cursor(offset, block_size=self._block_size)
        return self._cursor

    def read_verified(self, offset: int) -> LogBatch | None:
        """Return the next batch, with verified bytes; None if the log has no more. The offset is that of `cursor`."""
        batches, self._batches = self._batches or self.cursor(offset).poll(), None
        batch = next(batches, None)
        if batch is not None:
            self._batches = batches  # an iterator that has ended or failed is not used again
        return batch

    def take_damages(self) -> list[CorruptLogError]:
        """Return the damaged places of the log that were skipped since the last call."""
        found = list(self._reader.skipped)
        self._reader.skipped.clear()
        return found

    def take(self, end: StreamEnd) -> None:
        """Move to the place that the native batch loop reached. Requires an empty window."""
        self.must_read = end.state != StreamState.GOES
        if end.state == StreamState.BROKEN:
            self.rest()
        elif self._cursor is not None:
            self._cursor.skip_to(end.byte, end.offset)
            self._batches = None

    def rest(self) -> None:
        """Close the files of the log until more is read."""
        if self._cursor is not None:
            self._cursor.close()
        self._cursor = None
        self._batches = None

    # --- send

    def next_to_send(self, now_ns: int) -> AnyShipment | None:
        """Return the batch that may be sent now; None if none may."""
        if now_ns < self.resume_ns or self.wants_epoch or not self.shipments:
            return None
        if self.failure_count or self.confirmed is None:
            head = self.shipments[0]
            return None if head.is_settled or self.is_in_flight else head
        for shipment in self.shipments:
            if not (shipment.is_in_flight or shipment.is_settled):
                return shipment
        return None

    def sent(self, shipment: AnyShipment) -> None:
        """Note that a batch is in flight."""
        shipment.is_in_flight = True
        shipment.attempt_count += 1
        shipment.wire.attempt_count = shipment.attempt_count

    def acked(self, shipment: AnyShipment) -> None:
        """Note that the sink has a batch that was in flight."""
        self.confirmed = shipment.wire.producer_id, shipment.wire.producer_epoch
        self.settled(shipment)

    def settled(self, shipment: AnyShipment) -> None:
        """Note that a batch that was in flight is acked, or rejected permanently."""
        shipment.is_in_flight = False
        shipment.is_settled = True
        self.failure_count = 0
        self.resume_ns = 0

    def failed(self, shipment: AnyShipment) -> None:
        """Note that a batch that was in flight has to be sent again."""
        shipment.is_in_flight = False
        self.failure_count += 1

    def pause(self, pause_ns: int | None, now_ns: int) -> None:
        """Send nothing for a time. If `pause_ns` is None, it follows from the number of failures in a row."""
        self.resume_ns = now_ns + (self._backoff.pause_ns(self.failure_count) if pause_ns is None else pause_ns)

    # --- the position

    def due(self) -> list[AnyShipment]:
        """Return the batches at the front whose results are not in the position yet."""
        found: list[AnyShipment] = []
        for shipment in self.shipments:
            if shipment.is_settled:
                found.append(shipment)
            if not shipment.is_complete:
                break
        return found

    def advance(self) -> list[AnyShipment]:
        """Remove the complete batches from the window, after the position was written. Return them.

        They have no `wire` any more. It refers to its batch, and this reference cycle would delay freeing the memory.
        """
        found: list[AnyShipment] = []
        while self.shipments and self.shipments[0].is_complete:
            found.append(self.shipments.popleft())
            del found[-1].wire
        return found

    def start_over(self) -> None:
        """Reset the state, after the position with another epoch was written. The owner makes new headers."""
        self.wants_epoch = False
        self.confirmed = None


class PartitionStream(Protocol):
    """A partition of a log that is sent: the owner of a window."""

    @property
    def index(self) -> int:
        """The number by which the sink knows the partition."""

    @property
    def target(self) -> TopicPartition:
        """Topic and partition at the sink."""

    @property
    def window(self) -> SendWindow[Any]:
        """Its batches."""

    def next_to_send(self, now_ns: int) -> Shipment | None:
        """Return the batch that may be sent now; None if none may."""

    def row(self, topic_id: bytes | None) -> tuple[Any, ...]:
        """Return the partition as the native batch loop takes it (native/python/sender/batch_loop_parts.h)."""

    def take(self, end: StreamEnd) -> object:
        """Move to the place that the native batch loop reached."""


def take_delivery(streams: Iterable[PartitionStream], request_size_max: int, now_ns: int) -> list[WireBatch]:
    """Return the batches of one delivery, at most one of each partition. They are in flight from now on."""
    wires: list[WireBatch] = []
    size = 0
    for stream in streams:
        shipment = stream.next_to_send(now_ns)
        if shipment is None:
            continue
        if wires and size + shipment.wire.size > request_size_max:
            break
        stream.window.sent(shipment)
        wires.append(shipment.wire)
        size += shipment.wire.size
    return wires


def damage_sentence(subject: str, damage: CorruptLogError, done: str) -> str:
    """Return the report of a place of a log that cannot be read.

    Args:
        subject: the partition.
        done: what happened to the readable records, such as "shipped".
    """
    return (
        f"{subject} is damaged: bytes {damage.position} to {damage.resume_position} of {damage.segment} "
        f"({damage.problem}). The records before and after them are {done}"
    )
