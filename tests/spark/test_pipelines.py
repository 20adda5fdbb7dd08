# SPDX-License-Identifier: Apache-2.0
"""Spark finds the data source for a Declarative Pipeline whose flow reads from it and whose sink writes to it."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from setup import ROOT
from shmaccum.arena import Arena
from shmaccum.log.files import LogReader
from tests.spark.conftest import reason_to_skip
from tests.spark.test_source import append
from tests.support.processes import wait_until

pytestmark = pytest.mark.spark

SPEC = """\
name: flights
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.sql.pipelines.maxFlowRetryAttempts: "20"
  spark.sql.pipelines.execution.watchdog.minRetryTime: "1"
  spark.sql.pipelines.execution.watchdog.maxRetryTime: "5"
"""
"""On a busy machine, Spark may give up a Python process that starts. Then a flow must be repeated."""
FLOW = """\
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

dp.create_sink("copies", "shmaccum", {{
    "arena": "{arena}", "sink": "log:{folder}/copy", "topic": "copies", "bufferMemory": "4MiB", "idleExitMs": "1s"
}})


@dp.append_flow(target="copies", name="copy")
def copy():
    source = SparkSession.active().readStream.format("shmaccum").option("startingOffsets", "earliest")
    return source.options(path="{folder}/log", subscribe="flights").load().select("key", "value")
"""


@pytest.fixture
def project(tmp_path: Path, arena_name: str) -> Iterator[Path]:
    """A project like that of ``spark-pipelines init``, next to a folder in which Spark finds the data source."""
    (tmp_path / "transformations").mkdir()
    (tmp_path / "storage").mkdir()
    (tmp_path / "spark-pipeline.yml").write_text(SPEC.format(folder=tmp_path))
    (tmp_path / "transformations" / "copy.py").write_text(FLOW.format(folder=tmp_path, arena=arena_name))
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "pyspark_shmaccum").symlink_to(ROOT / "shmaccum" / "spark" / "discovery")
    yield tmp_path
    if Arena.exists(arena_name):
        with Arena.open_read_only(arena_name) as arena:
            wait_until(lambda: not arena.native.sender_is_alive, "the sender has left", 120)


def test_a_declarative_pipeline(project: Path) -> None:
    if (reason := reason_to_skip()) is not None:
        pytest.skip(reason)
    if importlib.util.find_spec("pyspark.pipelines") is None or importlib.util.find_spec("grpc") is None:
        pytest.skip("there are no pipelines: pip install '.[pipelines]' (Spark 4.1 or newer)")
    import pyspark

    append(project / "log", 10)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(project / "installed"), str(ROOT)]),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_HOME": os.path.dirname(pyspark.__file__),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [os.path.join(environment["SPARK_HOME"], "bin", "spark-pipelines"), "run"]
    ended = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-6000:]
    log = LogReader(project / "copy")
    records = [record for place in log.topic_partitions() for record in log.partition(*place).records()]
    assert sorted(int(record.value or b"-1") for record in records) == list(range(1000))
