# SPDX-License-Identifier: Apache-2.0
"""Many processes send through one arena to Apache Kafka. Despite deaths, each record arrives once, in the order of its
key.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shmaccum.arena.delivery_span import DeliveryClockReading
from tests.kafka.broker import Cluster, running_cluster
from tests.kafka.distribution import require
from tests.kafka.journey import Journey, journey
from tests.kafka.proxy import Proxy, proxied_broker

SENDER_PERIOD_S = 0.3
SHORT_COUNT = 12_000
OVERFLOW_COUNT = 60_000
LONG_COUNT = 250_000
LONG_PRODUCER_COUNT = 8
ENDLESS = 10**9
WARM_COUNT = 1_000
"""After this many delivered records, all topics are known."""
LONG_OUTAGE_COUNT = 1_000_000
OUTAGE_S, LONG_OUTAGE_S = 150, 600
"""Longer than the default delivery timeout of two minutes."""
DELAY_S = 0.005


BOTH_PATHS = pytest.mark.parametrize(
    "compression_type", ["none", pytest.param("lz4", marks=pytest.mark.slow)], ids=["pump", "python"]
)
"""C sends ordinary batches, and Python sends compressed ones."""


@pytest.fixture
def topics() -> list[str]:
    """Four unique topic names."""
    run = uuid.uuid4().hex[:8]
    return [f"journey-{run}-{number}" for number in range(4)]


def produce(one: Journey, topics: list[str], producer_count: int, count: int) -> None:
    for _ in range(producer_count):
        one.start_producer(count, topics)


def replace_sender(one: Journey) -> None:
    """Starts a standby sender, and kills the one that has the role."""
    one.start_sender()
    one.kill_sender()


# --- short forms


@BOTH_PATHS
def test_nothing_disturbs(
    compression_type: str, apache: Cluster, topics: list[str], arena_name: str, tmp_path: Path
) -> None:
    with journey(arena_name, apache.bootstrap, tmp_path, {"compression_type": compression_type}) as one:
        one.start_sender()
        produce(one, topics, 3, SHORT_COUNT)
        one.run_until_delivered()
        assert one.check_arrived(topics) == 3 * SHORT_COUNT
        assert (one.pump_call_count > 0) is (compression_type == "none")


@BOTH_PATHS
def test_senders_are_killed(
    compression_type: str, apache: Cluster, topics: list[str], arena_name: str, tmp_path: Path
) -> None:
    with journey(arena_name, apache.bootstrap, tmp_path, {"compression_type": compression_type}) as one:
        one.start_sender()
        produce(one, topics, 3, SHORT_COUNT)
        one.run_until_delivered(lambda: replace_sender(one), SENDER_PERIOD_S)
        assert one.check_arrived(topics) == 3 * SHORT_COUNT
        assert (one.pump_call_count > 0) is (compression_type == "none")


def test_producers_are_killed(apache: Cluster, topics: list[str], arena_name: str, tmp_path: Path) -> None:
    with journey(arena_name, apache.bootstrap, tmp_path) as one:
        one.start_sender()
        produce(one, topics, 3, ENDLESS)
        one.run_until(lambda: min(one.sent_count(number) for number in range(3)) > 500)
        for _ in range(3):
            one.kill_producer()
        one.run_until_delivered()
        assert one.check_arrived(topics) >= one.sent_total() > 1_500


@contextmanager
def proxied_journey(arena_name: str, folder: Path, buffer_memory: str = "4MiB") -> Iterator[tuple[Journey, Proxy]]:
    """A journey to a broker that is reached only through the proxy."""
    with (
        proxied_broker(folder / "cluster") as (between, bootstrap),
        journey(arena_name, bootstrap, folder, buffer_memory=buffer_memory) as one,
    ):
        yield one, between


def test_connections_are_cut(topics: list[str], arena_name: str, tmp_path: Path) -> None:
    with proxied_journey(arena_name, tmp_path) as (one, between):
        one.start_sender()
        produce(one, topics, 2, SHORT_COUNT)
        one.run_until_delivered(between.cut, SENDER_PERIOD_S)
        assert one.check_arrived(topics) == 2 * SHORT_COUNT
        assert one.pump_call_count > 0


def outlast(one: Journey, between: Proxy, seconds: float, *, is_silent: bool) -> None:
    """The broker stops during the traffic, and restarts after this many seconds."""
    one.run_until(lambda: one.delivered_count() > WARM_COUNT)
    between.is_away, between.is_silent = not is_silent, is_silent
    between.cut()
    end_s = time.monotonic() + seconds
    one.run_until(lambda: DeliveryClockReading.of(one.arena.native).stands_still)
    assert "no broker of" in str(DeliveryClockReading.of(one.arena.native).outage)
    time.sleep(max(end_s - time.monotonic(), 0))  # the outage itself is what is tested
    assert not one.is_delivered()
    between.is_away = between.is_silent = False
    between.cut()


@pytest.mark.parametrize("is_silent", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["away", "silent"])
def test_a_broker_that_is_gone_for_longer_than_the_timeout_costs_nothing(
    is_silent: bool, topics: list[str], arena_name: str, tmp_path: Path
) -> None:
    with proxied_journey(arena_name, tmp_path) as (one, between):
        one.start_sender("4s", request_timeout_ms="1s")
        produce(one, topics, 2, SHORT_COUNT)
        outlast(one, between, 6, is_silent=is_silent)
        check_nothing_expired(one, topics, 2 * SHORT_COUNT)


def check_nothing_expired(one: Journey, topics: list[str], count: int) -> None:
    """Check that this many records were delivered and have arrived."""
    one.run_until_delivered()
    assert one.arena.native.counters()["batches expired"] == 0
    assert one.check_arrived(topics) == count


@pytest.mark.kafka
def test_an_outage_that_is_longer_than_memory_costs_nothing(topics: list[str], arena_name: str, tmp_path: Path) -> None:
    """The arena overflows. Senders are killed while they spill and while they deliver from disk."""
    with (
        proxied_broker(tmp_path / "cluster") as (between, bootstrap),
        journey(arena_name, bootstrap, tmp_path) as one,
    ):
        options = {"request_timeout_ms": "1s", "overflow": f"log:{tmp_path}/overflow"}

        def replace() -> None:
            one.start_sender("4s", **options)
            one.kill_sender()

        one.start_sender("4s", **options)
        produce(one, topics, 3, OVERFLOW_COUNT)
        one.run_until(lambda: one.delivered_count() > WARM_COUNT)
        between.is_away = True
        between.cut()
        for wanted in (1, 20_000, 50_000):
            one.run_until(lambda: one.arena.native.spilled()["record_count"] >= wanted)  # noqa: B023
            replace()
        between.is_away = False
        for _ in range(2):
            before = one.delivered_count()
            one.run_until(lambda: one.delivered_count() > before)  # noqa: B023
            replace()
        one.run_until_delivered()
        assert one.arena.native.counters()["batches expired"] == 0
        assert one.check_arrived(topics) == 3 * OVERFLOW_COUNT


# --- long forms


@pytest.mark.kafka
@pytest.mark.timeout(LONG_OUTAGE_S + 900)
@pytest.mark.parametrize("outage_s", [OUTAGE_S, pytest.param(LONG_OUTAGE_S, marks=pytest.mark.soak)])
def test_a_million_records_outlast_a_broker_that_is_gone_for_minutes(
    topics: list[str], arena_name: str, tmp_path: Path, outage_s: int
) -> None:
    """Use a sender's defaults. Its timeout of two minutes does not run without a broker."""
    with proxied_journey(arena_name, tmp_path, "256MiB") as (one, between):
        one.start_sender("2min")
        produce(one, topics, 2, LONG_OUTAGE_COUNT // 2)
        outlast(one, between, outage_s, is_silent=False)
        check_nothing_expired(one, topics, LONG_OUTAGE_COUNT)


@pytest.mark.kafka
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("disturbance", ["nothing", "senders", "broker"])
def test_two_million_records_of_eight_processes(
    disturbance: str, topics: list[str], arena_name: str, tmp_path: Path
) -> None:
    require()
    with (
        running_cluster(tmp_path / "cluster") as cluster,
        journey(arena_name, cluster.bootstrap, tmp_path, buffer_memory="32MiB") as one,
    ):
        one.start_sender()
        produce(one, topics, LONG_PRODUCER_COUNT, LONG_COUNT)
        if disturbance == "senders":
            one.run_until_delivered(lambda: replace_sender(one), SENDER_PERIOD_S)
        elif disturbance == "broker":
            one.run_until_delivered(lambda: restart(cluster), 5.0)
        else:
            one.run_until_delivered()
        assert one.check_arrived(topics) == LONG_PRODUCER_COUNT * LONG_COUNT


@pytest.mark.kafka
@pytest.mark.timeout(1800)
def test_two_million_records_over_connections_that_are_cut_and_slow(
    topics: list[str], arena_name: str, tmp_path: Path
) -> None:
    with proxied_journey(arena_name, tmp_path, "32MiB") as (one, between):
        between.delay_s = DELAY_S
        one.start_sender()
        produce(one, topics, LONG_PRODUCER_COUNT, LONG_COUNT)
        one.run_until_delivered(between.cut, SENDER_PERIOD_S)
        between.delay_s = 0.0
        assert one.check_arrived(topics) == LONG_PRODUCER_COUNT * LONG_COUNT


@pytest.mark.kafka
@pytest.mark.timeout(1800)
def test_two_million_records_of_producers_that_are_killed_and_replaced(
    apache: Cluster, topics: list[str], arena_name: str, tmp_path: Path
) -> None:
    """Kill and replace a producer after each further number of sent records."""
    total, between_kills = LONG_PRODUCER_COUNT * LONG_COUNT, 50_000
    with journey(arena_name, apache.bootstrap, tmp_path, buffer_memory="32MiB") as one:
        one.start_sender()
        produce(one, topics, LONG_PRODUCER_COUNT, ENDLESS)
        for sent in range(between_kills, total + 1, between_kills):
            one.run_until(lambda sent=sent: one.sent_total() >= sent)  # type: ignore[misc]
            one.kill_producer()
            one.start_producer(ENDLESS, topics)
        while one.is_producing():
            one.kill_producer()
        one.run_until_delivered()
        assert one.check_arrived(topics) >= one.sent_total() >= total


def restart(cluster: Cluster) -> None:
    cluster.brokers[0].kill()
    cluster.start()


@pytest.mark.kafka
@pytest.mark.timeout(1800)
def test_leaders_move_among_three_brokers(
    three_brokers: Cluster, topics: list[str], arena_name: str, tmp_path: Path
) -> None:
    """Stop or kill one broker after another, and restart it when its partitions have other leaders."""
    for topic in topics:
        three_brokers.create_topic(topic, 6, 3, min_insync_replicas="2")
    turns = itertools.cycle(three_brokers.brokers)

    def disturb() -> None:
        broker = next(turns)
        if broker.node_id % 2:
            broker.stop()
        else:
            broker.kill()
        three_brokers.start()

    with journey(arena_name, three_brokers.bootstrap, tmp_path, buffer_memory="32MiB") as one:
        one.start_sender()
        produce(one, topics, LONG_PRODUCER_COUNT, LONG_COUNT)
        one.run_until_delivered(disturb, 1.0)
        assert one.check_arrived(topics) == LONG_PRODUCER_COUNT * LONG_COUNT
