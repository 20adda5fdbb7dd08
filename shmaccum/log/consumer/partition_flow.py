# SPDX-License-Identifier: Apache-2.0
"""One assigned partition of a consumer: its position, and the records that were decoded ahead of it.

A batch is decoded as a whole by the native core. Its records wait here until polls have taken them, so a small poll
costs a slice. The position is the offset of the next record that a poll returns.
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
        position: the offset of the next record to hand out.
        is_paused: no records are handed out.
        may_have_more: the log was not read to its end since the last news of the partition.
        byte_count: bytes of the batches that were read so far.
        topic_id: of the topic that is read; None: it has none yet.

    Args:
        partition: the reader of the partition.
        position: the first offset to read.
        views: the parts of the records that are memoryviews.
        topic_id: of the topic now.
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
        """Topic and number of the partition."""
        return self.partition.place

    def seek(self, position: int) -> None:
        """Goes to an offset; records that were decoded before are dropped."""
        self.close()
        self.position = position
        self.may_have_more = True
        self._cursor = self.partition.cursor(position)
        self._found: Iterator[LogBatch] | None = None
        self._records: list[ConsumerRecord] = []
        self._next = 0
        self._behind = position

    @property
    def has_records(self) -> bool:
        """True while decoded records wait."""
        return self._next < len(self._records)

    def peek(self, count: int) -> list[ConsumerRecord]:
        """Up to `count` of the next records of one batch, which `advance` takes; empty at the end of the log.

        Raises:
            OffsetOutOfRangeError: the position was retained away, or is behind the end of the log.
            CorruptLogError: damage in the log.
            LogPartitionNotFoundError: the topic was deleted.
        """
        while not self.has_records and self._refill():
            pass
        return self._records[self._next : self._next + count]

    def advance(self, count: int) -> None:
        """Takes the first records of the last `peek`."""
        self._next += count
        self.position = self._records[self._next].offset if self.has_records else self._behind

    def next_batch(self) -> LogBatch | None:
        """The next batch as it lies in the log, behind which the position then is; None at the end of the log.

        Raises:
            OffsetOutOfRangeError, CorruptLogError, LogPartitionNotFoundError: as `peek`.
        """
        if self.has_records:
            self.seek(self.position)
        batch = self._read()
        if batch is None:
            self._pass_over()
        else:
            self.position = self._behind = batch.next_offset
        return batch

    def _pass_over(self) -> None:
        """Moves behind batches of aborted transactions, which are not handed out."""
        assert self._cursor is not None
        self.position = self._behind = max(self.position, self._cursor.offset)

    def _refill(self) -> bool:
        """Decodes one or more batches; False at the end of the log."""
        assert self._cursor is not None
        records, size = self._cursor.consume(self.position, self._views)
        self.byte_count += size
        if not size:
            batch = self._read()
            if batch is None:
                self._pass_over()
                return False
            records = self._decoded(batch)
        self._records, self._next, self._behind = records, 0, self._cursor.offset
        if not records:
            self.position = self._behind
        return True

    def _decoded(self, batch: LogBatch) -> list[ConsumerRecord]:
        """The records of one batch. Where they cannot be read, the flow stays in front of them."""
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
                f"the log has no partition {self.place} any more: its topic was deleted; assign other partitions"
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
        """Lets go of the segment that is open. Doing it twice does nothing."""
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None
