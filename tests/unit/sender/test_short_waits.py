# SPDX-License-Identifier: Apache-2.0
"""Which wait follows which batches, and what producers see of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum.common.clock import NS_PER_MS
from shmaccum.sender.backoff import NEVER_NS
from shmaccum.sender.short_waits import BUSY_NS, ShortWaits

BATCH_SIZE = 16 * 1024
SHORT_NS = NS_PER_MS
FULL, HALF, FEW = BATCH_SIZE // 2 + 1, BATCH_SIZE // 16, BATCH_SIZE // 16 - 1
"""More than half of a buffer; the size from which a batch no longer has few records; and one byte less."""


class Published:
    """An arena that records what producers see."""

    def __init__(self) -> None:
        self.geometry = {"batch_size": BATCH_SIZE}
        self.last: object = None

    def set_sender_short_wait(self, wait_us: int) -> None:
        self.last = wait_us

    def set_sender_asleep(self, is_asleep: bool) -> None:
        self.last = "asleep" if is_asleep else "awake"


def waits(linger_ns: int = 0) -> tuple[ShortWaits, Published]:
    native: Any = Published()
    return ShortWaits(native, linger_ns), native


@pytest.mark.parametrize(
    ("sender_ms", "size", "linger_ms", "wait_ms", "published_us"),
    [
        (20, FULL, -1, 1, 0),
        (20, FULL - 1, -1, 5, 5_000),
        (3, HALF, -1, 3, 3_000),
        (20, HALF, 2, 2, 2_000),
        (20, HALF, 8, 5, 5_000),
        (20, HALF, 0, 1, 0),
        (20, FEW, 0, 1, 1_000),
        (0, HALF, 20, 1, 0),
    ],
)
def test_the_next_wait_follows_from_the_batches_that_were_sent(
    sender_ms: int, size: int, linger_ms: int, wait_ms: int, published_us: int
) -> None:
    short_waits, native = waits(sender_ms * NS_PER_MS)
    short_waits.record_sent(size, linger_ms * NS_PER_MS if linger_ms >= 0 else -1, 7)
    assert short_waits.depth == (wait_ms * NS_PER_MS, published_us)
    sink: Any = None
    assert short_waits.begin(7 + BUSY_NS - 1, sink) == 7 + BUSY_NS - 1 + wait_ms * NS_PER_MS
    assert native.last == published_us


def test_of_several_batches_the_largest_and_the_shortest_linger_that_was_set_count() -> None:
    short_waits, _ = waits(20 * NS_PER_MS)
    batches: Any = [
        SimpleNamespace(size=size, batch=SimpleNamespace(linger_ns=linger_ns))
        for size, linger_ns in ((1, 4 * NS_PER_MS), (HALF, -1), (1, 3 * NS_PER_MS))
    ]
    short_waits.sent(batches, 0)
    assert short_waits.depth == (3 * NS_PER_MS, 3_000)


def test_a_spill_is_followed_by_a_short_wait() -> None:
    short_waits, _ = waits(20 * NS_PER_MS)
    short_waits.record_sent(HALF, -1, 0)
    short_waits.spilled(BUSY_NS)
    sink: Any = None
    assert short_waits.begin(2 * BUSY_NS - 1, sink) == 2 * BUSY_NS - 1 + SHORT_NS


@pytest.mark.parametrize(("is_full", "published"), [(False, "asleep"), (True, 0)])
def test_a_sender_that_sent_nothing_lately_sleeps(is_full: bool, published: object) -> None:
    short_waits, native = waits()
    sink: Any = SimpleNamespace(peer=SimpleNamespace(is_full=is_full))
    assert short_waits.begin(BUSY_NS, sink) == NEVER_NS
    assert native.last == published
    short_waits.end()
    assert native.last == "awake"
