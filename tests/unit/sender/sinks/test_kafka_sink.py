# SPDX-License-Identifier: Apache-2.0
"""The Kafka sink without a broker: bad input, secrets, topics."""

from __future__ import annotations

import contextlib
import functools
import pickle
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shmaccum.common import clock
from shmaccum.config import KafkaSinkOptions, SenderOptions
from shmaccum.config.secret import Secret
from shmaccum.exceptions import InvalidArgumentError, UnknownTopicError
from shmaccum.sender.sinks import Verdict, open_sink
from shmaccum.sender.sinks.kafka.delivery import Delivery
from shmaccum.sender.sinks.kafka.errors import NETWORK_EXCEPTION, REQUEST_TIMED_OUT
from shmaccum.sender.sinks.kafka.sink import parse_servers
from shmaccum.sender.sinks.kafka.topics import RequestedTopics
from shmaccum.sender.sinks.kafka.traffic import NodeTraffic, Traffic
from shmaccum.sender.sinks.sink import Delivered

PASSWORD = "correct horse battery staple"

OAUTH = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
OIDC = {
    **OAUTH,
    "sasl_oauthbearer_method": "oidc",
    "sasl_oauthbearer_token_endpoint_url": "https://localhost/token",
    "sasl_oauthbearer_client_id": "events",
    "sasl_oauthbearer_client_secret": PASSWORD,
}

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
        (OAUTH, "needs sasl_oauth_token_provider, or sasl_oauthbearer_method=oidc"),
        ({**OAUTH, "sasl_oauth_token_provider": "module"}, "write module:name"),
        ({**OAUTH, "sasl_oauth_token_provider": "module:a b"}, "write module:name"),
        ({**OIDC, "sasl_oauth_token_provider": "module:name"}, "omit one of them"),
        ({**OIDC, "sasl_mechanism": "PLAIN"}, "sasl_oauthbearer_method=oidc needs sasl_mechanism=OAUTHBEARER"),
        ({**OIDC, "sasl_oauthbearer_token_endpoint_url": "file:///etc"}, "needs an https address"),
        ({**OIDC, "sasl_oauthbearer_client_id": None}, "belong together: set both"),
        (
            {**OIDC, "sasl_oauthbearer_client_id": None, "sasl_oauthbearer_client_secret": None},
            "needs sasl_oauthbearer_client_id and sasl_oauthbearer_client_secret, or sasl_oauthbearer_assertion_file",
        ),
        ({**OIDC, "sasl_oauthbearer_extensions": "pool"}, "write name=value,name=value"),
        ({"reconnect_backoff_ms": 5_000}, "is longer than reconnect_backoff_max_ms"),
        ({"bootstrap_servers": "b:9092"}, "kafka:HOST:PORT"),
        ({"acks": "1"}, "option of the sender"),
    ],
)
def test_options_that_cannot_be_are_refused_with_advice(options: dict[str, object], advice: str) -> None:
    with pytest.raises(InvalidArgumentError, match=advice):
        open_sink("kafka:localhost:9092", **options)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, []),
        ({"send_buffer_bytes": 0}, [(socket.SO_SNDBUF, 0)]),
        (
            {"send_buffer_bytes": 4096, "receive_buffer_bytes": 8192},
            [(socket.SO_SNDBUF, 4096), (socket.SO_RCVBUF, 8192)],
        ),
    ],
    ids=str,
)
def test_sockets_have_keepalive_no_delay_and_the_sizes_that_are_given(
    options: dict[str, Any], expected: list[tuple[int, int]]
) -> None:
    sink: Any = open_sink("kafka:localhost:9092", **options)
    first, *others = sink._socket_options()
    assert first == (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assert others == [(socket.SOL_SOCKET, name, value) for name, value in [(socket.SO_KEEPALIVE, 1), *expected]]


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


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_batch_that_is_ended_leaves_its_request_and_a_gap_in_its_partition(is_compressed: bool) -> None:
    wires: Any = [
        SimpleNamespace(partition_index=index, batch=SimpleNamespace(is_ended=index == 3)) for index in (3, 4)
    ]
    forms: Any = ["form of 3", "form of 4"] if is_compressed else ()
    delivery = Delivery(1, wires, (), forms)
    assert delivery.leave_out_ended() == wires[:1]
    assert (delivery.wires, delivery.compressed) == (wires[1:], ["form of 4" if is_compressed else None])
    assert (delivery.verdict_of(3), delivery.verdict_of(4)) == (Verdict.REFUSED, None)
    assert Delivery(1, wires, [delivery]).sequence_verdict(wires[0]) is Verdict.OUT_OF_SEQUENCE
    assert delivery.leave_out_ended() == []


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


# --- whether the cluster responds


class FakeClient:
    """A connection to a cluster that never responds, and that has one ready broker, of node 1.

    Attributes:
        newest: version of Produce that the broker accepts.
    """

    is_bootstrapped = is_login_rejected = False
    last_failure = "no route"
    leadership_count = metadata_count = 0
    newest = 13

    def is_ready(self, node_id: int) -> bool:
        return node_id == 1

    def is_logging_in(self, node_id: int) -> bool:
        return False

    def produce_versions(self, node_id: int) -> tuple[int, int]:
        assert node_id == 1
        return 0, self.newest


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A sink whose cluster never responds, and whose clock is `now_s`."""
    sink: Any = open_sink("kafka:localhost:9092")
    sink._take_sender_options(SenderOptions(request_timeout_ms=1_000))
    sink._client = FakeClient()
    sink._topics = SimpleNamespace(partition_count=lambda _: None)
    sink.sentences = []
    sink._host = SimpleNamespace(report=sink.sentences.append, transactions=None)
    sink._arena_transactions = None
    sink.now_s = 100.0
    monkeypatch.setattr("shmaccum.common.clock.monotonic", lambda: sink.now_s)
    return sink


@pytest.mark.parametrize(
    "ask",
    [
        lambda sink: sink.plan([]),
        lambda sink: sink.hand_over([]),
        lambda sink: sink.new_producer_id(),
        lambda sink: sink.partition_count("flights"),
    ],
    ids=["plan", "hand_over", "new_producer_id", "partition_count"],
)
def test_whatever_needs_the_cluster_begins_an_outage_if_no_broker_responds(silent: Any, ask: Any) -> None:
    silent.now_s += 1_000
    assert silent.outage is None
    ask(silent)
    outages: list[str | None] = []
    for seconds in (1.0, 0.001):
        silent.now_s += seconds
        outages.append(silent.outage)
    assert outages == [None, "no broker of localhost:9092 answers: no route"]
    ask(silent)
    assert silent.outage == outages[1]


@pytest.mark.parametrize(("newest", "is_old"), [(2, True), (3, False)])
def test_a_broker_of_the_oldest_version_that_has_record_batches_is_sent_to(
    silent: Any, newest: int, is_old: bool
) -> None:
    silent._client.newest = newest
    assert silent._can_take(1) is not is_old
    assert ["too old" in sentence for sentence in silent.sentences] == [True] * is_old
    assert not silent._can_take(2)


def test_the_leader_of_a_partition_is_the_broker_that_was_looked_up(silent: Any) -> None:
    silent._client.leader = lambda _topic, partition: partition or None
    silent._client.leadership_count = 1
    silent._host.topic_partition = lambda index: ("flights", index)
    assert silent.leader_of(1) is None
    silent.plan([1])
    assert silent.leader_of(1) == 1


def test_leaders_and_metadata_are_read_again_after_they_have_changed_alone(
    silent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def leader(*_: object) -> int:
        read.append("leader")
        return 1

    silent._client.leader = leader
    silent._client.poll = silent._client.untouched = lambda *_: []
    silent._host.topic_partition = lambda index: ("flights", index)
    monkeypatch.setattr(silent, "_take_metadata", lambda: read.append("metadata"))
    for _ in range(2):
        silent._client.leadership_count += 1
        silent._client.metadata_count += 1
        for _ in range(2):
            silent.plan([1])
            silent.poll(0, -1)
    assert read == ["leader", "metadata"] * 2


def test_the_identity_is_that_of_the_cluster_or_of_the_servers_if_it_has_no_id() -> None:
    def identity(place: str, cluster_id: str | None, *, is_bootstrapped: bool = True) -> bytes:
        sink: Any = open_sink(f"kafka:{place}")
        sink._client = SimpleNamespace(is_bootstrapped=is_bootstrapped, cluster_id=cluster_id)
        found = sink.identity
        assert isinstance(found, bytes)
        return found

    assert identity("a:1", "one") == identity("b:2", "one") != identity("a:1", "two")
    assert identity("a:1,b:2", None) == identity("b:2,a:1", None) != identity("a:1", None)
    assert identity("a:1", "one", is_bootstrapped=False) == bytes(16)


@pytest.mark.parametrize(("acks", "timeout_s"), [([], 7.0), (["an ack"], 0.0)])
def test_a_poll_waits_for_responses_only_without_acks(silent: Any, acks: list[str], timeout_s: float) -> None:
    timeouts: list[float] = []

    def poll(timeout_s: float, _wake_fd: int) -> list[Any]:
        timeouts.append(timeout_s)
        return []

    silent._client.poll = poll
    silent._client.untouched = lambda *_: []
    silent._acks = list(acks)
    assert silent.poll(7.0, -1) == acks
    assert timeouts == [timeout_s]


# --- connections


def test_a_connection_that_is_lost_does_not_repeat_its_login() -> None:
    sessions = pytest.importorskip("shmaccum.sender.sinks.kafka.library.sessions")
    cancelled: list[object] = []
    net = SimpleNamespace(call_at=lambda at_s, _task: ("task", at_s), cancel=cancelled.append)
    session = sessions.Session(SimpleNamespace(net=net, _sasl_authenticate=None), None, 1.0, print)
    session.session_updated(60_000)
    session.schedule()
    session.cancel()
    assert cancelled == [("task", session.due_s)]


@pytest.mark.parametrize("next_id", [7, 2**31 - 3])
def test_requests_continue_after_those_of_a_borrower_with_or_without_a_response(next_id: int) -> None:
    client_module = pytest.importorskip("shmaccum.sender.sinks.kafka.library.client")
    taken: list[Delivered] = []
    conn = SimpleNamespace(
        parser=SimpleNamespace(_correlation_id=next_id), transport=SimpleNamespace(take_back=taken.append)
    )
    client = SimpleNamespace(_manager=SimpleNamespace(connection={1: conn}.get))
    delivered = Delivered(request_count=5)
    client_module.Client.take_back_socket(client, 1, delivered, 2)
    assert conn.parser._correlation_id == (next_id + 7) % 2**31
    assert taken == [delivered]


@pytest.mark.parametrize(
    ("name", "code", "is_unsent"),
    [
        ("NodeNotReadyError", NETWORK_EXCEPTION, True),
        ("KafkaConnectionError", NETWORK_EXCEPTION, False),
        ("RequestTimedOutError", REQUEST_TIMED_OUT, False),
    ],
)
def test_a_request_that_failed_is_unsent_only_if_its_broker_was_not_ready(
    name: str, code: int, is_unsent: bool
) -> None:
    errors = pytest.importorskip("kafka.errors")
    client_module = pytest.importorskip("shmaccum.sender.sinks.kafka.library.client")
    asked = client_module.TransactionExchange(None)
    client_module._fail_exchange(asked, getattr(errors, name)("the reason"))
    assert (asked.is_answered, asked.error_code, asked.is_unsent) == (True, code, is_unsent)
    assert "the reason" in asked.message


@pytest.mark.parametrize(
    ("name", "is_login_failure", "is_misunderstood"),
    [
        ("SaslAuthenticationFailedError", True, False),
        ("KafkaConnectionError", False, False),
        ("KafkaProtocolError", False, True),
    ],
)
def test_a_connection_that_failed_is_reported_and_is_tried_again_after_a_pause(
    name: str, is_login_failure: bool, is_misunderstood: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would refuse each later connection after a failed login."""
    library = pytest.importorskip("kafka.net.manager")
    connections = pytest.importorskip("shmaccum.sender.sinks.kafka.library.connections")
    error = getattr(library.Errors, name)("the reason")
    reported: list[Any] = []
    versions: list[int] = []
    renewed: list[int] = []
    tokens = SimpleNamespace(renew=lambda: renewed.append(1))

    async def fail(manager: Any, node: Any, conn: Any, **_: Any) -> None:
        versions.append(conn._api_versions_idx)
        manager._auth_failures[node.node_id] = error
        conn.init_future.failure(error)

    monkeypatch.setattr(library.KafkaConnectionManager, "_connect", fail)
    traffic = Traffic(times=cast("Any", None))
    node = SimpleNamespace(node_id=1, host="h", port=1)
    with contextlib.closing(pytest.importorskip("shmaccum.sender.sinks.kafka.library.loop").Selector()) as net:
        manager = connections.Manager(
            net, traffic, lambda *failure: reported.append(failure), print, tokens, bootstrap_servers="h:1"
        )
        for _ in range(2):
            conn = SimpleNamespace(
                connected=False,
                init_future=library.Future(),
                _api_versions_idx=-1,
                _maybe_throttle=None,
                _sasl_authenticate=None,
            )
            with pytest.raises(StopIteration):
                manager._connect(node, conn).send(None)
            assert manager.connection_delay(1) > 0
            manager.maybe_raise_auth_failure(1)
    assert reported == [("h:1", error)] * 2
    assert traffic.node(1).logins_failed == len(renewed) == 2 * is_login_failure
    assert versions == [-1, connections.VERSION_OF_VERSIONS_PLAIN if is_misunderstood else -1]


def test_a_task_that_waits_for_bytes_is_waiting_and_its_file_is_registered_once() -> None:
    selector_module = pytest.importorskip("kafka.net.selector")
    net = pytest.importorskip("shmaccum.sender.sinks.kafka.library.loop").Selector()
    here, there = socket.socketpair()
    received: list[bytes] = []

    async def receive() -> None:
        while not received or received[-1] != b"end":
            await net.wait_readable(here)
            received.append(here.recv(10))

    with here, there, contextlib.closing(net):
        task = net.call_soon(receive)
        for sent in (b"a", b"b"):
            net.poll(timeout_ms=0)
            assert task.state is selector_module.TaskState.WAIT_IO
            there.send(sent)
        net.poll(timeout_ms=0)
        there.send(b"end")
        net.poll(timeout_ms=0)
        assert received == [b"a", b"b", b"end"]
        assert task.is_done


def test_a_connection_that_is_lost_ends_the_frames_that_it_did_not_write() -> None:
    transport_module = pytest.importorskip("shmaccum.sender.sinks.kafka.library.transport")
    net = pytest.importorskip("shmaccum.sender.sinks.kafka.library.loop").Selector()
    here, there = socket.socketpair()
    transport = transport_module.FrameTransport(net, here)
    transport.set_protocol(SimpleNamespace(connection_lost=lambda _: None))
    transport.traffic = NodeTraffic()
    ended: list[int] = []
    with here, there, contextlib.closing(net):
        for number in range(2):
            transport._write_buffer.append(SimpleNamespace(end=functools.partial(ended.append, number)))
        transport.abort(error=OSError("lost"))
        net.poll(timeout_ms=0)
        assert (ended, len(transport.unwritten), transport.traffic.connections_closed) == ([0, 1], 0, 1)
        transport.abort()
        net.poll(timeout_ms=0)
        assert ended == [0, 1]


def test_a_closed_connection_ends_frames_without_writing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    transport_module = pytest.importorskip("shmaccum.sender.sinks.kafka.library.transport")
    ended: list[bytes] = []
    monkeypatch.setattr(
        transport_module, "Frame", lambda data: SimpleNamespace(end=functools.partial(ended.append, data))
    )
    net = pytest.importorskip("shmaccum.sender.sinks.kafka.library.loop").Selector()
    here, there = socket.socketpair()
    transport = transport_module.FrameTransport(net, here)
    transport.set_protocol(SimpleNamespace(connection_lost=lambda _: None))
    transport.traffic = NodeTraffic()
    with here, there, contextlib.closing(net):
        transport.abort(error=OSError("lost"))
        net.poll(timeout_ms=0)
        transport.write(b"late")
        assert (ended, len(transport.unwritten)) == ([b"late"], 0)


@pytest.mark.parametrize(("request_count", "average"), [(0, 0), (5, 20)])
def test_requests_of_a_borrower_are_traffic_of_the_connection(request_count: int, average: float) -> None:
    transport_module = pytest.importorskip("shmaccum.sender.sinks.kafka.library.transport")
    net = pytest.importorskip("shmaccum.sender.sinks.kafka.library.loop").Selector()
    here, there = socket.socketpair()
    transport = transport_module.FrameTransport(net, here)
    transport.traffic = NodeTraffic(requests=1, responses=2, bytes_sent=3, bytes_received=4)
    with here, there, contextlib.closing(net):
        begun_s = transport.last_write = transport.last_read = clock.monotonic() - 60
        sent_size = 100 * (request_count > 0)
        transport.take_back(Delivered(request_count=request_count, sent_size=sent_size, received_size=70))
        assert min(transport.last_write, transport.last_read) >= begun_s + 60
    traffic = transport.traffic
    assert (traffic.requests, traffic.responses) == (1 + request_count, 2 + request_count)
    assert (traffic.bytes_sent, traffic.bytes_received) == (3 + sent_size, 4 + 70)
    assert traffic.request_size.average(clock.monotonic_ns()) == average


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
