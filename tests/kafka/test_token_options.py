# SPDX-License-Identifier: Apache-2.0
"""Senders that get the source of their tokens as text: supervised ones, and those of the command line."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.exceptions import InvalidArgumentError
from tests.kafka.conftest import OpenFake
from tests.kafka.fake_broker import FakeCluster
from tests.support.arenas import end_senders, sender_pid
from tests.support.oidc_server import CLIENT, SECRET, OidcServer, claims_of, oidc_server
from tests.support.processes import WATCHDOG_S
from tests.support.segment_log import TOPIC, make_batches, offsets, open_log

VARIABLE = "SECRET_OF_TESTS"


@pytest.fixture
def oidc() -> Iterator[OidcServer]:
    with oidc_server() as server:
        yield server


@pytest.fixture
def logins(open_fake: OpenFake) -> Logins:
    return Logins(open_fake(topics={TOPIC: 1}))


@pytest.fixture(params=["file", "env"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The place of the secret, which is on no command line."""
    if request.param == "env":
        monkeypatch.setenv(VARIABLE, SECRET)
        return f"env:{VARIABLE}"
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_text(f"{SECRET}\n")
    return f"file:{path}"


class Logins:
    """The clients whose tokens a scripted cluster has accepted."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.clients: set[str] = set()
        self.url = f"kafka:{cluster.bootstrap}"
        cluster.on_login = self._accept

    def _accept(self, sent: bytes) -> int:
        token = sent.decode().strip("\x01").split("\x01")[1].removeprefix("auth=Bearer ")
        self.clients.add(claims_of(token)["sub"])
        return 0


def flags(oidc: OidcServer, place: str) -> list[str]:
    """The options for a command line."""
    options = oidc.options(sasl_oauthbearer_client_secret=place, sasl_oauthbearer_scope="write")
    return [f"-X{name}={value}" for name, value in options.items()]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "shmaccum", *arguments]


def run(*arguments: str) -> str:
    """Run a command to its end, and return its output."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=WATCHDOG_S)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def command_line_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def send(arena_name: str) -> None:
    with Producer(arena_name, linger_ms=0) as producer:
        producer.send(TOPIC, value=b"a", partition=0).get(timeout=WATCHDOG_S)


def test_a_supervised_sender_logs_in(oidc: OidcServer, logins: Logins, place: str, arena_name: str) -> None:
    options = oidc.options(sasl_oauthbearer_client_secret=place)
    with Arena.create(arena_name) as arena:
        try:
            with Producer(arena, sink=logins.url, linger_ms=0, **options) as producer:
                producer.send(TOPIC, value=b"a", partition=0).get(timeout=WATCHDOG_S)
                pid = sender_pid(arena)
                assert pid is not None
                assert SECRET not in command_line_of(pid)
        finally:
            end_senders(arena)
    assert logins.clients == {CLIENT}


def test_a_secret_in_the_options_of_a_supervised_sender_is_refused(oidc: OidcServer, arena: Arena) -> None:
    with pytest.raises(InvalidArgumentError, match="every user of this host can read") as refused:
        Producer(arena, sink="kafka:127.0.0.1:1", **oidc.options())
    assert SECRET not in str(refused.value)


def test_the_sender_of_the_command_line_logs_in(oidc: OidcServer, logins: Logins, place: str, arena: Arena) -> None:
    with subprocess.Popen(
        command("sender", arena.name, "--sink", logins.url, "-v", *flags(oidc, place)),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        try:
            send(arena.name)
            assert SECRET not in command_line_of(process.pid)
        finally:
            process.terminate()
            report = process.stderr.read()
    assert process.returncode == 0, report
    assert logins.clients == {CLIENT}
    assert SECRET not in report
    assert {form["scope"] for form in oidc.forms} == {"write"}


def test_a_detached_sender_logs_in(oidc: OidcServer, logins: Logins, place: str, arena: Arena) -> None:
    with contextlib.ExitStack() as stack:
        stack.callback(end_senders, arena)
        assert "was started" in run("sender", arena.name, "--sink", logins.url, "--detach", *flags(oidc, place))
        send(arena.name)
    assert logins.clients == {CLIENT}


def test_a_shipper_logs_in(oidc: OidcServer, logins: Logins, place: str, tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as directory:
        offsets(directory.partition(TOPIC, 0).append(make_batches(1)))
    report = run("ship", str(tmp_path / "log"), "--to", logins.url, "--once", *flags(oidc, place))
    assert logins.clients == {CLIENT}
    assert SECRET not in report


def test_a_secret_on_a_command_line_is_refused(oidc: OidcServer, arena: Arena) -> None:
    refused = subprocess.run(
        command("sender", arena.name, "--sink", "kafka:127.0.0.1:1", *flags(oidc, SECRET)),
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
    )
    assert refused.returncode == 2
    assert "env:NAME" in refused.stderr
    assert SECRET not in refused.stdout + refused.stderr
