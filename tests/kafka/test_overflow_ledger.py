# SPDX-License-Identifier: Apache-2.0
"""A ledger of millions of records through outages and kills of senders with an overflow: each once, in order."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.format.batch_header import read_header
from shmaccum.sender import Sender
from tests.kafka.conftest import OpenFake
from tests.kafka.fake_broker import Arrived, Cut, FakeCluster, Reply
from tests.kafka.test_overflow import OPTIONS, AwayKafka
from tests.kafka.test_shipping import SINK_OPTIONS
from tests.kafka.test_shipping_ledger import CUT_CHANCE, Ledger, Page
from tests.log_support import START_MS
from tests.sending import TOPIC
from tests.support import wait_until

PARTITION_COUNT = 2
RUN_COUNT = 500
"""Records of a call of the producer."""
KILL_COUNT = 6
PHASE_S = 0.2
"""The sink works, or does not, for so long at most."""


class CountingLedger(Ledger):
    """A broker's memory that knows the number of records of each partition and the order of their times."""

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
    """A process that does something, and is killed at the end."""
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
    """Runs of records, in turn to the partitions; the time of a record is the number of its run."""
    producer = Producer(arena_name, max_block_ms=3_600_000)
    for number in range(run_count):
        times = [START_MS + number // PARTITION_COUNT] * RUN_COUNT
        producer.send_many(TOPIC, [b"12345678"] * RUN_COUNT, partition=number % PARTITION_COUNT, timestamps_ms=times)
    producer.flush()


def send_with_outages(arena_name: str, bootstrap: str, folder: Path, seed: int) -> None:
    """A sender whose sink works and does not work, in turn."""
    chance = random.Random(seed)
    sink = AwayKafka(bootstrap, **SINK_OPTIONS)
    sender = Sender(arena_name, sink, **{**OPTIONS, "overflow": f"log:{folder}/overflow"})
    sender.open()
    while True:
        sink.is_away = not sink.is_away
        end_s = time.monotonic() + chance.uniform(0, PHASE_S)
        while time.monotonic() < end_s:
            sender.run_once()


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
    """Times ascend."""
    assert page.numbers == sorted(page.numbers)
