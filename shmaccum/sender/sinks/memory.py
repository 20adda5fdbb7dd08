# SPDX-License-Identifier: Apache-2.0
"""``memory:`` stores what was delivered in lists of this process, and rejects duplicates and gaps like a broker.

It is for tests and notebooks. Everything is lost when the process ends. Until then, only aborted transactions are
removed. Records of an open transaction are hidden.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shmaccum import _native
from shmaccum.common.format.batch_header import ATTRIBUTES_POSITION, TRANSACTIONAL
from shmaccum.sender.sinks.placeless import PlacelessSink
from shmaccum.sender.sinks.sink import (
    IDENTITY_SIZE,
    IN_FLIGHT_MAX,
    Ack,
    Ended,
    ProducerIds,
    SinkTransactions,
    Verdict,
    WireBatch,
    ended,
)

SEQUENCE_COUNT = 2**31
DUPLICATE_SEQUENCE_NUMBER = 46
OUT_OF_ORDER_SEQUENCE_NUMBER = 45


class Delivered(NamedTuple):
    """A delivered record."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass
class _ProducerState:
    """The state of a producer in a partition, as a broker stores it (ProducerStateEntry)."""

    epoch: int
    next_sequence: int
    recent: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=IN_FLIGHT_MAX))
    """(base sequence, record count, base offset) of the last batches."""

    def offset_of(self, wire: WireBatch) -> int | None:
        """Return the base offset of a batch that was stored before; None if it was not, or is forgotten."""
        for base_sequence, record_count, base_offset in self.recent:
            if (base_sequence, record_count) == (wire.base_sequence, wire.record_count):
                return base_offset
        return None


@dataclass
class _Partition:
    batches: list[tuple[int, bytes]] = field(default_factory=list)
    """(base offset, wire bytes)"""
    end_offset: int = 0
    shown_count: int = 0
    """Batches that do not belong to an open transaction."""
    producers: dict[int, _ProducerState] = field(default_factory=dict)


class MemorySink(PlacelessSink, ProducerIds, SinkTransactions):
    """Stores wire bytes by topic and partition."""

    kind = "memory"

    def __init__(self, place: str = "", **options: Any) -> None:
        super().__init__(place, **options)
        self.producer_ids = self
        self.transactions = self
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._identity = os.urandom(IDENTITY_SIZE)
        self._next_producer_id = itertools.count()

    # --- delivered records

    def topic_partitions(self) -> list[tuple[str, int]]:
        """Return the topics and partitions with deliveries, sorted."""
        return sorted(self._partitions)

    def wire_batches(self, topic: str, partition: int = 0) -> list[bytes]:
        """Return the batches of a partition as they were delivered, including those of an open transaction."""
        return [wire_bytes for _, wire_bytes in self._partition(topic, partition).batches]

    def records(self, topic: str, partition: int = 0) -> list[Delivered]:
        """Return the records of a partition, in the order of their offsets."""
        found = self._partition(topic, partition)
        return [
            Delivered(base_offset + record[0], *record[1:])
            for base_offset, wire_bytes in found.batches[: found.shown_count]
            for record in _native.decode_batch(wire_bytes)
        ]

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """Return the values of the records of a partition."""
        return [record.value for record in self.records(topic, partition)]

    def _partition(self, topic: str, partition: int) -> _Partition:
        return self._partitions.get((topic, partition), _Partition())

    # --- the contract

    @property
    def identity(self) -> bytes:
        return self._identity

    def new_producer_id(self) -> tuple[int, int]:
        return next(self._next_producer_id), 0

    def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
        return [self._append(wire) for wire in batches]

    def _append(self, wire: WireBatch) -> Ack:
        partition = self._partitions.setdefault((wire.topic, wire.partition), _Partition())
        if wire.producer_id >= 0 and (refusal := _check_sequence(partition, wire)):
            return refusal
        base_offset = partition.end_offset
        content = b"".join(wire.buffers)
        partition.batches.append((base_offset, content))
        partition.end_offset += wire.record_count
        if not content[ATTRIBUTES_POSITION] & TRANSACTIONAL:
            partition.shown_count = len(partition.batches)
        _remember(partition, wire, base_offset)
        return Ack(wire, Verdict.DELIVERED, base_offset)

    def end_transaction(self, producer_id: int, producer_epoch: int, *, is_commit: bool) -> Ended:
        """Show the records, or discard them. A marker takes an offset, as in Kafka's log."""
        for partition in self._partitions.values():
            if partition.shown_count < len(partition.batches):
                if not is_commit:
                    del partition.batches[partition.shown_count :]
                partition.shown_count = len(partition.batches)
                partition.end_offset += 1
        return ended(self, producer_id, producer_epoch, is_commit=is_commit)


def _check_sequence(partition: _Partition, wire: WireBatch) -> Ack | None:
    """Return None if the batch is the next one, like ProducerAppendInfo and ProducerStateEntry of a broker."""
    known = partition.producers.get(wire.producer_id)
    if known is None:  # a broker that does not know a producer accepts any sequence (KIP-360)
        return None
    if wire.producer_epoch == known.epoch:
        base_offset = known.offset_of(wire)
        if base_offset is not None:
            return Ack(wire, Verdict.DELIVERED, base_offset, error_code=DUPLICATE_SEQUENCE_NUMBER)
    expected = known.next_sequence if wire.producer_epoch == known.epoch else 0
    if wire.producer_epoch < known.epoch or wire.base_sequence != expected:
        return Ack(
            wire,
            Verdict.OUT_OF_SEQUENCE,
            error_code=OUT_OF_ORDER_SEQUENCE_NUMBER,
            message=f"sequence {wire.base_sequence} of {wire.topic}-{wire.partition} arrived instead of {expected}",
        )
    return None


def _remember(partition: _Partition, wire: WireBatch, base_offset: int) -> None:
    if wire.producer_id < 0:
        return
    state = partition.producers.get(wire.producer_id)
    if state is None or state.epoch != wire.producer_epoch:
        state = partition.producers[wire.producer_id] = _ProducerState(wire.producer_epoch, 0)
    state.next_sequence = (wire.base_sequence + wire.record_count) % SEQUENCE_COUNT
    state.recent.append((wire.base_sequence, wire.record_count, base_offset))
