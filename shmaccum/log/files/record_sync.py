# SPDX-License-Identifier: Apache-2.0
"""Force records to disk before the position after them is stored, from a process that is not their writer.

If a position reached the disk before its records, it would refer to other records after a power cut: the log would end
before it, and the next records would get the offsets of the lost ones.
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
    """Force the records before positions to disk, in a log whose writer forces records to disk.

    One segment per partition is enough, because the writer syncs a segment before it begins the next one. Records below
    a recovery point are on disk already. A partition without a folder is skipped.

    Args:
        directory: the log directory.
        positions: for each partition, the offset after the records that were read.

    Raises:
        OSError: if records may be lost in a crash of the host.
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
