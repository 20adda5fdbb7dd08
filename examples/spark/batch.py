# SPDX-License-Identifier: Apache-2.0
"""A Spark batch that writes to a topic through the arena of its node. One Python worker is killed meanwhile."""

import os
import signal
from collections.abc import Iterator

import pyarrow
from pyspark import TaskContext
from pyspark.sql import SparkSession

import shmaccum.spark


def die_once(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
    """Passes all rows on. The first attempt at the first partition then kills its worker."""
    yield from batches
    task = TaskContext.get()
    if task is not None and task.partitionId() == 0 and task.attemptNumber() == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Writes a thousand flights."""
    spark = SparkSession.builder.appName("flights").getOrCreate()
    shmaccum.spark.register(spark)
    rows = spark.range(0, 1000, numPartitions=2)
    flights = rows.selectExpr("cast(id as string) as key", "concat('flight ', id) as value")
    writer = flights.mapInArrow(die_once, flights.schema).write.format("shmaccum").mode("append")
    writer.options(arena="events", sink="log:/data/log", topic="flights").save()
    spark.stop()


if __name__ == "__main__":
    main()
