# SPDX-License-Identifier: Apache-2.0
"""One partition of the overflow, as it is shipped to the sink (docs/decisions/0066).

::

    log     │ delivered │ acked │ in flight │ read │ not read yet ... │ may still be in the arena, too
                        ^ position                                    ^ end
                        └────── window ───────────┘

Rules, besides those of the window (send_window.py)
    A batch is sent with the producer id and the sequence that it had in the arena. It may have been in flight when the
    outage began, and the sink recognises it by them.
    Batches from the end on are not sent: a copy of them may be in the arena (overflow.py).
    If the partition starts over in an epoch of its own, the sequences are computed from the offsets.
    A batch that is too large is sent in the parts that the arena would make of it (batch_splitter.py), and the position
    moves inside it.
    The native batch loop records the results of ordinary batches and writes their positions
    (native/sender/spill_recorder.h). `done` and `advance` are for the batches that the window has sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, final

from shmaccum.common.clock import NS_PER_MS
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import format_count
from shmaccum.log.files import LogBatch, PartitionReader
from shmaccum.log.files.producer_state import SEQUENCE_MASK
from shmaccum.log.files.record_writer import NewRecord, make_batch
from shmaccum.sender.backoff import Backoff
from shmaccum.sender.batch_splitter import node_end
from shmaccum.sender.send_window import SendWindow, Shipment, damage_sentence
from shmaccum.sender.sinks.sink import Ack, Verdict, WireBatch
from shmaccum.sender.sinks.stream_end import NOT_SYNCED, StreamEnd
from shmaccum.sender.spill_file import OverflowBatch, OverflowPosition, SpillFile

BLOCK_SIZE = 4 << 10
"""Bytes per read, at least. A batch that is larger is read alone, so it keeps no other one in memory."""
LOCAL_ID_START = 1 << 62
"""Producer ids from here on were assigned by the overflow before any sink was reached, so no sink knows them."""


@final
class SpilledBatch(Shipment):
    """A batch of the overflow.

    Attributes:
        outcome: the final ack of the batch or of its present part.
        is_recorded: the outcome is in the arena.
    """

    __slots__ = ("created_ns", "is_recorded", "outcome", "partition_index", "row")
    batch: LogBatch
    is_over = True
    """No part of it is to be requeued in the arena."""
    linger_ns = -1
    record_size_max = 0

    def __init__(self, batch: LogBatch, partition_index: int, row: OverflowBatch | None, created_ns: int) -> None:
        super().__init__(batch)
        self.partition_index = partition_index
        self.row = row
        self.created_ns = created_ns
        self.outcome: Ack | None = None
        self.is_recorded = False

    @property
    def is_complete(self) -> bool:
        """True if it is settled, and no part of it follows."""
        return self.is_settled and self.wire.first_record + self.wire.record_count >= self.record_count

    @property
    def record_count(self) -> int:
        return self.batch.record_count

    @property
    def seq(self) -> int:
        """The number of the batch in the arena; its offset if its row is missing."""
        return self.batch.base_offset if self.row is None else self.row.seq

    def decode(self) -> list[Any]:
        """Return its records, as `Batch.decode` does."""
        base_offset = self.batch.base_offset
        return [(record[0] - base_offset, *record[1:]) for record in self.batch.records()]

    def cut(self, first: int, end: int) -> None:
        """Reduce `wire` to a batch of these records."""
        wire = self.wire
        records = [NewRecord(*record[1:]) for record in self.batch.records()[first:end]]
        part = make_batch(records, identity=(wire.producer_id, wire.producer_epoch, wire.base_sequence))
        wire.buffers, wire.size = part.buffers, part.size
        wire.first_record, wire.record_count = first, end - first


@final
class Backlog:
    """A partition of the overflow.

    Attributes:
        index: of the partition in the arena.
        place, target: its topic and partition, which are the same at the sink.
        file: its position and rows.
        window: the batches that were read.
        end_offset: batches from here on are not shipped. `continue_from` sets it.
        late_seqs: numbers of batches that were added after younger ones of their partition.
        end_seq: greater than every number of this arena's batches that were ever in the overflow.
    """

    end_offset: int

    def __init__(
        self,
        index: int,
        place: TopicPartition,
        reader: PartitionReader,
        file: SpillFile,
        arena: int,
        *,
        in_flight_max: int,
        backoff: Backoff,
        report: Callable[[str], object],
    ) -> None:
        """Start at the position of the partition; nothing is read yet."""
        self.index = index
        self.place = self.target = place
        self.file = file
        self.window: SendWindow[SpilledBatch] = SendWindow(reader, backoff, block_size=BLOCK_SIZE)
        self.late_seqs: set[int] = set()
        self.end_seq = 0
        self._arena = arena
        self._in_flight_max = in_flight_max
        self._report = report
        self._next_batch: LogBatch | None = None
        self._row_index = 0

    # --- facts

    @property
    def position(self) -> OverflowPosition:
        """The last written position."""
        return self.file.position

    @property
    def is_empty(self) -> bool:
        """True if everything up to the end is delivered, and the position shows it."""
        return self.position.offset >= self.end_offset

    @property
    def read_size(self) -> int:
        """The bytes of the batches in the window."""
        return sum(shipment.batch.size for shipment in self.window.shipments)

    @property
    def has_read_ahead(self) -> bool:
        """True while a batch was read that is not delivered."""
        return bool(self.window.shipments)

    def is_ordinary(self, now_ns: int) -> bool:
        """True if the native batch loop may send the next batches, once the window is empty."""
        return not self.late_seqs and self._next_batch is None and self.window.is_ordinary(now_ns)

    @property
    def batch_count(self) -> int:
        """The number of undelivered batches, as far as the rows show."""
        return self.file.row_count - self.file.find(self.position.offset)

    # --- arrivals

    def continue_from(self, end_offset: int) -> None:
        """Continue with everything below the end, which a former sender left. The rows name the arena's batches."""
        if end_offset < self.position.offset:  # the end of the log was lost in a crash of the host
            self.file.write_position(OverflowPosition(end_offset, identity=self.position.identity))
        self.end_offset = end_offset
        self.file.cut(self.file.find(end_offset))
        for seq in self._own_seqs():
            self._record_seq(seq)

    def _own_seqs(self) -> list[int]:
        return [row.seq for row in self.file.rows(self.file.find(self.position.offset)) if row.arena == self._arena]

    def seqs(self) -> set[int]:
        """Return the numbers of this arena's undelivered batches, as far as the rows show."""
        return set(self._own_seqs())

    def add(self, rows: Sequence[OverflowBatch], end_offset: int) -> None:
        """Add batches that are in the log below the end; append their rows.

        Raises:
            OSError: no row is written, and the end is unchanged.
        """
        last = self.file.row(self.file.row_count - 1)
        new = [row for row in rows if last is None or row.base_offset > last.base_offset]
        self.file.append(new)
        for row in rows:
            self._record_seq(row.seq)
        self.end_offset = max(self.end_offset, end_offset)

    def spill_file(self) -> tuple[int, int, int, int]:
        """Return the spill file for a native call that writes rows (native/sender/log_run.h)."""
        return self.file.descriptor, self.file.row_count, self.end_seq, self._arena

    def added(self, row_count: int, end_offset: int) -> None:
        """Add batches whose rows a native call has written; they are younger than all before."""
        self.file.row_count += row_count
        row = self.file.row(self.file.row_count - 1)
        assert row is not None
        self.end_seq = row.seq + 1
        self.end_offset = end_offset

    def _record_seq(self, seq: int) -> None:
        if seq < self.end_seq:
            self.late_seqs.add(seq)
        self.end_seq = max(self.end_seq, seq + 1)

    def seq_range(self) -> tuple[int, int] | None:
        """Return the first number and the end of this arena's undelivered batches; None if they have not changed.

        Batches of another arena precede those of this one.
        """
        if self.is_empty:
            return 0, 0
        shipments = self.window.shipments
        row = shipments[0].row if shipments else self.file.row(self.file.find(self.position.offset))
        if row is None or row.arena != self._arena:
            return None
        return min(row.seq, *self.late_seqs, self.end_seq), self.end_seq

    # --- reading

    def read(self, now_ns: int, size_max: int) -> None:
        """Read batches into the window until it is full.

        Args:
            now_ns: the arena's clock.
            size_max: nothing is read once the window has this many bytes. An empty window may always have one batch.
        """
        self.window.must_read = False
        shipments = self.window.shipments
        size = self.read_size
        while len(shipments) < self._in_flight_max and (not shipments or size < size_max):
            batch = self._peek()
            if batch is None:
                return
            self._next_batch = None
            shipments.append(self._spilled(batch, now_ns))
            size += batch.size

    @property
    def has_lost_its_end(self) -> bool:
        """True if, after `read`, there is no intact batch before the end. The batches there are damaged."""
        return not self.has_read_ahead and not self.is_empty

    def pass_lost_end(self) -> None:
        """Continue after records at the end that cannot be read any more.

        Raises:
            OSError: the position is unchanged.
        """
        lost = format_count(self.end_offset - self.position.offset, "record")
        self.file.write_position(self.position._replace(offset=self.end_offset))
        self.rest()
        self._report(f"the overflow of {self.place} is damaged at its end: {lost} cannot be read, and are lost")

    def _peek(self) -> LogBatch | None:
        """Return the next batch of the log below the end."""
        if self._next_batch is None:
            offset = self.window.next_offset(self.position.offset)
            if not self.window.is_open:
                self._row_index = self.file.find(offset)
            self._next_batch = self.window.read_verified(offset)
            for damage in self.window.take_damages():
                self._report(damage_sentence(f"the overflow of {self.place}", damage, "delivered"))
        batch = self._next_batch
        return None if batch is None or batch.base_offset >= self.end_offset else batch

    def rest(self) -> None:
        """Close the log's files until more is read. Requires an empty window."""
        self.window.rest()
        self._next_batch = None

    def _row_of(self, batch: LogBatch) -> OverflowBatch | None:
        while (row := self.file.row(self._row_index)) is not None and row.base_offset < batch.base_offset:
            self._row_index += 1  # its batch is damaged, or begins before the position
        return row if row is not None and row.base_offset == batch.base_offset else None

    # --- wires

    def _spilled(self, batch: LogBatch, now_ns: int) -> SpilledBatch:
        age_ns = max(time.time_ns() - batch.header.base_timestamp_ms * NS_PER_MS, 0)
        spilled = SpilledBatch(batch, self.index, self._row_of(batch), max(now_ns - age_ns, 0))
        first = max(self.position.offset - batch.base_offset, 0)
        self._make_wire(spilled, first, node_end(first, batch.record_count) if first else batch.record_count)
        return spilled

    def _make_wire(self, spilled: SpilledBatch, first: int, end: int) -> None:
        """Make the wire of some records. The sink has released the bytes of the former one."""
        spilled.build_wire(self.place, self.index, self._identity_of(spilled.batch, first))
        if end - first < spilled.record_count:
            spilled.cut(first, end)

    def _identity_of(self, batch: LogBatch, first: int) -> tuple[int, int, int]:
        """Return producer id, epoch and sequence of a record of a batch."""
        position = self.position
        if position.has_own_sequences:
            return batch.producer_id, batch.producer_epoch, (batch.base_sequence + first) & SEQUENCE_MASK
        return position.producer_id, position.producer_epoch, position.sequence_at(batch.base_offset + first)

    # --- sending

    def next_to_send(self, now_ns: int) -> SpilledBatch | None:
        """The batch that may be sent now; None if there is none, or while a batch of another producer or epoch is in
        flight.
        """
        following = self.window.next_to_send(now_ns)
        out = next((one.wire for one in self.window.shipments if one.is_in_flight), None)
        if following is None or out is None:
            return following
        wire = following.wire
        is_same = (out.producer_id, out.producer_epoch) == (wire.producer_id, wire.producer_epoch)
        return following if is_same else None

    # --- the native batch loop

    def row(self, topic_id: bytes | None) -> tuple[Any, ...]:
        """Return the partition as the native batch loop takes it (native/python/sender/batch_loop_parts.h)."""
        assert self.window.unread_place is not None
        assert self.window.confirmed is not None
        file, byte = self.window.unread_place
        topic, partition = self.place
        position = self.position
        offsets = position.offset, self.end_offset, NOT_SYNCED
        origin = -1 if position.has_own_sequences else position.origin
        return topic, topic_id, partition, file, byte, *offsets, *self.window.confirmed, origin, -1, b"", b""

    def spill(self) -> tuple[int, int, int, int, bytes]:
        """Return its spill file as the native batch loop takes it."""
        descriptor, number, content = self.file.position_for_native_call()
        return self.index, descriptor, self._row_index, number, content

    def take(self, end: StreamEnd) -> None:
        """Move to the place that the native batch loop reached. `take_spill` follows."""
        self.window.take(end)

    def take_spill(self, offset: int, row_index: int, number: int) -> None:
        """Set the last position that the native batch loop has written, and the row that it reached."""
        self.file.moved(number, offset)
        self._row_index = row_index

    # --- answers

    def end(self, ack: Ack) -> None:
        """Record the outcome of a batch: delivered, or rejected permanently."""
        shipment = SpilledBatch.of(ack.wire)
        shipment.outcome = ack
        if ack.verdict is Verdict.DELIVERED:
            self.window.acked(shipment)
        else:
            self.window.settled(shipment)

    def retry(self, wire: WireBatch, pause_ns: int | None, now_ns: int) -> None:
        """Retry a batch, alone, after a pause. If it is None, the pause follows from the failures in a row."""
        shipment = SpilledBatch.of(wire)
        self.window.failed(shipment)
        self.window.pause(pause_ns, now_ns)
        self._make_wire(shipment, wire.first_record, wire.first_record + wire.record_count)

    def halve(self, wire: WireBatch) -> None:
        """Halve a batch that was too large, and has more than one record. Its first half is sent next."""
        shipment = SpilledBatch.of(wire)
        self.window.failed(shipment)
        self._make_wire(shipment, wire.first_record, wire.first_record + wire.record_count // 2)

    # --- the position

    def advance(self, done: Sequence[SpilledBatch]) -> None:
        """Write the position after these delivered batches, and continue.

        Raises:
            OSError: the position has to be written again.
        """
        self.file.write_position(self.position._replace(offset=done[-1].end_offset))
        if not done[-1].is_complete:
            self._next_part(done[-1])
        for shipment in self.window.advance():
            shipment.outcome = None  # it refers to the batch, and the cycle would delay freeing the memory

    def _next_part(self, shipment: SpilledBatch) -> None:
        """Continue with the next part of a batch."""
        first = shipment.wire.first_record + shipment.wire.record_count
        shipment.outcome, shipment.is_settled, shipment.is_recorded = None, False, False
        self._make_wire(shipment, first, node_end(first, shipment.record_count))

    @property
    def must_start_over(self) -> bool:
        """True if the rest has to be sent in another epoch, and nothing is in flight."""
        window = self.window
        if not window.shipments or any(one.is_in_flight or one.is_settled for one in window.shipments):
            return False
        wire = window.shipments[0].wire
        is_strange = self.position.has_own_sequences and (wire.producer_id >= LOCAL_ID_START or wire.producer_id < 0)
        return window.wants_epoch or is_strange

    def start_over(self, producer_id: int, epoch: int, identity: bytes) -> None:
        """Send the rest in an epoch of its own, from the first readable batch on. Requires a batch in the window.

        Raises:
            OSError: the position could not be written, and nothing has changed.
        """
        offset = self.window.shipments[0].first_offset
        self.file.write_position(OverflowPosition(offset, producer_id, epoch, offset, identity))
        self.window.start_over()
        for shipment in self.window.shipments:
            first = shipment.wire.first_record
            self._make_wire(shipment, first, first + shipment.wire.record_count)

    def finish(self) -> None:
        """Reset the files after everything is delivered: new batches are sent with their own ids again.

        Raises:
            OSError: the file is unchanged.
        """
        self.rest()
        self.file.write_position(OverflowPosition(self.end_offset, identity=self.position.identity))
        self.file.cut(0)
        self._row_index = 0
        self.window.start_over()
