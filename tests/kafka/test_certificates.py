# SPDX-License-Identifier: Apache-2.0
"""The sender's certificates are replaced while it delivers to a scripted cluster."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.sender.sinks import open_sink
from tests.kafka.broker import LOOPBACK
from tests.kafka.conftest import OpenFake, OpenLoop
from tests.kafka.fake_broker import FakeCluster
from tests.kafka.loop import append
from tests.kafka.test_pump import Ledger, running
from tests.support.log_server import api
from tests.support.processes import WATCHDOG_S, wait_until

TOPIC = "flights"
VALID_S = 6
"""The lifetime of a certificate under load."""
GENERATIONS = 3
PAUSE_S = 0.01
API_VERSIONS = 18


class Files(NamedTuple):
    """The files of a sender."""

    authority: Path
    certificate: Path
    key: Path

    def options(self, **more: Any) -> dict[str, Any]:
        return {
            "security_protocol": "SSL",
            "ssl_cafile": str(self.authority),
            "ssl_certfile": str(self.certificate),
            "ssl_keyfile": str(self.key),
            **more,
        }

    def contents(self, issued: trustme.LeafCert) -> list[tuple[Path, bytes]]:
        return [(self.key, issued.private_key_pem.bytes()), (self.certificate, issued.cert_chain_pems[0].bytes())]

    def write(self, issued: trustme.LeafCert) -> None:
        for path, content in self.contents(issued):
            path.touch(0o600)
            path.write_bytes(content)

    def write_in_halves(self, issued: trustme.LeafCert, between: Callable[[], None]) -> None:
        """Write both files in two parts each, as a program does that renames no file."""
        for path, content in self.contents(issued):
            with path.open("wb", buffering=0) as file:
                file.write(content[: len(content) // 2])
                between()
                file.write(content[len(content) // 2 :])
            between()


def issue(authority: trustme.CA, valid_s: float = 3600) -> trustme.LeafCert:
    now = datetime.datetime.now(datetime.timezone.utc)
    end = now + datetime.timedelta(seconds=valid_s)
    hour = datetime.timedelta(hours=1)
    return authority.issue_cert(LOOPBACK, not_before=now - hour, not_after=end, key_type=trustme.KeyType.ECDSA)


def server_context(authority: trustme.CA, valid_s: float = 3600) -> ssl.SSLContext:
    """The context of a broker that requires a certificate of its clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issue(authority, valid_s).configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA(key_type=trustme.KeyType.ECDSA)


@pytest.fixture
def files(tmp_path: Path, authority: trustme.CA) -> Files:
    found = Files(tmp_path / "authority.pem", tmp_path / "client.pem", tmp_path / "client.key")
    authority.cert_pem.write_to_path(found.authority)
    return found


def is_accepted(cluster: FakeCluster, authority: trustme.CA, certificate: trustme.LeafCert) -> bool:
    """True if a broker responds to a client with this certificate."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    certificate.configure_cert(context)
    try:
        with (
            socket.create_connection((LOOPBACK, cluster.brokers[0].port), WATCHDOG_S) as plain,
            context.wrap_socket(plain, server_hostname=LOOPBACK) as secure,
        ):
            secure.sendall(api(API_VERSIONS, 0))
            return secure.recv(1) != b""
    except (ssl.SSLError, ConnectionError):
        return False


def send_until(arena_name: str, sent: list[bytes], is_over: threading.Event) -> None:
    """Send nearly a hundred records in a second, one by one, and note each one that is delivered."""
    with Producer(arena_name, linger_ms=0) as producer:
        while not is_over.wait(PAUSE_S):
            value = b"%d" % len(sent)
            producer.send(TOPIC, value=value, partition=0).get(timeout=WATCHDOG_S)
            sent.append(value)


def test_no_send_fails_while_certificates_expire_under_load(
    authority: trustme.CA, files: Files, arena: Arena, open_fake: OpenFake
) -> None:
    first = issue(authority, VALID_S)
    expires_s = time.time() + VALID_S
    files.write(first)
    cluster = open_fake(tls=server_context(authority, VALID_S))
    ledger = Ledger()
    cluster.on_produce = ledger
    assert is_accepted(cluster, authority, first)
    sent: list[bytes] = []
    is_over = threading.Event()

    def reconnect() -> None:
        """Close every connection. Records are delivered over new ones, unless the certificate in use has expired."""
        cluster.brokers[0].cut()
        count = len(sent)
        wait_until(lambda: len(sent) > count + 10 or time.time() > expires_s, "records are delivered")

    with running(arena, cluster, open_sink(f"kafka:{cluster.bootstrap}", **files.options())):
        load = threading.Thread(target=send_until, args=(arena.name, sent, is_over))
        load.start()
        try:
            for _ in range(GENERATIONS):
                reconnect()
                files.write_in_halves(issue(authority, VALID_S), reconnect)
                expires_s = time.time() + VALID_S
                cluster.tls = server_context(authority, VALID_S)
            wait_until(lambda: not is_accepted(cluster, authority, first), "the first certificate has expired")
            files.write(issue(authority))
            cluster.tls = server_context(authority)
            expires_s = float("inf")
            reconnect()
        finally:
            is_over.set()
            load.join(WATCHDOG_S)
    assert ledger.values[TOPIC, 0] == sent
    print(len(sent), "records,", cluster.brokers[0].connection_count, "connections")


def encrypted(issued: trustme.LeafCert, password: str) -> bytes:
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    encryption = serialization.BestAvailableEncryption(password.encode())
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def test_an_encrypted_key_and_its_password_are_replaced_together(
    tmp_path: Path, authority: trustme.CA, files: Files, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    password = tmp_path / "password"
    password.touch(0o600)
    cluster = open_fake(tls=server_context(authority))
    issued = issue(authority)
    files.write(issued)
    files.key.write_bytes(encrypted(issued, "first"))
    password.write_text("first")
    loop = open_loop(cluster.bootstrap, **files.options(ssl_password=f"file:{password}"))
    append(arena, TOPIC, b"a")
    loop.run_until_idle()
    another = trustme.CA(key_type=trustme.KeyType.ECDSA)
    another.cert_pem.write_to_path(files.authority)
    issued = issue(another)
    files.write(issued)
    files.key.write_bytes(encrypted(issued, "second"))
    password.write_text("second")
    cluster.tls = server_context(another)
    cluster.brokers[0].cut()
    append(arena, TOPIC, b"b")
    loop.run_until_idle()
    assert len(cluster.arrived) == 2


def test_files_that_cannot_be_used_are_reported_and_the_previous_ones_stay_in_use(
    authority: trustme.CA, files: Files, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    cluster = open_fake(tls=server_context(authority))
    files.write(issue(authority))
    loop = open_loop(cluster.bootstrap, **files.options())
    append(arena, TOPIC, b"a")
    loop.run_until_idle()
    files.key.write_bytes(issue(authority).private_key_pem.bytes())
    cluster.brokers[0].cut()
    append(arena, TOPIC, b"b")
    loop.run_until_idle()
    assert len(cluster.arrived) == 2
    assert any("previous files" in report for report in loop.reports)


def test_files_that_cannot_be_used_are_refused_at_the_start(
    authority: trustme.CA, files: Files, open_loop: OpenLoop
) -> None:
    files.write(issue(authority))
    files.key.write_bytes(b"")
    with pytest.raises(InvalidArgumentError, match="ssl_keyfile"):
        open_loop(f"{LOOPBACK}:1", **files.options())


def revocation_list(authority: trustme.CA, *revoked: trustme.LeafCert) -> bytes:
    """A list of revoked certificates, signed by the authority."""
    now = datetime.datetime.now(datetime.timezone.utc)
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject)
    builder = builder.last_update(now).next_update(now + datetime.timedelta(days=1))
    for certificate in revoked:
        number = x509.load_pem_x509_certificate(certificate.cert_chain_pems[0].bytes()).serial_number
        entry = x509.RevokedCertificateBuilder().serial_number(number).revocation_date(now).build()
        builder = builder.add_revoked_certificate(entry)
    key: Any = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def test_a_broker_whose_certificate_was_revoked_is_refused(
    tmp_path: Path, authority: trustme.CA, files: Files, arena: Arena, open_fake: OpenFake, open_loop: OpenLoop
) -> None:
    of_broker = issue(authority)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_broker.configure_cert(tls)
    cluster = open_fake(tls=tls)
    revoked = tmp_path / "revoked.pem"
    revoked.write_bytes(revocation_list(authority, issue(authority)))
    files.write(issue(authority))
    loop = open_loop(cluster.bootstrap, **files.options(ssl_crlfile=str(revoked)))
    append(arena, TOPIC, b"a")
    loop.run_until_idle()
    assert loop.reports == []
    revoked.write_bytes(revocation_list(authority, of_broker))
    cluster.brokers[0].cut()
    append(arena, TOPIC, b"b")
    loop.run_until(lambda: any("certificate revoked" in report for report in loop.reports), "it is reported")
    assert loop.queued_count() == 1


def test_a_revocation_list_that_is_missing_is_refused_at_the_start(files: Files, open_loop: OpenLoop) -> None:
    options = {"security_protocol": "SSL", "ssl_cafile": str(files.authority), "ssl_crlfile": "/nonexistent.pem"}
    with pytest.raises(InvalidArgumentError, match="ssl_crlfile"):
        open_loop(f"{LOOPBACK}:1", **options)
