# SPDX-License-Identifier: Apache-2.0
"""The source over an arena returns its waiting batches with a status each. It changes nothing, even if damaged."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make spark, or pip install '.[spark]'")

from pyspark.sql.datasource import InputPartition

from shmaccum.arena import Arena
from shmaccum.common.format.batch_header import HEADER_SIZE
from shmaccum.exceptions import (
    ArenaError,
    ArenaNotFoundError,
    CorruptArenaError,
    InvalidArgumentError,
    ShmaccumError,
)
from shmaccum.spark.arena_batches import ArenaReader, WaitingBatch, _cut
from shmaccum.spark.data_source import ShmaccumDataSource
from shmaccum.spark.settings import source_options
from tests.support.accumulator import Accumulator
from tests.support.arenas import drain

START_MS = 1_700_000_000_000
RECORDS_PER_BATCH = 5


def fill(arena: Arena) -> None:
    """Append three batches to flights-0, one to flights-1, one of two buffers to cargo-0, and a delivered one."""
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        accumulator.append("done", 0, START_MS, None, b"delivered")
        for batch in drain(accumulator):
            accumulator.complete(batch, 1, 500)
        for number in range(4 * RECORDS_PER_BATCH):
            partition = int(number >= 3 * RECORDS_PER_BATCH)
            headers = [("h", b"x")] if number % 2 else []
            accumulator.append("flights", partition, START_MS + number, b"key-%d" % number, b"v%03d" % number, headers)
            if number % RECORDS_PER_BATCH == RECORDS_PER_BATCH - 1:
                accumulator.flush_begin()
        accumulator.append("cargo", 0, START_MS, None, bytes(5000))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file of such an arena, to which no process is attached."""
    path = tmp_path / "events.arena"
    with Arena.create(path, buffer_memory="64KiB", batch_size="4KiB", process_count=16, waiter_count=8) as arena:
        fill(arena)
    return path


def planned(path: Path | str, **given: str) -> tuple[ArenaReader, list[InputPartition]]:
    """Plan and pickle like the driver, for a read elsewhere."""
    reader = ArenaReader(source_options({"arena": str(path), **given}))
    copy: tuple[ArenaReader, list[InputPartition]] = pickle.loads(pickle.dumps((reader, reader.partitions())))
    return copy


def sound_batches(path: Path | str, **given: str) -> list[Any]:
    """The resulting rows as Arrow, fully validated."""
    reader, parts = planned(path, **given)
    found = [batch for part in parts for batch in reader.read(part)]
    for batch in found:
        batch.validate(full=True)
    return found


def rows(path: Path | str, **given: str) -> list[dict[str, Any]]:
    return [row for batch in sound_batches(path, **given) for row in batch.to_pylist()]


def scribble(path: Path, text: bytes, other: bytes) -> None:
    """Replace the first occurrence of *text* by *other*."""
    at = path.read_bytes().index(text)
    with open(path, "r+b") as stream:
        stream.seek(at)
        stream.write(other)


# --- rows


def test_every_record_that_waits_has_spark_s_columns_and_nothing_is_changed(path: Path) -> None:
    before = path.read_bytes()
    found = rows(path, includeHeaders="true")
    of_flights = [row for row in found if row["topic"] == "flights" and row["partition"] == 0]
    assert [row["offset"] for row in of_flights] == list(range(15))
    assert [row["value"] for row in of_flights] == [b"v%03d" % number for number in range(15)]
    second = of_flights[1]
    assert second["key"] == b"key-1"
    assert second["timestamp"].timestamp() * 1000 == START_MS + 1
    assert second["headers"] == [{"key": "h", "value": b"x"}]
    assert sorted(row["topic"] for row in found) == ["cargo"] + ["flights"] * 20
    assert [len(row["value"]) for row in found if row["topic"] == "cargo"] == [5000]
    assert path.read_bytes() == before


def test_partitions_can_be_chosen(path: Path) -> None:
    assert len(rows(path, subscribe="flights")) == 20
    assert len(rows(path, assign='{"flights": [1], "cargo": [0]}')) == 6
    assert rows(path, subscribePattern="x.*") == []


def test_a_task_takes_as_many_batches_as_there_should_be_tasks(path: Path) -> None:
    assert len(planned(path)[1]) == 1
    assert len(planned(path, subscribe="flights", minPartitions="4")[1]) >= 4
    assert len(rows(path, subscribe="flights", minPartitions="4")) == 20


def test_a_partition_of_spark_s_own_making_has_nothing(path: Path) -> None:
    assert list(planned(path)[0].read(InputPartition(None))) == []


def test_each_record_can_report_on_its_batch(path: Path) -> None:
    found = rows(path, subscribe="flights", includeBatches="true")
    assert {row["batchState"] for row in found} == {"READY"}
    assert [row["batchSeq"] for row in found if row["partition"] == 0] == [0] * 5 + [1] * 5 + [2] * 5
    assert all(row["isChecksumRight"] and row["isReadable"] for row in found)


def test_what_is_delivered_meanwhile_is_left_out_and_what_comes_later_too(arena: Arena) -> None:
    fill(arena)
    reader, parts = planned(arena.name, subscribe="flights")
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        first = next(batch for batch in drain(accumulator) if batch.record_count == RECORDS_PER_BATCH)
        accumulator.complete(first, 1, 500)
        accumulator.maintain()
        accumulator.append("flights", 1, START_MS, None, b"later")
        found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        accumulator.abort(True)
        accumulator.maintain()
    assert b"later" not in [row["value"] for row in found]
    assert len(found) == 20 - RECORDS_PER_BATCH


# --- damage


def test_a_damaged_batch_fails_the_read_or_is_passed_over_or_shown(path: Path) -> None:
    scribble(path, b"v007", b"vXXX")
    with pytest.raises(
        CorruptArenaError, match=r"flights-0, seq 1, 5 records.*its checksum is wrong; set includeBatche"
    ):
        rows(path, subscribe="flights")
    assert len(rows(path, subscribe="flights", failOnDataLoss="false")) == 15
    shown = [row for row in rows(path, subscribe="flights", includeBatches="true") if not row["isChecksumRight"]]
    assert [row["value"] for row in shown] == [b"v005", b"v006", b"vXXX", b"v008", b"v009"]
    assert [row["offset"] for row in shown] == [5, 6, 7, 8, 9]


def test_a_batch_that_cannot_be_read_is_one_row_of_bytes(path: Path) -> None:
    with Arena.open_read_only(path) as arena:
        start = arena.native.layout["slot_data"]
    at = path.read_bytes().index(b"v007")
    assert at > start
    with open(path, "r+b") as stream:
        stream.seek(at - 20)
        stream.write(b"\xff" * 20)
    (shown,) = [row for row in rows(path, subscribe="flights", includeBatches="true") if not row["isReadable"]]
    assert (shown["topic"], shown["partition"], shown["offset"], shown["batchSeq"]) == ("flights", 0, None, 1)
    assert b"v007" in shown["value"]
    assert len(shown["value"]) > HEADER_SIZE
    with pytest.raises(CorruptArenaError, match="cannot be read"):
        rows(path, subscribe="flights")


@pytest.mark.parametrize("region", ["slot_headers", "partitions", "processes", "topics", "slot_data", "globals"])
def test_random_damage_is_reported_and_never_worse(
    path: Path, seeded: Callable[[], random.Random], region: str
) -> None:
    generator = seeded()
    whole = path.read_bytes()
    with Arena.open_read_only(path) as arena:
        start, size = arena.native.layout[region], arena.native.region(region).nbytes
    for _ in range(20):
        data = bytearray(whole)
        for _ in range(generator.choice([1, 8, size // 4])):
            data[start + generator.randrange(size)] = generator.randrange(256)
        path.write_bytes(data)
        given = {"includeHeaders": "true"} if generator.random() < 0.5 else {"includeBatches": "true"}
        try:
            sound_batches(path, **given)  # damage creates times that Python's datetime cannot represent
        except ArenaError as error:
            print(error)
        assert path.read_bytes() == data


def test_what_is_no_arena_is_refused_by_name(tmp_path: Path, path: Path) -> None:
    with pytest.raises(ArenaNotFoundError, match=r"there is no arena .*missing\.arena"):
        rows(tmp_path / "missing.arena")
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(CorruptArenaError):
        rows(path)
    path.write_text("a letter")
    with pytest.raises(ShmaccumError, match=r"events\.arena"):
        rows(path)


# --- options


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"startingOffsets": "earliest"}, "starting_offsets does not apply to an arena"),
        ({"endingTimestamp": "1"}, "ending_timestamp does not apply to an arena"),
        ({"path": "/log"}, "path and arena are both set"),
        ({"subscribe": "a", "assign": "{}"}, "found assign and subscribe"),
        ({"assign": "[]"}, "but must be a JSON object"),
    ],
)
def test_what_is_refused(path: Path, given: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        ArenaReader(source_options({"arena": str(path), **given})).partitions()
    assert sentence in str(caught.value)


def test_a_stream_reads_logs(path: Path) -> None:
    source = ShmaccumDataSource({"arena": str(path)})
    with pytest.raises(InvalidArgumentError, match=r"an arena cannot be streamed: read it once with spark\.read"):
        source.streamReader(source.schema())
    assert isinstance(source.reader(source.schema()), ArenaReader)


def test_there_are_as_many_tasks_as_min_partitions_says() -> None:
    batches = [WaitingBatch(slot, slot, 1, 0, size) for slot, size in enumerate([1, 1, 1, 1, 1, 10])]
    parts = [list(_cut(batches, count)) for count in (1, 2, 4, 6, 9)]
    assert [len(part) for part in parts] == [1, 2, 4, 6, 6]
    assert all([batch for part in each for batch in part] == batches for each in parts)
