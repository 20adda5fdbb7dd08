# SPDX-License-Identifier: Apache-2.0
"""One partition of a log that is shipped.

Rules, besides those of the window (send_window.py)
    A batch keeps every byte but its first 61. Its new header has the shipper's producer id, the epoch of the position,
    and a sequence that is computed from its offset. Base offset and leader epoch are those of a batch from a producer.

    If a sink takes files, it gets the records unread, and the stream reads only headers. The new checksum of such a
    batch is computed from the old one, and is wrong if the batch is damaged. So the sink rejects a damaged batch, and
    an ack proves that the batch is intact. After an unread batch failed, the stream verifies its bytes. If they are
    damaged, the stream removes all unacked batches from the window, and verifies every byte when it reads from its
    position again, which finds and reports the damage.
    If no header follows (the end of a segment, damage), the stream waits until all unread batches are acked. Then it
    reads and verifies what follows.

    The batches of a window are consecutive, without a gap. If the log has a gap (damage, deleted records), the
    partition starts over after it: all batches before it are acked, the next epoch is written to disk, then the first
    batch after the gap is sent with sequence 0. The same happens if the sink reports that a sequence cannot follow.

    If the log is durable (`WriterLevel`), records are on disk before they are sent. Otherwise, a crash of the host may
    remove them, a durable arena delivers them again, and they are shipped twice. One fdatasync covers a window.

    The native batch loop writes the positions of ordinary batches (native/sender/positions.h). `due_position` and
    `advance` are for the batches that the window has sent, and for another epoch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from shmaccum.common import clock
from shmaccum.common.clock import NS_PER_MS
from shmaccum.common.format.batch_header import HEADER_SIZE, OF_A_TRANSACTION, PRODUCER_EPOCH_MAX
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import format_count
from shmaccum.exceptions import CorruptLogError, OffsetOutOfRangeError
from shmaccum.log.files import LogBatch, LogReader
from shmaccum.log.files.file_names import LOG, offset_file
from shmaccum.log.files.leader_epochs import LeaderEpochs
from shmaccum.log.files.log_batch import UnreadBatch
from shmaccum.log.files.log_file import LogFile
from shmaccum.log.files.shipping_positions import OFFSET_MAX, ShippedPosition
from shmaccum.log.files.small_files import read_topic_id, uuid_text
from shmaccum.log.files.writer_level import WriterLevel
from shmaccum.sender.backoff import Backoff
from shmaccum.sender.send_window import SendWindow, Shipment, damage_sentence
from shmaccum.sender.sinks.sink import Ack, Verdict, WireBatch
from shmaccum.sender.sinks.stream_end import NOT_SYNCED, StreamEnd, StreamState

REFUSED_PAUSE_NS = 10_000 * NS_PER_MS
"""A partition that the sink refuses is retried after this time, because a right may have been granted meanwhile."""


class ShippedBatch(Shipment):
    """A batch of the log that is shipped."""

    __slots__ = ()

    @property
    def memory_size(self) -> int:
        """Bytes in memory; those of an unread batch stay in its file."""
        return HEADER_SIZE if isinstance(self.batch, UnreadBatch) else self.batch.size

    @property
    def is_proved(self) -> bool:
        """True if the stream or the sink has verified the bytes."""
        return self.is_settled or self.wire.records is None

    def is_damaged(self) -> bool:
        """True if an unread batch has other bytes than were appended, or cannot be read."""
        try:
            return isinstance(self.batch, UnreadBatch) and self.batch.crc_problem() is not None
        except OSError:
            return True


@dataclass(frozen=True)
class Route:
    """The target of a partition's batches."""

    index: int
    """The shipper's number of the partition, which identifies it for the sink."""
    topic: str
    """The topic at the sink."""
    producer_id: int
    in_flight_max: int
    takes_files: bool


class LogStream:
    """One partition of the log.

    Attributes:
        place: topic and partition in the log.
        route: the target of its batches.
        index: the shipper's number of the partition.
        target: topic and partition at the sink.
        position: on disk.
        window: the batches that were read.
        may_have_more: there may be unread batches.
        refusal: why the sink does not take the next batch; None if it does, as far as is known.
        end_offset: batches from here on are not shipped; None if all are.
        record_count, byte_count: of the batches that this stream has shipped.
        memory_size: bytes in memory of the batches in the window.
    """

    def __init__(
        self,
        reader: LogReader,
        place: TopicPartition,
        route: Route,
        position: ShippedPosition,
        backoff: Backoff,
        report: Callable[[str], object],
        level: WriterLevel,
    ) -> None:
        """Start at the position of the partition; nothing is read yet."""
        self.place = place
        self.route = route
        self.index = route.index
        self.target = TopicPartition(route.topic, place.partition)
        self.position = position
        self.may_have_more = True
        self.refusal: str | None = None
        self.end_offset: int | None = None
        self.record_count = 0
        self.byte_count = 0
        self.memory_size = 0
        self._reader = reader.partition(*place)
        self._end_reader = reader.partition(*place)
        self._damages: dict[tuple[str, int], CorruptLogError] = {}
        self._inode = os.stat(self._reader.folder).st_ino
        self._report = report
        self._level = level
        self.window: SendWindow[ShippedBatch] = SendWindow(self._reader, backoff)
        self._behind_gap: LogBatch | UnreadBatch | None = None
        self._unsynced: dict[LogFile, int] = {}
        self._is_damaged = False

    # --- facts

    @property
    def is_empty(self) -> bool:
        """True if all batches that were read are shipped."""
        return not self.window.shipments and self._behind_gap is None

    @property
    def damage_count(self) -> int:
        """The number of places of the log that could not be read."""
        return len(self._damages)

    @property
    def folder(self) -> str:
        return self._reader.folder

    @property
    def wants_reading(self) -> bool:
        """True if the window is empty, and the log may have batches for it. False while the partition waits to start
        over.
        """
        waits = self._behind_gap is not None and self._behind_gap.base_offset != self._expected
        return self.may_have_more and not self.window.shipments and not waits and self.refusal is None

    def is_ordinary(self, now_ns: int) -> bool:
        """True if the native batch loop may send the next batches, once the window is empty."""
        is_hindered = self._is_damaged or self._behind_gap is not None or self.refusal is not None
        return not is_hindered and self.window.is_ordinary(now_ns)

    def log_end_offset(self) -> int:
        """Return the offset after the last whole batch of the log; the position if the partition was deleted."""
        try:
            return self._end_reader.log_end_offset
        except FileNotFoundError:
            return self.position.offset

    def left_size(self) -> int:
        """Return the bytes of the segments after the position."""
        try:
            segments = self._reader.segments()
            present = [base for base in segments if base <= self.position.offset][-1:]
            size = sum(self._segment_size(base) for base in segments if base > self.position.offset)
            return size + sum(self._segment_size(base) - self._position_in(base) for base in present)
        except FileNotFoundError:  # deleted, perhaps by retention
            return 0

    def _segment_size(self, base_offset: int) -> int:
        return os.path.getsize(offset_file(self.folder, base_offset, LOG))

    def _position_in(self, base_offset: int) -> int:
        """Return the position's byte in a segment, as far as the index has it."""
        with closing(self._reader.open_segment(base_offset, is_finished=False)) as view:
            return view.position_before(self.position.offset)

    @property
    def is_gone(self) -> bool:
        """True if the folder was deleted or replaced."""
        try:
            return os.stat(self.folder).st_ino != self._inode
        except FileNotFoundError:
            return True

    # --- reading

    def read(self, has_room: Callable[[int], bool]) -> None:
        """Read batches into the window until it is full, the log has no more, or the memory limit is reached.

        Args:
            has_room: called with the bytes of the window; an empty window may always have one batch.
        """
        window = self.window
        if self._is_damaged:
            if window.is_in_flight:
                return
            self._take_back()
        window.must_read = False
        while len(window.shipments) < self.route.in_flight_max and (not window.shipments or has_room(self.memory_size)):
            expected = window.next_offset(self.position.offset)
            batch = self._behind_gap or self._next(expected)
            if batch is None:
                self.may_have_more = False
                return
            self._behind_gap = None
            if batch.header.attributes & OF_A_TRANSACTION:
                self._behind_gap = batch
                self._stop_at_transaction(batch)
                return
            if batch.base_offset != expected:
                self._behind_gap = batch
                return
            shipment = ShippedBatch(batch)
            self._make_wire(shipment)
            window.shipments.append(shipment)
            self.memory_size += shipment.memory_size

    def _stop_at_transaction(self, batch: LogBatch | UnreadBatch) -> None:
        """Stop before a batch of a transaction: only this log knows its marker and its producer."""
        if not self.window.shipments and self.refusal is None:
            self.refuse(
                f"offset {batch.base_offset} begins a record batch of a transaction, and transactions are not shipped: "
                "copy the partition with a consumer that reads with read_committed, or ship other topics"
            )

    def _take_back(self) -> None:
        """Remove the unacked batches from the window, so that they are read again with every byte verified."""
        window = self.window
        while window.shipments and not all(one.is_settled for one in window.shipments):
            self.memory_size -= window.shipments.pop().memory_size
        self._behind_gap = None
        self._is_damaged = False
        window.failure_count = window.resume_ns = 0
        window.rest()

    @property
    def _expected(self) -> int:
        return self.window.next_offset(self.position.offset)

    def _next(self, offset: int) -> LogBatch | UnreadBatch | None:
        """Return the next batch of the log, or None if there is none now."""
        cursor = self.window.cursor(offset)
        batch: LogBatch | UnreadBatch | None = cursor.next_unread() if self.route.takes_files else None
        if batch is None and all(one.is_proved for one in self.window.shipments):
            batch = self._next_verified(offset)
        if batch is None or (self.end_offset is not None and batch.base_offset >= self.end_offset):
            return None
        if self._level.is_durable and (place := self.window.unread_place) is not None:
            file, size = place
            self._unsynced[file] = size
        return batch

    def _next_verified(self, offset: int) -> LogBatch | None:
        """Return the next batch with its bytes, or None if there is none now. Report damage that was skipped."""
        try:
            batch = self.window.read_verified(offset)
        except OffsetOutOfRangeError as error:
            batch = self._first_left(error)
        self._report_damages()
        return batch

    def _first_left(self, error: OffsetOutOfRangeError) -> LogBatch | None:
        """Return the first batch after deleted ones; None if the log ends before it."""
        start = self._reader.log_start_offset
        if start <= self._expected:
            self._report(f"{error}. Shipping of {self.place} waits for it")
            return None
        self._report(f"{error}. Shipping of {self.place} continues there")
        self.window.rest()
        return self.window.read_verified(start)

    def _report_damages(self) -> None:
        """Report each damage once, however often it is read again."""
        for damage in self.window.take_damages():
            if (damage.segment, damage.position) not in self._damages:
                self._damages[damage.segment, damage.position] = damage
                self._report(damage_sentence(str(self.place), damage, "shipped"))

    def _make_wire(self, shipment: ShippedBatch) -> None:
        """Make the header of a batch for the sink."""
        sequence = self.position.sequence_at(shipment.batch.base_offset)
        shipment.build_wire(self.target, self.index, (self.route.producer_id, self.position.producer_epoch, sequence))

    # --- the native batch loop

    def row(self, topic_id: bytes | None) -> tuple[Any, ...]:
        """Return the partition as the native batch loop takes it (native/python/sender/batch_loop_parts.h)."""
        assert self.window.unread_place is not None
        file, byte = self.window.unread_place
        position = self.position
        return (
            self.target.topic,
            topic_id,
            self.target.partition,
            file,
            byte,
            position.offset,
            OFFSET_MAX if self.end_offset is None else self.end_offset,
            file.synced_size if self._level.is_durable else NOT_SYNCED,
            self.route.producer_id,
            position.producer_epoch,
            position.origin,
            position.leader_epoch,
            json.dumps(str(self.place)).encode(),
            json.dumps(position.topic_id).encode(),
        )

    def take(self, end: StreamEnd) -> None:
        """Move to the place that the native batch loop reached."""
        self.position = self.position._replace(offset=end.offset, leader_epoch=end.leader_epoch)
        self.record_count += end.delivered.record_count
        self.byte_count += end.delivered.size
        if end.state != StreamState.BROKEN and (place := self.window.unread_place) is not None:
            file, _ = place
            file.synced_size = max(file.synced_size, end.synced_size)
        self.window.take(end)

    # --- sending

    def next_to_send(self, now_ns: int) -> ShippedBatch | None:
        """Return the batch that may be sent now; None if none may."""
        shipment = None if self._is_damaged else self.window.next_to_send(now_ns)
        return shipment if shipment is not None and self._sync() else None

    def _sync(self) -> bool:
        """Force the read batches to disk. If that fails, pause the partition and return False."""
        try:
            for file, size in self._unsynced.items():
                file.sync(size)
        except OSError as error:
            self.window.failure_count += 1
            self.window.pause(None, clock.monotonic_ns())
            self._report(f"{self.place} waits, because its records cannot be forced to disk: {error}")
            return False
        self._unsynced.clear()
        return True

    def settle(self, ack: Ack) -> None:
        """Apply the sink's ack for a batch that is in flight."""
        if ack.verdict is Verdict.DELIVERED:
            self.settle_delivered(ack.wire)
            return
        shipment = ShippedBatch.of(ack.wire)
        self.window.failed(shipment)
        self._is_damaged |= ack.verdict is not Verdict.OUT_OF_SEQUENCE and shipment.is_damaged()
        if self._is_damaged:
            self.may_have_more = True
        elif ack.verdict is Verdict.OUT_OF_SEQUENCE and self.window.is_first(shipment):
            self.window.wants_epoch = True
            self._report(f"{self.place} starts over in a new epoch: {ack.message}")
        elif ack.verdict in {Verdict.REFUSED, Verdict.TOO_LARGE}:
            self.refuse(ack.message)
        elif self.refusal is None:
            pause_ns = None if ack.retry_after_ms is None else ack.retry_after_ms * NS_PER_MS
            self.window.pause(pause_ns, clock.monotonic_ns())
            if ack.verdict is Verdict.RETRY:
                self._report(ack.message)

    def settle_delivered(self, wire: WireBatch) -> None:
        """Note that the sink has a batch that was in flight."""
        self.window.acked(ShippedBatch.of(wire))
        self.refusal = None

    def end_pause(self) -> None:
        """End the pause after the partition got a new leader."""
        if self.refusal is None:
            self.window.resume_ns = 0

    def refuse(self, sentence: str) -> None:
        """Note that the sink does not take the next batch, which is retried after a while."""
        self.refusal = sentence
        self.window.pause(REFUSED_PAUSE_NS, clock.monotonic_ns())
        self._report(f"{self.place} cannot be shipped now: {sentence}")

    # --- the position

    def due_position(self) -> ShippedPosition | None:
        """Return the position that has to be written to disk now; None if it is there already."""
        if not (due := self.window.due()):
            return self._start_over()
        last = due[-1].batch
        return self.position._replace(offset=last.next_offset, leader_epoch=last.header.leader_epoch)

    def _start_over(self) -> ShippedPosition | None:
        """Return the position in the next epoch, if the partition has to start over now."""
        shipments = self.window.shipments
        if shipments and self.window.wants_epoch and not self.window.is_in_flight:
            offset = shipments[0].first_offset
        elif not shipments and self._behind_gap is not None and self._behind_gap.base_offset != self._expected:
            offset = self._behind_gap.base_offset
        else:
            return None
        if self.position.producer_epoch < PRODUCER_EPOCH_MAX:
            return self.position.started_over(offset)
        if self.refusal is None:
            starts = format_count(PRODUCER_EPOCH_MAX, "time")
            self.refuse(f"it has started over {starts}: remove the shipping positions")
        return None

    def advance(self, position: ShippedPosition) -> None:
        """Continue after the position was written to disk."""
        is_new_epoch = position.producer_epoch != self.position.producer_epoch
        self.position = position
        for shipped in self.window.advance():
            self.record_count += shipped.batch.record_count
            self.byte_count += shipped.batch.size
            self.memory_size -= shipped.memory_size
        if is_new_epoch:
            self.window.start_over()
            for shipment in self.window.shipments:
                self._make_wire(shipment)


def topic_id_of(folder: str) -> str:
    """Return the id of a partition's topic; empty if it has none."""
    topic_id = read_topic_id(folder)
    return "" if topic_id is None else uuid_text(topic_id)


def resumed(position: ShippedPosition, folder: str, log_end_offset: int) -> tuple[ShippedPosition, str]:
    """Return the position at which shipping continues, and a sentence if the log has changed meanwhile.

    Args:
        position: the one on disk.
        folder: path of the partition.
        log_end_offset: of the partition.
    """
    topic_id = topic_id_of(folder)
    if not position.topic_id:  # written by a former version, before the folder had the id
        position = position._replace(topic_id=topic_id)
    elif topic_id not in ("", position.topic_id):
        anew = position.started_over(0)._replace(leader_epoch=-1, topic_id=topic_id)
        return anew, "the topic was deleted and recreated. It is shipped from its start"
    _, end = LeaderEpochs(folder).end_of(position.leader_epoch, log_end_offset)
    if position.leader_epoch >= 0 and 0 <= end < position.offset:
        return position.started_over(end), (
            f"a crash of the host took records from the end of the log that were shipped, from offset {end} to "
            f"{position.offset}. Shipping continues at {end}, with the records that have these offsets now"
        )
    return position, ""
