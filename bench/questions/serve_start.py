# SPDX-License-Identifier: Apache-2.0
"""How long does a server take from its start to its first response, and how much memory does it use then?

Both serve an empty log. Memory is the resident set of the process. Kafka starts on a formatted directory.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

import psutil

from bench.harness.question import Contender, Figure, Goal, Measurement, Question, UnavailableError
from bench.parts.servers import LOOPBACK, free_port, kafka_version, served_command, wait_until_served

OURS, PEER = "shmaccum serve", "Apache Kafka"


def _serve() -> Measurement:
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="shmaccum-bench-") as folder:
        started_s = time.perf_counter()
        with subprocess.Popen(served_command(folder, port, "--writable")) as process:
            try:
                wait_until_served(f"{LOOPBACK}:{port}")
                return _measured(started_s, process)
            finally:
                process.terminate()


def _measured(started_s: float, process: subprocess.Popen[bytes]) -> Measurement:
    seconds = time.perf_counter() - started_s
    return {"seconds": seconds, "resident_bytes": float(psutil.Process(process.pid).memory_info().rss)}


def _kafka() -> Measurement:
    from tests.kafka.broker import Cluster
    from tests.kafka.distribution import KAFKAS_JVM, DistributionMissingError, ensure

    try:
        ensure()
    except DistributionMissingError as error:
        raise UnavailableError(str(error)) from None
    with tempfile.TemporaryDirectory(prefix="shmaccum-bench-") as folder:
        cluster = Cluster(Path(folder), jvm=KAFKAS_JVM)
        try:
            started_s = time.perf_counter()
            (broker,) = cluster.brokers
            broker.start()
            wait_until_served(cluster.bootstrap)
            assert broker.process is not None
            return _measured(started_s, broker.process)
        finally:
            cluster.stop()


def contenders() -> list[Contender]:
    """Return shmaccum and Kafka."""
    return [Contender(OURS, _serve), Contender(PEER, _kafka, version=kafka_version)]


QUESTION = Question(
    title="from the start of a server to its first response",
    figures=(
        Figure("seconds", "s", 1.0, "lower"),
        Figure("resident_bytes", "MB resident", 1e-6, "lower", "after the first response"),
    ),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
    scope="full",
    goals=(
        Goal("a server's first answer", OURS, "seconds", 0.5),
        Goal("memory of a server", OURS, "resident_bytes", 64.0),
    ),
)
