# SPDX-License-Identifier: Apache-2.0
"""Records that were left in a file while nobody could deliver are delivered once, with all defaults."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from shmaccum.arena import Arena
from shmaccum.sender import Sender
from shmaccum.sinks.memory import MemorySink
from tests.accumulator import Accumulator
from tests.support import boot_again

TOPIC = "flights"
PARTITION_COUNT = 4
CHUNK = 5_000
S = 10**9
HOUR = 3600 * S
DAY = 24 * HOUR


def leave(path: Path, count: int, uptime_ns: int) -> None:
    """So many numbered records, appended at that time of the boot clock; then everybody is gone."""
    with Arena.create(path, buffer_memory=max(count * 128, 1 << 20), batch_size="16KiB") as arena:
        arena.native.set_manual_clock(uptime_ns)
        with Accumulator(arena) as producer:
            for first in range(0, count, CHUNK):
                values = [b"%d" % number for number in range(first, min(first + CHUNK, count))]
                producer.append_many(TOPIC, first // CHUNK % PARTITION_COUNT, values)


def delivered(path: Path, uptime_ns: int | None) -> Counter[bytes]:
    """The values that a sender delivers at that time of the boot clock; None: the clock of this host."""
    sink = MemorySink(partitions=PARTITION_COUNT)
    with Arena.attach(path) as arena:
        arena.native.set_manual_clock(uptime_ns)
        with Sender(arena, sink) as sender:
            sender.open()
            sender.stop()
            sender.run()
        assert arena.native.counters()["batches expired"] == 0
        assert arena.native.state_counts()["FREE"] == arena.geometry["slot_count"]
    return Counter(value or b"" for partition in range(PARTITION_COUNT) for value in sink.values(TOPIC, partition))


def expected(count: int) -> Counter[bytes]:
    return Counter(b"%d" % number for number in range(count))


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_records_left_for_a_night_are_delivered_once(tmp_path: Path, count: int) -> None:
    leave(tmp_path / "arena", count, uptime_ns=HOUR)
    assert delivered(tmp_path / "arena", uptime_ns=9 * HOUR) == expected(count)


@pytest.mark.parametrize("uptime_ns", [S, 600 * S, 30 * DAY, 3650 * DAY], ids=["1s", "10min", "30d", "10y"])
def test_records_left_before_a_reboot_are_delivered_once(tmp_path: Path, uptime_ns: int) -> None:
    """Whether the host was up for longer before it than now, or not."""
    leave(tmp_path / "arena", 100, uptime_ns)
    boot_again(tmp_path / "arena")
    assert delivered(tmp_path / "arena", uptime_ns=None) == expected(100)
