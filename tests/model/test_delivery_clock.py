# SPDX-License-Identifier: Apache-2.0
"""Random histories of senders, outages and reboots, held against a reference that adds up deliverable time.

The rule: a batch expires after a sender could have delivered it for the timeout, and not a millisecond before, however
far the boot clock has advanced. The reference has one number for each batch and adds to it while a sender has the role
and its sink works.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from shmaccum._native import Token
from shmaccum.arena import Arena
from shmaccum.arena.delivery_span import DeliveryClockReading
from shmaccum.arena.results import BatchResult
from tests.support.accumulator import Accumulator

TOPIC = "t"
MS = 1_000_000
TIMEOUT_MS = 1000
STEP_COUNT = 1500
BUFFER_COUNT = 64
PAUSE_MAX_MS = 10**8


class History:
    """One arena, its senders, and the facts that the reference knows of each batch."""

    def __init__(self, arena: Arena, chance: random.Random) -> None:
        self.arena = arena
        self.chance = chance
        self.producer = Accumulator(arena, max_block_ms=0)
        self.sender: Accumulator | None = None
        self.now_ms = 1
        self.deliverable_ms: dict[Token, int] = {}
        self.expired_count = 0
        self.partition = 0
        self.turn(0)

    def turn(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.arena.native.set_manual_clock(self.now_ms * MS)

    # --- events

    def append(self) -> None:
        """Append a new batch if a quarter of the buffers is free."""
        if self.arena.native.state_counts()["FREE"] > BUFFER_COUNT // 4:
            self.partition = (self.partition + 1) % BUFFER_COUNT
            token = self.producer.append(TOPIC, self.partition, self.now_ms, None, b"value")
            self.producer.flush_begin()
            self.deliverable_ms[token] = 0

    def work(self) -> None:
        """A sender works for a while, and checks at random times."""
        sender = self.sender or self.begin()
        for _ in range(self.chance.randrange(1, 4)):
            step_ms = self.chance.choice([1, 10, 200])
            self.turn(step_ms)
            sender.run_delivery_clock(step_ms * MS)
            for token in self.deliverable_ms:
                self.deliverable_ms[token] += step_ms
            self.expire()

    def stand(self) -> None:
        """An outage, or a time without a sender: only the boot clock advances."""
        self.turn(self.chance.choice([1, TIMEOUT_MS, PAUSE_MAX_MS]))
        if self.sender is not None:
            self.expire()

    def begin(self) -> Accumulator:
        self.sender = Accumulator(self.arena)
        self.sender.become_sender()
        self.sender.publish_delivery_timeout(TIMEOUT_MS * MS)
        return self.sender

    def leave(self) -> None:
        """Close the sender. Its successor continues with the spans."""
        if self.sender is not None:
            self.sender.close()
            self.sender = None

    # --- rules

    def expire(self) -> None:
        assert self.sender is not None
        clock = DeliveryClockReading.of(self.arena.native)
        slots = self.arena.slot_table()
        for token, age_ms in self.deliverable_ms.items():
            slot = slots[token.slot_index]
            shown_ns = clock.left_ns(int(slot["created_ns"]), int(slot["delivery_stamp_ms"]))
            assert shown_ns == max(TIMEOUT_MS - age_ms, 0) * MS
        del slots
        due = {token for token, age_ms in self.deliverable_ms.items() if age_ms >= TIMEOUT_MS}
        count, next_ns = self.sender.expire(TIMEOUT_MS * MS)
        assert count == len(due)
        for token in due:
            found = self.producer.find(token)
            assert found is not None
            assert found.result is BatchResult.EXPIRED
            del self.deliverable_ms[token]
        assert all(self.producer.find(token) is None for token in self.deliverable_ms)
        left_ms = [TIMEOUT_MS - age_ms for age_ms in self.deliverable_ms.values()]
        assert next_ns == (min(left_ms) * MS if left_ms else None)
        self.expired_count += count


@pytest.fixture
def history(arena_name: str, seeded: Callable[[], random.Random]) -> Iterator[History]:
    with Arena.create(
        arena_name, buffer_memory=BUFFER_COUNT * 512, batch_size=512, process_count=4, waiter_count=4
    ) as arena:
        history = History(arena, seeded())
        yield history
        sender = history.sender or history.begin()
        sender.abort(True)
        sender.maintain()
        history.leave()
        history.producer.close()


def test_a_batch_expires_after_the_deliverable_time_alone(history: History) -> None:
    moves = [history.append] * 4 + [history.work] * 4 + [history.stand] * 3 + [history.leave]
    for _ in range(STEP_COUNT):
        history.chance.choice(moves)()
    assert history.expired_count > STEP_COUNT // 100
