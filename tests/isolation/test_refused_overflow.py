# SPDX-License-Identifier: Apache-2.0
"""In a complete outage, producers with an overflow continue, and no record is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.isolation.refused_overflow import Refusal, refuse

OUTAGE_S = 5.0
BLOCK_MS = 5_000
"""A send may wait for 1.5 s. The limit also allows for a busy machine."""


class NotSpilledError(AssertionError):
    """A send waited too long for the overflow."""


@pytest.mark.parametrize("kills", [False, True], ids=["one sender", "a killed sender each second"])
def test_no_send_waits_long_while_brokers_refuse_connections(kills: bool, arena_name: str, tmp_path: Path) -> None:
    outage = refuse(arena_name, tmp_path, OUTAGE_S, BLOCK_MS, kills=kills, stops_at_failure=True)
    print(outage)
    assert (outage.lost_count, outage.doubled_count, outage.is_in_order) == (0, 0, True)
    if outage.failures:
        raise NotSpilledError(f"a send waited for {outage.longest_s:.1f} s: {outage.failures[0]}")
    assert outage.spilled_bytes > 0


def test_the_check_succeeds_where_an_outage_is_noticed_after_a_second(arena_name: str, tmp_path: Path) -> None:
    outage = refuse(arena_name, tmp_path, OUTAGE_S, 60_000, kills=False, request_timeout_ms="1s")
    assert (outage.failures, outage.lost_count, outage.doubled_count, outage.is_in_order) == ([], 0, 0, True)
    assert outage.spilled_bytes > 0


def test_records_that_are_lost_doubled_or_out_of_order_are_counted() -> None:
    outage = Refusal(1.0, 4, [], 0.0, None, 0, 0)
    outage.count_arrived([0, 1, 2, 3])
    assert (outage.lost_count, outage.doubled_count, outage.is_in_order) == (0, 0, True)
    outage.count_arrived([0, 2, 1, 2])
    assert (outage.lost_count, outage.doubled_count, outage.is_in_order) == (1, 1, False)
