# SPDX-License-Identifier: Apache-2.0
"""The log of one partition, opened for writing (Kafka's UnifiedLog).

::

    segments      | 0 ......... | 4711 ...... | 9022 ...     |
                  ^ log start offset          ^ active        ^ log end offset = the next to assign

Procedure of an append: the producers' state admits each batch and detects duplicates. The admitted batches form a
*run*: consecutive offsets, written by one pwritev into the active segment. A run ends before the segment is full; then
the log rolls. If a batch was not written whole (disk full, I/O error), it is removed from the producers' state and its
outcome is a retriable storage error. A batch that was written whole stays and is acknowledged.

Procedure of a marker: a marker ends its run, so that the next run starts with the state after it. The entry of an
aborted transaction is in the index before its marker is in the log (`transaction_index`). The transaction is over when
the marker is written.

Identity: each append ends with a check that the path of the active segment leads to the open file (`segment`). Every
access to the folder by name begins with this check. If it fails, the log is lost: its files are closed as they are, and
`LogDirectory` opens the log again when the folder contains what was written.

Procedure of a roll: finish the time index; write a snapshot of the producers' state at the new base offset; sync, if
there is a policy; create the three new files. A death in between leaves either the old segment, which is appended to
further, or an empty new one. Recovery handles both.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shmaccum._native import LogEnd, crc32c
from shmaccum.common.durability import sync_folder
from shmaccum.common.format.batch_header import (
    ATTRIBUTES_POSITION,
    CONTROL,
    CRC_START,
    MAGIC,
    OF_A_TRANSACTION,
    PREFIX,
    PREFIX_SIZE,
    UNCOUNTED_SIZE,
    read_header,
)
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config import LogSinkOptions
from shmaccum.exceptions import LogLostError
from shmaccum.log.files.append_time import StampedBatch
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.duplicates import is_appended_batch
from shmaccum.log.files.file_names import (
    LOG,
    OF_A_SEGMENT,
    OFFSET_MAX,
    SNAPSHOT,
    TIME_INDEX,
    TRANSACTION_INDEX,
    offset_file,
    offsets_with,
)
from shmaccum.log.files.index_file import TIME_ENTRY, last_timestamp, load_entries
from shmaccum.log.files.partition_folders import make_partition_folder
from shmaccum.log.files.producer_state import Appendable, KnownBatch, Rejection, shared_crc
from shmaccum.log.files.recovery import Recovery
from shmaccum.log.files.segment import IOV_MAX, Segment, Tail, Written
from shmaccum.log.files.small_files import replace_file, sync_file
from shmaccum.log.files.transaction_index import Aborted, append_aborted, remove_last
from shmaccum.log.files.transaction_marker import decision_in, marker_batch
from shmaccum.log.files.walk import RELATIVE_OFFSET_MAX, LocatedBatch, map_file, walk

Outcome = int | Rejection
"""The result for a batch: its base offset (also if it was appended before), or the reason for its rejection."""

SNAPSHOT_INTERVAL = 8 << 20
SNAPSHOT_BATCH_COUNT = 512
"""Bytes and batches between two snapshots. After a death, the next writer reads at most this much while others wait."""
LOOSE_SNAPSHOTS_KEPT = 2
TIMESTAMP_MAX = 2**63 - 1
LOG_APPEND_TIME = "LogAppendTime"
NOT_APPENDED = "could not be appended to"
NO_ENTRIES = "no index entries were written, so look-ups take longer"
OWN_TIME = -1
"""The time of an append whose records keep the times of their producer, as in Kafka's protocol."""

_pack_prefix = PREFIX.pack
_new_tuple = tuple.__new__
"""Creates a NamedTuple without its own __new__, which takes several times as long."""


class Marker(NamedTuple):
    """A marker to write."""

    producer_id: int
    aborted: Aborted | None
    """The index entry. None if the marker commits, or if there is no transaction to end."""


class AppendRun:
    """Batches that are written together.

    Attributes:
        start, end: positions in the segment.
        buffers: the bytes to write there.
        batches: the batches of the run, for the indexes.
        sources: the same batches, as they were passed to `append`.
        outcomes: the outcomes of these batches, and of those between them that are not written.
        marker: the last batch, if it is a marker that ends a transaction.
    """

    __slots__ = ("batches", "buffers", "end", "marker", "outcomes", "sources", "start")

    def __init__(self, size: int) -> None:
        self.start = self.end = size
        self.buffers: list[bytes | memoryview] = []
        self.batches: list[Written] = []
        self.sources: list[Appendable] = []
        self.outcomes: list[Outcome] = []
        self.marker: Marker | None = None

    def whole_below(self, position: int) -> list[Written]:
        """The batches that are whole in a file that was written up to this position."""
        return [batch for batch in self.batches if batch.end <= position]


class PartitionLog:
    """The log of one partition, opened for writing. Create it with `LogDirectory.partition`.

    Attributes:
        place: the topic and the partition.
        folder: the path of the partition's folder.
        segments: the base offsets; the active segment is the last.
        epochs: the leader epochs. Batches get the latest.
        findings: one sentence for each problem that was found at opening, or later with an index.
        recovery_point: everything below this offset was synced.
    """

    def __init__(
        self,
        folder: str,
        place: TopicPartition,
        options: LogSinkOptions,
        *,
        topic_id: bytes = bytes(16),
        recovery_point: int = 0,
        start_offset: int = 0,
        is_same_boot: bool = False,
        clock: Callable[[], float] = time.time,
        on_append: Callable[[], object] = lambda: None,
    ) -> None:
        """Recover the folder and open its active segment.

        Raises:
            OSError: if the folder cannot be read or written.
        """
        self.place = place
        self.folder = folder
        self._options = options
        self._clock = clock
        self._on_append = on_append
        make_partition_folder(folder, topic_id, is_synced=options.sync != "none")
        recovered = Recovery(
            folder,
            options.index_interval_bytes,
            recovery_point,
            is_same_boot=is_same_boot,
            has_level=options.sync != "none",
        ).run()
        self.segments = recovered.segments
        self.producers = recovered.producers
        self.epochs = recovered.epochs
        self.findings = recovered.findings
        self._active = recovered.active
        self.recovery_point = min(recovery_point, self.log_end_offset)
        self._start_offset = min(start_offset, self.log_end_offset)
        self._appended_ms = OWN_TIME
        self._log_end: LogEnd | None = None
        self._snapshot_size = self._active.size
        self._unsnapshotted_count = 0
        self._timeless: dict[int, bool] = {}
        self._is_sync_broken = False
        self._is_rolling = False
        self._has_unsynced_entry = True  # a dead writer may have left one
        self.closed = False
        if self.log_end_offset and not os.path.exists(offset_file(folder, self.log_end_offset, SNAPSHOT)):
            self._take_snapshot()  # if this process dies soon, the next writer need not read all of this again
        try:
            if options.sync != "none":  # synced files need synced names
                sync_folder(folder)
                sync_folder(os.path.dirname(folder))
        except OSError:
            self.abandon()
            raise

    # --- append

    def append(self, batches: Sequence[Appendable]) -> list[Outcome]:
        """Append batches in their order, with as few system calls as possible.

        Returns:
            One outcome per batch. After a storage error (56), all following batches have this error, too.
        """
        if self.sets_time:
            self._appended_ms = int(self._clock() * 1000)
            batches = [StampedBatch(batch, self._appended_ms) for batch in batches]
        outcomes: list[Outcome] = []
        while len(outcomes) < len(batches):
            run = self._plan(batches, len(outcomes))
            failure = self._write(run) if run.outcomes else self._roll_for(batches[len(outcomes)])
            outcomes += run.outcomes
            if failure is not None:
                outcomes += [failure] * (len(batches) - len(outcomes) if failure.is_retriable else 1)
        if self._options.sync == "batch" and self.log_end_offset > self.recovery_point:
            return self._synced(outcomes)
        return outcomes

    @property
    def sets_time(self) -> bool:
        """True if records get the time of their append."""
        return self._options.message_timestamp_type == LOG_APPEND_TIME

    def time_of(self, batch: Appendable, offset: int) -> int:
        """The time in milliseconds that the log assigned to a batch of the last append, or `OWN_TIME` if none.

        A duplicate has the time of its first append.
        """
        if not self.sets_time:
            return OWN_TIME
        known_ms = self.producers.timestamp_ms(batch.producer_id, offset)
        return self._appended_ms if known_ms is None else known_ms

    def _plan(self, batches: Sequence[Appendable], first: int) -> AppendRun:
        """The next run: as many batches from `first` on as fit the active segment and one system call.

        This loop runs per batch, so it uses local names and reads each field of a batch once.
        """
        active = self._active
        position, offset = active.size, self.log_end_offset
        run, epoch = AppendRun(position), self.epochs.latest
        buffers, written, outcomes, admit = run.buffers, run.batches, run.outcomes, self.producers.admit
        sources = run.sources
        size_max = 0 if active.is_index_full or self._is_rolling else self._options.segment_bytes
        offset_end = active.base_offset + RELATIVE_OFFSET_MAX + 1
        timestamp_max = self._timestamp_max(active.first_timestamp_ms) if position else TIMESTAMP_MAX
        for batch in batches[first:] if first else batches:
            size, count, timestamp_ms = batch.size, batch.record_count, batch.max_timestamp_ms
            end, next_offset = position + size, offset + count
            is_too_much = end > size_max or timestamp_ms > timestamp_max or next_offset > offset_end
            if is_too_much or len(buffers) >= IOV_MAX:
                break
            pieces = batch.buffers
            attributes = pieces[0][ATTRIBUTES_POSITION]
            if attributes & OF_A_TRANSACTION:
                known = self._admit_of_transaction(batch, offset, run, is_control=bool(attributes & CONTROL))
            else:
                known = admit(batch, offset)
            if known is not None:
                outcomes.append(self._outcome_of_known(batch, known))
                continue
            buffers.append(_pack_prefix(offset, size - UNCOUNTED_SIZE, epoch))
            buffers.append(pieces[0][PREFIX_SIZE:])
            if len(pieces) > 1:
                buffers += pieces[1:]
            written.append(_new_tuple(Written, (position, end, next_offset - 1, timestamp_ms)))
            sources.append(batch)
            outcomes.append(offset)
            if not position:
                timestamp_max = self._timestamp_max(timestamp_ms)
            position, offset = end, next_offset
            if run.marker is not None:
                break
        run.end = position
        return run

    def _admit_of_transaction(
        self, batch: Appendable, offset: int, run: AppendRun, *, is_control: bool
    ) -> Outcome | None:
        """The outcome of a batch of a transaction, or of a marker, if it is not written. A marker ends the run."""
        if not is_control:
            return self.producers.admit_of_transaction(batch, offset)
        rejection = self.producers.admit_marker(batch, offset)
        if rejection is None:
            run.marker = self._marker_at(offset, batch)
        return rejection

    def _outcome_of_known(self, batch: Appendable, known: Outcome) -> Outcome:
        """The outcome of a batch that is not written. A duplicate must have the same records as the first one."""
        if isinstance(known, Rejection) or known >= self.log_end_offset:  # the latter is in the run being planned
            return known
        if is_appended_batch(batch, self.folder, self.segments, known):
            return known
        return Rejection(
            BrokerError.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {batch.producer_id} (epoch {batch.producer_epoch}) sent other records under sequence "
            f"{batch.base_sequence}, which the batch at offset {known} has: it lost the sequences that it had assigned",
        )

    def _marker_at(self, offset: int, batch: Appendable) -> Marker:
        content = memoryview(b"".join(batch.buffers))
        producer_id, transactions = batch.producer_id, self.producers.transactions
        first_offset = transactions.first_offset_of(producer_id)
        if first_offset is None or decision_in(content, read_header(content)) is not False:
            return Marker(producer_id, None)
        stable_offset = transactions.stable_offset_without(producer_id, offset + 1)
        return Marker(producer_id, Aborted(producer_id, first_offset, offset, stable_offset))

    def _timestamp_max(self, first_timestamp_ms: int) -> int:
        """The latest timestamp that a segment accepts after a first batch with this timestamp."""
        return first_timestamp_ms + self._options.segment_ms

    def _write(self, run: AppendRun) -> Rejection | None:
        """Write a run to the file. On failure, the batches that are not written whole get the failure as outcome."""
        if not run.batches:
            return self._check_duplicates(run)
        try:
            self._index_marker(run.marker)
            done, error = self._active.write(run.buffers, run.end - run.start)
        except OSError as failure:
            done, error = 0, failure
        written = run.batches if error is None else run.whole_below(run.start + done)
        if self._verifies_written and (count := unchanged_count(run.sources[: len(written)])) < len(written):
            written, error = written[:count], OSError(errno.EBADMSG, "")
            self._active.is_torn = True
        self._add_finding(self._active.record_written(written), NO_ENTRIES)
        if written:
            self._on_append()
        if error is not None:
            return self._undo(run, error)
        self.producers.confirm()
        if run.marker is not None:
            self.producers.end_transaction(run.marker.producer_id)
        self._count_unsnapshotted(len(written))
        return None

    def _check_duplicates(self, run: AppendRun) -> Rejection | None:
        """Acknowledge a duplicate only while the active segment is in place."""
        try:
            self._active.check_name()
        except LogLostError as error:
            failure = self._storage_error("", error)
            run.outcomes = [failure if isinstance(outcome, int) else outcome for outcome in run.outcomes]
            return failure
        return None

    @property
    def _verifies_written(self) -> bool:
        """True if the CRC of a batch in shared memory is checked again after the write."""
        chosen = self._options.verify_written
        return self._options.sync != "none" if chosen == "auto" else chosen == "true"

    def _undo(self, run: AppendRun, error: OSError) -> Rejection:
        """Undo the append of the batches that were not written whole, in the producers' state and in the file."""
        self.producers.cut(self.log_end_offset)
        if run.marker is not None and run.marker.aborted is not None and not self.is_lost:
            with contextlib.suppress(OSError):  # readers ignore an entry without a marker
                remove_last(self.folder, self._active.base_offset, run.marker.aborted)
        with contextlib.suppress(OSError):  # the next write cuts before it writes
            self._active.cut()
        is_changed = error.errno == errno.EBADMSG
        what = "got a batch that another process changed while it was written" if is_changed else NOT_APPENDED
        failure = self._storage_error(what, error)
        first_offset = 0 if self.is_lost else self.log_end_offset
        run.outcomes = [
            failure if isinstance(outcome, int) and outcome >= first_offset else outcome for outcome in run.outcomes
        ]
        return failure

    def _index_marker(self, marker: Marker | None) -> None:
        """Write the index entry of an aborted transaction, before its marker.

        Raises:
            OSError: if the entry was not written; the marker must not be written then.
        """
        if marker is not None and marker.aborted is not None:
            self._active.check_name()
            self._has_unsynced_entry = True
            append_aborted(self.folder, self._active.base_offset, marker.aborted)

    def end_transaction(self, producer_id: int, producer_epoch: int, *, is_commit: bool) -> Outcome:
        """Append the marker that ends a producer's transaction. Without a transaction, it only fences older epochs.

        Args:
            producer_id: the producer.
            producer_epoch: its new epoch. Batches of an older epoch are rejected.
            is_commit: If False, readers of committed records skip the records of the transaction.

        Returns:
            The offset of the marker, or the rejection: the epoch is old, or there was a retriable storage error.
        """
        timestamp_ms = int(self._clock() * 1000)
        marker = marker_batch(producer_id, producer_epoch, is_commit=is_commit, timestamp_ms=timestamp_ms)
        return self.append([marker])[0]

    @property
    def stable_offset(self) -> int:
        """The last stable offset: the first offset of an open transaction, or the log end offset."""
        return max(self.producers.transactions.stable_offset(self.log_end_offset), self.log_start_offset)

    @property
    def is_lost(self) -> bool:
        """True if the path of the active segment no longer leads to the open file."""
        return self._active.is_lost

    def tail(self) -> Tail:
        """The last bytes that were written, by which the log is identified later."""
        return self._active.tail()

    def check_names(self) -> None:
        """Check that the paths of all open files lead to them.

        Raises:
            LogLostError: if one does not.
        """
        self._active.check_name()
        self._active.check_index_names()

    def _storage_error(self, what: str, error: OSError) -> Rejection:
        number = error.errno or 0
        sentence = f"{self._active.path} {what}: {os.strerror(number)}. Nothing is lost, it will be tried again"
        if isinstance(error, LogLostError):
            sentence = str(error)
        return Rejection(BrokerError.KAFKA_STORAGE_ERROR, sentence, number)

    def _add_finding(self, error: OSError | None, consequence: str) -> None:
        if error is not None and not self.is_lost:
            self.findings.append(f"{self._active.path}: {os.strerror(error.errno or 0)}; {consequence}")

    # --- appends in C

    def log_end(self) -> LogEnd | None:
        """The object by which native code appends ordinary batches of a sender, or None if `append` has to be used.

        It stays the same until the log rolls, is closed, or gets other options.
        """
        is_ordinary = not (self.closed or self._is_rolling or self.sets_time or self._options.sync == "batch")
        if self._log_end is None and is_ordinary:
            active, options = self._active, self._options
            self._log_end = LogEnd(
                active,
                active.indexer,
                active.offset_index,
                active.time_index,
                self.producers.known,
                KnownBatch,
                os.fsencode(active.path),
                self.epochs.latest,
                options.segment_bytes,
                options.segment_ms,
                self._verifies_written,
            )
        return self._log_end

    def _close_end(self) -> None:
        if self._log_end is not None:
            self._log_end.is_open, self._log_end = False, None

    def appended(self, batch_count: int, index_errno: int) -> None:
        """Account for batches that were appended through the log end.

        Args:
            batch_count: at least one.
            index_errno: the errno of the failed index append, or 0 if there was none.
        """
        if index_errno:
            self._add_finding(OSError(index_errno, ""), NO_ENTRIES)
        self._on_append()
        self._count_unsnapshotted(batch_count)

    # --- roll

    def _roll_for(self, batch: Appendable) -> Rejection | None:
        """Roll for a batch that does not fit the active segment; reject a batch that fits no segment."""
        if not self._active.size:
            limit = self._options.segment_bytes
            return Rejection(
                BrokerError.MESSAGE_TOO_LARGE,
                f"a batch of {batch.size} bytes does not fit a segment of {limit}: raise segment_bytes, "
                "or send smaller batches",
            )
        try:
            self.roll()
        except OSError as error:
            return self._storage_error("could not be followed by a new segment", error)
        return None

    def roll(self) -> None:
        """Close the active segment and open the next one. If the active segment is empty, do nothing.

        Raises:
            OSError: if the active segment stays active. It accepts no more batches. If a file of the next segment
                exists, the next process that opens the log finds it.
        """
        old = self._active
        if not old.size:
            return
        old.check_name()
        self._close_end()
        old.finish()
        self._take_snapshot()
        if self._options.sync != "none":
            self.sync()
            old.sync_indexes()
        self._is_rolling = True
        self._active = self._next_segment()
        self._is_rolling = False
        self.segments.append(self.log_end_offset)
        self._snapshot_size = 0
        old.close()

    def _next_segment(self) -> Segment:
        """Open the next segment. If the log is synced, the names of its files are on disk before it is used."""
        segment = Segment(self.folder, self.log_end_offset, self._options.index_interval_bytes)
        try:
            if self._options.sync != "none":
                sync_folder(self.folder)
        except OSError:
            segment.close()
            raise
        return segment

    # --- snapshots

    def _count_unsnapshotted(self, batch_count: int) -> None:
        self._unsnapshotted_count += batch_count
        if self._is_snapshot_due:
            self._take_snapshot()

    @property
    def _is_snapshot_due(self) -> bool:
        return (
            self._unsnapshotted_count >= SNAPSHOT_BATCH_COUNT
            or self._active.size - self._snapshot_size > SNAPSHOT_INTERVAL
        )

    def _take_snapshot(self) -> None:
        """Write a snapshot of the producers' state, so that the next opening has less to read."""
        self._snapshot_size = self._active.size
        self._unsnapshotted_count = 0
        try:
            self._active.check_name()
            path = offset_file(self.folder, self.log_end_offset, SNAPSHOT)
            replace_file(path, self.producers.snapshot())
            # Keep the snapshots at the base offset of a segment, and the newest few others.
            loose = [offset for offset in offsets_with(self.folder, SNAPSHOT) if offset not in self.segments]
            for offset in loose[:-LOOSE_SNAPSHOTS_KEPT]:
                os.unlink(offset_file(self.folder, offset, SNAPSHOT))
        except OSError as error:
            self._add_finding(error, "no snapshot was written, so the next opening takes longer")

    # --- sync

    def sync(self) -> None:
        """Force all appended batches to disk, and move the recovery point to the log end.

        Raises:
            OSError: if records after the recovery point may be lost in a crash of the host. Their bytes are written
                again before the next sync, because the kernel does not remember that they are not on disk.
        """
        self._active.check_name()
        for base_offset, end_offset in itertools.pairwise(self.segments):
            if end_offset > self.recovery_point:
                sync_file(offset_file(self.folder, base_offset, LOG))
        if self._is_sync_broken:
            self._active.rewrite()
        self._is_sync_broken = True
        self._active.sync()
        self._is_sync_broken = False
        self._sync_entries()
        self.recovery_point = self.log_end_offset

    def _sync_entries(self) -> None:
        """Force the entries of aborted transactions to disk, because data below the recovery point is trusted."""
        path = offset_file(self.folder, self._active.base_offset, TRANSACTION_INDEX)
        if self._has_unsynced_entry and os.path.exists(path):
            sync_file(path)
            sync_folder(self.folder)
        self._has_unsynced_entry = False

    def _synced(self, outcomes: list[Outcome]) -> list[Outcome]:
        """With sync=batch, return no offset before its bytes are on disk, also for a duplicate."""
        try:
            self.sync()
            self._active.check_name()
        except OSError as error:
            failure = self._storage_error("could not be synced", error)
            return [failure if isinstance(outcome, int) else outcome for outcome in outcomes]
        return outcomes

    # --- retain

    def use(self, options: LogSinkOptions) -> None:
        """Use other options from now on."""
        self._close_end()
        self._options = options

    def delete_before(self, offset: int) -> None:
        """Delete the records below an offset. The log then starts there, and segments wholly below it are deleted.

        The caller has stored the offset, so after a death in between, the next call deletes the remaining segments.

        Raises:
            OSError: if a segment could not be deleted. Its records are below the log start offset anyway.
        """
        self._active.check_name()
        self._start_offset = max(self._start_offset, offset)
        if offset >= self.log_end_offset:
            self.roll()
        while len(self.segments) > 1 and self.segments[1] <= self._start_offset:
            self._delete_oldest()
        self.producers.forget_before(self.segments[0])

    def retain(self, kept_from: int = OFFSET_MAX) -> int:
        """Delete segments that exceed retention_ms or retention_bytes; return their number.

        Args:
            kept_from: a segment with a record at or after this offset is kept.

        Raises:
            OSError: if a segment could not be deleted. The younger ones still exist, too.
        """
        self._active.check_name()
        count = 0
        while self._is_expired(self.segments[0]):
            end_offset = self.segments[1] if len(self.segments) > 1 else self.log_end_offset
            if end_offset > kept_from:
                self.findings.append(
                    f"{self.folder} keeps records from offset {kept_from} on beyond its retention, because they are "
                    "not shipped: run shmaccum ship, or end the shipping with --forget"
                )
                break
            if len(self.segments) == 1:
                self.roll()
            self._delete_oldest()
            count += 1
        if count:
            self.producers.forget_before(self.segments[0])
        return count

    def _is_expired(self, base_offset: int) -> bool:
        """True if the oldest segment must be deleted: it is too old, or the others alone reach retention_bytes."""
        if base_offset == self._active.base_offset and not self._active.size:
            return False
        oldest_ms = self._clock() * 1000 - self._options.retention_ms
        if self._options.retention_ms >= 0 and self._is_older(base_offset, oldest_ms):
            return True
        if self._options.retention_bytes < 0 or base_offset == self._active.base_offset:
            return False
        others = sum(os.path.getsize(offset_file(self.folder, base, LOG)) for base in self.segments[1:])
        return others >= self._options.retention_bytes

    def _is_older(self, base_offset: int, oldest_ms: float) -> bool:
        """True if all records of a segment are older.

        A broker's log may have batches without a timestamp in the header. A segment with one is as old as its file.
        """
        path = offset_file(self.folder, base_offset, LOG)
        youngest_ms, written_ms = self._youngest_ms(base_offset), os.path.getmtime(path) * 1000
        if youngest_ms >= oldest_ms:
            return False
        return written_ms < oldest_ms or not self._is_time_missing(path, base_offset)

    def _is_time_missing(self, path: str, base_offset: int) -> bool:
        """True if a batch of a segment has no timestamp. Cached for finished segments, because all headers are read."""
        if base_offset not in self._timeless and base_offset != self._active.base_offset:
            self._timeless.clear()
        if base_offset == self._active.base_offset or base_offset not in self._timeless:
            found = walk(map_file(path), base_offset, is_crc_checked=False, is_gapless=False)
            self._timeless[base_offset] = any(
                isinstance(one, LocatedBatch) and one.header.is_time_missing for one in found
            )
        return self._timeless[base_offset]

    def _youngest_ms(self, base_offset: int) -> int:
        """The largest timestamp of a segment; without timestamps, the time of its last write."""
        if base_offset == self._active.base_offset:
            youngest = self._active.indexer.max_timestamp_ms
        else:
            youngest = last_timestamp(load_entries(offset_file(self.folder, base_offset, TIME_INDEX), TIME_ENTRY))
        if youngest >= 0:
            return youngest
        return int(os.path.getmtime(offset_file(self.folder, base_offset, LOG)) * 1000)

    def _delete_oldest(self) -> None:
        """Delete the log first: after a death, the other files belong to no segment, and recovery removes them."""
        base_offset = self.segments[0]
        os.unlink(offset_file(self.folder, base_offset, LOG))
        del self.segments[0]
        for suffix in OF_A_SEGMENT[1:]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(offset_file(self.folder, base_offset, suffix))
        for offset in offsets_with(self.folder, SNAPSHOT):
            if offset < self.segments[0]:
                os.unlink(offset_file(self.folder, offset, SNAPSHOT))

    # --- close

    @property
    def log_end_offset(self) -> int:
        """The next offset to assign."""
        return self._active.next_offset

    @property
    def log_start_offset(self) -> int:
        """The first offset that neither retention nor a user has deleted."""
        return max(self.segments[0], self._start_offset)

    @property
    def size(self) -> int:
        """The size of the batches in all segments, in bytes."""
        finished = (os.path.getsize(offset_file(self.folder, base, LOG)) for base in self.segments[:-1])
        return sum(finished) + self._active.size

    def close(self) -> None:
        """Write a snapshot at the log end, sync if there is a policy, and close the files.

        Raises:
            OSError: if the sync failed. The files are closed anyway.
        """
        if self.closed:
            return
        self.closed = True
        self._close_end()
        try:
            self._take_snapshot()
            if self._options.sync != "none":
                self.sync()
        finally:
            self._active.close()

    def abandon(self) -> None:
        """Close the files without a snapshot or a sync, as a death would."""
        if not self.closed:
            self.closed = True
            self._close_end()
            self._active.close()


def unchanged_count(batches: Sequence[Appendable]) -> int:
    """The number of batches, counted from the first, whose bytes still match their CRC."""
    for count, batch in enumerate(batches):
        crc = shared_crc(batch)
        if crc is not None and _summed(batch.buffers) != (crc, crc):
            return count
    return len(batches)


def _summed(buffers: Sequence[memoryview]) -> tuple[int, int]:
    """The CRC of a batch's bytes, and the CRC in its header, or -1 for another format."""
    crc = crc32c(buffers[0][CRC_START:])
    for buffer in buffers[1:]:
        crc = crc32c(buffer, crc)
    header = read_header(buffers[0])
    return crc, header.crc if header.magic == MAGIC else -1
