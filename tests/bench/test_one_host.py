# SPDX-License-Identifier: Apache-2.0
"""The ways of a host's workers to Kafka deliver to librdkafka's mock cluster, and survive what they promise to."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from confluent_kafka import Producer

from bench.harness import debian
from bench.harness.question import UnavailableError
from bench.parts import host_helpers, host_workers, one_host
from bench.parts.host_helpers import OPEN_WAYS
from bench.parts.python_sidecar import FRAME
from bench.questions.one_host import QUESTION
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


# --- a round


def test_lost_and_doubled_records_of_a_job_are_counted() -> None:
    values = [host_workers.value_of(3, worker, number) for worker in (1, 2) for number in (0, 1)]
    others = [host_workers.value_of(4, 1, 0), host_workers.value_of(0, 1, 0)]
    assert one_host.fate([*values, *others], 3, 4) == one_host.Loss(lost=0, doubled=0)
    assert one_host.fate([*values[1:], values[1], values[1], *others], 3, 4) == one_host.Loss(lost=1, doubled=2)


class NotedClient:
    """Notes the numbers of records and acknowledges them in the next wait."""

    def __init__(self, report: Callable[[int], object]) -> None:
        self.report = report
        self.sent: list[int] = []
        self.unacked: list[int] = []

    def send(self, number: int, key: bytes, value: bytes) -> None:
        assert len(value) == host_workers.VALUE_SIZE
        assert key in host_workers.KEYS
        self.sent.append(number)
        self.unacked.append(number)

    def wait(self, _seconds: float) -> None:
        self.flush()

    def flush(self) -> None:
        while self.unacked:
            self.report(self.unacked.pop())

    def close(self) -> None:
        self.flush()


def test_a_worker_reports_the_latency_of_each_record() -> None:
    job = host_workers.Job(number=1, record_count=12, rate=1e6)
    latencies = host_workers.Latencies(job.record_count)
    client = NotedClient(latencies.acked)
    host_workers.do(job, client, 0, 8, latencies)
    client.flush()
    assert client.sent == list(range(job.record_count))
    found = latencies.wait()
    assert len(found) == job.record_count
    assert min(found) >= 0


def test_an_ack_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_workers, "REPORT_TIMEOUT_S", 0)
    latencies = host_workers.Latencies(2)
    latencies.acked(1)
    latencies.acked(1)
    with pytest.raises(RuntimeError, match="1 acks were not reported"):
        latencies.wait()


def test_the_processor_time_of_a_process_is_that_of_its_own_clock() -> None:
    begin_s = time.process_time()
    found = one_host.cpu_s(os.getpid())
    assert begin_s <= found <= time.process_time()


def test_the_total_of_a_class_histogram_is_read() -> None:
    printed = " 1:   2000   64000  [B (java.base@17)\nTotal       3000         96000\n"
    match = one_host.HEAP.search(printed)
    assert match is not None
    assert match[1] == "96000"


def test_every_goal_names_a_contender() -> None:
    names = {contender.name for contender in QUESTION.contenders()}
    assert {goal.contender for goal in QUESTION.goals} <= names
    assert {contender.peer for contender in QUESTION.contenders()} <= names
