# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.spark.cluster_job PLAN`` runs one Spark job on any master, injures it, and prints its outcome.

A process has one SparkContext, so each job with another master or other settings runs in its own process. PLAN is JSON:
``master``, ``settings``, ``options`` (of the sink), ``rows``, ``tasks``, and ``cancel_at``, a file at whose appearance
all jobs are cancelled. The output is JSON, too: ``error``, the message of the exception that ended the job, or null.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from setup import ROOT
from tests.spark.conftest import SETTINGS
from tests.support.processes import wait_until

ROWS_PER_RECORD_BATCH = 500


def open_session(plan: dict[str, Any]) -> Any:
    """Open a session with the data source and its injured form."""
    import shmaccum.spark
    from tests.spark.wounds import WoundedSource

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = str(ROOT)
    settings = {
        **SETTINGS,
        "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.executor.memory": "512m",
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(ROWS_PER_RECORD_BATCH),
        **plan["settings"],
    }
    builder = SparkSession.builder.master(plan["master"]).appName("shmaccum-injuries")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(WoundedSource)
    shmaccum.spark.register(spark)
    return spark


def cancel_at(spark: Any, path: Path) -> None:
    """Wait in a thread for the file, and then cancel everything."""

    def run() -> None:
        wait_until(path.exists, f"{path} is there", 120)
        spark.sparkContext.cancelAllJobs()

    threading.Thread(target=run, daemon=True).start()


def run(plan: dict[str, Any]) -> str | None:
    """Run the job. Return the message of the exception that ended it."""
    spark = open_session(plan)
    try:
        if "cancel_at" in plan:
            cancel_at(spark, Path(plan["cancel_at"]))
        frame = spark.range(plan["rows"], numPartitions=plan["tasks"]).selectExpr("cast(id as string) value")
        try:
            frame.write.format("wounded").mode("append").options(**plan["options"]).save()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is asked for
            return str(error)
        return None
    finally:
        spark.stop()


if __name__ == "__main__":
    print(json.dumps({"error": run(json.loads(sys.argv[1]))}))
