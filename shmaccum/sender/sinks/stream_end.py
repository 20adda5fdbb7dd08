# SPDX-License-Identifier: Apache-2.0
"""How the native batch loop left the partitions that it sent (native/sender/batch_loop.h)."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from shmaccum.sender.sinks.sink import Delivered

NOT_SYNCED = -1
"""In place of `StreamEnd.synced_size`: the records of a stream go whether they are on disk or not."""


class StreamState(enum.IntEnum):
    """How the batch loop left a stream (native/sender/partition_stream.h)."""

    GOES = 0
    """The next batch may be ordinary."""
    ENDS = 1
    """No ordinary batch follows: the stream looks why."""
    BROKEN = 2
    """A batch was not acked, or its fate is unknown: all behind the position go again."""


class StreamEnd(NamedTuple):
    """The place in its log where the batch loop left a stream, and the sums over its batches."""

    state: int
    offset: int
    """On disk, as the next two."""
    byte: int
    """Of the segment, where the batch with the offset begins."""
    leader_epoch: int
    synced_size: int
    """Bytes of the segment that were forced to disk; NOT_SYNCED where that is not asked for."""
    delivered: Delivered

    @classmethod
    def of(cls, partition_index: int, report: tuple[int, ...]) -> StreamEnd:
        """As the native call tells it (native/python/sender/batch_loop_parts.c)."""
        state, offset, byte, leader_epoch, synced_size, *sums = report
        batch_count, record_count, size = sums
        row = partition_index, batch_count, record_count, size, 0
        return cls(state, offset, byte, leader_epoch, synced_size, Delivered.of_rows([row]))


def delivered_by(streams: Iterable[StreamEnd]) -> Delivered:
    """The sums over all of the streams."""
    return Delivered.of_rows(row for stream in streams for row in stream.delivered.rows)
