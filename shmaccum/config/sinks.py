# SPDX-License-Identifier: Apache-2.0
"""Options of the sinks that need no broker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shmaccum.config.compression import CompressionOptions
from shmaccum.config.option import INT_MAX, LONG_MAX, choice, count, duration_ms, size
from shmaccum.config.table import Options


@dataclass(frozen=True, kw_only=True)
class PlacelessSinkOptions(Options):
    """Options of the memory and null sinks (``memory:``, ``null:``)."""

    scope = "memory and null sinks"
    place = "open_sink or ``shmaccum sender --sink memory: -X``"

    partitions: int = count(1, "Partitions of each topic.", kafka="num.partitions")


@dataclass(frozen=True, kw_only=True)
class LogSinkOptions(CompressionOptions):
    """Options of the segment log (``log:DIR``)."""

    scope = "log sink"
    place = "open_sink or ``shmaccum sender --sink log:DIR -X``"

    partitions: int = count(1, "Partitions of a topic that the log does not have yet.", kafka="num.partitions")
    segment_bytes: int = size(
        "1GiB",
        "The log begins a new segment before one would grow beyond this size.",
        kafka="log.segment.bytes",
        minimum=14,
        maximum=INT_MAX,
    )
    segment_ms: int = duration_ms(
        "7d",
        "The log begins a new segment when the first record of the present one is older than this.",
        kafka="log.roll.ms",
        minimum=1,
        maximum=LONG_MAX,
    )
    index_interval_bytes: int = size(
        "4KiB",
        "Bytes of a segment between two entries of its indexes.",
        kafka="log.index.interval.bytes",
        minimum=0,
        maximum=INT_MAX,
    )
    message_timestamp_type: str = choice(
        "CreateTime",
        ("CreateTime", "LogAppendTime"),
        "The time of a record. CreateTime: as its producer says. LogAppendTime: the log sets the time of the append.",
        kafka="log.message.timestamp.type",
    )
    retention_bytes: int = size(
        -1,
        "The log deletes the oldest segments of a partition that has more bytes than this. -1: none.",
        kafka="log.retention.bytes",
        minimum=-1,
    )
    retention_ms: int = duration_ms(
        -1,
        "The log deletes segments whose last record is older than this. -1: none. (A broker deletes after 7 "
        "days; this log may be the only copy, so it deletes only when it is told to.)",
        kafka="log.retention.ms",
        minimum=-1,
        maximum=LONG_MAX,
    )
    retention_check_interval_ms: int = duration_ms(
        "5m",
        "The sender looks for segments to delete once in this time. Between two looks a log may outgrow "
        "retention_bytes.",
        kafka="log.retention.check.interval.ms",
        minimum=1,
    )
    sync: str = choice(
        "none",
        ("none", "interval", "batch"),
        "The moment at which bytes are forced to disk. none: the kernel decides, which survives kill -9 but "
        "no power cut; interval: every sync_interval_ms; batch: before each acknowledgement. Unset, a sink "
        "follows the durability of its arena (interval: interval, sync: batch), and refuses a lower level.",
    )
    verify_written: str = choice(
        "auto",
        ("auto", "true", "false"),
        "Compare the checksum of each batch again after it was written, and before it is acknowledged. A batch that "
        "another process changed in between is cut off and quarantined. auto: when sync is interval or batch.",
    )
    sync_interval_ms: int | None = duration_ms(
        None, "With sync=interval: a power cut may cost the records of this time.", kafka="flush.ms", minimum=1
    )

    def contradictions(self) -> Iterator[str]:
        if self.sync == "interval" and self.sync_interval_ms is None:
            yield "sync=interval needs sync_interval_ms: say how much time a power cut may cost"
        if self.sync != "interval" and self.sync_interval_ms is not None:
            yield f"sync_interval_ms has no effect with sync={self.sync}: say sync=interval, or leave it out"
