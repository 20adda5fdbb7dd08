# SPDX-License-Identifier: Apache-2.0
"""Staging writers for Kafka, as Spark would call them: a commit to a served log dies at each step."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make spark, or pip install '.[spark]'")

from shmaccum.exceptions import (
    InvalidArgumentError,
    NotALogError,
    TransactionNotAppliedError,
    TransactionOverError,
)
from shmaccum.log.files import LogDirectory, LogReader
from shmaccum.log.files.reader import IsolationLevel
from shmaccum.log.files.transaction_files import TransactionFiles, TransactionId
from shmaccum.sender.sinks.kafka.library.client import Client
from shmaccum.spark.exactly_once import (
    BATCH_ID,
    QUERY_ID,
    ExactlyOnceBatchWriter,
    ExactlyOnceStreamWriter,
    StagedCommit,
)
from shmaccum.spark.kafka_session import next_streams
from shmaccum.spark.settings import sink_settings
from shmaccum.spark.writers import SinkPlan
from tests.support.log_server import PARTITION_COUNT, address_of, running
from tests.support.segment_log import values_of
from tests.unit.spark.test_settings import schema
from tests.unit.spark.test_writers import batches

QUERY = "0b0c6a20-query"
VALUES = schema("value:binary")


class Stop(BaseException):
    """The end of a commit at any place."""


class Cluster:
    """A served log in the role of a Kafka cluster."""

    def __init__(self, log: Path, address: str) -> None:
        self.log = log
        self.address = address

    def numbers(self, isolation_level: IsolationLevel = "read_committed") -> list[int]:
        """The values of all partitions, sorted."""
        values = values_of(self.log, "flights", isolation_level)
        return sorted(int(value.partition(b".")[0]) for value in values)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running(tmp_path / "log") as server:
        yield Cluster(tmp_path / "log", address_of(server))


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    return tmp_path / "staging"


@pytest.fixture
def query(task: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Make the task belong to a query. Change the batch id as the query advances."""
    properties = {QUERY_ID: QUERY, BATCH_ID: "0"}
    monkeypatch.setattr(task, "_localProperties", properties, raising=False)
    return properties


def plan(cluster: Cluster, staging: Path, **options: Any) -> SinkPlan:
    given = {"sink": f"kafka:{cluster.address}", "topic": "flights", "deliveryGuarantee": "exactly_once"}
    own = {"stagingPath": str(staging), "bufferMemory": "256KiB", "retryBackoffMs": "10"}
    return SinkPlan.of(sink_settings({**given, **own, **options}), VALUES)


def stage(
    cluster: Cluster, staging: Path, *counts: int, **options: Any
) -> tuple[ExactlyOnceStreamWriter, StagedCommit]:
    writer = ExactlyOnceStreamWriter(plan(cluster, staging, **options))
    return writer, writer.write(batches(*counts))


def left(staging: Path) -> list[str]:
    """The files in the staging folder, and the files of unfinished transactions."""
    states = [name for name in os.listdir(staging / ".transactions") if not name.endswith(".over")]
    return os.listdir(staging / ".staging") + states


# --- a commit


def test_rows_are_in_the_topic_when_the_job_commits_and_not_before(cluster: Cluster, staging: Path) -> None:
    writer = ExactlyOnceBatchWriter(plan(cluster, staging))
    message = writer.write(batches(100, 0, 400))
    assert message.record_count == 500
    assert cluster.numbers("read_uncommitted") == []
    writer.commit([message])
    assert cluster.numbers() == list(range(500))
    assert left(staging) == []
    with pytest.raises(NotALogError, match="is the stagingPath"):
        LogDirectory(staging)
    reader = LogReader(cluster.log)
    assert reader.partitions("flights") == list(range(PARTITION_COUNT)), "as the cluster has them"


def test_a_commit_that_comes_again_changes_nothing(cluster: Cluster, staging: Path, query: dict[str, str]) -> None:
    for number in range(3):
        query[BATCH_ID] = str(number)
        for _ in range(2):  # Spark repeats a micro-batch whose outcome it does not know
            writer, message = stage(cluster, staging, 10)
            writer.commit([message], number)
            writer.abort([message], number)
    assert cluster.numbers() == sorted(list(range(10)) * 3)
    assert left(staging) == []


def test_an_aborted_job_leaves_nothing_and_takes_nothing_any_more(cluster: Cluster, staging: Path) -> None:
    writer = ExactlyOnceBatchWriter(plan(cluster, staging))
    message = writer.write(batches(10))
    writer.abort([message])
    assert cluster.numbers("read_uncommitted") == []
    assert left(staging) == []
    with pytest.raises(TransactionOverError):
        writer.commit([message])


def test_a_job_without_rows_asks_no_broker(cluster: Cluster, staging: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = ExactlyOnceBatchWriter(plan(cluster, staging))
    monkeypatch.setattr(Client, "ask", lambda *_: pytest.fail("asked"))
    message = writer.write(batches(0))
    writer.commit([message])
    assert cluster.numbers("read_uncommitted") == []


def test_each_request_of_a_commit_has_a_batch_of_each_partition(
    cluster: Cluster, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame = pa.record_batch(
        {
            "value": [b"%d.%s" % (number, b"x" * 200) for number in range(10_000)],
            "key": [b"%d" % n for n in range(10_000)],
        }
    )
    keyed = SinkPlan.of(plan(cluster, staging, batchSize="16KiB").settings, schema("value:binary;key:binary"))
    writer = ExactlyOnceBatchWriter(keyed)
    message = writer.write(iter([frame]))
    whole, requests = Client.produce, []

    def produce(client: Client, node_id: int, delivery: Any, *given: Any, **named: Any) -> Any:
        requests.append(delivery.partition_indices())
        return whole(client, node_id, delivery, *given, **named)

    monkeypatch.setattr(Client, "produce", produce)
    writer.commit([message])
    assert cluster.numbers() == list(range(10_000))
    batch_count = sum(map(len, requests))
    assert batch_count > 20 * PARTITION_COUNT
    # A partition may have more batches than others, and the first batches are sent before all partitions are added.
    assert len(requests) < 1.5 * batch_count / PARTITION_COUNT


@dataclass
class Stepping:
    """A partition stream as `next_streams` sees it."""

    index: int
    free: int

    def free_capacity(self, in_flight_max: int) -> int:
        """The capacity of a partition stream."""
        return min(self.free, in_flight_max)


def test_streams_of_a_leader_advance_together_and_others_do_not_wait_for_them() -> None:
    streams: Any = [Stepping(0, 5), Stepping(1, 2), Stepping(2, 3), Stepping(3, 0), Stepping(4, 5)]
    leaders = {0: 7, 1: 7, 2: 8, 3: 9, 4: 9}
    assert next_streams(streams, leaders.get, 5) == [0, 1, 0, 1, 2, 2, 2]
    assert next_streams(streams[:2], lambda _: None, 1) == [0, 1]


# --- deaths


def dying_at(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, call: int, *, is_after: bool) -> list[int]:
    """Raise Stop at one call of the method, before or after its work. Return a list of the calls."""
    whole = getattr(owner, name)
    calls: list[int] = []

    def dying(self: Any, *given: Any, **named: Any) -> Any:
        calls.append(len(calls))
        if len(calls) == call and not is_after:
            raise Stop
        found = whole(self, *given, **named)
        if len(calls) == call:
            raise Stop
        return found

    monkeypatch.setattr(owner, name, dying)
    return calls


REQUESTS = 10
"""Look up two coordinators; get a producer id, a version and offsets; add partitions, the group and its offsets; end
the transaction. The served log responds to each in turn.
"""
STEPS: list[tuple[type, str]] = [
    (Client, "produce"),
    (TransactionFiles, "decide"),
    (TransactionFiles, "take"),
    (TransactionFiles, "set_over"),
    (TransactionFiles, "end"),
]


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize(("owner", "name"), STEPS, ids=[name for _, name in STEPS])
def test_a_commit_that_dies_is_finished_by_the_next_one(
    cluster: Cluster, staging: Path, query: dict[str, str], owner: type, name: str, is_after: bool
) -> None:
    check_deaths(cluster, staging, query, (owner, name), [1], is_after=is_after)


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize(
    "calls", [[2, 6, 10], pytest.param(list(range(1, REQUESTS + 1)), marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_a_commit_that_dies_at_a_request_is_finished_by_the_next_one(
    cluster: Cluster, staging: Path, query: dict[str, str], calls: list[int], is_after: bool
) -> None:
    check_deaths(cluster, staging, query, (Client, "ask"), calls, is_after=is_after)


def check_deaths(
    cluster: Cluster,
    staging: Path,
    query: dict[str, str],
    method: tuple[type, str],
    deaths: list[int],
    *,
    is_after: bool,
) -> None:
    """Kill the first commit of each micro-batch at one of these calls, but not the second."""
    rows = 0
    for number, death in enumerate([1, *deaths]):  # the first batch also creates the group
        query[BATCH_ID] = str(number)
        writer, message = stage(cluster, staging, 30)
        with pytest.MonkeyPatch.context() as patch:
            calls = dying_at(patch, *method, death, is_after=is_after)
            with contextlib.suppress(Stop):
                writer.commit([message], number)
        assert len(calls) >= death, f"a commit calls {method[1]} less often"
        writer.commit([message], number)
        rows += 30
        assert len(cluster.numbers()) == rows, f"after a death at call {death} of {method[1]}"
        assert left(staging) == []


def test_a_commit_that_was_replaced_does_not_write_any_more(
    cluster: Cluster, staging: Path, query: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor commits in the middle of the first one, which is then fenced."""
    writer, message = stage(cluster, staging, 30)
    whole = TransactionFiles.take
    other: list[Callable[[], None]] = [lambda: writer.commit([message], 0)]

    def take(files: TransactionFiles, transaction: TransactionId) -> Any:
        found = whole(files, transaction)
        if other:
            other.pop()()
        return found

    monkeypatch.setattr(TransactionFiles, "take", take)
    with pytest.raises(TransactionNotAppliedError, match="this commit of transaction"):
        writer.commit([message], 0)
    assert cluster.numbers() == list(range(30))


# --- a broker that forgets


def test_a_group_that_was_forgotten_is_reported_and_nothing_is_guessed(
    cluster: Cluster, staging: Path, query: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, message = stage(cluster, staging, 30)
    with pytest.MonkeyPatch.context() as patch:
        dying_at(patch, Client, "produce", 1, is_after=False)
        with pytest.raises(Stop):
            writer.commit([message], 0)
    forget(cluster)
    with pytest.raises(TransactionNotAppliedError, match=r"has lost the group .* in flights.*rename") as told:
        writer.commit([message], 0)
    assert cluster.numbers("read_uncommitted") == []
    path = next(word for word in str(told.value).split() if word.endswith(".applying"))
    os.rename(path, path.replace(".applying", ".decided"))  # as the message recommends
    writer.commit([message], 0)
    assert cluster.numbers() == list(range(30))


def forget(cluster: Cluster) -> None:
    """Delete the offsets of every group, as after offsets.retention.minutes."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": cluster.address})
    groups = [f"shmaccum-{QUERY}"]
    for future in admin.delete_consumer_groups(groups, request_timeout=30).values():
        future.result()


def test_a_group_that_was_forgotten_before_a_transaction_began_does_no_harm(
    cluster: Cluster, staging: Path, query: dict[str, str]
) -> None:
    for number in range(2):
        query[BATCH_ID] = str(number)
        writer, message = stage(cluster, staging, 30)
        writer.commit([message], number)
        forget(cluster)
    assert len(cluster.numbers()) == 60


# --- options


def test_a_transaction_longer_than_the_broker_allows_is_refused_before_its_first_record(
    cluster: Cluster, staging: Path, query: dict[str, str]
) -> None:
    writer, message = stage(cluster, staging, 30, commitTimeoutMs="1h")
    with pytest.raises(TransactionNotAppliedError, match=r"transaction\.max\.timeout\.ms"):
        writer.commit([message], 0)
    assert cluster.numbers("read_uncommitted") == []
    writer, _ = stage(cluster, staging, 30)
    writer.commit([message], 0)
    assert cluster.numbers() == list(range(30))


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"stagingPath": None}, "stagingPath"),
        ({"stagingPath": "relative"}, "use an absolute path"),
        ({"stagingPath": None, "checkpointLocation": "hdfs://name/checkpoint"}, "stagingPath"),
        ({"acks": "1"}, "acks"),
        ({"sink": "null:", "stagingPath": None}, "log:DIR"),
        ({"sink": "log:/data/log"}, "stagingPath"),
    ],
)
def test_options_that_cannot_be_are_refused_with_advice(tmp_path: Path, options: dict[str, Any], advice: str) -> None:
    given = {"sink": "kafka:localhost:9092", "topic": "flights", "deliveryGuarantee": "exactly_once"}
    wanted = {**given, "stagingPath": str(tmp_path), **options}
    with pytest.raises(InvalidArgumentError, match=advice):
        sink_settings({name: value for name, value in wanted.items() if value is not None})


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_query_stages_beside_its_checkpoint_by_default(tmp_path: Path, prefix: str) -> None:
    given = {"sink": "kafka:localhost:9092", "topic": "flights", "deliveryGuarantee": "exactly_once"}
    settings = sink_settings({**given, "checkpointLocation": f"{prefix}{tmp_path}/checkpoint"})
    assert settings.directory == f"{tmp_path}/checkpoint-staging"
