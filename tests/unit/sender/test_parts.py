# SPDX-License-Identifier: Apache-2.0
"""Small parts of the sender: backoff, split parts, runs of errors, windows of numbers."""

from __future__ import annotations

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.places import Places
from shmaccum.common.clock import NS_PER_MS
from shmaccum.exceptions import CorruptArenaError
from shmaccum.sender.backoff import Backoff, SinkBackoff
from shmaccum.sender.batch_splitter import node_end
from shmaccum.sender.record_errors import error_runs


def test_backoff_doubles_with_a_fifth_of_jitter_up_to_its_limit() -> None:
    """ExponentialBackoff of Kafka: 80-120, 160-240, 320-480, 640-960, 800-1000 ms."""
    backoff = Backoff(100, 1000, seed=1)
    for failure_count, (least, most) in enumerate([(80, 120), (160, 240), (320, 480), (640, 960), (800, 1000)], 1):
        pauses = [backoff.pause_ns(failure_count) / NS_PER_MS for _ in range(200)]
        assert least <= min(pauses) < least * 1.05
        assert most * 0.95 < max(pauses) <= most
    assert backoff.pause_ns(10**6) <= 1000 * NS_PER_MS


def test_no_backoff_is_no_pause() -> None:
    assert Backoff(0, 0).pause_ns(5) == 0


def test_trouble_ends_with_a_good_round(arena: Arena) -> None:
    told: list[str] = []
    trouble = SinkBackoff(Backoff(100, 1000), arena.native, told.append)
    assert trouble.pause_left_ns(0) == 0
    trouble.begin(0)
    first = trouble.pause_left_ns(0)
    trouble.begin(0)
    assert trouble.pause_left_ns(0) > first > 0
    assert trouble.pause_left_ns(10**12) == 0
    trouble.end()
    assert trouble.pause_left_ns(0) == 0


@pytest.mark.parametrize("record_count", [1, 2, 3, 12, 1000])
def test_the_parts_of_a_batch_are_the_same_in_every_process(record_count: int) -> None:
    """The next part follows the parts that were accepted so far, and all of them cover the batch."""
    nodes: list[tuple[int, int]] = []

    def leaves(begin: int, end: int) -> None:
        nodes.append((begin, end))
        if end - begin > 1:
            leaves(begin, (begin + end) // 2)
            leaves((begin + end) // 2, end)

    leaves(0, record_count)
    largest = {begin: max(end for other, end in nodes if other == begin) for begin, _ in nodes}
    assert {begin: node_end(begin, record_count) for begin in largest} == largest
    assert sorted(largest) == list(range(record_count))


def test_records_to_blame_come_in_runs() -> None:
    assert list(error_runs(5, [0, 3])) == [(1, True), (2, False), (1, True), (1, False)]
    assert list(error_runs(3, [0, 1, 2, 7])) == [(3, True)]


def test_a_place_that_does_not_exist(arena: Arena) -> None:
    with pytest.raises(CorruptArenaError, match="no partition with the index 7"):
        Places(arena.native)[7]
