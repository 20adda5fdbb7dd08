# SPDX-License-Identifier: Apache-2.0
"""Logins that a scripted broker rejects in any way are reported, and sessions end without losing a request."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.arena.reports import read_reports
from shmaccum.exceptions import PartitionCountUnknownError
from shmaccum.sender.sinks import open_sink
from shmaccum.sender.sinks.kafka import sink as kafka_sink
from shmaccum.sender.sinks.kafka.library import sessions
from tests.kafka.conftest import OpenFake, OpenLoop
from tests.kafka.fake_broker import Arrived, Cut, FakeCluster, Reply, Silence
from tests.kafka.loop import append, first_report
from tests.kafka.test_pump import Ledger, running
from tests.support.oidc_server import OidcServer, claims_of, oidc_server
from tests.support.processes import WATCHDOG_S, wait_until

TOPIC = "flights"
PASSWORD = "correct-horse-battery-staple"
PLAIN = {
    "security_protocol": "SASL_PLAINTEXT",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "alice",
    "sasl_plain_password": PASSWORD,
}
MINUTE_MS = 60_000
PAUSE_S = 0.01


def reject(_: bytes) -> None:
    """An error in the response."""


def cut(_: bytes) -> None:
    raise Cut


def say_nothing(_: bytes) -> None:
    raise Silence


REFUSALS = pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (reject, "rejected"),
        (cut, "the login ended without a response: the broker closed the connection"),
        (say_nothing, "the broker has not responded to the login for 0.1 s"),
    ],
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SLOW_LOGIN_S", 0.1)
    monkeypatch.setattr(kafka_sink, "REJECTED_LOGIN_S", 0.1)


@REFUSALS
def test_a_login_that_is_not_accepted_is_reported_long_before_its_timeout(
    refusal: Callable[[bytes], None], reason: str, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    cluster.on_login = refusal
    loop = open_loop(cluster.bootstrap, **PLAIN, socket_connection_setup_timeout_ms=60 * MINUTE_MS)
    append(arena, TOPIC, b"a")
    report = first_report(loop)
    assert reason in report
    assert "check user and password" in report
    assert PASSWORD not in report
    loop.run_until(lambda: loop.sink.peer.outage is not None, "the cluster has an outage")
    assert reason in str(loop.sink.peer.outage)


@REFUSALS
def test_a_producer_gets_the_reason(
    refusal: Callable[[bytes], None], reason: str, arena: Arena, open_fake: OpenFake
) -> None:
    cluster = open_fake()
    cluster.on_login = refusal
    sink = open_sink(f"kafka:{cluster.bootstrap}", **PLAIN)
    with running(arena, cluster, sink), Producer(arena.name, max_block_ms=2000) as producer:
        with pytest.raises(PartitionCountUnknownError, match=reason):
            producer.send(TOPIC, value=b"a")
        assert any(reason in report.sentence for report in read_reports(arena.native))


@REFUSALS
def test_a_repeated_login_that_is_not_accepted_is_reported(
    refusal: Callable[[bytes], None], reason: str, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    login_count = 0

    def accept_two(sent: bytes) -> int | None:
        """Accept the first login of the bootstrap connection and of the node's connection, and refuse later ones."""
        nonlocal login_count
        login_count += 1
        if login_count > 2:
            refusal(sent)
            return None
        return 1500

    cluster.on_login = accept_two
    loop = open_loop(cluster.bootstrap, **PLAIN)
    append(arena, TOPIC, b"a")
    loop.run_until_idle()
    assert loop.reports == []
    assert reason in first_report(loop)


class AheadCluster:
    """Brokers whose clock is ahead of the server of tokens, and which close a connection after its session.

    Attributes:
        logins: the token of each login.
        cut_count: requests that came after the end of the session.
    """

    def __init__(self, cluster: FakeCluster, ahead_s: float) -> None:
        self.logins: list[str] = []
        self.cut_count = 0
        self.ledger = Ledger()
        self._ahead_s = ahead_s
        self._end_s = 0.0
        cluster.on_login = self._log_in
        cluster.on_produce = self._produce

    def _log_in(self, sent: bytes) -> int | None:
        token = sent.decode().strip("\x01").split("\x01")[1].removeprefix("auth=Bearer ")
        self.logins.append(token)
        self._end_s = claims_of(token)["exp"] - self._ahead_s
        left_s = self._end_s - time.time()
        return int(left_s * 1000) if left_s > 0 else None

    def _produce(self, arrived: Arrived) -> Reply:
        if time.time() > self._end_s:
            self.cut_count += 1
            raise Cut
        return self.ledger(arrived)


@pytest.mark.parametrize("options", [{}, {"compression_type": "gzip"}], ids=["pump", "python"])
def test_no_request_is_lost_if_sessions_end_before_their_tokens(
    options: dict[str, Any], arena: Arena, open_fake: OpenFake
) -> None:
    with oidc_server(lifetime_s=5) as oidc:
        cluster = open_fake()
        brokers = AheadCluster(cluster, ahead_s=1.5)
        sink = open_sink(f"kafka:{cluster.bootstrap}", **oidc.options(**options))
        sent = send_until_tokens(oidc, arena, cluster, sink, brokers)
    assert brokers.ledger.values[TOPIC, 0] == sent
    assert brokers.cut_count == 0


def send_until_tokens(
    oidc: OidcServer, arena: Arena, cluster: FakeCluster, sink: Any, brokers: AheadCluster
) -> list[bytes | None]:
    """Send records one by one until four tokens were used."""
    sent: list[bytes | None] = []
    deadline_s = time.monotonic() + WATCHDOG_S
    with running(arena, cluster, sink) as sender, Producer(arena.name, linger_ms=0) as producer:
        while len(set(brokers.logins)) < 4:
            assert time.monotonic() < deadline_s, (len(oidc.forms), len(brokers.logins))
            value = b"%d" % len(sent)
            producer.send(TOPIC, value=value, partition=0).get(timeout=WATCHDOG_S)
            sent.append(value)
            time.sleep(PAUSE_S)  # nearly a hundred batches in a second are enough
        assert sender.sink.metrics()["failed-authentication-total"] == 0
    return sent


def test_a_token_that_outlives_its_sessions_is_used_again(arena: Arena, open_fake: OpenFake) -> None:
    """A broker's connections.max.reauth.ms may be shorter than the lifetime of tokens."""
    with oidc_server() as oidc:
        cluster = open_fake()
        logins: list[bytes] = []

        def limit(sent: bytes) -> int:
            logins.append(sent)
            return 1500

        cluster.on_login = limit
        with running(arena, cluster, open_sink(f"kafka:{cluster.bootstrap}", **oidc.options())):
            wait_until(lambda: len(logins) >= 5, "the login is repeated")
        assert len(oidc.forms) == len(set(logins)) == 1


def test_a_source_that_takes_too_long_is_named_rather_than_the_network(
    arena: Arena, open_fake: OpenFake, open_loop: OpenLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source fails after the time limit of the connection has passed."""
    with oidc_server() as oidc:
        oidc.answer = 503, b""
        issue = oidc._issue

        def issue_slowly(form: dict[str, str], authorization: str) -> tuple[int, bytes]:
            time.sleep(0.3)
            return issue(form, authorization)

        monkeypatch.setattr(oidc, "_issue", issue_slowly)
        loop = open_loop(open_fake().bootstrap, **oidc.options(), socket_connection_setup_timeout_ms=100)
        append(arena, TOPIC, b"a")
        assert "answered 503" in first_report(loop)
