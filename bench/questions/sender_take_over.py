# SPDX-License-Identifier: Apache-2.0
"""How long after a kill of the sender does the standby have the role, and when is everything delivered?"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.harness.stopwatch import Stopwatch
from bench.parts.arenas import TOPIC, temporary_arena
from shmaccum.arena import Arena
from shmaccum.sender import Sender
from tests.support.accumulator import Accumulator

OURS, PEER = "until everything is delivered", "until the role is taken"
LEFT = 500


def _start_standby(arena: Arena) -> int:
    """Fork a standby, and return when it is attached."""
    attached = sum(process["alive"] for process in arena.native.processes())
    pid = os.fork()
    if pid == 0:
        try:
            with Sender(arena.name, "null:", standby=True, linger_ms=0) as sender:
                sender.run()
        finally:
            os._exit(0)
    while sum(process["alive"] for process in arena.native.processes()) <= attached:
        time.sleep(0.001)
    return pid


def _killed(measure: Callable[[Arena, Accumulator, int], None]) -> Measurement:
    with temporary_arena() as arena, Accumulator(arena) as accumulator:
        killed_pid = _start_standby(arena)
        while not arena.native.sender_is_alive:
            time.sleep(0.001)
        standby = _start_standby(arena)
        for _ in range(LEFT):
            accumulator.append(TOPIC, 0, None, None, bytes(100))
        epoch = arena.native.sender()["epoch"]
        stopwatch = Stopwatch()
        os.kill(killed_pid, signal.SIGKILL)
        measure(arena, accumulator, epoch)
        elapsed = stopwatch.elapsed()
        accumulator.flush()
        os.kill(standby, signal.SIGKILL)
        for pid in (killed_pid, standby):
            os.waitpid(pid, 0)
    return {"seconds": elapsed.wall_s}


def _until_taken(arena: Arena, _accumulator: Accumulator, epoch: int) -> None:
    while arena.native.sender()["epoch"] == epoch:
        time.sleep(0.0002)


def _until_delivered(_arena: Arena, accumulator: Accumulator, _epoch: int) -> None:
    accumulator.append(TOPIC, 0, None, None, bytes(100))
    accumulator.flush()


def contenders() -> list[Contender]:
    """Return a contender for each of the two moments. Both are measured after the same death."""
    return [
        Contender(OURS, lambda: _killed(_until_delivered)),
        Contender(PEER, lambda: _killed(_until_taken)),
    ]


QUESTION = Question(
    title="a standby takes over from a sender that was killed with SIGKILL",
    figures=(Figure("seconds", "ms", 1e3, "lower"),),
    contenders=contenders,
    peer=PEER,
    repetitions=15,
    goals=(Goal("a survivor's delay after kill -9 of the sender", OURS, "seconds", 50),),
    reason=(
        "The peer ends when the role is taken. Until then, a successor has delivered nothing: it also opens its sink "
        "and finds the waiting batches."
    ),
)
