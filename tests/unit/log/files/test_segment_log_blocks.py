# SPDX-License-Identifier: Apache-2.0
"""The columns of a block have the records of its plain batches only. Hostile bytes raise errors."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmaccum import CorruptLogError, _native
from shmaccum.common.format.batch_header import CONTROL, HEADER_SIZE, LOG_APPEND_TIME, read_header, sealed_header
from shmaccum.exceptions import InvalidArgumentError, ShmaccumError
from shmaccum.log.files import LogBatch, LogReader
from shmaccum.log.files import segment_view as views
from shmaccum.log.files.columns import RecordColumns, decode_columns
from shmaccum.log.files.walk import BaseOffsetRange
from tests.support.segment_log import TOPIC, log_files, make_batch, make_batches, open_log
from tests.unit.log.files.test_segment_log_columns import RECORDS, cells, log_batch, made, numbers

OFFSET_MAX = 2**63 - 1
EVERYTHING = BaseOffsetRange(0, OFFSET_MAX - 1)


def sealed(batch: LogBatch, **changes: int) -> bytes:
    """The bytes of a batch with other header fields and a right CRC."""
    records = bytes(batch.view[HEADER_SIZE:])
    return sealed_header(batch.header._replace(**changes), records) + records


def block_of(parts: list[Any]) -> tuple[bytes, list[LogBatch]]:
    """Consecutive batches. The second one has the time of the log."""
    batches: list[LogBatch] = []
    for index, records in enumerate(filter(None, parts)):
        first = batches[-1].next_offset if batches else 0
        wire = sealed(log_batch(made(records), first), attributes=LOG_APPEND_TIME if index == 1 else 0)
        batches.append(LogBatch(read_header(wire), memoryview(wire), "a.log", 0))
    return b"".join(batch.view for batch in batches), batches


def decoded(wire: bytes, first: int = 0, end: int = OFFSET_MAX, *, has_headers: bool = True) -> Any:
    """The columns of a block with all offsets from 0."""
    found, position, next_offset = _native.decode_block(wire, 0, first, end, has_headers, 0, 0)
    return RecordColumns.of(found), position, next_offset


@settings(max_examples=150)
@given(parts=st.lists(RECORDS, min_size=1, max_size=4), first=st.integers(0, 60), count=st.integers(1, 60))
def test_columns_of_a_block_are_those_of_its_batches(parts: list[Any], first: int, count: int) -> None:
    wire, batches = block_of(parts)
    for has_headers in (False, True):
        columns, position, next_offset = decoded(wire, first, first + count, has_headers=has_headers)
        wanted = [batch for batch in batches if batch.base_offset < first + count]
        assert position == sum(batch.size for batch in wanted)
        assert next_offset == (wanted[-1].next_offset if wanted else 0)
        right = decode_columns(batches, first, first + count, has_headers=has_headers)
        assert (cells(columns.key), cells(columns.value)) == (cells(right.key), cells(right.value))
        assert columns[:4] == right[:4]
        if has_headers:
            assert columns.headers is not None
            assert right.headers is not None
            assert columns.headers[0] == right.headers[0]
            assert columns.headers.offsets == right.headers.offsets
            assert cells(columns.headers.key) == cells(right.headers.key)
            assert cells(columns.headers.value) == cells(right.headers.value)


@pytest.mark.parametrize("has_headers", [False, True])
@pytest.mark.parametrize("position", [0, 20, 70, 90, 130])
def test_a_damaged_batch_is_left_to_the_caller(position: int, has_headers: bool) -> None:
    wire, (first, second) = block_of([[(b"k", b"v" * 40, 0, [])] * 2] * 2)
    damaged = bytearray(wire)
    damaged[first.size + position % second.size] ^= 0x55
    columns, end, next_offset = decoded(bytes(damaged), has_headers=has_headers)
    assert (columns.row_count, end, next_offset) == (2, first.size, 2)
    assert cells(columns.value) == [b"v" * 40] * 2


@pytest.mark.parametrize("has_headers", [False, True])
def test_a_batch_with_a_right_crc_and_wrong_records_is_left_to_the_caller(has_headers: bool) -> None:
    _, (first, second) = block_of([[(b"k", b"v" * 40, 0, [])] * 2, [(b"k", None, 0, [])] * 3])
    for count in (2, 4, 2**31 - 1):
        wire = bytes(first.view) + sealed(second, record_count=count)
        columns, end, next_offset = decoded(wire, has_headers=has_headers)
        assert (columns.row_count, columns.value.null_count, end, next_offset) == (2, 0, first.size, 2)
        assert numbers(columns.value.offsets, pa.int32()) == [0, 40, 80]


def test_unexpected_compressed_and_control_batches_are_left_to_the_caller() -> None:
    wire, (first,) = block_of([[(b"k", b"v", 0, [])]])
    for second in [
        sealed(first, base_offset=5),
        make_batch([b"v" * 1000], codec=1).wire,
        sealed(first, base_offset=1, attributes=CONTROL),
        wire[:30],
    ]:
        found = _native.decode_block(wire + second, 0, 0, OFFSET_MAX, False, 0, 0)
        assert found[1:] == (len(wire), 1)


def test_a_call_ends_after_enough_rows() -> None:
    wire, _ = block_of([[(None, b"", 0, [])] * 4000] * 4)
    columns, position, next_offset = decoded(wire, has_headers=False)
    assert (columns.row_count, next_offset) == (12_000, 12_000)
    found, end, _ = _native.decode_block(wire, position, 0, OFFSET_MAX, False, 12_000, 12_000)
    assert (found[0], end) == (4000, len(wire))


@settings(max_examples=150)
@given(
    cut=st.tuples(st.integers(0, 400), st.integers(0, 400)),
    insert=st.binary(max_size=12),
    position=st.integers(-1, 400),
    wanted=st.tuples(st.integers(-1, 12), st.integers(-1, 12)),
    has_headers=st.booleans(),
)
def test_any_bytes_are_decoded_left_or_refused(
    cut: tuple[int, int], insert: bytes, position: int, wanted: tuple[int, int], has_headers: bool
) -> None:
    wire, _ = block_of([[(b"k", b"value", 5, [("h", b"v")])] * 3] * 3)
    hostile = wire[: min(cut)] + insert + wire[max(cut) :]
    with contextlib.suppress(ShmaccumError):
        found, end, _ = _native.decode_block(hostile, position, *wanted, has_headers, 0, OFFSET_MAX, False)
        columns = RecordColumns.of(found)
        assert position <= end <= max(len(hostile), position)
        assert columns.row_count <= len(hostile) / 7
        assert len(cells(columns.key)) == len(cells(columns.value)) == columns.row_count


def test_wrong_arguments_are_reported() -> None:
    with pytest.raises(TypeError):
        _native.decode_block("text", 0, 0, 1, False, 0, 0)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError):
        _native.decode_block(b"", 0, -1, 1, False, 0, 0)


# --- through the reader


def read(path: Path, wanted: BaseOffsetRange = EVERYTHING, **options: Any) -> tuple[list[int], list[int]]:
    """Read the offsets of all rows in columns, and of all single batches."""
    rows: list[int] = []
    alone: list[int] = []
    with contextlib.closing(LogReader(path, **options).partition(TOPIC, 0).cursor(wanted.first)) as cursor:
        for batch in cursor.poll():
            if batch.base_offset > wanted.last:
                break
            columns = cursor.columns(batch, wanted, has_headers=False)
            if columns is None:
                alone.append(batch.base_offset)
            else:
                assert cursor.offset >= batch.next_offset
                rows += numbers(columns.offsets, pa.int64())
    return rows, alone


@pytest.mark.parametrize("size", [200, 1000, 1 << 20])
def test_batches_of_every_kind_are_read_in_order_across_blocks(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "READ_AHEAD_SIZE", size)
    with open_log(tmp_path, segment_bytes=2000) as directory:
        log = directory.partition(TOPIC, 0)
        for first in (0, 40, 80):
            compressed = make_batch([b"a", b"b"] * 50, codec=1)
            log.append([*make_batches(20, first=first), compressed, *make_batches(20, first=first + 20)])
    rows, alone = read(tmp_path)
    assert alone == [60, 280, 500]
    assert rows == [offset for offset in range(660) if not any(start <= offset < start + 100 for start in alone)]


@pytest.mark.parametrize("wanted", [BaseOffsetRange(0, 0), BaseOffsetRange(7, 13), BaseOffsetRange(58, 59)])
def test_only_the_wanted_records_are_rows(tmp_path: Path, wanted: BaseOffsetRange) -> None:
    with open_log(tmp_path) as directory:
        directory.partition(TOPIC, 0).append(make_batches(20))
    assert read(tmp_path, wanted) == (list(range(wanted.first, wanted.last + 1)), [])


def test_damage_after_the_first_batch_is_raised_or_skipped(tmp_path: Path) -> None:
    with open_log(tmp_path) as directory:
        directory.partition(TOPIC, 0).append(make_batches(20))
    (path,) = log_files(tmp_path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptLogError):
        read(tmp_path)
    missing = sorted(set(range(60)) - set(read(tmp_path, on_corrupt="skip")[0]))
    assert missing == [missing[0], missing[0] + 1, missing[0] + 2]


def test_a_cursor_reads_blocks_of_the_size_that_was_asked_for(tmp_path: Path) -> None:
    with open_log(tmp_path) as directory:
        directory.partition(TOPIC, 0).append(make_batches(20))
    counts = []
    for block_size in (2000, 1 << 20):
        with contextlib.closing(LogReader(tmp_path).partition(TOPIC, 0).cursor(0, block_size=block_size)) as cursor:
            batch = next(cursor.poll())
            columns = cursor.columns(batch, EVERYTHING, has_headers=False)
            assert columns is not None
            counts.append(columns.row_count)
    assert counts[0] < counts[1] == 60
