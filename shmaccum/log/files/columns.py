# SPDX-License-Identifier: Apache-2.0
"""Records of many batches as columns, in the buffers of Apache Arrow, for callers that read many records.

No Arrow library is needed here. ``pyarrow.Array.from_buffers`` accepts a `BytesColumn`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from shmaccum import _native
from shmaccum.exceptions import CorruptArenaError, CorruptLogError
from shmaccum.log.files.log_batch import Decodable


class Decoded(Protocol):
    """A batch whose records are converted to columns: a `LogBatch`, or a batch that is stored elsewhere."""

    @property
    def is_control(self) -> bool:
        """True for a broker's transaction marker."""

    @property
    def segment(self) -> str:
        """The place of the batch, for error messages."""

    @property
    def position(self) -> int:
        """The position in that place."""

    @property
    def size(self) -> int:
        """The size in bytes."""

    def decodable(self) -> Decodable:
        """The buffer and the numbers from which native code decodes the records."""


class BytesColumn(NamedTuple):
    """Cells of bytes. The buffers are those of an Arrow binary array, or, with valid UTF-8, of a string array."""

    cell_count: int
    null_count: int
    validity: bytes
    """One bit per cell, the lowest first. 0 means null."""
    offsets: bytes
    """int32, one more than there are cells: the start of each cell in the data, and the end of the last one."""
    data: bytes


class HeaderColumn(NamedTuple):
    """The headers of each row, as an Arrow list of structs. A row without headers is null."""

    null_count: int
    validity: bytes
    offsets: bytes
    """int32, one more than there are rows: the range of keys and values of each row."""
    key: BytesColumn
    value: BytesColumn

    @classmethod
    def of(cls, decoded: Any) -> HeaderColumn:
        """The column from the result of native code."""
        null_count, validity, offsets, key, value = decoded
        return cls(null_count, validity, offsets, BytesColumn(*key), BytesColumn(*value))


class RecordColumns(NamedTuple):
    """Records, one per row."""

    row_count: int
    offsets: bytes
    """int64."""
    timestamps_us: bytes
    """int64, microseconds since 1970."""
    timestamp_types: bytes
    """int32: 0 for the producer's time, 1 for the log's."""
    key: BytesColumn
    value: BytesColumn
    headers: HeaderColumn | None

    @classmethod
    def of(cls, decoded: Any) -> RecordColumns:
        """The columns from the result of native code."""
        row_count, offsets, timestamps_us, timestamp_types, key, value, headers = decoded
        found = None if headers is None else HeaderColumn.of(headers)
        return cls(row_count, offsets, timestamps_us, timestamp_types, BytesColumn(*key), BytesColumn(*value), found)


def decode_columns(
    batches: Sequence[Decoded], first_offset: int, end_offset: int, *, has_headers: bool = False
) -> RecordColumns:
    """The records of these batches with offsets in [first_offset, end_offset), without transaction markers.

    Args:
        batches: batches of one partition, in order, with at most 2 GiB of keys and 2 GiB of values.
        first_offset, end_offset: the range of their records.
        has_headers: also return the headers.

    Raises:
        CodecMissingError: if no package for a compression is installed.
        CorruptLogError: if records cannot be read, although the CRC of their batch may be right.
        InvalidArgumentError: if the records are larger than the columns can be.
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
