# SPDX-License-Identifier: Apache-2.0
"""Millions of records are delivered once and in order, despite outages and kills of senders with an overflow."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bench.parts.draining_broker import TOPIC as BROKER_TOPIC
from bench.parts.draining_broker import draining_broker
from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.common.format.batch_header import read_header
from shmaccum.sender import Sender
from tests.kafka.conftest import OpenFake
from tests.kafka.fake_broker import Arrived, Cut, FakeCluster, Reply
from tests.kafka.test_overflow import OPTIONS, AwayKafka
from tests.kafka.test_shipping import SINK_OPTIONS
from tests.kafka.test_shipping_ledger import CUT_CHANCE, Ledger, Page
from tests.support.processes import wait_until
from tests.support.segment_log import START_MS
from tests.support.sender import TOPIC

PARTITION_COUNT = 2
RUN_COUNT = 500
"""The number of records in a producer's call."""
KILL_COUNT = 6
GIGABYTE_COUNT = 1_000_000
PHASE_S = 0.2
"""The longest time that the sink works, or is away."""


class CountingLedger(Ledger):
    """A broker's memory with the number of records and the order of times in each partition."""

    def __init__(self, cluster: FakeCluster, chance: random.Random) -> None:
        super().__init__(cluster, chance)
        self.record_counts = [0] * PARTITION_COUNT
        cluster.on_produce = self._count_or_cut

    def _count_or_cut(self, arrived: Arrived) -> Reply:
        with self._lock:
            page = self.pages[arrived.partition]
            if (draw := self._chance.random()) < CUT_CHANCE:
                raise Cut
            header, before = read_header(arrived.wire_bytes), len(page.numbers)
            reply = self._take(page, header)
            if len(page.numbers) > before:
                self.record_counts[arrived.partition] += header.record_count
            if draw < 2 * CUT_CHANCE:
                raise Cut
            return reply


@contextlib.contextmanager
def child(work: Callable[[], object]) -> Iterator[int]:
    """Runs *work* in a process that is killed at the end."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def produce(arena_name: str, run_count: int) -> None:
    """Sends runs of records to the partitions in turn. The time of a record is the number of its run."""
    producer = Producer(arena_name, max_block_ms=3_600_000)
    for number in range(run_count):
        times = [START_MS + number // PARTITION_COUNT] * RUN_COUNT
        producer.send_many(TOPIC, [b"12345678"] * RUN_COUNT, partition=number % PARTITION_COUNT, timestamps_ms=times)
    producer.flush()


def send_with_outages(arena_name: str, bootstrap: str, folder: Path, seed: int) -> None:
    """Runs a sender whose sink alternately works and is away."""
    chance = random.Random(seed)
    sink = AwayKafka(bootstrap, **SINK_OPTIONS)
    sender = Sender(arena_name, sink, **{**OPTIONS, "overflow": f"log:{folder}/overflow"})
    sender.open()
    while True:
        sink.is_away = not sink.is_away
        end_s = time.monotonic() + chance.uniform(0, PHASE_S)
        while time.monotonic() < end_s:
            sender.run_once()


@contextlib.contextmanager
def away_sender(arena: Arena, port: int, folder: Path, overflow_at: int) -> Iterator[tuple[Sender, AwayKafka]]:
    """A sender that delivers nothing yet."""
    sink = AwayKafka(f"127.0.0.1:{port}", send_buffer_bytes=-1, **SINK_OPTIONS)
    options = {**OPTIONS, "overflow": f"log:{folder}/overflow", "overflow_at": overflow_at}
    with Sender(arena, sink, **options) as sender:
        sender.open()
        yield sender, sink


def seconds_per_byte(sender: Sender, sink: AwayKafka, arena: Arena, size: int) -> float:
    """End the outage, and measure the time per byte until the arena is current."""
    sink.is_away = False
    begun_s = time.monotonic()
    while sender._rounds is not None and not sender._rounds.is_idle:
        sender.run_once()
    assert arena.native.spilled()["partitions"] == []
    return (time.monotonic() - begun_s) / size


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_after_an_outage_of_a_gigabyte_the_arena_is_soon_current_again(arena_name: str, tmp_path: Path) -> None:
    """Print and compare the time per byte of the overflow and of the arena."""
    value = bytes(1000)

    def produce_large(count: int) -> None:
        producer = Producer(arena_name, max_block_ms=3_600_000)
        for number in range(count // RUN_COUNT):
            producer.send_many(BROKER_TOPIC, [value] * RUN_COUNT, partition=number % PARTITION_COUNT)
        producer.close(0)

    def run_until_produced(sender: Sender, count: int) -> None:
        with child(lambda: produce_large(count)) as pid:
            while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                sender.run_once()

    with (
        Arena.create(arena_name, buffer_memory="1200MiB", batch_size="16KiB") as arena,
        draining_broker(PARTITION_COUNT, answers_each=True) as (port, _),
    ):
        try:
            with away_sender(arena, port, tmp_path, 100) as (sender, sink):
                run_until_produced(sender, GIGABYTE_COUNT)
                of_the_arena = seconds_per_byte(sender, sink, arena, GIGABYTE_COUNT * len(value))
            with away_sender(arena, port, tmp_path, 1) as (sender, sink):
                run_until_produced(sender, GIGABYTE_COUNT)
                of_the_overflow = seconds_per_byte(sender, sink, arena, GIGABYTE_COUNT * len(value))
            failed = arena.native.counters()["batches failed"] + arena.native.counters()["batches expired"]
        finally:
            Arena.remove(arena_name)
    print(f"a byte takes {of_the_overflow * 1e9:.2f} ns from the overflow, {of_the_arena * 1e9:.2f} ns from the arena")
    assert failed == 0


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("run_count", [40, pytest.param(20_000, marks=pytest.mark.soak)])
def test_every_record_of_a_ledger_outlasts_outages_and_kills(
    arena_name: str, open_fake: OpenFake, tmp_path: Path, seeded: Callable[[], random.Random], run_count: int
) -> None:
    """The long form has ten million records."""
    chance = seeded()
    cluster = open_fake(topics={TOPIC: PARTITION_COUNT})
    ledger = CountingLedger(cluster, chance)
    count = run_count * RUN_COUNT

    def arrived_count() -> int:
        cluster.arrived.clear()
        return sum(ledger.record_counts)

    with Arena.create(arena_name, buffer_memory="1MiB", batch_size="16KiB"):
        try:
            with child(lambda: produce(arena_name, run_count)):
                while arrived_count() < count:
                    kill_at = min(arrived_count() + chance.randint(1, count // KILL_COUNT), count)
                    seed = chance.randrange(2**32)
                    with child(lambda: send_with_outages(arena_name, cluster.bootstrap, tmp_path, seed)):  # noqa: B023
                        wait_until(lambda: arrived_count() >= kill_at, "records arrive")  # noqa: B023
        finally:
            Arena.remove(arena_name)
    assert ledger.record_counts == [count // PARTITION_COUNT] * PARTITION_COUNT
    for page in ledger.pages[:PARTITION_COUNT]:
        check_order(page)


def check_order(page: Page) -> None:
    assert page.numbers == sorted(page.numbers)
