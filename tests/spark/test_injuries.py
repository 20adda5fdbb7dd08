# SPDX-License-Identifier: Apache-2.0
"""Tasks that are killed or fail in the middle of a write, senders that are: what is in the log afterwards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from shmaccum.segment_log import LogReader

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROW_COUNT = 4000


def write_wounded(spark: Any, arena: str, log: Path, wound: str, **options: str) -> Counter[int]:
    """Writes numbers, four batches of Arrow in each of two tasks; answers how often each came out."""
    from tests.spark.wounds import WoundedSource

    spark.dataSource.register(WoundedSource)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 500)
    try:
        frame = spark.range(ROW_COUNT, numPartitions=2).selectExpr("cast(id as string) value")
        writer = frame.write.format("wounded").mode("append")
        writer.options(arena=arena, sink=f"log:{log}", topic="flights", wound=wound, **options).save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    return Counter(int(record.value or b"-1") for record in LogReader(log).partition("flights", 0).records())


@pytest.mark.parametrize("wound", [pytest.param("kill_worker", marks=pytest.mark.spark_short), "fail"])
def test_an_attempt_that_ends_in_the_middle_leaves_duplicates_and_nothing_worse(
    spark: Any, node_arena: str, log: Path, wound: str
) -> None:
    found = write_wounded(spark, node_arena, log, wound)
    assert set(found) == set(range(ROW_COUNT))
    repeated = {number for number, count in found.items() if count > 1}
    assert repeated <= set(range(500)), "only the batch that the first attempt had appended is there twice"
    assert max(found.values()) <= 2


@pytest.mark.spark_short
def test_a_killed_sender_is_replaced_and_nothing_is_there_twice(spark: Any, node_arena: str, log: Path) -> None:
    found = write_wounded(spark, node_arena, log, "kill_sender")
    assert found == Counter(range(ROW_COUNT))
