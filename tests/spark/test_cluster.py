# SPDX-License-Identifier: Apache-2.0
"""Spark clusters whose workers, executors and senders are killed in mid-write, or whose jobs are cancelled or repeated.

The tests check at-least-once delivery: every row is there, and each duplicate row has a known cause.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from setup import ROOT
from tests.spark.conftest import reason_to_skip

if (reason := reason_to_skip()) is not None:
    pytest.skip(reason, allow_module_level=True)

import pyspark

from examples.flights.spark.cluster import Cluster, open_cluster
from shmaccum.arena import Arena
from shmaccum.log.files import LogReader
from tests.spark.cluster_job import ROWS_PER_RECORD_BATCH
from tests.support.arenas import check_idle
from tests.support.processes import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.spark_cluster, pytest.mark.timeout(1800)]

ROW_COUNT = 8000
TASK_COUNT = 4
FIRST_TASK = range(ROW_COUNT // TASK_COUNT)
FIRST_BATCH = range(ROWS_PER_RECORD_BATCH)
LOCAL_CLUSTER = "local-cluster[2,1,1024]"
STANDALONE = "standalone"
SMALL = {"bufferMemory": "4MiB", "idleExitMs": "1s", "topic": "flights", "partitions": "2"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers, each as a separate node."""
    os.environ["PYTHONPATH"] = str(ROOT)
    with open_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


class Field:
    """Jobs on one master, and the arenas and logs that they leave on its nodes."""

    def __init__(self, master: str, nodes: tuple[str, ...], prefix: str, folder: Path) -> None:
        self.master = master
        self.folder = folder
        self.arenas = [f"{prefix}-{node}" for node in nodes]
        self.logs = [folder / node for node in nodes]
        self.sign = str(folder / "sign")
        self.options = {"arena": f"{prefix}-{{node}}", "sink": f"log:{folder}/{{node}}", **SMALL}

    def run(
        self,
        wound: str,
        settings: Mapping[str, str] | None = None,
        *,
        tasks: int = TASK_COUNT,
        is_cancelled: bool = False,
    ) -> str | None:
        """Run a job that writes numbers. Return the message of the exception that ended it."""
        options = {**self.options, "wound": wound, "sign": self.sign}
        plan = {"master": self.master, "settings": dict(settings or {}), "rows": ROW_COUNT, "tasks": tasks}
        plan |= {"options": options, **({"cancel_at": self.sign} if is_cancelled else {})}
        ended = subprocess.run(
            [sys.executable, "-m", "tests.spark.cluster_job", json.dumps(plan)],
            cwd=ROOT,
            env={**os.environ, "SHMACCUM_NODE": "here"},
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr[-5000:]
        answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
        self.settle()
        return answer["error"]  # type: ignore[no-any-return]

    def settle(self) -> None:
        """Wait until the senders have left. Then check that each arena is sound and nothing is reserved."""
        for name in filter(Arena.exists, self.arenas):
            with Arena.open_read_only(name) as arena:
                wait_until(lambda: not arena.native.sender_is_alive, "the sender has left", 120)
            with Arena.attach(name) as arena:
                check_idle(arena)

    def found(self) -> Counter[int]:
        """Return the count of each number in the logs of all nodes."""
        found: Counter[int] = Counter()
        for log in filter(Path.exists, self.logs):
            reader = LogReader(log)
            for place in reader.topic_partitions():
                found.update(int(record.value or b"-1") for record in reader.partition(*place).records())
        return found

    def remove(self) -> None:
        """Remove the arenas, and the files that workers of local-cluster write into Spark's own folder."""
        for name in self.arenas:
            Arena.remove(name, missing_ok=True)
        shutil.rmtree(Path(pyspark.__file__).parent / "work", ignore_errors=True)


@pytest.fixture(params=[LOCAL_CLUSTER, STANDALONE])
def field(request: pytest.FixtureRequest, arena_name: str, tmp_path: Path) -> Iterator[Field]:
    if request.param == STANDALONE:
        cluster: Cluster = request.getfixturevalue("cluster")
        field = Field(cluster.url, cluster.nodes, arena_name, tmp_path)
    else:
        field = Field(request.param, ("here",), arena_name, tmp_path)
    yield field
    field.remove()


@pytest.fixture
def standalone(cluster: Cluster, arena_name: str, tmp_path: Path) -> Iterator[Field]:
    field = Field(cluster.url, cluster.nodes, arena_name, tmp_path)
    yield field
    field.remove()


@pytest.fixture
def local(arena_name: str, tmp_path: Path) -> Iterator[Field]:
    field = Field("local[2,4]", ("here",), arena_name, tmp_path)
    yield field
    field.remove()


def twice(found: Counter[int]) -> set[int]:
    """Return the numbers that appear more than once."""
    return {number for number, count in found.items() if count > 1}


@pytest.mark.parametrize("wound", ["kill_worker", "kill_executor"])
def test_a_killed_worker_or_executor_leaves_duplicates_of_its_task(field: Field, wound: str) -> None:
    """An executor has one core here, so no other task dies with it. But the worker continues for some batches after the
    executor has died.
    """
    assert field.run(wound) is None
    found = field.found()
    assert set(found) == set(range(ROW_COUNT))
    assert twice(found) <= set(FIRST_BATCH if wound == "kill_worker" else FIRST_TASK)
    assert max(found.values()) <= 2


def test_a_killed_sender_is_replaced_and_nothing_is_there_twice(field: Field) -> None:
    assert field.run("kill_sender") is None
    assert field.found() == Counter(range(ROW_COUNT))


def test_each_node_has_an_arena_a_sender_and_a_log(standalone: Field) -> None:
    assert standalone.run("") is None
    assert standalone.found() == Counter(range(ROW_COUNT))
    assert all(map(Arena.exists, standalone.arenas))
    for log in standalone.logs:
        reader = LogReader(log)
        assert sum(reader.partition(*place).log_end_offset for place in reader.topic_partitions()) > 0


def test_a_copy_of_a_slow_task_leaves_duplicates_of_that_task(standalone: Field) -> None:
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
    }
    assert standalone.run("stall", settings) is None
    assert Path(standalone.sign + ".done").exists(), "there was a copy"
    found = standalone.found()
    assert set(found) == set(range(ROW_COUNT))
    assert set(FIRST_BATCH) <= twice(found) <= set(FIRST_TASK)
    assert max(found.values()) <= 2


def test_a_cancelled_job_leaves_what_it_had_delivered_and_the_next_one_is_whole(field: Field) -> None:
    error = field.run("stall", is_cancelled=True)
    assert error is not None
    assert "cancel" in error.lower()
    left = field.found()
    assert set(FIRST_BATCH) <= set(left) <= set(range(ROW_COUNT))
    assert not twice(left), "a zombie adds what was not there"
    assert field.run("") is None
    assert field.found() - left == Counter(range(ROW_COUNT))


def test_workers_that_are_replaced_between_tasks_leave_nothing(local: Field) -> None:
    settings = {"spark.python.worker.reuse": "false"}
    assert local.run("", settings, tasks=16) is None
    assert local.found() == Counter(range(ROW_COUNT))


def test_an_arena_that_does_not_fit_into_a_worker_is_reported(local: Field) -> None:
    local.options["bufferMemory"] = "2GiB"
    error = local.run("", {"spark.executor.pyspark.memory": "1g"})
    assert error is not None
    assert "raise spark.executor.pyspark.memory" in error
    assert not Arena.exists(local.arenas[0])
