# SPDX-License-Identifier: Apache-2.0
"""Random operations on the accumulator, held against a reference of plain lists and dicts.

The reference knows the records appended to each partition, in order. A drained batch must have its next records. A
batch that ends must have the result that it was given. At the end, no batch remains.

It also knows the rule of the delivery clock: a batch expires after a sender could have delivered it for the timeout,
not before. The boot clock advances in each turn, and the delivery clock in some of them, by at most as much.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from shmaccum._native import Batch, Token
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.exceptions import BufferExhaustedError, ResultExpiredError
from tests.support.accumulator import Accumulator

TOPIC = "t"
PARTITION_COUNT = 3
BATCH_SIZE = 512
BUFFER_COUNT = 12
OPERATION_COUNT = 3000
MS = 1_000_000
LINGER_NS = 10 * MS
TIMEOUT_MS = 60


BatchName = tuple[int, int]
"""Partition and seq."""


@dataclass
class Reference:
    """The expected records, their results, and how long a sender could have delivered each batch."""

    queued: dict[int, list[bytes]] = field(default_factory=lambda: {p: [] for p in range(PARTITION_COUNT)})
    expected: dict[Token, tuple[BatchResult, int] | None] = field(default_factory=dict)
    token_of: dict[bytes, Token] = field(default_factory=dict)
    batch_of: dict[bytes, BatchName] = field(default_factory=dict)
    age_ms: dict[BatchName, int] = field(default_factory=dict)
    """The ages of batches without a result."""
    expired_count: int = 0

    def appended(self, partition: int, value: bytes, token: Token) -> None:
        self.grouped(partition, value, token)
        self.expected[token] = None
        self.token_of[value] = token

    def grouped(self, partition: int, value: bytes, token: Token) -> None:
        """Add a record whose own result is not needed; `token` is any token of its batch."""
        self.queued[partition].append(value)
        self.batch_of[value] = partition, token.seq
        self.age_ms.setdefault(self.batch_of[value], 0)

    def run_clock(self, milliseconds: int) -> None:
        for batch in self.age_ms:
            self.age_ms[batch] += milliseconds

    def expire(self) -> set[BatchName]:
        """Ends the batches that are old enough, and returns them."""
        due = {batch for batch, age_ms in self.age_ms.items() if age_ms >= TIMEOUT_MS}
        for value, batch in self.batch_of.items():
            if batch in due and value in self.token_of:
                self.expected[self.token_of[value]] = (BatchResult.EXPIRED, -1)
        for partition, values in self.queued.items():
            self.queued[partition] = [value for value in values if self.batch_of[value] not in due]
        for batch in due:
            del self.age_ms[batch]
        self.expired_count += len(due)
        return due


class Player:
    """Runs one operation after the other on the accumulator and on the reference."""

    def __init__(self, arena: Arena, chance: random.Random) -> None:
        self.arena = arena
        self.chance = chance
        self.accumulator = Accumulator(arena)
        self.accumulator.become_sender()
        self.accumulator.publish_delivery_timeout(TIMEOUT_MS * MS)
        self.reference = Reference()
        self.in_flight: dict[int, list[tuple[Batch, list[bytes]]]] = {p: [] for p in range(PARTITION_COUNT)}
        self.now_ms = 1
        self.next_offset = 0
        self.number = 0

    def value(self) -> bytes:
        self.number += 1
        size = self.chance.choice([0, 10, 100, BATCH_SIZE - 90, 2 * BATCH_SIZE])
        return self.number.to_bytes(8, "big") + bytes(size)

    def append(self) -> None:
        partition, value = self.chance.randrange(PARTITION_COUNT), self.value()
        try:
            token = self.accumulator.append(TOPIC, partition, self.now_ms, None, value, max_block_ms=0)
        except BufferExhaustedError:
            return
        self.reference.appended(partition, value, token)

    def append_many(self) -> None:
        partition = self.chance.randrange(PARTITION_COUNT)
        values = [self.value()[:50] for _ in range(self.chance.randrange(1, 12))]
        if self.arena.native.state_counts()["FREE"] < 4:
            return
        runs = self.accumulator.append_many(TOPIC, partition, values)
        assert sum(count for _, count in runs) == len(values)
        tokens = [token for token, count in runs for _ in range(count)]
        for value, token in zip(values, tokens, strict=True):
            self.reference.grouped(partition, value, token)

    def turn_the_clock(self) -> None:
        """Advance the clock. A sender could deliver in a part of the time, in none of it, or in all of it."""
        step_ms = self.chance.randrange(20)
        run_ms = self.chance.choice([0, step_ms // 2, step_ms])
        self.now_ms += step_ms
        self.arena.native.set_manual_clock(self.now_ms * MS)
        self.accumulator.run_delivery_clock(run_ms * MS)
        self.reference.run_clock(run_ms)

    def expire(self) -> None:
        due = self.reference.expire()
        count, next_ns = self.accumulator.expire(TIMEOUT_MS * MS)
        assert count == len(due)
        oldest_ms = max(self.reference.age_ms.values(), default=None)
        assert next_ns == (None if oldest_ms is None else (TIMEOUT_MS - oldest_ms) * MS)

    def flush(self) -> None:
        self.accumulator.flush_begin()

    def drain(self) -> None:
        indices, _ = self.accumulator.ready(LINGER_NS, self.chance.random() < 0.2)
        batches, _ = self.accumulator.drain(indices, self.chance.choice([BATCH_SIZE, 4 * BATCH_SIZE]))
        for batch in batches:
            values = [record[3] or b"" for record in batch.decode()]
            pending = self.reference.queued[batch.partition]
            assert values == pending[: len(values)]
            del pending[: len(values)]
            self.in_flight[batch.partition].append((batch, values))

    def _oldest(self) -> tuple[int, Batch, list[bytes]] | None:
        partitions = [p for p, flights in self.in_flight.items() if flights]
        if not partitions:
            return None
        partition = self.chance.choice(partitions)
        batch, values = self.in_flight[partition].pop(0)
        return partition, batch, values

    def _end(self, values: list[bytes], result: BatchResult, base_offset: int) -> None:
        self.reference.age_ms.pop(self.reference.batch_of[values[0]], None)
        for place, value in enumerate(values):
            token = self.reference.token_of.get(value)
            if token is not None and self.reference.expected[token] is None:
                offset = base_offset + place if base_offset >= 0 else -1
                self.reference.expected[token] = (result, offset)

    def complete(self) -> None:
        taken = self._oldest()
        if taken is None:
            return
        _, batch, values = taken
        result = self.chance.choice([BatchResult.SUCCEEDED, BatchResult.SUCCEEDED, BatchResult.FAILED])
        base_offset = self.next_offset if result == BatchResult.SUCCEEDED else -1
        self.accumulator.complete(batch, result, base_offset)
        self._end(values, result, base_offset)
        self.next_offset += len(values)

    def requeue(self) -> None:
        """Only the newest batch of a partition, so that the order in the reference stays simple."""
        partitions = [p for p, flights in self.in_flight.items() if flights]
        if partitions:
            partition = self.chance.choice(partitions)
            batch, values = self.in_flight[partition].pop()
            self.accumulator.requeue(batch, (self.now_ms + self.chance.randrange(5)) * MS)
            if self.reference.batch_of[values[0]] in self.reference.age_ms:  # an expired one is removed
                self.reference.queued[partition][:0] = values

    def look(self) -> None:
        for token in self.chance.sample(list(self.reference.expected), min(5, len(self.reference.expected))):
            expected = self.reference.expected[token]
            try:
                found = self.accumulator.find(token)
            except ResultExpiredError:
                assert expected is not None
                continue
            assert (None if found is None else (found.result, found.offset_of(token))) == expected

    def finish(self) -> None:
        """Everything that is left is sent and acknowledged."""
        while any(self.in_flight.values()) or any(self.reference.queued.values()):
            self.now_ms += 10
            self.arena.native.set_manual_clock(self.now_ms * MS)
            self.flush()
            self.drain()
            self.complete()


@pytest.fixture
def player(arena_name: str, seeded: Callable[[], random.Random]) -> Iterator[Player]:
    arena = Arena.create(
        arena_name, buffer_memory=BATCH_SIZE * BUFFER_COUNT, batch_size=BATCH_SIZE, process_count=4, waiter_count=4
    )
    player = Player(arena, seeded())
    player.turn_the_clock()
    yield player
    player.accumulator.close()
    arena.close()


def test_random_operations(player: Player) -> None:
    operations = [player.append] * 6 + [player.append_many, player.turn_the_clock, player.flush, player.requeue]
    operations += [player.drain, player.complete, player.look] * 2 + [player.expire]
    for _ in range(OPERATION_COUNT):
        player.chance.choice(operations)()
    player.finish()
    assert player.arena.native.state_counts()["FREE"] == BUFFER_COUNT
    assert player.reference.expired_count > 0
