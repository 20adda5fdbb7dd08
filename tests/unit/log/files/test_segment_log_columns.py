# SPDX-License-Identifier: Apache-2.0
"""Columns have the same records for batches of any form."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder

from shmaccum import _native
from shmaccum.common.format.batch_header import read_header
from shmaccum.exceptions import CorruptArenaError, InvalidArgumentError
from shmaccum.log.files import LogBatch, LogReader, LogRecord
from shmaccum.log.files.columns import BytesColumn, decode_columns
from tests.support.segment_log import START_MS, TOPIC, MadeBatch, make_batch, make_batches, open_log

CELL = st.none() | st.binary(max_size=30)
RECORDS = st.lists(
    st.tuples(CELL, CELL, st.integers(0, 1000), st.lists(st.tuples(st.text(max_size=5), CELL), max_size=3)), max_size=20
)


def made(records: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]]) -> MadeBatch:
    """A batch of (key, value, milliseconds, headers)."""
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for index, (key, value, time_ms, headers) in enumerate(records):
        builder.append(index, START_MS + time_ms, key, value, headers)
    return MadeBatch(bytes(builder.build()))


def log_batch(batch: MadeBatch, base_offset: int) -> LogBatch:
    wire = base_offset.to_bytes(8, "big") + batch.wire[8:]
    return LogBatch(read_header(wire), memoryview(wire), "a.log", 0)


def cells(column: BytesColumn) -> list[bytes | None]:
    validity = pa.py_buffer(column.validity) if column.null_count else None
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    array = pa.Array.from_buffers(pa.binary(), column.cell_count, buffers, column.null_count)
    array.validate(full=True)
    found: list[bytes | None] = array.to_pylist()
    return found


def numbers(buffer: bytes, kind: pa.DataType) -> list[int]:
    count = len(buffer) * 8 // kind.bit_width
    found: list[int] = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(buffer)]).to_pylist()
    return found


def records_of(batches: list[LogBatch], first: int, end: int) -> list[LogRecord]:
    """Read the same records as objects."""
    return [record for batch in batches for record in batch.records() if first <= record.offset < end]


def rows_of(batches: list[LogBatch], first: int, end: int) -> list[LogRecord]:
    columns = decode_columns(batches, first, end, has_headers=True)
    assert columns.headers is not None
    ends = numbers(columns.headers.offsets, pa.int32())
    pairs = list(zip(cells(columns.headers.key), cells(columns.headers.value), strict=True))
    rows = zip(
        numbers(columns.offsets, pa.int64()),
        [time_us // 1000 for time_us in numbers(columns.timestamps_us, pa.int64())],
        cells(columns.key),
        cells(columns.value),
        [tuple(((key or b"").decode(), value) for key, value in pairs[start:stop]) for start, stop in pairwise(ends)],
        strict=True,
    )
    return [LogRecord(*row) for row in rows]


@given(parts=st.lists(RECORDS, min_size=1, max_size=4), first=st.integers(0, 60), count=st.integers(0, 60))
def test_any_records_are_the_same(
    parts: list[list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]]], first: int, count: int
) -> None:
    batches, offset = [], 0
    for records in filter(None, parts):
        batches.append(log_batch(made(records), offset))
        offset += len(records)
    assert rows_of(batches, first, first + count) == records_of(batches, first, first + count)


def test_rows_without_headers_are_null() -> None:
    columns = decode_columns([log_batch(made([(None, b"v", 0, []), (None, b"v", 0, [("h", None)])]), 0)], 0, 2)
    assert columns.headers is None
    columns = decode_columns(
        [log_batch(made([(None, b"v", 0, []), (None, b"v", 0, [("h", None)])]), 0)], 0, 2, has_headers=True
    )
    assert columns.headers is not None
    assert (columns.headers.null_count, columns.headers.validity) == (1, b"\x02")


def test_compressed_batches(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as directory:
        directory.partition(TOPIC, 0).append([make_batch([b"a", None, b"c"], codec=codec) for codec in range(5)])
    batches = list(LogReader(tmp_path / "log").partition(TOPIC, 0).batches())
    assert rows_of(batches, 0, 15) == records_of(batches, 0, 15)
    assert cells(decode_columns(batches, 4, 6).value) == [None, b"c"]


def test_many_batches_of_a_log(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as directory:
        directory.partition(TOPIC, 0).append(make_batches(300))
    batches = list(LogReader(tmp_path / "log").partition(TOPIC, 0).batches())
    assert rows_of(batches, 0, 900) == records_of(batches, 0, 900)


def test_what_cannot_be_read_is_corrupt() -> None:
    batch = log_batch(make_batch([b"a", b"b"]), 7)
    found = batch.decodable()
    with pytest.raises(CorruptArenaError, match="batch at offset 7 cannot be read"):
        _native.decode_columns([found._replace(records=found.records[:-1])], 0, 100)
    with pytest.raises(CorruptArenaError, match="batch at offset 7 cannot be read"):
        _native.decode_columns([found._replace(record_count=3)], 0, 100)


@pytest.mark.parametrize(
    ("batches", "error"),
    [
        ([b"x"], TypeError),
        ([(b"x", 0, 0)], TypeError),
        ([("x", 0, 0, 1, None)], TypeError),
        ([(b"x", -1, 0, 1, None)], InvalidArgumentError),
        ([(b"x", 0, 0, -1, None)], InvalidArgumentError),
        (7, TypeError),
    ],
)
def test_arguments_that_are_no_batches(batches: list[object], error: type[Exception]) -> None:
    with pytest.raises(error):
        _native.decode_columns(batches, 0, 1)  # type: ignore[arg-type]
