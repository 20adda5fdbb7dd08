# SPDX-License-Identifier: Apache-2.0
"""Forcing records to disk for a position behind them, by a process that is not their writer.

A position that is on disk before its records counts others after a power cut: the log ends in front of it, and the next
records get the offsets of the lost ones.
"""

from __future__ import annotations

import bisect
import contextlib
import os
from collections.abc import Mapping

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.file_names import LOG, RECOVERY_POINTS_FILE, offset_file, offsets_with
from shmaccum.log.files.small_files import read_offsets_checkpoint, sync_file


def sync_records(directory: str, positions: Mapping[TopicPartition, int]) -> None:
    """Forces the records in front of positions to disk, in a log whose writer forces records to disk.

    That is one segment of each partition, for the writer has forced a segment before it begins the next one. What lies
    below a recovery point is on disk. A partition that is not there has nothing to force.

    Args:
        directory: the log directory.
        positions: offsets behind records that were read.

    Raises:
        OSError: records may be lost in a crash of the host.
    """
    points = read_offsets_checkpoint(os.path.join(directory, RECOVERY_POINTS_FILE))
    for place, offset in positions.items():
        folder = os.path.join(directory, str(place))
        if offset > points.get(place, 0) and os.path.isdir(folder):
            with contextlib.suppress(FileNotFoundError):  # it was deleted
                _sync_before(folder, offset)


def _sync_before(folder: str, offset: int) -> None:
    segments = offsets_with(folder, LOG)
    count = bisect.bisect_left(segments, offset)
    if count:
        sync_file(offset_file(folder, segments[count - 1], LOG))
