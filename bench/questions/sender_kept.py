# SPDX-License-Identifier: Apache-2.0
"""How long after a lone sender was killed has the one that a producer starts in its place delivered a record?"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from bench.arenas import temporary_arena
from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.stopwatch import Stopwatch
from shmaccum import Producer
from shmaccum.arena import Arena

OURS, PEER = "a sender that a producer keeps", "Python starts and imports the sender"
TOPIC = "flights"
SETTLING_S = 0.2


def _pid(arena: Arena) -> int:
    entry = arena.native.sender()["entry"]
    return next(int(row["pid"]) for row in arena.native.processes() if row["entry"] == entry)


def _kept() -> Measurement:
    with temporary_arena() as arena:
        arena.native.set_topic_partition_count(TOPIC, 1)
        with Producer(arena, sink="null:", linger_ms=0) as producer:
            producer.send(TOPIC, b"before").get(30)
            time.sleep(SETTLING_S)  # the keeper is asleep on the presence socket
            victim = _pid(arena)
            stopwatch = Stopwatch()
            os.kill(victim, signal.SIGKILL)
            producer.send(TOPIC, b"after").get(30)
            elapsed = stopwatch.elapsed()
        os.kill(_pid(arena), signal.SIGTERM)
        while arena.native.sender_is_alive:
            time.sleep(0.001)
    return {"seconds": elapsed.wall_s}


def _imported() -> Measurement:
    stopwatch = Stopwatch()
    subprocess.run([sys.executable, "-c", "import shmaccum.sender.__main__"], check=True)
    return {"seconds": stopwatch.elapsed().wall_s}


def contenders() -> list[Contender]:
    """The restart, and the part of it that only Python and the modules take."""
    return [Contender(OURS, _kept), Contender(PEER, _imported)]


QUESTION = Question(
    title="the first delivery after a lone sender was killed with SIGKILL",
    figures=(Figure("seconds", "ms", 1e3, "lower"),),
    contenders=contenders,
    peer=PEER,
    repetitions=9,
    goals=(Goal("from kill -9 of a lone sender to its successor's first delivery", OURS, "seconds", 300),),
)
