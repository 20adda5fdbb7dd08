# SPDX-License-Identifier: Apache-2.0
"""The Kafka sink without a broker: bad input, secrets, topics."""

from __future__ import annotations

import contextlib
import pickle
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum.config import KafkaSinkOptions
from shmaccum.config.secret import Secret
from shmaccum.exceptions import InvalidArgumentError, UnknownTopicError
from shmaccum.sender.sinks import Verdict, open_sink
from shmaccum.sender.sinks.kafka.delivery import Delivery
from shmaccum.sender.sinks.kafka.sink import parse_servers
from shmaccum.sender.sinks.kafka.topics import RequestedTopics
from shmaccum.sender.sinks.kafka.traffic import NodeTraffic

PASSWORD = "correct horse battery staple"

# --- addresses


def test_servers_are_read() -> None:
    assert parse_servers("a:1, b:9092,[::1]:65535,") == ["a:1", "b:9092", "[::1]:65535"]


@pytest.mark.parametrize("place", ["", ",", "localhost", "localhost:", ":9092", "a:port", "a:0", "a:65536", "a:9092,b"])
def test_what_is_no_server_is_refused(place: str) -> None:
    with pytest.raises(InvalidArgumentError, match="as in kafka:localhost:9092"):
        open_sink(f"kafka:{place}")


def test_slashes_are_refused_with_what_to_write() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^kafka://a:1,b:2/: write kafka:a:1,b:2, without slashes$"):
        open_sink("kafka://a:1,b:2/")


# --- options


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"compression": "zstd"}, "did you mean compression_type"),
        ({"compression_type": "brotli"}, "one of none, gzip, snappy, lz4, zstd"),
        ({"compression.gzip.level": 12, "compression.type": "gzip"}, "at most 9"),
        ({"compression_type": "gzip", "compression_gzip_level": 12}, "at most 9"),
        ({"security_protocol": "SASL_SSL"}, "needs sasl_mechanism"),
        ({"sasl_mechanism": "PLAIN"}, "set SASL_SSL or SASL_PLAINTEXT"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-256"}, "needs sasl_plain_username"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}, "needs sasl_oauth_token_provider"),
        ({"reconnect_backoff_ms": 5_000}, "is longer than reconnect_backoff_max_ms"),
        ({"bootstrap_servers": "b:9092"}, "kafka:HOST:PORT"),
        ({"acks": "1"}, "option of the sender"),
    ],
)
def test_options_that_cannot_be_are_refused_with_advice(options: dict[str, object], advice: str) -> None:
    with pytest.raises(InvalidArgumentError, match=advice):
        open_sink("kafka:localhost:9092", **options)


# --- secrets


def test_a_secret_shows_nowhere() -> None:
    options = KafkaSinkOptions(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username="u",
        sasl_plain_password=Secret(PASSWORD),
    )
    assert PASSWORD not in f"{options!r} {options} {Secret(PASSWORD)}"
    with pytest.raises(TypeError, match="env:NAME"):
        pickle.dumps(Secret(PASSWORD))


def test_a_secret_is_looked_up_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    path = tmp_path / "password"
    path.write_text(PASSWORD + "\n")
    path.chmod(0o600)
    sources = (PASSWORD, "env:KAFKA_PASSWORD", f"file:{path}")
    assert {Secret(source).reveal() for source in sources} == {PASSWORD}
    assert Secret("env:KAFKA_PASSWORD") == Secret("env:KAFKA_PASSWORD") != Secret("env:OTHER")


@pytest.mark.parametrize("source", ["env:SHMACCUM_NOT_SET", "file:/nonexistent/password"])
def test_a_secret_that_is_not_there_is_named_by_its_place(source: str) -> None:
    with pytest.raises(InvalidArgumentError, match=source.partition(":")[2]):
        Secret(source).reveal()


# --- deliveries


@pytest.mark.parametrize(("is_over", "verdict"), [(False, Verdict.RETRY), (True, Verdict.OUT_OF_SEQUENCE)])
def test_a_batch_that_is_out_of_order_comes_again_while_the_one_before_it_is_in_flight(
    is_over: bool, verdict: Verdict
) -> None:
    wire: Any = SimpleNamespace(partition_index=3)
    before = Delivery(1, [wire], ())
    if is_over:
        before.end()
    assert Delivery(1, [wire], [before]).sequence_verdict(wire) is verdict


# --- topics


class Metadata:
    """A cluster with one topic at a time."""

    def __init__(self) -> None:
        self.is_bootstrapped = True
        self.watched: list[str] = []
        self.partition_count: int | None = None
        self.error_code = 0

    def watch_topic(self, topic: str) -> None:
        self.watched.append(topic)

    def unwatch_topic(self, topic: str) -> None:
        self.watched.remove(topic)

    def topic_state(self, topic: str) -> Metadata:
        return self


def test_a_topic_keeps_its_number_of_partitions_while_metadata_are_incomplete() -> None:
    metadata = Metadata()
    topics = RequestedTopics(metadata, 1_000)
    metadata.partition_count = 6
    assert topics.partition_count("flights") == 6
    metadata.partition_count, metadata.error_code = None, 5
    assert topics.partition_count("flights") == 6
    metadata.partition_count = 8
    assert topics.partition_count("flights") == 8


def test_time_runs_only_while_the_cluster_answers() -> None:
    metadata, now = Metadata(), [0.0]
    topics = RequestedTopics(metadata, 1_000, now_s=lambda: now[0])
    metadata.is_bootstrapped = False
    assert topics.partition_count("flights") is None
    now[0] = 100.0
    metadata.is_bootstrapped = True
    assert topics.partition_count("flights") is None
    now[0] = 101.0
    with pytest.raises(UnknownTopicError, match="for 1 s"):
        topics.partition_count("flights")
    assert topics.partition_count("flights") is None
    metadata.partition_count = 3
    assert topics.partition_count("flights") == 3


# --- connections


def test_a_connection_that_closes_while_it_writes_is_not_watched_for_reads() -> None:
    """Otherwise each byte of the broker would wake the loop, and no task would read it."""
    transport_module = pytest.importorskip("shmaccum.sender.sinks.kafka.library.transport")
    net = pytest.importorskip("shmaccum.sender.sinks.kafka.library.loop").Selector()
    here, there = socket.socketpair()
    here.setblocking(False)
    received: list[bytes] = []
    transport = transport_module.FrameTransport(net, here)
    transport.set_protocol(SimpleNamespace(in_flight_requests=[], data_received=received.append))
    transport.traffic = NodeTraffic()
    with here, there, contextlib.closing(net):
        transport.resume_reading()
        net.poll(timeout_ms=0)
        assert here in net._selector.get_map()
        transport._write_buffer.append(b"unwritten")
        transport.close()
        there.send(b"a")
        net.poll(timeout_ms=0)
        assert received == [b"a"]
        assert here not in net._selector.get_map()
