# SPDX-License-Identifier: Apache-2.0
"""Logs from former versions and other programs may have batches without a largest timestamp."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shmaccum.common.format.batch_header import HEADER_SIZE, changed_header, read_header
from shmaccum.config import LogSinkOptions
from shmaccum.log.files import LogReader, check_log
from shmaccum.log.files.directory import LogDirectory
from shmaccum.log.files.log_batch import LogBatch
from tests.support.segment_log import START_MS, TOPIC, make_batch

HOUR_MS = 3_600_000


def timeless(start_ms: int, told_ms: int = -1, count: int = 3) -> LogBatch:
    """A batch of records, a millisecond apart. Its header has a wrong largest timestamp."""
    wire = make_batch([b"a"] * count, timestamp_ms=start_ms).wire
    header = read_header(wire)
    content = changed_header(header, header._replace(max_timestamp_ms=told_ms)) + wire[HEADER_SIZE:]
    return LogBatch(read_header(content), memoryview(content), "", 0)


def written(path: Path, *batches: LogBatch) -> None:
    with LogDirectory(path, LogSinkOptions(index_interval_bytes=0)) as log:
        log.create_topic(TOPIC)
        assert all(isinstance(one, int) for one in log.partition(TOPIC, 0).append(batches))


def deleted(path: Path, now_ms: float) -> int:
    """Return the segments that one hour of retention deletes at this time."""
    with LogDirectory(path, LogSinkOptions(retention_ms=HOUR_MS), clock=lambda: now_ms / 1000) as log:
        log.partition(TOPIC, 0)
        return log.retain()


@pytest.mark.parametrize("told_ms", [-1, 5, START_MS - HOUR_MS])
def test_a_segment_with_a_batch_without_a_timestamp_is_as_young_as_its_file(tmp_path: Path, told_ms: int) -> None:
    written(tmp_path, timeless(START_MS - 2 * HOUR_MS, START_MS - 2 * HOUR_MS + 2), timeless(START_MS, told_ms))
    (segment,) = (tmp_path / f"{TOPIC}-0").glob("*.log")
    os.utime(segment, (START_MS / 1000, START_MS / 1000))
    assert deleted(tmp_path, START_MS + HOUR_MS - 1000) == 0
    assert deleted(tmp_path, START_MS + HOUR_MS + 1000) == 1


def test_records_without_a_time_are_as_young_as_their_file(tmp_path: Path) -> None:
    written(tmp_path, timeless(START_MS - 2 * HOUR_MS, START_MS - 2 * HOUR_MS + 2), timeless(-1, -1))
    assert deleted(tmp_path, os.stat(next((tmp_path / f"{TOPIC}-0").glob("*.log"))).st_mtime * 1000 + 1000) == 0


def test_old_records_with_timestamps_are_deleted_even_if_their_file_is_new(tmp_path: Path) -> None:
    written(tmp_path, timeless(START_MS - 2 * HOUR_MS, START_MS - 2 * HOUR_MS + 2))
    assert deleted(tmp_path, START_MS) == 1


def test_a_batch_without_a_timestamp_is_found_by_the_time_of_its_first_record(tmp_path: Path) -> None:
    written(tmp_path, timeless(START_MS, START_MS + 2), timeless(START_MS + 10), timeless(START_MS + 5, START_MS + 7))
    assert check_log(tmp_path) == []
    partition = LogReader(tmp_path).partition(TOPIC, 0)
    found = {ahead: partition.offset_for_timestamp(START_MS + ahead) for ahead in (0, 2, 5, 10, 13)}
    offsets = {ahead: None if one is None else one.offset for ahead, one in found.items()}
    assert offsets == {0: 0, 2: 2, 5: 3, 10: 3, 13: None}
    youngest = partition.offset_of_max_timestamp()
    assert youngest is not None
    assert (youngest.offset, youngest.timestamp_ms) == (5, START_MS + 12)


def test_the_largest_time_is_found_in_any_batch_without_a_timestamp(tmp_path: Path) -> None:
    """The batch with the latest first record is not the one with the latest record."""
    written(tmp_path, timeless(START_MS, count=10), timeless(START_MS + 5))
    youngest = LogReader(tmp_path).partition(TOPIC, 0).offset_of_max_timestamp()
    assert youngest is not None
    assert (youngest.offset, youngest.timestamp_ms) == (9, START_MS + 9)


def test_a_log_with_such_batches_is_opened_again_and_its_index_ascends(tmp_path: Path) -> None:
    written(tmp_path, timeless(START_MS), timeless(START_MS + 10, START_MS + 12), timeless(START_MS + 5))
    for suffix in (".index", ".timeindex"):
        next((tmp_path / f"{TOPIC}-0").glob(f"*{suffix}")).unlink()
    written(tmp_path, timeless(START_MS + 20))
    assert check_log(tmp_path) == []
    found = LogReader(tmp_path).partition(TOPIC, 0).offset_for_timestamp(START_MS + 20)
    assert found is not None
    assert found.offset == 9


def test_records_of_a_negative_time_are_read(tmp_path: Path) -> None:
    """Servers reject them, but a foreign log may have them."""
    written(tmp_path, timeless(-5, -3))
    assert [one.timestamp_ms for one in LogReader(tmp_path).partition(TOPIC, 0).records(0)] == [-5, -4, -3]
