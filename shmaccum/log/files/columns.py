# SPDX-License-Identifier: Apache-2.0
"""Records of many batches as columns, in the buffers of Apache Arrow: for whoever reads more than a few of them.

No Arrow library is needed here. `BytesColumn` is what ``pyarrow.Array.from_buffers`` takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from shmaccum import _native
from shmaccum.exceptions import CorruptArenaError, CorruptLogError
from shmaccum.log.files.log_batch import Decodable


class Decoded(Protocol):
    """A batch whose records become columns: a `LogBatch`, or one that lies elsewhere."""

    @property
    def is_control(self) -> bool:
        """True for a broker's transaction marker."""

    @property
    def segment(self) -> str:
        """Where it lies, for errors."""

    @property
    def position(self) -> int:
        """The position in that buffer."""

    @property
    def size(self) -> int:
        """The size in bytes."""

    def decodable(self) -> Decodable:
        """The buffer and numbers from which the native core decodes records."""


class BytesColumn(NamedTuple):
    """Cells of bytes; the three buffers as Arrow lays out a binary array, or, of valid UTF-8, a string array."""

    cell_count: int
    null_count: int
    validity: bytes
    """A bit per cell, the lowest first; 0 is null."""
    offsets: bytes
    """int32, one more than there are cells: where in the data each begins, and the last one ends."""
    data: bytes


class HeaderColumn(NamedTuple):
    """The headers of each row, as Arrow lays out a list of structs. A row without any is null."""

    null_count: int
    validity: bytes
    offsets: bytes
    """int32, one more than there are rows: which of the keys and values are a row's."""
    key: BytesColumn
    value: BytesColumn

    @classmethod
    def of(cls, decoded: Any) -> HeaderColumn:
        """The column that the native core has decoded."""
        null_count, validity, offsets, key, value = decoded
        return cls(null_count, validity, offsets, BytesColumn(*key), BytesColumn(*value))


class RecordColumns(NamedTuple):
    """Records, a row each."""

    row_count: int
    offsets: bytes
    """int64."""
    timestamps_us: bytes
    """int64, microseconds since 1970."""
    timestamp_types: bytes
    """int32: 0 the producer's time, 1 the log's."""
    key: BytesColumn
    value: BytesColumn
    headers: HeaderColumn | None

    @classmethod
    def of(cls, decoded: Any) -> RecordColumns:
        """The columns that the native core has decoded."""
        row_count, offsets, timestamps_us, timestamp_types, key, value, headers = decoded
        found = None if headers is None else HeaderColumn.of(headers)
        return cls(row_count, offsets, timestamps_us, timestamp_types, BytesColumn(*key), BytesColumn(*value), found)


def decode_columns(
    batches: Sequence[Decoded], first_offset: int, end_offset: int, *, has_headers: bool = False
) -> RecordColumns:
    """The records of these batches with offsets in [first_offset, end_offset), without those of transaction markers.

    Args:
        batches: of one partition, in order; together at most 2 GiB of keys, and as much of values.
        first_offset, end_offset: which of their records.
        has_headers: also the headers.

    Raises:
        CodecMissingError: no package for a compression is installed.
        CorruptLogError: a batch's CRC may be right, but its records cannot be read.
        InvalidArgumentError: they are larger than the columns can be.
    """
    readable = [batch for batch in batches if not batch.is_control]
    try:
        decoded = _native.decode_columns(
            [batch.decodable() for batch in readable], first_offset, end_offset, has_headers
        )
    except CorruptArenaError as error:
        first, last = readable[0], readable[-1]  # the error names one of these batches
        raise CorruptLogError(first.segment, first.position, last.position + last.size, str(error)) from None
    return RecordColumns.of(decoded)
