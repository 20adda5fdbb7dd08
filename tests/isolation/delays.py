# SPDX-License-Identifier: Apache-2.0
"""Two delays of a send: the end of a wait after max_block_ms, and the first record in a fallback. There is no Kafka.

``blocked``: processes wait for a topic without a leader until max_block_ms is over, while another process sends as much
as it can. ``fallen_back``: the arena of a process is made unusable while a thread of it sends or waits.

The times exclude those in which the thread was ready to run while the machine ran others (/proc/PID/schedstat). So they
show the delay that the code causes, also on a busy machine.
"""

from __future__ import annotations

import ast
import contextlib
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from shmaccum import Producer, _native
from shmaccum.arena import Arena
from shmaccum.exceptions import ArenaError, BufferExhaustedError
from tests.isolation.fake_outage import DEAD, LIVE, NO_LEADER, fake_outage
from tests.isolation.held import waiter_count
from tests.support.arenas import SHARED_MEMORY
from tests.support.processes import Child, wait_until

VALUE_SIZE = 1000
SLOT_COUNT = 64
WAITING_COUNT = 8
BLOCKS_MS = (20, 50, 100, 200, 500)
TRIAL_COUNT = 50
TOPIC = "flights"
SENT_BEFORE = 500


def queued_ns(pid: int) -> int:
    """Return the time for which the main thread of a process was ready while the machine ran others."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1])


def _own_ns(late_ns: int, queued_ns: int) -> int:
    """Return a delay without the time in the run queue. A negative delay is returned unchanged."""
    return min(late_ns, max(late_ns - queued_ns, 0))


# --- the end of a wait


def _block(arena_name: str, seconds: float, seed: int) -> list[int]:
    """Return for each failed send how many nanoseconds later than max_block_ms it failed."""
    chosen, late_ns = random.Random(seed), []
    producers = {block_ms: Producer(arena_name, max_block_ms=block_ms) for block_ms in BLOCKS_MS}
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        block_ms = chosen.choice(BLOCKS_MS)
        begin_ns, queued_before_ns = time.monotonic_ns(), queued_ns(os.getpid())
        with contextlib.suppress(BufferExhaustedError):
            producers[block_ms].send(DEAD, bytes(VALUE_SIZE), partition=0)
            raise AssertionError("a topic without a leader has taken a record")
        late_ns.append(
            _own_ns(time.monotonic_ns() - begin_ns - block_ms * 10**6, queued_ns(os.getpid()) - queued_before_ns)
        )
    for producer in producers.values():
        producer.close(0)
    return late_ns


def _load(arena_name: str) -> None:
    producer = Producer(arena_name, max_block_ms=600_000)
    while True:
        producer.send(LIVE, b"0".ljust(VALUE_SIZE), partition=0)


def blocked(arena_name: str, folder: Path, seconds: float, seed: int) -> list[int]:
    """Return for each failed send how many nanoseconds later than max_block_ms it failed."""
    with fake_outage(arena_name, folder, SLOT_COUNT) as outage:
        outage.begin(NO_LEADER)
        outage.fill(DEAD, VALUE_SIZE)
        load = Child(_load, arena_name)
        try:
            children = [Child(_block, arena_name, seconds, seed + number) for number in range(WAITING_COUNT)]
            return sorted(late_ns for child in children for late_ns in ast.literal_eval(child.join()))
        finally:
            load.kill()


# --- the first record in a fallback


def _cut(arena: Arena) -> None:
    os.truncate(SHARED_MEMORY / arena.name, 0)


def _poison(arena: Arena) -> None:
    """Poison the arena through its file, as the core does."""
    (place,) = (row[2] for row in _native.layout_fields() if row[:2] == ("globals", "poisoned_status"))
    with open(SHARED_MEMORY / arena.name, "r+b") as file:
        file.seek(arena.native.layout["globals"] + place)
        file.write((13).to_bytes(4, sys.byteorder))


def _remove(arena: Arena) -> None:
    Arena.remove(arena.name)


WAYS: Mapping[str, Callable[[Arena], None]] = {"cut": _cut, "poisoned": _poison, "removed": _remove}


class _Times:
    """A fallback that stores the time of its first record, without the time that its process waited for a processor."""

    def __init__(self) -> None:
        self.first_ns = 0

    def send(self, *_record: Any, **_named: Any) -> None:
        self.first_ns = time.monotonic_ns() - queued_ns(os.getpid())


def _send(arena_name: str, sent: Path, value_size: int) -> int:
    """Send until a record goes to the fallback, and return the time of that record."""
    logging.disable(logging.CRITICAL)
    times = _Times()
    producer = Producer(arena_name, on_unusable=lambda: times, max_block_ms=600_000)
    for number in range(10**9):
        producer.send(TOPIC, bytes(value_size), partition=0)
        if number == SENT_BEFORE:
            sent.touch()
        if times.first_ns:
            break
    with contextlib.suppress(ArenaError):
        producer.close(0)
    return times.first_ns


def _trial(arena_name: str, folder: Path, way: Callable[[Arena], None], *, waits: bool) -> int:
    """Return the nanoseconds between the end of an arena and the first record in the fallback."""
    size: dict[str, Any] = {"buffer_memory": "256KiB", "batch_size": "4KiB"} if waits else {}
    arena = Arena.create(arena_name, topics={TOPIC: 1}, **size)
    sent = folder / f"{arena_name}-sent"
    child = Child(_send, arena_name, sent, 3000 if waits else 10)
    try:
        wait_until(lambda: waiter_count(arena) == 1 if waits else sent.exists(), "it sends, or waits")
        way(arena)
        end_ns = time.monotonic_ns() - queued_ns(child.pid)
        return max(int(child.join()) - end_ns, 0)
    finally:
        child.kill()
        sent.unlink(missing_ok=True)
        arena.close()
        Arena.remove(arena_name, missing_ok=True)


def fallen_back(arena_name: str, folder: Path, *, waits: bool) -> dict[str, list[int]]:
    """Return a map: way -> the nanoseconds until the first record in the fallback, in each trial.

    Args:
        arena_name: the name of each trial's arena.
        folder: the folder for files of the trials.
        waits: the thread waits for a buffer when the arena ends; otherwise it sends.
    """
    trial = partial(_trial, arena_name, folder, waits=waits)
    return {name: sorted(trial(way) for _ in range(TRIAL_COUNT)) for name, way in WAYS.items()}
