# SPDX-License-Identifier: Apache-2.0
"""Spark reads a segment log: batches with Spark's Kafka schema, streams with limits and checkpoints."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from shmaccum.arena import Arena
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.config import LogSinkOptions
from shmaccum.log.consumer import Consumer
from shmaccum.log.files import LogDirectory
from tests.spark.conftest import needs_read_limits, run_to_its_end
from tests.support.accumulator import Accumulator
from tests.support.segment_log import START_MS, make_batch

pytestmark = pytest.mark.spark

RECORDS_PER_BATCH = 100


def append(log: Path, batch_count: int, *, first: int = 0) -> None:
    """Append batches of numbered values, half to each partition of the topic."""
    with LogDirectory(log, LogSinkOptions(partitions=2)) as directory:
        directory.create_topic("flights")
        for index in range(first, first + batch_count):
            values = [b"%d" % (index * RECORDS_PER_BATCH + n) for n in range(RECORDS_PER_BATCH)]
            batch = make_batch(values, timestamp_ms=START_MS + 1000 * index, headers=[("h", None)])
            directory.partition("flights", index % 2).append([batch])


def source(reader: Any, log: Path, **options: str) -> Any:
    return reader.format("shmaccum").options(path=str(log), subscribe="flights", **options).load()


def test_a_batch_with_headers_times_and_pruned_offsets(spark: Any, log: Path) -> None:
    append(log, 20)
    frame = source(spark.read, log, includeHeaders="true", startingTimestamp=str(START_MS + 2000), minPartitions="4")
    assert frame.count() == 18 * RECORDS_PER_BATCH
    (row,) = frame.where("offset = 100 and partition = 0").collect()
    assert (row.value, row.topic, row.timestampType) == (b"200", "flights", 0)
    assert row.timestamp.timestamp() * 1000 == START_MS + 2000
    assert [(header.key, header.value) for header in row.headers] == [("h", None)]
    assert frame.selectExpr("cast(string(value) as int) n").agg({"n": "sum"}).collect()[0][0] == sum(range(200, 2000))


def test_a_read_without_records(spark: Any, log: Path) -> None:
    append(log, 2)
    assert source(spark.read, log, startingOffsets='{"flights": {"0": -1, "1": 100}}'.replace("-1", "100")).count() == 0


@pytest.mark.spark_short
def test_what_waits_in_an_arena(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "events.arena"
    with Arena.create(path, buffer_memory="256KiB", batch_size="4KiB") as arena, Accumulator(arena) as accumulator:
        for number in range(3000):
            accumulator.append("flights", number % 2, START_MS, None, b"%d" % number)
        before = path.read_bytes()
        frame = spark.read.format("shmaccum").options(arena=str(path), includeBatches="true", minPartitions="4").load()
        assert sorted(int(row.value) for row in frame.select("value").collect()) == list(range(3000))
        (row,) = frame.where("partition = 1 and offset = 1499").collect()
        assert (row.value, row.batchState, row.isChecksumRight, row.isReadable) == (b"2999", "OPEN", True, True)
        assert path.read_bytes() == before


def run_available(spark: Any, log: Path, folder: Path, **options: str) -> list[int]:
    """Run a query until it has read all available records. Return the row count of each micro-batch."""
    stream = source(spark.readStream, log, startingOffsets="earliest", **options)
    stream = stream.selectExpr("string(value) value")
    writer = stream.writeStream.format("parquet").trigger(availableNow=True)
    writer = writer.options(path=str(folder / "rows"), checkpointLocation=str(folder / "checkpoint"))
    return [progress["numInputRows"] for progress in run_to_its_end(writer)]


@needs_read_limits
def test_a_stream_continues_from_its_checkpoint(spark: Any, log: Path, tmp_path: Path) -> None:
    append(log, 10)
    assert run_available(spark, log, tmp_path, maxOffsetsPerTrigger="400") == [400, 400, 200]
    append(log, 4, first=10)
    assert sum(run_available(spark, log, tmp_path)) == 400
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(int(row.value) for row in rows) == list(range(1400))


@needs_read_limits
def test_a_stream_commits_for_a_group_whose_offsets_begin_the_next_query(spark: Any, log: Path, tmp_path: Path) -> None:
    """Spark reports a micro-batch to the source when the next one begins, so the last one may be uncommitted."""
    append(log, 4)
    assert sum(run_available(spark, log, tmp_path / "first", groupId="lagging", maxOffsetsPerTrigger="100")) == 400
    with Consumer(log, group_id="lagging") as observer:
        found = [observer.committed(TopicPartition("flights", partition)) for partition in range(2)]
    committed = sum(offset for offset in found if isinstance(offset, int))
    assert 100 <= committed <= 400
    append(log, 2, first=4)
    assert sum(run_available(spark, log, tmp_path / "second", groupId="lagging")) == 600 - committed


def test_what_is_read_can_be_written(spark: Any, log: Path, node_arena: str, tmp_path: Path) -> None:
    append(log, 4)
    copy = tmp_path / "copy"
    frame = source(spark.read, log, includeHeaders="true")
    writer = frame.write.format("shmaccum").mode("append").options(arena=node_arena, sink=f"log:{copy}", partitions="2")
    writer.save()
    same = ["key", "value", "topic", "partition", "timestamp", "headers"]
    found = source(spark.read, copy, includeHeaders="true").select(same).collect()
    assert sorted(map(str, found)) == sorted(map(str, frame.select(same).collect()))


def test_a_thread_of_one_s_own_finds_it_as_the_manual_says(spark: Any, log: Path) -> None:
    append(log, 2)
    counts: list[int] = []

    def count() -> None:
        spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)
        counts.append(source(spark.read, log).count())

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    assert counts == [2 * RECORDS_PER_BATCH]


def test_mistakes_are_reported_by_spark(spark: Any, log: Path) -> None:
    append(log, 1)
    with pytest.raises(Exception, match="has no weather; its topics are flights"):
        spark.read.format("shmaccum").options(path=str(log), subscribe="weather").load().count()
    with pytest.raises(Exception, match="found none"):
        spark.read.format("shmaccum").load(str(log))
    with pytest.raises(Exception, match="the source has a fixed schema"):
        source(spark.read.schema("value string"), log).count()


@needs_read_limits
def test_the_progress_of_a_query_reports_its_lag(spark: Any, log: Path, tmp_path: Path) -> None:
    append(log, 2)
    stream = source(spark.readStream, log, startingOffsets="earliest", maxOffsetsPerTrigger="50")
    writer = stream.writeStream.format("memory").queryName("lagging").trigger(availableNow=True)
    progress = run_to_its_end(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
    (facts,) = progress[0]["sources"]
    latest, end = json.loads(facts["latestOffset"]), json.loads(facts["endOffset"])
    assert (sum(latest["flights"].values()), sum(end["flights"].values())) == (200, 50)
