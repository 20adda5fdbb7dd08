# SPDX-License-Identifier: Apache-2.0
"""A Spark session for the tests of this folder: two threads, one retry and more, no user interface."""

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
"""Options of a Java that lives for minutes, which is too short for its better compiler and collector."""
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
"""How it shows that pyspark 4.0 leaves sockets to the collector."""


LATE_WORKER = "Python worker failed to connect back"
"""How Spark says that a Python of a source took longer than 10 s to start, which no setting changes."""

FOLDER = Path(__file__).parent


def pytest_itemcollected(item: pytest.Item) -> None:
    """All tests of this folder run in one process, and share its session (pytest-xdist with ``--dist loadgroup``)."""
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
    """Why there can be no session here."""
    if importlib.util.find_spec("pyspark") is None:
        return "pyspark is not installed: make spark, or pip install '.[spark]'"
    if shutil.which("java") is None:
        return "java is not installed: make spark as root, or apt-get install openjdk-17-jre-headless"
    return None


def run_to_its_end(writer: Any) -> list[dict[str, Any]]:
    """Runs a query until it has taken what is there; the progress of its micro-batches.

    On a busy machine Spark may give up a Python that starts. The query then goes on from its checkpoint, as often as
    the test has time for.
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
    os.environ["PYTHONPATH"] = str(ROOT)  # of the workers, which import what tests.spark.wounds has
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
    """An arena for Spark's workers; at the end nobody is left in it but them, and they hold nothing."""
    with Arena.create(arena_name, buffer_memory="4MiB", process_count=64, waiter_count=64):
        pass
    yield arena_name
    with Arena.open_read_only(arena_name) as arena:
        end_senders(arena)
