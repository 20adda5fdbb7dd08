# SPDX-License-Identifier: Apache-2.0
"""Records that were left in a file while no sender could deliver are delivered once, with all defaults."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from shmaccum.arena import Arena
from shmaccum.sender import Sender
from shmaccum.sender.sinks.memory import MemorySink
from tests.support.accumulator import Accumulator
from tests.support.arenas import boot_again
from tests.support.segment_log import values_of

TOPIC = "flights"
PARTITION_COUNT = 4
CHUNK = 5_000
S = 10**9
HOUR = 3600 * S
DAY = 24 * HOUR


def leave(path: Path, count: int, uptime_ns: int) -> None:
    """Append this many numbered records at that boot time, and leave them without any process."""
    with Arena.create(path, buffer_memory=max(count * 128, 1 << 20), batch_size="16KiB") as arena:
        arena.native.set_manual_clock(uptime_ns)
        with Accumulator(arena) as producer:
            for first in range(0, count, CHUNK):
                values = [b"%d" % number for number in range(first, min(first + CHUNK, count))]
                producer.append_many(TOPIC, first // CHUNK % PARTITION_COUNT, values)


def delivered(path: Path, uptime_ns: int | None) -> Counter[bytes]:
    """Return what a sender delivers at that boot time. If *uptime_ns* is None, use the host's clock."""
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


@pytest.mark.parametrize("count", [20_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_records_left_for_a_night_are_delivered_once(tmp_path: Path, count: int) -> None:
    leave(tmp_path / "arena", count, uptime_ns=HOUR)
    assert delivered(tmp_path / "arena", uptime_ns=9 * HOUR) == expected(count)


@pytest.mark.parametrize("uptime_ns", [S, 600 * S, 30 * DAY, 3650 * DAY], ids=["1s", "10min", "30d", "10y"])
def test_records_left_before_a_reboot_are_delivered_once(tmp_path: Path, uptime_ns: int) -> None:
    """The host's uptime before the reboot is shorter or longer than now."""
    leave(tmp_path / "arena", 100, uptime_ns)
    boot_again(tmp_path / "arena")
    assert delivered(tmp_path / "arena", uptime_ns=None) == expected(100)


def deliver(path: Path, sink: MemorySink, *values: bytes) -> None:
    """Append these values, and run a sender that delivers all records."""
    with Arena.attach(path) as arena:
        with Accumulator(arena) as producer:
            for value in values:
                producer.append(TOPIC, 0, 1, None, value)
        with Sender(arena, sink) as sender:
            sender.open()
            sender.stop()
            sender.run()


def opened_again(former: MemorySink) -> MemorySink:
    """Return a sink of the same place."""
    sink = MemorySink()
    sink._partitions, sink._identity = former._partitions, former._identity
    sink._next_producer_id = former._next_producer_id
    return sink


def test_a_sequence_that_a_crash_of_the_host_took_is_not_assigned_again(tmp_path: Path) -> None:
    """A broker would drop the second batch with it as a duplicate, and acknowledge it."""
    path = tmp_path / "arena"
    Arena.create(path, buffer_memory="1MiB", topics={TOPIC: 1}).close()
    sink = MemorySink()
    deliver(path, sink, b"0")
    forced = path.read_bytes()
    sink = opened_again(sink)
    deliver(path, sink, b"1")
    path.write_bytes(forced)  # the bytes on disk at the crash of the host
    boot_again(path)
    sink = opened_again(sink)
    deliver(path, sink, b"2")
    assert sink.values(TOPIC) == [b"0", b"1", b"2"]
    with Arena.attach(path) as arena:
        producer_id = arena.native.producer_identity[0]
        assert not arena.native.sequences_are_in_doubt
    sink = opened_again(sink)
    deliver(path, sink, b"3")
    assert sink.values(TOPIC)[3:] == [b"3"]
    with Arena.attach(path) as arena:
        assert arena.native.producer_identity[0] == producer_id


def test_a_log_takes_a_batch_whose_sequence_a_crash_of_the_host_took(tmp_path: Path) -> None:
    path, log = tmp_path / "arena", tmp_path / "log"
    Arena.create(path, buffer_memory="1MiB", topics={TOPIC: 1}).close()

    def deliver_to_log(value: bytes) -> None:
        with Arena.attach(path) as arena:
            with Accumulator(arena) as producer:
                producer.append(TOPIC, 0, 1, None, value)
            with Sender(arena, f"log:{log}") as sender:
                sender.open()
                sender.stop()
                sender.run()

    deliver_to_log(b"0")
    forced = path.read_bytes()
    deliver_to_log(b"1")
    path.write_bytes(forced)
    boot_again(path)
    deliver_to_log(b"2")
    deliver_to_log(b"3")
    assert values_of(log, TOPIC) == [b"0", b"1", b"2", b"3"]
    path.write_bytes(forced)  # this also loses the epoch that the log has by now
    boot_again(path)
    deliver_to_log(b"4")
    assert values_of(log, TOPIC)[4:] == [b"4"]
