# SPDX-License-Identifier: Apache-2.0
"""The offsets of a consumer group as the start of a stream, and the progress of a stream as offsets of a group.

Spark's checkpoint stays authoritative. The group only sets the start of a query without a checkpoint, and shows its lag
in group tools. The driver is not a member: each commit opens the group, and fails while the group has members.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator

from shmaccum.exceptions import GroupBusyError
from shmaccum.log.files import LogReader
from shmaccum.log.groups.membership import Assignors, Membership
from shmaccum.log.groups.offsets_file import Committed
from shmaccum.spark.positions import Positions

logger = logging.getLogger(__name__)

COMMIT_TIMEOUT_S = 5.0


@contextlib.contextmanager
def _opened(reader: LogReader, group_id: str) -> Iterator[Membership]:
    """Open the group without joining it."""
    group = Membership(reader.path, group_id, count_of=lambda _topic: 0, assignors=Assignors({}))
    try:
        yield group
    finally:
        group.leave()


def read_committed(reader: LogReader, group_id: str) -> Positions:
    """Return the committed offsets of a group.

    Raises:
        GroupModeError: a server coordinates the group, so the stream could not commit.
        LogForbiddenError: the user may not write the files of the group.
        CorruptLogError: the offsets file is invalid.
    """
    with _opened(reader, group_id) as group:
        found = {place: group.committed(place) for place in reader.topic_partitions()}
    return {place: one.offset for place, one in found.items() if one is not None}


def commit(reader: LogReader, group_id: str, positions: Positions) -> None:
    """Commit positions for a group. If a stopped process holds its files, log a warning instead.

    Raises:
        ConsumerStateError: the group has members.
        GroupModeError, LogForbiddenError: as `read_committed`.
        OSError: the file cannot be written.
    """
    time_ms = time.time_ns() // 1_000_000
    offsets = {place: Committed(offset, -1, "", time_ms) for place, offset in positions.items()}
    try:
        with _opened(reader, group_id) as group:
            group.commit(offsets, COMMIT_TIMEOUT_S)
    except GroupBusyError as error:
        logger.warning("the progress of a stream was not committed for the group %r: %s", group_id, error)
