# SPDX-License-Identifier: Apache-2.0
"""A short test that must pass wherever Spark is installed. All others are marked ``spark``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

"""Java starts slowly on a busy machine."""


def test_rows_go_through_the_arena_into_a_log_and_return(spark: Any, node_arena: str, log: Path) -> None:
    frame = spark.range(1000, numPartitions=4).selectExpr("cast(id as string) value")
    frame.write.format("shmaccum").mode("append").options(arena=node_arena, sink=f"log:{log}", topic="flights").save()
    found = spark.read.format("shmaccum").options(path=str(log), subscribe="flights").load()
    assert [row.offset for row in found.select("offset").sort("offset").collect()] == list(range(1000))
    assert sorted(int(row.value) for row in found.select("value").collect()) == list(range(1000))
