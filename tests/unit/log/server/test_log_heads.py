# SPDX-License-Identifier: Apache-2.0
"""A served partition ends after the last whole batch. A range begins with the batch that has the offset."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from shmaccum._native import find_batch
from shmaccum.common.format.batch_header import HEADER_SIZE, read_header, sealed_header
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.log_file import FileRange, LogFile
from shmaccum.log.server import log_heads
from shmaccum.log.server.log_heads import LogHead, OpenFiles
from tests.support.segment_log import TOPIC, log_files, make_batch, make_batches, open_log

PLACE = TopicPartition(TOPIC, 0)


def head_of(path: Path) -> LogHead:
    return LogHead(os.fspath(path), PLACE, OpenFiles())


def content(found: FileRange) -> bytes:
    return os.pread(found.file.descriptor, found.size, found.position)


def test_an_empty_partition_begins_and_ends_at_0(tmp_path: Path) -> None:
    with open_log(tmp_path / "log"):
        head = head_of(tmp_path / "log")
        assert (head.start_offset, head.end_offset, head.file_range(0, 100)) == (0, 0, None)


def test_the_end_follows_the_writer_over_rolls(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", segment_bytes=2000) as directory:
        head = head_of(tmp_path / "log")
        for index, batch in enumerate(make_batches(30)):
            directory.partition(*PLACE).append([batch])
            assert head.refresh()
            assert head.end_offset == 3 * (index + 1)
        assert not head.refresh()
        assert len(log_files(tmp_path / "log")) > 3


@pytest.mark.parametrize("segment_bytes", [2000, 1 << 20])
def test_every_offset_is_found_in_the_batch_that_has_it(tmp_path: Path, segment_bytes: int) -> None:
    with open_log(tmp_path / "log", segment_bytes=segment_bytes, index_interval_bytes=500) as directory:
        directory.partition(*PLACE).append(make_batches(40))
        for head in (head_of(tmp_path / "log"), head_of(tmp_path / "log")):
            for offset in range(120):
                found = head.file_range(offset, 1)
                assert found is not None
                header = read_header(content(found[0]))
                assert header.base_offset == offset - offset % 3
                assert found[0].size == found[1] == header.size


def test_a_range_is_cut_at_its_limit_and_at_the_end_of_the_segment(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as directory:
        batches = make_batches(10)
        directory.partition(*PLACE).append(batches)
        found = head_of(tmp_path / "log").file_range(3, batches[1].size + 10)
        assert found is not None
        assert found[0].size == batches[1].size + 10
        rest = head_of(tmp_path / "log").file_range(3, 1 << 30)
        assert rest is not None
        assert rest[0].size == sum(batch.size for batch in batches[1:])


def test_a_torn_tail_is_not_served_and_what_takes_its_place_is(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as directory:
        directory.partition(*PLACE).append(make_batches(2))
        (path,) = log_files(tmp_path / "log")
        whole = path.read_bytes()
    torn = make_batch([b"torn" * 100]).wire
    for size in (1, 60, 61, 200, len(torn) - 1):
        path.write_bytes(whole + torn[:size])
        head = head_of(tmp_path / "log")
        assert head.end_offset == 6
        found = head.file_range(3, 1 << 20)
        assert found is not None
        assert found[0].position + found[0].size == len(whole)
        with open_log(tmp_path / "log") as directory:
            directory.partition(*PLACE).append([make_batch([b"whole"])])
        assert head.refresh()
        assert head.end_offset == 7
        path.write_bytes(whole)


def test_an_overwritten_batch_ends_what_is_served(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as directory:
        batches = make_batches(3)
        directory.partition(*PLACE).append(batches)
    (path,) = log_files(tmp_path / "log")
    scribbled = bytearray(path.read_bytes())
    scribbled[batches[0].size + batches[1].size - 1] ^= 1
    path.write_bytes(scribbled)
    assert head_of(tmp_path / "log").end_offset == 3


def test_a_batch_larger_than_what_is_read_at_once_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_heads, "READ_SIZE", 1000)
    with open_log(tmp_path / "log") as directory:
        head = head_of(tmp_path / "log")
        directory.partition(*PLACE).append([*make_batches(2), make_batch([b"x" * 5000]), make_batch([b"y"])])
        assert head.refresh()
        assert head.end_offset == 8


def test_a_large_batch_that_was_overwritten_ends_what_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_heads, "READ_SIZE", 1000)
    with open_log(tmp_path / "log") as directory:
        directory.partition(*PLACE).append([*make_batches(1), make_batch([b"x" * 5000])])
    (path,) = log_files(tmp_path / "log")
    scribbled = bytearray(path.read_bytes())
    scribbled[-1] ^= 1
    path.write_bytes(scribbled)
    assert head_of(tmp_path / "log").end_offset == 3


def test_a_batch_without_records_at_the_end_is_served(tmp_path: Path) -> None:
    """Kafka's log cleaner keeps the header of a producer's last batch."""
    with open_log(tmp_path / "log") as directory:
        directory.partition(*PLACE).append(make_batches(1))
    (path,) = log_files(tmp_path / "log")
    whole = path.read_bytes()
    empty = sealed_header(read_header(whole)._replace(base_offset=3, record_count=0), b"")
    path.write_bytes(whole + empty)
    assert head_of(tmp_path / "log").end_offset == 6


def test_what_retention_deletes_is_out_of_range_and_an_open_range_stays_readable(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", segment_bytes=2000, retention_bytes=4000) as directory:
        directory.partition(*PLACE).append(make_batches(40))
        head = head_of(tmp_path / "log")
        found = head.file_range(0, 100)
        assert found is not None
        before = content(found[0])
        assert directory.retain() > 0
        head.retain()
        assert head.start_offset > 0
        assert head.file_range(0, 100) is None
        assert content(found[0]) == before


def test_retention_without_a_report_is_found_at_the_missing_file(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", segment_bytes=2000, retention_bytes=4000) as directory:
        directory.partition(*PLACE).append(make_batches(40))
        head = head_of(tmp_path / "log")
        directory.retain()
        assert head.file_range(0, 100) is None
        assert head.start_offset > 0


def test_a_hostile_index_costs_nothing_but_time(tmp_path: Path) -> None:
    with open_log(tmp_path / "log", segment_bytes=4000, index_interval_bytes=200) as directory:
        directory.partition(*PLACE).append(make_batches(40))
    for path in log_files(tmp_path / "log", ".index"):
        path.write_bytes(os.urandom(max(path.stat().st_size, 80)))
    head = head_of(tmp_path / "log")
    for offset in range(0, head.end_offset, 7):
        found = head.file_range(offset, 1)
        if found is not None:
            assert read_header(content(found[0])).last_offset >= offset


def test_no_bytes_of_a_file_lead_astray(tmp_path: Path, seeded: Callable[[], random.Random]) -> None:
    """The search for an offset stops at an invalid header, and never passes the end."""
    dice = seeded()
    whole = b"".join(batch.wire for batch in make_batches(8))
    path = tmp_path / "segment"
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(dice.randrange(4)):
            content[dice.randrange(len(content))] = dice.choice([0, 0x7F, 0x80, 0xFF])
        path.write_bytes(content)
        file = LogFile(str(path))
        end = dice.choice([len(content), len(content) - dice.randrange(200), len(content) + 100, 2**62 - 1])
        found = find_batch(file.descriptor, 0, end, dice.choice([0, 5, 23, 24, 2**63 - 1]))
        if found is not None:
            header = read_header(bytes(content), found[0])
            assert header.problem is None
            assert found[1] == header.size
            assert found[0] + HEADER_SIZE <= min(end, len(content))


def test_a_way_along_a_descriptor_that_is_none_is_an_error() -> None:
    with pytest.raises(OSError, match="Bad file descriptor"):
        find_batch(2**31 - 1, 0, 100, 0)


def test_positions_lead_to_the_batches_around_an_offset_and_a_position() -> None:
    interval = log_heads.POSITION_INTERVAL
    known = log_heads._Positions(100)
    for offset, position in ((101, interval - 1), (102, interval), (103, 2 * interval - 1), (104, 2 * interval)):
        known.add(offset, position)
    assert (known.offsets, known.positions) == ([100, 102, 104], [0, interval, 2 * interval])
    assert [known.before(offset) for offset in (99, 101, 102, 103, 104, 200)] == [
        0,
        0,
        *[interval] * 2,
        *[2 * interval] * 2,
    ]
    positions = (0, 1, interval, interval + 1, 2 * interval, 2 * interval + 1)
    assert [known.after(position) for position in positions] == [101, 103, 103, 105, 105, None]
    known.cut(103)
    assert (known.offsets, known.positions) == ([100, 102], [0, interval])
    known.cut(50)
    assert (known.offsets, known.positions) == ([100], [0])


@pytest.mark.parametrize(
    ("position_shift", "offset_shift"), [(0, 0), (1, 0), (0, 1), (1 << 20, 0)], ids=["right", "odd", "wrong", "beyond"]
)
def test_the_last_index_entry_is_used_only_if_it_leads_to_its_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position_shift: int, offset_shift: int
) -> None:
    with open_log(tmp_path / "log", index_interval_bytes=200) as directory:
        directory.partition(*PLACE).append(make_batches(10))
    indexed_positions = log_heads._indexed_positions
    begun: list[int] = []

    def shifted(folder: str, base_offset: int) -> log_heads._Positions:
        found = indexed_positions(folder, base_offset)
        found.positions[-1] += position_shift
        found.offsets[-1] += offset_shift
        return found

    monkeypatch.setattr(log_heads, "_indexed_positions", shifted)
    monkeypatch.setattr(log_heads._Positions, "cut", lambda *_: None)
    verify_new = LogHead._verify_new

    def verify(head: LogHead) -> bool:
        begun.append(head._end)
        return verify_new(head)

    monkeypatch.setattr(LogHead, "_verify_new", verify)
    assert head_of(tmp_path / "log").end_offset == 30
    assert (begun[0] > 0) is (position_shift == offset_shift == 0)


@pytest.mark.parametrize("read_size", [1000, log_heads.READ_SIZE], ids=["large", "ordinary"])
def test_the_leader_epoch_of_a_new_batch_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_size: int
) -> None:
    monkeypatch.setattr(log_heads, "READ_SIZE", read_size)
    with open_log(tmp_path / "log") as directory:
        partition = directory.partition(*PLACE)
        partition.append(make_batches(1))
        head = head_of(tmp_path / "log")
        partition.epochs.learn(7, 3)
        partition.append([make_batch([b"x" * 2000])])
        assert head.refresh()
        assert head.epochs.latest == 7
