# SPDX-License-Identifier: Apache-2.0
"""A standalone cluster of Spark on this machine: a master, and two workers that stand for two nodes.

Each worker has its own loopback address, so Spark regards them as different hosts, and its own folder. Its environment
has SHMACCUM_NODE, the name of a node, which its executors and their Python processes inherit: ``{node}`` in the names
of arenas and logs stands for that name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shmaccum.exceptions import ShmaccumError
from shmaccum.spark.node import NODE_VARIABLE

START_TIMEOUT_S = 300.0
"""The longest time for the start of a daemon, also on a busy machine."""
STOP_TIMEOUT_S = 10.0
CHECK_EVERY_S = 0.1
DAEMON_MEMORY = "256m"
MASTER_OPTIONS = "-Dspark.master.rest.enabled=false"
"""The REST server is off, because it would accept jobs of other programs."""


@dataclass(frozen=True)
class Cluster:
    """A running cluster.

    Attributes:
        url: the URL of the master, for a session.
        nodes: the names of the workers.
    """

    url: str
    nodes: tuple[str, ...]


@contextlib.contextmanager
def open_cluster(
    folder: Path, nodes: tuple[str, ...] = ("node-1", "node-2"), *, core_count: int = 1
) -> Iterator[Cluster]:
    """Starts a master and a worker for each node. At the end, none of them is left.

    Args:
        folder: the folder of their files. It is created if it is missing.
        nodes: the names of the workers.
        core_count: the number of cores of each worker.

    Raises:
        ShmaccumError: a daemon did not start. The message names the file with the reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as daemons:
        port = _free_port()
        url = f"spark://127.0.0.1:{port}"
        arguments = ["-h", "127.0.0.1", "-p", str(port), "--webui-port", "0"]
        environment = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_MASTER_OPTS": MASTER_OPTIONS}
        master = daemons.enter_context(_daemon("Master", arguments, folder / "master.log", environment))
        _wait(master, folder / "master.log", "Starting Spark master at ", 1)
        for number, node in enumerate(nodes, start=1):
            address = f"127.0.0.{number}"
            arguments = ["-h", address, "-c", str(core_count), "-m", "2g", "--webui-port", "0"]
            arguments += ["-d", str(folder / node / "work"), url]
            environment = {NODE_VARIABLE: node, "SPARK_LOCAL_DIRS": str(folder / node / "local")}
            environment["SPARK_LOCAL_IP"] = address  # their web pages are visible only on this machine
            daemons.enter_context(_daemon("Worker", arguments, folder / f"{node}.log", environment))
        _wait(master, folder / "master.log", "Registering worker ", len(nodes))
        yield Cluster(url, nodes)


def _free_port() -> int:
    """Returns a port that is unused at this moment."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def _daemon(
    kind: str, arguments: list[str], log: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a daemon in its own session. Executors and their Python processes end with it."""
    import pyspark

    home = os.environ.get("SPARK_HOME") or os.path.dirname(pyspark.__file__)
    command = [os.path.join(home, "bin", "spark-class"), f"org.apache.spark.deploy.{kind.lower()}.{kind}", *arguments]
    whole = {**os.environ, "SPARK_HOME": home, "SPARK_DAEMON_MEMORY": DAEMON_MEMORY, **environment}
    with log.open("wb") as messages:
        daemon = subprocess.Popen(command, env=whole, stdout=messages, stderr=messages, start_new_session=True)
    try:
        yield daemon
    finally:
        _end(daemon)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """Sends SIGTERM, on which a worker also ends its executors, and SIGKILL if that takes too long."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(daemon.pid, signal.SIGTERM)
    try:
        daemon.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait()


def _wait(daemon: subprocess.Popen[bytes], log: Path, words: str, count: int) -> None:
    """Waits until the daemon's log has these words `count` times."""
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while log.read_text(errors="replace").count(words) < count:
        if daemon.poll() is not None or time.monotonic() > deadline_s:
            raise ShmaccumError(f"Spark's daemons did not start: see {log} and the files beside it")
        time.sleep(CHECK_EVERY_S)
