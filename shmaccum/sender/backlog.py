# SPDX-License-Identifier: Apache-2.0
"""One partition of the overflow on its way to the sink (docs/decisions/0066).

::

    log     │ delivered │ acked │ in flight │ read │ not read yet ... │ perhaps still in the arena, too
                        ^ position                                    ^ end
                        └────── window ───────────┘ at most as many batches as the sink remembers

Rules
    A batch goes with the producer id and the sequence that it had in the arena: it was perhaps in flight when the
    outage began, and the sink recognises it by them.
    The window begins at the position in the file, not at the last ack. So whatever a death leaves unknown lies among
    the batches that the sink recognises.
    Batches behind the end are not sent: a copy of them may lie in the arena (overflow.py).
    A batch that is to come again comes when nothing of its partition is in flight, and alone. The first batch goes
    alone until it is acked, and so does the first of another producer id or epoch.
    The sink says that a sequence cannot follow: the rest of the partition starts over in an epoch of its own, with
    sequences that follow from the offsets. The position with that epoch is written down before any batch goes with it.
    A batch that is too large goes in the parts that the arena would make of it (splitting.py), and the position moves
    on inside of it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from shmaccum._native import header_for_producer
from shmaccum.common.format.batch_header import HEADER_SIZE
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import format_count
from shmaccum.exceptions import CorruptLogError
from shmaccum.log.files import LogBatch, PartitionReader
from shmaccum.log.files.log_file import LogFile
from shmaccum.log.files.producer_state import SEQUENCE_MASK
from shmaccum.log.files.reader import Cursor
from shmaccum.log.files.record_writer import NewRecord, make_batch
from shmaccum.sender.backoff import NS_PER_MS, Backoff
from shmaccum.sender.sinks.convoy import NOT_SYNCED, LaneEnd, LaneState
from shmaccum.sender.sinks.sink import Ack, Verdict, WireBatch
from shmaccum.sender.spill_file import OverflowBatch, OverflowPosition, SpillFile
from shmaccum.sender.splitting import node_end

READ_AHEAD_SIZE = 4 << 20
"""Bytes of a window, but for its first batch."""
LOCAL_ID_START = 1 << 62
"""Producer ids from here on were given by the overflow itself, before any sink was reached: no sink knows them."""


@final
@dataclass(slots=True, eq=False)
class SpilledBatch:
    """A batch of the overflow in the place of the arena's batch behind a `WireBatch`: it does not expire."""

    partition_index: int
    log_batch: LogBatch
    row: OverflowBatch | None
    created_ns: int
    attempt_count: int = 0
    is_ended: bool = False
    is_over: bool = True
    """Nothing of it is to be given back to the arena."""
    linger_ns: int = -1
    record_size_max: int = 0

    @property
    def record_count(self) -> int:
        return self.log_batch.record_count

    @property
    def seq(self) -> int:
        """The number of the batch in the arena; of a batch whose row is gone, its offset."""
        return self.log_batch.base_offset if self.row is None else self.row.seq

    def decode(self) -> list[Any]:
        """Its records, as `Batch.decode` gives them."""
        base_offset = self.log_batch.base_offset
        return [(record[0] - base_offset, *record[1:]) for record in self.log_batch.records()]


def spilled_of(wire: WireBatch) -> SpilledBatch | None:
    """The batch of the overflow behind a batch; None behind one of the arena."""
    batch: object = wire.batch
    return batch if isinstance(batch, SpilledBatch) else None


@final
@dataclass(slots=True, eq=False)
class OverflowShipment:
    """Records [first, first + count) of a batch of the window."""

    spilled: SpilledBatch
    wire: WireBatch
    is_out: bool = False
    outcome: Ack | None = None
    """The answer that ends it; None: it goes (again)."""
    is_recorded: bool = False

    @property
    def first_offset(self) -> int:
        """The offset of its first record."""
        return self.spilled.log_batch.base_offset + self.wire.first_record

    @property
    def end_offset(self) -> int:
        """The offset behind its last record."""
        return self.spilled.log_batch.base_offset + self.wire.first_record + self.wire.record_count

    @property
    def is_over(self) -> bool:
        """True when it has its outcome, and no part of its batch follows."""
        return self.outcome is not None and self.wire.first_record + self.wire.record_count >= self.spilled.record_count


@final
class Backlog:
    """A partition of the overflow.

    Attributes:
        index: of the partition in the arena.
        place: its topic and partition.
        file: its position and rows.
        end_offset: batches from here on are not shipped.
        failure_count: failed deliveries in a row.
        resume_ns: nothing is sent before this time of the arena's clock.
        wants_epoch: the rest has to start over in another epoch.
        late_seqs: numbers of batches that came in behind younger ones of their partition.
        end_seq: no batch of this arena at this number, or above it, was ever in the overflow.
    """

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
        """Takes the partition up at its position; nothing is read yet."""
        self.index = index
        self.place = place
        self.file = file
        self.end_offset = file.position.offset
        self.failure_count = 0
        self.resume_ns = 0
        self.wants_epoch = False
        self.late_seqs: set[int] = set()
        self.end_seq = 0
        self._arena = arena
        self._reader = reader
        self._in_flight_max = in_flight_max
        self._backoff = backoff
        self._report = report
        self._window: deque[OverflowShipment] = deque()
        self._cursor: Cursor | None = None
        self._batches: Iterator[LogBatch] = iter(())
        self._next_batch: LogBatch | None = None
        self._row_index = 0
        self._known_producer: tuple[int, int] | None = None
        self._has_to_look = True

    # --- facts

    @property
    def position(self) -> OverflowPosition:
        """The one that is written down."""
        return self.file.position

    @property
    def is_empty(self) -> bool:
        """True when everything up to the end is delivered, and written down to be."""
        return self.position.offset >= self.end_offset

    @property
    def is_out(self) -> bool:
        """True while a batch is in flight."""
        return any(shipment.is_out for shipment in self._window)

    @property
    def has_read_ahead(self) -> bool:
        """True while a batch was read that is not delivered."""
        return bool(self._window)

    def is_ordinary(self, now_ns: int) -> bool:
        """True when the next batches may go in a convoy, once nothing is read ahead."""
        may_go = self._known_producer is not None and not self._has_to_look and now_ns >= self.resume_ns
        is_sound = not (self.failure_count or self.wants_epoch or self.late_seqs)
        return may_go and is_sound and self._unread_place is not None

    @property
    def _unread_place(self) -> tuple[LogFile, int] | None:
        """The file and the byte of the next header; None where the backlog has to look itself."""
        return None if self._cursor is None or self._next_batch is not None else self._cursor.unread_place()

    @property
    def batch_count(self) -> int:
        """Batches that are not delivered, as far as the rows tell."""
        return self.file.row_count - self.file.find(self.position.offset)

    # --- arrivals

    def take_up(self, end_offset: int) -> None:
        """Everything below the end is left from the former sender; the rows tell which batches of the arena it is."""
        if end_offset < self.position.offset:  # a crash of the host took the end of the log
            self.file.write_position(OverflowPosition(end_offset, identity=self.position.identity))
        self.end_offset = end_offset
        self.file.cut(self.file.find(end_offset))
        own = [row.seq for row in self.file.rows(self.file.find(self.position.offset)) if row.arena == self._arena]
        for seq in own:
            self._note_seq(seq)

    def add(self, rows: Sequence[OverflowBatch], end_offset: int) -> None:
        """Batches lie in the log below the end by now; their rows are written behind the others.

        Raises:
            OSError: no row is there, and the end is where it was.
        """
        last = self.file.row(self.file.row_count - 1)
        new = [row for row in rows if last is None or row.base_offset > last.base_offset]
        self.file.append(new)
        for row in rows:
            self._note_seq(row.seq)
        self.end_offset = max(self.end_offset, end_offset)

    def spill_file(self) -> tuple[int, int, int, int]:
        """The spill file for a native call that writes rows (native/sender/log_run.h)."""
        return self.file.descriptor, self.file.row_count, self.end_seq, self._arena

    def added(self, row_count: int, end_offset: int) -> None:
        """A native call has written so many rows, of batches that are younger than all before."""
        self.file.row_count += row_count
        row = self.file.row(self.file.row_count - 1)
        assert row is not None
        self.end_seq = row.seq + 1
        self.end_offset = end_offset

    def _note_seq(self, seq: int) -> None:
        if seq < self.end_seq:
            self.late_seqs.add(seq)
        self.end_seq = max(self.end_seq, seq + 1)

    def seq_range(self) -> tuple[int, int] | None:
        """The numbers of the batches of this arena that are left: the first, and the end; None while it is unchanged.

        Batches of another arena lie in front of those of this one.
        """
        if self.is_empty:
            return 0, 0
        row = self._window[0].spilled.row if self._window else self.file.row(self.file.find(self.position.offset))
        if row is None or row.arena != self._arena:
            return None
        return min(row.seq, *self.late_seqs, self.end_seq), self.end_seq

    # --- reading

    def read(self, now_ns: int) -> None:
        """Fills the window."""
        self._has_to_look = False
        size = sum(shipment.wire.size for shipment in self._window)
        while len(self._window) < self._in_flight_max and (not size or size < READ_AHEAD_SIZE):
            batch = self._peek()
            if batch is None:
                return
            self._next_batch = None
            shipment = self._shipment(batch, now_ns)
            self._window.append(shipment)
            size += shipment.wire.size

    @property
    def has_lost_its_end(self) -> bool:
        """True after `read`, when no whole batch lies in front of the end: all were written, so they are damaged."""
        return not self._window and not self.is_empty

    def pass_lost_end(self) -> None:
        """Goes on behind records at the end that cannot be read any more.

        Raises:
            OSError: the position is where it was.
        """
        lost = format_count(self.end_offset - self.position.offset, "record")
        self.file.write_position(self.position._replace(offset=self.end_offset))
        self.rest()
        self._report(f"the overflow of {self.place} is damaged at its end: {lost} cannot be read, and are lost")

    def _peek(self) -> LogBatch | None:
        """The next batch of the log below the end."""
        if self._next_batch is None:
            if self._cursor is None:
                offset = self._window[-1].spilled.log_batch.next_offset if self._window else self.position.offset
                self._cursor = self._reader.cursor(offset)
                self._row_index = self.file.find(offset)
            self._next_batch = next(self._batches, None)
            if self._next_batch is None:  # read to the end, which may lie behind it by now
                self._batches = self._cursor.poll()
                self._next_batch = next(self._batches, None)
            self._tell_damage()
        batch = self._next_batch
        return None if batch is None or batch.base_offset >= self.end_offset else batch

    def _tell_damage(self) -> None:
        for damage in self._reader.skipped:
            self._report(_damage_sentence(self.place, damage))
        self._reader.skipped.clear()

    def rest(self) -> None:
        """Lets go of the log's files until more is read. Requires an empty window."""
        if self._cursor is not None:
            self._cursor.close()
        self._cursor = None
        self._next_batch = None
        self._batches = iter(())

    def _row_of(self, batch: LogBatch) -> OverflowBatch | None:
        while (row := self.file.row(self._row_index)) is not None and row.base_offset < batch.base_offset:
            self._row_index += 1  # its batch is damaged, or begins before the position
        return row if row is not None and row.base_offset == batch.base_offset else None

    # --- wires

    def _shipment(self, batch: LogBatch, now_ns: int) -> OverflowShipment:
        age_ns = max(time.time_ns() - batch.header.base_timestamp_ms * NS_PER_MS, 0)
        row = self._row_of(batch)
        spilled = SpilledBatch(self.index, batch, row, max(now_ns - age_ns, 0))
        first = max(self.position.offset - batch.base_offset, 0)
        end = node_end(first, batch.record_count) if first else batch.record_count
        return OverflowShipment(spilled, self._wire(spilled, first, end))

    def _wire(self, spilled: SpilledBatch, first: int, end: int) -> WireBatch:
        batch = spilled.log_batch
        is_whole = end - first == batch.record_count
        producer_id, epoch, sequence = self._identity_of(batch, first)
        buffers = self._whole(batch) if is_whole else self._part(batch, first, end, producer_id, epoch, sequence)
        carried: Any = spilled
        return WireBatch(
            self.place.topic,
            self.place.partition,
            self.index,
            buffers,
            sum(map(len, buffers)),
            end - first,
            producer_id,
            epoch,
            sequence,
            batch.max_timestamp_ms,
            spilled.attempt_count,
            carried,
            first,
        )

    def _identity_of(self, batch: LogBatch, first: int) -> tuple[int, int, int]:
        """Producer id, epoch and sequence of a record of a batch."""
        position = self.position
        if position.has_own_sequences:
            return batch.producer_id, batch.producer_epoch, (batch.base_sequence + first) & SEQUENCE_MASK
        return position.producer_id, position.producer_epoch, position.sequence_at(batch.base_offset + first)

    def _whole(self, batch: LogBatch) -> tuple[memoryview, ...]:
        """The batch as a producer sends it: its records as they lie in the log."""
        header = header_for_producer(batch.view, *self._identity_of(batch, 0))
        return memoryview(header), batch.view[HEADER_SIZE:]

    def _part(
        self, batch: LogBatch, first: int, end: int, producer_id: int, epoch: int, sequence: int
    ) -> tuple[memoryview, ...]:
        """Some records of a batch, as a batch of their own."""
        records = [NewRecord(*record[1:]) for record in batch.records()[first:end]]
        made = make_batch(records, identity=(producer_id, epoch, sequence))
        return made.buffers

    # --- sending

    def next_wire(self, now_ns: int) -> WireBatch | None:
        """The batch that may be sent now; None: none may."""
        if now_ns < self.resume_ns or self.wants_epoch or not self._window:
            return None
        if self.failure_count or self._known_producer is None:
            head = self._window[0]
            return None if head.is_out or head.outcome is not None or self.is_out else head.wire
        following = next((one for one in self._window if not one.is_out and one.outcome is None), None)
        if following is None or (self.is_out and not self._may_follow(following.wire)):
            return None
        return following.wire

    def _may_follow(self, wire: WireBatch) -> bool:
        """True when nothing in flight has another producer id or epoch."""
        out = next(one.wire for one in self._window if one.is_out)
        return (out.producer_id, out.producer_epoch) == (wire.producer_id, wire.producer_epoch)

    def sent(self, wire: WireBatch) -> None:
        """A batch is in flight."""
        shipment = self._shipment_of(wire)
        shipment.is_out = True
        shipment.spilled.attempt_count += 1
        wire.attempt_count = shipment.spilled.attempt_count

    def _shipment_of(self, wire: WireBatch) -> OverflowShipment:
        return next(shipment for shipment in self._window if shipment.wire is wire)

    def is_head(self, wire: WireBatch) -> bool:
        """True when all batches before it have their outcome."""
        for shipment in self._window:
            if shipment.wire is wire:
                return True
            if not shipment.is_over:
                return False
        return False

    # --- in a convoy

    def lane(self, topic_ids: Mapping[str, bytes]) -> tuple[tuple[Any, ...], tuple[int, int, int, int, bytes]]:
        """The backlog as a lane of a convoy, and its spill file (native/python/sender/convoy_parts.h).

        Args:
            topic_ids: by topic; empty where requests have names.
        """
        assert self._unread_place is not None
        assert self._known_producer is not None
        file, byte = self._unread_place
        position = self.position
        origin = -1 if position.has_own_sequences else position.origin
        topic, partition = self.place
        offsets = position.offset, self.end_offset, NOT_SYNCED
        row = topic, topic_ids.get(topic), partition, file, byte, *offsets, *self._known_producer, origin, -1, b"", b""
        descriptor, number, content = self.file.position_for_convoy()
        return row, (self.index, descriptor, self._row_index, number, content)

    def take(self, end: LaneEnd, row_index: int, number: int) -> None:
        """Takes over how far a convoy came, the row that it came to, and the number of its last position."""
        assert self._cursor is not None
        self.file.moved(number, end.offset)
        self._row_index = row_index
        self._has_to_look = end.state != LaneState.GOES
        if end.state == LaneState.BROKEN:
            self.rest()
        else:
            self._cursor.skip_to(end.byte, end.offset)
            self._batches = iter(())

    # --- answers

    def back(self, wire: WireBatch) -> None:
        """A batch is not in flight any more."""
        self._shipment_of(wire).is_out = False

    def end(self, ack: Ack) -> None:
        """A batch has its outcome: delivered, or refused for good."""
        shipment = self._shipment_of(ack.wire)
        shipment.outcome = ack
        self.failure_count = 0
        self.resume_ns = 0
        if ack.verdict is Verdict.DELIVERED:
            self._known_producer = ack.wire.producer_id, ack.wire.producer_epoch

    def again(self, wire: WireBatch, pause_ns: int | None, now_ns: int) -> None:
        """A batch comes again, alone, after a pause; None: the pause of its failures in a row."""
        self.failure_count += 1
        pause_ns = self._backoff.pause_ns(self.failure_count) if pause_ns is None else pause_ns
        self.resume_ns = now_ns + pause_ns
        self._renew(self._shipment_of(wire), wire.first_record, wire.first_record + wire.record_count)

    def halve(self, wire: WireBatch) -> None:
        """A batch was too large, and has more than one record: its first half goes next."""
        self.failure_count += 1
        shipment = self._shipment_of(wire)
        self._renew(shipment, wire.first_record, wire.first_record + wire.record_count // 2)

    def _renew(self, shipment: OverflowShipment, first: int, end: int) -> None:
        """The sink has let go of the bytes, and their views are released: others take their place."""
        shipment.wire = self._wire(shipment.spilled, first, end)

    # --- the position

    def done(self) -> list[OverflowShipment]:
        """The batches at the front that have their outcome."""
        found: list[OverflowShipment] = []
        for shipment in self._window:
            if shipment.outcome is not None:
                found.append(shipment)
            if not shipment.is_over:
                break
        return found

    def advance(self, done: list[OverflowShipment]) -> None:
        """Writes down that these are delivered, and goes on behind them.

        Raises:
            OSError: they are to be written down again.
        """
        self.file.write_position(self.position._replace(offset=done[-1].end_offset))
        for shipment in done:
            if shipment.is_over:
                self._window.popleft()
            else:
                self._go_on(shipment)

    def _go_on(self, shipment: OverflowShipment) -> None:
        """A part has its outcome: the next one follows."""
        first = shipment.wire.first_record + shipment.wire.record_count
        shipment.outcome, shipment.is_recorded = None, False
        self._renew(shipment, first, node_end(first, shipment.spilled.record_count))

    @property
    def must_start_over(self) -> bool:
        """True when the rest has to go in another epoch, and nothing is in flight."""
        if not self._window or self.is_out or any(one.outcome is not None for one in self._window):
            return False
        wire = self._window[0].wire
        is_strange = self.position.has_own_sequences and (wire.producer_id >= LOCAL_ID_START or wire.producer_id < 0)
        return self.wants_epoch or is_strange

    def start_over(self, producer_id: int, epoch: int, identity: bytes) -> None:
        """The rest goes in an epoch of its own, from the first batch on that can be read. Requires one in the window.

        Raises:
            OSError: it could not be written down, and nothing has changed.
        """
        offset = self._window[0].first_offset
        self.file.write_position(OverflowPosition(offset, producer_id, epoch, offset, identity))
        self.wants_epoch, self._known_producer = False, None
        for shipment in self._window:
            first = shipment.wire.first_record
            self._renew(shipment, first, first + shipment.wire.record_count)

    def finish(self) -> None:
        """Everything is delivered: the next batches that come go with their own ids again.

        Raises:
            OSError: the file is as it was.
        """
        self.rest()
        self.file.write_position(OverflowPosition(self.end_offset, identity=self.position.identity))
        self.file.cut(0)
        self._row_index = 0
        self._known_producer = None


def _damage_sentence(place: TopicPartition, damage: CorruptLogError) -> str:
    return (
        f"the overflow of {place} is damaged: bytes {damage.position} to {damage.resume_position} of {damage.segment} "
        f"({damage.problem}). The records before and behind them are delivered"
    )
