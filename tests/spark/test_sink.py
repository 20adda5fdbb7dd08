# SPDX-License-Identifier: Apache-2.0
"""Spark writes batches and streams through the arena to a segment log, with a sender that its tasks start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from setup import ROOT
from shmaccum.log.files import LogReader
from tests.spark.conftest import reason_to_skip

pytestmark = pytest.mark.spark


def written(frame: Any, arena: str, log: Path, **options: str) -> Any:
    writer = frame.write.format("shmaccum").mode("append").option("arena", arena).option("sink", f"log:{log}")
    return writer.options(**options)


def values(log: Path, topic: str = "flights") -> list[bytes]:
    reader = LogReader(log)
    partitions = [reader.partition(topic, number) for number in reader.partitions(topic)]
    found = [record.value for partition in partitions for record in partition.records()]
    return sorted(value or b"" for value in found)


def test_a_batch(spark: Any, node_arena: str, log: Path) -> None:
    frame = spark.range(20_000, numPartitions=4).selectExpr("cast(id % 7 as string) key", "cast(id as string) value")
    written(frame, node_arena, log, topic="flights", partitions="3").save()
    assert values(log) == sorted(b"%d" % number for number in range(20_000))
    assert LogReader(log).partitions("flights") == [0, 1, 2]


def test_topics_headers_partitions_and_times_of_rows(spark: Any, node_arena: str, log: Path) -> None:
    frame = spark.range(10).selectExpr(
        "if(id < 4, 'low', 'high') topic",
        "cast(cast(id as string) as binary) value",
        "cast(id % 2 as int) partition",
        "timestamp_millis(1700000000000 + id) timestamp",
        "array(named_struct('key', 'source', 'value', cast('web' as binary))) headers",
        "id",
    )
    written(frame, node_arena, log, partitions="2").save()
    records = list(LogReader(log).partition("low", 1).records())
    assert [record.timestamp_ms for record in records] == [1700000000001, 1700000000003]
    assert records[0].headers == (("source", b"web"),)
    assert len(values(log, "high")) == 6


def test_what_is_null(spark: Any, node_arena: str, log: Path) -> None:
    """A tombstone without key and headers, in any partition, at the current time."""
    nulls = "cast(null as string) key", "cast(null as binary) value", "cast(null as int) partition"
    rest = "cast(null as timestamp) timestamp", "cast(null as array<struct<key: string, value: binary>>) headers"
    written(spark.range(1).selectExpr(*nulls, *rest), node_arena, log, topic="flights").save()
    (record,) = LogReader(log).partition("flights", 0).records()
    assert (record.key, record.value, record.headers) == (None, None, ())
    assert record.timestamp_ms > 1_700_000_000_000
    frame = spark.range(2, numPartitions=1).selectExpr("'x' value", "if(id = 1, null, 'flights') topic")
    with pytest.raises(Exception, match="row 1 has no topic"):
        written(frame, node_arena, log).save()


ZONES = """
import sys
from pyspark.sql import SparkSession
import shmaccum.spark

folder, times = sys.argv[1], [int(text) for text in sys.argv[2:]]
spark = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "Asia/Kathmandu").getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
shmaccum.spark.register(spark)
frame = spark.createDataFrame([(time,) for time in times], "time bigint").selectExpr(
    "cast(time as string) value", "timestamp_millis(time) timestamp"
)
frame.write.parquet(f"{folder}/in")
stream = spark.readStream.schema(frame.schema).parquet(f"{folder}/in")
query = (
    stream.writeStream.format("shmaccum").trigger(availableNow=True)
    .options(deliveryGuarantee="exactly_once", sink=f"log:{folder}/log", topic="flights")
    .option("checkpointLocation", f"{folder}/checkpoint").start()
)
query.awaitTermination()
read = spark.read.format("shmaccum").options(path=f"{folder}/log", subscribe="flights").load()
print(*(row[0] for row in read.selectExpr("unix_millis(timestamp)").collect()))
spark.stop()
"""


def test_a_stream_keeps_instants_in_any_time_zone(tmp_path: Path) -> None:
    """The host is in New York. Includes the repeated hour and the skipped hour."""
    if (reason := reason_to_skip()) is not None:
        pytest.skip(reason)
    times = [1704067200000, 1730611800000, 1730615400000, 1710054000000]
    environment = {
        **os.environ,
        "TZ": "America/New_York",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", ZONES, str(tmp_path), *map(str, times)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert sorted(map(int, ended.stdout.split())) == sorted(times)
    records = LogReader(tmp_path / "log").partition("flights", 0).records()
    assert all(str(record.timestamp_ms).encode() == record.value for record in records)


def test_a_time_without_a_zone_is_refused(spark: Any, log: Path) -> None:
    frame = spark.sql("select 'x' value, timestamp_ntz'2024-01-01 00:00:00' timestamp")
    writer = frame.write.format("shmaccum").mode("append").options(deliveryGuarantee="exactly_once", sink=f"log:{log}")
    with pytest.raises(Exception, match="is timestamp_ntz but must be timestamp: cast it to timestamp"):
        writer.option("topic", "flights").save()


@pytest.mark.spark_short
def test_a_stream(spark: Any, node_arena: str, log: Path, tmp_path: Path) -> None:
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 500).option("numPartitions", 2).load()
    query = (
        source.selectExpr("cast(value as string) value")
        .writeStream.format("shmaccum")
        .options(arena=node_arena, sink=f"log:{log}", topic="flights", checkpointLocation=str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        while query.isActive and (query.lastProgress or {"batchId": 0})["batchId"] < 2:
            query.awaitTermination(1)
    finally:
        query.stop()
    assert query.exception() is None
    found = values(log)
    assert len(found) >= 1000
    assert len(set(found)) == len(found)


@pytest.mark.spark_short
def test_mistakes_are_reported_by_spark(spark: Any, node_arena: str, log: Path) -> None:
    frame = spark.range(1).selectExpr("id value")
    with pytest.raises(Exception, match="the column 'value' is bigint but must be string or binary"):
        written(frame, node_arena, log, topic="flights").save()
    with pytest.raises(Exception, match="no arena is set"):
        frame.write.format("shmaccum").mode("append").save()
    with pytest.raises(Exception, match=r'use .mode\("append"\)'):
        written(frame.selectExpr("cast(value as string) value"), node_arena, log, topic="x").mode("overwrite").save()
    with pytest.raises(Exception, match='cannot be written in the "ErrorIfExists" mode'):
        frame.write.format("shmaccum").option("arena", node_arena).save()


def test_statements_of_sql_write_and_read(spark: Any, node_arena: str, log: Path) -> None:
    options = f"WITH ('arena' = '{node_arena}', 'sink' = 'log:{log}', 'topic' = 'flights')"
    spark.sql("CREATE TABLE sent (value STRING) USING shmaccum")
    try:
        spark.sql(f"INSERT INTO sent {options} SELECT cast(id AS STRING) FROM range(10)")
        with pytest.raises(Exception, match="INSERT INTO table WITH"):
            spark.sql("INSERT INTO sent VALUES ('without options')")
        with pytest.raises(Exception, match="cannot be overwritten"):
            spark.sql(f"INSERT OVERWRITE sent {options} VALUES ('other')")
    finally:
        spark.sql("DROP TABLE sent")
    spark.sql(f"CREATE TABLE flights USING shmaccum OPTIONS (path '{log}', subscribe 'flights')")
    try:
        (row,) = spark.sql(f"SELECT count(*) FROM flights WITH ('path' = '{log}', 'subscribe' = 'flights')").collect()
    finally:
        spark.sql("DROP TABLE flights")
    spark.sql(f"CREATE TEMPORARY VIEW seen USING shmaccum OPTIONS (path '{log}', subscribe 'flights')")
    (seen,) = spark.sql("SELECT count(*) FROM seen").collect()
    spark.catalog.dropTempView("seen")
    assert (row[0], seen[0]) == (10, 10)


def test_map_in_arrow(spark: Any, node_arena: str, log: Path) -> None:
    from shmaccum.spark import arrow_appender

    append = arrow_appender(node_arena, sink=f"log:{log}", topic="flights")
    frame = spark.range(1000, numPartitions=2).selectExpr("cast(id as string) value")
    answers = frame.mapInArrow(append, "record_count bigint").collect()
    assert [row.record_count for row in answers] == [500, 500]
    assert len(values(log)) == 1000
