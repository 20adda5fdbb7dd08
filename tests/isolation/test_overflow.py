# SPDX-License-Identifier: Apache-2.0
"""With an overflow, the producers of a topic whose broker is dead continue, as do those of the other topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.isolation.fake_outage import DEAD, LIVE, NO_ANSWER, NO_LEADER, fake_outage

SLOT_COUNT = 64
RECORD_SIZE = 1000
BLOCK_MS = 10_000
"""A send waits for a second at most. The limit also allows for a busy machine."""


@pytest.mark.parametrize("fault", [NO_LEADER, NO_ANSWER])
def test_a_topic_whose_broker_is_dead_continues_and_loses_nothing(fault: str, arena_name: str, tmp_path: Path) -> None:
    with fake_outage(arena_name, tmp_path, SLOT_COUNT, dead_count=2, has_overflow=True) as outage:
        outage.begin(fault)
        for _ in range(5):
            assert outage.failures(DEAD, 400, BLOCK_MS, RECORD_SIZE) == []
            assert outage.failures(LIVE, 100, BLOCK_MS, RECORD_SIZE) == []
        spilled = outage.arena.native.spilled()
        assert spilled["record_count"] > 1000
        assert {outage.arena.native.partitions()[index][0] for index in spilled["partitions"]} == {DEAD}
        outage.end()
