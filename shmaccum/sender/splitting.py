# SPDX-License-Identifier: Apache-2.0
"""Batches that a sink finds too large, delivered in parts (docs/decisions/0005).

The batch stays where it is, in flight, and its partition is muted, so that nothing younger overtakes it. One part at a
time is made in private memory and delivered; its result is recorded for its records, and the next part follows.

The parts are the nodes of a binary tree: a part that is refused as too large is halved, by records::

    [0, 12)                       refused
    [0, 6)    [6, 12)             accepted; refused
              [6, 9)  [9, 12)     accepted, accepted

The next part is the largest node that begins behind the last record with a result. So every sender makes
the same parts. A sender may die between delivering a part and recording its result. The next one delivers that very
part again, with the same sequences, and the sink recognises it.
"""

from __future__ import annotations

from shmaccum._native import Batch, SenderHalf
from shmaccum.exceptions import CorruptArenaError
from shmaccum.sender.lending import Lending
from shmaccum.sender.sinks.sink import WireBatch


def node_end(first_record: int, record_count: int) -> int:
    """End of the largest node of the tree over [0, record_count) that begins with `first_record`."""
    begin, end = 0, record_count
    while begin != first_record:
        middle = (begin + end) // 2
        begin, end = (begin, middle) if first_record < middle else (middle, end)
    return end


def is_part(wire: WireBatch) -> bool:
    """True for a batch that was made of a larger one."""
    return wire.record_count != wire.batch.record_count


class Splitting:
    """Batches that are being delivered in parts; parts that are to be delivered next."""

    def __init__(self, half: SenderHalf, lending: Lending) -> None:
        self._half = half
        self._lending = lending
        self._due: dict[int, WireBatch] = {}

    def partitions_due(self) -> list[int]:
        """Where a part can be delivered, besides what `ready` says."""
        return list(self._due)

    def take_due(self, partition_index: int) -> WireBatch | None:
        """The part to deliver when a sink's plan names its partition."""
        return self._due.pop(partition_index, None)

    def halve(self, wire: WireBatch) -> None:
        """It was too large, and has more than one record: its first half comes next."""
        end = wire.first_record + wire.record_count
        self._put(wire.batch, wire.first_record, (wire.first_record + end) // 2)

    def go_on(self, batch: Batch) -> None:
        """A part has its result: the next one comes, or the batch is over and its partition goes on."""
        if batch.is_over:
            self._half.mute(batch.partition_index, False)
        else:
            first_record = batch.acked_record_count
            self._put(batch, first_record, node_end(first_record, batch.record_count))

    def leave(self, batch: Batch) -> None:
        """The batch goes back to its queue; the rest of its parts is made when it is drained again."""
        self._half.mute(batch.partition_index, False)

    def clear(self) -> None:
        """Parts that were not delivered come to nothing: their batches are still in flight."""
        self._due.clear()

    def _put(self, batch: Batch, first_record: int, end: int) -> None:
        try:
            part = self._lending.part(batch, first_record, end - first_record)
        except CorruptArenaError:  # a producer appended what is no record
            self._lending.quarantine.take(batch)
            self._half.mute(batch.partition_index, False)
            return
        self._half.mute(batch.partition_index, True)
        self._due[batch.partition_index] = part
