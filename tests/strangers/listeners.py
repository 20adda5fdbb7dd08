# SPDX-License-Identifier: Apache-2.0
"""Every listener of the product, each started as its users start it.

===================================  =====================================================================
``sender --metrics``                 HTTP for scrapes, probes and browsers, in the process of the sender
``sender --listen``                  the log for Kafka clients, in the process of the sender
``serve``, ``serve --writable``      the same in a process of its own, also with TLS and with logins
``serve --metrics``                  HTTP in the process of such a server
``metrics --listen``                 HTTP in a process that only observes
the presence socket of a sender      standbys and supervisors wait at it; nothing is accepted
the two wake FIFOs of an arena       a process with access can fill them and empty them
===================================  =====================================================================
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme

import shmaccum
from shmaccum.log.server.users import User, Verifier, changed_users
from tests.strangers.crowd import HTTP, KAFKA, LOGIN, TLS, Address, Opening
from tests.support.log_server import answer_of, api
from tests.support.processes import wait_until

CLIENT_HOST = "127.0.0.9"
"""The address of the client that is no stranger."""
TIMEOUT_S = 60.0
MATCHED, SCARCE = 8192, 1024
"""Two limits of open files: one that suffices for all strangers, and the usual one."""
PORT = re.compile(r"(?:metrics on port |serving \S+ at 127\.0\.0\.1:)([0-9]+)")
SEGMENT_SIZE = 1 << 20
USER, PASSWORD = "user", "the password of the user"


@dataclass
class Running:
    """A running listener.

    Attributes:
        process: the process that listens.
        address: where strangers connect.
        ask: sends a request over a new connection.
        connect: yields a function that sends a request over an open connection.
        producer: writes to the log of the sender, whose segments must roll. If None, there is no sender.
        log: the directory of that log.
    """

    process: subprocess.Popen[bytes]
    address: Address
    connect: Callable[[], tuple[Callable[[], object], Callable[[], object]]]
    producer: shmaccum.Producer | None = None
    log: Path | None = None


@dataclass(frozen=True)
class Listener:
    """One row of the table.

    Attributes:
        name: the name by which its users call it.
        openings: the kinds of strangers.
        start: starts it in a folder, for an arena of this name.
        descriptors: the limit of open files of its process.
    """

    name: str
    openings: Mapping[str, Opening]
    start: Callable[[Path, str, int], contextlib.AbstractContextManager[Running]]
    descriptors: int = MATCHED


# --- clients


def _connected(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), TIMEOUT_S, source_address=(CLIENT_HOST, 0))


def kafka_client(port: int, wrap: Callable[[socket.socket], socket.socket] = lambda plain: plain) -> Any:
    """Yield a Kafka client that stays connected."""
    connection = wrap(_connected(port))

    def ask() -> None:
        connection.sendall(api(18, 0))
        if not answer_of(connection):
            raise ConnectionError("the server closed the connection of a client")

    return ask, connection.close


def http_client(port: int) -> Any:
    """Yield an HTTP client, which connects for each request."""

    def ask() -> None:
        with _connected(port) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            with connection.makefile("rb") as answer:
                head = answer.readline()
                body = answer.read()
        assert b" 200 " in head, (head, body)

    return ask, lambda: None


# --- processes


@contextlib.contextmanager
def started(command: list[str], folder: Path, descriptors: int) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run a process with a limit of open files. Return it and the file of its output."""
    said = folder / f"{'-'.join(command[:1])}-{time.monotonic_ns()}.err"
    with open(said, "wb") as errors:
        shell = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", sys.executable, "-m", "shmaccum", *command]
        process = subprocess.Popen(shell, stderr=errors)
    try:
        yield process, said
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(TIMEOUT_S)
        process.kill()
        process.wait()


def _port_in(said: Path) -> int:
    wait_until(lambda: PORT.search(said.read_text()) is not None, f"it listens: {said.read_text()}", TIMEOUT_S)
    return int(PORT.findall(said.read_text())[-1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def _arena(name: str) -> Iterator[None]:
    shmaccum.Arena.create(name, buffer_memory="8MiB").close()
    try:
        yield
    finally:
        shmaccum.Arena.remove(name)


@contextlib.contextmanager
def sender(folder: Path, name: str, descriptors: int, *more: str) -> Iterator[tuple[Any, Path, shmaccum.Producer]]:
    """Run a sender with a log. Return its process, its output file and a producer."""
    options = ["-X", f"segment_bytes={SEGMENT_SIZE}", "-X", "segment_ms=1h"]
    command = ["sender", name, "--sink", f"log:{folder / 'log'}", *options, *more]
    with _arena(name), started(command, folder, descriptors) as (process, said):
        producer = shmaccum.Producer(name, linger_ms=1)
        try:
            yield process, said, producer
        finally:
            producer.close(timeout=TIMEOUT_S)


COUNTS = ["-X", f"connection_count_max={MATCHED}", "-X", f"connection_count_per_address_max={MATCHED}"]


@contextlib.contextmanager
def sender_metrics(folder: Path, name: str, descriptors: int) -> Iterator[Running]:
    with sender(folder, name, descriptors, "--metrics", "127.0.0.1:0") as (process, said, producer):
        port = _port_in(said)
        yield Running(process, ("127.0.0.1", port), lambda: http_client(port), producer, folder / "log")


@contextlib.contextmanager
def sender_listen(folder: Path, name: str, descriptors: int) -> Iterator[Running]:
    counts = COUNTS if descriptors == MATCHED else []
    with sender(folder, name, descriptors, "--listen", "127.0.0.1:0", *counts) as (process, said, producer):
        port = _port_in(said)
        yield Running(process, ("127.0.0.1", port), lambda: kafka_client(port), producer, folder / "log")


@contextlib.contextmanager
def serve_read_only(folder: Path, name: str, descriptors: int) -> Iterator[Running]:
    with sender(folder, name, descriptors) as (_, _, producer):
        producer.send("t", b"first").get(timeout=TIMEOUT_S)
        with _served(folder, descriptors) as (process, port):
            yield Running(process, ("127.0.0.1", port), lambda: kafka_client(port), producer, folder / "log")


@contextlib.contextmanager
def _served(folder: Path, descriptors: int, *more: str) -> Iterator[tuple[Any, int]]:
    command = ["serve", str(folder / "log"), "--listen", "127.0.0.1:0", *COUNTS, *more]
    with started(command, folder, descriptors) as (process, said):
        yield process, _port_in(said)


@contextlib.contextmanager
def serve_writable(folder: Path, _name: str, descriptors: int) -> Iterator[Running]:
    with _served(folder, descriptors, "--writable") as (process, port):
        yield Running(process, ("127.0.0.1", port), lambda: kafka_client(port))


@contextlib.contextmanager
def serve_with_tls(folder: Path, _name: str, descriptors: int) -> Iterator[Running]:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    files = folder / "server.pem", folder / "server.key"
    certificate.cert_chain_pems[0].write_to_path(str(files[0]))
    certificate.private_key_pem.write_to_path(str(files[1]))
    files[1].chmod(0o600)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    more = ["-X", f"ssl_certfile={files[0]}", "-X", f"ssl_keyfile={files[1]}"]
    with _served(folder, descriptors, "--writable", *more) as (process, port):

        def wrap(plain: socket.socket) -> socket.socket:
            return context.wrap_socket(plain, server_hostname="127.0.0.1")

        yield Running(process, ("127.0.0.1", port), lambda: kafka_client(port, wrap))


@contextlib.contextmanager
def serve_with_logins(folder: Path, _name: str, descriptors: int) -> Iterator[Running]:
    users_file = folder / "users"
    with changed_users(str(users_file)) as users:
        users[USER] = User(USER, {"SCRAM-SHA-256": Verifier.of(PASSWORD, "SCRAM-SHA-256")}, ())
    with _served(folder, descriptors, "--writable", "-X", f"users_file={users_file}") as (process, port):
        yield Running(process, ("127.0.0.1", port), lambda: kafka_client(port))


@contextlib.contextmanager
def serve_metrics(folder: Path, _name: str, descriptors: int) -> Iterator[Running]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with _served(folder, descriptors, "--writable", "--metrics", f"127.0.0.1:{port}") as (process, _):
        wait_until(lambda: _listens(port), "it listens", TIMEOUT_S)
        yield Running(process, ("127.0.0.1", port), lambda: http_client(port))


@contextlib.contextmanager
def observing(folder: Path, name: str, descriptors: int) -> Iterator[Running]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = ["metrics", name, "--listen", f"127.0.0.1:{port}"]
    with _arena(name), started(command, folder, descriptors) as (process, said):
        wait_until(lambda: _listens(port), f"it listens: {said.read_text()}", TIMEOUT_S)
        yield Running(process, ("127.0.0.1", port), lambda: http_client(port))


LISTENERS = [
    Listener("sender --metrics", HTTP, sender_metrics),
    Listener("sender --metrics, few files", HTTP, sender_metrics, SCARCE),
    Listener("sender --listen", KAFKA, sender_listen),
    Listener("sender --listen, few files", KAFKA, sender_listen, SCARCE),
    Listener("serve beside a sender", KAFKA, serve_read_only),
    Listener("serve --writable", KAFKA, serve_writable),
    Listener("serve --writable, few files", KAFKA, serve_writable, SCARCE),
    Listener("serve with TLS", TLS, serve_with_tls),
    Listener("serve with logins", LOGIN, serve_with_logins),
    Listener("serve --metrics", HTTP, serve_metrics),
    Listener("metrics --listen", HTTP, observing),
]
