# SPDX-License-Identifier: Apache-2.0
"""What does a sender cost when nothing happens, and what a standby?

CPU of this process, user and system, over some seconds; the peer sleeps as often as an idle sender looks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from bench.harness import Contender, Figure, Measurement
from shmaccum.arena import Arena
from shmaccum.sender import Sender

TITLE = "CPU of a sender and of a standby that have nothing to do"
FIGURES = (Figure("cpu_share", "percent of a core", 100.0, "lower"),)
PEER = "sleeping 100 ms again and again"
REPETITIONS = 3
SECONDS = 5.0
TICK_S = 0.1


def _share(work: Callable[[], object]) -> Measurement:
    """Repeats `work`, which takes its time, and measures what it costs."""
    begin, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - begin < SECONDS:
        work()
    return {"cpu_share": (time.process_time() - cpu) / (time.perf_counter() - begin)}


def _sender() -> Measurement:
    name = f"shmaccum-bench-{os.getpid()}"
    with Arena.create(name) as arena:
        try:
            with Sender(arena, "null:") as sender:
                sender.open()
                return _share(sender.run_once)
        finally:
            Arena.remove(name)


def _standby() -> Measurement:
    name = f"shmaccum-bench-{os.getpid()}"
    with Arena.create(name) as arena:
        try:
            with Sender(arena, "null:") as sender, Sender(name, "null:", standby=True) as standby:
                sender.open()
                thread = threading.Thread(target=standby.run)
                thread.start()
                measurement = _share(lambda: time.sleep(SECONDS))
                standby.stop()
                thread.join()
                return measurement
        finally:
            Arena.remove(name)


def contenders() -> list[Contender]:
    """Each alone in this process, but for the thread that waits."""
    return [
        Contender("idle sender", _sender),
        Contender("standby", _standby),
        Contender(PEER, lambda: _share(lambda: time.sleep(TICK_S))),
    ]
