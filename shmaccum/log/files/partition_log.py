# SPDX-License-Identifier: Apache-2.0
"""One partition's log as its writer has it open (Kafka's UnifiedLog).

::

    segments      | 0 ......... | 4711 ...... | 9022 ...     |
                  ^ log start offset          ^ active        ^ log end offset = next to be given

Procedure of an append: each batch is admitted by the producers' state, which knows duplicates; those admitted are a
*run*: consecutive offsets, one pwritev into the active segment. A run ends before the segment is full, then the log
rolls. A batch that a run did not get into the file (disk full, I/O error) is taken back from the producers' state and
answered as a storage error, which may be tried again; a batch that got there whole stays and is acknowledged.

Procedure of a marker: it ends its run, so that the state behind it counts for the next one. The entry of an aborted
transaction is in the index before its marker is in the log (`transaction_index`). The transaction is over when the
marker is written.

Identity: each append ends with a look whether the path of the active segment leads to the file that is open
(`segment`), and all that reads or writes the folder by names begins with one. A log that fails is lost: it is let go of
as it is, and `LogDirectory` opens it anew when the folder holds again what was written.

Procedure of a roll: finish the time index; snapshot the producers' state at the new base offset; sync, when there is a
policy; make the three new files. A death in between leaves an old segment that is appended to further, or an empty new
one; both are what recovery expects.
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
from shmaccum.log.files.producer_state import Appendable, KnownBatch, Refusal, shared_crc
from shmaccum.log.files.recovery import Recovery
from shmaccum.log.files.segment import IOV_MAX, Segment, Tail, Written
from shmaccum.log.files.small_files import replace_file, sync_file
from shmaccum.log.files.transaction_index import Aborted, append_aborted, remove_last
from shmaccum.log.files.transaction_marker import decision_in, marker_batch
from shmaccum.log.files.walk import RELATIVE_OFFSET_MAX, LocatedBatch, map_file, walk

Outcome = int | Refusal
"""The fate of a batch: the base offset it got (now, or when it came first), or the reason of its refusal."""

SNAPSHOT_INTERVAL = 8 << 20
SNAPSHOT_BATCH_COUNT = 512
"""Bytes and batches between two snapshots. The next writer reads so much again after a death, while others wait."""
LOOSE_SNAPSHOTS_KEPT = 2
RUN_BUFFERS_MAX = IOV_MAX - 2
TIMESTAMP_MAX = 2**63 - 1
LOG_APPEND_TIME = "LogAppendTime"
NOT_APPENDED = "could not be appended to"
NO_ENTRIES = "no index entries were written, look-ups will take longer"
OWN_TIME = -1
"""The answer of an append whose records have the times of their producer, as in Kafka's protocol."""

_pack_prefix = PREFIX.pack
_new_tuple = tuple.__new__
"""Makes a NamedTuple without its own __new__, which would take several times as long."""


class Marker(NamedTuple):
    """A marker that is to be written."""

    producer_id: int
    aborted: Aborted | None
    """The entry for the index; None: it commits, or there is no transaction to end."""


class AppendRun:
    """Batches that go to the file together.

    Attributes:
        start, end: positions in the segment.
        buffers: the bytes to write there.
        batches: the batches in it, for the indexes.
        sources: the same, as they were given.
        outcomes: of these, and of those in between that were not to be written.
        marker: the last batch, when it is one that ends a transaction.
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
        """Those that are in the file, when it was written up to this position."""
        return [batch for batch in self.batches if batch.end <= position]


class PartitionLog:
    """The writer of one partition's folder; make one by `LogDirectory.partition`.

    Attributes:
        place: topic and partition.
        folder: path of it.
        segments: base offsets, the active segment's last.
        epochs: the leader epochs; batches get the latest.
        findings: a sentence for each problem at opening, or with an index since.
        recovery_point: below this offset everything was synced.
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
        """Recovers the folder and opens its active segment.

        Raises:
            OSError: the folder cannot be read or written.
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
        self._has_unsynced_entry = True  # one that a dead writer left, perhaps
        self.closed = False
        if self.log_end_offset and not os.path.exists(offset_file(folder, self.log_end_offset, SNAPSHOT)):
            self._take_snapshot()  # after a death soon, the next writer need not read this again
        try:
            if options.sync != "none":  # a file that is synced needs a name that is
                sync_folder(folder)
                sync_folder(os.path.dirname(folder))
        except OSError:
            self.abandon()
            raise

    # --- append

    def append(self, batches: Sequence[Appendable]) -> list[Outcome]:
        """Appends batches in their order, as many as possible by one system call.

        Returns:
            One outcome per batch. After a storage error (56) all batches behind it have that error too.
        """
        if self.sets_time:
            self._appended_ms = int(self._clock() * 1000)
            batches = [StampedBatch(batch, self._appended_ms) for batch in batches]
        outcomes: list[Outcome] = []
        while len(outcomes) < len(batches):
            run = self._plan(batches, len(outcomes))
            failure = self._write(run) if run.outcomes else self._make_room(batches[len(outcomes)])
            outcomes += run.outcomes
            if failure is not None:
                outcomes += [failure] * (len(batches) - len(outcomes) if failure.is_retriable else 1)
        if self._options.sync == "batch" and self.log_end_offset > self.recovery_point:
            return self._synced(outcomes)
        return outcomes

    @property
    def sets_time(self) -> bool:
        """True when records get the time of their append."""
        return self._options.message_timestamp_type == LOG_APPEND_TIME

    def time_of(self, batch: Appendable, offset: int) -> int:
        """The time that the log gave to a batch of the last append, in milliseconds; `OWN_TIME`: it gave none.

        A batch that was there already has the time of its first append.
        """
        if not self.sets_time:
            return OWN_TIME
        known_ms = self.producers.timestamp_ms(batch.producer_id, offset)
        return self._appended_ms if known_ms is None else known_ms

    def _plan(self, batches: Sequence[Appendable], first: int) -> AppendRun:
        """The next run: as many batches from `first` on as fit the active segment and one system call.

        This is what runs per batch, so it keeps to local names and tells each batch's facts once.
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
            if is_too_much or len(buffers) > RUN_BUFFERS_MAX:
                break
            pieces = batch.buffers
            attributes = pieces[0][ATTRIBUTES_POSITION]
            if attributes & OF_A_TRANSACTION:
                known = self._admit_of_transaction(batch, offset, run, is_control=bool(attributes & CONTROL))
            else:
                known = admit(batch, offset)
            if known is not None:
                outcomes.append(self._judge_known(batch, known))
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
        """As the producers' state admits a batch of a transaction, or a marker, which ends the run."""
        if not is_control:
            return self.producers.admit_of_transaction(batch, offset)
        refusal = self.producers.admit_marker(batch, offset)
        if refusal is None:
            run.marker = self._marker_at(offset, batch)
        return refusal

    def _judge_known(self, batch: Appendable, known: Outcome) -> Outcome:
        """The outcome of a batch that is not to be written: a duplicate has the records of the one that it repeats."""
        if isinstance(known, Refusal) or known >= self.log_end_offset:  # the latter is in the run that is being planned
            return known
        if is_appended_batch(batch, self.folder, self.segments, known):
            return known
        return Refusal(
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
        """The youngest record that a segment takes whose first batch is this old."""
        return first_timestamp_ms + self._options.segment_ms

    def _write(self, run: AppendRun) -> Refusal | None:
        """Puts a run into the file. On failure what is not there whole gets the failure as its outcome."""
        if not run.batches:
            return self._check_known(run)
        try:
            self._index_marker(run.marker)
            done, error = self._active.write(run.buffers, run.end - run.start)
        except OSError as failure:
            done, error = 0, failure
        written = run.batches if error is None else run.whole_below(run.start + done)
        if self._verifies_written and (count := unchanged_count(run.sources[: len(written)])) < len(written):
            written, error = written[:count], OSError(errno.EBADMSG, "")
            self._active.is_torn = True
        self._find(self._active.note(written), NO_ENTRIES)
        if written:
            self._on_append()
        if error is not None:
            return self._take_back(run, error)
        self.producers.settle()
        if run.marker is not None:
            self.producers.end_transaction(run.marker.producer_id)
        self._count_unsnapshotted(len(written))
        return None

    def _check_known(self, run: AppendRun) -> Refusal | None:
        """A batch that came before is acknowledged only while it is there."""
        try:
            self._active.check_name()
        except LogLostError as error:
            failure = self._storage_error("", error)
            run.outcomes = [failure if isinstance(outcome, int) else outcome for outcome in run.outcomes]
            return failure
        return None

    @property
    def _verifies_written(self) -> bool:
        """True when a batch in shared memory is looked at again behind its write."""
        chosen = self._options.verify_written
        return self._options.sync != "none" if chosen == "auto" else chosen == "true"

    def _take_back(self, run: AppendRun, error: OSError) -> Refusal:
        """A batch that was not written whole was not appended: neither for the producers' state nor for the file."""
        self.producers.cut(self.log_end_offset)
        if run.marker is not None and run.marker.aborted is not None and not self.is_lost:
            with contextlib.suppress(OSError):  # an entry without a marker tells readers nothing
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
        """Writes the entry of an aborted transaction, in front of its marker.

        Raises:
            OSError: the marker may not be written.
        """
        if marker is not None and marker.aborted is not None:
            self._active.check_name()
            self._has_unsynced_entry = True
            append_aborted(self.folder, self._active.base_offset, marker.aborted)

    def end_transaction(self, producer_id: int, producer_epoch: int, *, is_commit: bool) -> Outcome:
        """Appends the marker that ends a producer's transaction; without one the marker fences older epochs alone.

        Args:
            producer_id: the producer.
            producer_epoch: its epoch from now on; batches of an older one are refused.
            is_commit: False: readers of committed records pass over those of the transaction.

        Returns:
            The offset of the marker, or the refusal: the epoch is old, or a storage error that may be tried again.
        """
        timestamp_ms = int(self._clock() * 1000)
        marker = marker_batch(producer_id, producer_epoch, is_commit=is_commit, timestamp_ms=timestamp_ms)
        return self.append([marker])[0]

    @property
    def stable_offset(self) -> int:
        """The last stable offset: the first one of an open transaction, or the log end offset."""
        return max(self.producers.transactions.stable_offset(self.log_end_offset), self.log_start_offset)

    @property
    def is_lost(self) -> bool:
        """True when the path of the active segment does not lead to the open file any more."""
        return self._active.is_lost

    def tail(self) -> Tail:
        """The last bytes that were written, by which the log is known again."""
        return self._active.tail()

    def check_names(self) -> None:
        """Looks whether the paths of all open files lead to them.

        Raises:
            LogLostError: one does not.
        """
        self._active.check_name()
        self._active.check_index_names()

    def _storage_error(self, what: str, error: OSError) -> Refusal:
        if isinstance(error, LogLostError):
            return Refusal(BrokerError.KAFKA_STORAGE_ERROR, str(error), error.errno or 0)
        return Refusal(
            BrokerError.KAFKA_STORAGE_ERROR,
            f"{self._active.path} {what}: {os.strerror(error.errno or 0)}. Nothing is lost, it will be tried again",
            error.errno or 0,
        )

    def _find(self, error: OSError | None, consequence: str) -> None:
        if error is not None and not self.is_lost:
            self.findings.append(f"{self._active.path}: {os.strerror(error.errno or 0)}; {consequence}")

    # --- appends in C

    def log_end(self) -> LogEnd | None:
        """Ordinary batches of a sender may be appended by it; None: all go by `append`.

        It is the same one until the log rolls, is closed, or goes on with other options.
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
        """Batches were appended by the log end.

        Args:
            batch_count: at least one.
            index_errno: the number of the error for which an index has no entries of them; 0: there was none.
        """
        if index_errno:
            self._find(OSError(index_errno, ""), NO_ENTRIES)
        self._on_append()
        self._count_unsnapshotted(batch_count)

    # --- roll

    def _make_room(self, batch: Appendable) -> Refusal | None:
        """Rolls for a batch that the active segment cannot take; refuses one that no segment can."""
        if not self._active.size:
            limit = self._options.segment_bytes
            return Refusal(
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
        """Closes the active segment and opens the next; does nothing when the active one is empty.

        Raises:
            OSError: the active segment is still the active one, but takes nothing more. The next one may have a file by
                now, and the next process that opens the log finds it.
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
        """Nothing is in it before its name is on disk, where that counts."""
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
        """Writes the producers' state down, so that less has to be read at the next opening."""
        self._snapshot_size = self._active.size
        self._unsnapshotted_count = 0
        try:
            self._active.check_name()
            path = offset_file(self.folder, self.log_end_offset, SNAPSHOT)
            replace_file(path, self.producers.snapshot())
            # Keeps those at a segment's base offset and the newest few others.
            loose = [offset for offset in offsets_with(self.folder, SNAPSHOT) if offset not in self.segments]
            for offset in loose[:-LOOSE_SNAPSHOTS_KEPT]:
                os.unlink(offset_file(self.folder, offset, SNAPSHOT))
        except OSError as error:
            self._find(error, "no snapshot was written, the next opening will take longer")

    # --- sync

    def sync(self) -> None:
        """Forces everything that was appended to disk, and moves the recovery point there.

        Raises:
            OSError: records behind the recovery point may be lost in a crash of the host. Its bytes are written once
                more before the next sync, because the kernel forgets that they are not on disk.
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
        """Forces the entries of aborted transactions to disk, for what lies below the recovery point is trusted."""
        path = offset_file(self.folder, self._active.base_offset, TRANSACTION_INDEX)
        if self._has_unsynced_entry and os.path.exists(path):
            sync_file(path)
            sync_folder(self.folder)
        self._has_unsynced_entry = False

    def _synced(self, outcomes: list[Outcome]) -> list[Outcome]:
        """With sync=batch no offset is told before its bytes are on disk, that of a duplicate neither."""
        try:
            self.sync()
            self._active.check_name()
        except OSError as error:
            failure = self._storage_error("could not be synced", error)
            return [failure if isinstance(outcome, int) else outcome for outcome in outcomes]
        return outcomes

    # --- retain

    def use(self, options: LogSinkOptions) -> None:
        """Goes on with other options."""
        self._close_end()
        self._options = options

    def delete_before(self, offset: int) -> None:
        """Deletes the records below an offset: the log starts there, and segments that lie below it whole are gone.

        The caller wrote the offset down, so a death in between leaves segments that the next call deletes.

        Raises:
            OSError: a segment could not be deleted; its records are below the start all the same.
        """
        self._active.check_name()
        self._start_offset = max(self._start_offset, offset)
        if offset >= self.log_end_offset:
            self.roll()
        while len(self.segments) > 1 and self.segments[1] <= self._start_offset:
            self._delete_oldest()
        self.producers.forget_before(self.segments[0])

    def retain(self, kept_from: int = OFFSET_MAX) -> int:
        """Deletes what is older than retention_ms or beyond retention_bytes; answers how many segments that was.

        Args:
            kept_from: a segment with a record at this offset, or behind it, stays.

        Raises:
            OSError: a segment could not be deleted; the younger ones are still there too.
        """
        self._active.check_name()
        count = 0
        while self._is_expired(self.segments[0]):
            end_offset = self.segments[1] if len(self.segments) > 1 else self.log_end_offset
            if end_offset > kept_from:
                self.findings.append(
                    f"{self.folder} keeps records that are not shipped beyond its retention, from offset {kept_from} "
                    "on: let shmaccum ship go on, or give it up with --forget"
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
        """True when the oldest segment has to go: too old, or the others alone are enough."""
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
        """True when no record of a segment is as young as that.

        A log of others may have batches whose headers tell no time. A segment that has one is as young as its file.
        """
        path = offset_file(self.folder, base_offset, LOG)
        youngest_ms, written_ms = self._youngest_ms(base_offset), os.path.getmtime(path) * 1000
        if youngest_ms >= oldest_ms:
            return False
        return written_ms < oldest_ms or not self._is_time_missing(path, base_offset)

    def _is_time_missing(self, path: str, base_offset: int) -> bool:
        """Whether a batch of a segment tells no time. It is found out once, for the headers have to be read for it."""
        if base_offset not in self._timeless and base_offset != self._active.base_offset:
            self._timeless.clear()
        if base_offset == self._active.base_offset or base_offset not in self._timeless:
            found = walk(map_file(path), base_offset, is_crc_checked=False, is_gapless=False)
            self._timeless[base_offset] = any(
                isinstance(one, LocatedBatch) and one.header.is_time_missing for one in found
            )
        return self._timeless[base_offset]

    def _youngest_ms(self, base_offset: int) -> int:
        """The largest timestamp of a segment; without timestamps, when it was last written to."""
        if base_offset == self._active.base_offset:
            youngest = self._active.indexer.max_timestamp_ms
        else:
            youngest = last_timestamp(load_entries(offset_file(self.folder, base_offset, TIME_INDEX), TIME_ENTRY))
        if youngest >= 0:
            return youngest
        return int(os.path.getmtime(offset_file(self.folder, base_offset, LOG)) * 1000)

    def _delete_oldest(self) -> None:
        """The log first: files that a death leaves belong to no segment, and recovery removes them."""
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
        """The next offset to be given."""
        return self._active.next_offset

    @property
    def log_start_offset(self) -> int:
        """The first offset that was neither retained away nor deleted."""
        return max(self.segments[0], self._start_offset)

    @property
    def size(self) -> int:
        """Bytes of batches in all segments."""
        finished = (os.path.getsize(offset_file(self.folder, base, LOG)) for base in self.segments[:-1])
        return sum(finished) + self._active.size

    def close(self) -> None:
        """Leaves a snapshot at the log end, syncs when there is a policy, lets go of the files.

        Raises:
            OSError: syncing failed; the files are closed all the same.
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
        """Lets go of the files and of nothing else, as a death would."""
        if not self.closed:
            self.closed = True
            self._close_end()
            self._active.close()


def unchanged_count(batches: Sequence[Appendable]) -> int:
    """How many batches, from the first on, still have the bytes of which their CRC was taken."""
    for count, batch in enumerate(batches):
        crc = shared_crc(batch)
        if crc is not None and _summed(batch.buffers) != (crc, crc):
            return count
    return len(batches)


def _summed(buffers: Sequence[memoryview]) -> tuple[int, int]:
    """The CRC of a batch's bytes, and the one in its header; -1 where the format is another one."""
    crc = crc32c(buffers[0][CRC_START:])
    for buffer in buffers[1:]:
        crc = crc32c(buffer, crc)
    header = read_header(buffers[0])
    return crc, header.crc if header.magic == MAGIC else -1
