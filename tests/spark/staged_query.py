# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.spark.staged_query SOURCE SINK CHECKPOINT [BATCH:CALL]`` runs one query, which may die.

It copies one log to another in several micro-batches, and ends when the copy is complete. If BATCH:CALL is given, it
dies at this system call of a commit, with every process on a driver's host.
"""

from __future__ import annotations

import os
import sys

from pyspark.sql import SparkSession

from tests.spark.conftest import SETTINGS, run_to_its_end
from tests.spark.staged_wounds import WoundedStagingSource


def main(source: str, sink: str, checkpoint: str, death: str = "") -> None:
    """Run the query."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2,4]").appName("staged-query")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(WoundedStagingSource)
    java_pid = spark._jvm.java.lang.ProcessHandle.current().pid()
    stream = spark.readStream.format("wounded_staging").options(path=source, subscribe="flights")
    stream = stream.options(startingOffsets="earliest", maxOffsetsPerTrigger="500").load().select("value")
    run_to_its_end(
        stream.writeStream.format("wounded_staging")
        .options(sink=f"log:{sink}", topic="flights", deliveryGuarantee="exactly_once", checkpointLocation=checkpoint)
        .options(death=f"{death}:{java_pid}" if death else "")
        .trigger(availableNow=True)
    )
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
