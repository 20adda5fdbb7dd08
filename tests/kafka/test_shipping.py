# SPDX-License-Identifier: Apache-2.0
"""Shipping a log to brokers: killed shippers, cut connections, and Apache Kafka as the judge."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmaccum.format.topic_partition import TopicPartition
from shmaccum.segment_log import LogDirectory, LogReader
from shmaccum.segment_log.shipped import read_shipped
from shmaccum.shipping import Shipper
from shmaccum.sinks.memory import MemorySink
from shmaccum.sinks.sink import Verdict
from tests.kafka.broker import Cluster
from tests.kafka.conftest import OpenFake
from tests.kafka.fake_broker import Arrived, Cut, FakeCluster, Reply
from tests.kafka.reading import consume
from tests.log_support import TOPIC, make_batch, make_batches, offsets
from tests.support import WATCHDOG_S, wait_until

BATCH_COUNT = 30
OPTIONS: dict[str, Any] = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 10}
SINK_OPTIONS = {"reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 10}
OUT_OF_ORDER = 45


def make_log(path: Path, topic: str, partition_count: int, batch_count: int) -> dict[int, list[bytes | None]]:
    """A log of small segments; the values that each partition has."""
    with LogDirectory(path) as directory:
        directory.create_topic(topic, partition_count)
        for partition in range(partition_count):
            batches = make_batches(batch_count, first=partition * batch_count)
            offsets(directory.partition(topic, partition).append(batches))
    reader = LogReader(path)
    return {
        partition: [record.value for record in reader.partition(topic, partition).records()]
        for partition in range(partition_count)
    }


class Broker:
    """The memory of a broker: the batches that it took, and those that it recognises."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.taken = MemorySink()
        self._lock = threading.Lock()
        cluster.on_produce = self.take

    def take(self, arrived: Arrived) -> Reply:
        """Takes a batch as Kafka's ProducerStateManager does."""
        with self._lock:
            (ack,) = self.taken.write([arrived.wire_batch()])
        return Reply(0, ack.base_offset) if ack.verdict is Verdict.DELIVERED else Reply(OUT_OF_ORDER)

    def values(self) -> dict[int, list[bytes | None]]:
        """The values of each partition."""
        return {partition: self.taken.values(topic, partition) for topic, partition in self.taken.topic_partitions()}


@contextlib.contextmanager
def shipping_child(log: Path, bootstrap: str) -> Iterator[int]:
    """A process that ships the log, and its pid; killed at the end if it lives."""
    pid = os.fork()
    if pid == 0:
        try:
            Shipper(log, f"kafka:{bootstrap}", sink_options=SINK_OPTIONS, **OPTIONS).run(follow=False)
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def ship(log: Path, bootstrap: str, **options: Any) -> Any:
    return Shipper(log, f"kafka:{bootstrap}", sink_options=SINK_OPTIONS, **OPTIONS, **options).run(follow=False)


def test_shippers_that_are_killed_send_each_record_once_and_in_order(tmp_path: Path, open_fake: OpenFake) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    log = tmp_path / "log"
    made = make_log(log, TOPIC, 2, BATCH_COUNT)
    cluster = open_fake(broker_count=2, topics={TOPIC: 2})
    broker = Broker(cluster)
    for _ in range(4):
        wanted = len(cluster.arrived) + chance.randint(1, 14)
        with shipping_child(log, cluster.bootstrap):
            wait_until(lambda: len(cluster.arrived) >= wanted or broker.values() == made, "they arrive")  # noqa: B023
    ship(log, cluster.bootstrap)
    assert broker.values() == made
    assert len({arrived.sequence[0] for arrived in cluster.arrived}) == 1
    assert {position.producer_epoch for position in read_shipped(str(log)).positions.values()} == {0}


def test_connections_that_are_cut_repeat_and_lose_nothing(tmp_path: Path, open_fake: OpenFake) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    log = tmp_path / "log"
    made = make_log(log, TOPIC, 2, BATCH_COUNT)
    cluster = open_fake(topics={TOPIC: 2})
    broker = Broker(cluster)

    def take_or_cut(arrived: Arrived) -> Reply:
        draw = chance.random()
        if draw < 0.05:
            raise Cut
        reply = broker.take(arrived)
        if draw < 0.1:
            raise Cut
        return reply

    cluster.on_produce = take_or_cut
    ship(log, cluster.bootstrap)
    assert broker.values() == made


@pytest.mark.parametrize(("code", "words"), [(29, "TOPIC_AUTHORIZATION_FAILED"), (10, "MESSAGE_TOO_LARGE")])
def test_a_refusal_is_told_with_the_brokers_reason(tmp_path: Path, open_fake: OpenFake, code: int, words: str) -> None:
    log = tmp_path / "log"
    made = make_log(log, TOPIC, 1, 3)
    cluster = open_fake(topics={TOPIC: 1})
    cluster.on_produce = lambda arrived: Reply(code)  # noqa: ARG005
    progress = ship(log, cluster.bootstrap)
    assert words in "".join(progress.refusals.values())
    assert progress.left_record_count == 9
    broker = Broker(cluster)
    ship(log, cluster.bootstrap)
    assert broker.values() == made


def test_a_shipper_that_finds_no_broker_waits_and_can_be_stopped(tmp_path: Path) -> None:
    log = tmp_path / "log"
    make_log(log, TOPIC, 1, 1)
    shipper = Shipper(log, "kafka:127.0.0.1:1", sink_options=SINK_OPTIONS, **OPTIONS)
    thread = threading.Thread(target=shipper.run)
    thread.start()
    shipper.stop()
    thread.join(WATCHDOG_S)
    assert not thread.is_alive()
    assert read_shipped(str(log)).shipped_to is None


# --- Apache Kafka


def test_apache_kafka_has_each_record_once_after_kills_of_the_shipper(apache: Cluster, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print("seed", seed)
    chance = random.Random(seed)
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    log = tmp_path / "log"
    made = make_log(log, topic, 3, 300)
    with LogDirectory(log) as directory:  # compressed batches go as they are, too
        offsets(directory.partition(topic, 1).append([make_batch([b"z" * 500] * 3, codec=1)]))
    made[1] += [b"z" * 500] * 3
    apache.create_topic(topic, 3)

    def shipped() -> int:
        return sum(position.offset for position in read_shipped(str(log)).positions.values())

    count = sum(map(len, made.values()))
    for _ in range(4):
        wanted = min(shipped() + chance.randint(1, count // 5), count)
        with shipping_child(log, apache.bootstrap):
            wait_until(lambda: shipped() >= wanted, "positions move")  # noqa: B023
    progress = ship(log, apache.bootstrap)
    assert (progress.left_record_count, progress.refusals) == (0, {})
    assert consume(apache.bootstrap, topic, 3, count) == made


def shipped_offset(log: Path, topic: str) -> int:
    """The shipping position of partition 0; -1 where there is none."""
    position = read_shipped(str(log)).positions.get(TopicPartition(topic, 0))
    return -1 if position is None else position.offset


def test_apache_kafka_and_a_log_that_is_written_meanwhile(own_broker: Cluster, tmp_path: Path) -> None:
    """The broker is killed and started again while the log is written and shipped."""
    topic = f"flights-{uuid.uuid4().hex[:8]}"
    log = tmp_path / "log"
    make_log(log, topic, 1, 10)
    own_broker.create_topic(topic, 1)
    shipper = Shipper(log, f"kafka:{own_broker.bootstrap}", sink_options=SINK_OPTIONS, **OPTIONS)
    thread = threading.Thread(target=shipper.run)
    thread.start()
    try:
        with LogDirectory(log) as directory:
            for first in range(10, 40):
                offsets(directory.partition(topic, 0).append(make_batches(1, first=first)))
            wait_until(lambda: shipped_offset(log, topic) > 0, "some of it is shipped")
            own_broker.brokers[0].kill()
            for first in range(40, 80):
                offsets(directory.partition(topic, 0).append(make_batches(1, first=first)))
            own_broker.start()
            own_broker.wait_until_up()
            wait_until(lambda: shipped_offset(log, topic) == 240, "all is shipped")
    finally:
        shipper.stop()
        thread.join(WATCHDOG_S)
    made = [record.value for record in LogReader(log).partition(topic, 0).records()]
    assert consume(own_broker.bootstrap, topic, 1, 240) == {0: made}
