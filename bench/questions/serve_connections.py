# SPDX-License-Identifier: Apache-2.0
"""How many small fetches per second do 100 busy clients get among 1,000 idle ones, beside Apache Kafka?

Each busy client has one request in flight; one thread reads all their responses. The idle clients are connected and
send nothing. A second contender has no idle clients. Kafka uses several threads, a served log one.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time

from bench.harness.question import Contender, Figure, Measurement, Question
from bench.parts.servers import FetchClient, Starter, apache_kafka, filled, kafka_version, served_log

SECONDS = 1.0
BUSY_COUNT, IDLE_COUNT = 100, 1000
FETCH_SIZE = 4 << 10
OURS, OURS_ALONE = "shmaccum serve, 1,000 idle", "shmaccum serve, none idle"
PEER, PEER_ALONE = "Apache Kafka, 1,000 idle", "Apache Kafka, none idle"


def _run(start: Starter, idle_count: int) -> Measurement:
    server = filled(start)
    host, _, port = server.address.rpartition(":")
    with contextlib.ExitStack() as stack:
        for _ in range(idle_count):
            stack.enter_context(socket.create_connection((host, int(port))))
        selector = stack.enter_context(selectors.DefaultSelector())
        for _ in range(BUSY_COUNT):
            client = stack.enter_context(FetchClient(server, FETCH_SIZE))
            selector.register(client.socket, selectors.EVENT_READ, client)
            client.ask()
        before_s, started_s = server.cpu_s(), time.perf_counter()
        count = 0
        while (elapsed_s := time.perf_counter() - started_s) < SECONDS:
            for key, _ in selector.select():
                key.data.take()
                key.data.ask()
                count += 1
        cpu_s = server.cpu_s() - before_s
    return {"fetches_per_s": count / elapsed_s, "cpu_s_per_fetch": cpu_s / count}


def contenders() -> list[Contender]:
    """Return shmaccum and Kafka, with and without idle clients."""
    return [
        Contender(OURS, lambda: _run(served_log, IDLE_COUNT)),
        Contender(PEER, lambda: _run(apache_kafka, IDLE_COUNT), version=kafka_version),
        Contender(OURS_ALONE, lambda: _run(served_log, 0), peer=PEER_ALONE),
        Contender(PEER_ALONE, lambda: _run(apache_kafka, 0), peer=PEER_ALONE, version=kafka_version),
    ]


QUESTION = Question(
    title=f"{BUSY_COUNT} clients fetch {FETCH_SIZE >> 10} KiB each repeatedly, beside idle clients",
    figures=(
        Figure("fetches_per_s", "k fetches/s", 1e-3, "higher"),
        Figure("cpu_s_per_fetch", "µs CPU/fetch", 1e6, "lower", "of the server"),
    ),
    contenders=contenders,
    peer=PEER,
    scope="full",
)
