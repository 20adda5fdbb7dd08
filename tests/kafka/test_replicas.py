# SPDX-License-Identifier: Apache-2.0
"""A replica stops on three brokers of Apache Kafka. The topic requires three replicas in sync.

If a broker stops cleanly, the leader rejects batches at once (NOT_ENOUGH_REPLICAS). If it is killed, its session must
end first. Until then, the leader appends and waits in vain. A batch that is resent then is in the log already, and must
not be appended twice. If a partition's only replica is gone, it has no leader, and its records expire as in
Kafka. The fake broker tests NOT_ENOUGH_REPLICAS_AFTER_APPEND, which is rare since KIP-966.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shmaccum._native import DeliveryFuture
from shmaccum.arena import Arena
from shmaccum.arena.delivery_span import DeliveryClockReading
from shmaccum.exceptions import DeliveryTimeoutError
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from tests.kafka.broker import Broker, Cluster, running_cluster
from tests.kafka.distribution import require
from tests.kafka.reading import consume
from tests.support.processes import WATCHDOG_S, wait_until

REPLICA_COUNT = 3
REQUEST_TIMEOUT_MS = 1_000
LEADERLESS_TIMEOUT_MS = 10_000
"""Longer than a broker's session, so that the cluster detects the death before the record expires."""
BEFORE, BETWEEN, AFTER = range(50), range(50, 150), range(150, 200)

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster, whose stopped brokers are restarted."""
    require()
    with running_cluster(tmp_path_factory.mktemp("replicas"), broker_count=REPLICA_COUNT) as cluster:
        yield cluster


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic of one partition. Every replica must be in sync."""
    name = f"flights-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(name, 1, REPLICA_COUNT, min_insync_replicas=str(REPLICA_COUNT))
    return name


@contextlib.contextmanager
def running_sender(arena: Arena, bootstrap: str, **options: Any) -> Iterator[None]:
    """Runs the real sender in a thread."""
    with Sender(arena, f"kafka:{bootstrap}", retry_backoff_ms=50, **options) as sender:
        thread = threading.Thread(target=sender.run)
        thread.start()
        try:
            yield
        finally:
            sender.stop()
            thread.join(WATCHDOG_S)
            assert not thread.is_alive()


def follower(cluster: Cluster, topic: str) -> Broker:
    """A broker that does not lead the topic's partition."""
    leader = cluster.admin().list_topics(topic).topics[topic].partitions[0].leader
    return next(broker for broker in cluster.brokers if broker.node_id != leader)


def value_of(number: int) -> bytes:
    return b"value %d" % number


def send(producer: Producer, topic: str, numbers: range) -> list[DeliveryFuture]:
    return [producer.send(topic, value_of(number), partition=0) for number in numbers]


def was_reported(arena: Arena, error: str) -> bool:
    return any(error in row["text"] for row in arena.native.errors())


@pytest.mark.parametrize(
    ("end", "errors"),
    [(Broker.stop, ["NOT_ENOUGH_REPLICAS:"]), (Broker.kill, ["REQUEST_TIMED_OUT:", "NOT_ENOUGH_REPLICAS:"])],
)
def test_records_wait_for_a_replica_and_arrive_once_in_order(
    cluster: Cluster, topic: str, arena: Arena, end: Callable[[Broker], None], errors: list[str]
) -> None:
    options = {"request_timeout_ms": REQUEST_TIMEOUT_MS}
    with running_sender(arena, cluster.bootstrap, **options), Producer(arena) as producer:
        futures = send(producer, topic, BEFORE)
        producer.flush(timeout=WATCHDOG_S)
        end(follower(cluster, topic))
        futures += send(producer, topic, BETWEEN)
        for error in errors:
            wait_until(lambda error=error: was_reported(arena, error), f"the broker says {error}")  # type: ignore[misc]
        assert not any(future.is_done for future in futures[len(BEFORE) :])
        cluster.start()
        futures += send(producer, topic, AFTER)
        producer.flush(timeout=WATCHDOG_S)
        offsets = [future.get(timeout=WATCHDOG_S).offset for future in futures]
    assert offsets == list(range(len(futures)))
    sent = [value_of(number) for number in range(len(futures))]
    assert consume(cluster.bootstrap, topic, 1, len(sent)) == {0: sent}


def test_records_that_may_not_wait_so_long_get_the_brokers_error(cluster: Cluster, topic: str, arena: Arena) -> None:
    options = {"delivery_timeout_ms": 2 * REQUEST_TIMEOUT_MS, "request_timeout_ms": REQUEST_TIMEOUT_MS}
    follower(cluster, topic).stop()
    with running_sender(arena, cluster.bootstrap, **options), Producer(arena) as producer:
        (future,) = send(producer, topic, range(1))
        with pytest.raises(DeliveryTimeoutError, match="NOT_ENOUGH_REPLICAS: fewer replicas are in sync"):
            future.get(timeout=WATCHDOG_S)
        cluster.start()
        (future,) = send(producer, topic, range(1, 2))
        assert future.get(timeout=WATCHDOG_S).offset == 0
    assert consume(cluster.bootstrap, topic, 1, 1) == {0: [value_of(1)]}


def leader(cluster: Cluster, topic: str) -> Broker:
    """The broker that leads the topic's only partition."""
    node_id = cluster.admin().list_topics(topic).topics[topic].partitions[0].leader
    return next(broker for broker in cluster.brokers if broker.node_id == node_id)


def test_records_of_a_partition_without_a_leader_expire_while_the_cluster_lives(cluster: Cluster, arena: Arena) -> None:
    lonely, healthy = f"lonely-{uuid.uuid4().hex[:8]}", f"healthy-{uuid.uuid4().hex[:8]}"
    cluster.create_topic(lonely, 1, 1)
    cluster.create_topic(healthy, 1, REPLICA_COUNT)
    options = {"delivery_timeout_ms": LEADERLESS_TIMEOUT_MS, "request_timeout_ms": REQUEST_TIMEOUT_MS}
    with running_sender(arena, cluster.bootstrap, **options), Producer(arena) as producer:
        assert send(producer, lonely, range(1))[0].get(timeout=WATCHDOG_S).offset == 0
        leader(cluster, lonely).kill()
        began_s = time.monotonic()
        (future,) = send(producer, lonely, range(1, 2))
        with pytest.raises(DeliveryTimeoutError) as caught:
            future.get(timeout=WATCHDOG_S)
        assert time.monotonic() - began_s >= LEADERLESS_TIMEOUT_MS / 1000
        assert (caught.value.timeout_ms, caught.value.counts_always) == (LEADERLESS_TIMEOUT_MS, False)
        assert DeliveryClockReading.of(arena.native).outage is None
        assert send(producer, healthy, range(1))[0].get(timeout=WATCHDOG_S).offset == 0
        cluster.start()
        assert send(producer, lonely, range(2, 3))[0].get(timeout=WATCHDOG_S).offset == 1
    assert consume(cluster.bootstrap, lonely, 1, 2) == {0: [value_of(0), value_of(2)]}
