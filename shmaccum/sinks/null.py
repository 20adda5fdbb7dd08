# SPDX-License-Identifier: Apache-2.0
"""``null:`` takes everything and keeps nothing: to measure the way there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shmaccum.sinks.placeless import PlacelessSink
from shmaccum.sinks.sink import IDENTITY_SIZE, Ack, Ended, Verdict, WireBatch


class NullSink(PlacelessSink):
    """Acknowledges each batch at once, with offsets that count what came."""

    kind = "null"
    takes_transactions = True

    def __init__(self, place: str = "", **options: Any) -> None:
        super().__init__(place, **options)
        self._ends: dict[int, int] = {}

    @property
    def identity(self) -> bytes:
        return b"null".ljust(IDENTITY_SIZE, b"\0")

    def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
        return [Ack(wire, Verdict.DELIVERED, self._advance(wire)) for wire in batches]

    def end_transaction(self, producer_id: int, producer_epoch: int, *, is_commit: bool) -> Ended:
        """Nothing is kept."""
        return self._ended(producer_id, producer_epoch, is_commit=is_commit)

    def _advance(self, wire: WireBatch) -> int:
        base_offset = self._ends.get(wire.partition_index, 0)
        self._ends[wire.partition_index] = base_offset + wire.record_count
        return base_offset
