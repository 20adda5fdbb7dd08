# SPDX-License-Identifier: Apache-2.0
"""``null:`` takes everything and keeps nothing: to measure the way there."""

from __future__ import annotations

from collections.abc import Sequence

from shmaccum.exceptions import InvalidArgumentError
from shmaccum.sinks.sink import IDENTITY_SIZE, Ack, SinkHost, SynchronousSink, Verdict, WireBatch


class NullSink(SynchronousSink):
    """Acknowledges each batch at once, with offsets that count what came.

    Args:
        place: empty.
        partitions: how many partitions each topic has (Kafka's num.partitions).
    """

    def __init__(self, place: str = "", *, partitions: int = 1) -> None:
        super().__init__()
        if place:
            raise InvalidArgumentError(f"null: has no place, so {place!r} means nothing: leave it out")
        if partitions < 1:
            raise InvalidArgumentError(f"partitions is {partitions}, it must be at least 1")
        self._partition_count = partitions
        self._ends: dict[int, int] = {}

    @property
    def identity(self) -> bytes:
        return b"null".ljust(IDENTITY_SIZE, b"\0")

    def open(self, host: SinkHost) -> None:
        """Nothing to open."""

    def partition_count(self, topic: str) -> int:  # noqa: ARG002 - the same for each
        return self._partition_count

    def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
        return [Ack(wire, Verdict.DELIVERED, self._advance(wire)) for wire in batches]

    def _advance(self, wire: WireBatch) -> int:
        base_offset = self._ends.get(wire.partition_index, 0)
        self._ends[wire.partition_index] = base_offset + wire.record_count
        return base_offset
