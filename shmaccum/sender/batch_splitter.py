# SPDX-License-Identifier: Apache-2.0
"""Splits batches that a sink rejects as too large, and delivers the parts (docs/decisions/0005).

The batch stays in flight in its slot, and its partition is muted, so that no younger batch overtakes it. One part at a
time is made in private memory and delivered. Its result is recorded for its records, and the next part follows.

The parts are the nodes of a binary tree. A part that is rejected as too large is halved, by records::

    [0, 12)                       rejected
    [0, 6)    [6, 12)             accepted; rejected
              [6, 9)  [9, 12)     accepted, accepted

The next part is the largest node that begins after the last record with a result. So every sender makes the same
parts. If a sender dies after the delivery of a part and before it records the result, the next sender delivers the same
part again, with the same sequences, and the sink recognises it.
"""

from __future__ import annotations

from shmaccum._native import Batch, SenderHalf
from shmaccum.exceptions import CorruptArenaError
from shmaccum.sender.sink_batches import SinkBatches
from shmaccum.sender.sinks.sink import WireBatch


def node_end(first_record: int, record_count: int) -> int:
    """Return the end of the largest node of the tree over [0, record_count) that begins with `first_record`."""
    begin, end = 0, record_count
    while begin != first_record:
        middle = (begin + end) // 2
        begin, end = (begin, middle) if first_record < middle else (middle, end)
    return end


def is_part(wire: WireBatch) -> bool:
    """True for a batch that was made of a larger one."""
    return wire.record_count != wire.batch.record_count


class BatchSplitter:
    """The batches that are being delivered in parts, and their next parts."""

    def __init__(self, half: SenderHalf, sink_batches: SinkBatches) -> None:
        self._half = half
        self._sink_batches = sink_batches
        self._due: dict[int, WireBatch] = {}

    def partitions_due(self) -> list[int]:
        """Return the partitions with a part to deliver, in addition to the result of `ready`."""
        return list(self._due)

    def take_due(self, partition_index: int) -> WireBatch | None:
        """Return the part to deliver when a sink's plan names its partition."""
        return self._due.pop(partition_index, None)

    def halve(self, wire: WireBatch) -> None:
        """Halve a batch that was too large, and has more than one record. Its first half is next."""
        end = wire.first_record + wire.record_count
        self._put(wire.batch, wire.first_record, (wire.first_record + end) // 2)

    def continue_batch(self, batch: Batch) -> None:
        """Continue after a part has its result: make the next part, or unmute the partition if the batch is over."""
        if batch.is_over:
            self._half.mute(batch.partition_index, False)
        else:
            first_record = batch.acked_record_count
            self._put(batch, first_record, node_end(first_record, batch.record_count))

    def leave(self, batch: Batch) -> None:
        """Unmute the partition of a batch that is requeued. Its other parts are made when it is drained again."""
        self._half.mute(batch.partition_index, False)

    def clear(self) -> None:
        """Discard parts that were not delivered: their batches are still in flight."""
        self._due.clear()

    def _put(self, batch: Batch, first_record: int, end: int) -> None:
        try:
            part = self._sink_batches.part(batch, first_record, end - first_record)
        except CorruptArenaError:  # a producer appended an invalid record
            self._sink_batches.quarantine.take(batch)
            self._half.mute(batch.partition_index, False)
            return
        self._half.mute(batch.partition_index, True)
        self._due[batch.partition_index] = part
