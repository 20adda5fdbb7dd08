# SPDX-License-Identifier: Apache-2.0
"""Batches spill a second after the last acknowledgement, and batches of a stuck partition spill at once."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from shmaccum._native import LogEnd
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.log.files.producer_state import KEPT_COUNT
from shmaccum.sender import Sender
from shmaccum.sender.sinks.sink import WireBatch
from tests.support.overflow import (
    FAST,
    SLOT_COUNT,
    AwayLog,
    Open,
    away,
    check_deaths_repeat_nothing,
    die,
    overflow_of,
    run_rounds,
    settle,
)
from tests.support.sender import TOPIC, Sending


def fill(sending: Sending, count: int = SLOT_COUNT) -> None:
    for _ in range(count):
        sending.append()


def takes_nothing(sending: Sending) -> None:
    sending.scripted.plan_filter = lambda _: False


def takes_all(sending: Sending) -> None:
    sending.scripted.plan_filter = lambda _: True


def spilled_count(sending: Sending) -> int:
    return int(overflow_of(sending).metrics()["overflow-batches"])


def stick(sending: Sending, partition: int = 0) -> None:
    """Make a partition unavailable, as if it had no leader."""
    index = sending.sender._half.partition_index(TOPIC, partition)
    sending.sender._half.set_available(index, False)
    sending.scripted.plan_filter = lambda one: one != index


def recover(sending: Sending, partition: int = 0) -> None:
    sending.sender._half.set_available(sending.partition_index(partition), True)
    takes_all(sending)


# --- an outage


def test_a_full_arena_spills_a_second_after_the_last_acknowledgement(open_sending: Open) -> None:
    sending = open_sending()
    sending.append()
    settle(sending, 2)
    takes_nothing(sending)
    fill(sending)
    settle(sending, 95)
    assert spilled_count(sending) == 0
    settle(sending, 20)
    assert spilled_count(sending) >= SLOT_COUNT // 2
    takes_all(sending)
    settle(sending, 20)
    assert sending.values() == list(range(SLOT_COUNT + 1))


def test_the_time_without_an_acknowledgement_is_an_option(open_sending: Open) -> None:
    sending = open_sending(overflow_after_ms="100ms")
    takes_nothing(sending)
    fill(sending)
    settle(sending, 15)
    assert spilled_count(sending) > 0


def test_a_slow_sink_that_acknowledges_has_no_outage(open_sending: Open) -> None:
    sending = open_sending()
    takes_nothing(sending)
    fill(sending)
    for _ in range(6):
        settle(sending, 50)
        sending.scripted.is_held = True
        takes_all(sending)
        sending.run()
        takes_nothing(sending)
        sending.scripted.is_held = False
        sending.run()
        fill(sending, sending.arena.native.state_counts()["FREE"])
    assert spilled_count(sending) == 0
    assert len(sending.values()) >= 6


def test_idle_time_is_no_outage(open_sending: Open) -> None:
    sending = open_sending()
    sending.append()
    settle(sending, 300)
    takes_nothing(sending)
    fill(sending)
    settle(sending, 95)
    assert spilled_count(sending) == 0
    settle(sending, 20)
    assert spilled_count(sending) > 0


def test_batches_that_linger_are_no_outage(open_sending: Open) -> None:
    sending = open_sending(linger_ms=5000, overflow_at=25)
    for partition in range(8):
        sending.producer.append(TOPIC, partition, sending.now_ms, None, b"0")
    settle(sending, 505)
    assert spilled_count(sending) == 0
    assert sending.values(7) == [0]


def test_an_arena_that_is_not_full_does_not_spill_in_an_outage(open_sending: Open) -> None:
    sending = open_sending()
    takes_nothing(sending)
    fill(sending, SLOT_COUNT // 2)
    settle(sending, 300)
    assert spilled_count(sending) == 0


def test_a_sender_that_takes_over_continues_with_the_outage(open_sending: Open) -> None:
    sending = open_sending()
    takes_nothing(sending)
    fill(sending)
    settle(sending, 70)
    die(sending)
    sending = open_sending(now_ms=sending.now_ms)
    takes_nothing(sending)
    settle(sending, 40)
    assert spilled_count(sending) > 0


def test_time_without_a_sender_is_no_outage(open_sending: Open) -> None:
    sending = open_sending()
    takes_nothing(sending)
    fill(sending)
    settle(sending, 70)
    die(sending)
    sending.jump(60_000)
    sending = open_sending(now_ms=sending.now_ms)
    takes_nothing(sending)
    settle(sending, 90)
    assert spilled_count(sending) == 0
    settle(sending, 20)
    assert spilled_count(sending) > 0


def test_time_in_which_the_sender_was_stopped_is_no_outage(open_sending: Open) -> None:
    sending = open_sending()
    takes_nothing(sending)
    fill(sending)
    settle(sending, 20)
    sending.jump(60_000)
    settle(sending, 50)
    assert spilled_count(sending) == 0


# --- a stuck partition


def test_a_stuck_partition_spills_and_the_others_continue(open_sending: Open) -> None:
    sending = open_sending()
    sending.append(0)
    settle(sending, 2)
    stick(sending)
    for _ in range(3 * SLOT_COUNT):
        sending.append(0)
        sending.append(1)
        settle(sending, 2)
        assert set(overflow_of(sending)._backlogs) <= {sending.partition_index(0)}
    assert overflow_of(sending).holds(sending.partition_index(0))
    assert sending.values(1) == list(range(2, 6 * SLOT_COUNT + 1, 2))
    assert sending.values(0) == [0]
    recover(sending)
    settle(sending, 100)
    assert sending.values(0) == [0, *range(1, 6 * SLOT_COUNT, 2)]
    assert not overflow_of(sending)


def test_a_partition_that_recovers_is_emptied_beside_one_that_is_stuck(open_sending: Open) -> None:
    sending = open_sending()
    for partition in (0, 1):
        stick(sending, partition)
    sending.scripted.plan_filter = lambda _: False
    for _ in range(SLOT_COUNT):
        sending.append(0)
        sending.append(1)
        settle(sending, 2)
    recover(sending, 1)
    sending.scripted.plan_filter = lambda index: index != sending.partition_index(0)
    settle(sending, 50)
    assert sending.values(1) == list(range(1, 2 * SLOT_COUNT, 2))
    assert sending.values(0) == []
    recover(sending, 0)
    settle(sending, 50)
    assert sending.values(0) == list(range(0, 2 * SLOT_COUNT, 2))


def test_a_stuck_partition_that_holds_little_stays_in_the_arena(open_sending: Open) -> None:
    sending = open_sending()
    stick(sending)
    fill(sending, 4)
    settle(sending, 50)
    assert spilled_count(sending) == 0


def test_the_batches_of_a_stuck_partition_spill_before_they_expire(open_sending: Open) -> None:
    sending = open_sending(delivery_timeout_ms=30_000, request_timeout_ms=1000)
    stick(sending)
    (token,) = sending.append(0)
    for _ in range(120):
        sending.append(1)
        sending.sleep(500)
        sending.run(2)
    assert sending.result(token) is None
    assert spilled_count(sending) == 1
    recover(sending)
    settle(sending, 20)
    assert sending.result(token) is BatchResult.SUCCEEDED


# --- batches in flight


def in_flight_and_spilled(sending: Sending) -> None:
    """Leave batches of partition 0 in flight without an ack, and let the younger ones spill."""
    sending.append()
    settle(sending, 3)
    sending.scripted.is_held = True
    fill(sending)
    settle(sending, 120)
    assert len(sending.scripted.held) == 5
    assert spilled_count(sending) >= SLOT_COUNT // 2
    assert sending.arena.native.state_counts()["READY"] < SLOT_COUNT - 1


def test_batches_in_flight_spill_before_the_younger_ones(open_sending: Open) -> None:
    sending = open_sending()
    in_flight_and_spilled(sending)
    sending.scripted.is_held = False
    settle(sending, 30)
    assert sending.values() == list(range(SLOT_COUNT + 1))
    assert sending.arena.native.state_counts()["FREE"] == SLOT_COUNT


def test_nothing_of_a_partition_is_shipped_while_the_sink_has_its_batches(open_sending: Open) -> None:
    sending = open_sending()
    in_flight_and_spilled(sending)
    delivery_count = len(sending.scripted.deliveries)
    settle(sending, 50)
    assert len(sending.scripted.deliveries) == delivery_count


def test_a_death_with_spilled_batches_in_flight_repeats_nothing(open_sending: Open) -> None:
    sending = open_sending()
    in_flight_and_spilled(sending)
    for _ in range(KEPT_COUNT):  # so the log no longer has the sequences of the first ones
        sending.append()
        settle(sending, 2)
    count = spilled_count(sending)
    die(sending)
    sending = open_sending(is_away=True, overflow_at=100)
    settle(sending, 5)
    assert spilled_count(sending) == count
    away(sending).is_away = False
    settle(sending, 40)
    assert sending.values() == list(range(SLOT_COUNT + 1 + KEPT_COUNT))
    assert sending.arena.native.state_counts()["FREE"] == SLOT_COUNT
    assert not overflow_of(sending)


class NoEnds(dict[int, LogEnd]):
    """Keeps the core from appending by itself."""

    def __setitem__(self, partition_index: int, log_end: LogEnd) -> None:
        pass


class StuckLog(AwayLog):
    """A log that returns no ack for batches of partition 0 while that is stuck."""

    is_away = False

    def __init__(self, path: str) -> None:
        super().__init__(path, partitions=2)
        self.log_ends = NoEnds()
        self.is_stuck = True
        self.kept: list[WireBatch] = []

    def deliver(self, batches: Sequence[WireBatch]) -> None:
        if self.is_stuck:
            self.kept += [wire for wire in batches if wire.partition == 0]
            batches = [wire for wire in batches if wire.partition != 0]
        if batches:
            super().deliver(batches)

    def let_go(self) -> None:
        kept, self.kept, self.is_stuck = self.kept, [], False
        if kept:
            super().deliver(kept)


def open_stuck(arena: Arena | str, tmp_path: Path) -> tuple[Sender, StuckLog]:
    sink = StuckLog(str(tmp_path / "sink"))
    sender = Sender(arena, sink, overflow=f"log:{tmp_path}/overflow", **FAST)
    sender.open()
    sender._half.set_available(0, False)
    return sender, sink


def stick_and_recover(sender: Sender, sink: StuckLog) -> None:
    run_rounds(sender, 6)
    sink.let_go()
    sender._half.set_available(0, True)
    run_rounds(sender, 25)


def test_a_sender_that_dies_at_any_system_call_of_a_stuck_partition_repeats_nothing(
    arena_name: str, tmp_path: Path, seeded: Callable[[], random.Random]
) -> None:
    """A batch of the stuck partition is in flight."""

    def prepare(arena: Arena | str) -> tuple[Sender, Callable[[], object]]:
        sender, sink = open_stuck(arena, tmp_path)
        return sender, lambda: stick_and_recover(sender, sink)

    check_deaths_repeat_nothing(arena_name, tmp_path, seeded(), prepare, lambda place: place // 10)
