# SPDX-License-Identifier: Apache-2.0
"""TLS, logins and rights of a served log, by other people's clients and by strangers."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
import trustme
from kafka import KafkaConsumer

from shmaccum.exceptions import InvalidArgumentError
from shmaccum.serving import LogServer
from tests.log_support import TOPIC
from tests.serving_support import DEADLINE_S, consume_with_kafka_python, produce, served

LOOPBACK = "127.0.0.1"


class Pem(NamedTuple):
    """PEM files of a server, its authority and a client."""

    authority: str
    server: dict[str, Any]
    client: dict[str, Any]


def write_pem(certificate: trustme.LeafCert, folder: Path, name: str) -> dict[str, Any]:
    """Certificate and key as the options of kafka-python and of the server name them."""
    paths = {"ssl_certfile": str(folder / f"{name}.pem"), "ssl_keyfile": str(folder / f"{name}.key")}
    certificate.cert_chain_pems[0].write_to_path(paths["ssl_certfile"])
    certificate.private_key_pem.write_to_path(paths["ssl_keyfile"])
    os.chmod(paths["ssl_keyfile"], 0o600)
    return paths


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Pem:
    folder = tmp_path_factory.mktemp("pem")
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
    server = write_pem(authority.issue_cert(LOOPBACK, key_type=trustme.KeyType.ECDSA), folder, "server")
    client = write_pem(authority.issue_cert("client", key_type=trustme.KeyType.ECDSA), folder, "client")
    return Pem(str(folder / "authority.pem"), server, client)


def of_kafka_python(pem: Pem, **more: Any) -> dict[str, Any]:
    return {"security_protocol": "SSL", "ssl_cafile": pem.authority, **more}


def of_confluent(pem: Pem) -> dict[str, Any]:
    return {"security.protocol": "ssl", "ssl.ca.location": pem.authority}


@contextlib.contextmanager
def stranger(address: str) -> Iterator[socket.socket]:
    """A client that says what it likes."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), DEADLINE_S) as connection:
        yield connection


def is_turned_away(address: str, context: ssl.SSLContext) -> bool:
    """True when the server ends the connection of a client with this certificate."""
    with stranger(address) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=LOOPBACK) as secure:
                secure.sendall(bytes(20))
                return secure.recv(1) == b""
        except OSError:
            return True


def test_records_go_and_come_over_tls(tmp_path: Path, pem: Pem) -> None:
    with served(tmp_path / "log", **pem.server) as address:
        produce(address, range(1000), **of_kafka_python(pem))
        assert sorted(consume_with_kafka_python(address, 1000, **of_kafka_python(pem))) == list(range(1000))
        producer = confluent_kafka.Producer({"bootstrap.servers": address, **of_confluent(pem)})
        for number in range(1000, 2000):
            producer.produce(TOPIC, b"%d" % number)
        assert producer.flush(DEADLINE_S) == 0
        settings = {"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"}
        with contextlib.closing(confluent_kafka.Consumer({**settings, **of_confluent(pem)})) as consumer:
            consumer.subscribe([TOPIC])
            found: list[int] = []
            while len(found) < 2000:
                found += [int(message.value() or b"") for message in consumer.consume(2000, DEADLINE_S)]
        assert sorted(found) == list(range(2000))


def test_large_records_go_and_come_over_tls(tmp_path: Path, pem: Pem) -> None:
    large = os.urandom(900_000)
    with served(tmp_path / "log", **pem.server) as address:
        producer = confluent_kafka.Producer({"bootstrap.servers": address, **of_confluent(pem)})
        for number in range(20):
            producer.produce(TOPIC, large[number:], partition=0)
        assert producer.flush(DEADLINE_S) == 0
        consumer = KafkaConsumer(TOPIC, bootstrap_servers=address, auto_offset_reset="earliest", **of_kafka_python(pem))
        with contextlib.closing(consumer):
            assert [next(consumer).value == large[number:] for number in range(20)] == [True] * 20


def test_a_client_needs_a_certificate_of_the_authority(tmp_path: Path, pem: Pem) -> None:
    with served(tmp_path / "log", ssl_cafile=pem.authority, **pem.server) as address:
        produce(address, range(3), **of_kafka_python(pem, **pem.client))
        foreign = trustme.CA().issue_cert("client")
        context = ssl.create_default_context(cafile=pem.authority)
        foreign.configure_cert(context)
        for wrong in (context, ssl.create_default_context(cafile=pem.authority)):
            assert is_turned_away(address, wrong)
        assert sorted(consume_with_kafka_python(address, 3, **of_kafka_python(pem, **pem.client))) == [0, 1, 2]


def test_a_client_refuses_a_server_of_another_authority(tmp_path: Path, pem: Pem) -> None:
    with served(tmp_path / "log", **pem.server) as address:
        context = ssl.create_default_context()
        trustme.CA().configure_trust(context)
        with stranger(address) as plain, pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(plain, server_hostname=LOOPBACK)
        produce(address, range(3), **of_kafka_python(pem))


def test_plain_text_on_a_tls_port_ends_its_own_connection(
    tmp_path: Path, pem: Pem, caplog: pytest.LogCaptureFixture
) -> None:
    with served(tmp_path / "log", **pem.server) as address:
        with stranger(address) as plain:
            plain.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                while plain.recv(100):
                    pass
        produce(address, range(3), **of_kafka_python(pem))
    assert "TLS failed" in caplog.text


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02", b"\x16\x03\x01\x40\x00" + bytes(100)])
def test_a_client_that_stops_in_the_handshake_stops_nobody(tmp_path: Path, pem: Pem, said: bytes) -> None:
    with served(tmp_path / "log", **pem.server) as address, stranger(address) as silent:
        silent.sendall(said)
        produce(address, range(3), **of_kafka_python(pem))


def test_a_new_certificate_is_taken_over_while_the_server_runs(tmp_path: Path, pem: Pem) -> None:
    own: dict[str, Any] = {name: str(tmp_path / Path(path).name) for name, path in pem.server.items()}
    for name, path in own.items():
        Path(path).write_bytes(Path(pem.server[name]).read_bytes())
        os.chmod(path, 0o600)
    other = trustme.CA()
    with served(tmp_path / "log", **own) as address:
        produce(address, range(3), **of_kafka_python(pem))
        write_pem(other.issue_cert(LOOPBACK), tmp_path, "server")
        context = ssl.create_default_context()
        other.configure_trust(context)
        while True:
            with stranger(address) as plain, contextlib.suppress(ssl.SSLCertVerificationError):
                context.wrap_socket(plain, server_hostname=LOOPBACK).close()
                break


def test_a_server_with_tls_may_be_reached_from_other_hosts(tmp_path: Path, pem: Pem) -> None:
    with LogServer(tmp_path / "log", "0.0.0.0:0", is_writable=True, **pem.server) as server:
        assert server.address.port > 0


def test_a_key_that_others_can_read_is_refused(tmp_path: Path, pem: Pem) -> None:
    key = tmp_path / "open.key"
    key.write_bytes(Path(pem.server["ssl_keyfile"]).read_bytes())
    key.chmod(0o644)
    with pytest.raises(InvalidArgumentError, match="chmod 0600"):
        LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True, **{**pem.server, "ssl_keyfile": str(key)})


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"ssl_keyfile": "/nowhere/key.pem"}, "the private key /nowhere/key.pem cannot be opened"),
        ({"ssl_certfile": "/nowhere/certificate.pem"}, "the certificate /nowhere/certificate.pem"),
        ({"ssl_cafile": "/nowhere/authority.pem"}, "the authority /nowhere/authority.pem"),
        ({"ssl_certfile": None}, "ssl_keyfile has no effect without ssl_certfile"),
    ],
)
def test_files_that_cannot_be_used_are_named(tmp_path: Path, pem: Pem, changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidArgumentError, match=sentence):
        LogServer(tmp_path / "log", "127.0.0.1:0", is_writable=True, **{**pem.server, **changed})
