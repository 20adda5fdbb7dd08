# SPDX-License-Identifier: Apache-2.0
"""Kafka's metrics: the supported names, and values that match what a cluster sees."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
from prometheus_client.parser import text_string_to_metric_families

from shmaccum.arena import Arena
from shmaccum.common.format.batch_header import HEADER_SIZE
from shmaccum.observe.prometheus import SenderCollector, exposition
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from shmaccum.sender.sinks import open_sink
from shmaccum.sender.sinks.compression import Compressor, Form
from shmaccum.sender.sinks.kafka.library import client
from tests.kafka.broker import LOOPBACK
from tests.kafka.conftest import OpenFake, OpenLoop
from tests.kafka.fake_broker import FakeBroker, FakeCluster, Reply
from tests.kafka.kafkas_metrics import KAFKAS, LEFT_OUT, OURS
from tests.kafka.loop import Loop, append
from tests.support.accumulator import Accumulator
from tests.support.processes import wait_until
from tests.support.sender import MS

GROUPS = {"": "producer-metrics", "node": "producer-node-metrics", "topic": "producer-topic-metrics"}
NOT_LEADER = 6
INVALID_RECORD = 87
BACKOFF_MS = 10
PROMETHEUS_NAME = re.compile(r"kafka_producer_[a-z0-9_]+")


class ManualSender:
    """A sender to a scripted cluster, with a manual clock."""

    def __init__(self, arena: Arena, cluster: FakeCluster, **options: Any) -> None:
        self._native = arena.native
        self._now_ns = 1000 * MS
        self._native.set_manual_clock(self._now_ns)
        options = {"linger_ms": 0, "retry_backoff_ms": BACKOFF_MS, "retry_backoff_max_ms": BACKOFF_MS, **options}
        self.sender = Sender(arena, f"kafka:{cluster.bootstrap}", **options)
        self._accumulator = Accumulator(arena)
        self.sender.open()

    def send(self, topic: str, *values: bytes) -> None:
        """Send one batch, and run until it has its result."""
        tokens = [self._accumulator.append(topic, 0, None, None, value) for value in values]
        wait_until(lambda: self._run_once() and self._accumulator.find(tokens[-1]) is not None, "it has its result")

    def _run_once(self) -> bool:
        self.sleep_ms(BACKOFF_MS)
        return self.sender.run_once() >= 0

    def sleep_ms(self, milliseconds: int) -> None:
        self._now_ns += milliseconds * MS
        self._native.set_manual_clock(self._now_ns)

    def close(self) -> None:
        self.sender.close()
        self._accumulator.close()


def of_tag(metrics: Mapping[str, float], tag: str) -> dict[str, float]:
    """Return the metrics of one broker or topic."""
    return {name.removesuffix(f".{tag}"): value for name, value in metrics.items() if name.endswith(f".{tag}")}


# --- names


def group_of(name: str) -> tuple[str, str]:
    """(group, Kafka's name)"""
    metric, _, tag = name.partition(".")
    return GROUPS[tag.partition("-")[0]], metric


@pytest.fixture
def told(arena: Arena, open_fake: OpenFake) -> Mapping[str, float]:
    """The metrics of a sender after a delivery to a topic with an ambiguous name."""
    manual = ManualSender(arena, open_fake(topics={"a.node-1.b": 1}))
    manual.send("a.node-1.b", b"value")
    metrics = manual.sender.metrics()
    manual.close()
    return metrics


@pytest.mark.parametrize("group", KAFKAS)
def test_a_name_that_is_kafkas_and_not_ours_is_a_decision(group: str, told: Mapping[str, float], arena: Arena) -> None:
    named = {metric for found, metric in map(group_of, told) if found == group}
    with Producer(arena) as producer:
        named |= producer.metrics().get(group, {}).keys()
    assert KAFKAS[group] - named == LEFT_OUT[group]
    assert named - KAFKAS[group] == OURS[group]


def test_the_page_of_metrics_has_every_name_of_kafkas() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.rst").read_text(encoding="utf-8")
    written = {*re.findall(r"[a-z]+(?:-[a-z]+)*", page)}
    for stem, endings in re.findall(r"``([a-z-]+)-{([a-z,-]+)}``", page):
        written |= {f"{stem}-{ending}" for ending in endings.split(",")}
    assert {name for names in [*KAFKAS.values(), *OURS.values()] for name in names} - written == set()


def test_prometheus_takes_every_name(told: Mapping[str, float]) -> None:
    families = list(text_string_to_metric_families(exposition(SenderCollector("events", lambda: told))))
    samples = [sample for family in families for sample in family.samples]
    assert len(samples) == len(told)
    assert all(PROMETHEUS_NAME.fullmatch(sample.name) for sample in samples)
    (sent,) = (sample for sample in samples if sample.name == "kafka_producer_topic_record_send_total")
    assert (sent.labels, sent.value) == ({"arena": "events", "topic": "a.node-1.b"}, 1)
    nodes = {sample.labels["node_id"] for sample in samples if sample.name.startswith("kafka_producer_node_")}
    assert nodes == {"0", "bootstrap-0"}


# --- topics


def test_topics_are_distinguished(arena: Arena, open_fake: OpenFake) -> None:
    cluster = open_fake(topics={"flights": 1, "hops": 1})
    replies = {"flights": [Reply(NOT_LEADER), Reply(NOT_LEADER), Reply()], "hops": [Reply(INVALID_RECORD), Reply()]}
    cluster.on_produce = lambda arrived: replies[arrived.topic].pop(0)
    manual = ManualSender(arena, cluster)
    manual.send("flights", b"one", b"two")
    manual.send("hops", b"refused")
    manual.send("hops", b"taken", b"too")
    metrics = manual.sender.metrics()
    manual.close()
    sizes = {topic: [len(one.wire_bytes) for one in cluster.arrived if one.topic == topic] for topic in replies}
    flights, hops = of_tag(metrics, "topic-flights"), of_tag(metrics, "topic-hops")
    expected = {"record-send-total": 3 * 2, "record-retry-total": 2 * 2, "record-error-total": 0}
    assert flights.items() >= {**expected, "byte-total": sum(sizes["flights"]), "compression-rate": 1}.items()
    assert len(sizes["flights"]) == 3
    expected = {"record-send-total": 1 + 2, "record-retry-total": 0, "record-error-total": 1}
    assert hops.items() >= {**expected, "byte-total": sum(sizes["hops"]), "compression-rate": 1}.items()
    for name in ("record-send", "record-retry", "record-error"):
        assert metrics[f"{name}-total"] == flights[f"{name}-total"] + hops[f"{name}-total"]
    assert metrics["compression-rate-avg"] == 1


def test_rates_of_a_topic_are_per_second(arena: Arena, open_fake: OpenFake) -> None:
    cluster = open_fake(topics={"flights": 1})
    manual = ManualSender(arena, cluster)
    manual.send("flights", b"one", b"two")
    manual.sleep_ms(10_000)
    manual.send("flights", b"three")
    metrics = of_tag(manual.sender.metrics(), "topic-flights")
    age_s = metrics["record-send-total"] / metrics["record-send-rate"]
    assert age_s > 10
    assert metrics["byte-rate"] == pytest.approx(metrics["byte-total"] / age_s)
    manual.close()


def test_compressed_batches_count_as_they_are_on_the_wire(
    arena: Arena, open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, int]] = []
    compress = Compressor.compress

    def note_and_compress(self: Compressor, pieces: Any) -> Form | None:
        form = compress(self, pieces)
        before = sum(map(len, pieces))
        sizes.append((before, before if form is None else sum(map(len, form))))
        return form

    monkeypatch.setattr(Compressor, "compress", note_and_compress)
    cluster = open_fake(topics={"flights": 1, "hops": 1})
    with Loop(arena, open_sink(f"kafka:{cluster.bootstrap}", compression_type="gzip")) as loop:
        for topic, value in (("flights", b"x" * 1000), ("flights", b"y" * 500), ("hops", bytes(range(100)))):
            append(arena, topic, value)
            loop.run_until_idle()
        metrics = loop.sink.metrics()
    arrived = [len(one.wire_bytes) for one in cluster.arrived]
    assert arrived == [after for _, after in sizes]
    rates = [(after - HEADER_SIZE) / (before - HEADER_SIZE) for before, after in sizes]
    assert rates[0] < rates[1] < rates[2] == 1  # incompressible bytes are sent uncompressed
    flights, hops = of_tag(metrics, "topic-flights"), of_tag(metrics, "topic-hops")
    assert (flights["byte-total"], hops["byte-total"]) == (arrived[0] + arrived[1], arrived[2])
    assert flights["compression-rate"] == pytest.approx((rates[0] + rates[1]) / 2)
    assert hops["compression-rate"] == 1
    assert metrics["compression-rate-avg"] == pytest.approx(sum(rates) / 3)
    assert metrics["batch-size-avg"] == pytest.approx(sum(arrived) / 3)
    assert metrics["batch-size-max"] == max(arrived)


# --- connections


class CountingBroker(FakeBroker):
    """Records the sizes of requests and responses."""

    def __init__(self, *arguments: Any) -> None:
        self.request_sizes: list[int] = []
        self.response_sizes: list[int] = []
        super().__init__(*arguments)

    def _answer(self, frame: bytes) -> bytes | None:
        self.request_sizes.append(4 + len(frame))
        answer = super()._answer(frame)
        self.response_sizes += [] if answer is None else [len(answer)]
        return answer


def brokers_of(cluster: FakeCluster) -> list[CountingBroker]:
    return [broker for broker in cluster.brokers if isinstance(broker, CountingBroker)]


@pytest.fixture
def open_counting(open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch) -> OpenFake:
    """Opens clusters of counting brokers."""
    monkeypatch.setattr(FakeCluster, "broker_type", CountingBroker)
    return open_fake


def settled(loop: Loop, cluster: FakeCluster) -> Mapping[str, float]:
    """The sink's metrics after it has read all answers."""

    def is_settled() -> bool:
        answered = sum(len(broker.response_sizes) for broker in brokers_of(cluster))
        asked = sum(len(broker.request_sizes) for broker in brokers_of(cluster))
        metrics = loop.sink.metrics()
        return metrics["request-total"] == metrics["response-total"] == answered == asked

    loop.run_until(is_settled, "every request is answered")
    return loop.sink.metrics()


def test_what_goes_over_the_wire_is_what_the_brokers_saw(
    arena: Arena, open_counting: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_counting(broker_count=2, topics={"flights": 2})
    cluster.on_produce = lambda arrived: Reply(NOT_LEADER) if arrived is cluster.arrived[0] else Reply()
    loop = open_loop(cluster.bootstrap)
    for value in (b"a", b"b" * 2000, b"c"):
        append(arena, "flights", value)
        loop.run_until_idle()
    metrics = settled(loop, cluster)
    asked = [size for broker in brokers_of(cluster) for size in broker.request_sizes]
    answered = [size for broker in brokers_of(cluster) for size in broker.response_sizes]
    assert metrics["request-total"] == len(asked) == len(answered) == metrics["response-total"]
    assert metrics["outgoing-byte-total"] == sum(asked)
    assert metrics["incoming-byte-total"] == sum(answered)
    assert metrics["request-size-avg"] == pytest.approx(sum(asked) / len(asked))
    assert metrics["request-size-max"] == max(asked)
    assert len(asked) < metrics["network-io-total"] <= len(asked) + len(answered)
    for name in ("request-total", "response-total", "outgoing-byte-total", "incoming-byte-total"):
        nodes = [value for key, value in metrics.items() if key.startswith(f"{name}.node-")]
        assert len(nodes) > 1
        assert sum(nodes) == metrics[name]


def test_rates_of_the_wire_are_those_of_the_totals(arena: Arena, open_counting: OpenFake, open_loop: OpenLoop) -> None:
    cluster = open_counting()
    loop = open_loop(cluster.bootstrap)
    append(arena, "flights", b"a")
    loop.run_until_idle()
    metrics = settled(loop, cluster)
    ages_s = {
        metrics[f"{name}-total{tag}"] / metrics[f"{name}-rate{tag}"]
        for name in ("request", "response", "outgoing-byte", "incoming-byte", "connection-creation")
        for tag in ("", ".node-0")
    }
    assert max(ages_s) == pytest.approx(min(ages_s))
    assert metrics["connection-close-rate.node-0"] == metrics["failed-authentication-rate"] == 0


def test_rates_of_the_wire_forget_what_is_long_past(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "WINDOW_S", 0.01)
    loop = open_loop(open_fake().bootstrap)
    append(arena, "flights", b"a")
    loop.run_until_idle()
    loop.run_until(lambda: loop.sink.metrics()["request-rate"] == 0, "two windows have passed")
    assert loop.sink.metrics()["request-total"] > 1


def test_connections_are_counted_from_their_beginning_to_their_end(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    loop = open_loop(cluster.bootstrap)
    append(arena, "flights", b"a")
    loop.run_until_idle()
    cluster.brokers[0].cut()
    append(arena, "flights", b"b")
    loop.run_until_idle()
    metrics = loop.sink.metrics()
    created, closed = metrics["connection-creation-total"], metrics["connection-close-total"]
    assert created == cluster.brokers[0].connection_count == 3  # one of them is the bootstrap
    assert (closed, metrics["connection-count"]) == (2, 1)
    assert metrics["connection-close-total.node-0"] == 1
    assert metrics["successful-authentication-total"] == 0  # plain text has no login
    loop.sink.close(0)
    assert loop.sink.metrics()["connection-count"] == 0


def open_secure(arena: Arena, cluster: FakeCluster, trusted: trustme.CA, folder: Path) -> Loop:
    trusted.cert_pem.write_to_path(folder / "ca.pem")
    of_tls = {"security_protocol": "SSL", "ssl_cafile": str(folder / "ca.pem")}
    return Loop(arena, open_sink(f"kafka:{cluster.bootstrap}", **of_tls))


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def secure_cluster(authority: trustme.CA, open_counting: OpenFake) -> FakeCluster:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(LOOPBACK).configure_cert(context)
    return open_counting(tls=context)


def test_over_tls_connections_have_logged_in(
    arena: Arena, secure_cluster: FakeCluster, authority: trustme.CA, tmp_path: Path
) -> None:
    with open_secure(arena, secure_cluster, authority, tmp_path) as loop:
        append(arena, "flights", b"a")
        loop.run_until_idle()
        metrics = settled(loop, secure_cluster)
    assert metrics["successful-authentication-total"] == metrics["connection-creation-total"] == 2
    assert metrics["failed-authentication-total"] == 0
    asked = [size for broker in brokers_of(secure_cluster) for size in broker.request_sizes]
    assert metrics["outgoing-byte-total"] == sum(asked)  # as in Kafka, bytes are counted before encryption


def test_a_broker_that_is_not_trusted_is_a_failed_login(
    arena: Arena, secure_cluster: FakeCluster, tmp_path: Path
) -> None:
    with open_secure(arena, secure_cluster, trustme.CA(), tmp_path) as loop:
        loop.run_until(lambda: loop.sink.metrics()["failed-authentication-total"] > 0, "a login has failed")
        metrics = loop.sink.metrics()
    assert metrics["successful-authentication-total"] == 0
    assert metrics["connection-creation-total"] >= metrics["failed-authentication-total"]


# --- requests and the loop


def test_brokers_are_distinguished(arena: Arena, open_fake: OpenFake, open_loop: OpenLoop) -> None:
    cluster = open_fake(broker_count=2, topics={"flights": 2})
    cluster.throttle_time_ms = 1
    loop = open_loop(cluster.bootstrap)
    with Accumulator(arena) as accumulator:
        for count in range(1, 4):
            accumulator.append("flights", min(count - 1, 1), None, None, b"value")
            loop.run_until(lambda count=count: len(loop.acks) == count)  # type: ignore[misc]
    found = loop.sink.metrics()
    for name, of_node in {"produce-request-total": (1, 2), "record-send-total": (1, 2)}.items():
        assert (found[f"{name}.node-0"], found[f"{name}.node-1"]) == of_node
    assert found["records-per-request-avg"] == 1
    assert found["requests-in-flight"] == 0
    assert found["produce-throttle-time-avg"] == found["produce-throttle-time-max.node-1"] == 1
    slowest = [found[f"request-latency-max.node-{node}"] for node in (0, 1)]
    assert found["request-latency-max"] == max(slowest) >= found["request-latency-avg"] > 0


def test_the_loop_reports_how_often_and_how_long_it_waited(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    loop = open_loop(open_fake().bootstrap)
    append(arena, "flights", b"a")
    loop.run_until_idle()
    before = loop.sink.metrics()
    for _ in range(3):
        loop.run_once(0)
    after = loop.sink.metrics()
    assert after["select-total"] == before["select-total"] + 3
    assert after["io-time-ns-total"] > before["io-time-ns-total"] > 0
    assert after["io-wait-time-ns-total"] > before["io-wait-time-ns-total"] > 0
    for name in ("io-time-ns", "io-wait-time-ns"):
        assert after[f"{name}-avg"] == pytest.approx(after[f"{name}-total"] / after["select-total"])
    assert 0 < after["io-ratio"] + after["io-wait-ratio"] <= 1
