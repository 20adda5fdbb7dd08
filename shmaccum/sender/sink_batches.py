# SPDX-License-Identifier: Apache-2.0
"""The drained batches that the sink uses until their acks.

Before the sink gets a batch, the checksum that its producers updated with each append is compared with its bytes. The
times of its header are in no such checksum. If they are far apart, the records are decoded, and must have the same
largest time. A damaged batch is quarantined: it gets its result, and its slot stays BAD for inspection.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from shmaccum import _native
from shmaccum._native import Batch, SenderHalf, crc32c, records_summary
from shmaccum.arena.places import Places
from shmaccum.common.format.batch_header import CRC_START, HEADER_SIZE, read_header
from shmaccum.common.units import format_count
from shmaccum.exceptions import BatchInUseError, CorruptArenaError
from shmaccum.sender.sinks.sink import WireBatch

logger = logging.getLogger("shmaccum.sender")

ORDINARY_SPAN_MS = 60_000
"""An ordinary batch is sealed before its times are so far apart."""


def damage_of(batch: Batch, buffers: tuple[memoryview, ...]) -> str | None:
    """Return a clause about the damage of a batch; None if its bytes are as they were appended."""
    checksum = crc32c(buffers[0][CRC_START:])
    for buffer in buffers[1:]:
        checksum = crc32c(buffer, checksum)
    if checksum != batch.crc:
        return f"its checksum is {checksum:#010x} and should be {batch.crc:#010x}"
    if not _times_are_sound(batch, buffers):
        return (
            f"its header says that its records are of {batch.base_timestamp_ms} to {batch.max_timestamp_ms} ms since "
            "1970, and they are not"
        )
    return None


def _times_are_sound(batch: Batch, buffers: tuple[memoryview, ...]) -> bool:
    if 0 <= batch.max_timestamp_ms - batch.base_timestamp_ms <= ORDINARY_SPAN_MS:
        return True
    try:
        records = b"".join(buffers)[HEADER_SIZE:]
        _, last_ms, _ = records_summary(records, batch.base_timestamp_ms, batch.record_count)
    except CorruptArenaError:
        return False
    return last_ms == batch.max_timestamp_ms


def release_views(buffers: Iterable[memoryview]) -> bool:
    """Release views. Return False if an object still uses one of them (such as a numpy array)."""
    try:
        for buffer in buffers:
            buffer.release()
    except BufferError:
        return False
    return True


class Quarantine:
    """Removes damaged batches from the queues, and logs them at ERROR.

    Attributes:
        count: the number of batches so far.
    """

    def __init__(self, half: SenderHalf, native: _native.Arena, places: Places) -> None:
        self._half = half
        self._native = native
        self._places = places
        self.count = 0

    def take(self, batch: Batch, damage: str = "its bytes are not valid records") -> None:
        """Give a batch the result RESULT_CORRUPT; its slot stays BAD.

        Args:
            batch: drained, and without views of it.
            damage: a clause about it.
        """
        records = format_count(batch.record_count, "record")
        place = self._place(batch)
        sentence = f"a batch of {place} with {records} is quarantined in slot {batch.slot_index}: {damage}"
        logger.error("%s. Some process writes where it must not; shmaccum recover can export the batch", sentence)
        self._native.record_error(sentence)
        self._half.quarantine(batch)
        self.count += 1

    def _place(self, batch: Batch) -> str:
        try:
            return self._places.name(batch.partition_index)
        except CorruptArenaError:
            return f"a partition that does not exist ({batch.partition_index})"


class SinkBatches:
    """The batches that the sink has now.

    Attributes:
        quarantine: receives damaged batches.
    """

    def __init__(self, half: SenderHalf, native: _native.Arena, places: Places) -> None:
        self._places = places
        self._added_ns: dict[WireBatch, int] = {}
        self.quarantine = Quarantine(half, native, places)

    def __len__(self) -> int:
        return len(self._added_ns)

    def __iter__(self) -> Iterator[WireBatch]:
        return iter(self._added_ns)

    def add(self, wires: Iterable[WireBatch], now_ns: int) -> None:
        """Add batches that are being delivered."""
        self._added_ns.update(dict.fromkeys(wires, now_ns))

    def part(self, batch: Batch, first_record: int, record_count: int) -> WireBatch:
        """Return some records of a batch as a batch of their own, in private memory."""
        wire_bytes = batch.part(first_record, record_count)
        header = read_header(wire_bytes)
        topic, partition = self._places[batch.partition_index]
        return WireBatch(
            topic,
            partition,
            batch.partition_index,
            (memoryview(wire_bytes),),
            len(wire_bytes),
            record_count,
            batch.producer_id,
            batch.producer_epoch,
            header.base_sequence,
            header.max_timestamp_ms,
            batch.attempt_count,
            batch,
            first_record,
        )

    def remove(self, wires: Iterable[WireBatch]) -> list[int | None]:
        """Remove acked batches. Return the time at which each was added; None if the sink did not have it."""
        added_ns = []
        for wire in wires:
            time_ns = self._added_ns.pop(wire, None)
            if time_ns is not None:
                release_views(wire.buffers)
            added_ns.append(time_ns)
        return added_ns

    def has_partition(self, partition_index: int) -> bool:
        """True while the sink has a batch of the partition."""
        return any(wire.partition_index == partition_index for wire in self._added_ns)

    def remove_all(self) -> list[WireBatch]:
        """Remove all batches, after the sink was closed."""
        wires, self._added_ns = list(self._added_ns), {}
        for wire in wires:
            release_views(wire.buffers)
        return wires

    def whole(self, batch: Batch) -> WireBatch | None:
        """Return a batch as a sink gets it; None if it is damaged, and is quarantined now."""
        try:
            place = self._places[batch.partition_index]
            buffers = batch.buffers
        except CorruptArenaError:  # there is no such partition, or its chain of buffers is too short
            self.quarantine.take(batch)
            return None
        damage = damage_of(batch, buffers)
        if damage is not None:
            release_views(buffers)
            self.quarantine.take(batch, damage)
            return None
        return WireBatch.of(batch, place, buffers)


def requeue_all(half: SenderHalf, wires: Iterable[WireBatch], retry_at_ns: int) -> list[WireBatch]:
    """Requeue undelivered batches. Return the batches with views that are still in use, which cannot be requeued."""
    return [wire for wire in wires if not wire.batch.is_over and not _requeue(half, wire, retry_at_ns)]


def _requeue(half: SenderHalf, wire: WireBatch, retry_at_ns: int) -> bool:
    try:
        half.requeue(wire.batch, retry_at_ns)
    except BatchInUseError:
        return False
    return True
