# SPDX-License-Identifier: Apache-2.0
"""Spark Connect: a client writes, reads and appends through the data source of its server."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from setup import ROOT
from shmaccum.arena import Arena
from tests.spark.conftest import reason_to_skip
from tests.support.processes import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

CLIENT = """
import sys
from pyspark.sql import SparkSession
import shmaccum.spark

arena, log = sys.argv[1:]
spark = SparkSession.builder.remote("local[1]").getOrCreate()
shmaccum.spark.register(spark)
frame = spark.range(100).selectExpr("cast(id as string) as key", "concat('flight ', id) as value")
options = {"arena": arena, "sink": f"log:{log}", "bufferMemory": "4MiB", "idleExitMs": "1s"}
frame.write.format("shmaccum").mode("append").options(topic="flights", **options).save()
once = {"deliveryGuarantee": "exactly_once", "sink": f"log:{log}", "topic": "invoices"}
frame.write.format("shmaccum").mode("append").options(**once).save()
append = shmaccum.spark.arrow_appender(topic="flights", **options)
appended = sum(row.record_count for row in frame.mapInArrow(append, "record_count bigint").collect())
read = spark.read.format("shmaccum").option("path", log)
counts = [read.option("subscribe", topic).load().count() for topic in ("flights", "invoices")]
waiting = spark.read.format("shmaccum").option("arena", arena).load().count()
print("counted", type(spark).__module__, appended, *counts, waiting)
spark.stop()
"""


def test_a_client_writes_and_reads_through_its_server(arena_name: str, tmp_path: Path) -> None:
    if (reason := reason_to_skip()) is not None:
        pytest.skip(reason)
    if importlib.util.find_spec("grpc") is None:
        pytest.skip("there is no client of Spark Connect: pip install 'pyspark[connect]'")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-c", CLIENT, arena_name, str(tmp_path / "log")]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-6000:]
    (told,) = (line for line in ended.stdout.splitlines() if line.startswith("counted"))
    assert told.split() == ["counted", "pyspark.sql.connect.session", "100", "200", "100", "0"]
    with Arena.open_read_only(arena_name) as arena:
        wait_until(lambda: not arena.native.sender_is_alive, "the sender has left", 120)
