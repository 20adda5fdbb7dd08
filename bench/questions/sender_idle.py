# SPDX-License-Identifier: Apache-2.0
"""How much processor time do an idle sender and an idle standby use?

The figure is user and system time of this process over some seconds, after the sender has been idle for one. The peer
wakes as often as an idle sender, because most of the cost is that of waking.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.harness.stopwatch import Stopwatch
from bench.parts.arenas import temporary_arena
from shmaccum.sender import Sender

OURS, STANDBY, PEER = "idle sender", "standby", "sleeping a second again and again"
SECONDS = 2.0
SETTLING_S = 1.2
TICK_S = 1.0


def _share(work: Callable[[], object]) -> Measurement:
    """Repeat `work` for a while, and return its share of a core."""
    stopwatch = Stopwatch()
    while (elapsed := stopwatch.elapsed()).wall_s < SECONDS:
        work()
    return {"cpu_share": elapsed.cpu_s / elapsed.wall_s}


@cache
def _settled() -> Sender:
    """Return a sender that has been idle for a while. It ends with the process."""
    stack = ExitStack()
    atexit.register(stack.close)
    sender = stack.enter_context(Sender(stack.enter_context(temporary_arena()), "null:"))
    sender.open()
    settling = Stopwatch()
    while settling.elapsed().wall_s < SETTLING_S:
        sender.run_once()
    return sender


def _sender() -> Measurement:
    """Measure from the sender's second wake-up on. Before the first one, other contenders may have run."""
    _settled().run_once()
    return _share(_settled().run_once)


def _standby() -> Measurement:
    with (
        temporary_arena() as arena,
        Sender(arena, "null:") as sender,
        Sender(arena.name, "null:", standby=True) as standby,
    ):
        sender.open()
        thread = threading.Thread(target=standby.run)
        thread.start()
        measurement = _share(lambda: time.sleep(SECONDS))
        standby.stop()
        thread.join()
    return measurement


def contenders() -> list[Contender]:
    """Return the contenders. Each is alone in this process, but for the waiting thread."""
    return [
        Contender(OURS, _sender),
        Contender(STANDBY, _standby),
        Contender(PEER, lambda: _share(lambda: time.sleep(TICK_S))),
    ]


QUESTION = Question(
    title="processor time of an idle sender and an idle standby",
    figures=(Figure("cpu_share", "% of a core", 100.0, "lower"),),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
    goals=(Goal("idle sender, percent of a core", OURS, "cpu_share", 0.1),),
    reason=(
        "An idle sender also looks for lost wake-ups, waits for buffers, and the arena's file each time it "
        "wakes; the peer only sleeps."
    ),
)
