# SPDX-License-Identifier: Apache-2.0
"""TLS and SASL with Apache Kafka. Messages about mismatches contain no secret."""

from __future__ import annotations

import base64
import importlib
import json
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from shmaccum.arena import Arena
from shmaccum.exceptions import InvalidArgumentError, UnknownTopicError
from shmaccum.sender.sinks.sink import Verdict
from tests.kafka.broker import LOGIN_MODULES, LOOPBACK, SECURE_PROPERTIES, Cluster, running_cluster
from tests.kafka.conftest import OpenLoop
from tests.kafka.distribution import require
from tests.kafka.loop import append, first_report
from tests.kafka.reading import consume

admin: Any = importlib.import_module("confluent_kafka.admin")  # its stubs export other names

USER = "alice"
PASSWORD = "correct-horse-battery-staple"
FORBIDDEN = "forbidden"
REQUEST_TIMEOUT_S = 120.0


class Secure(NamedTuple):
    """A broker that requires TLS and a login."""

    cluster: Cluster
    authority: Path

    def options(self, **changed: Any) -> dict[str, Any]:
        """The options with which a sink can connect."""
        fitting = {
            "security_protocol": "SASL_SSL",
            "ssl_cafile": str(self.authority),
            "sasl_mechanism": "SCRAM-SHA-256",
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }
        return {**fitting, **changed}


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    require()
    directory = tmp_path_factory.mktemp("secure")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "authority.pem")
    certificate = authority.issue_cert(LOOPBACK, "localhost")
    _write_broker_pem(certificate, directory / "broker.pem")
    plain = f'{LOGIN_MODULES}.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
    properties = {
        **SECURE_PROPERTIES,
        "ssl.keystore.location": str(directory / "broker.pem"),
        "listener.name.sasl_ssl.plain.sasl.jaas.config": plain,
    }
    with running_cluster(directory, properties=properties) as cluster:
        _add_user(cluster.admin())
        yield Secure(cluster, directory / "authority.pem")


def _write_broker_pem(certificate: trustme.LeafCert, path: Path) -> None:
    """Write key and certificates for Java, the key in PKCS#8."""
    key = serialization.load_pem_private_key(certificate.private_key_pem.bytes(), None)
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(encoded + b"".join(blob.bytes() for blob in certificate.cert_chain_pems))


def _add_user(client: Any) -> None:
    """Add a user for both SCRAM mechanisms, without the right to write to one topic."""
    mechanisms = (admin.ScramMechanism.SCRAM_SHA_256, admin.ScramMechanism.SCRAM_SHA_512)
    for mechanism in mechanisms:
        credential = admin.ScramCredentialInfo(mechanism, 4096)
        change = admin.UserScramCredentialUpsertion(USER, credential, PASSWORD.encode())
        for done in client.alter_user_scram_credentials([change]).values():
            done.result(REQUEST_TIMEOUT_S)
    rights = [_right(admin.AclOperation.WRITE, admin.AclPermissionType.DENY)]
    rights += [_right(admin.AclOperation.DESCRIBE, admin.AclPermissionType.ALLOW)]
    for done in client.create_acls(rights).values():
        done.result(REQUEST_TIMEOUT_S)


def _right(operation: Any, permission: Any) -> Any:
    kind, pattern = admin.ResourceType.TOPIC, admin.ResourcePatternType.LITERAL
    return admin.AclBinding(kind, FORBIDDEN, pattern, f"User:{USER}", "*", operation, permission)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_records_arrive_over_tls_after_a_login(
    mechanism: str, secure: Secure, arena: Arena, open_loop: OpenLoop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    topic = f"tls-{mechanism.lower()}"
    secure.cluster.create_topic(topic, 1)
    loop = open_loop(secure.cluster.secure_bootstrap, **secure.options(sasl_mechanism=mechanism))
    large = bytes(range(256)) * 100
    append(arena, topic, b"a", large, b"b")
    loop.run_until_idle()
    assert consume(secure.cluster.bootstrap, topic, 1, 3) == {0: [b"a", large, b"b"]}
    assert PASSWORD not in caplog.text
    assert PASSWORD not in f"{loop.sink!r} {loop.reports} {vars(loop.sink)!r}"


def test_a_wrong_password_is_reported_and_tried_again_slowly(secure: Secure, arena: Arena, open_loop: OpenLoop) -> None:
    loop = open_loop(secure.cluster.secure_bootstrap, **secure.options(sasl_plain_password="wrong"))
    append(arena, "tls", b"a")
    assert "sasl_plain_password" in first_report(loop)
    assert "wrong" not in str(loop.reports)
    assert loop.queued_count() == 1
    metrics = loop.sink.metrics()
    assert metrics["successful-authentication-total"] == 0
    assert metrics["failed-authentication-total"] >= 1


def unsecured_token(user: str, valid_s: int = 3600) -> str:
    """A JSON web token without a signature, which Kafka accepts by default."""
    now_s = int(time.time())
    parts = ({"alg": "none"}, {"sub": user, "iat": now_s - 60, "exp": now_s + valid_s})
    encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*encoded, ""])


class Tokens:
    """A user's token provider, which has no base class."""

    def __init__(self, valid_s: int = 3600) -> None:
        self.valid_s = valid_s
        self.asked_count = 0

    def token(self) -> str:
        self.asked_count += 1
        return unsecured_token(USER, self.valid_s)


def test_records_arrive_after_a_login_with_a_token(secure: Secure, arena: Arena, open_loop: OpenLoop) -> None:
    secure.cluster.create_topic("tls-oauth", 1)
    tokens = Tokens()
    options = secure.options(sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=tokens)
    loop = open_loop(secure.cluster.secure_bootstrap, **options)
    append(arena, "tls-oauth", b"a", b"b")
    loop.run_until_idle()
    assert consume(secure.cluster.bootstrap, "tls-oauth", 1, 2) == {0: [b"a", b"b"]}
    assert tokens.asked_count >= 1


def test_a_token_that_is_too_old_is_reported(secure: Secure, open_loop: OpenLoop) -> None:
    options = secure.options(sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=Tokens(valid_s=-3600))
    assert "sasl_oauth_token_provider" in first_report(open_loop(secure.cluster.secure_bootstrap, **options))


def test_a_token_provider_that_fails_is_reported(secure: Secure, open_loop: OpenLoop) -> None:
    def fail() -> str:
        raise LookupError("no identity today")

    options = secure.options(sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=fail)
    assert "no identity today" in first_report(open_loop(secure.cluster.secure_bootstrap, **options))


@pytest.mark.parametrize(("mechanism", "package"), [("GSSAPI", "gssapi"), ("AWS_MSK_IAM", "botocore")])
def test_a_login_whose_package_is_missing_is_reported_at_once(
    mechanism: str, package: str, open_loop: OpenLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    options = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": mechanism}
    with pytest.raises(InvalidArgumentError, match=f"pip install {package}"):
        open_loop(f"{LOOPBACK}:1", **options)


def test_a_mechanism_the_broker_does_not_have_is_reported(
    secure: Secure, open_loop: OpenLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", Mock())
    options = secure.options(sasl_mechanism="GSSAPI", sasl_plain_username=None, sasl_plain_password=None)
    assert "mechanism" in first_report(open_loop(secure.cluster.secure_bootstrap, **options))


def test_a_certificate_of_another_owner_is_reported(secure: Secure, tmp_path: Path, open_loop: OpenLoop) -> None:
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(stranger)
    loop = open_loop(secure.cluster.secure_bootstrap, **secure.options(ssl_cafile=str(stranger)))
    assert "CERTIFICATE_VERIFY_FAILED" in first_report(loop)


def test_tls_to_a_plain_listener_is_reported(secure: Secure, open_loop: OpenLoop) -> None:
    report = first_report(open_loop(secure.cluster.bootstrap, **secure.options()))
    assert "security_protocol" in report


def test_plain_to_a_tls_listener_is_reported(secure: Secure, open_loop: OpenLoop) -> None:
    report = first_report(open_loop(secure.cluster.secure_bootstrap))
    assert "security_protocol" in report


def test_a_topic_the_user_may_not_write_to_refuses_the_batch(secure: Secure, arena: Arena, open_loop: OpenLoop) -> None:
    secure.cluster.create_topic(FORBIDDEN, 1)
    loop = open_loop(secure.cluster.secure_bootstrap, **secure.options())
    append(arena, FORBIDDEN, b"a")
    loop.run_until_idle()
    (ack,) = loop.acks
    assert (ack.verdict, ack.error_code) == (Verdict.REFUSED, 29)
    assert "TOPIC_AUTHORIZATION_FAILED" in ack.message


def test_a_certificate_file_that_is_not_there_is_reported_at_once(secure: Secure, open_loop: OpenLoop) -> None:
    with pytest.raises(InvalidArgumentError, match="ssl_cafile"):
        open_loop(secure.cluster.secure_bootstrap, **secure.options(ssl_cafile="/nonexistent.pem"))


def test_a_port_without_a_listener_is_reported(arena: Arena, open_loop: OpenLoop) -> None:
    loop = open_loop(f"{LOOPBACK}:1")
    append(arena, "nowhere", b"a")
    report = first_report(loop)
    assert f"{LOOPBACK}:1" in report
    assert "check the address" in report
    assert loop.queued_count() == 1


def test_an_unknown_host_is_reported(open_loop: OpenLoop) -> None:
    assert "no-such-host.invalid" in first_report(open_loop("no-such-host.invalid:9092"))


def test_a_cluster_that_cannot_be_reached_reports_nothing_about_topics(open_loop: OpenLoop) -> None:
    loop = open_loop(f"{LOOPBACK}:1", max_block_ms=0)
    first_report(loop)
    try:
        assert loop.sink.partition_count("flights") is None
    except UnknownTopicError:
        pytest.fail("no program can tell whether the topic exists")
