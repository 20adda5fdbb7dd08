# SPDX-License-Identifier: Apache-2.0
"""Tokens for OAUTHBEARER from an OpenID Connect server, a user's module, and AWS, with a scripted cluster."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import ssl
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import trustme

from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.compat.confluent import Producer as ConfluentProducer
from shmaccum.compat.kafka_python import KafkaProducer
from shmaccum.exceptions import InvalidArgumentError, PackageMissingError
from shmaccum.sender.sinks import open_sink
from shmaccum.sender.sinks.kafka.library import tokens as library_tokens
from shmaccum.sender.sinks.kafka.token_sources import Token
from tests.kafka.broker import LOOPBACK
from tests.kafka.conftest import OpenFake, OpenLoop
from tests.kafka.fake_broker import Arrived, Cut, FakeCluster, Reply
from tests.kafka.loop import append, first_report
from tests.kafka.test_pump import Ledger, running
from tests.support.arenas import end_senders
from tests.support.oidc_server import CLIENT, SECRET, OidcServer, claims_of, oidc_server
from tests.support.processes import WATCHDOG_S, wait_until

TOPIC = "flights"
LIFETIME_S = 3
"""The next token is requested after 2.4 s."""
PAUSE_S = 0.01


@pytest.fixture
def oidc() -> Iterator[OidcServer]:
    with oidc_server() as server:
        yield server


class Logins:
    """Lets a client log in with a token that has not expired, and closes connections whose session is over.

    Attributes:
        tokens: the token of each login.
        extensions: the extensions of the last login.
        cut_count: requests that came after the end of the session.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self.tokens: list[str] = []
        self.extensions: dict[str, str] = {}
        self.cut_count = 0
        self._session_end_s = 0.0
        self._ledger = Ledger()
        cluster.on_login = self._log_in
        cluster.on_produce = self._produce

    def _log_in(self, sent: bytes) -> int | None:
        _, authorization, *extensions = sent.decode().strip("\x01").split("\x01")
        self.extensions = dict(each.split("=", 1) for each in extensions)
        token = authorization.removeprefix("auth=Bearer ")
        self.tokens.append(token)
        self._session_end_s = claims_of(token)["exp"]
        left_s = self._session_end_s - time.time()
        return int(left_s * 1000) if left_s > 0 else None

    def _produce(self, arrived: Arrived) -> Reply:
        if time.time() > self._session_end_s:
            self.cut_count += 1
            raise Cut
        return self._ledger(arrived)

    @property
    def values(self) -> list[bytes | None]:
        return self._ledger.values[TOPIC, 0]


def noted_logins(cluster: FakeCluster) -> list[bytes]:
    """Accept each login, and note what the client sent."""
    seen: list[bytes] = []

    def note(sent: bytes) -> int:
        seen.append(sent)
        return 0

    cluster.on_login = note
    return seen


# --- OpenID Connect


def test_a_login_has_a_token_of_the_server(
    oidc: OidcServer, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    logins = Logins(cluster)
    more = {"sasl_oauthbearer_scope": "write all", "sasl_oauthbearer_extensions": "logicalCluster=lkc-1, pool=p=1"}
    loop = open_loop(cluster.bootstrap, **oidc.options(**more))
    append(arena, TOPIC, b"a")
    loop.run_until_idle()
    assert logins.values == [b"a"]
    assert claims_of(logins.tokens[0])["sub"] == CLIENT
    assert logins.extensions == {"logicalCluster": "lkc-1", "pool": "p=1"}
    assert oidc.forms == [{"grant_type": "client_credentials", "scope": "write all"}]
    assert SECRET not in f"{loop.sink!r} {loop.reports} {vars(loop.sink)!r}"


@pytest.mark.parametrize(
    ("states_lifetime", "options"), [(True, {}), (False, {"compression_type": "gzip"})], ids=["pump", "python"]
)
def test_tokens_are_replaced_before_they_expire_without_losing_a_batch(
    states_lifetime: bool, options: dict[str, Any], oidc: OidcServer, arena: Arena, open_fake: OpenFake
) -> None:
    oidc.lifetime_s = LIFETIME_S
    oidc.states_lifetime = states_lifetime
    cluster = open_fake()
    logins = Logins(cluster)
    sink = open_sink(f"kafka:{cluster.bootstrap}", **oidc.options(**options))
    deadline_s = time.monotonic() + WATCHDOG_S
    with running(arena, cluster, sink), Producer(arena.name, linger_ms=0) as producer:
        sent: list[bytes] = []
        while len(set(logins.tokens)) < 3:
            assert time.monotonic() < deadline_s
            sent.append(b"%d" % len(sent))
            producer.send(TOPIC, value=sent[-1], partition=0).get(timeout=WATCHDOG_S)
            time.sleep(PAUSE_S)  # nearly a hundred batches in a second are enough
    assert logins.values == sent
    assert logins.cut_count == 0
    # The bootstrap connection, and the connection to the node, over which logins are repeated.
    assert cluster.brokers[0].connection_count <= 2


def test_an_outage_of_the_server_fails_no_record(oidc: OidcServer, arena: Arena, open_fake: OpenFake) -> None:
    oidc.lifetime_s = 1
    cluster = open_fake()
    logins = Logins(cluster)
    sink = open_sink(f"kafka:{cluster.bootstrap}", **oidc.options())
    with running(arena, cluster, sink), Producer(arena.name, linger_ms=0) as producer:
        producer.send(TOPIC, value=b"before", partition=0).get(timeout=WATCHDOG_S)
        oidc.answer = 503, b""
        wait_until(lambda: time.time() > claims_of(logins.tokens[-1])["exp"] + 1, "every token has expired")
        cluster.brokers[0].cut()
        asked_count = len(oidc.forms)
        future = producer.send(TOPIC, value=b"during", partition=0)
        wait_until(lambda: len(oidc.forms) >= asked_count + 2, "tokens are requested again")
        assert not future.is_done
        oidc.lifetime_s = 3600
        oidc.answer = None
        future.get(timeout=WATCHDOG_S)
    assert logins.values == [b"before", b"during"]


def test_a_secret_is_read_again_for_each_token(
    tmp_path: Path, oidc: OidcServer, arena: Arena, open_fake: OpenFake
) -> None:
    oidc.lifetime_s = LIFETIME_S
    cluster = open_fake()
    logins = Logins(cluster)
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o600)
    options = oidc.options(sasl_oauthbearer_client_secret=f"file:{path}")
    with running(arena, cluster, open_sink(f"kafka:{cluster.bootstrap}", **options)):
        wait_until(lambda: len(logins.tokens) > 0, "there is a login")
        oidc.secret = "another"
        path.write_text("another")
        asked_count = len(oidc.forms)
        wait_until(lambda: len(oidc.forms) > asked_count, "another token is requested")
        wait_until(lambda: len(set(logins.tokens)) > 1, "there is a login with another token")


def test_an_assertion_is_enough(tmp_path: Path, oidc: OidcServer, arena: Arena, open_fake: OpenFake) -> None:
    cluster = open_fake()
    logins = Logins(cluster)
    path = tmp_path / "assertion"
    path.write_text(f"{oidc.assertion}\n")
    path.chmod(0o600)
    none = {"sasl_oauthbearer_client_id": None, "sasl_oauthbearer_client_secret": None}
    options = oidc.options(**none, sasl_oauthbearer_assertion_file=str(path))
    with running(arena, cluster, open_sink(f"kafka:{cluster.bootstrap}", **options)):
        wait_until(lambda: len(logins.tokens) > 0, "there is a login")


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (401, b'{"error": "invalid_client", "error_description": "no such client"}', "401.*invalid_client: no such cl"),
        (503, b"<html>", "answered 503"),
        (200, b"<html>", "sent no token"),
        (200, b"[]", "sent no JSON object"),
        (200, b"{}", "sent no access_token"),
        (200, b'{"access_token": "a", "expires_in": "soon"}', "which is not a number"),
        (200, b'{"access_token": "a", "expires_in": -5}', "expired 5 s ago: check the clocks"),
        (200, b'{"access_token": "a", "expires_in": NaN}', "check the clocks"),
        (307, b"", "answered 307"),
        (302, b"", "answered 302"),
    ],
)
def test_a_server_without_a_token_is_reported_with_its_reason(
    status: int, body: bytes, reason: str, oidc: OidcServer, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    oidc.answer = status, body
    oidc.location = f"{oidc.address}/elsewhere" if status in {302, 307} else ""
    loop = open_loop(open_fake().bootstrap, **oidc.options())
    append(arena, TOPIC, b"a")
    report = first_report(loop)
    assert reason_is_in(reason, report)
    assert SECRET not in report
    assert loop.queued_count() == 1


def reason_is_in(reason: str, report: str) -> bool:
    """True if the parts of the reason, separated by ``.*``, are in the report in this order."""
    position = 0
    for part in reason.split(".*"):
        position = report.find(part, position)
        if position < 0:
            return False
    return True


def test_a_server_that_does_not_respond_is_reported(
    oidc: OidcServer, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_tokens, "WAIT_S", 0.1)
    hang = threading.Event()
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    loop = open_loop(open_fake().bootstrap, **options, sasl_oauth_token_provider=lambda: hang.wait(WATCHDOG_S) and "x")
    try:
        assert "takes longer than 0.1 s" in first_report(loop)
    finally:
        hang.set()


def test_a_token_that_a_broker_rejects_is_replaced(
    oidc: OidcServer, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_tokens, "RENEWAL_INTERVAL_S", 0)
    cluster = open_fake()
    seen: list[bytes] = []

    def accept_the_second(sent: bytes) -> int | None:
        seen.append(sent)
        return None if sent == seen[0] else 0

    cluster.on_login = accept_the_second
    loop = open_loop(cluster.bootstrap, **oidc.options())
    append(arena, TOPIC, b"a")
    loop.run_until_idle()
    assert len(set(seen)) == len(oidc.forms) == 2


# --- a user's module


MODULE = """
import time
def token():
    return "of.a.function", time.time() + 60
class Provider:
    def token(self):
        return "of.an.object"
    def extensions(self):
        return {"name": "value"}
provider = Provider()
wrong = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module that this process and its children can import."""
    (tmp_path / "identities_of_tests.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield "identities_of_tests"
    sys.modules.pop("identities_of_tests", None)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("token", b"n,,\x01auth=Bearer of.a.function\x01\x01"),
        ("provider", b"n,,\x01auth=Bearer of.an.object\x01name=value\x01\x01"),
        ("Provider", b"n,,\x01auth=Bearer of.an.object\x01name=value\x01\x01"),
        ("provider.token", b"n,,\x01auth=Bearer of.an.object\x01\x01"),
    ],
)
@pytest.mark.parametrize("option", ["sasl_oauth_token_provider", "sasl.oauthbearer.token.provider"])
def test_the_token_of_a_module_is_used(
    option: str, name: str, sent: bytes, module: str, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    seen = noted_logins(cluster)
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER", option: f"{module}:{name}"}
    loop = open_loop(cluster.bootstrap, **options)
    append(arena, TOPIC, b"a")
    loop.run_until_idle()
    assert set(seen) == {sent}


@pytest.mark.parametrize("place", ["no_such_module:token", "identities_of_tests:none", "identities_of_tests:wrong"])
def test_a_provider_that_cannot_be_imported_is_refused_at_the_start(
    place: str, module: str, open_loop: OpenLoop
) -> None:
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    with pytest.raises(InvalidArgumentError, match=f"sasl_oauth_token_provider={place}"):
        open_loop(f"{LOOPBACK}:1", **options, sasl_oauth_token_provider=place)


def test_a_supervised_sender_has_the_provider_of_a_module(module: str, open_fake: OpenFake, arena_name: str) -> None:
    cluster = open_fake()
    seen = noted_logins(cluster)
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    producer = KafkaProducer(
        bootstrap_servers=cluster.bootstrap,
        shmaccum_arena=arena_name,
        **options,
        sasl_oauth_token_provider=f"{module}:token",
    )
    try:
        producer.send(TOPIC, b"a").get(timeout=WATCHDOG_S)
    finally:
        producer.close()
        with Arena.attach(arena_name) as arena:
            end_senders(arena)
    assert b"of.a.function" in seen[0]


def test_an_object_of_a_program_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidArgumentError, match="module:function"):
        KafkaProducer(bootstrap_servers=f"{LOOPBACK}:1", sasl_oauth_token_provider=object())


def test_a_supervised_sender_gets_tokens_with_the_options_of_librdkafka(
    oidc: OidcServer, open_fake: OpenFake, arena_name: str
) -> None:
    cluster = open_fake()
    logins = Logins(cluster)
    options = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "OIDC",
        "sasl.oauthbearer.token.endpoint.url": oidc.token_url,
        "sasl.oauthbearer.client.id": CLIENT,
        "sasl.oauthbearer.client.secret": SECRET,
        "sasl.oauthbearer.scope": "write",
        "sasl.oauthbearer.extensions": "pool=p-1",
    }
    confluent_kafka.Producer({**options, "bootstrap.servers": cluster.bootstrap, "sasl.oauthbearer.method": "oidc"})
    asked_count = len(oidc.forms)
    producer = ConfluentProducer({**options, "bootstrap.servers": cluster.bootstrap, "shmaccum_arena": arena_name})
    try:
        producer.produce(TOPIC, b"a")
        assert producer.flush(WATCHDOG_S) == 0
    finally:
        producer.close()
        with Arena.attach(arena_name) as arena:
            end_senders(arena)
    assert logins.values == [b"a"]
    assert logins.extensions == {"pool": "p-1"}
    assert len(oidc.forms) > asked_count


# --- AWS


KEY_ID, KEY, REGION = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "eu-central-1"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials in the environment, and no others."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": KEY,
        "AWS_SESSION_TOKEN": "session/token+1",
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(name, value)


def signature(host: str, fields: dict[str, str], key: str) -> str:
    """The signature of a request with these fields (AWS Signature Version 4, as its manual describes it)."""

    def quoted(text: str) -> str:
        return urllib.parse.quote(text, safe="-_.~")

    def mac(secret: bytes, text: str) -> bytes:
        return hmac.new(secret, text.encode(), hashlib.sha256).digest()

    scope = fields["X-Amz-Credential"].split("/", 1)[1]
    query = "&".join(f"{quoted(name)}={quoted(value)}" for name, value in sorted(fields.items()))
    canonical = f"GET\n/\n{query}\nhost:{host}\n\nhost\n{hashlib.sha256(b'').hexdigest()}"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    signed = f"AWS4-HMAC-SHA256\n{fields['X-Amz-Date']}\n{scope}\n{digest}"
    secret = f"AWS4{key}".encode()
    for part in scope.split("/"):
        secret = mac(secret, part)
    return mac(secret, signed).hex()


def is_signed_url(sent: bytes) -> bool:
    """Check a login with OAUTHBEARER as Amazon MSK does."""
    token = sent.decode().split("auth=Bearer ")[1].rstrip("\x01")
    url = urllib.parse.urlsplit(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode())
    fields = dict(urllib.parse.parse_qsl(url.query))
    del fields["User-Agent"]  # it is not signed
    assert url.hostname == f"kafka.{REGION}.amazonaws.com"
    return hmac.compare_digest(fields.pop("X-Amz-Signature"), signature(url.hostname, fields, KEY))


def is_signed_message(sent: bytes) -> bool:
    """Check a login with AWS_MSK_IAM as Amazon MSK does."""
    message: dict[str, str] = json.loads(sent)
    names = {
        "Action": "action",
        "X-Amz-Algorithm": "x-amz-algorithm",
        "X-Amz-Credential": "x-amz-credential",
        "X-Amz-Date": "x-amz-date",
        "X-Amz-Expires": "x-amz-expires",
        "X-Amz-Security-Token": "x-amz-security-token",
        "X-Amz-SignedHeaders": "x-amz-signedheaders",
    }
    fields = {name: message[key] for name, key in names.items()}
    return hmac.compare_digest(message["x-amz-signature"], signature(message["host"], fields, KEY))


def test_a_login_is_signed_with_the_credentials_of_aws(
    aws: None, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake()
    cluster.on_login = lambda sent: 0 if is_signed_url(sent) else None
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    loop = open_loop(cluster.bootstrap, **options, sasl_oauthbearer_method="aws_msk_iam")
    append(arena, TOPIC, b"a")
    loop.run_until_idle()
    assert [arrived.topic for arrived in cluster.arrived] == [TOPIC]


def test_the_mechanism_of_msk_is_signed_with_the_credentials_of_aws(
    tmp_path: Path, aws: None, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(LOOPBACK).configure_cert(tls)
    cluster = open_fake(tls=tls)
    cluster.login_answer = b'{"version": "2020_10_22", "request-id": "1"}'
    cluster.on_login = lambda sent: 0 if is_signed_message(sent) else None
    options = {"security_protocol": "SASL_SSL", "ssl_cafile": str(tmp_path / "authority.pem")}
    loop = open_loop(cluster.bootstrap, **options, sasl_mechanism="AWS_MSK_IAM")
    append(arena, TOPIC, b"a")
    loop.run_until_idle()
    assert [arrived.topic for arrived in cluster.arrived] == [TOPIC]


def test_a_wrong_signature_is_detected_by_the_stub(aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

    def login() -> bytes:
        token, _ = MSKAuthTokenProvider.generate_auth_token(REGION)
        return f"n,,\x01auth=Bearer {token}\x01\x01".encode()

    assert is_signed_url(login())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    assert not is_signed_url(login())


def test_a_missing_package_or_region_is_named(aws: None, open_loop: OpenLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(InvalidArgumentError, match="set AWS_DEFAULT_REGION"):
        open_loop(f"{LOOPBACK}:1", **options, sasl_oauthbearer_method="aws_msk_iam")
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(PackageMissingError, match="msk"):
        open_loop(f"{LOOPBACK}:1", **options, sasl_oauthbearer_method="aws_msk_iam")


def test_a_token_does_not_show() -> None:
    assert SECRET not in repr(Token(SECRET, 1.0))
