# SPDX-License-Identifier: Apache-2.0
"""Read a log directory: one of shmaccum, also while it is written, or one of a Kafka broker.

Readers change nothing and take no lock. A reader sees a partition up to its high watermark, which is the end of the
last whole batch. If retention deletes a segment that is being read, the reader reads the open file to its end and then
raises `OffsetOutOfRangeError`; it never skips offsets silently.

A reader of committed records stops at the last stable offset and skips the batches of aborted transactions. It uses
`TransactionView` only for transactional batches, because the last stable offset is always the offset of such a batch.
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
    foreign_files_in,
    is_shmaccum_log,
    offsets_with,
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
    """The result of a look-up by time."""

    offset: int
    timestamp_ms: int


class LogReader:
    """All partitions of a log directory.

    Attributes:
        path: the absolute path of the directory.
        verify_crc, on_corrupt: the arguments.
        is_committed: True if only committed records are read.
        is_gapless: True if the log has every offset. The log of a broker may be compacted, so it may have gaps.

    Args:
        path: the log directory.
        verify_crc: check the CRC of each batch before returning it.
        on_corrupt: If "raise", reading stops at damage with a `CorruptLogError`. If "skip", reading continues after the
            damage, and `PartitionReader.skipped` collects the errors.
        isolation_level: If "read_committed", the records of aborted transactions are skipped, and those of an open
            transaction are returned after its commit. If "read_uncommitted", all records are returned.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        verify_crc: bool = True,
        on_corrupt: OnCorrupt = "raise",
        isolation_level: IsolationLevel = "read_uncommitted",
    ) -> None:
        """Check the arguments and that the directory exists.

        Raises:
            NotALogError: if the directory does not exist, or has other files and no partition.
            InvalidArgumentError: if on_corrupt or isolation_level has another value than those above.
        """
        self.path = os.path.abspath(path)
        self.verify_crc = verify_crc
        self.on_corrupt = on_corrupt
        if on_corrupt not in {"raise", "skip"}:
            raise InvalidArgumentError(f'on_corrupt must be "raise" or "skip", not {on_corrupt!r}')
        if isolation_level not in {READ_COMMITTED, READ_UNCOMMITTED}:
            raise InvalidArgumentError(
                f'isolation_level must be "{READ_UNCOMMITTED}" or "{READ_COMMITTED}", not {isolation_level!r}'
            )
        self.is_committed = isolation_level == READ_COMMITTED
        if not os.path.isdir(self.path):
            raise NotALogError(f"{self.path} is not a directory: name the log directory that the sender writes")
        self._is_gapless: bool | None = None
        if (foreign := foreign_files_in(self.path)) and not self.topic_partitions():
            raise NotALogError(
                f"{self.path} has other files ({', '.join(foreign[:3])}) and no partition: name the log directory "
                "that the sender writes"
            )

    @property
    def is_gapless(self) -> bool:
        """False until the directory has its ``meta.properties``, which may be created after this reader is."""
        if self._is_gapless is not None:
            return self._is_gapless
        has_meta, found = os.path.lexists(os.path.join(self.path, META_FILE)), is_shmaccum_log(self.path)
        if has_meta:
            self._is_gapless = found
        return found

    def topic_partitions(self) -> list[TopicPartition]:
        """Every partition, sorted. A partition whose folder does not exist yet is empty."""
        return partitions_of(self.path)

    def topics(self) -> list[str]:
        """Every topic, sorted."""
        return sorted({place.topic for place in self.topic_partitions()})

    def partitions(self, topic: str) -> list[int]:
        """The partitions of a topic.

        Raises:
            LogPartitionNotFoundError: if the topic does not exist.
        """
        found = [place.partition for place in self.topic_partitions() if place.topic == topic]
        if not found:
            known = ", ".join(self.topics()) or "none"
            raise LogPartitionNotFoundError(f"{self.path} has no topic {topic!r}; it has {known}")
        return found

    def partition(self, topic: str, partition: int) -> PartitionReader:
        """The reader of one partition.

        Raises:
            LogPartitionNotFoundError: if the partition does not exist.
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
        place: the topic and the partition.
        folder: the path of the partition's folder.
        skipped: the damage that was skipped, if on_corrupt is "skip".
    """

    def __init__(self, reader: LogReader, place: TopicPartition) -> None:
        self.reader = reader
        self.place = place
        self.folder = os.path.join(reader.path, str(place))
        self.skipped: list[CorruptLogError] = []
        self._transactions: tuple[TransactionView, Cursor] | None = None

    # --- offsets

    def segments(self) -> list[int]:
        """The base offsets of the present segments; empty if the folder does not exist yet.

        Raises:
            FileNotFoundError: if the topic was deleted.
        """
        try:
            return offsets_with(self.folder, LOG)
        except FileNotFoundError:
            if self.place not in self.reader.topic_partitions():
                raise
            return []

    @property
    def log_start_offset(self) -> int:
        """The first offset that neither retention nor a user has deleted."""
        return max(min(self.segments(), default=0), self.deleted_before)

    @property
    def deleted_before(self) -> int:
        """The records below this offset were deleted by a user; some of them may still be in the files."""
        return read_offsets_checkpoint(os.path.join(self.reader.path, START_OFFSETS_FILE)).get(self.place, 0)

    @property
    def log_end_offset(self) -> int:
        """The end for this reader: the last stable offset if it reads committed records, else the high watermark.

        Raises:
            CorruptLogError: if there is damage near the end and on_corrupt is "raise".
        """
        return self.stable_offset if self.reader.is_committed else self.high_watermark

    @property
    def high_watermark(self) -> int:
        """The offset after the last whole batch.

        Raises:
            CorruptLogError: if there is damage near the end and on_corrupt is "raise".
        """
        with closing(Cursor(self, None, is_raw=True)) as cursor:
            for _ in cursor.poll():
                pass
            return cursor.offset

    # --- transactions

    def forget_transactions(self) -> None:
        """Forget the transactions of a former log of this name."""
        self._transactions = None

    @property
    def stable_offset(self) -> int:
        """The last stable offset: the first offset of an open transaction, or the high watermark.

        Raises:
            CorruptLogError: if there is damage near the end and on_corrupt is "raise".
        """
        view, cursor = self._read_transactions()
        return max(view.stable_offset(cursor.offset), self.log_start_offset)

    def open_transactions(self) -> dict[int, int]:
        """The first offset of each open transaction, by producer id.

        Raises:
            CorruptLogError: if there is damage near the end and on_corrupt is "raise".
        """
        return self._read_transactions()[0].open_transactions()

    def _read_transactions(self) -> tuple[TransactionView, Cursor]:
        """The transactions up to the last whole batch, and a cursor at that position."""
        if self._transactions is None:
            view = TransactionView(self.folder)
            offset = max(view.start_offset, min(self.segments(), default=0))
            self._transactions = view, Cursor(self, offset, is_raw=True)
        view, cursor = self._transactions
        for batch in cursor.poll():
            if batch.is_of_transaction:
                view.add_batch(batch.header, batch.view)
        cursor.close()
        return view, cursor

    def is_open_at(self, batch: LogBatch) -> bool:
        """True if the batch is at or after the last stable offset."""
        if self._transactions is not None:
            view, cursor = self._transactions
            if batch.base_offset < view.stable_offset(cursor.offset):
                return False
        view, cursor = self._read_transactions()
        return batch.base_offset >= view.stable_offset(cursor.offset)

    def is_aborted(self, batch: LogBatch) -> bool:
        """True if the transaction of a batch was aborted. The transaction must not be open."""
        assert self._transactions is not None
        return self._transactions[0].is_aborted(batch.producer_id, batch.base_offset)

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAndTimestamp | None:
        """The first record with this timestamp or a later one (Kafka's offsetsForTimes), or None if there is none.

        Raises:
            CorruptLogError: if damage is found and on_corrupt is "raise".
        """
        segments = self.segments()
        for base_offset in segments:
            with closing(self.open_segment(base_offset, is_finished=base_offset != segments[-1])) as view:
                start = None if view.is_older_than(timestamp_ms) else view.offset_older_than(timestamp_ms) + 1
            if start is not None:
                return self._first_since(timestamp_ms, max(start, self.log_start_offset))
        return None

    def offset_of_max_timestamp(self) -> OffsetAndTimestamp | None:
        """The first record that has the largest timestamp (KIP-734), or None if the partition is empty.

        Records below the log start offset are ignored, because they were deleted.

        Raises:
            CorruptLogError: if damage is found and on_corrupt is "raise".
        """
        start = self.log_start_offset
        first, youngest = None, None
        for batch in self.batches(start):
            if batch.base_offset < start:
                first = _youngest_record(batch, start)
            elif batch.header.is_time_missing:
                first = _later_of(first, _youngest_record(batch, start))
            elif youngest is None or batch.max_timestamp_ms > youngest.max_timestamp_ms:
                youngest = batch
        if youngest is None or (first is not None and first.timestamp_ms > youngest.max_timestamp_ms):
            return first
        found = _youngest_record(youngest, start)
        is_first = first is not None and found is not None and first.offset < found.offset
        return _later_of(first, found) if is_first else _later_of(found, first)

    def _first_since(self, timestamp_ms: int, offset: int) -> OffsetAndTimestamp | None:
        for batch in self.batches(offset):
            if batch.max_timestamp_ms >= timestamp_ms or batch.header.is_time_missing:
                try:
                    for record in self._times(batch):
                        if record.timestamp_ms >= timestamp_ms and record.offset >= offset:
                            return OffsetAndTimestamp(record.offset, record.timestamp_ms)
                except DecompressedTooLargeError:  # a reader that starts before the record finds it
                    return OffsetAndTimestamp(max(batch.base_offset, offset), batch.header.youngest_ms)
        return None

    # --- batches and records

    def batches(self, offset: int | None = None) -> Iterator[LogBatch]:
        """The batches from the one that contains this offset to the last whole one.

        Args:
            offset: Default: the log start offset. At the log end offset there are no batches.

        Raises:
            OffsetOutOfRangeError: if the offset was deleted by retention, or is past the end of the log.
            CorruptLogError: if damage is found and on_corrupt is "raise".
        """
        with closing(self.cursor(offset)) as cursor:
            yield from cursor.poll()

    def records(self, offset: int | None = None) -> Iterator[LogRecord]:
        """The records from this offset on, without transaction markers.

        Raises:
            OffsetOutOfRangeError, CorruptLogError: as `batches`.
            CodecMissingError: if no package for the compression of a batch is installed.
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
        """The batches from this offset on, including future ones.

        Polls after one millisecond. The interval doubles after each empty poll, up to a tenth of a second.

        Args:
            is_over: called after each poll that reached the end; iteration stops if it returns True.
            idle_timeout_s: stop if no batch was found for this long.
            sleep: the function that waits.

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
        """The times of the records of a batch; if on_corrupt is "skip", only those that can be read."""
        try:
            yield from record_times(batch)
        except CorruptLogError as error:
            if self.reader.on_corrupt == "raise":
                raise
            self.skipped.append(error)

    def _readable(self, batch: LogBatch) -> list[LogRecord]:
        """The records of a batch; none if they cannot be read and on_corrupt is "skip"."""
        try:
            return batch.records()
        except CorruptLogError as error:
            if self.reader.on_corrupt == "raise":
                raise
            self.skipped.append(error)
            return []

    def cursor(self, offset: int | None = None, *, block_size: int | None = None) -> Cursor:
        """A cursor at this offset, by default at the log start offset.

        Args:
            offset: the first offset.
            block_size: bytes per read, for a caller that reads many batches.
        """
        return Cursor(self, self.log_start_offset if offset is None else offset, block_size=block_size)

    def open_segment(self, base_offset: int, *, is_finished: bool) -> SegmentView:
        """Open a segment.

        Raises:
            FileNotFoundError: if retention deleted it.
        """
        return SegmentView(self.folder, base_offset, is_finished=is_finished, is_crc_checked=self.reader.verify_crc)


def _later_of(one: OffsetAndTimestamp | None, other: OffsetAndTimestamp | None) -> OffsetAndTimestamp | None:
    """The record with the larger timestamp, or the first if the timestamps are equal."""
    if one is None or other is None:
        return one or other
    return other if other.timestamp_ms > one.timestamp_ms else one


def _youngest_record(batch: LogBatch, start: int) -> OffsetAndTimestamp | None:
    """The first record that has the largest timestamp of those from this offset on."""
    records = (record for record in record_times(batch) if record.offset >= start)
    try:
        youngest = max(records, key=lambda record: (record.timestamp_ms, -record.offset), default=None)
    except DecompressedTooLargeError:
        return OffsetAndTimestamp(max(batch.base_offset, start), batch.header.youngest_ms)
    return None if youngest is None else OffsetAndTimestamp(youngest.offset, youngest.timestamp_ms)


class Cursor:
    """A read position in a partition. Reading advances it.

    Attributes:
        offset: the next offset to read.
    """

    def __init__(
        self, partition: PartitionReader, offset: int | None, *, is_raw: bool = False, block_size: int | None = None
    ) -> None:
        """The segment is opened by the first `poll`. Without an offset, the cursor starts with the last few batches.

        Args:
            partition: the partition to read.
            offset: the first offset.
            is_raw: also return records that were deleted or are not committed, if the files contain them.
            block_size: bytes per read. If None, the default of `SegmentView` is used.
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
        """The base offsets that the batch at the position may have."""

    def poll(self) -> Iterator[LogBatch]:
        """The batches that were appended and not read yet.

        Raises:
            OffsetOutOfRangeError: if the offset was deleted by retention, or is past the end of the log.
            CorruptLogError: if damage is found and on_corrupt is "raise".
        """
        while (view := self._view or self._open()) is not None:
            found = view.batch(self._position, self._expected)
            if isinstance(found, LogBatch):
                if self._is_committed and found.is_of_transaction and self._partition.is_open_at(found):
                    return
                is_wanted = found.next_offset > self.offset and not self._is_skipped(found)
                self._position += found.size
                self._expected = self._expected_after(view, found.next_offset)
                self.offset = max(self.offset, found.next_offset)
                if is_wanted:
                    yield found
            elif not self._advance(view, found):
                break
        end_offset = self._expected.first
        if end_offset < self.offset and self.offset > self._partition.deleted_before:
            raise OffsetOutOfRangeError(
                f"offset {self.offset} of {self._partition.place} does not exist yet: the log ends at {end_offset}"
            )

    def _is_skipped(self, batch: LogBatch) -> bool:
        """True for a batch of an aborted transaction if committed records are read. Its marker is not skipped."""
        is_judged = self._is_committed and batch.is_of_transaction and not batch.is_control
        return is_judged and self._partition.is_aborted(batch)

    def next_unread(self) -> UnreadBatch | None:
        """The next batch of the open segment; its records are not read.

        The next position follows from the header alone, and the header is only proven by reading the records. So the
        caller must verify the batches that were passed (by `UnreadBatch.crc_problem`, or because a broker accepted
        them) before it calls `poll`, which treats a header that does not match the cursor's position as damage.

        Returns None if `poll` is needed: before the first poll, at the end of a segment or of the log, and at damage.
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
        """The file and the position of the next batch's header, or None if `poll` is needed."""
        view = self._view
        if view is None or not self._expected.first == self.offset == self._expected.last:
            return None
        return view.file, self._position

    def skip_to(self, position: int, offset: int) -> None:
        """Continue at this position of the open segment. Another reader has verified the batches before it."""
        self._position = position
        self.offset = offset
        self._expected = exactly(offset)

    def consume(self, first_offset: int, views: Views) -> tuple[list[ConsumerRecord], int]:
        """The records of the plain batches in the block that the last `poll` read, and the size of those batches.

        Only `poll` opens segments, reads blocks and handles damage. So a caller calls this after each batch that
        `poll` returns, and then continues polling.

        Args:
            first_offset: records below this offset are left out.
            views: the parts that are returned as memoryviews.
        """
        view = self._view
        if view is None:
            return [], 0
        place, start = self._partition.place, self._position
        records, self._position, next_offset = view.consume(place, start, self._expected, first_offset, views)
        if self._position > start:
            self._expected = self._expected_after(view, next_offset)
            self.offset = max(self.offset, next_offset)
        return records, self._position - start

    def columns(self, batch: LogBatch, wanted: BaseOffsetRange, *, has_headers: bool) -> RecordColumns | None:
        """The records of a batch that `poll` has just returned, and of the plain batches after it, as columns.

        The columns end at the end of the block that was read last. Returns None if the batch itself is not plain
        (see `SegmentView.consume`): the caller then decodes it alone.

        Args:
            batch: the last batch that `poll` returned.
            wanted: the offsets of the records. The cursor stops before the first batch past them.
            has_headers: also return the headers.
        """
        view = self._view
        if view is None or batch.is_compressed or batch.is_of_transaction:
            return None
        expected = BaseOffsetRange(batch.base_offset, self._expected.last)
        found, end, next_offset = view.columns(batch.position, expected, wanted, has_headers=has_headers)
        if end == batch.position:
            return None
        self._position = end
        self._expected = self._expected_after(view, next_offset)
        self.offset = max(self.offset, next_offset)
        return found

    def close(self) -> None:
        """Close the segment. The next poll opens it again."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def _expected_after(self, view: SegmentView, offset: int) -> BaseOffsetRange:
        return exactly(offset) if self._partition.reader.is_gapless else at_least(offset, view.base_offset)

    # --- from segment to segment

    def _open(self) -> SegmentView | None:
        """Open the segment that contains the offset, or return None if there is no segment."""
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
        """Move to the start of a segment, or return None if retention has deleted it meanwhile."""
        try:
            view = self._partition.open_segment(base_offset, is_finished=is_finished)
        except FileNotFoundError:
            return None
        self.close()
        view.block_size = self._block_size
        self._view, self._position, self._expected = view, 0, self._expected_after(view, base_offset)
        return view

    def _advance(self, view: SegmentView, missing: Missing) -> bool:
        """There is no batch at the position. Move to the next one; return False if there is none to read now."""
        if view.refresh():
            return True
        successors = self._successors(view)
        if successors and not view.is_finished:
            view.finish()  # it was rolled, so all appends to it are visible now
            return True
        if self._position == view.size:
            if successors:
                self._enter(successors[0], is_finished=len(successors) > 1)
            return bool(successors)
        if not view.is_finished and missing.is_unfinished and self._partition.reader.is_written():
            return False
        following = at_least(self._expected.first + 1, view.base_offset)
        return self._skip_damage(view, view.damage(self._position, following, missing.problem))

    def _successors(self, view: SegmentView) -> list[int]:
        """The base offsets of the segments after this one.

        Raises:
            OffsetOutOfRangeError: if retention deleted the next segment, or this segment was replaced.
        """
        segments = self._partition.segments()
        successors = [base_offset for base_offset in segments if base_offset > view.base_offset]
        if view.base_offset in segments and not view.has_its_name():
            self._partition.forget_transactions()
            raise OffsetOutOfRangeError(
                f"offset {self.offset} of {self._partition.place} belongs to a former log: {view.path} was replaced, "
                "because its topic was deleted and created again, or by hand"
            )
        if successors and view.base_offset not in segments and successors[0] > self._expected.first:
            raise self._retained(successors[0])
        return successors

    def _skip_damage(self, view: SegmentView, damage: Damage) -> bool:
        """Continue after damage; return False if it is the torn tail of the log."""
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
            f"offset {self.offset} of {self._partition.place} was deleted by retention: the log starts at {start}"
        )
