# SPDX-License-Identifier: Apache-2.0
"""The short form: what must work with Spark wherever Spark is installed. All else is marked ``spark``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shmaccum.segment_log import LogReader

pytestmark = pytest.mark.timeout(600)
"""Java starts slowly on a busy machine."""


def test_rows_go_through_the_arena_into_a_log(spark: Any, node_arena: str, log: Path) -> None:
    frame = spark.range(1000, numPartitions=4).selectExpr("cast(id as string) value")
    frame.write.format("shmaccum").mode("append").options(arena=node_arena, sink=f"log:{log}", topic="flights").save()
    values = [record.value or b"" for record in LogReader(log).partition("flights", 0).records()]
    assert sorted(values) == sorted(b"%d" % number for number in range(1000))
