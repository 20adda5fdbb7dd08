# SPDX-License-Identifier: Apache-2.0
"""Options of the sinks that need no broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shmaccum.config.option import INT_MAX, choice, count, duration_ms, size
from shmaccum.config.table import Options


@dataclass(frozen=True, kw_only=True)
class PlacelessSinkOptions(Options):
    """What sinks take that keep nothing on disk and speak to nobody (``memory:``, ``null:``)."""

    scope = "memory and null sinks"
    place = "open_sink or ``shmaccum sender --sink memory: -X``"

    partitions: int = count(1, "Partitions of each topic.", kafka="num.partitions")


@dataclass(frozen=True, kw_only=True)
class LogSinkOptions(Options):
    """What the segment log takes (``log:DIR``)."""

    scope = "log sink"
    place = "open_sink or ``shmaccum sender --sink log:DIR -X``"

    partitions: int = count(1, "Partitions of a topic the log does not have yet.", kafka="num.partitions")
    segment_bytes: int = size(
        "1GiB",
        "A segment that would grow beyond this is rolled.",
        kafka="log.segment.bytes",
        minimum=14,
        maximum=INT_MAX,
    )
    segment_ms: int = duration_ms(
        "7d", "A segment whose first record is older than this is rolled.", kafka="log.roll.ms", minimum=1
    )
    index_interval_bytes: int = size(
        "4KiB",
        "Bytes of a segment between two entries of its indexes.",
        kafka="log.index.interval.bytes",
        minimum=0,
        maximum=INT_MAX,
    )
    retention_bytes: int = size(
        -1,
        "Older segments of a partition beyond this are deleted; -1 keeps all.",
        kafka="log.retention.bytes",
        minimum=-1,
    )
    retention_ms: int = duration_ms(
        -1,
        "Segments whose last record is older than this are deleted; -1 keeps all. (A broker deletes after 7 days; here "
        "the log may be the only copy, so nothing is deleted that nobody asked to delete.)",
        kafka="log.retention.ms",
        minimum=-1,
    )
    retention_check_interval_ms: int = duration_ms(
        "5m",
        "How often the sender looks for segments to delete; a log may outgrow retention_bytes by what comes meanwhile.",
        kafka="log.retention.check.interval.ms",
        minimum=1,
    )
    sync: str = choice(
        "none",
        ("none", "interval", "batch"),
        "When written bytes are forced to disk: none leaves it to the kernel (which survives kill -9, not a power "
        "cut), interval does it every sync_interval_ms, batch before each acknowledgement.",
    )
    sync_interval_ms: int | None = duration_ms(
        None, "How much time a power cut may cost with sync=interval.", kafka="flush.ms", minimum=1
    )

    def contradictions(self) -> Iterator[str]:
        if self.sync == "interval" and self.sync_interval_ms is None:
            yield "sync=interval needs sync_interval_ms: say how much time a power cut may cost"
        if self.sync != "interval" and self.sync_interval_ms is not None:
            yield f"sync_interval_ms has no effect with sync={self.sync}: say sync=interval, or leave it out"
