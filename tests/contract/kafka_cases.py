# SPDX-License-Identifier: Apache-2.0
"""The environment of Kafka's test cases: an arena with a manual clock, and a sender.

The numbers are Kafka's. A key of 3 bytes and a value of 5 bytes make a record of 15 bytes (16 from the 65th of a
batch). The header has 61 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shmaccum import _native
from shmaccum.arena import Arena, VerifyDepth
from shmaccum.arena.results import BatchResult
from tests.support.accumulator import Accumulator

TOPIC = "test"
KEY = b"key"
VALUE = b"value"
HEADER_SIZE = 61
RECORD_SIZE = 15
BATCH_OF_1024 = 1025 + HEADER_SIZE
RECORDS_OF_1024 = 68
MS = 1_000_000
FOREVER_NS = 1 << 60


@dataclass
class Case:
    """One arena, one process that appends and sends, and one clock."""

    arena: Arena
    accumulator: Accumulator
    now_ms: int = 1

    def sleep(self, ms: int) -> None:
        """Advance the clock."""
        self.now_ms += ms
        self.arena.native.set_manual_clock(self.now_ms * MS)
        if self.accumulator.is_sender:
            self.accumulator.run_delivery_clock(ms * MS)

    def append(self, partition: int = 0, count: int = 1, value: bytes = VALUE) -> list[_native.Token]:
        """Append ``count`` of Kafka's records."""
        return [self.accumulator.append(TOPIC, partition, 0, KEY, value) for _ in range(count)]

    def ready(self, linger_ms: int = 0, *, everything: bool = False) -> list[int]:
        """Return the partition numbers that may be drained now, in ascending order."""
        indices, _ = self.accumulator.ready(linger_ms * MS, everything)
        return sorted(self.numbers(indices))

    def next_check_ms(self, linger_ms: int) -> int:
        """Return the milliseconds until another partition may become ready."""
        _, next_check_ns = self.accumulator.ready(linger_ms * MS)
        assert next_check_ns is not None
        return next_check_ns // MS

    def numbers(self, indices: list[int]) -> list[int]:
        """Return the partition numbers of the arena's partition indices."""
        partitions = self.arena.native.partitions()
        return [partitions[index][1] for index in indices]

    def drain(self, *partitions: int, size_max: int = 1 << 30) -> list[_native.Batch]:
        """Drain at most one batch of each partition."""
        indices = [self.accumulator.partition_index(TOPIC, partition) for partition in partitions]
        self.accumulator.ready(FOREVER_NS)
        batches, _ = self.accumulator.drain(indices, size_max)
        return batches

    def succeed(self, *batches: _native.Batch, base_offset: int = 0) -> None:
        """Acknowledge batches."""
        for batch in batches:
            self.accumulator.complete(batch, BatchResult.SUCCEEDED, base_offset)

    def drain_all(self) -> int:
        """Drain and acknowledge all batches. Return the number of records."""
        records = 0
        while True:
            indices, _ = self.accumulator.ready(0, is_everything_ready=True)
            batches, _ = self.accumulator.drain(indices, 1 << 30)
            if not batches:
                return records
            records += sum(batch.record_count for batch in batches)
            self.succeed(*batches)

    @property
    def free_count(self) -> int:
        """The number of free buffers."""
        return self.arena.native.state_counts()["FREE"]


@contextmanager
def case_on(name: str, *, batch_size: int, buffers: int = 16, sender: bool = True) -> Iterator[Case]:
    """A case on a new arena of ``buffers`` slots, which is verified, drained and removed at the end."""
    arena = Arena.create(
        name, buffer_memory=batch_size * buffers, batch_size=batch_size, process_count=32, waiter_count=32
    )
    accumulator = Accumulator(arena, max_block_ms=1000)
    case = Case(arena, accumulator)
    case.sleep(0)
    try:
        if sender:
            accumulator.become_sender()
        yield case
        if not sender:
            accumulator.become_sender()
        case.drain_all()
        accumulator.maintain()
        assert case.free_count == buffers
        assert arena.verify(VerifyDepth.DEEP, is_idle=True) == []
    finally:
        accumulator.close()
        arena.close()
        Arena.remove(name)
