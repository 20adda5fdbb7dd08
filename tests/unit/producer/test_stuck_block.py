# SPDX-License-Identifier: Apache-2.0
"""max_block_ms and stuck_block_ms: how long a send waits for a buffer, in each kind of producer.

On a busy machine each wait takes longer than its timeout. So these tests compare the deadline of each check by a
waiting send, and the timeout of each sleep. They compare the clock with lower bounds only.
``python -m tests.isolation longest-block`` measures the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum import Producer, _native, aio
from shmaccum.arena import Arena
from shmaccum.common.clock import NS_PER_MS
from shmaccum.exceptions import BufferExhaustedError
from shmaccum.logging import ArenaHandler
from shmaccum.producer.buffer_wait import BufferWaiter, limit_sentence
from tests.support.accumulator import Accumulator
from tests.support.arenas import fill, stuck_topic

DEAD, BUSY, LIVE = "dead", "busy", "live"
VALUE = b"v" * 3000
"""One record fills a batch."""
LONG_MS = 600_000


@pytest.fixture
def stuck(arena_name: str) -> Iterator[Arena]:
    """An arena with a stuck topic and a topic that has used its share. Records are delivered only at the end."""
    topics = dict.fromkeys((DEAD, BUSY, LIVE), 1)
    with (
        Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", waiter_count=64, topics=topics) as arena,
        Accumulator(arena) as sender,
        stuck_topic(sender, DEAD, VALUE),
    ):
        fill(sender, BUSY, VALUE)
        yield arena


@pytest.fixture
def blocks_ns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The total times that a send may wait, as it determined them in its checks."""
    found: list[int] = []
    deadline_of = BufferWaiter._deadline_of

    def noted(waiter: BufferWaiter, place: _native.BufferWait, deadline_ns: int) -> int:
        end_ns = deadline_of(waiter, place, deadline_ns)
        found.append(end_ns - place.joined_ns)
        return end_ns

    monkeypatch.setattr(BufferWaiter, "_deadline_of", noted)
    return found


# --- a send that fails, in each kind of producer: its message


def by_thread(arena: Arena, topic: str, **options: Any) -> str:
    producer = Producer(arena, **options)
    try:
        with pytest.raises(BufferExhaustedError) as full:
            producer.send(topic, VALUE, partition=0)
    finally:
        producer.close(0)
    return str(full.value)


def by_many(arena: Arena, topic: str, **options: Any) -> str:
    producer = Producer(arena, **options)
    try:
        with pytest.raises(BufferExhaustedError) as full:
            producer.send_many(topic, [VALUE], partition=0)
    finally:
        producer.close(0)
    return str(full.value)


def by_task(arena: Arena, topic: str, **options: Any) -> str:
    async def run() -> str:
        producer = aio.Producer(arena, **options)
        await producer.start()
        try:
            with pytest.raises(BufferExhaustedError) as full:
                await producer.send(topic, VALUE, partition=0)
        finally:
            await producer.close(0)
        return str(full.value)

    return asyncio.run(run())


def by_handler(arena: Arena, topic: str, **options: Any) -> str:
    handler = ArenaHandler(arena, topic, close_timeout_ms=0, **options)
    with contextlib.redirect_stderr(io.StringIO()) as output:
        handler.handle(logging.makeLogRecord({"name": "app", "msg": VALUE.decode()}))
        handler.close()
    assert handler.drop_count == 1
    return output.getvalue()


WAYS = [by_thread, by_many, by_task, by_handler]
Way = Callable[..., str]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("stuck_block_ms", "max_block_ms", "block_ms"),
    [(0, LONG_MS, 0), (120, LONG_MS, 120), ("30ms", 60, 30), (LONG_MS, 30, 30), (None, 30, 30), (0, 0, 0)],
)
def test_a_send_to_a_stuck_partition_waits_for_the_shorter_time(
    stuck: Arena, blocks_ns: list[int], way: Way, stuck_block_ms: Any, max_block_ms: int, block_ms: int
) -> None:
    begin_ns = time.monotonic_ns()
    message = way(stuck, DEAD, max_block_ms=max_block_ms, stuck_block_ms=stuck_block_ms)
    assert time.monotonic_ns() - begin_ns >= block_ms * NS_PER_MS
    assert f"max blocking time {block_ms} ms: partition 0 of topic 'dead' has been stuck for" in message
    assert blocks_ns
    assert max(blocks_ns) <= block_ms * NS_PER_MS
    if block_ms < max_block_ms:
        assert set(blocks_ns) == {block_ms * NS_PER_MS}, "it counts from the beginning of the wait"


@pytest.mark.parametrize("way", WAYS)
def test_other_topics_wait_for_max_block_ms(stuck: Arena, blocks_ns: list[int], way: Way) -> None:
    begin_ns = time.monotonic_ns()
    message = way(stuck, BUSY, max_block_ms=40, stuck_block_ms=0)
    assert time.monotonic_ns() - begin_ns >= 40 * NS_PER_MS
    assert "max blocking time 40 ms: topic 'busy' holds" in message
    assert blocks_ns
    assert max(blocks_ns) > 0


def test_a_topic_with_free_buffers_does_not_wait(stuck: Arena) -> None:
    producer = Producer(stuck, max_block_ms=0, stuck_block_ms=0)
    producer.send(LIVE, VALUE)
    producer.close(0)


def test_a_send_that_waits_when_its_partition_becomes_stuck_learns_it_within_a_slice(
    stuck: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If stuck_block_ms is set, a parked thread sleeps one slice at a time. Otherwise, no sleep needs to end early."""
    given: list[int] = []
    sleep_once = BufferWaiter._sleep_once

    class Noted:
        def __init__(self, place: _native.BufferWait) -> None:
            self._place = place
            self.is_parked, self.is_stuck = place.is_parked, place.is_stuck

        def sleep(self, timeout_ns: int) -> bool:
            given.append(timeout_ns)
            return self._place.sleep(timeout_ns)

    def noted(waiter: BufferWaiter, place: Any, left_ns: int) -> None:
        sleep_once(waiter, Noted(place), left_ns)  # type: ignore[arg-type]

    monkeypatch.setattr(BufferWaiter, "_sleep_once", noted)
    by_thread(stuck, BUSY, max_block_ms=400, stuck_block_ms=300)
    assert given
    assert max(given) <= _native.PARKED_SLICE_NS
    given.clear()
    by_thread(stuck, BUSY, max_block_ms=400)
    assert max(given) > _native.PARKED_SLICE_NS


@pytest.mark.parametrize("topic", [DEAD, BUSY])
@pytest.mark.parametrize("max_block_ms", [1, 19, 20, 21, 75, 130])
def test_no_sleep_ends_or_begins_after_the_deadline(
    stuck: Arena, topic: str, max_block_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last sleep ends at the deadline. A send exceeds it only by the wake-up."""
    given: list[int] = []
    sleep_once = BufferWaiter._sleep_once

    def noted(waiter: BufferWaiter, place: _native.BufferWait, left_ns: int) -> None:
        given.append(left_ns)
        sleep_once(waiter, place, left_ns)

    monkeypatch.setattr(BufferWaiter, "_sleep_once", noted)
    begin_ns = time.monotonic_ns()
    by_thread(stuck, topic, max_block_ms=max_block_ms)
    assert time.monotonic_ns() - begin_ns >= max_block_ms * NS_PER_MS
    assert given == sorted(given, reverse=True)
    assert all(0 < left_ns <= max_block_ms * NS_PER_MS for left_ns in given)


@pytest.mark.parametrize(
    ("reason", "is_oversized_admitted", "free_needed", "rule"),
    [
        (0, True, 3, "may hold no more until 3 are free"),
        (0, True, 100, "may hold no more until 16 are free"),
        (0, False, 3, "its large records may take no more of oversized_max_bytes"),
        (1, True, 3, "a buffer only while more than 8 of 16 are free"),
        (1, False, 3, "the buffers of a large record only while half of oversized_max_bytes stays free"),
    ],
)
def test_a_limit_is_named_with_the_memory_that_is_left_for_others(
    reason: int, is_oversized_admitted: bool, free_needed: int, rule: str
) -> None:
    arena: Any = SimpleNamespace(geometry={"slot_count": 16}, native=SimpleNamespace(now_ns=lambda: 0))
    limit = {"topic": DEAD, "partition": 2, "held": 5, "stuck_reason": reason, "stuck_error": 0, "stuck_since_ms": 0}
    limit |= {"is_oversized_admitted": is_oversized_admitted, "free_needed": free_needed}
    sentence = limit_sentence(arena, limit)
    assert rule in sentence
    assert "topic 'dead' holds 5 of the 16 buffers" in sentence
    assert "partition 2" in sentence
    assert ("has been stuck" in sentence) is (reason != 0)
