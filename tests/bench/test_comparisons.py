# SPDX-License-Identifier: Apache-2.0
"""Questions compare like with like: the same broker, as many records per wait, equal records held, equal callbacks."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from bench.parts.arenas import TOPIC, drained_arena
from bench.parts.sending import VALUE
from bench.questions import compat_send, latency_future, logging_handler, memory, sync_append
from shmaccum import Producer
from shmaccum.config import ArenaOptions
from tests.support.arenas import sender_pid
from tests.support.processes import WATCHDOG_S


def test_the_drainer_is_the_sender_of_the_product() -> None:
    with drained_arena() as arena, Producer(arena) as producer:
        pid = sender_pid(arena)
        assert pid is not None
        assert psutil.Process(pid).cmdline()[1:3] == ["-m", "shmaccum.sender"]
        producer.send(TOPIC, b"value").get(WATCHDOG_S)


def test_a_future_is_compared_at_the_same_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers: list[str] = []

    def future(sink: str) -> dict[str, float]:
        brokers.append(sink.removeprefix("kafka:"))
        return {}

    def confluent(**options: object) -> dict[str, float]:
        brokers.append(str(options["bootstrap.servers"]))
        return {}

    monkeypatch.setattr(latency_future, "mock_cluster", lambda: "127.0.0.1:9092")
    monkeypatch.setattr(latency_future, "_future", future)
    monkeypatch.setattr(latency_future, "_confluent", confluent)
    contenders = {each.name: each for each in latency_future.contenders()}
    ours = contenders[latency_future.TO_MOCK]
    ours.run()
    contenders[ours.peer or latency_future.QUESTION.peer].run()
    assert brokers == ["127.0.0.1:9092"] * 2


def test_synced_records_are_compared_with_as_many_per_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_append, "SECONDS", 0.05)
    contenders = {each.name: each for each in sync_append.contenders()}
    counts = {sync_append.ONE_BY_ONE: 1, sync_append.TOGETHER: sync_append.TOGETHER_COUNT}
    for name, count in counts.items():
        peer = contenders[name].peer or sync_append.QUESTION.peer
        assert contenders[peer].run()["records_per_sync"] == count
    assert {goal.contender for goal in sync_append.QUESTION.goals} == set(counts)


def test_memory_is_compared_with_equal_records_and_includes_the_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("confluent_kafka")
    assert f"range({memory.RECORD_COUNT})" in memory.OUR_WORK
    assert f"range({memory.RECORD_COUNT})" in memory.CONFLUENT_WORK
    held = [contender.run()["held_size"] for contender in memory.contenders()]
    assert min(held) > memory.RECORD_COUNT * len(VALUE)
    assert memory.QUESTION.figures[0].name == "held_size"


def test_the_goal_of_compat_confluent_is_that_of_sends_with_callbacks() -> None:
    (goal,) = (goal for goal in compat_send.QUESTION.goals if goal.contender.startswith(compat_send.CONFLUENT))
    (contender,) = (each for each in compat_send.contenders() if each.name == goal.contender)
    assert goal.contender.endswith(compat_send.TOLD)
    assert contender.peer.endswith(compat_send.TOLD)


def test_the_peer_of_the_handler_is_the_fastest_other_one() -> None:
    assert logging_handler.QUESTION.peer == logging_handler.CONFLUENT


class WriterOfNothing:
    """Remembers the options of a write, as Spark's DataFrameWriter takes them."""

    def __init__(self, row_count: int) -> None:
        self.given: dict[str, str] = {"rows": str(row_count)}

    @property
    def write(self) -> WriterOfNothing:
        return self

    def format(self, name: str) -> WriterOfNothing:
        return self.options(format=name)

    def mode(self, _name: str) -> WriterOfNothing:
        return self

    def options(self, **given: str) -> WriterOfNothing:
        self.given.update(given)
        return self

    def save(self) -> None:
        """Write nothing."""


def test_sparks_own_sink_has_the_same_rows_and_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark")
    from bench.parts import spark_session
    from bench.questions import spark_kafka

    writers: list[WriterOfNothing] = []

    def rows(count: int) -> WriterOfNothing:
        writers.append(WriterOfNothing(count))
        return writers[-1]

    monkeypatch.setattr(spark_session, "rows", rows)
    monkeypatch.setattr(spark_session, "connector_jars", lambda: [Path("connector.jar")])
    monkeypatch.setattr(spark_kafka, "_bootstrap", lambda: "127.0.0.1:9092")
    contenders = {each.name: each for each in spark_kafka.contenders()}
    for name in (spark_kafka.OURS, spark_kafka.OURS_LARGE):
        ours = contenders[name]
        peer = contenders[ours.peer or spark_kafka.QUESTION.peer]
        ours.run()
        peer.run()
        mine, theirs = (writer.given for writer in writers[-2:])
        assert theirs["format"] == "kafka"
        assert theirs["rows"] == mine["rows"]
        given = {"batch_size": mine["batchSize"]} if "batchSize" in mine else {}
        assert int(theirs["kafka.batch.size"]) == ArenaOptions.parse(given).batch_size
        assert theirs["kafka.linger.ms"] == mine["linger.ms"]
