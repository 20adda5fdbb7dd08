# SPDX-License-Identifier: Apache-2.0
"""One partition on its way: the batches that were read, those in flight, and the position up to which all are there.

::

    log       │ shipped, on disk │ acked │ in flight │ read │ not read yet ...
                                 ^ position          ^
                                 └──── window ───────┘ at most as many batches as the sink remembers

Rules
    A batch keeps every byte but its first 61. Its new header has the shipper's producer id, the epoch of the position,
    and the sequence that follows from its offset. Base offset and leader epoch are those of a batch from a producer.

    A sink that takes files gets the records unread, and the lane reads headers alone. The checksum of such a batch
    fits its records if the former one did, so the sink refuses a damaged batch, and its ack proves a header. A lane
    looks at the bytes of an unread batch that failed. If they are damaged, it takes back all that is not acked and
    reads on at its position with every byte verified, which finds the damage and tells it. Where headers do not go
    on (the end of a segment, damage) the lane reads on in the same way, but when all unread batches are acked.

    The window begins at the position that is on disk, not at the last ack. A sink recognises the last few batches of
    a producer (a broker: five). So whatever a death leaves unknown lies among the batches that the sink recognises.

    All batches of a window follow each other without a gap. Where the log has one (damage, deleted records), the
    partition starts over behind it: all batches before it are acked, the next epoch is on disk, then the first batch
    behind the gap goes with sequence 0. The same happens when the sink says that a sequence cannot follow.

    Records are on disk before they are sent, where the log is durable (`WriterLevel`). Else a crash of the host takes
    them from the log, a durable arena delivers them again, and they are shipped again. One fdatasync is for a window.

    A batch that is to come again comes when nothing of its partition is in flight, and alone.
    The batches of an epoch go one at a time until the sink has acked one. A sink that does not know the producer takes
    any sequence as its first, so a batch that overtakes a failed one would stay in front of it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from shmaccum._native import header_for_producer
from shmaccum.common import clock
from shmaccum.common.format.batch_header import HEADER_SIZE, OF_A_TRANSACTION, PRODUCER_EPOCH_MAX
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import format_count
from shmaccum.exceptions import CorruptLogError, OffsetOutOfRangeError
from shmaccum.log.files import LogBatch, LogReader
from shmaccum.log.files.file_names import LOG, offset_file
from shmaccum.log.files.leader_epochs import LeaderEpochs
from shmaccum.log.files.log_batch import UnreadBatch
from shmaccum.log.files.log_file import LogFile
from shmaccum.log.files.reader import Cursor
from shmaccum.log.files.shipped import ShippedPosition
from shmaccum.log.files.small_files import read_topic_id, uuid_text
from shmaccum.log.files.writer_level import WriterLevel
from shmaccum.sender.backoff import NS_PER_MS, Backoff
from shmaccum.sender.sinks.convoy import NOT_SYNCED, LaneEnd, LaneState
from shmaccum.sender.sinks.sink import Ack, Verdict, WireBatch

REFUSED_PAUSE_NS = 10_000 * NS_PER_MS
"""A partition that the sink refuses is tried again after this time: somebody may have granted a right meanwhile."""


class Shipment:
    """A batch of the window. It stands behind its `WireBatch`, where a sender has a batch of the arena.

    Attributes:
        batch: of the log.
        wire: the same as the sink gets it.
        is_out: it is in flight.
        is_acked: the sink has it.
        is_ended: always False, because a batch of a log has no result that comes before its ack.
    """

    __slots__ = ("batch", "is_acked", "is_out", "wire")
    is_ended = False
    wire: WireBatch

    def __init__(self, batch: LogBatch | UnreadBatch) -> None:
        self.batch = batch
        self.is_out = False
        self.is_acked = False

    @property
    def lent_size(self) -> int:
        """Bytes in memory; those of an unread batch stay in its file."""
        return self.wire.size if self.wire.records is None else HEADER_SIZE

    @property
    def is_proved(self) -> bool:
        """True when the bytes were verified, by the lane or by the sink."""
        return self.is_acked or self.wire.records is None

    def is_damaged(self) -> bool:
        """True when an unread batch is not what was appended, or cannot be read."""
        try:
            return isinstance(self.batch, UnreadBatch) and self.batch.crc_problem() is not None
        except OSError:
            return True


@dataclass(frozen=True)
class Route:
    """Where the batches of a partition go."""

    index: int
    """The shipper's number of the partition, which the sink knows it by."""
    topic: str
    """The topic at the sink."""
    producer_id: int
    in_flight_max: int
    takes_files: bool


class Lane:
    """One partition of the log.

    Attributes:
        place: topic and partition in the log.
        route: where its batches go.
        position: on disk.
        is_hungry: there may be batches that were not read yet.
        refusal: why the sink does not take the next batch; None: it does, as far as is known.
        end_offset: batches from here on are not shipped; None: all are.
        record_count, byte_count: of the batches that this lane has shipped.
        lent_size: bytes in memory of the batches in the window.
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
        """Takes up the partition at its position; nothing is read yet."""
        self.place = place
        self.route = route
        self.position = position
        self.is_hungry = True
        self.refusal: str | None = None
        self.end_offset: int | None = None
        self.record_count = 0
        self.byte_count = 0
        self.lent_size = 0
        self._reader = reader.partition(*place)
        self._looker = reader.partition(*place)
        self._damages: dict[tuple[str, int], CorruptLogError] = {}
        self._inode = os.stat(self._reader.folder).st_ino
        self._backoff = backoff
        self._report = report
        self._level = level
        self._window: deque[Shipment] = deque()
        self._behind_gap: LogBatch | UnreadBatch | None = None
        self._cursor: Cursor | None = None
        self._unsynced: dict[LogFile, int] = {}
        self._batches: Iterator[LogBatch] = iter(())
        self._failure_count = 0
        self._resume_ns = 0
        self._is_out_of_sequence = False
        self._is_known = False
        self._is_damaged = False
        self._has_to_look = True

    # --- facts

    @property
    def is_empty(self) -> bool:
        """True when nothing was read that is not shipped."""
        return not self._window and self._behind_gap is None

    @property
    def is_out(self) -> bool:
        """True while a batch is in flight."""
        return any(shipment.is_out for shipment in self._window)

    @property
    def resume_ns(self) -> int:
        """The time before which nothing is sent, on the monotonic clock; 0: now."""
        return self._resume_ns

    @property
    def damage_count(self) -> int:
        """How many places of the log could not be read."""
        return len(self._damages)

    @property
    def folder(self) -> str:
        """The path of the partition."""
        return self._reader.folder

    @property
    def wants_reading(self) -> bool:
        """True when the window is empty, and there may be batches to fill it; not while it waits to start over."""
        waits = self._behind_gap is not None and self._behind_gap.base_offset != self._expected
        return self.is_hungry and not self._window and not waits and self.refusal is None

    @property
    def unread_place(self) -> tuple[LogFile, int] | None:
        """The file and the byte of the next header; None where the lane has to look itself."""
        return None if self._cursor is None else self._cursor.unread_place()

    @property
    def synced_size(self) -> int:
        """Bytes of the open segment that are known to be on disk; NOT_SYNCED where the log is not durable."""
        assert self.unread_place is not None
        return self.unread_place[0].synced_size if self._level.is_durable else NOT_SYNCED

    def is_ordinary(self, now_ns: int) -> bool:
        """True when the next batches may go in a convoy, once the window is empty."""
        may_go = self._is_known and not self._has_to_look and self.refusal is None and now_ns >= self._resume_ns
        is_sound = not (self._failure_count or self._is_damaged or self._is_out_of_sequence)
        return may_go and is_sound and self._behind_gap is None and self.unread_place is not None

    def log_end_offset(self) -> int:
        """The offset after the last whole batch of the log; of a deleted partition the position."""
        try:
            return self._looker.log_end_offset
        except FileNotFoundError:
            return self.position.offset

    def left_size(self) -> int:
        """Bytes of the segments behind the position."""
        try:
            segments = self._reader.segments()
            present = [base for base in segments if base <= self.position.offset][-1:]
            size = sum(self._segment_size(base) for base in segments if base > self.position.offset)
            return size + sum(self._segment_size(base) - self._position_in(base) for base in present)
        except FileNotFoundError:  # retained away, or deleted
            return 0

    def _segment_size(self, base_offset: int) -> int:
        return os.path.getsize(offset_file(self.folder, base_offset, LOG))

    def _position_in(self, base_offset: int) -> int:
        """The byte of a segment at which the position lies, as far as the index knows."""
        with closing(self._reader.open_segment(base_offset, is_finished=False)) as view:
            return view.position_before(self.position.offset)

    @property
    def is_gone(self) -> bool:
        """True when the folder was deleted, or is another one by now."""
        try:
            return os.stat(self.folder).st_ino != self._inode
        except FileNotFoundError:
            return True

    # --- reading

    def read(self, has_room: Callable[[int], bool]) -> None:
        """Reads batches into the window until it is full, the log has no more, or there is no room for them.

        Args:
            has_room: asked with the bytes of the window; an empty window may always have one batch.
        """
        if self._is_damaged:
            if self.is_out:
                return
            self._take_back()
        self._has_to_look = False
        while len(self._window) < self.route.in_flight_max and (not self._window or has_room(self.lent_size)):
            batch = self._behind_gap or self._next()
            if batch is None:
                self.is_hungry = False
                return
            self._behind_gap = None
            if batch.header.attributes & OF_A_TRANSACTION:
                self._behind_gap = batch
                self._stop_at_transaction(batch)
                return
            if batch.base_offset != self._expected:
                self._behind_gap = batch
                return
            shipment = Shipment(batch)
            self._dress(shipment)
            self._window.append(shipment)
            self.lent_size += shipment.lent_size

    def _stop_at_transaction(self, batch: LogBatch | UnreadBatch) -> None:
        """Ships nothing of a transaction: its marker and its producer are known to this log alone."""
        if not self._window and self.refusal is None:
            self.refuse(
                f"offset {batch.base_offset} begins a record batch of a transaction, and transactions are not shipped: "
                "copy the partition with a consumer that reads with read_committed, or ship other topics"
            )

    def take(self, end: LaneEnd) -> None:
        """Takes over how far a convoy came."""
        assert self._cursor is not None
        self.position = self.position._replace(offset=end.offset, leader_epoch=end.leader_epoch)
        self.record_count += end.delivered.record_count
        self.byte_count += end.delivered.size
        self._has_to_look = end.state != LaneState.GOES
        if end.state == LaneState.BROKEN:
            self.rest()
        else:
            assert self.unread_place is not None
            file, _ = self.unread_place
            file.synced_size = max(file.synced_size, end.synced_size)
            self._cursor.skip_to(end.byte, end.offset)

    def _take_back(self) -> None:
        """Takes what is not acked out of the window, so that it is read again with every byte verified."""
        while self._window and not all(one.is_acked for one in self._window):
            self.lent_size -= self._window.pop().lent_size
        self._behind_gap = None
        self._is_damaged = False
        self._failure_count = 0
        self._resume_ns = 0
        self.rest()

    @property
    def _expected(self) -> int:
        return self._window[-1].batch.next_offset if self._window else self.position.offset

    def _next(self) -> LogBatch | UnreadBatch | None:
        """The next batch of the log, None when there is none now."""
        if self._cursor is None:
            self._cursor = self._reader.cursor(self._expected)
            self._batches = self._cursor.poll()
        batch: LogBatch | UnreadBatch | None = self._cursor.next_unread() if self.route.takes_files else None
        if batch is None and all(one.is_proved for one in self._window):
            batch = self._next_verified()
        is_over = batch is None or (self.end_offset is not None and batch.base_offset >= self.end_offset)
        if is_over:
            return None
        if self._level.is_durable and self.unread_place is not None:
            file, size = self.unread_place
            self._unsynced[file] = size
        return batch

    def _next_verified(self) -> LogBatch | None:
        """The next batch with its bytes, None when there is none now; tells damage that was passed over."""
        assert self._cursor is not None
        try:
            batch = next(self._batches, None)
        except OffsetOutOfRangeError as error:
            batch = self._first_left(error)
        if batch is None:
            self._batches = self._cursor.poll()
        self._tell_damage()
        return batch

    def _first_left(self, error: OffsetOutOfRangeError) -> LogBatch | None:
        """The first batch after somebody deleted those before it; None when the log ends before it."""
        if self._reader.log_start_offset <= self._expected:
            self._report(f"{error}. Shipping of {self.place} waits for it")
            return None
        self._report(f"{error}. Shipping of {self.place} goes on there")
        self._cursor = self._reader.cursor()
        self._batches = self._cursor.poll()
        return next(self._batches, None)

    def _tell_damage(self) -> None:
        """Tells each damage once, however often the log is opened in front of it."""
        for damage in self._reader.skipped:
            if (damage.segment, damage.position) not in self._damages:
                self._damages[damage.segment, damage.position] = damage
                self._report(
                    f"{self.place} is damaged: bytes {damage.position} to {damage.resume_position} of "
                    f"{damage.segment} ({damage.problem}). The records before and behind them are shipped"
                )
        self._reader.skipped.clear()

    def rest(self) -> None:
        """Lets go of the log's files until more is read."""
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None
            self._batches = iter(())

    def _dress(self, shipment: Shipment) -> None:
        """Gives a batch its header for the sink."""
        batch = shipment.batch
        sequence = self.position.sequence_at(batch.base_offset)
        producer = self.route.producer_id, self.position.producer_epoch, sequence
        buffers: tuple[memoryview, ...]
        if isinstance(batch, UnreadBatch):
            buffers, records = (memoryview(header_for_producer(batch.head, *producer)),), batch.records
        else:
            buffers, records = (memoryview(header_for_producer(batch.view, *producer)), batch.view[HEADER_SIZE:]), None
        behind: Any = shipment
        shipment.wire = WireBatch(
            self.route.topic,
            self.place.partition,
            self.route.index,
            buffers,
            batch.size,
            batch.record_count,
            *producer,
            batch.header.max_timestamp_ms,
            0,
            behind,
            records=records,
        )

    # --- sending

    def next_wire(self, now_ns: int) -> WireBatch | None:
        """The batch that may be sent now; None: none may."""
        if now_ns < self._resume_ns or self._is_out_of_sequence or self._is_damaged or not self._sync():
            return None
        if self._failure_count or not self._is_known:
            head = self._window[0] if self._window else None
            return None if head is None or head.is_acked or self.is_out else head.wire
        for one in self._window:
            if not one.is_out and not one.is_acked:
                return one.wire
        return None

    def _sync(self) -> bool:
        """Forces what was read to disk; False when that failed, and the partition waits."""
        try:
            for file, size in self._unsynced.items():
                file.sync(size)
        except OSError as error:
            self._failure_count += 1
            self._pause(None)
            self._report(f"{self.place} waits, because its records cannot be forced to disk: {error}")
            return False
        self._unsynced.clear()
        return True

    def sent(self, wire: WireBatch) -> None:
        """A batch is in flight."""
        _behind(wire).is_out = True
        wire.attempt_count += 1

    def settle(self, ack: Ack) -> None:
        """Takes the sink's answer for a batch that is in flight."""
        shipment = _behind(ack.wire)
        shipment.is_out = False
        if ack.verdict is Verdict.DELIVERED:
            self._take_ack(shipment)
            return
        self._failure_count += 1
        self._is_damaged |= ack.verdict is not Verdict.OUT_OF_SEQUENCE and shipment.is_damaged()
        if self._is_damaged:
            self.is_hungry = True
            return
        is_head = all(one.is_acked for one in self._before(shipment))
        if ack.verdict is Verdict.OUT_OF_SEQUENCE and is_head:
            self._is_out_of_sequence = True
            self._report(f"{self.place} starts over in a new epoch: {ack.message}")
        elif ack.verdict in {Verdict.REFUSED, Verdict.TOO_LARGE}:
            self.refuse(ack.message)
        elif self.refusal is None:
            self._pause(ack.retry_after_ms)
            if ack.verdict is Verdict.RETRY:
                self._report(ack.message)

    def settle_delivered(self, wire: WireBatch) -> None:
        """The sink has a batch that was in flight."""
        shipment = _behind(wire)
        shipment.is_out = False
        self._take_ack(shipment)

    def _take_ack(self, shipment: Shipment) -> None:
        shipment.is_acked = True
        self._is_known = True
        self._failure_count = 0
        self._resume_ns = 0
        self.refusal = None

    def _before(self, shipment: Shipment) -> Iterator[Shipment]:
        for one in self._window:
            if one is shipment:
                return
            yield one

    def _pause(self, retry_after_ms: int | None) -> None:
        pause_ns = self._backoff.pause_ns(self._failure_count)
        self._resume_ns = clock.monotonic_ns() + (pause_ns if retry_after_ms is None else retry_after_ms * NS_PER_MS)

    def end_pause(self) -> None:
        """The reason of a pause is gone: another broker leads the partition."""
        if self.refusal is None:
            self._resume_ns = 0

    def refuse(self, sentence: str) -> None:
        """The sink does not take the next batch; it is asked again after a while."""
        self.refusal = sentence
        self._resume_ns = clock.monotonic_ns() + REFUSED_PAUSE_NS
        self._report(f"{self.place} cannot be shipped now: {sentence}")

    # --- the position

    def due_position(self) -> ShippedPosition | None:
        """The position that belongs on disk now; None: it is there."""
        acked = None
        for shipment in self._window:
            if not shipment.is_acked:
                break
            acked = shipment.batch
        if acked is not None:
            return self.position._replace(offset=acked.next_offset, leader_epoch=acked.header.leader_epoch)
        return self._start_over()

    def _start_over(self) -> ShippedPosition | None:
        """The position in the next epoch, when it is time to start over."""
        if self._window and self._is_out_of_sequence and not self.is_out:
            offset = self._window[0].batch.base_offset
        elif not self._window and self._behind_gap is not None and self._behind_gap.base_offset != self._expected:
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
        """The position is on disk."""
        is_new_epoch = position.producer_epoch != self.position.producer_epoch
        self.position = position
        while self._window and self._window[0].is_acked and self._window[0].batch.next_offset <= position.offset:
            shipped = self._window.popleft()
            self.record_count += shipped.batch.record_count
            self.byte_count += shipped.batch.size
            self.lent_size -= shipped.lent_size
        if is_new_epoch:
            self._is_out_of_sequence = self._is_known = False
            for shipment in self._window:
                self._dress(shipment)


def _behind(wire: WireBatch) -> Shipment:
    shipment: Any = wire.batch
    assert isinstance(shipment, Shipment)
    return shipment


def topic_id_of(folder: str) -> str:
    """The id of a partition's topic; empty where it has none."""
    topic_id = read_topic_id(folder)
    return "" if topic_id is None else uuid_text(topic_id)


def resumed(position: ShippedPosition, folder: str, log_end_offset: int) -> tuple[ShippedPosition, str]:
    """The position at which shipping goes on, and a sentence about what happened to the log meanwhile, if anything did.

    Args:
        position: the one on disk.
        folder: path of the partition.
        log_end_offset: of the partition.
    """
    topic_id = topic_id_of(folder)
    if not position.topic_id:  # of a former version, which took up a folder before it had the id
        position = position._replace(topic_id=topic_id)
    elif topic_id not in ("", position.topic_id):
        anew = position.started_over(0)._replace(leader_epoch=-1, topic_id=topic_id)
        return anew, "the topic was deleted and made anew. It is shipped from its start"
    _, end = LeaderEpochs(folder).end_of(position.leader_epoch, log_end_offset)
    if position.leader_epoch >= 0 and 0 <= end < position.offset:
        return position.started_over(end), (
            f"a crash of the host took records from the end of the log that were shipped, from offset {end} to "
            f"{position.offset}. Shipping goes on at {end}, with the records that have these offsets now"
        )
    return position, ""
