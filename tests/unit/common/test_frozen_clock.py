# SPDX-License-Identifier: Apache-2.0
"""Waits end in time while the clock of the module `time` is frozen, as in tests of a program."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from shmaccum import BufferExhaustedError, Consumer, FlushTimeoutError, Producer
from shmaccum.arena import Arena
from shmaccum.exceptions import PartitionCountUnknownError, ResultPendingError, UnknownPartitionError
from tests.support.segment_log import TOPIC, open_log

BLOCK_MS = 200


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeze the clocks that freezegun replaces."""
    for name in ("monotonic", "monotonic_ns", "perf_counter", "time", "time_ns"):
        now = getattr(time, name)()
        monkeypatch.setattr(time, name, lambda now=now: now)


def _fill(producer: Producer) -> None:
    while True:
        producer.send(TOPIC, bytes(3000), partition=0)


def _flush(producer: Producer) -> None:
    producer.send(TOPIC, b"v")
    producer.flush(0.2)


WAITS: dict[str, tuple[type[Exception], Callable[[Producer], object]]] = {
    "a topic": (PartitionCountUnknownError, lambda producer: producer.send("unknown", b"v")),
    "a partition": (UnknownPartitionError, lambda producer: producer.send(TOPIC, b"v", partition=9)),
    "a result": (ResultPendingError, lambda producer: producer.send(TOPIC, b"v").get(0.2)),
    "a flush": (FlushTimeoutError, _flush),
    "a buffer": (BufferExhaustedError, _fill),
}


@pytest.mark.parametrize("name", WAITS)
@pytest.mark.usefixtures("still")
def test_a_wait_of_a_producer_ends_while_the_clock_stands_still(arena: Arena, name: str) -> None:
    arena.declare_topic(TOPIC, 1)
    error, wait = WAITS[name]
    with Producer(arena, max_block_ms=BLOCK_MS) as producer:
        with pytest.raises(error):
            wait(producer)
        producer.close(0)


@pytest.mark.usefixtures("still")
def test_a_poll_ends_while_the_clock_stands_still(tmp_path: Path) -> None:
    with open_log(tmp_path / "log") as directory:
        directory.create_topic(TOPIC, 1)
    with Consumer(tmp_path / "log", group_id="g") as consumer:
        consumer.subscribe([TOPIC])
        assert not consumer.poll(timeout_ms=BLOCK_MS)
