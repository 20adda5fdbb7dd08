# SPDX-License-Identifier: Apache-2.0
"""librdkafka's mock cluster: a broker in C that takes what any client sends and keeps little of it."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
from functools import cache
from multiprocessing.connection import Connection

from bench.harness.packages import load

TIMEOUT_S = 30


def _run(pipe: Connection) -> None:
    options = {"test.mock.num.brokers": 1, "bootstrap.servers": "ignored", "log_level": 0}
    keeper = load("confluent_kafka", "confluent-kafka").Producer(options)
    (broker,) = keeper.list_topics(timeout=TIMEOUT_S).brokers.values()
    pipe.send(f"{broker.host}:{broker.port}")
    with contextlib.suppress(EOFError):
        pipe.recv()


@cache
def mock_cluster() -> str:
    """host:port of its only broker, which has a process of its own for this one's lifetime.

    Raises:
        UnavailableError: confluent-kafka is not installed.
    """
    load("confluent_kafka", "confluent-kafka")  # an importer that misses it is told here, not by a process that dies
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    atexit.register(mine.close)  # and keeps it open
    bootstrap: str = mine.recv()
    return bootstrap
