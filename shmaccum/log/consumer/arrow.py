# SPDX-License-Identifier: Apache-2.0
"""Batches of a log as tables of Apache Arrow. No Python code runs per record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import CodecMissingError
from shmaccum.log.files.columns import BytesColumn, HeaderColumn, RecordColumns, decode_columns
from shmaccum.log.files.log_batch import LogBatch


class BatchRun(NamedTuple):
    """Batches of one partition, in order."""

    place: TopicPartition
    first_offset: int
    """Records before this offset are left out."""
    batches: Sequence[LogBatch]


def _pyarrow() -> Any:
    try:
        import pyarrow  # an optional package, and slow to import
    except ImportError:
        raise CodecMissingError("poll_arrow needs the package pyarrow: pip install pyarrow") from None
    return pyarrow


def schema() -> Any:
    """The columns of `Consumer.poll_arrow`."""
    pa = _pyarrow()
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.schema(
        [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("timestamp", pa.timestamp("us", "UTC")),
            ("timestamp_type", pa.int32()),
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("headers", pa.list_(header)),
        ]
    )


def table(runs: Sequence[BatchRun]) -> Any:
    """The records of runs of batches as one `pyarrow.Table`.

    Raises:
        CodecMissingError: if pyarrow, or a package for a compression, is not installed.
        CorruptLogError: if the records of a batch cannot be read.
    """
    pa, columns = _pyarrow(), schema()
    return pa.Table.from_batches([_record_batch(columns, run) for run in runs], columns)


def _record_batch(columns: Any, run: BatchRun) -> Any:
    pa = _pyarrow()
    found = decode_columns(run.batches, run.first_offset, run.batches[-1].next_offset, has_headers=True)
    count = found.row_count
    arrays = [
        pa.repeat(pa.scalar(run.place.topic, pa.string()), count),
        pa.repeat(pa.scalar(run.place.partition, pa.int32()), count),
        *_numbers(columns, found),
        _bytes_array(columns.field("key").type, found.key),
        _bytes_array(columns.field("value").type, found.value),
        _header_array(columns.field("headers").type, count, found.headers),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _numbers(columns: Any, found: RecordColumns) -> list[Any]:
    pa = _pyarrow()
    buffers = {
        "offset": found.offsets,
        "timestamp": found.timestamps_us,
        "timestamp_type": found.timestamp_types,
    }
    return [
        pa.Array.from_buffers(columns.field(name).type, found.row_count, [None, pa.py_buffer(buffer)])
        for name, buffer in buffers.items()
    ]


def _bytes_array(kind: Any, column: BytesColumn) -> Any:
    pa = _pyarrow()
    buffers = [pa.py_buffer(buffer) for buffer in (column.validity, column.offsets, column.data)]
    return pa.Array.from_buffers(kind, column.cell_count, buffers, column.null_count)


def _header_array(kind: Any, count: int, column: HeaderColumn | None) -> Any:
    pa = _pyarrow()
    assert column is not None
    pair = kind.value_type
    keys, values = (
        _bytes_array(pair.field("key").type, column.key),
        _bytes_array(pair.field("value").type, column.value),
    )
    pairs = pa.StructArray.from_arrays([keys, values], fields=[pair.field("key"), pair.field("value")])
    buffers = [pa.py_buffer(column.validity), pa.py_buffer(column.offsets)]
    return pa.Array.from_buffers(kind, count, buffers, column.null_count, children=[pairs])
