# SPDX-License-Identifier: Apache-2.0
"""Tokens of an OpenID Connect server with Apache Kafka, which checks them with the keys of that server."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.arena.reports import Kind, read_reports
from shmaccum.exceptions import PartitionCountUnknownError
from shmaccum.sender import Sender
from shmaccum.sender.sinks import open_sink
from tests.kafka.broker import LOGIN_MODULES, Cluster, running_cluster
from tests.kafka.conftest import OpenLoop
from tests.kafka.distribution import require, short_lived_jvm
from tests.kafka.loop import append, first_report
from tests.kafka.reading import consume
from tests.support.oidc_server import AUDIENCE, ISSUER, SECRET, OidcServer, oidc_server
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.transactions import running

pytestmark = [pytest.mark.kafka, pytest.mark.xdist_group("oidc")]

LISTENER = "listener.name.sasl_plaintext."
LIFETIME_S = 5
TOKEN_COUNT = 6
"""The tokens that a test uses, while it sends."""


class Checking(NamedTuple):
    """A broker, and the server of tokens whose keys it has."""

    cluster: Cluster
    oidc: OidcServer


@pytest.fixture(scope="module")
def checking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checking]:
    require()
    with oidc_server() as oidc:
        jvm = (*short_lived_jvm(), f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={oidc.address}/keys")
        folder = tmp_path_factory.mktemp("oidc")
        with running_cluster(folder, properties=broker_properties(oidc), jvm=jvm) as cluster:
            yield Checking(cluster, oidc)


def broker_properties(oidc: OidcServer) -> dict[str, str]:
    """The properties of a broker that accepts the tokens of this server and no others."""
    oauth = f"{LOGIN_MODULES}.oauthbearer"
    of_listener = {
        "oauthbearer.sasl.jaas.config": f"{oauth}.OAuthBearerLoginModule required;",
        "oauthbearer.sasl.server.callback.handler.class": f"{oauth}.OAuthBearerValidatorCallbackHandler",
        # The default class of Kafka 4.1 does not check signatures.
        "sasl.oauthbearer.jwt.validator.class": f"{oauth}.BrokerJwtValidator",
        "sasl.oauthbearer.jwks.endpoint.url": f"{oidc.address}/keys",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
    }
    return {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        **{f"{LISTENER}{name}": value for name, value in of_listener.items()},
    }


@pytest.fixture
def oidc(checking: Checking) -> Iterator[OidcServer]:
    """The server of tokens, whose next tokens are valid for a short time."""
    checking.oidc.lifetime_s = LIFETIME_S
    checking.oidc.forms.clear()
    yield checking.oidc
    checking.oidc.lifetime_s = 3600
    checking.oidc.secret = SECRET


def sending_to(cluster: Cluster, arena: Arena, **options: Any) -> contextlib.AbstractContextManager[Sender]:
    """A sender in a thread."""
    return running(Sender(arena, open_sink(f"kafka:{cluster.secure_bootstrap}", **options), retry_backoff_ms=1))


def send_until(arena: Arena, topic: str, is_over: Callable[[], bool]) -> list[bytes | None]:
    """Send records one by one, and return those that were delivered."""
    sent: list[bytes | None] = []
    deadline_s = time.monotonic() + WATCHDOG_S
    with Producer(arena.name, linger_ms=0) as producer:
        while not is_over():
            assert time.monotonic() < deadline_s
            value = b"%d" % len(sent)
            producer.send(topic, value=value, partition=0).get(timeout=WATCHDOG_S)
            sent.append(value)
    return sent


def retried(arena: Arena) -> list[str]:
    """The batches that were sent more than once."""
    return [report.sentence for report in read_reports(arena.native) if report.kind is Kind.RETRIED]


def test_records_arrive_after_a_login_with_a_token(checking: Checking, arena: Arena, open_loop: OpenLoop) -> None:
    checking.cluster.create_topic("tokens", 1)
    loop = open_loop(checking.cluster.secure_bootstrap, **checking.oidc.options())
    append(arena, "tokens", b"a", b"b")
    loop.run_until_idle()
    assert consume(checking.cluster.bootstrap, "tokens", 1, 2) == {0: [b"a", b"b"]}
    assert loop.reports == []


@pytest.mark.parametrize("options", [{}, {"compression_type": "gzip"}], ids=["pump", "python"])
def test_tokens_are_replaced_without_sending_a_batch_again(
    options: dict[str, Any], checking: Checking, oidc: OidcServer, arena: Arena
) -> None:
    """Kafka ignores fractions of seconds in the expiry of a token, so sessions end up to a second before it."""
    topic = f"replaced-{options.get('compression_type', 'none')}"
    checking.cluster.create_topic(topic, 1)
    with sending_to(checking.cluster, arena, **oidc.options(**options)) as sender:
        sent = send_until(arena, topic, lambda: len(oidc.forms) >= TOKEN_COUNT)
        assert sender.sink.metrics()["failed-authentication-total"] == 0
    assert consume(checking.cluster.bootstrap, topic, 1, len(sent)) == {0: sent}
    assert retried(arena) == []


def test_a_secret_may_be_replaced(tmp_path: Path, checking: Checking, oidc: OidcServer, arena: Arena) -> None:
    checking.cluster.create_topic("secrets", 1)
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text(SECRET)

    def is_over() -> bool:
        if len(oidc.forms) == 1:
            path.write_text("another")
            oidc.secret = "another"
        return len(oidc.forms) >= TOKEN_COUNT

    with sending_to(checking.cluster, arena, **oidc.options(sasl_oauthbearer_client_secret=f"file:{path}")):
        sent = send_until(arena, "secrets", is_over)
    assert consume(checking.cluster.bootstrap, "secrets", 1, len(sent)) == {0: sent}
    assert retried(arena) == []


def test_records_wait_while_the_server_of_tokens_is_away(checking: Checking, oidc: OidcServer, arena: Arena) -> None:
    checking.cluster.create_topic("away", 1)
    with sending_to(checking.cluster, arena, **oidc.options()), Producer(arena.name, linger_ms=0) as producer:
        producer.send("away", value=b"before", partition=0).get(timeout=WATCHDOG_S)
        oidc.stop()
        end_s = time.monotonic() + LIFETIME_S
        try:
            wait_until(lambda: time.monotonic() > end_s, "the token has expired")
            future = producer.send("away", value=b"during", partition=0)
            wait_until(lambda: has_report(arena, "there is no token"), "the login has no token")
            assert not future.is_done
        finally:
            oidc.start()
        future.get(timeout=WATCHDOG_S)
    assert consume(checking.cluster.bootstrap, "away", 1, 2) == {0: [b"before", b"during"]}
    assert has_report(arena, f"{oidc.token_url} sent no token")
    assert retried(arena) == []


def has_report(arena: Arena, text: str) -> bool:
    return any(text in report.sentence for report in read_reports(arena.native))


def test_a_token_of_another_server_is_reported(checking: Checking, arena: Arena, open_loop: OpenLoop) -> None:
    with oidc_server() as other:
        loop = open_loop(checking.cluster.secure_bootstrap, **other.options())
        append(arena, "tokens", b"a")
        report = first_report(loop)
    assert "invalid_token" in report
    assert "sasl_oauthbearer_method" in report
    assert loop.queued_count() == 1


def test_a_producer_gets_the_reason(checking: Checking, arena: Arena) -> None:
    with (
        oidc_server() as other,
        sending_to(checking.cluster, arena, **other.options()),
        Producer(arena.name, max_block_ms=20_000) as producer,
        pytest.raises(PartitionCountUnknownError, match="invalid_token"),
    ):
        producer.send("tokens", value=b"a")
