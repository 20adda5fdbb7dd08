# SPDX-License-Identifier: Apache-2.0
"""One assigned partition of a consumer: its position, and the records that were decoded ahead of it.

Native code decodes a batch as a whole. Its records are buffered here until polls have taken them, so a small poll
costs one slice. The position is the offset of the next record that a poll returns.
"""

from __future__ import annotations

from collections.abc import Iterator

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import LogPartitionNotFoundError, ShmaccumError
from shmaccum.log.consumer.record import ConsumerRecord
from shmaccum.log.files.log_batch import LogBatch, Views
from shmaccum.log.files.reader import Cursor, PartitionReader


class PartitionFlow:
    """The flow of records of one partition.

    Attributes:
        partition: the reader of the partition.
        position: the offset of the next record to return.
        is_paused: True if no records are returned.
        may_have_more: False if the log was read to its end and the partition has not changed since.
        byte_count: the size of the batches that were read so far.
        topic_id: the id of the topic that is read, or None if it has none yet.

    Args:
        partition: the reader of the partition.
        position: the first offset to read.
        views: the parts of the records that are memoryviews.
        topic_id: the current id of the topic.
    """

    def __init__(self, partition: PartitionReader, position: int, views: Views, topic_id: bytes | None = None) -> None:
        self.partition = partition
        self.topic_id = topic_id
        self._views = views
        self.is_paused = False
        self.byte_count = 0
        self._cursor: Cursor | None = None
        self.seek(position)

    @property
    def place(self) -> TopicPartition:
        """The topic and the number of the partition."""
        return self.partition.place

    def seek(self, position: int) -> None:
        """Move to an offset, and drop the records that were decoded before."""
        self.close()
        self.position = position
        self.may_have_more = True
        self._cursor = self.partition.cursor(position)
        self._found: Iterator[LogBatch] | None = None
        self._records: list[ConsumerRecord] = []
        self._next = 0
        self._next_offset = position

    @property
    def has_records(self) -> bool:
        """True while there are buffered records."""
        return self._next < len(self._records)

    def peek(self, count: int) -> list[ConsumerRecord]:
        """Up to `count` of the next records of one batch; empty at the end of the log. `advance` removes them.

        Raises:
            OffsetOutOfRangeError: if the position was deleted by retention, or is past the end of the log.
            CorruptLogError: if there is damage in the log.
            LogPartitionNotFoundError: if the topic was deleted.
        """
        while not self.has_records and self._refill():
            pass
        return self._records[self._next : self._next + count]

    def advance(self, count: int) -> None:
        """Remove the first records of the last `peek`."""
        self._next += count
        self.position = self._records[self._next].offset if self.has_records else self._next_offset

    def next_batch(self) -> LogBatch | None:
        """The next batch in the log, or None at the end. The position then follows the batch.

        Raises:
            OffsetOutOfRangeError, CorruptLogError, LogPartitionNotFoundError: as `peek`.
        """
        if self.has_records:
            self.seek(self.position)
        batch = self._read()
        if batch is None:
            self._skip_aborted()
        else:
            self.position = self._next_offset = batch.next_offset
        return batch

    def _skip_aborted(self) -> None:
        """Move past batches of aborted transactions, which are not returned."""
        assert self._cursor is not None
        self.position = self._next_offset = max(self.position, self._cursor.offset)

    def _refill(self) -> bool:
        """Decode one or more batches; return False at the end of the log."""
        assert self._cursor is not None
        records, size = self._cursor.consume(self.position, self._views)
        self.byte_count += size
        if not size:
            batch = self._read()
            if batch is None:
                self._skip_aborted()
                return False
            records = self._decoded(batch)
        self._records, self._next, self._next_offset = records, 0, self._cursor.offset
        if not records:
            self.position = self._next_offset
        return True

    def _decoded(self, batch: LogBatch) -> list[ConsumerRecord]:
        """The records of one batch. If they cannot be read, the flow stays before them."""
        try:
            return [] if batch.is_control else batch.consumed_records(self.place, self.position, self._views)
        except ShmaccumError:
            self.seek(self.position)
            raise

    def _read(self) -> LogBatch | None:
        assert self._cursor is not None
        if self._found is None:
            self._found = self._cursor.poll()
        try:
            batch = next(self._found, None)
        except FileNotFoundError:
            raise LogPartitionNotFoundError(
                f"the log no longer has the partition {self.place}: its topic was deleted; assign other partitions"
            ) from None
        except BaseException:
            self._found = None
            raise
        if batch is None:
            self._found = None
            self.may_have_more = False
        else:
            self.byte_count += batch.size
        return batch

    def close(self) -> None:
        """Close the segment that is open. A second call does nothing."""
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None
