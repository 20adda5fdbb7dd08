# SPDX-License-Identifier: Apache-2.0
"""librdkafka's mock cluster: a broker in C that accepts records of any client and stores few of them."""

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
    owner = load("confluent_kafka", "confluent-kafka").Producer(options)
    (broker,) = owner.list_topics(timeout=TIMEOUT_S).brokers.values()
    pipe.send(f"{broker.host}:{broker.port}")
    with contextlib.suppress(EOFError):
        pipe.recv()


@cache
def mock_cluster() -> str:
    """Start a cluster in a new process for the lifetime of this one. Return HOST:PORT of its only broker.

    Raises:
        UnavailableError: confluent-kafka is not installed.
    """
    load("confluent_kafka", "confluent-kafka")  # raises here, and not in the new process
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_run, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    atexit.register(mine.close)  # this reference also keeps the pipe open until the exit
    bootstrap: str = mine.recv()
    return bootstrap
