# SPDX-License-Identifier: Apache-2.0
"""The messages of a sender to a supervisor that uses sd_notify."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.wake_fifo import wait_readable
from shmaccum.sender.systemd import Supervisor
from tests.support.processes import WATCHDOG_S


class FakeSystemd:
    """A notification socket and its messages."""

    def __init__(self, address: str, variable: str) -> None:
        self.variable = variable
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(WATCHDOG_S)

    def receive(self) -> list[str]:
        return self._socket.recv(4096).decode().splitlines()

    def has_more(self) -> bool:
        return bool(wait_readable([self._socket], 0))

    def receive_until(self, line: str) -> list[str]:
        while line not in (lines := self.receive()):
            pass
        return lines

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, socket_folder: Path) -> Iterator[FakeSystemd]:
    path = str(socket_folder / "notify")
    fake = FakeSystemd(path, path) if request.param == "path" else FakeSystemd("\0" + path, "@" + path)
    yield fake
    fake.close()


def test_a_sender_reports_that_it_is_ready_lives_and_stops(arena: Arena, systemd: FakeSystemd) -> None:
    environment = {**os.environ, "NOTIFY_SOCKET": systemd.variable, "WATCHDOG_USEC": "200000"}
    command = [sys.executable, "-m", "shmaccum", "sender", arena.name, "--sink", "null:", "-q"]
    with subprocess.Popen(command, env=environment) as process:
        try:
            assert systemd.receive_until("READY=1") == ["READY=1", "STATUS=delivers to null:"]
            assert systemd.receive() == ["WATCHDOG=1"]
            assert systemd.receive() == ["WATCHDOG=1"]
            process.send_signal(signal.SIGTERM)
            assert systemd.receive_until("STOPPING=1")[1] == "STATUS=delivers what is left, then leaves"
            assert process.wait(WATCHDOG_S) == 0
        finally:
            process.kill()


def test_a_standby_is_ready_when_it_stands_by(arena: Arena, systemd: FakeSystemd) -> None:
    environment = {**os.environ, "NOTIFY_SOCKET": systemd.variable}
    command = [sys.executable, "-m", "shmaccum", "sender", arena.name, "--sink", "null:", "-q"]
    with subprocess.Popen(command, env=environment) as first:
        assert systemd.receive() == ["READY=1", "STATUS=delivers to null:"]
        with subprocess.Popen([*command, "--standby"], env=environment) as standby:
            lines = systemd.receive()
            assert lines[0] == "READY=1"
            assert lines[1].startswith(f"STATUS=stands by: the arena {arena.name} has a living sender")
            first.kill()
            assert systemd.receive() == ["READY=1", "STATUS=delivers to null:"]
            standby.send_signal(signal.SIGTERM)
            assert standby.wait(WATCHDOG_S) == 0


def test_the_watchdog_is_notified_at_half_of_its_time_and_not_for_another_process(systemd: FakeSystemd) -> None:
    times_s = iter((100.0, 114.9, 115.0, 129.9))
    environment = {"NOTIFY_SOCKET": systemd.variable, "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}
    supervisor = Supervisor(environment, clock=lambda: next(times_s))
    for _ in range(4):
        supervisor.show_life()
    assert [systemd.receive(), systemd.receive()] == [["WATCHDOG=1"]] * 2
    assert not systemd.has_more()
    Supervisor({**environment, "WATCHDOG_PID": "1"}).show_life()
    assert not systemd.has_more()


@pytest.mark.parametrize("address", ["", "relative", "vsock:2:1", "/no/such/socket", "@nobody-listens-here"])
def test_a_supervisor_that_does_not_listen_changes_nothing(address: str) -> None:
    supervisor = Supervisor({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "no number"})
    supervisor.ready("delivers")
    supervisor.show_life()
    supervisor.stopping("leaves")


def test_a_status_is_one_line(systemd: FakeSystemd) -> None:
    Supervisor({"NOTIFY_SOCKET": systemd.variable}).status("two\nlines\tREADY=1")
    assert systemd.receive() == ["STATUS=two lines READY=1"]
