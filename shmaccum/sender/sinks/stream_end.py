# SPDX-License-Identifier: Apache-2.0
"""The state in which the native batch loop left the partitions that it sent (native/sender/batch_loop.h)."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from shmaccum.sender.sinks.sink import Delivered

NOT_SYNCED = -1
"""The `StreamEnd.synced_size` of a stream whose records are sent even if they are not on disk."""


class StreamState(enum.IntEnum):
    """The state in which the batch loop left a stream (native/sender/partition_stream.h)."""

    GOES = 0
    """The next batch may be ordinary."""
    ENDS = 1
    """No ordinary batch follows. The stream finds the reason."""
    BROKEN = 2
    """A batch was not acked, or its outcome is unknown: all batches after the position are sent again."""


class StreamEnd(NamedTuple):
    """The place in its log where the batch loop left a stream, and the sums over its batches."""

    state: int
    offset: int
    """The position that is on disk, like `byte` and `leader_epoch`."""
    byte: int
    """The position in the segment at which the batch with the offset begins."""
    leader_epoch: int
    synced_size: int
    """Bytes of the segment that were forced to disk; NOT_SYNCED if that is not required."""
    delivered: Delivered

    @classmethod
    def of(cls, partition_index: int, report: tuple[int, ...]) -> StreamEnd:
        """Return the state from a report of the native call (native/python/sender/batch_loop_parts.c)."""
        state, offset, byte, leader_epoch, synced_size, *sums = report
        batch_count, record_count, size = sums
        row = partition_index, batch_count, record_count, size, 0
        return cls(state, offset, byte, leader_epoch, synced_size, Delivered.of_rows([row]))


def delivered_by(streams: Iterable[StreamEnd]) -> Delivered:
    """Return the sums over all of the streams."""
    return Delivered.of_rows(row for stream in streams for row in stream.delivered.rows)
