# SPDX-License-Identifier: Apache-2.0
"""Spark over the node's arena: the data source ``shmaccum``, for batches and streams.

::

    frame.write.format("shmaccum").mode("append").option("arena", "events").option("sink", "log:/data/log") \\
        .option("topic", "flights").save()
    spark.read.format("shmaccum").option("path", "/data/log").option("subscribe", "flights").load()

All Python workers of a node append to one arena, and one sender delivers. Spark finds the data source automatically if
the package is installed (`discovery`); otherwise, call `register`. ``docs/how-to/spark.rst`` is the manual.

`data_source` is the entry point for Spark. The sink: `settings` (options, checked once, on the driver) ← `node` (the
arena and the producer of this process) ← `node_sender` ← `task_writer` (one task) ← `writers` (Spark's interfaces).
Exactly once: `staged_task` (one task) ← `exactly_once`, and for Kafka `kafka_commit` ← `kafka_session` (a sink without
an arena). The source: `positions` (offsets) ← `planning` (ranges) ← `record_batches` (bytes to Arrow) ← `readers`;
`arena_batches` reads waiting records of an arena, and `group_offsets` starts at the offsets of a group. `columns` has
the schemas of both.

Importing this package does not need pyspark; using it does.
"""

from __future__ import annotations

from typing import Any

from shmaccum.spark.task_writer import arrow_appender

__all__ = ["arrow_appender", "register"]


def register(spark: Any) -> None:
    """Register ``format("shmaccum")`` in a session that has not found it automatically.

    This is needed for editable installs, and if another package ``pyspark_*`` cannot be imported. The package must
    still be installed for the Python of every executor.

    Args:
        spark: the SparkSession.

    Raises:
        ImportError: pyspark is older than 4.0, or pyarrow is missing.
    """
    from pyspark.errors import AnalysisException

    from shmaccum.spark.data_source import ShmaccumDataSource

    try:
        spark.dataSource.register(ShmaccumDataSource)
    except AnalysisException as error:  # Spark 4.0 raises if it has found the source automatically
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
