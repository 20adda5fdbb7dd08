# SPDX-License-Identifier: Apache-2.0
"""A Spark stream that writes to a topic through the arena of its node, until it is stopped."""

from pyspark.sql import SparkSession

import shmaccum.spark


def main() -> None:
    """Writes fifty numbers a second. If it is killed and restarted, it continues after the last checkpoint."""
    spark = SparkSession.builder.appName("ticks").getOrCreate()
    shmaccum.spark.register(spark)
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 50).load()
    writer = ticks.selectExpr("cast(value as string) as value").writeStream.format("shmaccum")
    writer.options(arena="events", sink="log:/data/log", topic="ticks")
    writer.option("checkpointLocation", "/data/checkpoints/ticks").start().awaitTermination()


if __name__ == "__main__":
    main()
