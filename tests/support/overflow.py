# SPDX-License-Identifier: Apache-2.0
"""Senders with an overflow for tests, and sinks that a test can switch off."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.log.files.reader import LogReader
from shmaccum.sender import Sender
from shmaccum.sender.overflow import Overflow
from shmaccum.sender.sinks.log import LogSink
from tests.support.accumulator import Accumulator
from tests.support.sender import TOPIC, ScriptedSink, Sending
from tests.support.system_calls import dies_at_system_call

FAST: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 1, "retry_backoff_max_ms": 1}
SLOT_COUNT = 16
Open = Callable[..., Sending]


class AwaySink(ScriptedSink):
    """A sink that a test can switch off.

    Attributes:
        is_away: the sink delivers nothing.
    """

    is_away = False

    @property
    def outage(self) -> str | None:
        return "nobody answers" if self.is_away else None

    def plan(self, ready: Sequence[int]) -> Sequence[Sequence[int]]:
        return [] if self.is_away else super().plan(ready)


def away(sending: Sending) -> AwaySink:
    assert isinstance(sending.sink, AwaySink)
    return sending.sink


def overflow_of(sending: Sending) -> Overflow:
    assert sending.sender._overflow is not None
    return sending.sender._overflow


def settle(sending: Sending, rounds: int = 12) -> None:
    for _ in range(rounds):
        sending.sleep(10)
        sending.run()


def die(sending: Sending) -> None:
    """Drop the sender without a clean close."""
    overflow = overflow_of(sending)
    overflow._directory.abandon()
    for backlog in overflow._backlogs.values():
        backlog.rest()
        backlog.file.close()
    rounds = sending.sender._rounds
    assert rounds is not None
    for wire in rounds._sink_batches.remove_all():
        for buffer in wire.buffers:
            buffer.release()
    sending.sender._half.close()
    sending.sender._rounds = None
    sending.sender._overflow = None
    sending.sender._close_wake_fds()
    presence = sending.sender._presence
    assert presence is not None
    presence.close()


class AwayLog(LogSink):
    """A log that a test can switch off. It accepts as few batches in flight as a broker."""

    in_flight_max = 5
    is_away = True

    @property
    def outage(self) -> str | None:
        return "nobody answers" if self.is_away else super().outage

    def plan(self, ready: Sequence[int]) -> Sequence[Sequence[int]]:
        return [] if self.is_away else super().plan(ready)


def check_deaths_repeat_nothing(
    arena_name: str,
    folder: Path,
    steps: Random,
    prepare: Callable[[Arena | str], tuple[Sender, Callable[[], object]]],
    partition_of: Callable[[int], int] = lambda _: 0,
) -> None:
    """Kill senders before about every 40th system call. Check that the log has each record once, in order, and that
    results arrive.

    Args:
        folder: the folder of the log ``sink``.
        steps: the number of system calls between two deaths.
        prepare: opens a sender with an overflow and returns its work.
        partition_of: the partition of each of the 14 records before a death.
    """
    death_count = number = appended = 0
    expected: defaultdict[int, list[int]] = defaultdict(list)
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB") as arena, Accumulator(arena) as producer:
        is_dead = True
        while is_dead:
            number += steps.randint(20, 60)
            tokens = []
            for place in range(14):
                tokens.append(producer.append(TOPIC, partition_of(place), 1000, None, b"%d" % appended))
                producer.flush_begin()
                expected[partition_of(place)].append(appended)
                appended += 1
            is_dead = dies_at_system_call(lambda: prepare(arena_name)[1], number)
            death_count += is_dead
            sender, work = prepare(arena)
            work()
            sender.close()
            for partition, values in expected.items():
                records = LogReader(folder / "sink").partition(TOPIC, partition).records()
                assert [int(record.value or b"") for record in records] == values, f"killed before call {number}"
            results = [found.result for token in tokens if (found := producer.find(token)) is not None]
            assert results == [BatchResult.SUCCEEDED] * len(tokens), f"killed before call {number}"
    assert death_count > 3


def run_rounds(sender: Sender, count: int) -> None:
    for _ in range(count):
        sender._wake()
        sender.run_once()
