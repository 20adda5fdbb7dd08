# SPDX-License-Identifier: Apache-2.0
"""Spark writes exactly once if tasks fail or are killed, queries are stopped, or drivers die in a commit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from setup import ROOT
from shmaccum.config import LogSinkOptions
from shmaccum.log.files import LogDirectory, LogReader, check_log
from tests.spark.conftest import needs_read_limits
from tests.support.processes import wait_until
from tests.support.segment_log import make_batch

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

ROW_COUNT = 4000
EXACTLY_ONCE = {"deliveryGuarantee": "exactly_once", "topic": "flights"}
SYSTEM_CALLS_OF_A_COMMIT = 80
WHOLE_RUN_S = 600
"""A separate session on a busy machine."""


def found(log: Path) -> Counter[bytes]:
    """Return the count of each value in the log."""
    reader = LogReader(log)
    partitions = [reader.partition("flights", number) for number in reader.partitions("flights")]
    return Counter(record.value or b"" for partition in partitions for record in partition.records())


def numbers(count: int, word: bytes = b"") -> Counter[bytes]:
    """Return the numbers that must be in the log, each once."""
    return Counter(word + b"%d" % number for number in range(count))


def staged(log: Path) -> list[str]:
    """Return the staged files of tasks. If a job fails before its first task, the folder and the log are missing."""
    return os.listdir(log / ".staging") if (log / ".staging").exists() else []


def check_clean(log: Path, stopped: Mapping[str, int] | None = None) -> None:
    """Check that nothing is staged or unfinished, and that the log is sound.

    Args:
        stopped: the number of transactions in the log for each query that was stopped while it wrote. Its next
            transaction may be staged: on Spark 4.0, these files may remain until the query continues.
    """
    counts = stopped or {}

    def left() -> list[list[str]]:
        """The files of other transactions. The process that applies a transaction deletes them after its records."""
        names = [name.split(".")[:2] for name in staged(log)]
        return [each for each in names if each[0] not in counts or int(each[1]) < counts[each[0]]]

    wait_until(lambda: left() == [], f"no files are left in {log / '.staging'}")
    assert {name.rpartition(".")[2] for name in os.listdir(log / ".transactions")} <= {"over"}
    assert check_log(log) == []


@pytest.fixture
def wounded(spark: Any) -> Any:
    """The session with a data source that can fail (`staged_wounds`). Each task has four batches of Arrow."""
    from tests.spark.staged_wounds import WoundedStagingSource

    spark.dataSource.register(WoundedStagingSource)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 500)
    yield spark
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_a_batch(spark: Any, log: Path) -> None:
    frame = spark.range(20_000, numPartitions=4).selectExpr("cast(id % 7 as string) key", "cast(id as string) value")
    writer = frame.write.format("shmaccum").mode("append").options(**EXACTLY_ONCE)
    writer.options(sink=f"log:{log}", partitions="3").save()
    assert found(log) == numbers(20_000)
    assert LogReader(log).partitions("flights") == [0, 1, 2]
    check_clean(log)


@pytest.mark.parametrize("wound", ["kill_worker", "fail"])
def test_a_task_that_ends_in_the_middle_is_tried_again_and_nothing_is_there_twice(
    wounded: Any, log: Path, tmp_path: Path, wound: str
) -> None:
    frame = wounded.range(ROW_COUNT, numPartitions=2).selectExpr("cast(id as string) value")
    writer = frame.write.format("wounded_staging").mode("append").options(**EXACTLY_ONCE)
    writer.options(sink=f"log:{log}", wound=wound, touched=str(tmp_path / "touched")).save()
    assert (tmp_path / "touched").exists()
    assert found(log) == numbers(ROW_COUNT)
    check_clean(log)


def test_a_job_that_fails_permanently_leaves_nothing(wounded: Any, log: Path) -> None:
    frame = wounded.range(ROW_COUNT, numPartitions=2).selectExpr(
        "cast(if(id < 3000, id, assert_true(false)) as string) value"
    )
    with pytest.raises(Exception, match="is not true"):
        frame.write.format("wounded_staging").mode("append").options(**EXACTLY_ONCE, sink=f"log:{log}").save()
    assert staged(log) == []
    assert not log.exists() or LogReader(log).topics() == []


# --- streams


def start(spark: Any, log: Path, checkpoint: Path, word: str = "", *, format_: str = "shmaccum", **options: str) -> Any:
    """Start a query that writes 1000 numbers with a prefix in each micro-batch."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).option("numPartitions", 2).load()
    writer = source.selectExpr(f"concat('{word}', cast(value as string)) value").writeStream.format(format_)
    given = {"sink": f"log:{log}", "topic": "flights", "checkpointLocation": str(checkpoint), **options}
    return writer.options(**given).start()


def run_until(query: Any, batch_id: int) -> int:
    """Run a query until this batch is done, and stop it. Return the last completed batch."""
    while query.isActive and (query.lastProgress or {"batchId": -1})["batchId"] < batch_id:
        query.awaitTermination(1)
    query.stop()
    assert query.exception() is None
    return int(query.lastProgress["batchId"])


def check_prefix(values: Counter[bytes], word: bytes, batches_min: int) -> int:
    """Check that the numbers with a prefix form whole batches, each once. Return the batch count."""
    mine = Counter({value: count for value, count in values.items() if value.startswith(word)})
    batch_count = sum(mine.values()) // 1000
    assert batch_count >= batches_min
    assert mine == numbers(1000 * batch_count, word)
    return batch_count


def test_two_queries_and_a_sender_into_one_directory(spark: Any, log: Path, node_arena: str, tmp_path: Path) -> None:
    """A third query writes through the node's arena, whose sender writes the log and applies decided transactions."""
    shared = start(spark, log, tmp_path / "c", "c", arena=node_arena)
    queries = [start(spark, log, tmp_path / word, word, deliveryGuarantee="exactly_once") for word in ("a", "b")]
    for query in [*queries, shared]:
        run_until(query, 3)
    ids = {}
    for word in ("a", "b"):  # continue from their checkpoints
        query = start(spark, log, tmp_path / word, word, deliveryGuarantee="exactly_once")
        ids[word] = query.id
        run_until(query, 5)
    values = found(log)
    assert sum(count for value, count in values.items() if value.startswith(b"c")) >= 4000
    check_clean(log, {ids[word]: check_prefix(values, word.encode(), 6) for word in ids})


def test_a_query_that_is_stopped_while_its_task_hangs_continues_and_loses_nothing(
    wounded: Any, log: Path, tmp_path: Path
) -> None:
    """Spark aborts while the writer lives, and kills it later."""
    touched = tmp_path / "touched"
    options = {"format_": "wounded_staging", "deliveryGuarantee": "exactly_once", "touched": str(touched)}
    wounded.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
    query = start(wounded, log, tmp_path / "checkpoint", wound="hang", **options)
    while not (touched.exists() and touched.read_text()):  # Java needs time: the test has its own watchdog
        assert query.isActive
        query.awaitTermination(1)
    query.stop()
    pid = int(touched.read_text())
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "Spark has killed it")
    assert not found_or_nothing(log)
    query = start(wounded, log, tmp_path / "checkpoint", **options)
    run_until(query, 2)
    check_clean(log, {query.id: check_prefix(found(log), b"", 3)})


def found_or_nothing(log: Path) -> Counter[bytes]:
    """Return the found values, or nothing if the log is missing."""
    return found(log) if log.exists() and "flights" in LogReader(log).topics() else Counter()


def test_batches_of_for_each_batch_that_come_twice_are_there_once(spark: Any, log: Path, tmp_path: Path) -> None:
    def write_twice(frame: Any, batch_id: int) -> None:
        for _ in range(2):
            writer = frame.selectExpr("cast(value as string) value").write.format("shmaccum").mode("append")
            named = {"transactionSeries": "nightly", "transactionNumber": str(batch_id)}
            writer.options(**EXACTLY_ONCE, **named, sink=f"log:{log}").save()

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()
    checkpoint = str(tmp_path / "checkpoint")
    query = source.writeStream.foreachBatch(write_twice).option("checkpointLocation", checkpoint).start()
    run_until(query, 1)
    check_clean(log, {"nightly": check_prefix(found(log), b"", 2)})


# --- a driver that dies


def copy(source: Path, sink: Path, checkpoint: Path, death: str) -> int:
    """Run the query in a separate process and return its status. A failed test reports its output."""
    arguments = [str(source), str(sink), str(checkpoint), death]
    return subprocess.run(
        [sys.executable, "-m", "tests.spark.staged_query", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
        timeout=WHOLE_RUN_S,
        check=False,
    ).returncode


@needs_read_limits
@pytest.mark.timeout(3 * WHOLE_RUN_S)
def test_a_driver_that_dies_in_a_commit_and_starts_again_writes_everything_once(
    tmp_path: Path, seeded: Callable[[], Random]
) -> None:
    """At a system call of the commit, the query and its JVM are killed. Then it continues from its checkpoint."""
    pytest.importorskip("pyspark")
    source, sink, random = tmp_path / "source", tmp_path / "sink", seeded()
    with LogDirectory(source, LogSinkOptions(partitions=2)) as directory:
        directory.create_topic("flights")
        for index in range(20):
            values = [b"%d" % (index * 100 + number) for number in range(100)]
            directory.partition("flights", index % 2).append([make_batch(values)])
    for batch_id in (1, 2):
        death = f"{batch_id}:{random.randrange(1, SYSTEM_CALLS_OF_A_COMMIT)}"
        print("dies at", death)
        assert copy(source, sink, tmp_path / "checkpoint", death) != 0
        assert all(count == 1 for count in found(sink).values())
    assert copy(source, sink, tmp_path / "checkpoint", "") == 0
    assert found(sink) == numbers(2000)
    check_clean(sink)
