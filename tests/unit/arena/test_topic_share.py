# SPDX-License-Identifier: Apache-2.0
"""No topic, no stuck partition and no stopped process takes the buffers of the others."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from fractions import Fraction
from itertools import count

import pytest

from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.config import ArenaOptions, ProducerOptions
from shmaccum.exceptions import BufferExhaustedError, InvalidArgumentError
from tests.support.accumulator import Accumulator
from tests.support.arenas import deliver_all
from tests.support.processes import Child, wait_until

SLOTS = 16
WAITER_PARKED = 3
"""The value in a waiter's word (native/arena/slot_word.h)."""
LONG_MS = 60_000
VALUE = bytes(3000)
"""One record fills a batch."""


@pytest.fixture
def small(arena_name: str) -> Iterator[Arena]:
    """An arena of 16 buffers of 4 KiB."""
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", process_count=64, waiter_count=64) as arena:
        yield arena


def begin(accumulator: Accumulator, topic: str, partition: int = 0) -> int:
    """Open a batch, and return the index of its partition."""
    accumulator.append(topic, partition, 1, None, b"first", None, 0)
    return accumulator.partition_index(topic, partition)


def fill(accumulator: Accumulator, topic: str, partition: int = 0) -> int:
    """Return how many batches of a partition get a buffer."""
    numbers = count()
    with contextlib.suppress(BufferExhaustedError):
        for _ in numbers:
            accumulator.append(topic, partition, 1, None, VALUE, None, 0)
    return next(numbers) - 1


def test_a_topic_leaves_a_fifth_to_the_others_and_each_gets_its_first_batch(small: Arena) -> None:
    with Accumulator(small) as accumulator:
        begin(accumulator, "other")
        assert fill(accumulator, "busy") == 12  # at most 4 times the free buffers, without the other topic's batch
        assert fill(accumulator, "third") >= 1
        accumulator.become_sender()
        deliver_all(accumulator)


def test_the_only_topic_gets_all(small: Arena) -> None:
    with Accumulator(small) as accumulator:
        assert fill(accumulator, "busy") == SLOTS
        accumulator.become_sender()
        deliver_all(accumulator)


def test_the_error_names_the_topic_and_what_it_holds(small: Arena) -> None:
    with Accumulator(small) as accumulator:
        begin(accumulator, "other")
        fill(accumulator, "busy")
        with pytest.raises(
            BufferExhaustedError, match=r"topic 'busy' holds 12 of the 16 buffers, and may hold no more until 4 are"
        ):
            accumulator.append("busy", 0, 1, None, VALUE, None, 1)
        accumulator.become_sender()
        deliver_all(accumulator)


def test_the_error_of_a_stuck_partition_reports_why_and_since_when(small: Arena) -> None:
    with Accumulator(small) as accumulator:
        accumulator.become_sender()
        accumulator.set_available(begin(accumulator, "dead", 3), False)
        assert fill(accumulator, "dead", 3) == SLOTS // 2
        with pytest.raises(
            BufferExhaustedError,
            match=r"partition 3 of topic 'dead' has been stuck for \d+.* m?s: it has no leader.* 8 of 16 .*holds 8 of",
        ):
            accumulator.append("dead", 3, 1, None, VALUE, None, 1)
        assert fill(accumulator, "live") >= 1
        accumulator.set_available(accumulator.partition_index("dead", 3), True)
        deliver_all(accumulator)


def test_a_parked_thread_continues_as_its_topic_is_delivered(small: Arena) -> None:
    with Accumulator(small) as accumulator, Accumulator(small) as sender:
        begin(accumulator, "other")
        sender.become_sender()
        fill(accumulator, "busy")
        thread = threading.Thread(target=accumulator.append, args=("busy", 0, 1, None, VALUE, None, LONG_MS))
        thread.start()
        wait_until(lambda: _parked_count(small) == 1, "it is parked")
        assert small.native.census()["waiting"] == [], "it delays no other waiter"
        assert small.statistics().waiting_count == 1, "the statistics show that it waits"
        deliver_all(sender)
        thread.join()
        deliver_all(sender)


LARGE = bytes(5_000)
"""A record of two buffers. Such records may have 8 buffers together."""


def fill_with_large(accumulator: Accumulator, topic: str) -> int:
    """Return how many large records of a topic get buffers."""
    numbers = count()
    with contextlib.suppress(BufferExhaustedError):
        for _ in numbers:
            accumulator.append(topic, 0, 1, None, LARGE, None, 0)
    return next(numbers) - 1


def test_large_records_of_a_stuck_partition_leave_half_of_their_part_to_others(small: Arena) -> None:
    with Accumulator(small) as accumulator:
        accumulator.become_sender()
        accumulator.set_available(begin(accumulator, "dead"), False)
        assert fill_with_large(accumulator, "dead") == 2
        with pytest.raises(
            BufferExhaustedError,
            match=r"gets the buffers of a large record only while half of oversized_max_bytes stays free.* larger than "
            r"a buffer hold 16384 of at most 32768 bytes",
        ):
            accumulator.append("dead", 0, 1, None, LARGE, None, 1)
        assert fill_with_large(accumulator, "live") == 1, "as many as a topic may hold beside it"
        accumulator.set_available(accumulator.partition_index("dead", 0), True)
        deliver_all(accumulator)


def test_large_records_of_a_topic_leave_room_for_one_of_another_topic(small: Arena) -> None:
    with Accumulator(small) as accumulator:
        begin(accumulator, "live")
        assert fill_with_large(accumulator, "busy") == 3
        with pytest.raises(BufferExhaustedError, match=r"its large records may take no more of oversized_max_bytes"):
            accumulator.append("busy", 0, 1, None, LARGE, None, 1)
        assert fill_with_large(accumulator, "live") == 1
        accumulator.become_sender()
        deliver_all(accumulator)


def _parked_count(arena: Arena) -> int:
    return int((arena.waiter_table()["word"] >> 62 == WAITER_PARKED).sum())


def _wait_for_a_buffer(name: str) -> None:
    with Arena.attach(name) as arena, Accumulator(arena) as accumulator:
        accumulator.append("busy", 0, 1, None, VALUE, None, LONG_MS)


def _all_have_ended(children: list[Child], sender: Accumulator) -> bool:
    deliver_all(sender)
    return all(child.has_ended() for child in children)


def test_stopped_waiters_keep_no_buffer_that_they_were_granted(small: Arena) -> None:
    with Accumulator(small) as accumulator, Accumulator(small) as sender:
        fill(accumulator, "busy")
        children = [Child(_wait_for_a_buffer, small.name) for _ in range(8)]
        wait_until(lambda: small.statistics().waiting_count == len(children), "all of them wait")
        for child in children:
            os.kill(child.pid, signal.SIGSTOP)
        sender.become_sender()
        deliver_all(sender)
        assert small.native.state_counts()["GRANT"] == len(children)
        fill(accumulator, "busy")
        for _ in children:
            accumulator.append("busy", 0, 1, None, VALUE, None, LONG_MS)
        assert small.native.state_counts()["GRANT"] == 0
        for child in children:
            os.kill(child.pid, signal.SIGCONT)
        wait_until(lambda: _all_have_ended(children, sender), "all went on")
        assert [child.join() for child in children] == ["None"] * len(children)
        deliver_all(sender)


@pytest.mark.parametrize(("given", "value"), [("1/2", Fraction(1, 2)), (0.5, Fraction(1, 2)), ("64", 64), (0, 0)])
def test_a_factor_that_may_be(given: object, value: Fraction) -> None:
    assert ArenaOptions.parse({"topic_share_factor": given}).topic_share_factor == value


@pytest.mark.parametrize("given", ["1/4", 65, -1, "many", float("nan"), float("inf"), "1/0", True, None, [1]])
def test_a_factor_that_may_not_be_is_named(given: object) -> None:
    with pytest.raises(InvalidArgumentError, match="topic_share_factor"):
        ArenaOptions.parse({"topic_share_factor": given})


def test_a_factor_of_0_turns_the_limit_off(arena_name: str) -> None:
    with (
        Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", topic_share_factor=0) as arena,
        Accumulator(arena) as accumulator,
    ):
        begin(accumulator, "other")
        assert fill(accumulator, "busy") == SLOTS - 1
        accumulator.become_sender()
        deliver_all(accumulator)


def test_the_error_names_the_time_that_a_send_to_a_stuck_partition_may_take(small: Arena) -> None:
    with Accumulator(small) as sender, Producer(small, stuck_block_ms=0, max_block_ms=LONG_MS) as producer:
        sender.become_sender()
        sender.set_available(begin(sender, "dead"), False)
        small.native.set_topic_partition_count("dead", 1)
        fill(sender, "dead")
        with pytest.raises(BufferExhaustedError, match=r"within the configured max blocking time 0 ms: .* stuck for"):
            producer.send("dead", VALUE, partition=0)
        sender.set_available(sender.partition_index("dead", 0), True)
        deliver_all(sender)


def test_a_stuck_partition_blocks_as_long_as_any_other_by_default() -> None:
    assert ProducerOptions.parse({}).stuck_block_ms is None
    assert ProducerOptions.parse({"stuck.block.ms": "0"}).stuck_block_ms == 0
