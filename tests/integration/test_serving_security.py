# SPDX-License-Identifier: Apache-2.0
"""TLS, logins and rights of a served log, tested with clients of other libraries and without rights."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import ssl
import struct
import threading
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest
import trustme
from click.testing import CliRunner
from kafka import KafkaConsumer

from shmaccum.arena import Arena
from shmaccum.cli.groups import command as groups_command
from shmaccum.compat.kafka_python import KafkaProducer
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.log.server import LogServer
from shmaccum.log.server.users import User, Verifier, changed_users, parse_grant
from tests.support.arenas import end_senders, sender_pid
from tests.support.log_server import (
    DEADLINE_S,
    answer_of,
    api,
    confluent_consumer,
    consume_with_confluent,
    consume_with_kafka_python,
    fetch,
    produce,
    served,
    stranger,
)
from tests.support.processes import wait_until
from tests.support.segment_log import TOPIC

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


def is_turned_away(address: str, context: ssl.SSLContext) -> bool:
    """True if the server closes the connection of a client with this certificate."""
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
def test_a_client_that_stops_in_the_handshake_stops_no_other(tmp_path: Path, pem: Pem, said: bytes) -> None:
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


@pytest.mark.parametrize("harm", ["removed", "a folder", "half", "another key", "open to others"])
def test_a_server_continues_with_its_former_certificate(
    tmp_path: Path, pem: Pem, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    own: dict[str, Any] = {name: str(tmp_path / Path(path).name) for name, path in pem.server.items()}
    for name, path in own.items():
        shutil.copy(pem.server[name], path)
        os.chmod(path, 0o600)
    caplog.set_level(logging.INFO)
    key = Path(own["ssl_keyfile"])
    content = key.read_bytes()
    with served(tmp_path / "log", **own) as address:
        produce(address, range(3), **of_kafka_python(pem))
        if harm == "half":
            key.write_bytes(content[:100])
        elif harm == "another key":
            key.write_bytes(trustme.CA().issue_cert(LOOPBACK).private_key_pem.bytes())
        elif harm == "open to others":
            key.chmod(0o644)
        else:
            key.unlink()
            if harm == "a folder":
                key.mkdir()
        wait_until(lambda: "the previous contents stay in effect" in caplog.text, "the server has checked its files")
        assert str(key) in caplog.text
        produce(address, range(3), **of_kafka_python(pem))
        if harm == "a folder":
            key.rmdir()
        key.touch(0o600)
        key.chmod(0o600)
        key.write_bytes(content)
        wait_until(lambda: "reloaded the certificate" in caplog.text, "the server uses the new files")
        produce(address, range(3), **of_kafka_python(pem))


def test_a_server_with_tls_may_be_reached_from_other_hosts(tmp_path: Path, pem: Pem) -> None:
    options = {**pem.server, "advertised_listener": "localhost"}
    with LogServer(tmp_path / "log", "0.0.0.0:0", is_writable=True, **options) as server:
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


# --- logins


PASSWORD = "correct horse, battery = staple"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def write_users(folder: Path, **rights: list[str]) -> dict[str, Any]:
    """A users file, with the rights of each user, as an option of the server."""
    path = folder / "users"
    verifiers = {each: Verifier.of(PASSWORD, each) for each in ("SCRAM-SHA-256", "SCRAM-SHA-512")}
    with changed_users(str(path)) as users:
        for name, texts in rights.items():
            users[name] = User(name, verifiers, tuple(parse_grant(*text.split()) for text in texts))
    return {"users_file": str(path)}


def login_of_kafka_python(name: str, mechanism: str = "SCRAM-SHA-256", password: str = PASSWORD) -> dict[str, Any]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": name,
        "sasl_plain_password": password,
    }


def login_of_confluent(name: str, mechanism: str = "SCRAM-SHA-256", password: str = PASSWORD) -> dict[str, Any]:
    return {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": mechanism,
        "sasl.username": name,
        "sasl.password": password,
    }


ALL = ["read topic:*", "write topic:*", "admin topic:*", "read group:*", "admin group:*"]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_clients_log_in_by_each_mechanism(tmp_path: Path, mechanism: str) -> None:
    with served(tmp_path / "log", **write_users(tmp_path, alice=ALL)) as address:
        login = login_of_kafka_python("alice", mechanism)
        produce(address, range(100), **login)
        assert sorted(consume_with_kafka_python(address, 100, **login)) == list(range(100))
        with contextlib.closing(confluent_consumer(address, "g", **login_of_confluent("alice", mechanism))) as consumer:
            assert sorted(consume_with_confluent(consumer, 100)) == list(range(100))


def test_a_login_goes_through_tls(tmp_path: Path, pem: Pem) -> None:
    with served(tmp_path / "log", **pem.server, **write_users(tmp_path, alice=ALL)) as address:
        more = {"security_protocol": "SASL_SSL", "ssl_cafile": pem.authority}
        produce(address, range(3), **{**login_of_kafka_python("alice", "PLAIN"), **more})


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("login", [("alice", "wrong"), ("nobody", PASSWORD)])
def test_a_wrong_login_is_reported_by_its_error(tmp_path: Path, mechanism: str, login: tuple[str, str]) -> None:
    errors: list[Any] = []
    name, password = login
    with served(tmp_path / "log", **write_users(tmp_path, alice=ALL)) as address:
        settings = {"bootstrap.servers": address, "error_cb": errors.append, "log_level": 0}
        producer = confluent_kafka.Producer({**settings, **login_of_confluent(name, mechanism, password)})
        while not errors:
            producer.poll(DEADLINE_S)
    assert errors[0].code() == confluent_kafka.KafkaError._AUTHENTICATION
    assert "wrong user name or password" in errors[0].str()


HANDSHAKE = api(17, 1, b"\0\5PLAIN")
TOKEN = b"\0alice\0" + PASSWORD.encode()


@pytest.mark.parametrize(
    "requests",
    [
        [api(3, 1, struct.pack(">i", -1))],
        [api(17, 0, b"\0\5PLAIN"), api(36, 0, struct.pack(">i", len(TOKEN)) + TOKEN)],
        [api(17, 1, b"\0\6GSSAPI")],
        [HANDSHAKE, HANDSHAKE],
        [api(36, 0, struct.pack(">i", 3) + b"\0a\0")],
        [HANDSHAKE, api(36, 0, struct.pack(">i", 3) + b"\0a\0")],
        [struct.pack(">ihhih", 1 << 20, 36, 0, 7, -1) + bytes(100)],
    ],
    ids=["metadata", "handshake v0", "unknown mechanism", "twice", "no handshake", "wrong", "a large frame"],
)
def test_a_client_without_a_login_gets_no_further(tmp_path: Path, requests: list[bytes]) -> None:
    with served(tmp_path / "log", **write_users(tmp_path, alice=ALL)) as address:
        with stranger(address) as client, contextlib.suppress(OSError):
            for request in requests:
                client.sendall(request)
                answer_of(client)
            assert answer_of(client) == b""
        produce(address, range(3), **login_of_kafka_python("alice"))


def test_a_client_that_never_logs_in_is_closed(tmp_path: Path) -> None:
    users = write_users(tmp_path, alice=ALL)
    with served(tmp_path / "log", login_timeout_ms=100, **users) as address, stranger(address) as silent:
        assert silent.recv(1) == b""


def test_an_idle_client_is_closed_and_one_that_waits_is_not(tmp_path: Path) -> None:
    with served(tmp_path / "log", connections_max_idle_ms=100) as address:
        produce(address, range(3))
        with contextlib.closing(confluent_consumer(address, "g", **{"fetch.wait.max.ms": 3000})) as consumer:
            assert sorted(consume_with_confluent(consumer, 3)) == [0, 1, 2]
            with stranger(address) as idle, stranger(address) as slow:
                slow.sendall(b"\0\0\1")
                assert idle.recv(1) == b""
                assert slow.recv(1) == b""


def test_a_removed_user_is_disconnected(tmp_path: Path) -> None:
    with served(tmp_path / "log", **write_users(tmp_path, alice=ALL, bob=ALL)) as address, stranger(address) as client:
        client.sendall(HANDSHAKE)
        answer_of(client)
        client.sendall(api(36, 0, struct.pack(">i", len(TOKEN)) + TOKEN))
        assert answer_of(client)[4:6] == b"\0\0"
        with changed_users(str(tmp_path / "users")) as users:
            del users["alice"]
        assert client.recv(1) == b""
        produce(address, range(3), **login_of_kafka_python("bob"))


def log_in(client: socket.socket) -> None:
    """Log alice in by PLAIN."""
    for request in (HANDSHAKE, api(36, 0, struct.pack(">i", len(TOKEN)) + TOKEN)):
        client.sendall(request)
        assert answer_of(client)[4:6] == b"\0\0"


def test_a_hash_that_is_computed_stops_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, may_end, matches = threading.Event(), threading.Event(), Verifier.matches

    def slow(verifier: Verifier, password: str, mechanism: str) -> bool:
        has_begun.set()
        assert may_end.wait(DEADLINE_S)
        return matches(verifier, password, mechanism)

    monkeypatch.setattr(Verifier, "matches", slow)
    with served(tmp_path / "log", **write_users(tmp_path, alice=ALL)) as address, stranger(address) as client:
        login = threading.Thread(target=log_in, args=(client,))
        login.start()
        assert has_begun.wait(DEADLINE_S)
        try:
            with stranger(address) as gone, stranger(address) as other:
                gone.sendall(HANDSHAKE + api(36, 0, struct.pack(">i", len(TOKEN)) + TOKEN))
                other.sendall(api(18, 0))
                assert answer_of(other)
        finally:
            may_end.set()
        login.join()


# --- rights


def test_a_fetch_that_waits_is_answered_when_its_right_is_taken_away(tmp_path: Path) -> None:
    with served(tmp_path / "log", **write_users(tmp_path, alice=ALL, bob=ALL)) as address:
        produce(address, range(3), **login_of_kafka_python("bob"))
        with stranger(address) as client:
            log_in(client)
            client.sendall(fetch(0, max_wait_ms=3_600_000, min_bytes=1 << 30))
            with changed_users(str(tmp_path / "users")) as users:
                users["alice"] = User("alice", users["alice"].verifiers)
            (error,) = struct.unpack_from(">h", answer_of(client), 4 + 4 + 4 + 2 + len(TOPIC) + 4 + 4)
            assert error == Error.TOPIC_AUTHORIZATION_FAILED


def test_each_principal_gets_what_its_rights_say(tmp_path: Path) -> None:
    users = write_users(
        tmp_path,
        admin=ALL,
        writer=["write topic:fli*"],
        reader=["read topic:fli*", "read group:readers"],
        other=["read topic:other"],
    )
    assert TOPIC.startswith("fli")
    with served(tmp_path / "log", **users) as address:
        produce(address, range(3), topic="other", **login_of_kafka_python("admin"))
        produce(address, range(3), **login_of_kafka_python("admin"))
        produce(address, range(3, 6), **login_of_kafka_python("writer"))
        assert code_of_produce(address, "reader") == Error.TOPIC_AUTHORIZATION_FAILED
        reader = login_of_confluent("reader")
        with contextlib.closing(confluent_consumer(address, "readers", **reader)) as consumer:
            assert sorted(consume_with_confluent(consumer, 6)) == list(range(6))
            assert set(consumer.list_topics(timeout=DEADLINE_S).topics) == {TOPIC}
            named = consumer.list_topics("other", timeout=DEADLINE_S).topics["other"]
            assert named.error.code() == Error.TOPIC_AUTHORIZATION_FAILED
        assert code_of_consume(address, "reader", "foreigners") == Error.GROUP_AUTHORIZATION_FAILED
        assert code_of_fetch(address, "writer") == Error.TOPIC_AUTHORIZATION_FAILED
        assert topics_of_a_pattern(address, "reader") == {TOPIC}


def topics_of_a_pattern(address: str, name: str) -> set[str]:
    """The topics that a KIP-848 member gets for a pattern that matches all of them."""
    settings = {"bootstrap.servers": address, "group.id": "readers", "group.protocol": "consumer"}
    with contextlib.closing(confluent_kafka.Consumer({**settings, **login_of_confluent(name)})) as consumer:
        consumer.subscribe(["^.*"])
        while not consumer.assignment():
            consumer.poll(0.1)
        return {place.topic for place in consumer.assignment()}


Error = confluent_kafka.KafkaError


def code_of_produce(address: str, name: str) -> int:
    errors: list[Any] = []
    settings = {"bootstrap.servers": address, "enable.idempotence": False, **login_of_confluent(name)}
    producer = confluent_kafka.Producer(settings)
    producer.produce(TOPIC, b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(DEADLINE_S)
    return int(errors[0].code())


def first_error(consumer: Any, *, but: int = 0) -> int:
    while True:
        message = consumer.poll(DEADLINE_S)
        if message is not None and message.error() is not None and message.error().code() != but:
            return int(message.error().code())


def code_of_consume(address: str, name: str, group: str) -> int:
    with contextlib.closing(confluent_consumer(address, group, **login_of_confluent(name))) as consumer:
        return first_error(consumer)


def code_of_fetch(address: str, name: str) -> int:
    settings = {"bootstrap.servers": address, "group.id": "any", **login_of_confluent(name)}
    with contextlib.closing(confluent_kafka.Consumer(settings)) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
        return first_error(consumer, but=Error.GROUP_AUTHORIZATION_FAILED)  # librdkafka also requests the group


# --- commands


def test_groups_are_looked_at_and_changed_through_tls_and_a_login(tmp_path: Path, pem: Pem) -> None:
    login = of_kafka_python(pem, **{**login_of_kafka_python("alice"), "security_protocol": "SASL_SSL"})
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SASL_SSL\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={pem.authority}\nsasl.mechanism=SCRAM-SHA-256\n"
        'sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" '
        f'password="{PASSWORD}";\n'
    )
    properties.chmod(0o600)

    def groups(name: str, *arguments: str, code: int = 0) -> str:
        found = CliRunner().invoke(groups_command, [name, str(tmp_path / "log"), *arguments])
        assert found.exit_code == code, found.output
        return found.output

    with served(tmp_path / "log", **pem.server, **write_users(tmp_path, alice=ALL)) as address:
        produce(address, range(3), **login)
        assert len(consume_with_kafka_python(address, 3, group_id="readers", **login)) == 3
        assert "--command-config" in groups("describe", "readers", code=2)
        config = ("--command-config", str(properties))
        assert groups("describe", "readers", *config).startswith("readers: Empty, 0 members, lag 0\n")
        assert "readers" in groups("list", *config)
        groups("reset", "readers", "--to", "earliest", *config)
        assert "lag 3" in groups("describe", "readers", *config)
        properties.write_text(properties.read_text().replace(PASSWORD, "wrong"))
        assert "wrong user name or password" in groups("delete", "readers", *config, code=2)
        properties.write_text(properties.read_text().replace('"wrong"', f'"{PASSWORD}"'))
        assert "readers was deleted" in groups("delete", "readers", *config)


def test_a_password_in_the_program_reaches_each_sender_and_no_environment(tmp_path: Path, arena_name: str) -> None:
    """The sender of a drop-in producer logs in, and so does its successor."""
    ours = {"shmaccum_arena": arena_name, "shmaccum_buffer_memory": "1MiB"}
    users = write_users(tmp_path, ada=ALL)
    with served(tmp_path / "log", **users) as address, Arena.create(arena_name, buffer_memory="1MiB") as arena:
        producer = KafkaProducer(bootstrap_servers=address, **login_of_kafka_python("ada"), **ours)
        former = None
        for _ in range(2):
            assert producer.send(TOPIC, b"1", partition=0).get(DEADLINE_S).partition == 0
            pid = sender_pid(arena)
            assert pid not in (None, former)
            for told in (f"/proc/{pid}/environ", f"/proc/{pid}/cmdline", "/proc/self/environ"):
                assert PASSWORD.encode() not in Path(told).read_bytes()
            assert PASSWORD not in os.environ.values()
            os.kill(pid or 0, signal.SIGKILL)
            former = pid
        producer.close(DEADLINE_S)
        end_senders(arena)
    Arena.remove(arena_name, missing_ok=True)
