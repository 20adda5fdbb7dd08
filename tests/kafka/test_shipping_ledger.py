# SPDX-License-Identifier: Apache-2.0
"""Millions of records are shipped once and in order, despite kills and lost connections."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shmaccum.common.format.batch_header import HEADER_SIZE, BatchHeader, read_header, sealed_header
from shmaccum.log.files import LogDirectory
from shmaccum.log.files.shipping_positions import read_shipped
from shmaccum.sender.sinks.sink import IN_FLIGHT_MAX
from tests.kafka.conftest import OpenFake
from tests.kafka.fake_broker import Arrived, Cut, FakeCluster, Reply
from tests.kafka.test_shipping import OUT_OF_ORDER, ship, shipping_child
from tests.support.processes import wait_until
from tests.support.segment_log import START_MS, TOPIC, MadeBatch, make_batch, offsets

RECORD_COUNT = 1_000
PARTITION_COUNT = 4
SEQUENCE_COUNT = 2**31
KILL_COUNT = 6
CUT_CHANCE = 0.01


def numbered_batches(first: int, end: int) -> Iterator[MadeBatch]:
    """Batches of the same records. The time of each is its number."""
    records = make_batch([b"%03d" % number for number in range(RECORD_COUNT)]).wire[HEADER_SIZE:]
    for number in range(first, end):
        time_ms = START_MS + number
        header = BatchHeader(0, 0, -1, 2, 0, 0, RECORD_COUNT - 1, time_ms, time_ms, -1, -1, -1, RECORD_COUNT)
        yield MadeBatch(sealed_header(header, records) + records)


@dataclass
class Page:
    """A partition: the numbers of its batches, and the last batches of the producer."""

    numbers: list[int] = field(default_factory=list)
    epoch: int = -1
    next_sequence: int = 0
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=IN_FLIGHT_MAX))


class Ledger:
    """A broker's memory without records. It cuts connections before and after it appends a batch."""

    def __init__(self, cluster: FakeCluster, chance: random.Random) -> None:
        self.pages = [Page() for _ in range(PARTITION_COUNT)]
        self._lock = threading.Lock()
        self._chance = chance
        cluster.on_produce = self._take_or_cut

    def count(self) -> int:
        """The number of its batches."""
        return sum(len(page.numbers) for page in self.pages)

    def _take_or_cut(self, arrived: Arrived) -> Reply:
        with self._lock:
            draw = self._chance.random()
            if draw < CUT_CHANCE:
                raise Cut
            reply = self._take(self.pages[arrived.partition], read_header(arrived.wire_bytes))
            if draw < 2 * CUT_CHANCE:
                raise Cut
            return reply

    @staticmethod
    def _take(page: Page, header: BatchHeader) -> Reply:
        """Checks and appends a batch as Kafka's ProducerStateManager does."""
        if header.producer_epoch == page.epoch and header.base_sequence in page.recent:
            return Reply()
        if header.base_sequence != (page.next_sequence if header.producer_epoch == page.epoch else 0):
            return Reply(OUT_OF_ORDER)
        page.epoch = header.producer_epoch
        page.next_sequence = (header.base_sequence + header.record_count) % SEQUENCE_COUNT
        page.recent.append(header.base_sequence)
        page.numbers.append(header.base_timestamp_ms - START_MS)
        return Reply()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("batch_count", [200, pytest.param(10_000, marks=pytest.mark.soak)])
def test_every_record_of_a_ledger_arrives_once_and_in_order(
    tmp_path: Path, open_fake: OpenFake, batch_count: int
) -> None:
    """The long form has ten million records."""
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    log, share = tmp_path / "log", batch_count // PARTITION_COUNT
    with LogDirectory(log) as directory:
        directory.create_topic(TOPIC, PARTITION_COUNT)
        for partition in range(PARTITION_COUNT):
            for batch in numbered_batches(partition * share, (partition + 1) * share):
                offsets(directory.partition(TOPIC, partition).append([batch]))
    cluster = open_fake(topics={TOPIC: PARTITION_COUNT})
    ledger = Ledger(cluster, chance)
    for _ in range(KILL_COUNT):
        wanted = min(ledger.count() + chance.randint(1, batch_count // KILL_COUNT), batch_count)
        with shipping_child(log, cluster.bootstrap):
            wait_until(lambda: ledger.count() >= wanted, "batches arrive")  # noqa: B023
        cluster.arrived.clear()
    ship(log, cluster.bootstrap)
    assert [page.numbers for page in ledger.pages] == [
        list(range(partition * share, (partition + 1) * share)) for partition in range(PARTITION_COUNT)
    ]
    positions = read_shipped(str(log)).positions.values()
    assert sum(position.offset for position in positions) == batch_count * RECORD_COUNT
