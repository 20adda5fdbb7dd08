# SPDX-License-Identifier: Apache-2.0
"""Writers and readers of the Spark data source without Spark: a task context, and senders in a thread."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shmaccum.arena import Arena
from shmaccum.sender import Sender
from shmaccum.sender.sinks import Sink
from shmaccum.spark import node
from tests.support.processes import WATCHDOG_S, wait_until


def forget_producers() -> None:
    """Close every producer of this process without waiting."""
    for place in [place for place in node._producers if place[0] == os.getpid()]:
        producer = node._producers.pop(place)
        producer.close(0)
        producer.arena.close()


@pytest.fixture(autouse=True)
def no_producer_is_left() -> Iterator[None]:
    yield
    forget_producers()


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make this process look like a worker in task 3 of a stage, at its second attempt."""
    from pyspark import TaskContext

    monkeypatch.setattr(TaskContext, "_taskContext", None)  # the class stores its first instance
    context = TaskContext()
    for name, value in {"_partitionId": 3, "_attemptNumber": 1, "_taskAttemptId": 7, "_stageId": 0}.items():
        monkeypatch.setattr(context, name, value, raising=False)
    return context


Running = Callable[..., contextlib.AbstractContextManager[Sender]]


@pytest.fixture
def running() -> Running:
    """``with running(arena, sink):`` runs a sender in a thread, which delivers everything before it leaves."""

    @contextlib.contextmanager
    def run(arena: Arena, sink: Sink | str, **options: Any) -> Iterator[Sender]:
        sender = Sender(arena, sink, linger_ms=1, **options)
        thread = threading.Thread(target=sender.run)
        thread.start()
        try:
            wait_until(lambda: arena.native.sender_is_alive, "the sender has its role")
            yield sender
        finally:
            sender.stop()
            thread.join(WATCHDOG_S)
            sender.close()

    return run
