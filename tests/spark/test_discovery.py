# SPDX-License-Identifier: Apache-2.0
"""Whether Spark finds the data source by itself, also next to a broken package ``pyspark_*``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from setup import ROOT
from tests.spark.conftest import reason_to_skip

pytestmark = pytest.mark.spark

PROGRAM = """
import sys
from pyspark.sql import SparkSession
import shmaccum.spark

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")

def answer():
    try:
        spark.read.format("shmaccum").load(sys.argv[1]).schema
    except Exception as error:
        return " ".join(str(error).split())

print(answer())
shmaccum.spark.register(spark)
print(answer())
"""
"""Start a read without ``subscribe``. If the source is found, its error names the missing option."""


def answers(folder: Path) -> list[str]:
    """Return the output before and after `register`, with this folder on the path."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    command = [sys.executable, "-c", PROGRAM, "/log"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()[-2:]


def test_spark_finds_it_by_itself_unless_another_package_is_broken(tmp_path: Path) -> None:
    if (reason := reason_to_skip()) is not None:
        pytest.skip(reason)
    (tmp_path / "pyspark_shmaccum").symlink_to(ROOT / "shmaccum" / "spark" / "discovery")
    before, _ = answers(tmp_path)
    assert "set exactly one of" in before or "PYTHON_DATA_SOURCE_ERROR" in before
    (tmp_path / "pyspark_broken.py").write_text("raise ImportError('something is missing')\n")
    before, after = answers(tmp_path)
    assert "DATA_SOURCE_NOT_FOUND" in before
    assert "DATA_SOURCE_NOT_FOUND" not in after
