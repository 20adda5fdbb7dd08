# SPDX-License-Identifier: Apache-2.0
"""A log directory with its levels: appends, rolls, checkpoints, deletions, and aborted transactions."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from shmaccum.config import LogSinkOptions
from shmaccum.exceptions import NotALogError
from shmaccum.log.files import LogDirectory, LogReader, lock_file
from shmaccum.log.files.producer_state import Rejection
from shmaccum.log.files.small_files import read_topic_id
from tests.power_images.scenario import Marks, Scenario, mark
from tests.support.segment_log import MadeBatch, batch_of, make_batch, offsets

TOPIC = "t"
PARTITIONS = 2
RECORDS = 2
"""The number of records of a batch."""
SIZE = 500
NONE, INTERVAL, BATCH = "none", "interval", "batch"
INTERVAL_MS = 1


def log_options(level: str, **more: Any) -> LogSinkOptions:
    """Return the options of a log with small segments."""
    interval = {"sync_interval_ms": INTERVAL_MS} if level == INTERVAL else {}
    return LogSinkOptions.parse({"sync": level, "segment_bytes": 2700, "index_interval_bytes": 600, **interval, **more})


def value_of(partition: int, number: int) -> bytes:
    """Return the value of a record: its name, filled up to a size."""
    return f"{partition}/{number} ".encode().ljust(SIZE, b"%d" % (number % 10))


def batch_at(producer_id: int, partition: int, number: int) -> MadeBatch:
    """Return the batch with this number in its partition."""
    values = [value_of(partition, number * RECORDS + index) for index in range(RECORDS)]
    return make_batch(values, producer=(producer_id, 0, number * RECORDS))


def read_log(
    path: Path, partition: int, *, topic: str = TOPIC, isolation: Any = "read_uncommitted"
) -> dict[int, bytes]:
    """Return the values in a partition by their offsets, read by a reader that skips damage."""
    reader = LogReader(path, on_corrupt="skip", isolation_level=isolation)
    if topic not in reader.topics() or partition not in reader.partitions(topic):
        return {}
    return {record.offset: record.value or b"" for record in reader.partition(topic, partition).records()}


class LogScenario(Scenario):
    """One writer appends to a log until it rolls. A second writer continues."""

    name = "log"
    levels: ClassVar[tuple[str, ...]] = (NONE, INTERVAL, BATCH)
    batches: ClassVar[tuple[int, ...]] = (0, 4, 7)
    """The number of the first batch of each writer, and the number after the last batch."""

    def __init__(self, level: str) -> None:
        super().__init__(level)
        self._appended: list[tuple[int, int]] = []
        self._death_count = 0

    def record(self, place: Path) -> None:
        for first, end in itertools.pairwise(self.batches):
            log = LogDirectory(place / "log", self.options(first))
            self.begin(log, first, place)
            if not first:
                log.create_topic(TOPIC, PARTITIONS)
                if log.options.sync != NONE:
                    self.mark_topic(place)
                mark("id", log.new_producer_id())
            for number in range(first, end):
                self.append(log, number)
                self.between(log, number)
            self.end(log, place)

    def options(self, first: int) -> LogSinkOptions:
        """Return the options of the writer whose first batch has this number."""
        return log_options(self.level)

    def begin(self, log: LogDirectory, first: int, place: Path) -> None:
        """Do the work of the scenario before the first append of a writer."""

    def end(self, log: LogDirectory, place: Path) -> None:
        """End a writer."""
        log.close()
        if self.level != NONE:
            self.mark_kept()

    def mark_topic(self, place: Path) -> None:
        """Mark that the topic with its partitions and its id is on disk."""
        mark("topic", PARTITIONS)
        mark("topic id", (read_topic_id(str(place / "log" / f"{TOPIC}-0")) or b"").hex())

    def mark_kept(self) -> None:
        """Mark that everything that was appended is on disk."""
        for partition in range(PARTITIONS):
            kept = max(end for place, end in self._appended if place == partition)
            mark("kept", partition, kept)

    def append(self, log: LogDirectory, number: int) -> None:
        """Append a batch to each partition."""
        for partition in range(PARTITIONS):
            self.send(log, partition, number)
            if self.level == BATCH:
                mark("kept", partition, (number + 1) * RECORDS)
        if self.level == INTERVAL and number % 2:
            time.sleep(INTERVAL_MS / 500)
            log.maintain()
            self.mark_kept()

    def send(self, log: LogDirectory, partition: int, number: int) -> None:
        """Append a batch to a partition."""
        mark("sent", partition, (number + 1) * RECORDS)
        self._appended.append((partition, (number + 1) * RECORDS))
        (outcome,) = log.partition(TOPIC, partition).append([batch_at(0, partition, number)])
        assert outcome == number * RECORDS

    def between(self, log: LogDirectory, number: int) -> None:
        """Do the work of the scenario between two appends."""
        if number % 3 == 2:
            log.checkpoint()

    def check(self, place: Path, marks: Marks) -> Iterator[str]:
        path = place / "log"
        with contextlib.suppress(NotALogError):  # there is no log yet
            for partition in range(PARTITIONS):
                yield from self._strange(partition, read_log(path, partition), marks, "a reader")
        with LogDirectory(path, log_options(self.level)) as log:
            yield from self._check_writer(log, marks)
            for partition in range(PARTITIONS):
                yield from self._check_partition(path, partition, marks)
            if self.level != NONE:
                yield from self._send_rest(log, marks)
        if self.level != NONE:
            yield from self._check_whole(path, marks)

    def _check_writer(self, log: LogDirectory, marks: Marks) -> Iterator[str]:
        ids = [producer_id for (producer_id,) in marks.of("id")]
        if ids and log.new_producer_id() <= max(ids):
            yield f"the producer id {max(ids)} is given twice"
        if self.level != NONE and log.partition_count(TOPIC) < (count := marks.last("topic", 0)):
            yield f"the topic has {log.partition_count(TOPIC)} partitions of {count}"
        topic_id = marks.last("topic id")
        if topic_id is not None and read_topic_id(os.path.join(log.path, f"{TOPIC}-0")) != bytes.fromhex(topic_id):
            yield "the topic has another id"
        log.create_topic(TOPIC, PARTITIONS)

    def _strange(self, partition: int, found: dict[int, bytes], marks: Marks, who: str) -> Iterator[str]:
        """Yield a sentence for each value that no producer sent to its offset."""
        sent = max((end for place, end in marks.of("sent") if place == partition), default=0)
        for offset, value in found.items():
            if not (offset < sent and value == value_of(partition, offset)):
                yield f"{who} got {value[:10]!r} at offset {offset} of partition {partition}, to which {sent} were sent"

    def kept(self, partition: int, marks: Marks) -> range:
        """Return the offsets that must be there."""
        end = max((end for place, end in marks.of("kept") if place == partition), default=0)
        return range(min(self._start("deleting", partition, marks), end), end)

    @staticmethod
    def _start(kind: str, partition: int, marks: Marks) -> int:
        return max((start for place, start in marks.of(kind) if place == partition), default=0)

    def _check_partition(self, path: Path, partition: int, marks: Marks) -> Iterator[str]:
        found = read_log(path, partition)
        yield from self._strange(partition, found, marks, "the writer")
        if missing := [offset for offset in self.kept(partition, marks) if offset not in found]:
            yield f"partition {partition} lost the offsets {missing}"
        start = self._start("deleted", partition, marks)
        if back := [offset for offset in found if offset < start]:
            yield f"partition {partition} has the offsets {back} again, which were deleted"

    def _send_rest(self, log: LogDirectory, marks: Marks) -> Iterator[str]:
        """Send all unacknowledged batches again, as a producer does, and one acknowledged batch."""
        for partition in self.acknowledged(marks):
            end = self.kept(partition, marks).stop // RECORDS
            deleted = self._start("deleting", partition, marks) // RECORDS  # also deletes the producer's state
            for number in range(max(end - 1, deleted, 0), self.batches[-1]):
                (outcome,) = log.partition(TOPIC, partition).append([batch_at(0, partition, number)])
                if isinstance(outcome, Rejection):
                    yield f"batch {number} of partition {partition} is refused: {outcome.message}"
                    return
                if outcome != number * RECORDS:
                    yield f"batch {number} of partition {partition} has the offset {outcome}"

    def acknowledged(self, marks: Marks) -> list[int]:
        """Return the partitions to which a producer sends its unacknowledged batches again."""
        return list(range(PARTITIONS))

    def _check_whole(self, path: Path, marks: Marks) -> Iterator[str]:
        for partition in self.acknowledged(marks):
            found = read_log(path, partition)
            whole = range(self._start("deleting", partition, marks), self.batches[-1] * RECORDS)
            if [offset for offset in found if offset in whole] != list(whole):
                yield f"after all was sent again, partition {partition} has the offsets {list(found)}"


class LogDeathScenario(LogScenario):
    """Writers die. The first one forces nothing to disk. The successor of every second writer belongs to another
    boot.
    """

    name = "log-deaths"
    batches = (0, 3, 5, 7, 8)

    def options(self, first: int) -> LogSinkOptions:
        return log_options(NONE if not first else self.level)

    def acknowledged(self, marks: Marks) -> list[int]:
        """Return no partition without a level: a power cut loses acknowledged records, and their offsets are reused."""
        return [partition for partition in range(PARTITIONS) if self.kept(partition, marks).stop]

    def begin(self, log: LogDirectory, first: int, place: Path) -> None:
        """Mark the records of dead writers after a sync: all are on disk, also in partitions that are not open."""
        if first and self.level != NONE:
            log.sync()
            if self.level == INTERVAL:
                self.mark_topic(place)
                self.mark_kept()

    def append(self, log: LogDirectory, number: int) -> None:
        if number >= self.batches[1]:
            super().append(log, number)
            return
        for partition in range(PARTITIONS):
            self.send(log, partition, number)

    def end(self, log: LogDirectory, place: Path) -> None:
        log.abandon()
        self._death_count += 1
        if self._death_count % 2 == 0:
            boot_again(place)


def boot_again(place: Path) -> None:
    """Give this process another boot id."""
    boot = place.with_name("boot")
    boot.write_text(f"{uuid.uuid4()}\n")
    lock_file.BOOT_ID_FILE = str(boot)


class LogDeletionScenario(LogScenario):
    """Deleted records and topics stay deleted, and settings stay."""

    name = "log-deletions"
    levels = (INTERVAL, BATCH)
    batches = (0, 5, 7)

    def between(self, log: LogDirectory, number: int) -> None:
        if number == 1:
            log.create_topic("u")
            log.partition("u", 0).append([make_batch([b"former"] * 4)])
            log.delete_records("u", 0, 2)
            log.checkpoint()
            log.delete_topic("u")
            mark("former")
        if number == 2:
            mark("deleting", 0, 5)
            log.delete_records(TOPIC, 0, 5)
            mark("deleted", 0, 5)
            log.create_topic("u")
            offsets(log.partition("u", 0).append([make_batch([b"new"] * 3)]))
            log.sync()
            mark("new")
        if number == 3:
            log.change_settings(TOPIC, {"retention.bytes": "2000"})
            mark("settings")
            for partition in range(PARTITIONS):
                mark("deleting", partition, 6)
            log.retain()
        if number == 4:
            log.create_topic("w")
            log.partition("w", 0).append([make_batch([b"gone"] * 2)])
            log.delete_records("w", 0, 1)
            log.delete_topic("w")
            log.checkpoint()

    def check(self, place: Path, marks: Marks) -> Iterator[str]:
        yield from super().check(place, marks)
        with LogDirectory(place / "log", log_options(self.level)) as log:
            if marks.of("settings") and dict(log.settings.of(TOPIC)) != {"retention.bytes": "2000"}:
                yield f"the settings are {dict(log.settings.of(TOPIC))}"
        found = list(read_log(place / "log", 0, topic="u").items())
        if marks.of("former") and b"former" in dict(found).values():
            yield "a record of a deleted topic is there again"
        if marks.of("new") and found != [(offset, b"new") for offset in range(3)]:
            yield f"the new topic has {found}"


class LogTransactionScenario(Scenario):
    """Transactions in a log. A reader of committed records never returns records of an aborted transaction."""

    name = "log-transactions"
    levels = (INTERVAL, BATCH)
    count = 6

    def record(self, place: Path) -> None:
        log = LogDirectory(place / "log", log_options(self.level, segment_bytes=700))
        log.create_topic(TOPIC, PARTITIONS)
        for number in range(self.count):
            mark("begun", number)
            for partition in range(PARTITIONS):
                partition_log = log.partition(TOPIC, partition)
                offsets(partition_log.append([batch_of(71, number, b"%d" % number)]))
                offsets([partition_log.end_transaction(71, 0, is_commit=number % 2 == 0)])
            if self.level == INTERVAL:
                log.sync()
            mark("ended", number)
            if number == 3:
                log.abandon()
                for path in [*place.rglob("*.txnindex"), *place.rglob("*.snapshot")]:
                    path.unlink()
                boot_again(place)
                log = LogDirectory(place / "log", log_options(self.level, segment_bytes=700))
        log.close()

    def check(self, place: Path, marks: Marks) -> Iterator[str]:
        with LogDirectory(place / "log", log_options(self.level)) as log:
            log.create_topic(TOPIC, PARTITIONS)
            begun = [number for (number,) in marks.of("begun")]
            ended = [number for (number,) in marks.of("ended")]
            for partition in range(PARTITIONS):
                found = read_log(place / "log", partition, isolation="read_committed")
                numbers = [int(value) for value in found.values()]
                if strange := [number for number in numbers if number % 2 or number not in begun]:
                    yield f"partition {partition} shows {strange}, which were aborted"
                if lost := [number for number in ended if number % 2 == 0 and number not in numbers]:
                    yield f"partition {partition} lost {lost}"
                if numbers != sorted(set(numbers)):
                    yield f"partition {partition} shows {numbers}"
