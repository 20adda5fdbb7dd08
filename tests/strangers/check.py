# SPDX-License-Identifier: Apache-2.0
"""The check of a listener: while strangers are connected, others get responses and the sender rolls its segments.

A client waits for responses before the strangers connect and while they are connected, over an open connection and
over a new one for each request. The median of its waits may grow by `WAIT_GROWTH_MAX_S`. Both medians are of one run,
so the machine may be slow. Meanwhile, the listener's sender must deliver several segments and a new topic. The
process may have a few more threads, and `MEMORY_GROWTH_MAX` more memory.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import shmaccum
from tests.strangers.crowd import Crowd, many_descriptors
from tests.strangers.listeners import SEGMENT_SIZE, TIMEOUT_S, Listener, Running

WAIT_GROWTH_MAX_S = 0.05
ASKED = 40
"""The number of requests for each median."""
THREAD_GROWTH_MAX = 8
MEMORY_GROWTH_MAX = 160 << 20
ROLLED = 3
VALUE = b"x" * 1000


class Waits(NamedTuple):
    """The times for which a client waits for responses."""

    median_s: float
    largest_s: float

    def __str__(self) -> str:
        return f"{self.median_s * 1e3:.1f} ms (largest {self.largest_s * 1e3:.0f})"


class Figures(NamedTuple):
    """The figures of one listener."""

    name: str
    strangers: int
    stayed: int
    quiet: Waits
    kept: Waits
    new: Waits
    rolled_s: float | None
    descriptors: int
    threads: int
    memory: int

    def __str__(self) -> str:
        rolled = "" if self.rolled_s is None else f"; {ROLLED} segments rolled in {self.rolled_s:.1f} s"
        return (
            f"{self.name}: {self.strangers} strangers came, {self.stayed} stayed; a client waited {self.quiet} before, "
            f"{self.kept} with them, {self.new} over a new connection{rolled}; {self.descriptors} descriptors, "
            f"{self.threads} threads and {self.memory >> 20} MiB more"
        )

    def problems(self) -> Iterator[str]:
        """Return a sentence for each promise that was broken."""
        for kind, waits in (("kept", self.kept), ("new", self.new)):
            if waits.median_s > self.quiet.median_s + WAIT_GROWTH_MAX_S:
                yield f"a client with a {kind} connection waited {waits}, and {self.quiet} without strangers"
        if self.threads > THREAD_GROWTH_MAX:
            yield f"strangers brought {self.threads} threads"
        if self.memory > MEMORY_GROWTH_MAX:
            yield f"strangers took {self.memory >> 20} MiB"


def check(listener: Listener, folder: Path, arena_name: str, dice: random.Random) -> Figures:
    """Check one listener.

    Raises:
        AssertionError: a promise was broken; the sentence has the figures.
    """
    with many_descriptors(), listener.start(folder, arena_name, listener.descriptors) as running:
        figures = _figures(listener, running, dice)
    problems = list(figures.problems())
    assert not problems, f"{figures}\n" + "\n".join(problems)
    return figures


def _figures(listener: Listener, running: Running, dice: random.Random) -> Figures:
    ask, leave = running.connect()
    _roll(running)
    quiet = waits_of(ask)
    before = threads_of(running.process.pid), memory_of(running.process.pid)
    descriptors = len(os.listdir(f"/proc/{running.process.pid}/fd"))
    crowd = Crowd(running.address, listener.openings, dice)
    try:
        kept = waits_of(ask)
        new = waits_of(lambda: _ask_once(running))
        rolled_s = _roll(running)
        threads, memory = threads_of(running.process.pid) - before[0], memory_of(running.process.pid) - before[1]
        descriptors = len(os.listdir(f"/proc/{running.process.pid}/fd")) - descriptors
        stayed = crowd.connected_count()
    finally:
        crowd.close()
    waits_of(lambda: _ask_once(running))
    leave()
    strangers = crowd.kinds.total()
    return Figures(listener.name, strangers, stayed, quiet, kept, new, rolled_s, descriptors, threads, memory)


def _ask_once(running: Running) -> None:
    ask, leave = running.connect()
    with contextlib.closing(_Leaving(leave)):
        ask()


class _Leaving(NamedTuple):
    close: Callable[[], object]


def waits_of(ask: Callable[[], object]) -> Waits:
    """Return the waits of a client that sends requests repeatedly."""
    waits_s = []
    for _ in range(ASKED):
        began_s = time.monotonic()
        ask()
        waits_s.append(time.monotonic() - began_s)
    return Waits(statistics.median(waits_s), max(waits_s))


def _roll(running: Running) -> float | None:
    """Deliver several segments and a new topic. Return the seconds."""
    if running.producer is None:
        return None
    assert running.log is not None
    began_s = time.monotonic()
    former, topics = _segment_count(running.log), _topic_count(running.log)
    futures = [running.producer.send("t", VALUE) for _ in range(ROLLED * SEGMENT_SIZE // len(VALUE))]
    futures.append(running.producer.send(f"new-{topics}", VALUE))
    for future in (futures[-2], futures[-1]):
        _delivered(future)
    assert _segment_count(running.log) >= former + ROLLED - 1, "no segment was rolled"
    return time.monotonic() - began_s


def _delivered(future: shmaccum.DeliveryFuture) -> None:
    try:
        future.get(timeout=TIMEOUT_S)
    except (shmaccum.ShmaccumError, TimeoutError) as error:
        raise AssertionError(f"the sender did not deliver beside the strangers: {error}") from error


def _segment_count(log: Path) -> int:
    return sum(1 for _ in log.glob("*/*.log"))


def _topic_count(log: Path) -> int:
    return sum(1 for _ in log.glob("new-*"))


def threads_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def memory_of(pid: int) -> int:
    """Return the resident bytes of a process."""
    found = re.search(r"VmRSS:\s+([0-9]+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) << 10 if found else 0
