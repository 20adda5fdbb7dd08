# SPDX-License-Identifier: Apache-2.0
"""A log directory, opened by its one writer: the partitions, producer ids, and periodic maintenance.

``meta.properties`` marks the directory as one of shmaccum and has its uuid. The file of a Kafka broker has the same
name and other keys. The directories of brokers are rejected here; `LogReader` can read them.

Identity: the path must lead to the open directory, and each file name of a partition to its descriptor
(`PartitionLog`). `check_paths` checks this once a second, and so does every write by name. If a check fails, the
directory or partition is *lost*: nothing is written to it, its users get a `LogLostError`, and a finding reports it.
The writer continues without a restart when

* the directory is back: one with the same uuid, or an empty one on the same device, where a new log begins;
* a partition is back: a folder of the same topic with everything that was written to it, or an empty folder.

Any other state requires a restart of the writer, which continues with the files that exist.

A checkpoint identifies a partition by its topic's name, and a later topic may have the same name. So the lines of a
partition are removed on disk before its folder is removed, and again before one is created.

A topic has as many partitions as the number of its highest folder plus one. The highest is created first, so a death in
between leaves a topic with all of its partitions, some of them without a folder (`partition_folders`).
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import os
import time
import uuid
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from typing import final

from shmaccum.common import clock
from shmaccum.common.closing import ClosedOnExit
from shmaccum.common.descriptors import share
from shmaccum.common.durability import sync_folder, sync_path
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.common.units import format_count
from shmaccum.config import LogSinkOptions
from shmaccum.config.topic import DELETE
from shmaccum.exceptions import (
    InvalidArgumentError,
    LogError,
    LogForbiddenError,
    LogLostError,
    LogPartitionNotFoundError,
    NotALogError,
)
from shmaccum.log.files.file_names import (
    LOCK_FILE,
    LOG,
    META_FILE,
    META_UUID_KEY,
    META_VERSION_KEY,
    PRODUCER_IDS_FILE,
    RECOVERY_POINTS_FILE,
    STAGING_FOR_KAFKA_FILE,
    START_OFFSETS_FILE,
    TOPIC_SETTINGS_FILE,
    TRANSACTION_INDEX,
    check_topic,
    foreign_files_in,
    offset_file,
    offsets_with,
)
from shmaccum.log.files.lock_file import LockFile
from shmaccum.log.files.partition_folders import (
    make_partition_folder,
    partitions_of,
    remove_unfinished,
    topic_id_in,
)
from shmaccum.log.files.partition_log import PartitionLog
from shmaccum.log.files.permissions import make_folder
from shmaccum.log.files.regular_files import open_regular
from shmaccum.log.files.segment import Tail
from shmaccum.log.files.shipping_positions import Shipped, read_shipped
from shmaccum.log.files.small_files import (
    offsets_checkpoint,
    properties,
    read_directory_id,
    read_offsets_checkpoint,
    read_properties,
    read_topic_id,
    replace_file_synced,
    sync_file,
    uuid_text,
)
from shmaccum.log.files.topic_settings import TopicSettings
from shmaccum.log.files.transaction_applier import apply_decided
from shmaccum.log.files.transaction_files import TransactionFiles

META_VERSION = "1"

OPEN_PARTITIONS_MAX, OPEN_PARTITIONS_PARTS = 256, 12
"""The maximum number of open partitions: this number, or this fraction of the limit of open files, because each has
three. The least recently used one is closed for another."""
CHECKPOINT_INTERVAL_S = 60.0
CHECK_INTERVAL_S = 1.0
TRANSACTIONS_INTERVAL_S = 0.02
TRANSACTIONS_PAUSE_S = 5.0
"""The time before failed transactions are tried again."""


@final
class LogDirectory(ClosedOnExit):
    """The writer of a log directory. Not thread-safe.

    Attributes:
        path: the absolute path.
        uuid: 16 random bytes, chosen when the directory was created.
        options: the options of the writer.
        settings: the settings of individual topics.
        findings: one sentence for each problem and its repair. The caller that reports them clears the list.
        opened_count: the number of times it was opened. More than one if it was lost and is back.
        on_append: called with the topic-partition after each append, unless it is None.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: LogSinkOptions | None = None,
        *,
        clock: Callable[[], float] = time.time,
        show_life: Callable[[], object] = lambda: None,
        arena_name: str = "",
    ) -> None:
        """Open a log directory, or create one in a new or empty directory, and lock it.

        After a crash of the host, this recovers every partition; after the death of a process alone, each partition is
        recovered at its first use. Transactions that were decided are applied (`transactions`).

        Args:
            path: the directory.
            options: the options of the writer. Default: `LogSinkOptions()`.
            clock: returns seconds since 1970.
            show_life: called after each partition was opened, because its recovery may take long.
            arena_name: the arena whose sender is the writer, for `LogBusyError`.

        Raises:
            LogBusyError: if another living process writes the directory.
            NotALogError: if it has other files or the log of a Kafka broker, or is not a directory.
            LogForbiddenError: if this user may not write it, or the file system is read-only.
            OSError: if there is no space, or an I/O error.
        """
        self.path = os.path.abspath(path)
        self.options = options or LogSinkOptions()
        self.findings: list[str] = []
        self.on_append: Callable[[TopicPartition], object] | None = None
        self._clock = clock
        self._show_life = show_life
        self._open_max = share(OPEN_PARTITIONS_MAX, OPEN_PARTITIONS_PARTS)
        self._partitions: dict[TopicPartition, PartitionLog] = {}
        self._lost_partitions: dict[TopicPartition, Tail] = {}
        self._lost: str | None = None
        self.opened_count = 0
        self._next_check_s = 0.0
        self._server = ""
        self._arena_name = arena_name
        self._being_changed: set[str] = set()
        """Topics that are being created or deleted in steps."""
        with advised_errors(self.path):
            make_folder(self.path)
            check_content(self.path)
            self._take(uuid.uuid4().bytes)

    def _take(self, new_uuid: bytes) -> None:
        self._lock = LockFile(os.path.join(self.path, LOCK_FILE), self._arena_name, self.options.sync)
        try:
            self._open(new_uuid)
        except BaseException:
            self._lock.release()
            raise
        self.opened_count += 1

    def _open(self, new_uuid: bytes) -> None:
        self.uuid = self._make_or_read_meta(new_uuid)
        if self._is_durable:
            sync_folder(self.path)
            sync_path(self.path)
        self._device = os.stat(self.path).st_dev
        self._counts: dict[str, int] = {}
        self.settings = TopicSettings(self._file(TOPIC_SETTINGS_FILE))
        self._topic_ids: dict[str, bytes] = {}
        self._start_offsets = read_offsets_checkpoint(self._file(START_OFFSETS_FILE))
        self._recovery_points = read_offsets_checkpoint(self._file(RECOVERY_POINTS_FILE))
        remove_unfinished(self.path)
        for place in partitions_of(self.path):
            self._counts[place.topic] = max(self._counts.get(place.topic, 0), place.partition + 1)
        self._is_same_boot = is_same_boot = self._lock.is_same_boot
        if not self._is_same_boot:
            for place in partitions_of(self.path):
                self._open_partition(place)
            self._is_same_boot = True
        self._lock.write_holder(self._server)
        self._is_inherited_synced = self.options.sync != "interval"
        self._transactions = TransactionFiles(self.path)
        apply_decided(self, is_same_boot=is_same_boot)
        self._checkpoint_s = self._retention_s = self._sync_s = self._transactions_s = clock.monotonic()

    @property
    def _is_durable(self) -> bool:
        return self.options.sync != "none"

    def _file(self, name: str) -> str:
        return os.path.join(self.path, name)

    def _make_or_read_meta(self, new_uuid: bytes) -> bytes:
        path = self._file(META_FILE)
        if not os.path.exists(path):
            text = uuid_text(new_uuid)
            replace_file_synced(path, properties({META_VERSION_KEY: META_VERSION, META_UUID_KEY: text}))
            sync_path(self.path)
        return read_directory_id(path)

    # --- identity

    @property
    def lost(self) -> str | None:
        """A message while the path does not lead to the open directory; None if it does."""
        return self._lost

    def check_paths(self) -> None:
        """Check once a second that the path leads to the directory, and the names in it to the open files.

        Anything that is lost is reported in `findings`. A directory that is back is opened again.
        """
        now_s = clock.monotonic()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + CHECK_INTERVAL_S
        if self._lost is None and self._has_its_name():
            for place, log in list(self._partitions.items()):
                self._check_partition(place, log)
        else:
            self._try_reopen()

    def _check_partition(self, place: TopicPartition, log: PartitionLog) -> None:
        """Close a partition whose file names do not lead to its files."""
        try:
            log.check_names()
        except LogLostError as error:
            self._mark_partition_lost(place, error)

    def _has_its_name(self) -> bool:
        if self._lost is None and not self._lock.has_its_name:
            what = "its .lock" if os.path.isdir(self.path) else "the directory"
            self._mark_lost(
                f"{self.path} is lost: {what} was removed, moved or replaced under its writer. No record is "
                "acknowledged and none is written: put it back (or make an empty directory there for a new log), or "
                "restart the writer"
            )
        return self._lost is None

    def require_name(self) -> None:
        """Check the path before anything is read or written by name.

        Raises:
            LogLostError: if the path does not lead to the open directory.
        """
        if not self._has_its_name():
            raise LogLostError(self._lost or "")

    def _mark_lost(self, sentence: str) -> None:
        self._lost = sentence
        self.findings.append(sentence)
        for place, log in list(self._partitions.items()):
            self._close_lost(place, log)
        self._next_check_s = 0.0

    def _mark_partition_lost(self, place: TopicPartition, error: LogLostError) -> None:
        log = self._partitions.pop(place)
        self._close_lost(place, log)
        if self._has_its_name():
            self.findings.append(f"{error}. No record of {place} is acknowledged until it is back")

    def _close_lost(self, place: TopicPartition, log: PartitionLog) -> None:
        self._lost_partitions[place] = log.tail()
        self._partitions.pop(place, None)
        self._recovery_points.pop(place, None)
        log.abandon()

    def _try_reopen(self) -> None:
        """Open the directory again if it is back: the same log, or an empty directory for a new one."""
        try:
            is_new = self._is_empty_place()
            if not (is_new or self._is_same_log()):
                return
            self._lock.release()
            if is_new:
                self._lost_partitions.clear()
            self._lost = None
            self._take(self.uuid)
        except (OSError, LogError) as error:
            self._lock.release()
            self._lost = f"{self.path} is back, but cannot be opened: {error}"
            self.findings.append(self._lost)
            return
        self.findings.append(
            f"{self.path} was lost and is empty: a new log begins there" if is_new else f"{self.path} is back"
        )

    def _is_empty_place(self) -> bool:
        """True for an empty directory, which a user made for a new log. A missing mount is on another device."""
        try:
            return not os.listdir(self.path) and os.stat(self.path).st_dev == self._device
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _is_same_log(self) -> bool:
        try:
            return read_directory_id(self._file(META_FILE)) == self.uuid
        except (FileNotFoundError, NotADirectoryError, NotALogError):
            return False

    def _check_restored(self, place: TopicPartition) -> None:
        """Raise an error unless a lost partition has what was written to it, or its folder is empty."""
        folder, tail = self._file(str(place)), self._lost_partitions[place]
        remedy = f"restore the written files, or make an empty folder there, or restart the writer of {self.path}"
        if not os.path.isdir(folder):
            raise LogLostError(f"{folder} was removed under its writer: {remedy}")
        if os.listdir(folder):
            if (topic_id := read_topic_id(folder)) != self._topic_ids.get(place.topic, topic_id):
                raise LogLostError(f"{folder} was replaced by the partition of another topic: {remedy}")
            if not tail.is_in(folder):
                name = offset_file("", tail.base_offset, LOG)
                raise LogLostError(f"{folder} has no {name} with the {tail.end} bytes that were written: {remedy}")
        else:  # a new partition, which gets the topic id of another one, if there is one
            self._forget_lines([place])
            self._topic_ids.pop(place.topic, None)
        del self._lost_partitions[place]
        self.findings.append(f"{folder} is back")

    # --- topics and partitions

    def topics(self) -> list[str]:
        """Every topic, sorted."""
        return sorted(self._counts)

    def partition_count(self, topic: str) -> int:
        """The number of a topic's partitions, or 0 if the topic does not exist."""
        return self._counts.get(topic, 0)

    def create_topic(self, topic: str, partition_count: int | None = None) -> int:
        """Create a topic unless it exists; return its number of partitions.

        Args:
            topic: its name.
            partition_count: the minimum number. An existing topic may get more partitions, but never fewer. Default:
                the option `partitions` for a new topic, and the present number for an existing one.

        Raises:
            InvalidArgumentError: if the name cannot be a folder's, or partition_count is below 1.
            OSError: if the folders could not be created.
        """
        self._check_not_changing(topic)
        return run_steps(self.create_topic_in_steps(topic, partition_count))

    def _check_not_changing(self, topic: str) -> None:
        if topic in self._being_changed:
            raise LogError(f"the topic {topic} is being created or deleted by a client: try again")

    def create_topic_in_steps(self, topic: str, partition_count: int | None = None) -> Generator[None, None, int]:
        """As `create_topic`, with one step per partition. Waits for other steps on the same topic to end.

        If the steps stop early, the topic has all its partitions, some of them without a folder.
        """
        while topic in self._being_changed:
            yield None
        known_count = self._counts.get(topic, 0)
        if known_count and (partition_count is None or partition_count <= known_count):
            return known_count
        check_topic(topic)
        count = self.options.partitions if partition_count is None else partition_count
        if count < 1:
            raise InvalidArgumentError(f"a topic needs at least one partition, not {count}")
        self.require_name()
        with advised_errors(self.path):
            self._forget_lines([TopicPartition(topic, partition) for partition in range(known_count, count)])
            if not known_count:
                self.settings.replace(topic, {})
        made = 0
        self._being_changed.add(topic)
        try:
            for partition in reversed(range(known_count, count)):
                with advised_errors(self.path):
                    folder = self._file(str(TopicPartition(topic, partition)))
                    make_partition_folder(folder, self._topic_id(topic, count), is_synced=self._is_durable)
                made += 1
                yield None
            if made and self._is_durable:
                sync_folder(self.path)
        finally:
            self._being_changed.discard(topic)
            if made:
                self._counts[topic] = max(count, self._counts.get(topic, 0))
        return count

    def _topic_id(self, topic: str, partition_count: int) -> bytes:
        """The id that an existing partition has, so that ids do not change; a random one for a new topic (KIP-516)."""
        if topic not in self._topic_ids:
            self._topic_ids[topic] = topic_id_in(self.path, topic, partition_count) or uuid.uuid4().bytes
        return self._topic_ids[topic]

    def options_of(self, topic: str) -> LogSinkOptions:
        """The options for the partitions of a topic: those of the writer, overridden by the settings of the topic."""
        return self.settings.applied(topic, self.options)

    def change_settings(self, topic: str, settings: Mapping[str, str]) -> None:
        """Replace the settings of a topic, by Kafka's names. They take effect immediately.

        Raises:
            InvalidArgumentError: if a setting does not exist, or its value is out of bounds.
            OSError: if the settings were not stored. The former settings stay in effect.
        """
        self.require_name()
        self.settings.replace(topic, settings)
        for place, log in self._partitions.items():
            if place.topic == topic:
                log.use(self.options_of(topic))

    def delete_records(self, topic: str, partition: int, offset: int) -> int:
        """Delete the records of a partition below an offset; return the new log start offset.

        The offset is stored first, so the records do not reappear after a death.

        Raises:
            LogPartitionNotFoundError: if the partition does not exist.
            InvalidArgumentError: if the offset is past the end of the log.
            OSError: if the offset was not stored, or a segment could not be deleted.
        """
        self.require_name()
        log, place = self.partition(topic, partition), TopicPartition(topic, partition)
        if not 0 <= offset <= log.log_end_offset:
            raise InvalidArgumentError(
                f"offset {offset} of {place} does not exist: the log ends at {log.log_end_offset}"
            )
        if offset > log.log_start_offset:
            self._start_offsets[place] = offset
            replace_file_synced(self._file(START_OFFSETS_FILE), offsets_checkpoint(self._start_offsets))
            log.delete_before(offset)
        return log.log_start_offset

    def delete_topic(self, topic: str) -> int:
        """Delete a topic with all its records; return the number of its partitions.

        The first partition is deleted first. A death in between leaves a topic whose first partitions are empty, and
        which can be deleted again.

        Raises:
            OSError: if a folder could not be deleted.
        """
        self._check_not_changing(topic)
        return run_steps(self.delete_topic_in_steps(topic))

    def delete_topic_in_steps(self, topic: str) -> Generator[None, None, int]:
        """As `delete_topic`, with one step per partition. The topic does not exist from the first step on.

        If the steps stop early, the topic exists with the remaining partitions.
        """
        from shutil import rmtree  # slow to import, and topics are seldom deleted

        self.require_name()
        while topic in self._being_changed:
            yield None
        count = self._counts.pop(topic, 0)
        self._being_changed.add(topic)
        is_deleted = False
        try:
            places = [TopicPartition(topic, partition) for partition in range(count)]
            for place in places:
                if place in self._partitions:
                    self._partitions.pop(place).abandon()
                self._lost_partitions.pop(place, None)
            self._forget_points(places)
            self.settings.replace(topic, {})
            for place in places:
                self._forget_start(place)
                with contextlib.suppress(FileNotFoundError):
                    rmtree(self._file(str(place)))
                yield None
            is_deleted = True
        finally:
            self._being_changed.discard(topic)
            if count and not is_deleted:
                self._counts[topic] = count
        self._topic_ids.pop(topic, None)
        if self._is_durable:
            sync_folder(self.path)
        return count

    def _forget_lines(self, places: Collection[TopicPartition]) -> None:
        """Remove the lines of a former partition of this name from the files, on disk, before one is created."""
        self._forget_points(places)
        for place in places:
            self._forget_start(place)

    def _forget_points(self, places: Collection[TopicPartition]) -> None:
        for place in places:
            self._recovery_points.pop(place, None)
        if not self._written_points().keys().isdisjoint(places):
            self.checkpoint()

    def _forget_start(self, place: TopicPartition) -> None:
        """Remove a start offset on disk before the folder is removed, so that a new topic of this name starts at 0."""
        if self._start_offsets.pop(place, None) is not None:
            replace_file_synced(self._file(START_OFFSETS_FILE), offsets_checkpoint(self._start_offsets))

    def partition(self, topic: str, partition: int) -> PartitionLog:
        """The writer of one partition. At its first use, the partition is opened and recovered.

        It may be closed when many others are used after it, so call this method for each use.

        Raises:
            LogPartitionNotFoundError: if the topic or the partition does not exist.
            LogLostError: if a name does not lead to the file that was open.
            OSError: if it could not be opened.
        """
        place = TopicPartition(topic, partition)
        log = self._partitions.get(place)
        if log is not None and log.is_lost:
            self._check_partition(place, log)
        log = self._partitions.pop(place, None)
        if log is None:
            log = self._open_partition(place)
        self._partitions[place] = log  # ordered by last use
        return log

    def _open_partition(self, place: TopicPartition) -> PartitionLog:
        self.require_name()
        if place in self._lost_partitions:
            self._check_restored(place)
        if not 0 <= place.partition < self.partition_count(place.topic):
            raise LogPartitionNotFoundError(
                f"{self.path} has no partition {place.partition} of topic {place.topic!r}, "
                f"which has {self.partition_count(place.topic)}"
            )
        while len(self._partitions) >= self._open_max:
            self._close_partition(next(iter(self._partitions)))
        with advised_errors(self.path):
            if not os.path.isdir(self._file(str(place))):
                self._forget_lines([place])
            log = PartitionLog(
                self._file(str(place)),
                place,
                self.options_of(place.topic),
                topic_id=self._topic_id(place.topic, self.partition_count(place.topic)),
                recovery_point=self._recovery_points.get(place, 0),
                start_offset=self._start_offsets.get(place, 0),
                is_same_boot=self._is_same_boot,
                clock=self._clock,
                on_append=lambda: None if self.on_append is None else self.on_append(place),
            )
            self._keep_start_within(place, log)
        self.findings += log.findings
        log.findings = self.findings
        self._partitions[place] = log
        self._show_life()
        return log

    def _keep_start_within(self, place: TopicPartition, log: PartitionLog) -> None:
        """If a power cut removed deleted records from the end of the log, reset the start offset."""
        if self._start_offsets.get(place, 0) > log.log_end_offset:
            self._start_offsets[place] = log.log_start_offset
            replace_file_synced(self._file(START_OFFSETS_FILE), offsets_checkpoint(self._start_offsets))

    def _close_partition(self, place: TopicPartition) -> None:
        log = self._partitions.pop(place)
        try:
            log.close()
        finally:
            self._recovery_points[place] = log.recovery_point

    # --- producer ids

    def new_producer_id(self) -> int:
        """A new producer id, which is on disk before it is returned.

        Raises:
            OSError: if it could not be stored. No id was assigned.
        """
        self.require_name()
        path = self._file(PRODUCER_IDS_FILE)
        try:
            with open(path, encoding="ascii", opener=open_regular) as file:
                next_id = int(file.read())
        except FileNotFoundError:
            next_id = 0
        except ValueError:
            raise LogError(
                f"{path} does not contain a number: write one into it that is above every producer id used"
            ) from None
        replace_file_synced(path, f"{next_id + 1}\n".encode())
        return next_id

    # --- maintenance

    def maintain(self) -> None:
        """Apply decided transactions, sync, retain, and store recovery points, if due. Cheap, to be called often.

        Raises:
            OSError: if a part failed. It is due again at the next call.
        """
        self.check_paths()
        if self._lost is not None:
            return
        now_s = clock.monotonic()
        if now_s >= self._transactions_s:
            self._apply_decided(now_s)
        interval_ms = self.options.sync_interval_ms
        if interval_ms is not None and now_s - self._sync_s >= interval_ms / 1000:
            self.sync()
            self._sync_s = now_s
        if now_s - self._retention_s >= self.options.retention_check_interval_ms / 1000:
            self.retain()
            self._retention_s = now_s
        if now_s - self._checkpoint_s >= CHECKPOINT_INTERVAL_S:
            self.checkpoint()
            self._checkpoint_s = now_s

    def _apply_decided(self, now_s: float) -> None:
        self._transactions_s = now_s + TRANSACTIONS_INTERVAL_S
        if self._transactions.unfinished():
            apply_decided(self)
            if self._transactions.unfinished():
                self._transactions_s = now_s + TRANSACTIONS_PAUSE_S

    def sync(self) -> None:
        """Force all appended batches to disk.

        Raises:
            OSError: the error of the first partition that failed. The others were tried, too.
        """
        with contextlib.ExitStack() as all_of_them:
            for log in self._partitions.values():
                if log.log_end_offset > log.recovery_point:
                    all_of_them.callback(log.sync)
            if not self._is_inherited_synced:
                all_of_them.callback(self._sync_inherited)

    def _sync_inherited(self) -> None:
        """Force to disk, once, the batches that dead writers appended to partitions that are not open here.

        A writer without a sync level has synced neither names nor finished segments.
        """
        for place in partitions_of(self.path):
            folder = self._file(str(place))
            if place not in self._partitions and os.path.isdir(folder):
                topic_id = self._topic_id(place.topic, self.partition_count(place.topic))
                make_partition_folder(folder, topic_id, is_synced=True)
                segments = offsets_with(folder, LOG)
                point = self._recovery_points.get(place, 0)
                for base_offset in segments[max(bisect.bisect_right(segments, point) - 1, 0) :]:
                    for suffix in (LOG, TRANSACTION_INDEX):
                        with contextlib.suppress(FileNotFoundError):
                            sync_file(offset_file(folder, base_offset, suffix))
        self._is_inherited_synced = True

    def retain(self) -> int:
        """Delete old segments of every partition, as the options define; return their number.

        Nothing is deleted while a transaction is partly applied, because its records in the log show the progress.
        A record that is to be shipped to a sink is not deleted before it is there.
        """
        if self._transactions.has_begun_one():
            return 0
        topics = {topic: count for topic, count in self._counts.items() if self._has_retention(topic)}
        places = [TopicPartition(topic, number) for topic, count in topics.items() for number in range(count)]
        try:
            shipped = read_shipped(self.path) if places else Shipped()
        except LogError as error:
            self.findings.append(f"{error}. Until then, retention deletes nothing")
            return 0
        return sum(self._retain(place, shipped.kept_from(place)) for place in places)

    def _retain(self, place: TopicPartition, kept_from: int) -> int:
        try:
            return self.partition(*place).retain(kept_from)
        except LogLostError:  # `check_paths` reports it
            return 0

    def _has_retention(self, topic: str) -> bool:
        """A topic with cleanup.policy=compact alone keeps every record, because its last record of a key may be old."""
        options = self.options_of(topic)
        if not self.settings.has_policy(topic, DELETE):
            return False
        return options.retention_ms >= 0 or options.retention_bytes >= 0

    def checkpoint(self) -> None:
        """Store the recovery points, so that synced records are trusted after a crash of the host.

        Raises:
            OSError: if they were not stored. The former points remain.
        """
        self.require_name()
        points = {**self._recovery_points, **{place: log.recovery_point for place, log in self._partitions.items()}}
        points = {place: offset for place, offset in points.items() if offset > 0}
        if points != self._written_points():
            replace_file_synced(self._file(RECOVERY_POINTS_FILE), offsets_checkpoint(points))

    def _written_points(self) -> dict[TopicPartition, int]:
        return read_offsets_checkpoint(self._file(RECOVERY_POINTS_FILE))

    def metrics(self) -> dict[str, float]:
        """Metrics of all partitions, and of the open ones."""
        logs = self._partitions.values()
        return {
            "partition-count": float(sum(self._counts.values())),
            "open-partition-count": float(len(logs)),
            "segment-count": float(sum(len(log.segments) for log in logs)),
        }

    def publish_server(self, address: str) -> None:
        """Publish the address (HOST:PORT) at which the writer accepts requests, for other processes of this host.

        Raises:
            OSError: if it was not stored. The former address remains, or none.
        """
        self._server = address
        self.require_name()
        self._lock.write_holder(address)

    # --- close

    @property
    def closed(self) -> bool:
        """True after close(), and in a forked child."""
        return not self._lock.is_held and self._lost is None

    def close(self) -> None:
        """Close every partition and release the lock. A second call does nothing.

        Raises:
            OSError: if the last sync failed. Everything is closed anyway.
        """
        if self.closed:
            return
        if not self._has_its_name():
            self.abandon()
            return
        with contextlib.ExitStack() as all_of_them:
            all_of_them.callback(self._lock.release)
            all_of_them.callback(self.checkpoint)
            for place in list(self._partitions):
                all_of_them.callback(self._close_partition, place)

    def abandon(self) -> None:
        """Close everything without a checkpoint, as a death would."""
        for log in self._partitions.values():
            log.abandon()
        self._partitions.clear()
        self._lock.release()
        self._lost = None

    def __repr__(self) -> str:
        topics = format_count(len(self._counts), "topic")
        return f"<LogDirectory {self.path!r}, {topics}{', closed' if self.closed else ''}>"


def run_steps(steps: Generator[None, None, int]) -> int:
    """Run all steps at once; return their result."""
    results: list[int] = []

    def store_result() -> Generator[None, None, None]:
        results.append((yield from steps))

    for _ in store_result():
        pass
    return results[0]


@contextlib.contextmanager
def advised_errors(path: str) -> Iterator[None]:
    """Convert errors of the system that a user can resolve to exceptions with advice. Other OSErrors pass through."""
    try:
        yield
    except LogForbiddenError:  # has a message already
        raise
    except (FileExistsError, NotADirectoryError):
        raise NotALogError(f"{path}, or a path in it, is not a directory: name another directory") from None
    except PermissionError as error:
        raise LogForbiddenError(f"user {os.geteuid()} may not write {error.filename or path}") from None
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        raise LogForbiddenError(f"{path} is on a read-only file system: name another directory") from None


def check_content(path: str) -> None:
    """Reject a directory with other files, the log of a broker, and a directory in which tasks stage for Kafka.

    Raises:
        NotALogError: if it is one of these.
    """
    if os.path.lexists(os.path.join(path, STAGING_FOR_KAFKA_FILE)):
        raise NotALogError(
            f"{path} is the stagingPath of a query that writes to Kafka, so its records belong to Kafka: name another "
            "directory for the log"
        )
    if foreign := foreign_files_in(path):
        raise NotALogError(f"{path} has other files ({', '.join(foreign[:3])}): name a new or an empty directory")
    if os.path.exists(os.path.join(path, META_FILE)):
        meta = read_properties(os.path.join(path, META_FILE))
        if META_VERSION_KEY not in meta:
            raise NotALogError(f"{path} is the log directory of a Kafka broker, which can only be read")
        if meta[META_VERSION_KEY] != META_VERSION:
            raise NotALogError(
                f"{path} was created by another version ({META_VERSION_KEY}={meta[META_VERSION_KEY]}, this one writes "
                f"{META_VERSION}): name another directory, or use that version"
            )
