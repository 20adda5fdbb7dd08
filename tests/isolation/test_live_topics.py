# SPDX-License-Identifier: Apache-2.0
"""A topic that cannot be delivered stops no other topic. Each test runs without Apache Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.isolation.fake_outage import (
    DEAD,
    DEAD_NODE,
    FREE,
    LIVE,
    LIVE_NODE,
    NO_ANSWER,
    NO_LEADER,
    WORKS,
    FakeOutage,
    fake_outage,
)
from tests.isolation.held import held_slots, jain, waiter_count
from tests.support.processes import Child, run_in_child, wait_until

SEND_COUNT, BLOCK_MS = 10, 500
FEW_SENDS, LONG_BLOCK_MS = 2, 3_000
"""In an arena of few buffers, each send may wait until an earlier batch is delivered."""
SLOT_COUNT = 64
SMALL, NEARLY_A_BATCH, LARGE = 1000, 3900, 12_000
"""Bytes of a value. A few records share a buffer of 4 KiB, or a record fills it, or it needs several buffers."""


def check(outage: FakeOutage, dead_size: int = SMALL, live_size: int = SMALL) -> None:
    """Check that sends to the live topic succeed after the dead topic has used its share of the arena."""
    is_small = outage.arena.geometry["slot_count"] < SLOT_COUNT
    count, block_ms = (FEW_SENDS, LONG_BLOCK_MS) if is_small else (SEND_COUNT, BLOCK_MS)
    outage.fill(DEAD, dead_size)
    errors = outage.failures(LIVE, count, block_ms, live_size)
    outage.end()
    assert not errors, f"{len(errors)} of {count} sends to the live topic failed: {errors[0]}"


@pytest.mark.parametrize("slot_count", [2, 8, 16, SLOT_COUNT])
def test_a_topic_without_a_leader_stops_no_other_topic(slot_count: int, arena_name: str, tmp_path: Path) -> None:
    with fake_outage(arena_name, tmp_path, slot_count) as outage:
        outage.begin(NO_LEADER)
        check(outage)


def test_ten_partitions_without_a_leader_stop_no_other_topic(arena_name: str, tmp_path: Path) -> None:
    with fake_outage(arena_name, tmp_path, SLOT_COUNT, dead_count=10) as outage:
        outage.begin(NO_LEADER)
        check(outage)


@pytest.mark.parametrize("dead_size", [SMALL, LARGE])
def test_a_topic_without_a_leader_does_not_stop_large_records_of_another_one(
    dead_size: int, arena_name: str, tmp_path: Path
) -> None:
    with fake_outage(arena_name, tmp_path, SLOT_COUNT) as outage:
        outage.begin(NO_LEADER)
        check(outage, dead_size, LARGE)


@pytest.mark.parametrize("waiting_size", [SMALL, LARGE])
def test_a_producer_that_waits_for_a_topic_without_a_leader_stops_no_other_producer(
    waiting_size: int, arena_name: str, tmp_path: Path
) -> None:
    """In the queue, it is before the producers of the live topic."""
    with fake_outage(arena_name, tmp_path, SLOT_COUNT) as outage:
        outage.begin(NO_LEADER)
        outage.fill(DEAD, SMALL)
        waiting = Child(outage.send_alone, DEAD, waiting_size)
        wait_until(lambda: waiter_count(outage.arena) == 1, "the producer waits")
        errors = outage.failures(LIVE, SEND_COUNT, BLOCK_MS)
        outage.count_sent(DEAD, 1)
        outage.end(waiting.has_ended)
        waiting.join()
    assert not errors, f"{len(errors)} of {SEND_COUNT} sends to the live topic failed: {errors[0]}"


def test_records_that_name_no_partition_avoid_one_without_a_leader(arena_name: str, tmp_path: Path) -> None:
    """Each record fills a batch, after which the producer chooses a partition again."""
    with fake_outage(arena_name, tmp_path, SLOT_COUNT, free_count=2) as outage:
        outage.begin(NO_LEADER)
        outage.fill(DEAD, SMALL)
        errors = outage.failures(FREE, SEND_COUNT, BLOCK_MS, NEARLY_A_BATCH)
        outage.end()
    assert not errors, f"{len(errors)} of {SEND_COUNT} sends to a topic with a leader failed: {errors[0]}"


def test_a_topic_whose_broker_does_not_answer_stops_no_other_topic(arena_name: str, tmp_path: Path) -> None:
    with fake_outage(arena_name, tmp_path, SLOT_COUNT) as outage:
        outage.begin(NO_ANSWER)
        check(outage)


@pytest.mark.parametrize("fault", [NO_LEADER, NO_ANSWER])
def test_the_check_succeeds_where_a_process_may_hold_half_of_the_arena(
    fault: str, arena_name: str, tmp_path: Path
) -> None:
    """The dead topic is filled by another process, whose share is its limit."""
    with fake_outage(arena_name, tmp_path, SLOT_COUNT, max_process_share=50) as outage:
        outage.begin(fault)
        sent = run_in_child(outage.fill_alone, DEAD, SMALL)
        outage.count_sent(DEAD, int(sent))
        errors = outage.failures(LIVE, SEND_COUNT, 60_000)
        outage.end()
    assert not errors


def test_a_busy_topic_gets_four_fifths_of_the_arena(arena_name: str, tmp_path: Path) -> None:
    """No broker answers, so no partition is slower than another one."""
    with fake_outage(arena_name, tmp_path, SLOT_COUNT) as outage:
        outage.begin(WORKS)
        for node in (LIVE_NODE, DEAD_NODE):
            outage.brokers.set_fault(NO_ANSWER, node)
        outage.fill(LIVE, SMALL)
        held = held_slots(outage.arena)[LIVE, 0]
        outage.end()
    assert held >= SLOT_COUNT * 4 // 5


def test_without_a_sender_a_topic_that_was_stuck_gets_four_fifths_of_the_arena(arena_name: str, tmp_path: Path) -> None:
    """The next sender delivers the records that were sent meanwhile."""
    with fake_outage(arena_name, tmp_path, SLOT_COUNT) as outage:
        outage.begin(NO_LEADER)
        outage.senders.close()
        outage.fill(DEAD, SMALL)
        held = held_slots(outage.arena)[DEAD, 0]
        outage.senders.start()
        outage.end()
    assert held >= SLOT_COUNT * 4 // 5


@pytest.mark.parametrize("slot_count", [1, 2, 8, 16, SLOT_COUNT])
def test_the_only_topic_gets_the_whole_arena(slot_count: int, arena_name: str, tmp_path: Path) -> None:
    with fake_outage(arena_name, tmp_path, slot_count, dead_count=0) as outage:
        outage.begin(WORKS)
        outage.brokers.set_fault(NO_ANSWER, LIVE_NODE)
        outage.fill(LIVE, SMALL)
        held = held_slots(outage.arena)[LIVE, 0]
        outage.end()
    assert held == slot_count


def test_the_index_of_jain_is_one_for_equal_shares_alone() -> None:
    assert jain([3, 3, 3, 3]) == 1
    assert jain([12, 0, 0, 0]) == 1 / 4
