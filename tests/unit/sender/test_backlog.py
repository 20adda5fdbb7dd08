# SPDX-License-Identifier: Apache-2.0
"""A partition of an overflow, and the rows of its batches."""

from __future__ import annotations

import contextlib
import gc
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files import LogReader
from shmaccum.sender.backlog import Backlog
from shmaccum.sender.backoff import Backoff
from shmaccum.sender.sinks.sink import Ack, Verdict
from shmaccum.sender.spill_file import OverflowBatch, OverflowPosition, SpillFile
from tests.support.segment_log import TOPIC, make_batch, make_batches, open_log

PLACE = TopicPartition(TOPIC, 0)
BATCH_COUNT, DELIVERED_COUNT, RECORD_COUNT, WINDOW = 400, 350, 3, 5
ARENA = 7
READ_SIZE = 1 << 20
LARGE = 100_000
"""Bytes of a batch that is larger than a block of the reader."""


def test_sequences_start_again_from_zero_past_the_largest_one_also_within_a_batch(tmp_path: Path) -> None:
    first = 2**31 - 1
    with open_log(tmp_path / "log") as directory:
        directory.create_topic(TOPIC, 1)
        directory.partition(*PLACE).append([make_batch([b"v"] * RECORD_COUNT, producer=(4711, 2, first))])
    with contextlib.closing(SpillFile(str(tmp_path / "rows"), is_synced=False)) as file:
        reader = LogReader(tmp_path / "log").partition(*PLACE)
        backlog = Backlog(0, PLACE, reader, file, ARENA, in_flight_max=WINDOW, backoff=Backoff(100, 1000), report=print)
        file.write_position(OverflowPosition(1))
        backlog.continue_from(RECORD_COUNT)
        backlog.read(0, READ_SIZE)
        wire = backlog.window.shipments[0].wire
        assert (wire.producer_id, wire.producer_epoch, wire.base_sequence) == (4711, 2, 0)
        backlog.rest()


def test_a_sender_finds_the_rows_after_the_position_without_those_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_log(tmp_path / "log") as directory:
        directory.create_topic(TOPIC, 1)
        directory.partition(*PLACE).append(make_batches(BATCH_COUNT))
    with contextlib.closing(SpillFile(str(tmp_path / "rows"), is_synced=False)) as file:
        file.append([OverflowBatch(n * RECORD_COUNT, n, n, RECORD_COUNT, ARENA) for n in range(BATCH_COUNT)])
        file.write_position(OverflowPosition(DELIVERED_COUNT * RECORD_COUNT))
        reader = LogReader(tmp_path / "log").partition(*PLACE)
        backoff = Backoff(100, 1000)
        backlog = Backlog(0, PLACE, reader, file, ARENA, in_flight_max=WINDOW, backoff=backoff, report=print)
        backlog.continue_from(BATCH_COUNT * RECORD_COUNT)
        read: list[int] = []
        row = SpillFile.row

        def note(self: SpillFile, index: int) -> OverflowBatch | None:
            read.append(index)
            return row(self, index)

        monkeypatch.setattr(SpillFile, "row", note)
        backlog.read(0, READ_SIZE)
        backlog.rest()
    assert [spilled.seq for spilled in backlog.window.shipments] == list(
        range(DELIVERED_COUNT, DELIVERED_COUNT + WINDOW)
    )
    assert len(read) < DELIVERED_COUNT // 10


def test_no_batch_is_read_once_the_window_has_so_many_bytes(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as directory:
        directory.create_topic(TOPIC, 1)
        directory.partition(*PLACE).append(make_batches(WINDOW))
    with contextlib.closing(SpillFile(str(tmp_path / "rows"), is_synced=False)) as file:
        reader = LogReader(tmp_path / "log").partition(*PLACE)
        backlog = Backlog(0, PLACE, reader, file, ARENA, in_flight_max=WINDOW, backoff=Backoff(100, 1000), report=print)
        backlog.continue_from(WINDOW * RECORD_COUNT)
        size = next(iter(reader.batches())).size
        counts = []
        for limit in (0, size, 3 * size):
            backlog.read(0, limit)
            counts.append(len(backlog.window.shipments))
        backlog.rest()
    assert counts == [1, 1, 3]


@pytest.fixture
def _without_collections() -> Iterator[None]:
    """Objects that refer to each other stay in memory."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


def shipping_peak(folder: Path, batch_count: int) -> int:
    """The most bytes of memory, while a partition with this many large batches is shipped."""
    with open_log(folder / "log") as directory:
        directory.create_topic(TOPIC, 1)
        for number in range(batch_count):
            directory.partition(*PLACE).append([make_batch([bytes(LARGE)], producer=(4711, 2, number))])
    with contextlib.closing(SpillFile(str(folder / "rows"), is_synced=False)) as file:
        reader = LogReader(folder / "log").partition(*PLACE)
        backlog = Backlog(0, PLACE, reader, file, ARENA, in_flight_max=WINDOW, backoff=Backoff(100, 1000), report=print)
        backlog.continue_from(batch_count)
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        while not backlog.is_empty:
            backlog.read(0, READ_SIZE)
            for shipment in list(backlog.window.shipments):
                backlog.window.sent(shipment)
                backlog.end(Ack(shipment.wire, Verdict.DELIVERED))
            del shipment
            backlog.advance(backlog.window.due())
        backlog.rest()
    return tracemalloc.get_traced_memory()[1] - before


@pytest.mark.usefixtures("_without_collections")
def test_a_partition_that_is_shipped_needs_the_memory_of_its_window(tmp_path: Path) -> None:
    short, long = (shipping_peak(tmp_path / str(count), count) for count in (2 * WINDOW, 8 * WINDOW))
    print(f"{short} and {long} bytes")
    assert long - short < LARGE / 2
    assert long < (WINDOW + 2) * LARGE
