# SPDX-License-Identifier: Apache-2.0
"""Spark over the node's arena: the data source ``shmaccum``, for batches and streams.

::

    frame.write.format("shmaccum").mode("append").option("arena", "events").option("sink", "log:/data/log") \\
        .option("topic", "flights").save()
    spark.read.format("shmaccum").option("path", "/data/log").option("subscribe", "flights").load()

All Python workers of a node append into one arena, and one sender delivers. Spark finds the data source by itself where
the package is installed (`discovery`); elsewhere `register` tells it. ``docs/how-to/spark.rst`` is the manual.

`data_source` is what Spark sees. The sink: `settings` (options, checked once, on the driver) ← `node` (the arena and
the producer of this process) ← `node_sender` ← `task_writer` (one task) ← `writers` (Spark's interfaces); exactly
once: `staged_task` (one task) ← `exactly_once`, and into Kafka by `kafka_commit` ← `kafka_session` (a sink without an
arena). The source: `positions` (which offsets) ← `planning` (which ranges) ← `record_batches` (bytes to Arrow) ←
`readers`; `arena_batches` reads waiting records of an arena, and `group_offsets` begins where a group stands. `columns`
has the schemas of both.

Importing this package needs no pyspark; using it does.
"""

from __future__ import annotations

from typing import Any

from shmaccum.spark.task_writer import arrow_appender

__all__ = ["arrow_appender", "register"]


def register(spark: Any) -> None:
    """Makes ``format("shmaccum")`` known to a session that has not found it by itself.

    So it is with editable installs, and with another package ``pyspark_*`` that cannot be imported. The package must be
    installed for the Python of every executor all the same.

    Args:
        spark: the SparkSession.

    Raises:
        ImportError: pyspark is older than 4.0, or pyarrow is missing.
    """
    from pyspark.errors import AnalysisException

    from shmaccum.spark.data_source import ShmaccumDataSource

    try:
        spark.dataSource.register(ShmaccumDataSource)
    except AnalysisException as error:  # Spark 4.0 minds when it has found it by itself
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
