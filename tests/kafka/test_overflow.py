# SPDX-License-Identifier: Apache-2.0
"""Delivery of the overflow to brokers: native batch loops, deaths, disconnections and damage."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.common.format.batch_header import HEADER_SIZE, read_header
from shmaccum.sender import Sender
from shmaccum.sender.backlog import Backlog
from shmaccum.sender.overflow import Overflow
from shmaccum.sender.sinks.kafka.sink import KafkaSink
from shmaccum.sender.sinks.stream_end import StreamEnd
from tests.kafka.conftest import OpenFake
from tests.kafka.fake_broker import Arrived, Cut, FakeCluster, Reply
from tests.kafka.test_shipping import CORRUPT_MESSAGE, SINK_OPTIONS, Broker
from tests.support.accumulator import Accumulator
from tests.support.overflow import run_rounds
from tests.support.processes import WATCHDOG_S
from tests.support.sender import TOPIC
from tests.support.system_calls import dies_at_system_call

SLOT_COUNT = 32
OPTIONS: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 1, "retry_backoff_max_ms": 10, "overflow_at": 1}
PARTITION_COUNT = 2


class AwayKafka(KafkaSink):
    """A sink to brokers with a switch for outages.

    Attributes:
        is_away: the sink delivers nothing.
    """

    is_away = True

    @property
    def outage(self) -> str | None:
        return "no broker answers" if self.is_away else super().outage

    def plan(self, ready: Sequence[int]) -> Sequence[Sequence[int]]:
        return [] if self.is_away else super().plan(ready)


class Outage:
    """An arena, a fake cluster, and senders that spill and then deliver."""

    def __init__(self, arena: Arena, cluster: FakeCluster, folder: Path) -> None:
        self.arena = arena
        self.cluster = cluster
        self.folder = folder
        self.broker = Broker(cluster)
        self.producer = Accumulator(arena)
        self.appended: dict[int, list[bytes]] = {partition: [] for partition in range(PARTITION_COUNT)}
        self.tokens: list[Any] = []

    def append(self, count: int) -> None:
        """Append batches of two records to the partitions in turn."""
        for number in range(count):
            partition = number % PARTITION_COUNT
            for _ in range(2):
                value = b"%d" % len(self.appended[partition])
                self.tokens.append(self.producer.append(TOPIC, partition, 1000, None, value))
                self.appended[partition].append(value)
            self.producer.flush_begin()

    def open(self, arena: Arena | str | None = None) -> tuple[Sender, AwayKafka]:
        """Open a sender whose sink is unreachable."""
        sink = AwayKafka(self.cluster.bootstrap, **SINK_OPTIONS)
        options = {**OPTIONS, "overflow": f"log:{self.folder}/overflow"}
        sender = Sender(self.arena if arena is None else arena, sink, **options)
        sender.open()
        return sender, sink

    @contextlib.contextmanager
    def spilled(self, count: int) -> Iterator[Sender]:
        """A sender that has spilled this many batches, and whose sink works again."""
        sender, sink = self.open()
        with sender:
            self.append(count)
            run_until(sender, lambda: self.arena.native.state_counts()["FREE"] >= SLOT_COUNT - 1)
            sink.is_away = False
            yield sender

    def deliver(self, sender: Sender) -> None:
        """Runs until every record has its result."""
        run_until(sender, lambda: not self.pending_count())

    def pending_count(self) -> int:
        return sum(self.producer.find(token) is None for token in self.tokens)

    def check(self) -> None:
        """Check that each record arrived once, in order, and has its result."""
        assert self.broker.values() == {key: values for key, values in self.appended.items() if values}
        found = [self.producer.find(token) for token in self.tokens]
        assert {one.result for one in found if one is not None} == {BatchResult.SUCCEEDED}

    def close(self) -> None:
        """Leaves the arena idle."""
        self.producer.become_sender()
        self.producer.abort(True)
        self.producer.maintain()
        self.producer.close()


def run_until(sender: Sender, is_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WATCHDOG_S
    while not is_true():
        assert time.monotonic() < deadline_s
        run_rounds(sender, 1)


@pytest.fixture
def outage(arena_name: str, open_fake: OpenFake, tmp_path: Path) -> Iterator[Outage]:
    with Arena.create(arena_name, buffer_memory=SLOT_COUNT * 4096, batch_size="4KiB") as arena:
        one = Outage(arena, open_fake(topics={TOPIC: PARTITION_COUNT}), tmp_path)
        yield one
        one.close()


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[StreamEnd]:
    """The state in which the native batch loops left each partition."""
    told: list[StreamEnd] = []
    take = Backlog.take

    def note(backlog: Backlog, end: StreamEnd) -> None:
        told.append(end)
        take(backlog, end)

    monkeypatch.setattr(Backlog, "take", note)
    return told


def test_ordinary_batches_go_in_a_batch_loop_and_have_their_results(outage: Outage, ends: list[StreamEnd]) -> None:
    with outage.spilled(SLOT_COUNT - 2) as sender:
        outage.deliver(sender)
        outage.append(4)
        outage.deliver(sender)
        assert sender.metrics()["record-send-total"] == len(outage.tokens)
    outage.check()
    found = [outage.producer.find(token) for token in outage.tokens[: 2 * SLOT_COUNT - 4]]
    assert [one.base_offset for one in found if one is not None] == [
        offset for offset in range(0, SLOT_COUNT - 2, 2) for _ in range(2 * PARTITION_COUNT)
    ]
    assert sum(end.delivered.batch_count for end in ends) >= SLOT_COUNT // 4
    assert outage.arena.native.spilled()["partitions"] == []


def test_the_arena_continues_with_its_own_sequences_after_a_batch_loop(outage: Outage) -> None:
    with outage.spilled(SLOT_COUNT - 2) as sender:
        outage.append(6)
        outage.deliver(sender)
    outage.check()
    sequences = [arrived.sequence for arrived in outage.cluster.arrived if arrived.partition == 0]
    assert [sequence for _, _, sequence in sequences] == list(range(0, 2 * len(sequences), 2))
    assert len({(producer_id, epoch) for producer_id, epoch, _ in sequences}) == 1


def test_connections_that_are_cut_repeat_and_lose_nothing(outage: Outage, seeded: Callable[[], random.Random]) -> None:
    chance = seeded()

    def take_or_cut(arrived: Arrived) -> Reply:
        draw = chance.random()
        if draw < 0.05:
            raise Cut
        reply = outage.broker.take(arrived)
        if draw < 0.1:
            raise Cut
        return reply

    outage.cluster.on_produce = take_or_cut
    with outage.spilled(SLOT_COUNT - 2) as sender:
        outage.deliver(sender)
    outage.check()


def test_damage_that_the_broker_finds_costs_one_batch(outage: Outage) -> None:
    outage.cluster.on_damage = lambda arrived: Reply(CORRUPT_MESSAGE)  # noqa: ARG005
    with outage.spilled(SLOT_COUNT - 2) as sender:
        (log,) = (outage.folder / "overflow" / f"{TOPIC}-0").glob("*.log")
        content = bytearray(log.read_bytes())
        place = 0
        for _ in range(10):
            place += read_header(content[place:]).size
        content[place + HEADER_SIZE + 3] ^= 0xFF
        log.write_bytes(content)
        run_until(sender, lambda: not overflow_of(sender))
    assert outage.broker.values()[0] == outage.appended[0][:20] + outage.appended[0][22:]
    assert outage.broker.values()[1] == outage.appended[1]


def test_a_position_that_cannot_be_written_sends_nothing_twice(
    outage: Outage, monkeypatch: pytest.MonkeyPatch, ends: list[StreamEnd]
) -> None:
    with outage.spilled(SLOT_COUNT - 2) as sender, contextlib.ExitStack() as opened:
        for backlog in overflow_of(sender)._backlogs.values():
            position = backlog.file.position_for_native_call
            unwritable = os.open(backlog.file._path, os.O_RDONLY)
            opened.callback(os.close, unwritable)
            monkeypatch.setattr(
                backlog.file, "position_for_native_call", lambda it=unwritable, its=position: (it, *its()[1:])
            )
        outage.deliver(sender)
    outage.check()
    assert [end.delivered.batch_count for end in ends] == [0] * len(ends) != []


def overflow_of(sender: Sender) -> Overflow:
    assert sender._overflow is not None
    return sender._overflow


@pytest.mark.parametrize("stride", [pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1800)]), 400])
def test_a_sender_that_dies_at_any_system_call_of_an_outage_sends_each_record_once(
    outage: Outage, arena_name: str, seeded: Callable[[], random.Random], stride: int
) -> None:
    """Kill before every system call of spilling and shipping, or about every 400th."""
    chance = seeded()
    number, death_count, is_dying = chance.randint(1, stride), 0, True

    def prepare() -> Callable[[], object]:
        sender, sink = outage.open(arena_name)

        def spill_and_return() -> None:
            run_rounds(sender, 4)
            sink.is_away = False
            run_until(sender, lambda: not outage.arena.native.spilled()["partitions"])

        return spill_and_return

    while is_dying:
        outage.append(SLOT_COUNT // 2)
        is_dying = dies_at_system_call(prepare, number)
        death_count += is_dying
        sender, sink = outage.open()
        with sender:
            sink.is_away = False
            outage.deliver(sender)
        outage.check()
        outage.tokens.clear()
        outage.cluster.arrived.clear()
        number += chance.randint(1, 2 * stride - 1)
    assert death_count > 0
