# SPDX-License-Identifier: Apache-2.0
"""The overflow: a log on disk that takes batches while the sink, or a broker, does not work (decision 0066).

`spill_need.py` decides when, and for which partitions.

::

    arena  ── spill: the oldest of each partition ──> overflow ── ship: before any batch of the arena ──> sink
           ────────────────── partitions without batches in the overflow ───────────────────────────────>

    spill   1 drain ─> 2 append to the log ─> 3 row in the spill file ─> 4 range in the arena ─> 5 free the slot
    ship    6 read ─> 7 send ─> 8 ack ─> 9 result in the arena ─> 10 position ─> 11 range ─> 6

Rules
    A partition with batches in the overflow is *held*: none of its batches are sent from the arena to the sink. So the
    batches of the overflow come first in each partition, and those of the arena follow.
    A batch keeps its producer id, epoch and sequence, because it may have been in flight when the outage began.
    A spilled record has no result before the sink has it, and it does not expire.
    While the overflow gets emptier, records of the arena do not age, because they wait for the overflow.
    Batches that the sink has when their partition begins to spill are spilled first, and stay in their slots until
    their ack, whatever its verdict. Until then, no batch of the partition is shipped. So the log has all of them in
    order, and the sink gets some of them again, with the same sequences.

DEATHS. Each step, the state after a death in it, and the next sender's repair:

    1        batches with a sequence are in their slots: they are spilled, or sent, again
    2, 3, 4  batches are in their slots and in the log: before anything is sent, `_settle_front` drains the front of
             each held partition again, finds the batches in the rows or the log, and repeats steps 3 to 5
    5        a slot is DONE: it is freed
    6 to 9   the sink may have the batches: they are sent again, and the sink drops duplicates
    10       the new or the former position is intact: shipping continues from it
    11       a range is too large: all ranges are set again

IDENTITY. The arena counts records that are only on disk. So a sender starts only if the folder has them: it contains
the arena's file (`MARK`), and for each partition the rows of the arena, whose batches are in the log. At the start, a
folder that was removed, moved or replaced is refused, with the remedies. In a running sender, it is reported, its
partitions are held, and it is reopened after it is back and passes the same check.

If the disk is full, the batches stay in the arena, and writing is tried again every second.

C takes ordinary batches through all of these steps, many per call: `append_to_log` through 1 to 5
(native/sender/log_run.h), and `run_batch_loop` through 6 to 10 (native/sender/batch_loop.h). Python takes the others:
the first batch of a partition, batches that a dead sender left, and batches that `send_window` sends.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import final

from shmaccum._native import Batch, LogEnd, SenderHalf
from shmaccum.arena import Arena
from shmaccum.arena.reports import UNAFFECTED, Kind, Reason, Report
from shmaccum.arena.results import BatchResult
from shmaccum.common.clock import NS_PER_MS
from shmaccum.common.durability import sync_folder
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import format_count
from shmaccum.config import LogSinkOptions, SenderOptions
from shmaccum.config.sender import OVERFLOW_KIND
from shmaccum.exceptions import CorruptArenaError, InvalidArgumentError, LogError, ShmaccumError
from shmaccum.log.files.broker_error import BrokerError
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.file_names import OVERFLOW_FOLDER, is_shmaccum_log
from shmaccum.log.files.partition_log import PartitionLog
from shmaccum.log.files.permissions import make_folder, make_folder_of_arena
from shmaccum.log.files.producer_state import KEPT_COUNT, SEQUENCE_MASK, Rejection
from shmaccum.log.files.reader import LogReader
from shmaccum.log.files.regular_files import open_regular
from shmaccum.sender.backlog import LOCAL_ID_START, Backlog, SpilledBatch
from shmaccum.sender.backoff import NEVER_NS, Backoff
from shmaccum.sender.batch_loop import BatchLoop
from shmaccum.sender.batch_splitter import is_part
from shmaccum.sender.duties.dead_letters import DeadLetters
from shmaccum.sender.host import Host
from shmaccum.sender.identity import ProducerIdentity
from shmaccum.sender.metrics import SenderMetrics
from shmaccum.sender.record_errors import MESSAGE_TOO_LARGE, RECORD_ERRORS_MAX, error_runs
from shmaccum.sender.send_window import take_delivery
from shmaccum.sender.sink_batches import SinkBatches, release_views
from shmaccum.sender.sinks.sink import Ack, Delivered, Sink, Verdict, WireBatch, sockets_of
from shmaccum.sender.sinks.stream_end import StreamEnd, StreamState, delivered_by
from shmaccum.sender.spill_file import OverflowBatch, SpillFile
from shmaccum.sender.spill_need import SpillClock

SPILL_SIZE_MAX = 16 << 20
"""Bytes that are drained at once."""
READ_AHEAD_SIZE = 4 << 20
"""Bytes of the batches that all windows together have read, besides the first batch of each."""
SEGMENT_SIZE_MIN = 128 << 20
ANY_RECORD = 2**32 - 1
"""An upper bound for the size of a record. So no batch is decoded to find its largest record."""
PAUSE_NS = 1_000_000_000
MARK = "{}.arena"
"""The file in the overflow's folder that names, by its uuid, the arena that spills there."""
LOOP_MS = 25
"""The native batch loop starts no request after this time, because the sender does nothing else meanwhile."""
ANSWER_MS_MAX = 2_000
"""A response that takes longer ends its connection, and the native batch loop pauses for `LOOP_PAUSE_NS`."""
LOOP_PAUSE_NS = 10_000 * NS_PER_MS
SEQUENCE_ERRORS = frozenset({BrokerError.OUT_OF_ORDER_SEQUENCE_NUMBER, BrokerError.INVALID_PRODUCER_EPOCH})


@final
class Overflow:
    """The overflow of an arena.

    Args:
        half: with the sender role.
        host: of the sender.
        sink: receives all batches of the overflow.
        options: of the sender; `overflow` names the directory, which is created if it is missing.

    Raises:
        InvalidArgumentError: the sink does not recognise redelivered batches.
        LogBusyError, NotALogError, LogForbiddenError, LogError, OSError: the directory cannot be opened.
    """

    def __init__(self, half: SenderHalf, host: Host, sink: Sink, options: SenderOptions) -> None:
        assert options.overflow is not None
        if sink.producer_ids is None:
            raise InvalidArgumentError(
                f"{sink.name or type(sink).__name__} does not recognise redelivered batches, which an overflow "
                "requires: leave overflow out, or deliver to kafka:HOST:PORT or log:DIR"
            )
        self._half = half
        self._arena: Arena = host.arena
        self._native = host.arena.native
        self._host = host
        self._sink = sink
        self._options = options
        self._tag = int.from_bytes(host.arena.uuid[:8], "little")
        self._backoff = Backoff(options.retry_backoff_ms, options.retry_backoff_max_ms)
        self._backlogs: dict[int, Backlog] = {}
        self._unsettled: set[int] = set()
        self._clock = SpillClock(half, sink, options, self._native.geometry["slot_count"])
        self._in_flight: set[int] = set()  # partitions of which the sink has batches of the arena
        self._is_lost = False
        self._opened_count = 1
        self._sockets = sockets_of(sink)
        self._no_loop_before_ns = 0
        self._looping: set[int] = set()  # partitions of the last call of `ship`, which the next one continues
        self._not_before_ns = 0
        self._since_ns = 0
        self._progress_ns = self._native.now_ns()
        self._published: tuple[int, ...] | None = None
        self._size = 0
        self.spilled_batch_count = 0
        self.spilled_record_count = 0
        is_synced = self._arena.durability != "process"
        segment_bytes = max(SEGMENT_SIZE_MIN, 2 * host.batch_size_max)
        self._is_synced = is_synced
        path = options.overflow.removeprefix(OVERFLOW_KIND)
        if (places := self._counted_places()) and not is_shmaccum_log(path):
            raise self._refusal(path, places)  # create nothing where the folder may be restored
        make_folder_of_arena(path, host.permissions)
        self._directory = LogDirectory(
            path,
            LogSinkOptions(sync="batch" if is_synced else "none", segment_bytes=segment_bytes),
            show_life=host.show_life,
            arena_name=self._arena.name,
        )
        try:
            self._open()
        except BaseException:
            self._directory.close()
            raise

    def _open(self) -> None:
        self._folder = os.path.join(self._directory.path, OVERFLOW_FOLDER)
        self._confirm()
        self._make_mark()
        self._reader = LogReader(self._directory.path, on_corrupt="skip")
        for topic in self._directory.topics():
            for number in range(self._directory.partition_count(topic)):
                self._add_found(TopicPartition(topic, number))
        for index in self._native.spilled()["partitions"]:
            if index not in self._backlogs:
                self._half.set_spilled(index, 0, 0)
        if self._native.producer_identity[0] < 0:
            local_id = LOCAL_ID_START + self._directory.new_producer_id()
            self._half.set_producer_id(local_id, 0, self._directory.uuid)
        since_ns = self._native.spilled()["since_ns"]
        now_ns = self._native.now_ns()
        self._since_ns = since_ns if 0 < since_ns <= now_ns else now_ns
        self._size = self._size_on_disk()
        self._publish()

    def _make_mark(self) -> None:
        make_folder(self._folder)
        os.close(open_regular(self._mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW))
        if self._is_synced:
            sync_folder(self._folder)
            sync_folder(self._directory.path)

    # --- identity

    @property
    def _mark(self) -> str:
        return os.path.join(self._folder, MARK.format(self._arena.uuid.hex()))

    def _confirm(self) -> None:
        """Check that the folder has what the arena counts; change nothing.

        Raises:
            LogError: the folder lacks records that the arena counts.
        """
        if missing := [place for place in self._counted_places() if not self._holds_all_of(place)]:
            raise self._refusal(self._directory.path, missing)

    def _counted_places(self) -> list[TopicPartition]:
        """Return the partitions of which the arena counts records on disk."""
        return [TopicPartition(*self._host.topic_partition(index)) for index in self._native.spilled()["partitions"]]

    def _refusal(self, path: str, places: Sequence[TopicPartition]) -> LogError:
        records = format_count(self._native.spilled()["record_count"], "record")
        return LogError(
            f"the overflow of {self._arena.name} is lost: the arena counts {records} on disk, and {path} does not hold "
            f"those of {', '.join(map(str, places[:3]))}. Restore the folder, or give these records up (shmaccum "
            f"recover {self._arena.name} --give-up-overflow)"
        )

    def _holds_all_of(self, place: TopicPartition) -> bool:
        topics = self._directory.topics()
        is_there = place.topic in topics and place.partition < self._directory.partition_count(place.topic)
        end_offset = self._directory.partition(*place).log_end_offset if is_there else 0
        path = os.path.join(self._folder, str(place))
        if not os.path.exists(path):
            return end_offset > 0  # records without rows are sent again, and get no results
        file = SpillFile(path, is_synced=self._is_synced)
        try:
            own = [row for row in file.rows(0) if row.arena == self._tag]
            if not own:  # all was delivered, and the sender died before it updated the arena
                return file.row_count == 0 and os.path.exists(self._mark)
            return own[-1].base_offset + own[-1].record_count <= max(end_offset, file.position.offset)
        finally:
            file.close()

    @property
    def is_lost(self) -> bool:
        """True while the folder is missing, or was not reopened."""
        return self._is_lost

    def _check(self) -> None:
        """Check whether the folder is missing. When it is back, and no batch is in flight, reopen it."""
        self._directory.check_paths()
        self._is_lost |= self._directory.lost is not None or self._opened_count != self._directory.opened_count
        if not self._is_lost:
            self._recreate_names()
        if not self._is_lost or self._directory.lost is not None:
            return
        if any(backlog.window.is_in_flight for backlog in self._backlogs.values()):
            return
        self._close_backlogs()
        try:
            self._open()
        except (OSError, LogError) as error:
            self._report_failure(str(error))
        else:
            self._is_lost, self._opened_count = False, self._directory.opened_count

    def _recreate_names(self) -> None:
        """Recreate the mark and the spill files if they were removed, moved or replaced."""
        try:
            if not os.path.exists(self._mark):
                self._make_mark()
            recreated = [backlog.place for backlog in self._backlogs.values() if backlog.file.recreate_if_moved()]
        except OSError as error:
            self._host.report(f"{self._folder} was removed or replaced, and cannot be written: {error}")
            return
        if recreated:
            places = ", ".join(map(str, recreated[:3]))
            self._host.report(f"files in {self._folder} were removed or replaced ({places}). They are recreated")

    def _add_found(self, place: TopicPartition) -> None:
        self._directory.partition(*place)  # created here if a former sender died before it did so
        backlog = self._new_backlog(self._half.partition_index(*place), place)
        if backlog.is_empty:
            self._forget_producers(self._log(backlog))
        else:
            self._unsettled.add(backlog.index)
        self._half.set_spilled(backlog.index, *(backlog.seq_range() or (0, backlog.end_seq)))

    def _new_backlog(self, index: int, place: TopicPartition) -> Backlog:
        """Open the files of a partition, and continue with the batches that a former sender left in its log."""
        path = os.path.join(self._folder, str(place))
        backlog = Backlog(
            index,
            place,
            self._reader.partition(*place),
            SpillFile(path, is_synced=self._is_synced),
            self._tag,
            in_flight_max=self._sink.limits.in_flight_max,
            backoff=self._backoff,
            report=self._host.report,
        )
        try:
            backlog.continue_from(self._log(backlog).log_end_offset)
        except BaseException:
            backlog.file.close()
            raise
        self._backlogs[index] = backlog
        return backlog

    def _log(self, backlog: Backlog) -> PartitionLog:
        return self._directory.partition(*backlog.place)

    @staticmethod
    def _forget_producers(log: PartitionLog) -> None:
        """Forget the sequences: batches in between went to the sink from the arena, so a gap is expected."""
        for producer_id in log.producers.producer_ids():
            log.producers.forget(producer_id)

    # --- facts

    @property
    def path(self) -> str:
        return self._directory.path

    def is_spilled(self, wire: WireBatch) -> bool:
        """True for a batch of the overflow."""
        batch: object = wire.batch
        return isinstance(batch, SpilledBatch)

    def __bool__(self) -> bool:
        """True while the overflow has batches."""
        is_filled = any(not backlog.is_empty for backlog in self._backlogs.values())
        return self._is_lost or bool(self._unsettled) or is_filled

    def holds(self, partition_index: int) -> bool:
        """True while no batch of a partition may be sent from the arena to the sink."""
        backlog = self._backlogs.get(partition_index)
        if backlog is None:  # the arena records what a missing folder contains
            return self._is_lost and partition_index in self._native.spilled()["partitions"]
        return not backlog.is_empty or partition_index in self._unsettled

    @property
    def is_settled(self) -> bool:
        """True if no batch of the arena can also be in the log. Otherwise, the log compares sequences to find
        duplicates.
        """
        return not self._unsettled

    @property
    def is_getting_emptier(self) -> bool:
        """True while the sink takes batches of the overflow: it took one within the last delivery timeout."""
        if not self:
            return False
        return self._native.now_ns() - self._progress_ns < self._options.delivery_timeout_ms * NS_PER_MS

    @property
    def due_ns(self) -> int:
        """The time of the next retry; NEVER_NS if there is none."""
        now_ns = self._native.now_ns()
        times = [backlog.window.resume_ns for backlog in self._backlogs.values() if not backlog.is_empty]
        times.append(self._not_before_ns)
        return min([time_ns for time_ns in times if time_ns > now_ns], default=NEVER_NS)

    def metrics(self) -> dict[str, float]:
        """Return the size of the overflow, and the numbers of spilled batches and records since the sender's start."""
        batch_count, record_count, size, _ = self._totals()
        return {
            "overflow-batches": batch_count,
            "overflow-records": record_count,
            "overflow-bytes": size,
            "overflow-spilled-batch-total": self.spilled_batch_count,
            "overflow-spilled-record-total": self.spilled_record_count,
        }

    def _totals(self) -> tuple[int, int, int, int]:
        filled = [backlog for backlog in self._backlogs.values() if not backlog.is_empty]
        batches = sum(backlog.batch_count for backlog in filled)
        records = sum(backlog.end_offset - backlog.position.offset for backlog in filled)
        return batches, records, self._size if filled else 0, self._since_ns if filled else 0

    def _publish(self) -> None:
        if self._is_lost:
            return  # the arena keeps the last totals of a missing folder
        totals = self._totals()
        if totals != self._published:
            self._half.publish_spilled(*totals)
            self._published = totals

    def _size_on_disk(self) -> int:
        return sum(self._log(backlog).size for backlog in self._backlogs.values() if not backlog.is_empty)

    # --- spill

    def spill(self, sink_batches: SinkBatches, linger_ns: int, now_ns: int) -> int:
        """Move batches of the arena to the log, if necessary. Return their number."""
        self._in_flight = {wire.partition_index for wire in sink_batches if not self.is_spilled(wire)}
        if now_ns < self._not_before_ns or self._is_lost:
            return 0
        self._not_before_ns = 0
        try:
            return self._spill(sink_batches, linger_ns, now_ns)
        except (OSError, LogError) as error:
            self._fail(str(error), now_ns)
            return 0

    def _spill(self, sink_batches: SinkBatches, linger_ns: int, now_ns: int) -> int:
        if self._sink.peer.outage is not None:
            self._progress_ns = now_ns
        count = self._settle_fronts(sink_batches, now_ns) if self._unsettled else 0
        need = self._clock.need(linger_ns, now_ns, holds_any=bool(self))
        if self._not_before_ns or not need.surplus:
            return count

        def may_spill(index: int) -> bool:
            return index not in self._unsettled and (need.is_outage or index in need.stuck or self.holds(index))

        blocked = self._spill_in_flight(sink_batches, may_spill, now_ns)
        ready, _ = self._half.ready(linger_ns, False, now_ns, self._in_flight_max)
        chosen = [index for index in ready if index not in blocked and may_spill(index)]
        return count + self._spill_from(chosen, need.surplus, sink_batches, now_ns)

    def _spill_in_flight(self, sink_batches: SinkBatches, may_spill: Callable[[int], bool], now_ns: int) -> set[int]:
        """Spill the batches that the sink has, because younger ones follow them. Return the partitions that failed.

        Their buffers stay in use until their ack. The sink may still deliver them. The overflow ships them afterwards,
        with the same sequences.
        """
        in_flight: defaultdict[int, list[WireBatch]] = defaultdict(list)
        for wire in sink_batches:
            if not self.is_spilled(wire) and not wire.batch.is_ended and may_spill(wire.partition_index):
                in_flight[wire.partition_index].append(wire)
        return {index for index, wires in in_flight.items() if not self._take_in_flight(wires, now_ns)}

    def _take_in_flight(self, wires: list[WireBatch], now_ns: int) -> bool:
        """Spill all batches of a partition that the sink has. Return False if they stay in the arena only."""
        wires.sort(key=lambda wire: wire.batch.seq)
        has_room = self._has_room(wires, now_ns)
        if not has_room or any(is_part(wire) or wire.batch.acked_record_count for wire in wires):
            return False
        written_count = self._try_to_write(wires, now_ns)
        for wire in wires[:written_count]:
            self._half.spill_in_flight(wire.batch)
        return written_count == len(wires)

    @property
    def _in_flight_max(self) -> int:
        """The limit for a partition that spills, which counts the batches that the sink has."""
        return KEPT_COUNT + self._sink.limits.in_flight_max

    def _spill_from(self, indices: Sequence[int], surplus: int, sink_batches: SinkBatches, now_ns: int) -> int:
        """Spill the oldest batches of each partition, until about the surplus is spilled."""
        room = self._options.overflow_max_bytes - self._size
        if not indices or room < self._native.geometry["batch_size"]:
            return 0
        each = min(-(-surplus // len(indices)), KEPT_COUNT)
        request = [index for index in indices for _ in range(each)]
        open_ends = [backlog for index in indices if (backlog := self._backlogs.get(index)) is not None]
        log_ends = {one.index: end for one in open_ends if (end := self._log_end(one)) is not None}
        spills = {index: self._backlogs[index].spill_file() for index in log_ends}
        batches, _, numbers = self._half.append_to_log(
            log_ends, request, min(SPILL_SIZE_MAX, room), self._in_flight_max, now_ns, ANY_RECORD, spills
        )
        count = 0 if numbers is None else self._take_spilled(Delivered(*numbers))
        return count + self._take(batches, sink_batches, now_ns)

    def _log_end(self, backlog: Backlog) -> LogEnd | None:
        """Return the open end of a log for spilling in C. The first batch of a partition is spilled by `_take`."""
        return None if backlog.is_empty or backlog.index in self._unsettled else self._log(backlog).log_end()

    def _take_spilled(self, spilled: Delivered) -> int:
        """Count the batches for which C took steps 2 to 5. Return their number."""
        for index, batch_count, _, _, index_errno in spilled.rows:
            backlog = self._backlogs[index]
            log = self._log(backlog)
            log.appended(batch_count, index_errno)
            backlog.added(batch_count, log.log_end_offset)
        self._size += spilled.size
        self.spilled_batch_count += spilled.batch_count
        self.spilled_record_count += spilled.record_count
        return spilled.batch_count

    def _settle_fronts(self, sink_batches: SinkBatches, now_ns: int) -> int:
        """Spill batches that a dead sender, or a failed write, left in the arena and perhaps in the log, too."""
        count = 0
        ready = set(self._half.ready(0, True, now_ns, KEPT_COUNT)[0])
        for index in sorted(self._unsettled):
            count += self._settle_front(index, sink_batches, now_ns) if index in ready else 0
            if self._not_before_ns:
                break
            self._unsettled.discard(index)
            backlog = self._backlogs[index]
            backlog.end_offset = self._log(backlog).log_end_offset
        return count

    def _settle_front(self, index: int, sink_batches: SinkBatches, now_ns: int) -> int:
        """Spill the batches at the front of a partition that were drained before: they may be in the log."""
        count = 0
        known = self._backlogs[index].seqs()
        while batches := self._half.drain([index], 1, 1, now_ns)[0]:
            if batches[0].attempt_count == 1:
                self._half.requeue(batches[0])
                break
            if batches[0].seq in known:
                self._half.spill(batches[0])
                count += 1
                continue
            count += self._take(batches, sink_batches, now_ns)
            if self._not_before_ns:
                break
        return count

    def _take(self, batches: Iterable[Batch], sink_batches: SinkBatches, now_ns: int) -> int:
        """Spill drained batches; requeue the rest."""
        runs = itertools.groupby(batches, lambda batch: batch.partition_index)
        return sum([self._take_some(list(of_partition), sink_batches, now_ns) for _, of_partition in runs])

    def _take_some(self, batches: list[Batch], sink_batches: SinkBatches, now_ns: int) -> int:
        """Spill drained batches of one partition, in their order."""
        wires: list[WireBatch] = []
        for batch in itertools.takewhile(lambda batch: not batch.acked_record_count, batches):
            wire = sink_batches.whole(batch)
            wires += [] if wire is None else [wire]
        spilled_count = self._try_to_write(wires, now_ns) if wires and self._has_room(wires, now_ns) else 0
        for wire in wires:
            release_views(wire.buffers)
        for wire in wires[:spilled_count]:
            self._half.spill(wire.batch)
        for batch in batches:
            if not batch.is_over:  # delivered in part, or not written
                self._half.requeue(batch)
        return spilled_count

    def _has_room(self, wires: Iterable[WireBatch], now_ns: int) -> bool:
        """Return False, and report it, if the batches exceed `overflow_max_bytes`, as a very large record may."""
        room = self._options.overflow_max_bytes - self._size
        has_room = sum(wire.size for wire in wires) <= room
        if not has_room:
            self._fail(f"overflow_max_bytes leaves {room:,} bytes", now_ns)
        return has_room

    def _try_to_write(self, wires: Sequence[WireBatch], now_ns: int) -> int:
        """Take steps 2 and 3. Return how many of the first batches are in the log, and have their rows."""
        try:
            return self._write(wires, now_ns)
        except (OSError, ShmaccumError) as error:
            self._fail(str(error), now_ns)
            return 0

    def _write(self, wires: Sequence[WireBatch], now_ns: int) -> int:
        backlog = self._backlog_of(wires[0])
        log = self._log(backlog)
        # Before the first batch of a partition, records which sink knows the producer ids of its batches.
        identity = self._native.producer_identity[2]
        if backlog.is_empty and backlog.position.identity != identity:
            backlog.file.write_position(backlog.position._replace(identity=identity))
        moved, failure = _appended(log, wires)
        rows = [
            OverflowBatch(offset, wire.batch.seq, wire.batch.slot_index, wire.record_count, self._tag)
            for wire, offset in moved
        ]
        try:
            if moved:
                backlog.add(rows, moved[-1][1] + moved[-1][0].record_count)
                self._count(moved)
        finally:
            if log.log_end_offset > backlog.end_offset:
                self._unsettled.add(backlog.index)
        if failure is not None:
            self._fail(failure.message, now_ns)
        return len(moved)

    def _backlog_of(self, wire: WireBatch) -> Backlog:
        backlog = self._backlogs.get(wire.partition_index)
        if backlog is None:
            self._directory.create_topic(wire.topic, wire.partition + 1)
            backlog = self._new_backlog(wire.partition_index, TopicPartition(wire.topic, wire.partition))
        return backlog

    def _fail(self, sentence: str, now_ns: int) -> None:
        self._not_before_ns = now_ns + PAUSE_NS
        self._report_failure(f"the overflow cannot be written, and records stay in the arena: {sentence}")

    def _report_failure(self, sentence: str) -> None:
        """Report a failure. It recurs about every second while it lasts."""
        self._host.report(Report(Kind.IMPAIRED, sentence))

    def _count(self, moved: Sequence[tuple[WireBatch, int]]) -> None:
        if moved and not self._size:
            self._since_ns = self._native.now_ns()
        self._size += sum(wire.size for wire, _ in moved)
        self.spilled_batch_count += len(moved)
        self.spilled_record_count += sum(wire.record_count for wire, _ in moved)

    # --- ship

    def ship(self, wake_fd: int, now_ns: int) -> Delivered:
        """Ship ordinary batches, if the sink hands over its sockets.

        Args:
            wake_fd: a descriptor that is readable when the sender is woken.
            now_ns: the arena's clock.
        """
        if self._is_lost:
            return Delivered()
        streams = {one.index: one for one in self._backlogs.values() if self._may_loop(one, now_ns)}
        ends = self._run_batch_loop(streams, wake_fd, now_ns) if streams else {}
        moved = {backlog: end for backlog, end in ends.items() if end.delivered.batch_count}
        self._looping = {backlog.index for backlog, end in moved.items() if end.state == StreamState.GOES}
        for backlog in moved:
            self._progress_ns = self._native.now_ns()
            self._guard(backlog, functools.partial(self._follow_position, backlog))
        return delivered_by(ends.values())

    def _may_loop(self, backlog: Backlog, now_ns: int) -> bool:
        waits = backlog.is_empty or backlog.has_read_ahead or backlog.index in self._unsettled | self._in_flight
        return not waits and self._is_ordinary(backlog, now_ns)

    def _is_ordinary(self, backlog: Backlog, now_ns: int) -> bool:
        """True if the native batch loop may send the next batches of the partition, once the window is empty."""
        may_run = self._sockets is not None and now_ns >= self._no_loop_before_ns
        return may_run and backlog.position.identity == self._sink.identity and backlog.is_ordinary(now_ns)

    def _run_batch_loop(self, streams: Mapping[int, Backlog], wake_fd: int, now_ns: int) -> dict[Backlog, StreamEnd]:
        """Ship until time is up, a wake-up, or a batch that is not ordinary. Return how far each backlog came."""
        assert self._sockets is not None
        if not (handed_over := self._sockets.hand_over(list(streams))):
            return {}
        loop = BatchLoop(self._sockets, handed_over, streams, self._take_spills)
        native_call = functools.partial(
            self._half.run_batch_loop,
            spills=tuple(backlog.spill() for backlog in loop.streams),
            wake_fd=wake_fd,
            time_ms=LOOP_MS,
            answer_time_ms=min(self._options.request_timeout_ms, ANSWER_MS_MAX),
            arena=self._tag,
            is_synced=self._is_synced,
        )
        try:
            loop.run(native_call, self._sink.limits.request_size_max)
        finally:
            if loop.has_failed or loop.is_broken:
                self._no_loop_before_ns = now_ns + LOOP_PAUSE_NS
        return loop.ends

    @staticmethod
    def _take_spills(ends: Mapping[Backlog, StreamEnd], spills: Sequence[tuple[int, int]]) -> bool:
        for (backlog, end), (row_index, number) in zip(ends.items(), spills, strict=True):
            backlog.take_spill(end.offset, row_index, number)
        return True

    def ready(self, identity: ProducerIdentity, now_ns: int) -> list[int]:
        """Return the partitions of which a batch may be sent."""
        ready: list[int] = []
        if self._is_lost:
            return ready
        room = READ_AHEAD_SIZE - sum(backlog.read_size for backlog in self._backlogs.values())
        for backlog in self._backlogs.values():
            if backlog.is_empty or backlog.index in self._unsettled | self._looping | self._in_flight:
                continue
            read_size = backlog.read_size
            self._guard(backlog, functools.partial(self._prepare, backlog, identity, now_ns, room + read_size))
            room += read_size - backlog.read_size
            if backlog.next_to_send(now_ns) is not None:
                ready.append(backlog.index)
        return ready

    def _prepare(self, backlog: Backlog, identity: ProducerIdentity, now_ns: int, size_max: int) -> None:
        if not (backlog.has_read_ahead and self._is_ordinary(backlog, now_ns)):
            backlog.read(now_ns, size_max)
        if backlog.has_lost_its_end:
            backlog.pass_lost_end()
            self._follow_position(backlog)
            return
        backlog.window.wants_epoch |= backlog.position.identity != self._sink.identity
        if backlog.must_start_over and (fresh := identity.take_epoch(backlog.index)) is not None:
            backlog.start_over(*fresh, self._sink.identity)

    def _guard(self, backlog: Backlog, action: Callable[[], object]) -> None:
        """Call a function that reads or writes the files of a partition. A failure is reported and retried."""
        try:
            action()
        except (OSError, LogError) as error:
            backlog.window.pause(PAUSE_NS, self._native.now_ns())
            self._report_failure(f"the overflow of {backlog.place} cannot be read or written now: {error}")

    def take(self, partition_indices: Iterable[int], now_ns: int) -> list[WireBatch]:
        """Return the batches of one delivery, which are in flight from now on."""
        backlogs = [self._backlogs[index] for index in partition_indices]
        return take_delivery(backlogs, self._sink.limits.request_size_max, now_ns)

    def end_backoff(self, partition_index: int) -> None:
        """End the pause of a partition that has a new leader."""
        if (backlog := self._backlogs.get(partition_index)) is not None:
            backlog.window.resume_ns = 0

    # --- settle

    def settle(self, ack: Ack, metrics: SenderMetrics, dead_letters: DeadLetters | None, now_ns: int) -> None:
        """Apply the sink's ack for a batch."""
        wire = ack.wire
        backlog = self._backlogs[wire.partition_index]
        if ack.verdict is Verdict.DELIVERED:
            backlog.end(ack)
        elif ack.verdict is Verdict.TOO_LARGE and wire.record_count > 1:
            metrics.batches_split.add(1, now_ns)
            backlog.halve(wire)
        elif ack.verdict is Verdict.OUT_OF_SEQUENCE:
            self._out_of_sequence(backlog, ack, now_ns)
        elif ack.verdict is Verdict.RETRY and wire.attempt_count <= self._options.retries:
            self._retry(backlog, ack, metrics, now_ns)
        else:
            self._refuse(backlog, ack, metrics, dead_letters, now_ns)

    def _retry(self, backlog: Backlog, ack: Ack, metrics: SenderMetrics, now_ns: int) -> None:
        if ack.message:
            self._host.report(Report(Kind.RETRIED, ack.message, str(backlog.place)))
        metrics.retried(ack.wire.topic, ack.wire.record_count, now_ns)
        backlog.retry(ack.wire, None if ack.retry_after_ms is None else ack.retry_after_ms * NS_PER_MS, now_ns)

    def _out_of_sequence(self, backlog: Backlog, ack: Ack, now_ns: int) -> None:
        """Retry. If it is the oldest batch, and was retried before, the rest starts over in a new epoch.

        The first attempt proves nothing, because the batch may have overtaken an older one.
        """
        spilled = SpilledBatch.of(ack.wire)
        if backlog.window.is_first(spilled) and spilled.attempt_count > 1:
            self._host.report(f"the overflow of {backlog.place} starts over in a new epoch: {ack.message}")
            backlog.window.wants_epoch = True
        backlog.retry(ack.wire, 0, now_ns)

    def _refuse(
        self, backlog: Backlog, ack: Ack, metrics: SenderMetrics, dead_letters: DeadLetters | None, now_ns: int
    ) -> None:
        wire = ack.wire
        sentence = ack.message or "refused"
        if ack.verdict is Verdict.RETRY:
            sentence = f"given up after {wire.attempt_count} attempts: {ack.message}"
        elif ack.verdict is Verdict.TOO_LARGE:
            sentence = f"a record of {wire.size} bytes is too large for the sink: {ack.message}"
            ack.error_code = ack.error_code or MESSAGE_TOO_LARGE
        reason = Reason(BatchResult.FAILED, ack.error_code, sentence)
        if dead_letters is not None and not self._write_dead_letter(wire, dead_letters, reason):
            backlog.retry(wire, PAUSE_NS, now_ns)
            return
        self._host.report(Report(Kind.REFUSED, sentence, str(backlog.place), ack.error_code))
        metrics.failed(wire.topic, wire.record_count, now_ns)
        backlog.end(ack)

    def _write_dead_letter(self, wire: WireBatch, dead_letters: DeadLetters, reason: Reason) -> bool:
        """Write the records of a failed batch. Return False if that failed."""
        try:
            return dead_letters.write(wire.batch, wire.first_record, reason, self._native.now_ns(), wire.record_count)
        except CorruptArenaError as error:
            self._host.report(str(error))
            return True

    def record(self) -> None:
        """Take steps 9 to 11, for all partitions with new results."""
        for backlog in self._backlogs.values():
            if done := backlog.window.due():
                self._guard(backlog, functools.partial(self._record_done, backlog, done))

    def _record_done(self, backlog: Backlog, done: list[SpilledBatch]) -> None:
        self._progress_ns = self._native.now_ns()
        for shipment in done:
            if not shipment.is_recorded:
                self._record(backlog, shipment)
        backlog.advance(done)
        self._follow_position(backlog)

    def _follow_position(self, backlog: Backlog) -> None:
        """Update the files and the range after the position has changed."""
        if backlog.is_empty and backlog.index not in self._unsettled:
            self._finish(backlog)
        else:
            self._delete_delivered(backlog)
        if (seqs := backlog.seq_range()) is not None:
            self._half.set_spilled(backlog.index, *seqs)

    def _record(self, backlog: Backlog, shipment: SpilledBatch) -> None:
        shipment.is_recorded = True
        row, ack = shipment.row, shipment.outcome
        if row is None or ack is None or row.arena != self._tag:
            return
        backlog.late_seqs.discard(row.seq)
        first = shipment.wire.first_record
        for count, result, error_code in _results(ack):
            offset = ack.base_offset if ack.verdict is Verdict.DELIVERED else -1
            self._half.complete_spilled(
                backlog.index,
                row.slot_index,
                row.seq,
                first,
                count,
                int(result),
                offset,
                ack.log_append_time_ms,
                error_code,
            )
            first += count

    def _finish(self, backlog: Backlog) -> None:
        """Reset the files of a partition whose batches are all delivered.

        If they were sent in an epoch of their own, the batches of the arena get a later epoch.
        """
        if not backlog.position.has_own_sequences:
            self._half.resequence(backlog.index)
        backlog.finish()
        log = self._log(backlog)
        self._forget_producers(log)
        log.delete_before(log.log_end_offset)
        self._size = self._size_on_disk()

    def _delete_delivered(self, backlog: Backlog) -> None:
        log = self._log(backlog)
        if len(log.segments) > 1 and log.segments[1] <= backlog.position.offset:
            log.delete_before(backlog.position.offset)
            self._size = self._size_on_disk()

    def tick(self) -> None:
        """Publish totals, check that the names lead to the open files, and report problems. Called periodically."""
        self._check()
        self._publish()
        if (lost := self._directory.lost) is not None:
            self._report_failure(lost)
        for sentence in self._directory.findings:
            if sentence != lost:
                self._host.report(sentence)
        self._directory.findings.clear()

    # --- the end

    def close(self) -> None:
        """Close the files. The batches stay there for the next sender.

        Raises:
            OSError: the last sync failed.
        """
        self._close_backlogs()
        self._directory.close()

    def _close_backlogs(self) -> None:
        for backlog in self._backlogs.values():
            backlog.rest()
            backlog.file.close()
        self._backlogs.clear()
        self._unsettled.clear()
        self._looping.clear()


def _results(ack: Ack) -> Iterator[tuple[int, BatchResult, int]]:
    """Yield (records, result, error code) for each run of records of a batch with the same outcome."""
    count = ack.wire.record_count
    if ack.verdict is Verdict.DELIVERED:
        yield count, BatchResult.SUCCEEDED, 0
        return
    runs = list(error_runs(count, ack.record_errors)) if ack.record_errors else []
    if not 1 < len(runs) <= RECORD_ERRORS_MAX:
        runs = [(count, True)]
    for run_count, is_invalid in runs:
        yield run_count, BatchResult.FAILED, ack.error_code if is_invalid else UNAFFECTED


def _appended(log: PartitionLog, wires: Sequence[WireBatch]) -> tuple[list[tuple[WireBatch, int]], Rejection | None]:
    """Append batches in their order. Return the appended ones with their offsets, and the first failure.

    A gap in the sequences is no damage here: the batch in between expired, or was sent before the outage. So the log
    then forgets the sequences of the producer.
    """
    moved: list[tuple[WireBatch, int]] = []
    for run in _runs(wires):
        outcomes = log.append(run)
        if isinstance(outcomes[0], Rejection) and outcomes[0].error_code in SEQUENCE_ERRORS:
            log.producers.forget(run[0].producer_id)
            outcomes = log.append(run)
        for wire, outcome in zip(run, outcomes, strict=True):
            if isinstance(outcome, Rejection):
                return moved, outcome
            moved.append((wire, outcome))
    return moved, None


def _runs(wires: Sequence[WireBatch]) -> Iterator[list[WireBatch]]:
    """Yield lists of batches whose sequences are consecutive."""
    run: list[WireBatch] = []
    for wire in wires:
        if run and not _follows(run[-1], wire):
            yield run
            run = []
        run.append(wire)
    yield run


def _follows(before: WireBatch, wire: WireBatch) -> bool:
    expected = (before.base_sequence + before.record_count) & SEQUENCE_MASK
    ids = before.producer_id, before.producer_epoch, expected
    return ids == (wire.producer_id, wire.producer_epoch, wire.base_sequence)
