# SPDX-License-Identifier: Apache-2.0
"""An arena has a row for each topic that is stuck or at its share. The metrics show a limited number of rows."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shmaccum.arena import Arena
from shmaccum.arena.stuck import REASONS, stuck_reason
from shmaccum.exceptions import BufferExhaustedError
from shmaccum.observe.health import Question, troubles
from shmaccum.observe.limited_topics import AT_LARGE_SHARE, AT_SHARE, LimitedTopic
from shmaccum.observe.observation import Observation, Observer
from shmaccum.observe.prometheus import LIMITED_TOPIC_COUNT_MAX, ArenaCollector, exposition
from tests.support.accumulator import Accumulator
from tests.support.arenas import deliver_all
from tests.support.processes import wait_until

SLOTS = 16
LONG_MS = 60_000
VALUE = bytes(3000)
"""One record fills a batch."""


@pytest.fixture
def small(arena_name: str) -> Iterator[Arena]:
    """16 buffers of 4 KiB."""
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB", process_count=64, waiter_count=64) as arena:
        yield arena


def seen_of(arena: Arena) -> Observation:
    return Observer(arena).observe()


def fill(accumulator: Accumulator, topic: str, partition: int = 0) -> None:
    """Append batches until one finds no buffer."""
    with contextlib.suppress(BufferExhaustedError):
        while True:
            accumulator.append(topic, partition, 1, None, VALUE, None, 0)


def test_a_topic_that_is_neither_stuck_nor_waited_for_has_no_row(small: Arena) -> None:
    with Accumulator(small) as accumulator:
        accumulator.append("other", 0, 1, None, b"v")
        fill(accumulator, "busy")
        accumulator.become_sender()
        assert seen_of(small).limited_topics == ()
        deliver_all(accumulator)


def test_a_stuck_topic_has_a_row_with_all_that_is_known(small: Arena) -> None:
    with Accumulator(small) as accumulator:
        accumulator.become_sender()
        for partition in range(3):
            accumulator.append("dead", partition, 1, None, b"first")
        accumulator.set_available(accumulator.partition_index("dead", 1), False)
        fill(accumulator, "dead", 1)
        seen = seen_of(small)
        (row,) = seen.limited_topics
        assert row.stuck_age_ns is not None
        assert row == LimitedTopic(
            topic="dead",
            partition_count=3,
            stuck_partition_count=1,
            reasons={"no_leader": 1},
            why="it has no leader",
            stuck_age_ns=row.stuck_age_ns,
            held_slot_count=SLOTS // 2,
            held_size=SLOTS // 2 * 4096,
            held_share=0.5,
            free_needed=SLOTS // 2 + 1,
            waiting_count=0,
            waiting_age_ns=None,
            overflow_batch_count=0,
        )
        assert {queue.partition: queue.stuck for queue in seen.partitions} == {0: None, 1: "no_leader", 2: None}
        accumulator.set_available(accumulator.partition_index("dead", 1), True)
        assert seen_of(small).limited_topics == ()
        deliver_all(accumulator)


def test_the_marks_of_a_sender_that_has_left_count_no_more(small: Arena) -> None:
    with Accumulator(small) as accumulator:
        accumulator.append("dead", 0, 1, None, b"v")
        with Accumulator(small) as sender:
            sender.become_sender()
            sender.set_available(sender.partition_index("dead", 0), False)
            assert [row.topic for row in seen_of(small).limited_topics] == ["dead"]
        assert seen_of(small).limited_topics == ()
        accumulator.become_sender()
        deliver_all(accumulator)


def test_a_topic_whose_threads_wait_for_its_share_has_a_row(small: Arena) -> None:
    with Accumulator(small) as accumulator, Accumulator(small) as sender:
        accumulator.append("other", 0, 1, None, b"v")
        sender.become_sender()
        fill(accumulator, "busy")
        thread = threading.Thread(target=accumulator.append, args=("busy", 0, 1, None, VALUE, None, LONG_MS))
        thread.start()
        wait_until(lambda: seen_of(small).waiting_count == 1, "the thread waits")
        seen = seen_of(small)
        (row,) = seen.limited_topics
        assert (row.topic, row.stuck_partition_count, row.stuck_age_ns, row.why) == ("busy", 0, None, AT_SHARE)
        assert (row.held_slot_count, row.waiting_count) == (12, 1)
        assert row.free_needed > seen.slots["FREE"]
        assert row.waiting_age_ns is not None
        assert [process.is_waiting for process in seen.processes].count(True) == 1
        deliver_all(sender)
        thread.join()
        deliver_all(sender)


def test_a_topic_whose_large_records_wait_for_their_part_has_the_reason(small: Arena) -> None:
    """Records of two buffers may use 8 buffers together."""
    large = bytes(5000)
    with Accumulator(small) as accumulator, Accumulator(small) as sender:
        accumulator.append("other", 0, 1, None, b"v")
        sender.become_sender()
        for _ in range(3):
            accumulator.append("busy", 0, 1, None, large, None, 0)
        thread = threading.Thread(target=accumulator.append, args=("busy", 0, 1, None, large, None, LONG_MS))
        thread.start()
        wait_until(lambda: seen_of(small).waiting_count == 1, "the thread waits")
        (row,) = seen_of(small).limited_topics
        assert (row.topic, row.why, row.waiting_count) == ("busy", AT_LARGE_SHARE, 1)
        deliver_all(sender)
        thread.join()
        deliver_all(sender)


def test_a_thread_that_a_limit_makes_wait_in_a_full_arena_counts_as_one_that_waits(small: Arena) -> None:
    with Accumulator(small) as accumulator, Accumulator(small) as sender:
        accumulator.append("other", 0, 1, None, b"v")
        sender.become_sender()
        fill(accumulator, "busy")
        for number in range(SLOTS):
            fill(accumulator, f"first-batch-{number}")
        thread = threading.Thread(target=accumulator.append, args=("busy", 0, 1, None, VALUE, None, LONG_MS))
        thread.start()
        wait_until(lambda: seen_of(small).waiting_count == 1, "the thread waits")
        assert [trouble.kind for trouble in troubles(seen_of(small), Question.READY)] == ["exhausted"]
        while thread.is_alive():
            deliver_all(sender)
        deliver_all(sender)


def test_stuck_topics_come_first_and_then_those_that_hold_most(small: Arena) -> None:
    with Accumulator(small) as accumulator, Accumulator(small) as sender:
        sender.become_sender()
        for topic, count in (("few", 1), ("more", 3)):
            for _ in range(count):
                accumulator.append(topic, 0, 1, None, VALUE)
            sender.set_available(sender.partition_index(topic, 0), False)
        fill(accumulator, "busy")
        thread = threading.Thread(target=accumulator.append, args=("busy", 0, 1, None, VALUE, None, LONG_MS))
        thread.start()
        wait_until(lambda: seen_of(small).waiting_count == 1, "the thread waits")
        rows = seen_of(small).limited_topics
        assert [(row.topic, row.is_stuck) for row in rows] == [("more", True), ("few", True), ("busy", False)]
        for topic in ("few", "more"):
            sender.set_available(sender.partition_index(topic, 0), True)
        deliver_all(sender)
        thread.join()
        deliver_all(sender)


def test_the_number_of_rows_in_the_metrics_has_a_bound(arena_name: str) -> None:
    count = LIMITED_TOPIC_COUNT_MAX + 10
    with (
        Arena.create(arena_name, buffer_memory="1MiB", batch_size="4KiB") as arena,
        Accumulator(arena) as accumulator,
    ):
        accumulator.become_sender()
        for number in range(count):
            accumulator.append(f"t{number:03}", 0, 1, None, b"v")
            accumulator.set_available(accumulator.partition_index(f"t{number:03}", 0), False)
        accumulator.append("t059", 0, 1, None, VALUE)
        accumulator.append("t059", 0, 1, None, VALUE)
        told = list(text_string_to_metric_families(exposition(ArenaCollector(arena))))
        samples = {family.name: family.samples for family in told}
        assert [sample.value for sample in samples["shmaccum_limited_topics"]] == [count]
        for name in ("stuck_partitions", "topic_stuck_seconds", "topic_held_bytes", "topic_waiting_threads"):
            shown = [sample.labels["topic"] for sample in samples[f"shmaccum_{name}"]]
            assert len(set(shown)) == len(shown) == LIMITED_TOPIC_COUNT_MAX
            assert shown[0] == "t059", "the one that holds most"
        for number in range(count):
            accumulator.set_available(accumulator.partition_index(f"t{number:03}", 0), True)
        deliver_all(accumulator)


@pytest.mark.parametrize("number", REASONS)
def test_a_reason_has_a_word_and_a_sentence(number: int) -> None:
    word, why = stuck_reason(number, 0)
    assert word.isidentifier()
    assert why


def test_a_refusal_names_kafkas_error() -> None:
    assert stuck_reason(2, 19) == ("refused", "its broker refuses its batches (NOT_ENOUGH_REPLICAS)")
    assert stuck_reason(2, 7)[1] == "its broker refuses its batches (error code 7)"


def test_a_reason_of_a_later_version_is_shown_as_unknown() -> None:
    assert stuck_reason(200, 0)[0] == "unknown"
