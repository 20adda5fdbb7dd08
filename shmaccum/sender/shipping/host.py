# SPDX-License-Identifier: Apache-2.0
"""The shipper as its sink sees it, and the rate limit."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Sequence

from shmaccum.common import clock
from shmaccum.common.clock import NS_PER_S
from shmaccum.config import SenderOptions
from shmaccum.sender.host import Repeats
from shmaccum.sender.shipping.log_stream import LogStream

logger = logging.getLogger("shmaccum.shipper")


class ShipperHost:
    """The shipper, as its sink sees it (`sinks.sink.SinkHost`)."""

    transactions = None
    """None, because only an arena has transactions."""
    durability = "sync"
    """A written position is on disk, so the records before it have to be on disk at the sink."""
    sync_interval_ms = None

    def __init__(
        self, streams: Sequence[LogStream], wake: Callable[[], object], directory: str, options: SenderOptions
    ) -> None:
        self._streams = streams
        self._wake = wake
        self._repeats = Repeats()
        self.arena_name = f"ship-{os.path.basename(directory)}"
        self._directory = directory
        self.options = options

    @property
    def permissions(self) -> tuple[int, int, int]:
        """The permissions of the shipped log, so that its copy is not open to more users."""
        found = os.stat(self._directory)
        return found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)

    def topic_partition(self, partition_index: int) -> tuple[str, int]:
        stream = self._streams[partition_index]
        return stream.route.topic, stream.place.partition

    def partition_count(self, topic: str) -> int:
        return max((stream.place.partition + 1 for stream in self._streams if stream.route.topic == topic), default=0)

    def report(self, sentence: str) -> None:
        if count := self._repeats.count_to_report(sentence, clock.monotonic_ns()):
            logger.warning("%s%s", sentence, "" if count == 1 else f" ({count} times)")

    def show_life(self) -> None:
        """Do nothing: a shipper has no heartbeat, and is not replaced."""

    def end_backoff(self, partition_index: int) -> None:
        self._streams[partition_index].end_pause()

    def set_available(self, partition_index: int, is_available: bool) -> None:
        """Do nothing: a record of a log has its partition already."""

    def wake(self) -> None:
        self._wake()


class RateLimit:
    """A limit in bytes per second. After a batch, nothing is sent until its bytes fit the limit. A batch may have any
    size.
    """

    def __init__(self, bytes_per_s: int | None) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_at_ns = 0

    def spend(self, size: int, now_ns: int) -> None:
        """Count bytes that are sent now."""
        if self._bytes_per_s is not None:
            self._free_at_ns = max(self._free_at_ns, now_ns) + size * NS_PER_S // self._bytes_per_s

    def wait_ns(self, now_ns: int) -> int:
        """Return the time for which nothing may be sent; 0 if a batch may be sent now."""
        return max(self._free_at_ns - now_ns, 0)
