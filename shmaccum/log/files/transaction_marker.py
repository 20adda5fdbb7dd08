# SPDX-License-Identifier: Apache-2.0
"""The marker that ends a transaction in a partition: a control batch with one record (Kafka's EndTransactionMarker).

::

    attributes   transactional, control
    producer     id and epoch of the producer; no sequence
    record       key   | version i16 = 0 | type i16: 0 abort, 1 commit |
                 value | version i16 = 0 | coordinator epoch i32 = 0   |

A marker takes one offset. Other control batches of a broker (types from 2 on) do not end a transaction.
"""

from __future__ import annotations

import struct

from shmaccum._native import decode_records
from shmaccum.common.format.batch_header import (
    CONTROL,
    HEADER_SIZE,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    read_header,
    sealed_header,
)
from shmaccum.exceptions import CorruptArenaError
from shmaccum.log.files.log_batch import LogBatch

ABORT, COMMIT = 0, 1
NO_SEQUENCE = -1
_RECORD = struct.Struct(">5s hh B hi B")
_KEY = struct.Struct(">hh")
_IN_FRONT_OF_KEY = bytes([32, 0, 0, 0, 8])
"""Varints: the size (16 bytes), attributes, the deltas of time and of offset, and the size of the key (4 bytes)."""
_SIZE_OF_VALUE = 12
"""The varint of a size of 6 bytes."""


def marker_batch(producer_id: int, producer_epoch: int, *, is_commit: bool, timestamp_ms: int) -> LogBatch:
    """The marker of a producer's transaction, ready to be appended."""
    kind = COMMIT if is_commit else ABORT
    record = _RECORD.pack(_IN_FRONT_OF_KEY, 0, kind, _SIZE_OF_VALUE, 0, 0, 0)
    attributes = TRANSACTIONAL | CONTROL
    header = BatchHeader(
        0, 0, -1, MAGIC, 0, attributes, 0, timestamp_ms, timestamp_ms, producer_id, producer_epoch, NO_SEQUENCE, 1
    )
    view = memoryview(sealed_header(header, record) + record)
    return LogBatch(read_header(view), view, "", 0)


def decision_of(header: BatchHeader, records: memoryview) -> bool | None:
    """True for a marker that commits, False for one that aborts, None for another control batch.

    Args:
        header: the header of a control batch.
        records: the bytes after the header.
    """
    try:
        found = decode_records(records, tuple, header.base_offset, header.base_timestamp_ms, header.record_count, None)
    except (CorruptArenaError, ValueError):
        return None
    key = found[0][2] if found else None
    if key is None or len(key) < _KEY.size:
        return None
    return {COMMIT: True, ABORT: False}.get(_KEY.unpack_from(key)[1])


def decision_in(batch: memoryview, header: BatchHeader) -> bool | None:
    """As `decision_of`, for a whole batch."""
    return decision_of(header, batch[HEADER_SIZE : header.size])
