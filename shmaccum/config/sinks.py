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

    partitions: int = count(1, "The number of partitions of each topic.", kafka="num.partitions")


@dataclass(frozen=True, kw_only=True)
class LogSinkOptions(CompressionOptions):
    """Options of the segment log (``log:DIR``)."""

    scope = "log sink"
    place = "open_sink or ``shmaccum sender --sink log:DIR -X``"

    partitions: int = count(1, "The number of partitions of a new topic.", kafka="num.partitions")
    segment_bytes: int = size(
        "1GiB",
        "The log starts a new segment before a segment exceeds this size.",
        kafka="log.segment.bytes",
        minimum=14,
        maximum=INT_MAX,
    )
    segment_ms: int = duration_ms(
        "7d",
        "The log starts a new segment when the first record of the active segment is older than this.",
        kafka="log.roll.ms",
        minimum=1,
        maximum=LONG_MAX,
    )
    index_interval_bytes: int = size(
        "4KiB",
        "The number of bytes of a segment between two entries of its indexes.",
        kafka="log.index.interval.bytes",
        minimum=0,
        maximum=INT_MAX,
    )
    message_timestamp_type: str = choice(
        "CreateTime",
        ("CreateTime", "LogAppendTime"),
        "The timestamp of a record. CreateTime: set by its producer. LogAppendTime: the time of the append to the log.",
        kafka="log.message.timestamp.type",
    )
    retention_bytes: int = size(
        -1,
        "The log deletes the oldest segments of a partition that has more bytes than this. -1 means no limit.",
        kafka="log.retention.bytes",
        minimum=-1,
    )
    retention_ms: int = duration_ms(
        -1,
        "The log deletes segments whose last record is older than this. -1 means no limit. (A broker deletes after 7 "
        "days by default. This log may be the only copy, so it deletes nothing by default.)",
        kafka="log.retention.ms",
        minimum=-1,
        maximum=LONG_MAX,
    )
    retention_check_interval_ms: int = duration_ms(
        "5m",
        "The interval at which the sender looks for segments to delete. Between two checks, a log may exceed "
        "retention_bytes.",
        kafka="log.retention.check.interval.ms",
        minimum=1,
    )
    sync: str = choice(
        "none",
        ("none", "interval", "batch"),
        "The time at which bytes are forced to disk. With none, the kernel decides (bytes survive kill -9 but not a "
        "power cut). interval: every sync_interval_ms. batch: before each acknowledgement. If unset, a sink follows "
        "the durability of its arena (interval: interval, sync: batch). It rejects a lower level.",
    )
    verify_written: str = choice(
        "auto",
        ("auto", "true", "false"),
        "Verify the checksum of each batch after it is written and before it is acknowledged. A batch that another "
        "process changed meanwhile is cut off and quarantined. auto: if sync is interval or batch.",
    )
    sync_interval_ms: int | None = duration_ms(
        None, "With sync=interval, a power cut may lose the records of this much time.", kafka="flush.ms", minimum=1
    )

    def contradictions(self) -> Iterator[str]:
        if self.sync == "interval" and self.sync_interval_ms is None:
            yield "sync=interval needs sync_interval_ms: set the time whose records a power cut may lose"
        if self.sync != "interval" and self.sync_interval_ms is not None:
            yield f"sync_interval_ms has no effect with sync={self.sync}: set sync=interval, or omit it"
