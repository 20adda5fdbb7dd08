# SPDX-License-Identifier: Apache-2.0
"""Transactions of randomly killed processes and brokers are in Apache Kafka completely or not at all."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import confluent_kafka
import pytest

from tests.chaos.transactions import LAST, PARTITIONS, TOPIC, Trial, judge, make, wanted_count
from tests.kafka.broker import Broker, Cluster, running_cluster
from tests.kafka.distribution import require, run_tool
from tests.support.processes import WATCHDOG_S, wait_until

TIMEOUT_MS = 6_000
"""The transaction timeout of brokers and arena. A start of a broker often takes longer."""
SHORT_COUNT = 20
COORDINATORS_TOPIC = "__transaction_state"
REPLICATED = {
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "min.insync.replicas": "2",
}


@contextlib.contextmanager
def started(
    name: str, folder: Path, dice: random.Random, *, broker_count: int = 1, version: int
) -> Iterator[tuple[Cluster, Trial]]:
    """A cluster, and a trial whose sender delivers to it."""
    require()
    properties = REPLICATED if broker_count > 1 else {}
    with running_cluster(folder, broker_count, properties) as cluster:
        cluster.set_transaction_version(version)
        cluster.create_topic(TOPIC, PARTITIONS, broker_count)
        make(name, transaction_timeout_ms=TIMEOUT_MS)
        trial = Trial(name, f"kafka:{cluster.bootstrap}", folder, dice)
        try:
            yield cluster, trial
        finally:
            trial.end()


# --- injuries


def restart(cluster: Cluster) -> None:
    """Kill the only broker, and start it again."""
    (broker,) = cluster.brokers
    broker.kill()
    cluster.start()


def move(cluster: Cluster, trial: Trial, end: Callable[[Broker], None]) -> None:
    """End the broker with the transaction coordinator, wait until another one takes over, and start it again."""
    former = cluster.leader(COORDINATORS_TOPIC)
    assert former is not None
    end(former)
    wait_until(lambda: cluster.leader(COORDINATORS_TOPIC) not in {None, former}, "another broker takes over")
    trial.wait_until_ended(5)
    cluster.start()


def outlast(trial: Trial) -> None:
    """Stop delivery for longer than the brokers wait for the end of a transaction."""
    with trial.no_sender():
        end_s = time.monotonic() + 1.5 * TIMEOUT_MS / 1000
        wait_until(lambda: time.monotonic() > end_s, "the time of an open transaction is over at the brokers")


# --- checks


def committed(cluster: Cluster) -> list[str]:
    """Return the values that librdkafka's consumer gets, up to the last transaction in each partition."""
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": "judge", "isolation.level": "read_committed"}
    consumer = confluent_kafka.Consumer({**settings, "enable.auto.commit": False, "check.crcs": True, "log_level": 0})
    values: list[str] = []
    ended: set[int | None] = set()

    def is_at_the_end() -> bool:
        for message in consumer.consume(1000, timeout=0.1):
            assert message.error() is None, message.error()
            values.append((message.value() or b"").decode())
            if values[-1].startswith(LAST):
                ended.add(message.partition())
        return len(ended) == PARTITIONS

    try:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        wait_until(is_at_the_end, "the reader comes to the end", 10 * WATCHDOG_S)
    finally:
        consumer.close()
    return values


def committed_for_java(cluster: Cluster, count: int) -> list[str]:
    """Return the first values that Kafka's console consumer gets."""
    place = ["--bootstrap-server", cluster.bootstrap, "--topic", TOPIC, "--from-beginning"]
    limits = ["--max-messages", str(count), "--timeout-ms", "60000"]
    consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    return run_tool(consumer, *place, *limits, "--isolation-level", "read_committed").splitlines()


def try_it(trial: Trial, cluster: Cluster, count: int, injuries: Sequence[Callable[[], object]]) -> None:
    began_s = time.monotonic()
    trial.run(count, injuries)
    trial.finish()
    values = committed(cluster)
    print(judge(trial.ledger, values), dict(trial.kills), f"{time.monotonic() - began_s:.0f} s")
    assert Counter(committed_for_java(cluster, len(values))) == Counter(values)


# --- trials


@pytest.mark.kafka
def test_a_few_transactions_are_there_whole_or_not_at_all(
    arena_name: str, tmp_path: Path, seeded: Callable[[], random.Random]
) -> None:
    with started(arena_name, tmp_path, seeded(), version=2) as (cluster, trial):
        try_it(trial, cluster, SHORT_COUNT, [lambda: restart(cluster)])


@pytest.mark.chaos
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("version", [1, 2], ids=["explicit", "implicit"])
def test_many_transactions_are_there_whole_or_not_at_all(
    version: int, arena_name: str, tmp_path: Path, seeded: Callable[[], random.Random]
) -> None:
    with started(arena_name, tmp_path, seeded(), version=version) as (cluster, trial):
        injuries = [lambda: restart(cluster), lambda: outlast(trial)] * 2
        try_it(trial, cluster, wanted_count(), injuries)


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_transactions_whose_coordinator_moves_are_there_whole_or_not_at_all(
    arena_name: str, tmp_path: Path, seeded: Callable[[], random.Random]
) -> None:
    with started(arena_name, tmp_path, seeded(), broker_count=3, version=2) as (cluster, trial):
        injuries = [lambda: move(cluster, trial, Broker.kill), lambda: move(cluster, trial, Broker.stop)]
        try_it(trial, cluster, wanted_count(), injuries)
