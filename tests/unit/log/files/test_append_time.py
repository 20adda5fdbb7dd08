# SPDX-License-Identifier: Apache-2.0
"""A log with LogAppendTime gives each record the time of its append, and returns that time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka.record.memory_records import MemoryRecords

from shmaccum.common.format.batch_header import crc_problem, read_header
from shmaccum.config import LogSinkOptions
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.inspection import check_log
from shmaccum.log.files.partition_log import OWN_TIME, PartitionLog
from shmaccum.log.files.reader import LogReader, PartitionReader
from tests.support.segment_log import START_MS, TOPIC, MadeBatch, make_batch, make_batches, offsets, wire_in_files

NOW_MS = START_MS + 5_000_000
SETTING = {"message.timestamp.type": "LogAppendTime"}


class Clock:
    """A manual clock, in seconds."""

    now_ms = NOW_MS

    def __call__(self) -> float:
        return self.now_ms / 1000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> Iterator[LogDirectory]:
    with LogDirectory(tmp_path, LogSinkOptions(), clock=clock) as log:
        log.create_topic(TOPIC)
        log.change_settings(TOPIC, SETTING)
        yield log


def partition(log: LogDirectory) -> PartitionLog:
    return log.partition(TOPIC, 0)


def reader(path: Path) -> PartitionReader:
    return LogReader(path).partition(TOPIC, 0)


@pytest.mark.parametrize("codec", [0, 1])
@pytest.mark.parametrize("piece_count", [1, 3])
def test_records_get_the_time_of_their_append_and_stay_what_they_are(
    tmp_path: Path, log: LogDirectory, codec: int, piece_count: int
) -> None:
    values = [b"%d" % number * 100 for number in range(9)]
    batch = make_batch(values, codec=codec, piece_count=piece_count)
    assert partition(log).append([batch]) == [0]
    records = list(reader(tmp_path).records())
    assert [(record.value, record.timestamp_ms) for record in records] == [(value, NOW_MS) for value in values]
    (found,) = reader(tmp_path).batches()
    assert found.crc_problem() is None
    assert check_log(tmp_path) == []


def test_other_clients_read_the_same_time(tmp_path: Path, log: LogDirectory) -> None:
    partition(log).append([make_batch([b"a", b"b"])])
    batch = MemoryRecords(wire_in_files(tmp_path)).next_batch()
    assert batch is not None
    assert batch.validate_crc()
    assert [(record.timestamp, record.timestamp_type) for record in batch] == [(NOW_MS, 1)] * 2


def test_a_duplicate_has_the_time_of_its_first_append(log: LogDirectory, clock: Clock) -> None:
    batches = make_batches(3)
    first = offsets(partition(log).append(batches))
    clock.now_ms += 1000
    again = offsets(partition(log).append([*batches[1:], *make_batches(1, first=3)]))
    assert again == [first[1], first[2], first[2] + 3]
    times = [partition(log).time_of(batch, offset) for batch, offset in zip(batches[1:], again, strict=False)]
    assert times == [NOW_MS, NOW_MS]
    assert partition(log).time_of(make_batches(1, first=3)[0], again[2]) == NOW_MS + 1000
    assert partition(log).time_of(make_batch([b"not idempotent"]), 9) == NOW_MS + 1000


def test_times_are_those_of_producers_until_the_setting_changes(tmp_path: Path, log: LogDirectory) -> None:
    log.change_settings(TOPIC, {})
    batch = make_batch([b"own"])
    (offset,) = offsets(partition(log).append([batch]))
    assert partition(log).time_of(batch, offset) == OWN_TIME
    log.change_settings(TOPIC, SETTING)
    partition(log).append([make_batch([b"log's"])])
    assert [record.timestamp_ms for record in reader(tmp_path).records()] == [START_MS, NOW_MS]


def test_offsets_are_found_by_the_time_of_the_append(tmp_path: Path, log: LogDirectory, clock: Clock) -> None:
    for batch in make_batches(3):
        partition(log).append([batch])
        clock.now_ms += 1000
    found = reader(tmp_path).offset_for_timestamp(NOW_MS + 1)
    assert found is not None
    assert (found.offset, found.timestamp_ms) == (3, NOW_MS + 1000)


def test_the_time_holds_for_all_topics_by_an_option_of_the_log(tmp_path: Path, clock: Clock) -> None:
    options = LogSinkOptions.parse({"log.message.timestamp.type": "LogAppendTime"})
    with LogDirectory(tmp_path, options, clock=clock) as log:
        log.create_topic(TOPIC)
        partition(log).append([make_batch([b"x"])])
    assert [record.timestamp_ms for record in reader(tmp_path).records()] == [NOW_MS]


def test_a_damaged_batch_stays_damaged(tmp_path: Path, log: LogDirectory) -> None:
    wire = bytearray(make_batch([b"x" * 100]).wire)
    wire[-5] ^= 1
    partition(log).append([MadeBatch(bytes(wire))])
    found = wire_in_files(tmp_path)
    assert crc_problem(read_header(found), memoryview(found)) is not None
