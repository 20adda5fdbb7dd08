# SPDX-License-Identifier: Apache-2.0
"""Reading a log directory: ours while it is written, or that of a Kafka broker. Nothing is ever changed, no lock taken.

A reader sees a partition up to its high watermark, which is the end of the last whole batch. Retention may delete a
segment that it reads; it reads an open one to the end, and then gets an error (`OffsetOutOfRangeError`), no gap.

A reader of committed records ends at the last stable offset and passes over the batches of aborted transactions. It
asks `TransactionView` at batches of transactions alone: the last stable offset is always the offset of one.
"""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Literal, NamedTuple

from shmaccum._native import ConsumerRecord
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config.consumer import READ_COMMITTED, READ_UNCOMMITTED
from shmaccum.exceptions import (
    CorruptLogError,
    InvalidArgumentError,
    LogPartitionNotFoundError,
    NotALogError,
    OffsetOutOfRangeError,
)
from shmaccum.log.files.codecs import DecompressedTooLargeError
from shmaccum.log.files.columns import RecordColumns
from shmaccum.log.files.file_names import (
    LOCK_FILE,
    LOG,
    META_FILE,
    START_OFFSETS_FILE,
    is_ours,
    offsets_with,
    strangers_in,
)
from shmaccum.log.files.lock_file import is_locked
from shmaccum.log.files.log_batch import LogBatch, LogRecord, UnreadBatch, Views
from shmaccum.log.files.log_file import LogFile
from shmaccum.log.files.partition_folders import partitions_of
from shmaccum.log.files.record_times import RecordTime, record_times
from shmaccum.log.files.segment_view import Missing, SegmentView
from shmaccum.log.files.small_files import read_offsets_checkpoint
from shmaccum.log.files.transaction_view import TransactionView
from shmaccum.log.files.walk import BaseOffsetRange, Damage, at_least, exactly

OnCorrupt = Literal["raise", "skip"]
IsolationLevel = Literal["read_uncommitted", "read_committed"]

POLL_INTERVAL_S_MIN = 0.001
POLL_INTERVAL_S_MAX = 0.1
OFFSET_MAX = 2**63 - 1


class OffsetAndTimestamp(NamedTuple):
    """Where a look-up by time leads to."""

    offset: int
    timestamp_ms: int


class LogReader:
    """All partitions of a log directory.

    Attributes:
        path: absolute.
        verify_crc, on_corrupt: as given.
        is_committed: records of open and of aborted transactions are not given.
        is_gapless: every offset is there; not so in a broker's log, which may be compacted.

    Args:
        path: the directory.
        verify_crc: check each batch's CRC before it is handed out.
        on_corrupt: "raise" ends reading at damage with a `CorruptLogError`, "skip" goes on behind it and notes it in
            `PartitionReader.skipped`.
        isolation_level: "read_committed" gives no records of aborted transactions, and those of an open one when it
            is committed; "read_uncommitted" gives all.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        verify_crc: bool = True,
        on_corrupt: OnCorrupt = "raise",
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> None:
        """Looks whether the directory is there.

        Raises:
            NotALogError: it is not, or is no directory, or has no partition but something else.
            InvalidArgumentError: on_corrupt or isolation_level is none of its words.
        """
        self.path = os.path.abspath(path)
        self.verify_crc = verify_crc
        self.on_corrupt = on_corrupt
        if on_corrupt not in {"raise", "skip"}:
            raise InvalidArgumentError(f'on_corrupt is "raise" or "skip", not {on_corrupt!r}')
        if isolation_level not in {READ_COMMITTED, READ_UNCOMMITTED}:
            raise InvalidArgumentError(
                f'isolation_level is "{READ_UNCOMMITTED}" or "{READ_COMMITTED}", not {isolation_level!r}'
            )
        self.is_committed = isolation_level == READ_COMMITTED
        if not os.path.isdir(self.path):
            raise NotALogError(f"{self.path} is no directory: name the log directory that the sender writes")
        self._is_gapless: bool | None = None
        if (strangers := strangers_in(self.path)) and not self.topic_partitions():
            raise NotALogError(
                f"{self.path} holds other files ({', '.join(strangers[:3])}) and no partition: name the log directory "
                "that the sender writes"
            )

    @property
    def is_gapless(self) -> bool:
        """Unknown until the directory has its first file, which its writer may make after this reader was opened."""
        if self._is_gapless is not None:
            return self._is_gapless
        has_meta, found = os.path.lexists(os.path.join(self.path, META_FILE)), is_ours(self.path)
        if has_meta:
            self._is_gapless = found
        return found

    def topic_partitions(self) -> list[TopicPartition]:
        """Every partition, in order. One whose folder is not made yet is empty."""
        return partitions_of(self.path)

    def topics(self) -> list[str]:
        """Every topic, in order."""
        return sorted({place.topic for place in self.topic_partitions()})

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic.

        Raises:
            LogPartitionNotFoundError: there is no such topic.
        """
        found = [place.partition for place in self.topic_partitions() if place.topic == topic]
        if not found:
            known = ", ".join(self.topics()) or "none"
            raise LogPartitionNotFoundError(f"{self.path} has no topic {topic!r}; it has {known}")
        return found

    def partition(self, topic: str, partition: int) -> PartitionReader:
        """The reader of one partition.

        Raises:
            LogPartitionNotFoundError: there is no such partition.
        """
        if partition not in self.partitions(topic):
            raise LogPartitionNotFoundError(f"{self.path} has no partition {partition} of topic {topic!r}")
        return PartitionReader(self, TopicPartition(topic, partition))

    def is_written(self) -> bool:
        """True while a writer has the directory open."""
        return is_locked(os.path.join(self.path, LOCK_FILE))


class PartitionReader:
    """One partition. Any number of its cursors and iterators may be in use at a time.

    Attributes:
        place: topic and partition.
        folder: path of it.
        skipped: damage that was passed over, with on_corrupt="skip".
    """

    def __init__(self, reader: LogReader, place: TopicPartition) -> None:
        self.reader = reader
        self.place = place
        self.folder = os.path.join(reader.path, str(place))
        self.skipped: list[CorruptLogError] = []
        self._transactions: tuple[TransactionView, Cursor] | None = None

    # --- offsets

    def segments(self) -> list[int]:
        """Base offsets of the segments that are there now; none while the folder is not made yet.

        Raises:
            FileNotFoundError: the topic was deleted.
        """
        try:
            return offsets_with(self.folder, LOG)
        except FileNotFoundError:
            if self.place not in self.reader.topic_partitions():
                raise
            return []

    @property
    def log_start_offset(self) -> int:
        """The first offset that was neither retained away nor deleted."""
        return max(min(self.segments(), default=0), self.deleted_before)

    @property
    def deleted_before(self) -> int:
        """Below this offset somebody deleted the records; some of them may still be in the files."""
        return read_offsets_checkpoint(os.path.join(self.reader.path, START_OFFSETS_FILE)).get(self.place, 0)

    @property
    def log_end_offset(self) -> int:
        """The end for this reader: the high watermark, or the last stable offset for one of committed records.

        Raises:
            CorruptLogError: damage near the end, unless it is to be skipped.
        """
        return self.stable_offset if self.reader.is_committed else self.high_watermark

    @property
    def high_watermark(self) -> int:
        """The offset after the last whole batch.

        Raises:
            CorruptLogError: damage near the end, unless it is to be skipped.
        """
        with closing(Cursor(self, None, is_raw=True)) as cursor:
            for _ in cursor.poll():
                pass
            return cursor.offset

    # --- transactions

    def forget_transactions(self) -> None:
        """What is known of transactions is of a former log of this name."""
        self._transactions = None

    @property
    def stable_offset(self) -> int:
        """The last stable offset: the first one of an open transaction, or the high watermark.

        Raises:
            CorruptLogError: damage near the end, unless it is to be skipped.
        """
        view, cursor = self._looked_at_transactions()
        return max(view.stable_offset(cursor.offset), self.log_start_offset)

    def open_transactions(self) -> dict[int, int]:
        """The first offset of each open transaction, by producer id.

        Raises:
            CorruptLogError: damage near the end, unless it is to be skipped.
        """
        return self._looked_at_transactions()[0].open_transactions()

    def _looked_at_transactions(self) -> tuple[TransactionView, Cursor]:
        """The transactions up to the last whole batch, and the cursor that stands there."""
        if self._transactions is None:
            view = TransactionView(self.folder)
            self._transactions = view, Cursor(self, max(view.noted_from, min(self.segments(), default=0)), is_raw=True)
        view, cursor = self._transactions
        for batch in cursor.poll():
            if batch.is_of_transaction:
                view.note(batch.header, batch.view)
        cursor.close()
        return view, cursor

    def is_open_at(self, batch: LogBatch) -> bool:
        """True while a batch stands at the last stable offset or behind it."""
        if self._transactions is not None:
            view, cursor = self._transactions
            if batch.base_offset < view.stable_offset(cursor.offset):
                return False
        view, cursor = self._looked_at_transactions()
        return batch.base_offset >= view.stable_offset(cursor.offset)

    def is_aborted(self, batch: LogBatch) -> bool:
        """True when the transaction of a batch was aborted; it is no open one."""
        assert self._transactions is not None
        return self._transactions[0].is_aborted(batch.producer_id, batch.base_offset)

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """The first record with this timestamp or a larger one (Kafka's offsetsForTimes); None when there is none.

        Raises:
            CorruptLogError: damage on the way, unless it is to be skipped.
        """
        segments = self.segments()
        for base_offset in segments:
            with closing(self.open_segment(base_offset, is_finished=base_offset != segments[-1])) as view:
                start = None if view.is_older_than(timestamp_ms) else view.offset_older_than(timestamp_ms) + 1
            if start is not None:
                return self._first_since(timestamp_ms, max(start, self.log_start_offset))
        return None

    def offset_of_max_timestamp(self) -> OffsetAndTimestamp | None:
        """The first record of those with the largest timestamp (KIP-734); None in an empty partition.

        Records below the log start offset count for nothing: somebody deleted them.

        Raises:
            CorruptLogError: damage on the way, unless it is to be skipped.
        """
        start = self.log_start_offset
        first, youngest = None, None
        for batch in self.batches(start):
            if batch.base_offset < start:
                first = _youngest_record(batch, start)
            elif batch.header.is_time_missing:
                first = _younger(first, _youngest_record(batch, start))
            elif youngest is None or batch.max_timestamp_ms > youngest.max_timestamp_ms:
                youngest = batch
        if youngest is None or (first is not None and first.timestamp_ms > youngest.max_timestamp_ms):
            return first
        found = _youngest_record(youngest, start)
        is_first = first is not None and found is not None and first.offset < found.offset
        return _younger(first, found) if is_first else _younger(found, first)

    def _first_since(self, timestamp_ms: int, offset: int) -> OffsetAndTimestamp | None:
        for batch in self.batches(offset):
            if batch.max_timestamp_ms >= timestamp_ms or batch.header.is_time_missing:
                try:
                    for record in self._times(batch):
                        if record.timestamp_ms >= timestamp_ms and record.offset >= offset:
                            return OffsetAndTimestamp(record.offset, record.timestamp_ms)
                except DecompressedTooLargeError:  # a reader that starts in front of the record finds it
                    return OffsetAndTimestamp(max(batch.base_offset, offset), batch.header.youngest_ms)
        return None

    # --- batches and records

    def batches(self, offset: int | None = None) -> Iterator[LogBatch]:
        """The batches from the one that has this offset to the last whole one there is.

        Args:
            offset: default: the log start offset. The log end offset gives nothing.

        Raises:
            OffsetOutOfRangeError: the offset was retained away, or not given out yet.
            CorruptLogError: damage, unless it is to be skipped.
        """
        with closing(self.cursor(offset)) as cursor:
            yield from cursor.poll()

    def records(self, offset: int | None = None) -> Iterator[LogRecord]:
        """The records from this offset on, without those of transaction markers.

        Raises:
            OffsetOutOfRangeError, CorruptLogError: as `batches`.
            CodecMissingError: a batch is compressed in a way nothing here can read.
        """
        start = self.log_start_offset if offset is None else offset
        yield from self._records_of(self.batches(start), start)

    def follow(
        self,
        offset: int | None = None,
        *,
        is_over: Callable[[], bool] = lambda: False,
        idle_timeout_s: float = float("inf"),
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[LogBatch]:
        """The batches from this offset on, those to come included.

        Looks for more after a millisecond, and after twice that each time nothing came, up to a tenth of a second.

        Args:
            is_over: asked whenever nothing new is there; True ends it.
            idle_timeout_s: ends it when nothing came for so long.
            sleep: how to wait.

        Raises:
            OffsetOutOfRangeError, CorruptLogError: as `batches`.
        """
        with closing(self.cursor(offset)) as cursor:
            idle_s, interval_s = 0.0, POLL_INTERVAL_S_MIN
            while True:
                for batch in cursor.poll():
                    idle_s, interval_s = 0.0, POLL_INTERVAL_S_MIN
                    yield batch
                if is_over() or idle_s >= idle_timeout_s:
                    return
                sleep(interval_s)
                idle_s += interval_s
                interval_s = min(2 * interval_s, POLL_INTERVAL_S_MAX)

    def _records_of(self, batches: Iterator[LogBatch], offset: int) -> Iterator[LogRecord]:
        for batch in batches:
            records = [] if batch.is_control else self._readable(batch)
            yield from records if batch.base_offset >= offset else [each for each in records if each.offset >= offset]

    def _times(self, batch: LogBatch) -> Iterator[RecordTime]:
        """The times of the records of a batch, as far as they can be read, where damage is to be skipped."""
        try:
            yield from record_times(batch)
        except CorruptLogError as error:
            if self.reader.on_corrupt == "raise":
                raise
            self.skipped.append(error)

    def _readable(self, batch: LogBatch) -> list[LogRecord]:
        """The records of a batch; none of one whose records cannot be read, where damage is to be skipped."""
        try:
            return batch.records()
        except CorruptLogError as error:
            if self.reader.on_corrupt == "raise":
                raise
            self.skipped.append(error)
            return []

    def cursor(self, offset: int | None = None, *, block_size: int | None = None) -> Cursor:
        """Reads from this offset on, default the log start offset, whenever it is polled.

        Args:
            offset: the first one.
            block_size: bytes that are read at once, for a caller that reads many of them.
        """
        return Cursor(self, self.log_start_offset if offset is None else offset, block_size=block_size)

    def open_segment(self, base_offset: int, *, is_finished: bool) -> SegmentView:
        """Opens a segment.

        Raises:
            FileNotFoundError: it was retained away.
        """
        return SegmentView(self.folder, base_offset, is_finished=is_finished, is_crc_checked=self.reader.verify_crc)


def _younger(one: OffsetAndTimestamp | None, other: OffsetAndTimestamp | None) -> OffsetAndTimestamp | None:
    """The record with the larger timestamp; the first of equal ones."""
    if one is None or other is None:
        return one or other
    return other if other.timestamp_ms > one.timestamp_ms else one


def _youngest_record(batch: LogBatch, start: int) -> OffsetAndTimestamp | None:
    """The first record of those with the largest timestamp, from this offset on."""
    records = (record for record in record_times(batch) if record.offset >= start)
    try:
        youngest = max(records, key=lambda record: (record.timestamp_ms, -record.offset), default=None)
    except DecompressedTooLargeError:
        return OffsetAndTimestamp(max(batch.base_offset, start), batch.header.youngest_ms)
    return None if youngest is None else OffsetAndTimestamp(youngest.offset, youngest.timestamp_ms)


class Cursor:
    """A place in a partition that moves on as it is read.

    Attributes:
        offset: the next one to read.
    """

    def __init__(
        self, partition: PartitionReader, offset: int | None, *, is_raw: bool = False, block_size: int | None = None
    ) -> None:
        """Nothing is opened before `poll`. Without an offset it begins with the last few batches.

        Args:
            partition: the partition to read.
            offset: the first one.
            is_raw: reads whatever lies in the files, also records that somebody deleted or that are not committed.
            block_size: bytes that are read at once; None: as `SegmentView` has it.
        """
        self._block_size = block_size
        self._is_raw = is_raw
        self._is_committed = partition.reader.is_committed and not is_raw
        self.offset = 0 if offset is None else offset
        self._partition = partition
        self._is_from_end = offset is None
        self._view: SegmentView | None = None
        self._position = 0
        self._expected = exactly(0)
        """Where the batch at the position may begin."""

    def poll(self) -> Iterator[LogBatch]:
        """The batches that are there and were not read yet.

        Raises:
            OffsetOutOfRangeError: the offset was retained away, or not given out yet.
            CorruptLogError: damage, unless it is to be skipped.
        """
        while (view := self._view or self._open()) is not None:
            found = view.batch(self._position, self._expected)
            if isinstance(found, LogBatch):
                if self._is_committed and found.is_of_transaction and self._partition.is_open_at(found):
                    return
                is_wanted = found.next_offset > self.offset and not self._is_passed_over(found)
                self._position += found.size
                self._expected = self._behind(view, found.next_offset)
                self.offset = max(self.offset, found.next_offset)
                if is_wanted:
                    yield found
            elif not self._go_on(view, found):
                break
        end_offset = self._expected.first
        if end_offset < self.offset and self.offset > self._partition.deleted_before:
            raise OffsetOutOfRangeError(
                f"offset {self.offset} of {self._partition.place} was not given out yet: the log ends at {end_offset}"
            )

    def _is_passed_over(self, batch: LogBatch) -> bool:
        """True for a batch of an aborted transaction, when committed records are read; its marker is none."""
        is_judged = self._is_committed and batch.is_of_transaction and not batch.is_control
        return is_judged and self._partition.is_aborted(batch)

    def next_unread(self) -> UnreadBatch | None:
        """The next batch of the open segment, without a look at its records.

        A header tells where the next batch begins. Nothing proves the header before the records are read, too. So the
        caller proves the batches that were passed (by `UnreadBatch.crc_problem`, or by a broker that took them)
        before it calls `poll`, which takes headers for damaged that do not fit the place where the cursor is.

        The answer is None where `poll` has to look: at the end of a segment or of the log, at damage, and at first.
        """
        view = self._view
        if view is None or not self._expected.first == self.offset == self._expected.last:
            return None
        found = view.unread_batch(self._position, self._expected)
        if found is not None:
            self._position += found.size
            self.offset = found.next_offset
            self._expected = exactly(found.next_offset)
        return found

    def unread_place(self) -> tuple[LogFile, int] | None:
        """The file and the byte where the header of the next batch stands; None where `poll` has to look."""
        view = self._view
        if view is None or not self._expected.first == self.offset == self._expected.last:
            return None
        return view.file, self._position

    def skip_to(self, position: int, offset: int) -> None:
        """Goes on at this byte of the open segment. Another reader has proved the batches in front of it."""
        self._position = position
        self.offset = offset
        self._expected = exactly(offset)

    def consume(self, first_offset: int, views: Views) -> tuple[list[ConsumerRecord], int]:
        """The records of the plain batches that the last `poll` has read ahead, and the bytes of those batches.

        Only `poll` opens, reads and judges. So a caller consumes after each batch of it, and polls on behind that.

        Args:
            first_offset: records below this offset are left out.
            views: the parts that are memoryviews.
        """
        view = self._view
        if view is None:
            return [], 0
        place, start = self._partition.place, self._position
        records, self._position, next_offset = view.consume(place, start, self._expected, first_offset, views)
        if self._position > start:
            self._expected = self._behind(view, next_offset)
            self.offset = max(self.offset, next_offset)
        return records, self._position - start

    def columns(self, batch: LogBatch, wanted: BaseOffsetRange, *, has_headers: bool) -> RecordColumns | None:
        """The records of a batch that `poll` has just given, and of the plain batches behind it, as columns.

        The columns end where the block ends that was read last. The answer is None when the batch itself is not plain
        (see `SegmentView.consume`): the caller decodes it alone.

        Args:
            batch: the last one of `poll`.
            wanted: the offsets of the records; the cursor stops in front of a batch behind them.
            has_headers: also the headers.
        """
        view = self._view
        if view is None or batch.is_compressed or batch.is_of_transaction:
            return None
        expected = BaseOffsetRange(batch.base_offset, self._expected.last)
        found, end, next_offset = view.columns(batch.position, expected, wanted, has_headers=has_headers)
        if end == batch.position:
            return None
        self._position = end
        self._expected = self._behind(view, next_offset)
        self.offset = max(self.offset, next_offset)
        return found

    def close(self) -> None:
        """Lets go of the segment; polling opens it again."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def _behind(self, view: SegmentView, offset: int) -> BaseOffsetRange:
        return exactly(offset) if self._partition.reader.is_gapless else at_least(offset, view.base_offset)

    # --- from segment to segment

    def _open(self) -> SegmentView | None:
        """Enters the segment that has the offset; None while there is no segment at all."""
        while segments := self._partition.segments():
            if self._is_from_end:
                self.offset = segments[-1]
            elif self.offset < (start := max(segments[0], 0 if self._is_raw else self._partition.deleted_before)):
                raise self._retained(start)
            base_offset = segments[bisect.bisect_right(segments, self.offset) - 1]
            if (view := self._enter(base_offset, is_finished=base_offset != segments[-1])) is not None:
                self._position = view.position_before(OFFSET_MAX if self._is_from_end else self.offset)
                if self._position:
                    self._expected = at_least(base_offset, base_offset)
                self._is_from_end = False
                return view
        return None

    def _enter(self, base_offset: int, *, is_finished: bool) -> SegmentView | None:
        """Goes to the start of a segment; None when it was retained away meanwhile."""
        try:
            view = self._partition.open_segment(base_offset, is_finished=is_finished)
        except FileNotFoundError:
            return None
        self.close()
        view.block_size = self._block_size
        self._view, self._position, self._expected = view, 0, self._behind(view, base_offset)
        return view

    def _go_on(self, view: SegmentView, missing: Missing) -> bool:
        """There is no batch at the position: moves on to the next one, if there may be one."""
        if view.refresh():
            return True
        successors = self._successors(view)
        if successors and not view.is_finished:
            view.finish()  # it was rolled; all earlier appends are there now
            return True
        if self._position == view.size:
            if successors:
                self._enter(successors[0], is_finished=len(successors) > 1)
            return bool(successors)
        if not view.is_finished and missing.is_unfinished and self._partition.reader.is_written():
            return False
        behind = at_least(self._expected.first + 1, view.base_offset)
        return self._pass_over(view, view.damage(self._position, behind, missing.problem))

    def _successors(self, view: SegmentView) -> list[int]:
        """Base offsets of the segments behind this one.

        Raises:
            OffsetOutOfRangeError: those that follow at once were retained away, or this one was replaced.
        """
        segments = self._partition.segments()
        successors = [base_offset for base_offset in segments if base_offset > view.base_offset]
        if view.base_offset in segments and not view.has_its_name():
            self._partition.forget_transactions()
            raise OffsetOutOfRangeError(
                f"offset {self.offset} of {self._partition.place} is of a former log: {view.path} was replaced, "
                "because its topic was deleted and created again, or by hand"
            )
        if successors and view.base_offset not in segments and successors[0] > self._expected.first:
            raise self._retained(successors[0])
        return successors

    def _pass_over(self, view: SegmentView, damage: Damage) -> bool:
        """Goes on behind damage; False when it is the torn tail of the log."""
        if not view.is_finished and damage.resume_position == view.size:
            return False
        error = CorruptLogError(view.path, damage.position, damage.resume_position, damage.problem)
        if self._partition.reader.on_corrupt == "raise":
            raise error
        self._partition.skipped.append(error)
        self._position = damage.resume_position
        self._expected = at_least(self._expected.first, view.base_offset)
        return True

    def _retained(self, start: int) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            f"offset {self.offset} of {self._partition.place} was retained away: the log starts at {start}"
        )
