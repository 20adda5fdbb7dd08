# SPDX-License-Identifier: Apache-2.0
"""How the native batch loop left the partitions that it sent (native/sender/convoy.h)."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple

from shmaccum.sender.sinks.sink import Delivered

NOT_SYNCED = -1
"""In place of `LaneEnd.synced_size`: the records of a lane go whether they are on disk or not."""


class LaneState(enum.IntEnum):
    """How a convoy left a lane (native/sender/lane.h)."""

    GOES = 0
    """The next batch may be ordinary."""
    ENDS = 1
    """No ordinary batch follows: the lane looks why."""
    BROKEN = 2
    """A batch was not acked, or its fate is unknown: all behind the position go again."""


class LaneEnd(NamedTuple):
    """The place in its log where a convoy left a lane, which goes on from there, and the sums over its batches."""

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
    def of(cls, partition_index: int, report: tuple[int, ...]) -> LaneEnd:
        """As the native call tells it (native/python/sender/convoy_parts.c)."""
        state, offset, byte, leader_epoch, synced_size, *sums = report
        batch_count, record_count, size = sums
        row = partition_index, batch_count, record_count, size, 0
        return cls(state, offset, byte, leader_epoch, synced_size, Delivered.of_rows([row]))


def delivered_by(lanes: Iterable[LaneEnd]) -> Delivered:
    """The sums over all of the lanes."""
    return Delivered.of_rows(row for lane in lanes for row in lane.delivered.rows)
