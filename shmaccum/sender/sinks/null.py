# SPDX-License-Identifier: Apache-2.0
"""``null:`` accepts everything and stores nothing, for measurements.

After the first delivery of a partition, the sender appends its ordinary batches in C, as for a log
(docs/decisions/0071). The log is ``/dev/null``: it has no indexes and no end.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from shmaccum._native import IndexFileEnd, IndexPosition, LogEnd, SegmentEnd
from shmaccum.sender.sinks.placeless import PlacelessSink
from shmaccum.sender.sinks.sink import (
    IDENTITY_SIZE,
    Ack,
    DeliveredRow,
    Ended,
    LogEnds,
    SinkHost,
    SinkTransactions,
    Verdict,
    WireBatch,
    ended,
)

ENDLESS = 2**62
"""A number of bytes, offsets and milliseconds that is never reached."""


class NullSink(PlacelessSink, LogEnds, SinkTransactions):
    """Acknowledges each batch at once, with offsets that count the records."""

    kind = "null"

    def __init__(self, place: str = "", **options: Any) -> None:
        super().__init__(place, **options)
        self._segments: dict[int, SegmentEnd] = {}
        self._descriptor = -1
        self.log_ends: dict[int, LogEnd] = {}
        self.fast_path = self
        self.transactions = self

    @property
    def identity(self) -> bytes:
        return b"null".ljust(IDENTITY_SIZE, b"\0")

    def open(self, host: SinkHost) -> None:
        if host.transactions is None and type(self).write is NullSink.write:  # an overridden `write` sees each batch
            self._descriptor = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)

    def close(self, timeout_s: float) -> None:
        super().close(timeout_s)
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
        return [Ack(wire, Verdict.DELIVERED, self._advance(wire)) for wire in batches]

    def appended(self, rows: Sequence[DeliveredRow]) -> None:
        """Do nothing: nothing is stored."""

    def end_transaction(self, producer_id: int, producer_epoch: int, *, is_commit: bool) -> Ended:
        """End at once: nothing is stored."""
        return ended(None, producer_id, producer_epoch, is_commit=is_commit)

    def end_of(self, partition_index: int) -> SegmentEnd:
        """Return the state of a partition. Its next offset is its record count."""
        return self._segments.setdefault(partition_index, SegmentEnd())

    def _advance(self, wire: WireBatch) -> int:
        segment = self.end_of(wire.partition_index)
        base_offset = segment.next_offset
        segment.next_offset += wire.record_count
        if self._descriptor >= 0:
            self._open_end(wire.partition_index, segment)
        return base_offset

    def _open_end(self, partition_index: int, segment: SegmentEnd) -> None:
        """Start a segment, which can hold 2**31 offsets."""
        segment.descriptor, segment.size = self._descriptor, 0
        position = IndexPosition()
        position.base_offset, position.interval = segment.next_offset, ENDLESS
        index = IndexFileEnd()
        index.descriptor = self._descriptor
        self.log_ends[partition_index] = LogEnd(segment, position, index, index, {}, tuple, None, 0, ENDLESS, ENDLESS)
