# SPDX-License-Identifier: Apache-2.0
"""librdkafka's mock cluster: a broker in C that takes what any client sends and keeps little of it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from bench.packages import load

TIMEOUT_S = 30


def _run(pipe: Connection) -> None:
    keeper = load("confluent_kafka", "confluent-kafka").Producer(
        {"test.mock.num.brokers": 1, "bootstrap.servers": "ignored", "log_level": 0}
    )
    (broker,) = keeper.list_topics(timeout=TIMEOUT_S).brokers.values()
    pipe.send(f"{broker.host}:{broker.port}")
    pipe.recv()


@contextmanager
def mock_cluster() -> Iterator[str]:
    """host:port of its only broker, in a process of its own."""
    load("confluent_kafka", "confluent-kafka")  # who misses it is told here, not by a process that dies
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    try:
        yield mine.recv()
    finally:
        process.kill()
        process.join()
