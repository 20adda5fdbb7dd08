# SPDX-License-Identifier: Apache-2.0
"""The ways from the workers of a host to Kafka in the question ``one_host``, with the process that serves the workers.

This process is called a *helper*. It is shmaccum's sender, a sidecar, or an agent. It can be killed and started again.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from socket import SOCK_DGRAM, SOCK_STREAM, SocketKind
from typing import Any

from bench.harness.native import program_with_library
from bench.harness.packages import load
from bench.harness.question import UnavailableError
from bench.parts.agents import rsyslog, syslog_ng
from bench.parts.arenas import temporary_arena
from bench.parts.host_clients import (
    CONNECT_AGAIN_S,
    ArenaClient,
    ProducerClient,
    SidecarClient,
    SyslogClient,
    connect,
)

LINGER_MS = 5
STOP_TIMEOUT_S = 60.0
ACKS = {"acks": "all", "enable.idempotence": "true", "linger.ms": str(LINGER_MS), "log_level": "0"}
"""The options of librdkafka in each producer and in the sidecars. They are those of shmaccum, and the defaults of
Kafka.
"""


class Helper:
    """A process that serves workers.

    Args:
        command: starts it.
        serves: returns True if the process serves.
    """

    def __init__(self, command: list[str], serves: Callable[[], bool]) -> None:
        self._command = command
        self._serves = serves
        self.start()

    def start(self) -> None:
        """Start the process, and wait until it serves.

        Raises:
            RuntimeError: it has ended.
        """
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        while not self._serves():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self._command} has ended with {self.process.returncode}")
            time.sleep(CONNECT_AGAIN_S)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.process.kill()
        self.process.wait(STOP_TIMEOUT_S)

    def stop(self) -> None:
        """Let the process deliver all records and exit."""
        self.process.terminate()
        self.process.wait(STOP_TIMEOUT_S)


def _listens(path: str, kind: SocketKind) -> Callable[[], bool]:
    """Return a test for a process that listens on a socket in the file system."""

    def is_true() -> bool:
        found = connect(path, kind)
        if found:
            found.close()
        return found is not None

    return is_true


@dataclass(frozen=True)
class Way:
    """An open way to Kafka. It has the class of the clients, their arguments after `report` and `topic`, and the
    helper, if any.

    `queue` is the folder in which the helper stores records while Kafka is away, or None.
    """

    client: Callable[..., Any]
    arguments: tuple[Any, ...]
    helper: Helper | None = None
    queue: Path | None = None


OpenWay = Callable[[str, str], AbstractContextManager[Way]]
"""Open a way to a broker at HOST:PORT and a topic, for the duration of a context."""


@contextlib.contextmanager
def stopped(helper: Helper) -> Iterator[Helper]:
    """Yield a helper, and stop it at the end."""
    try:
        yield helper
    finally:
        helper.stop()


@contextlib.contextmanager
def arena(bootstrap: str, _topic: str) -> Iterator[Way]:
    """Open an arena with its sender."""
    with temporary_arena() as shared:
        words = ["--no-log", "--sink", f"kafka:{bootstrap}", "--set", f"linger_ms={LINGER_MS}ms"]
        command = [sys.executable, "-m", "shmaccum.sender", shared.name, *words]
        with stopped(Helper(command, lambda: shared.native.sender_is_alive)) as sender:
            yield Way(ArenaClient, (shared.name, LINGER_MS), sender)


@contextlib.contextmanager
def producer_each(bootstrap: str, _topic: str) -> Iterator[Way]:
    """Yield the way of a producer in each worker."""
    load("confluent_kafka", "confluent-kafka")
    yield Way(ProducerClient, ({"bootstrap.servers": bootstrap, **ACKS},))


def sidecar(command: Callable[[], list[str]], acks: str) -> OpenWay:
    """Return the way through a sidecar."""

    @contextlib.contextmanager
    def open_way(bootstrap: str, _topic: str) -> Iterator[Way]:
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/socket"
            options = [f"{name}={value}" for name, value in {"bootstrap.servers": bootstrap, **ACKS}.items()]
            with stopped(Helper([*command(), path, acks, *options], _listens(path, SOCK_STREAM))) as helper:
                yield Way(SidecarClient, (path,), helper)

    return open_way


def sidecar_in_c() -> list[str]:
    """Build the sidecar in C, and return its command. It uses the librdkafka of confluent-kafka's wheel.

    Raises:
        UnavailableError: the package is not installed, or has no library.
    """
    package = Path(load("confluent_kafka", "confluent-kafka").__file__).parent
    libraries = [*package.parent.glob("confluent_kafka.libs/librdkafka*.so*")]
    if not libraries:
        raise UnavailableError("the sidecar in C needs librdkafka: install confluent-kafka from its wheel")
    return [str(program_with_library("kafka_sidecar", libraries[0]))]


def sidecar_in_python() -> list[str]:
    """Return the command of the sidecar in Python.

    Raises:
        UnavailableError: a package is missing.
    """
    for module, package in (("confluent_kafka", "confluent-kafka"), ("uvloop", "uvloop")):
        load(module, package)
    return [sys.executable, "-m", "bench.parts.python_sidecar"]


def agent(command: Callable[..., list[str]], **options: Any) -> OpenWay:
    """Return the way through a syslog daemon."""

    @contextlib.contextmanager
    def open_way(bootstrap: str, topic: str) -> Iterator[Way]:
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/socket"
            words = command(Path(folder), bootstrap, topic, LINGER_MS, **options)
            with stopped(Helper(words, _listens(path, SOCK_DGRAM))) as helper:
                yield Way(SyslogClient, (path,), helper, Path(folder))

    return open_way


OPEN_WAYS: dict[str, OpenWay] = {
    "arena": arena,
    "producer each": producer_each,
    "sidecar in C, acks": sidecar(sidecar_in_c, "acks"),
    "sidecar in C": sidecar(sidecar_in_c, "none"),
    "sidecar in Python, acks": sidecar(sidecar_in_python, "acks"),
    "rsyslog": agent(rsyslog),
    "syslog-ng": agent(syslog_ng),
}
