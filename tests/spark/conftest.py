# SPDX-License-Identifier: Apache-2.0
"""A Spark session for the tests of this folder: two threads, at least one retry, no user interface."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from setup import ROOT
from shmaccum.arena import Arena
from tests.support.arenas import end_senders

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a Java process that lives for minutes, too short for the better compiler and collector."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.sql.session.timeZone": "UTC",
}
"""The settings of every session of these tests."""
FORGOTTEN_SOCKETS = ("ResourceWarning", "pytest.PytestUnraisableExceptionWarning")
"""The warning for sockets that pyspark 4.0 leaves to the garbage collector."""


LATE_WORKER = "Python worker failed to connect back"
"""Spark's message that a source's Python took longer than 10 s to start, a limit that no setting changes."""

FOLDER = Path(__file__).parent


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run all tests of this folder in one process with a shared session (pytest-xdist with ``--dist loadgroup``)."""
    if FOLDER in item.path.parents:
        item.add_marker(pytest.mark.xdist_group("spark"))
        for warning in FORGOTTEN_SOCKETS:
            item.add_marker(pytest.mark.filterwarnings(f"ignore:.*<socket:{warning}"))


needs_read_limits = pytest.mark.skipif(
    importlib.util.find_spec("pyspark") is not None
    and importlib.util.find_spec("pyspark.sql.streaming.datasource") is None,
    reason="read limits came with Spark 4.2",
)


def reason_to_skip() -> str | None:
    """The reason why a session is impossible here, or None."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: make spark, or pip install '.[spark]'"
    if shutil.which("java") is None:
        return "java is not installed: make spark as root, or apt-get install openjdk-17-jre-headless"
    return None


def run_to_its_end(writer: Any) -> list[dict[str, Any]]:
    """Run a query until it has read all available records. Return the progress of its micro-batches.

    On a busy machine, Spark may give up a Python process that starts. Then the query continues from its checkpoint, as
    often as the test has time.
    """
    from pyspark.errors import StreamingQueryException

    progress: list[dict[str, Any]] = []
    while True:
        query = writer.start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if LATE_WORKER not in str(error):
                raise
        progress += query.recentProgress
        if query.exception() is None:
            return progress


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """``local[2,4]``: two tasks at a time, four attempts each."""
    if (reason := reason_to_skip()) is not None:
        pytest.skip(reason)
    from pyspark.sql import SparkSession

    import shmaccum.spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = str(ROOT)  # for the workers, which import objects of tests.spark.wounds
    builder = SparkSession.builder.master("local[2,4]").appName("shmaccum-tests")
    folder = tmp_path_factory.mktemp("spark")
    for name, value in {**SETTINGS, "spark.sql.warehouse.dir": str(folder)}.items():
        builder = builder.config(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("OFF")
        shmaccum.spark.register(session)
        yield session
        session.stop()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def node_arena(arena_name: str) -> Iterator[str]:
    """An arena for Spark's workers. At the end, only they are attached, and nothing is reserved."""
    with Arena.create(arena_name, buffer_memory="4MiB", process_count=64, waiter_count=64):
        pass
    yield arena_name
    with Arena.open_read_only(arena_name) as arena:
        end_senders(arena)
