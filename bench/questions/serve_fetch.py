# SPDX-License-Identifier: Apache-2.0
"""How many bytes per second does a served log send to a consumer, beside Apache Kafka on the same two cores?

One client fetches one partition with responses of 1 MiB and of 64 KiB, one request at a time. The client ignores the
records, and uses a core of its own.
"""

from __future__ import annotations

import time
from functools import cache

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.parts.servers import FetchClient, Server, Starter, apache_kafka, filled, kafka_version, served_log

SECONDS = 1.0
WARM_UP_S = 5.0
LARGE, SMALL = 1 << 20, 64 << 10
OURS, OURS_SMALL = "shmaccum serve, 1 MiB", "shmaccum serve, 64 KiB"
PEER, PEER_SMALL = "Apache Kafka, 1 MiB", "Apache Kafka, 64 KiB"


@cache
def _warm(start: Starter) -> Server:
    """Return a server after some seconds of fetches, so that a JVM has compiled its code."""
    server = filled(start)
    end_s = time.perf_counter() + WARM_UP_S
    with FetchClient(server, SMALL) as client:
        while time.perf_counter() < end_s:
            client.ask()
            client.take()
    return server


def _run(start: Starter, fetch_size: int) -> Measurement:
    server = _warm(start)
    with FetchClient(server, fetch_size) as client:
        before_s, started_s = server.cpu_s(), time.perf_counter()
        size = count = 0
        while (elapsed_s := time.perf_counter() - started_s) < SECONDS:
            client.ask()
            size += client.take()
            count += 1
        cpu_s = server.cpu_s() - before_s
    return {"bytes_per_s": size / elapsed_s, "cpu_s_per_byte": cpu_s / size, "s_per_fetch": elapsed_s / count}


def contenders() -> list[Contender]:
    """Return shmaccum and Kafka, with large and with small fetches."""
    return [
        Contender(OURS, lambda: _run(served_log, LARGE)),
        Contender(PEER, lambda: _run(apache_kafka, LARGE), version=kafka_version),
        Contender(OURS_SMALL, lambda: _run(served_log, SMALL), peer=PEER_SMALL),
        Contender(PEER_SMALL, lambda: _run(apache_kafka, SMALL), peer=PEER_SMALL, version=kafka_version),
    ]


QUESTION = Question(
    title="one consumer fetches from a server on the same machine, one request at a time",
    figures=(
        Figure("bytes_per_s", "MB/s", 1e-6, "higher"),
        Figure("cpu_s_per_byte", "CPU-s/GB", 1e9, "lower", "processor time of the server"),
        Figure("s_per_fetch", "µs/fetch", 1e6, "lower", "from the request to the whole response"),
    ),
    contenders=contenders,
    peer=PEER,
    scope="full",
    goals=(
        Goal("fetches of 1 MiB, of Apache Kafka's bytes/s", OURS, "bytes_per_s", 1.0, is_ratio=True),
        Goal("fetches of 64 KiB, of Apache Kafka's bytes/s", OURS_SMALL, "bytes_per_s", 0.9, is_ratio=True),
        Goal("processor time of a server by fetches of 1 MiB", OURS, "cpu_s_per_byte", 0.25),
    ),
)
