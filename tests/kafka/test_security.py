# SPDX-License-Identifier: Apache-2.0
"""TLS and SASL with Apache Kafka. Messages about mismatches contain no secret."""

from __future__ import annotations

import base64
import json
import logging
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import trustme

from shmaccum.arena import Arena
from shmaccum.exceptions import InvalidArgumentError, UnknownTopicError
from shmaccum.sender.sinks.sink import Verdict
from tests.kafka.broker import LOOPBACK
from tests.kafka.conftest import OpenLoop
from tests.kafka.distribution import require
from tests.kafka.loop import append, first_report
from tests.kafka.reading import consume
from tests.kafka.secure_cluster import PASSWORD, REQUEST_TIMEOUT_S, USER, SecureCluster, admin, secure_cluster

FORBIDDEN = "forbidden"


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureCluster]:
    """A broker whose user has no right to write to one topic."""
    require()
    with secure_cluster(tmp_path_factory.mktemp("secure")) as running:
        rights = [_right(admin.AclOperation.WRITE, admin.AclPermissionType.DENY)]
        rights += [_right(admin.AclOperation.DESCRIBE, admin.AclPermissionType.ALLOW)]
        client = running.cluster.admin()  # it ends its requests when it is collected
        for done in client.create_acls(rights).values():
            done.result(REQUEST_TIMEOUT_S)
        yield running


def _right(operation: Any, permission: Any) -> Any:
    kind, pattern = admin.ResourceType.TOPIC, admin.ResourcePatternType.LITERAL
    return admin.AclBinding(kind, FORBIDDEN, pattern, f"User:{USER}", "*", operation, permission)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_records_arrive_over_tls_after_a_login(
    mechanism: str, secure: SecureCluster, arena: Arena, open_loop: OpenLoop, caplog: pytest.LogCaptureFixture
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


def test_a_wrong_password_is_reported_and_tried_again_slowly(
    secure: SecureCluster, arena: Arena, open_loop: OpenLoop
) -> None:
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


def test_records_arrive_after_a_login_with_a_token(secure: SecureCluster, arena: Arena, open_loop: OpenLoop) -> None:
    secure.cluster.create_topic("tls-oauth", 1)
    tokens = Tokens()
    options = secure.options(sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=tokens)
    loop = open_loop(secure.cluster.secure_bootstrap, **options)
    append(arena, "tls-oauth", b"a", b"b")
    loop.run_until_idle()
    assert consume(secure.cluster.bootstrap, "tls-oauth", 1, 2) == {0: [b"a", b"b"]}
    assert tokens.asked_count >= 1


def test_a_token_that_is_too_old_is_reported(secure: SecureCluster, open_loop: OpenLoop) -> None:
    options = secure.options(sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=Tokens(valid_s=-3600))
    assert "sasl_oauth_token_provider" in first_report(open_loop(secure.cluster.secure_bootstrap, **options))


def test_a_token_provider_that_fails_is_reported(secure: SecureCluster, open_loop: OpenLoop) -> None:
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
    secure: SecureCluster, open_loop: OpenLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", Mock())
    options = secure.options(sasl_mechanism="GSSAPI", sasl_plain_username=None, sasl_plain_password=None)
    assert "mechanism" in first_report(open_loop(secure.cluster.secure_bootstrap, **options))


def test_a_certificate_of_another_owner_is_reported(secure: SecureCluster, tmp_path: Path, open_loop: OpenLoop) -> None:
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(stranger)
    loop = open_loop(secure.cluster.secure_bootstrap, **secure.options(ssl_cafile=str(stranger)))
    assert "CERTIFICATE_VERIFY_FAILED" in first_report(loop)


def test_tls_to_a_plain_listener_is_reported(secure: SecureCluster, open_loop: OpenLoop) -> None:
    report = first_report(open_loop(secure.cluster.bootstrap, **secure.options()))
    assert "security_protocol" in report


def test_plain_to_a_tls_listener_is_reported(secure: SecureCluster, open_loop: OpenLoop) -> None:
    report = first_report(open_loop(secure.cluster.secure_bootstrap))
    assert "security_protocol" in report


def test_a_topic_the_user_may_not_write_to_refuses_the_batch(
    secure: SecureCluster, arena: Arena, open_loop: OpenLoop
) -> None:
    secure.cluster.create_topic(FORBIDDEN, 1)
    loop = open_loop(secure.cluster.secure_bootstrap, **secure.options())
    append(arena, FORBIDDEN, b"a")
    loop.run_until_idle()
    (ack,) = loop.acks
    assert (ack.verdict, ack.error_code) == (Verdict.REFUSED, 29)
    assert "TOPIC_AUTHORIZATION_FAILED" in ack.message


def test_a_certificate_file_that_is_not_there_is_reported_at_once(secure: SecureCluster, open_loop: OpenLoop) -> None:
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
