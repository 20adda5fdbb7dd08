# SPDX-License-Identifier: Apache-2.0
"""Conversion of log batches to Arrow record batches with Spark's schema, without Python code per record."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import groupby
from typing import Any, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql.types import StructType

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import CorruptLogError, OffsetOutOfRangeError
from shmaccum.log.files import LogBatch, LogReader
from shmaccum.log.files.columns import BytesColumn, HeaderColumn, RecordColumns, decode_columns
from shmaccum.log.files.reader import Cursor
from shmaccum.log.files.walk import BaseOffsetRange
from shmaccum.spark.columns import arrow_schema, source_schema
from shmaccum.spark.planning import LogRange

logger = logging.getLogger(__name__)


class Sized(Protocol):
    """The attributes of a batch that runs need."""

    @property
    def record_count(self) -> int: ...

    @property
    def size(self) -> int: ...


SizedType = TypeVar("SizedType", bound=Sized)

ROWS_PER_RECORD_BATCH = 10_000
"""Spark's own spark.sql.execution.arrow.maxRecordsPerBatch."""
SIZE_PER_RECORD_BATCH = 16 << 20
BLOCK_SIZE = 512 << 10
"""The bytes of a log that are read at once into a record batch. They and the columns fit in a core's cache."""


def record_batches(reader: LogReader, wanted: LogRange, *, has_headers: bool, is_strict: bool) -> Iterator[Any]:
    """Yield the records of a range as `pyarrow.RecordBatch`, in offset order.

    Args:
        reader: a reader of the log directory.
        wanted: the range.
        has_headers: whether to include the column ``headers``.
        is_strict: whether damaged or missing records raise an error. If not, they are skipped with a warning.

    Raises:
        OffsetOutOfRangeError, CorruptLogError: see `is_strict`.
        CodecMissingError: the codec of a compressed batch is not installed.
    """
    partition = reader.partition(*wanted.place)
    start = wanted.start if is_strict else max(wanted.start, partition.log_start_offset)
    if start >= wanted.end:
        return
    builder = _Builder(wanted, has_headers)
    with closing(partition.cursor(start, block_size=BLOCK_SIZE)) as cursor:
        for kind, parts in groupby(_parts(cursor, wanted, has_headers), key=type):
            if kind is RecordColumns:
                yield from map(builder.build_columns, parts)
            else:
                for run in runs(parts):
                    yield from _built(builder, run, is_strict)
        if is_strict and cursor.offset < wanted.end:
            raise OffsetOutOfRangeError(
                f"{partition.place} ends at offset {cursor.offset}, but {wanted.end} existed when the read was "
                "planned; set failOnDataLoss=false to read the available records"
            )


def _parts(cursor: Cursor, wanted: LogRange, has_headers: bool) -> Iterator[Any]:
    """Yield the range in offset order: the plain batches of each block as columns, and other batches unchanged."""
    offsets = BaseOffsetRange(wanted.start, wanted.end - 1)
    for batch in cursor.poll():
        if batch.base_offset >= wanted.end:
            return
        columns = cursor.columns(batch, offsets, has_headers=has_headers)
        yield batch if columns is None else columns
        if cursor.offset >= wanted.end:
            return


def _built(builder: _Builder, run: list[LogBatch], is_strict: bool) -> list[Any]:
    """Return a run as a record batch. If one of its batches cannot be decoded, return one for each of the others."""
    try:
        return [builder.build(run)]
    except CorruptLogError as error:
        if is_strict:
            raise
        if len(run) == 1:
            logger.warning("skipped: %s", error)
            return []
    return [built for batch in run for built in _built(builder, [batch], is_strict)]


def runs(batches: Iterable[SizedType]) -> Iterator[list[SizedType]]:
    """Yield the batches in runs of the size of one Arrow record batch."""
    run: list[SizedType] = []
    row_count = size = 0
    for batch in batches:
        if run and (row_count >= ROWS_PER_RECORD_BATCH or size + batch.size > SIZE_PER_RECORD_BATCH):
            yield run
            run, row_count, size = [], 0, 0
        run.append(batch)
        row_count += batch.record_count
        size += batch.size
    if run:
        yield run


class _Builder:
    """Builds the record batches of a range."""

    def __init__(self, wanted: LogRange, has_headers: bool) -> None:
        self._wanted = wanted
        self._has_headers = has_headers
        self._columns = ColumnBuilder(source_schema(has_headers=has_headers))

    def build(self, run: list[LogBatch]) -> Any:
        columns = decode_columns(run, self._wanted.start, self._wanted.end, has_headers=self._has_headers)
        return self.build_columns(columns)

    def build_columns(self, columns: RecordColumns) -> Any:
        return self._columns.build(columns, self._wanted.place)


class ColumnBuilder:
    """Makes Arrow record batches with a schema of Spark."""

    def __init__(self, schema: StructType) -> None:
        self.schema = arrow_schema(schema)
        self._repeated: tuple[TopicPartition, Any, Any] | None = None

    def build(self, columns: RecordColumns, place: TopicPartition, others: Mapping[str, Any] | None = None) -> Any:
        """Returns the record batch of one partition's records.

        Args:
            columns: the columns of the records.
            place: the topic-partition of the records.
            others: the arrays of further columns.
        """
        arrays = {**dict(self._arrays(columns, place)), **(others or {})}
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema)

    def _arrays(self, columns: RecordColumns, place: TopicPartition) -> Iterator[tuple[str, Any]]:
        count = columns.row_count
        yield "key", _bytes_array(pa.binary(), columns.key)
        yield "value", _bytes_array(pa.binary(), columns.value)
        topics, partitions = self._places(place, count)
        yield "topic", topics
        yield "partition", partitions
        yield "offset", _number_array(pa.int64(), count, columns.offsets)
        yield "timestamp", _number_array(self.schema.field("timestamp").type, count, columns.timestamps_us)
        yield "timestampType", _number_array(pa.int32(), count, columns.timestamp_types)
        if columns.headers is not None:
            yield "headers", self._headers_array(count, columns.headers)

    def _places(self, place: TopicPartition, count: int) -> tuple[Any, Any]:
        """Returns the columns topic and partition, usually as slices of the arrays of a larger record batch."""
        if self._repeated is None or self._repeated[0] != place or len(self._repeated[1]) < count:
            topics = pa.repeat(pa.scalar(place.topic, pa.string()), count)
            partitions = pa.repeat(pa.scalar(place.partition, pa.int32()), count)
            self._repeated = (place, topics, partitions)
        _, topics, partitions = self._repeated
        return topics.slice(0, count), partitions.slice(0, count)

    def _headers_array(self, count: int, headers: HeaderColumn) -> Any:
        kind = self.schema.field("headers").type
        entries = pa.StructArray.from_arrays(
            [_text_array(headers.key), _bytes_array(pa.binary(), headers.value)], fields=list(kind.value_type)
        )
        validity = pa.py_buffer(headers.validity) if headers.null_count else None
        buffers = [validity, pa.py_buffer(headers.offsets)]
        return pa.Array.from_buffers(kind, count, buffers, headers.null_count, children=[entries])


def _number_array(kind: Any, count: int, numbers: bytes) -> Any:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(numbers)])


def _bytes_array(kind: Any, column: BytesColumn) -> Any:
    validity = pa.py_buffer(column.validity) if column.null_count else None
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind, column.cell_count, buffers, column.null_count)


def _text_array(column: BytesColumn) -> Any:
    """Return the column as text. As in Java, bytes from other producers that are not UTF-8 are replaced."""
    array = _bytes_array(pa.string(), column)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        cells = _bytes_array(pa.binary(), column).to_pylist()
        return pa.array([cell.decode(errors="replace") for cell in cells], pa.string())
    return array
