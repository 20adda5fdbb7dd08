# SPDX-License-Identifier: Apache-2.0
"""The figures of the scenarios are right for planted latencies and records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from shmaccum.exceptions import BufferExhaustedError, ShmaccumError
from tests.isolation.arrivals import judge
from tests.isolation.measurements import (
    BUCKETS,
    DISTURBED,
    ROUNDS,
    UNDISTURBED,
    Counts,
    Measurements,
    bucket_of,
    quantile_ns,
    ratio_interval,
    upper_ns,
)

TOPIC = "t"
SENT = {0: [3, 1], 1: [2]}
ARRIVED = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (0, 0, 2)]
"""Producer, place and number of each record of partition 0."""


def counts_of(*rounds: list[int]) -> Counts:
    counts: Counts = np.zeros((ROUNDS, BUCKETS), dtype=np.uint64)
    for number, latencies in enumerate(rounds):
        for ns in latencies:
            counts[number, bucket_of(ns)] += np.uint64(1)
    return counts


@pytest.mark.parametrize("ns", [0, 1, 63, 64, 65, 1000, 123_456_789, 2**36, 2**37 - 1])
def test_a_bucket_has_a_32nd_of_its_power_of_two(ns: int) -> None:
    bucket = bucket_of(ns)
    assert ns <= upper_ns(bucket) <= ns * 33 / 32
    assert bucket == 0 or upper_ns(bucket - 1) < ns


def test_a_latency_beyond_the_last_bucket_is_counted_there() -> None:
    assert bucket_of(2**60) == BUCKETS - 1


def test_a_quantile_is_the_latency_that_its_share_does_not_exceed() -> None:
    counts = counts_of([10] * 98 + [40, 50])[0]
    assert [quantile_ns(counts, share) for share in (0.5, 0.98, 0.985, 1.0)] == [10, 10, 40, 50]


def test_the_interval_of_a_ratio_contains_it() -> None:
    before, after = counts_of([10] * 10, [20] * 10), counts_of([40] * 10, [20] * 10)
    found = ratio_interval(before, after, 0.99, seed=1)
    assert found is not None
    ratio, low, high = found
    assert (ratio, low, high) == (2, 1, 4)
    assert ratio_interval(before, counts_of(), 0.99, seed=1) is None


def test_another_process_reads_the_file_of_a_producer(tmp_path: Path) -> None:
    written, read = Measurements(tmp_path / "producer-0"), Measurements(tmp_path / "producer-0")
    cell = DISTURBED * ROUNDS + 3
    written.add_sent(1)
    written.add_latency(cell, 50)
    written.add_failure(cell, BufferExhaustedError("no buffer\nand more"))
    written.add_failure(cell, ShmaccumError("other"))
    written.add_failure(cell, BufferExhaustedError("again"))
    assert read.sent_counts(3) == [0, 1, 0]
    assert read.histograms(DISTURBED)[3, bucket_of(50)] == read.histograms(DISTURBED).sum() == 1
    assert read.failures(DISTURBED) == {"BufferExhaustedError": 2, "ShmaccumError": 1}
    assert read.reasons() == [("BufferExhaustedError", "no buffer"), ("ShmaccumError", "other")]
    assert (read.longest_ns(DISTURBED), read.longest_ns(UNDISTURBED)) == (50, 0)
    assert read.failures(UNDISTURBED).total() == 0


@pytest.mark.parametrize(
    ("arrived", "counts"),
    [
        (ARRIVED, (0, 0, 0)),
        (ARRIVED[:-1], (1, 0, 0)),
        ([*ARRIVED, (0, 0, 0)], (0, 1, 0)),
        ([ARRIVED[3], *ARRIVED[:3], *ARRIVED[4:]], (0, 0, 1)),
    ],
    ids=["none", "lost", "doubled", "out of order"],
)
def test_each_planted_fault_is_found(arrived: list[tuple[int, int, int]], counts: tuple[int, int, int]) -> None:
    found = judge(SENT, [(TOPIC, 0, b"%d %d %d xxx" % each) for each in arrived])
    first = found[0]
    assert (first.lost_count, first.doubled_count, first.disordered_count) == counts
    assert first.is_clean is (counts == (0, 0, 0))
    assert found[1].is_clean


def test_a_record_that_was_never_sent_is_an_error() -> None:
    with pytest.raises(AssertionError, match="which no send took"):
        judge({0: [1]}, [(TOPIC, 0, b"0 0 1 ")])
