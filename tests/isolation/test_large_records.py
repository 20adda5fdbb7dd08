# SPDX-License-Identifier: Apache-2.0
"""Large records of a topic that cannot be delivered leave a part of oversized_max_bytes to those of other topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.isolation.fake_outage import DEAD, LIVE, NO_ANSWER, NO_LEADER, fake_outage

SLOT_COUNT = 64
LARGE = 12_000
"""Bytes of a value that needs four buffers of 4 KiB. Large records may hold 32 of the 64 buffers."""
BLOCK_MS = 10_000
"""A send waits for the delivery of the previous record. The limit also allows for a busy machine."""


@pytest.mark.parametrize("fault", [NO_LEADER, NO_ANSWER])
@pytest.mark.parametrize("dead_count", [1, 4])
def test_large_records_of_a_live_topic_are_sent_beside_those_of_a_dead_one(
    fault: str, dead_count: int, arena_name: str, tmp_path: Path
) -> None:
    with fake_outage(arena_name, tmp_path, SLOT_COUNT, dead_count) as outage:
        outage.begin(fault)
        outage.fill(DEAD, LARGE)
        used = outage.arena.native.oversized_bytes
        assert 0 < used < outage.arena.geometry["oversized_bytes_max"]
        assert outage.failures(LIVE, 10, BLOCK_MS, LARGE) == []
        outage.end()
