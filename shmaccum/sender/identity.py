# SPDX-License-Identifier: Apache-2.0
"""The arena's producer id: where it comes from, and the new epochs of partitions that have to start over (KIP-360).

The id belongs to the arena, not to a sender. The next sender uses it, so that the sink recognises the batches of a dead
sender. A new id is acquired if the arena has none, or if another sink gave it. The new sink knows none of the
sequences, so all batches get new ones.

After a crash of the host, the arena may assign sequences a second time. A broker would drop the new batches as
duplicates, so the arena acquires another id; batches with a sequence keep it. A sink that compares the records of
duplicates would reject such a batch instead of dropping it. For such a sink, the id stays. The id of a transactional
producer also stays: its sink begins a new epoch for each sender.

A batch that is rejected as out of sequence, although it was sent as the oldest of its partition, is certainly not in
the sink. A batch before it is missing there (it expired, or was rejected), so the sink will accept no sequence of this
epoch. The partition waits until none of its batches is in flight, and starts over at 0 in the next epoch.
"""

from __future__ import annotations

from shmaccum._native import SenderHalf
from shmaccum.common.format.batch_header import PRODUCER_EPOCH_MAX
from shmaccum.sender.host import Host
from shmaccum.sender.sink_batches import SinkBatches
from shmaccum.sender.sinks.sink import NO_PRODUCER_ID, Sink


class ProducerIdentity:
    """Gives the arena a producer id, and partitions new epochs."""

    def __init__(self, half: SenderHalf, host: Host, sink: Sink, sink_batches: SinkBatches) -> None:
        self._half = half
        self._native = host.arena.native
        self._sink = sink
        self._sink_batches = sink_batches
        self._ids = sink.producer_ids if host.options.enable_idempotence else None
        self._is_transactional = host.transactions is not None
        self._is_known = False
        self._waiting: set[int] = set()

    @property
    def is_known(self) -> bool:
        """True once the arena has an id of this sink. Until then, batches may lose their sequences."""
        return self._is_known

    def acquire(self) -> bool:
        """Return True if batches may be drained, or False while the sink is acquiring an id."""
        if not self._is_known or not (self._ids is None or self._ids.knows_producer_id):
            self._is_known = self._is_usable() or self._ask()
        if self._waiting:
            self._start_over_where_possible()
        return self._is_known

    def start_over(self, partition_index: int) -> None:
        """Mute a partition whose sequences are not accepted any more, until it can start in a new epoch."""
        self._half.mute(partition_index, True)
        self._waiting.add(partition_index)

    def renew(self, producer_id: int, producer_epoch: int) -> None:
        """Start every partition over with this producer id and epoch, if they are new.

        Requires that a transaction is over, and that the arena has no batch.
        """
        if (producer_id, producer_epoch) != self._native.producer_identity[:2]:
            self._half.set_producer_id(producer_id, producer_epoch)
            self._half.resequence()

    def take_epoch(self, partition_index: int) -> tuple[int, int] | None:
        """Return producer id and an epoch for the batches of a partition in the overflow only.

        The arena continues in the following epoch, and its own batches of the partition start over there. The result
        is None while the sink is acquiring another id, because the epochs of this one are used up.
        """
        producer_id, epoch, _ = self._native.producer_identity
        if producer_id < 0 or epoch + 2 > PRODUCER_EPOCH_MAX:
            self._is_known = self._ask()
            return None
        self._half.set_producer_id(producer_id, epoch + 2)
        self._half.resequence(partition_index)
        return producer_id, epoch + 1

    def _is_usable(self) -> bool:
        producer_id, _, identity = self._native.producer_identity
        is_ours = producer_id >= 0 and identity == self._sink.identity
        if self._ids is None or not is_ours or not self._ids.knows_producer_id:
            return False
        return self._is_transactional or self._ids.compares_records or not self._native.sequences_are_in_doubt

    def _ask(self) -> bool:
        answer = NO_PRODUCER_ID if self._ids is None else self._ids.new_producer_id()
        if answer is None:
            return False
        if self._native.producer_identity[2] != self._sink.identity:
            self._half.resequence()
        self._half.set_producer_id(*answer, self._sink.identity)
        return True

    def _start_over_where_possible(self) -> None:
        free = {index for index in self._waiting if not self._sink_batches.has_partition(index)}
        if not free or not self._next_epoch():
            return
        for partition_index in free:
            self._half.resequence(partition_index)
            self._half.mute(partition_index, False)
        self._waiting -= free

    def _next_epoch(self) -> bool:
        """Return False while the sink is acquiring another id, because the epochs of this one are used up."""
        producer_id, epoch, _ = self._native.producer_identity
        if producer_id >= 0 and epoch < PRODUCER_EPOCH_MAX:
            self._half.set_producer_id(producer_id, epoch + 1)
            return True
        self._is_known = self._ask()
        return self._is_known
