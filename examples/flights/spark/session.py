# SPDX-License-Identifier: Apache-2.0
"""A Spark session that writes its messages to a file."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOG_SETTINGS = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "1g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


@contextlib.contextmanager
def _messages_to(path: Path) -> Iterator[None]:
    """Uses this file as standard error of the processes that start in the body."""
    former = os.dup(2)
    with path.open("ab") as messages:
        os.dup2(messages.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(former, 2)
        os.close(former)


@contextlib.contextmanager
def open_session(master: str, folder: Path) -> Iterator[Any]:
    """Yields a `SparkSession` that knows shmaccum's data source, and stops it at the end.

    Args:
        master: ``local[2]``, or the URL of a cluster.
        folder: the folder of ``spark.log`` and all other files of Spark.
    """
    import shmaccum.spark

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    (folder / "log4j2.properties").write_text(LOG_SETTINGS)
    log_settings = f"-Dlog4j2.configurationFile={folder.absolute() / 'log4j2.properties'}"
    with _messages_to(folder / "spark.log"):
        session = _builder(master, folder).config("spark.driver.extraJavaOptions", log_settings).getOrCreate()
    try:
        shmaccum.spark.register(session)
        yield session
    finally:
        session.stop()


def _builder(master: str, folder: Path) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("shmaccum-flights")
    for name, value in {**SETTINGS, "spark.sql.warehouse.dir": str(folder / "warehouse")}.items():
        builder = builder.config(name, value)
    return builder
