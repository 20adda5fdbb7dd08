# SPDX-License-Identifier: Apache-2.0
"""The ways of a host's workers to Kafka deliver to librdkafka's mock cluster, and survive what they promise to."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer

from bench.harness import debian
from bench.harness.question import UnavailableError
from bench.parts import host_helpers
from bench.parts.host_helpers import OPEN_WAYS
from bench.parts.python_sidecar import FRAME
from tests.kafka.reading import consume_records
from tests.support.processes import wait_until

COUNT = 20
PARTITION_COUNT = 4
"""The mock broker's number of partitions of a new topic."""
REPORTING = ("arena", "producer each", "sidecar in C, acks", "sidecar in Python, acks")
SIDECARS = ("sidecar in C, acks", "sidecar in Python, acks")


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """Start a mock broker, which lives as long as its client."""
    mock_cluster = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "ignored", "log_level": 0})
    (broker,) = mock_cluster.list_topics(timeout=30).brokers.values()
    yield f"{broker.host}:{broker.port}"
    mock_cluster.flush()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return "".join(letter for letter in request.node.name if letter.isalnum())


def value_of(number: int) -> bytes:
    return b"%06d of the worker" % number


def arrived(bootstrap: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Wait for `COUNT` records, and return their values and keys in the order of the values."""
    found = consume_records(bootstrap, topic, PARTITION_COUNT, COUNT)
    return sorted(
        ((value, key) for records in found.values() for key, value in records), key=lambda each: each[0] or b""
    )


def needs_its_program(name: str) -> None:
    program = {"rsyslog": "rsyslogd", "syslog-ng": "syslog-ng"}.get(name)
    if program is not None:
        try:
            debian.find(program)
        except UnavailableError as missing:
            pytest.skip(str(missing))


@pytest.mark.parametrize("name", OPEN_WAYS)
def test_every_way_delivers_keys_and_values(name: str, bootstrap: str, topic: str) -> None:
    needs_its_program(name)
    reported: list[int] = []
    with OPEN_WAYS[name](bootstrap, topic) as way:
        client = way.client(reported.append if name in REPORTING else None, topic, *way.arguments)
        for number in range(COUNT):
            client.send(number, b"key-%d" % number, value_of(number))
        client.flush()
        if name in REPORTING:
            wait_until(lambda: len(reported) == COUNT, "all acks are reported")
        client.close()
    assert arrived(bootstrap, topic) == [(value_of(number), b"key-%d" % number) for number in range(COUNT)]
    assert sorted(reported) == (list(range(COUNT)) if name in REPORTING else [])


@pytest.mark.parametrize("name", SIDECARS)
def test_records_without_an_ack_are_sent_again_after_a_sidecar_was_killed(
    name: str, bootstrap: str, topic: str
) -> None:
    reported: list[int] = []
    with OPEN_WAYS[name](bootstrap, topic) as way:
        client = way.client(reported.append, topic, *way.arguments)
        assert way.helper
        way.helper.process.send_signal(signal.SIGSTOP)  # it takes no record
        for number in range(COUNT):
            client.send(number, b"key", value_of(number))
        way.helper.kill()
        way.helper.start()
        client.flush()
        client.close()
    assert sorted(reported) == list(range(COUNT))
    assert arrived(bootstrap, topic) == [(value_of(number), b"key") for number in range(COUNT)]


@pytest.mark.parametrize("name", SIDECARS)
def test_a_sidecar_takes_frames_in_parts(name: str, bootstrap: str, topic: str) -> None:
    frames = b"".join(
        FRAME.pack(len(topic), 0, len(value_of(number))) + topic.encode() + value_of(number) for number in range(COUNT)
    )
    with OPEN_WAYS[name](bootstrap, topic) as way, socket.socket(socket.AF_UNIX) as worker:
        worker.connect(way.arguments[0])
        for begin in range(0, len(frames), 7):
            worker.sendall(frames[begin : begin + 7])
        assert arrived(bootstrap, topic) == [(value_of(number), None) for number in range(COUNT)]


def test_a_helper_that_does_not_start_is_an_error(bootstrap: str) -> None:
    way = host_helpers.sidecar(lambda: ["false"], "acks")
    with pytest.raises(RuntimeError, match="has ended with 1"), way(bootstrap, "topic"):
        pass


def test_a_program_that_was_not_fetched_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian, "FOLDER", tmp_path)
    with pytest.raises(UnavailableError, match=r"syslog-ng is missing: run `python -m bench\.harness\.debian`"):
        debian.find("syslog-ng")


def test_a_confluent_kafka_without_its_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(__file__=str(tmp_path / "confluent_kafka" / "__init__.py"))
    monkeypatch.setattr(host_helpers, "load", lambda *_: module)
    with pytest.raises(UnavailableError, match="from its wheel"):
        host_helpers.sidecar_in_c()
