# SPDX-License-Identifier: Apache-2.0
"""How long does it take from a kill of the only sender until the sender that a producer starts has delivered a record?

The log has records already, so the successor recovers a partition. The broker of ``kafka:`` runs on this machine and
discards what it receives.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.harness.stopwatch import Stopwatch
from bench.parts.arenas import temporary_arena
from bench.parts.draining_broker import TOPIC, draining_broker
from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.supervisor.supervisor import UNCONNECTED_CHECK_S

NULL, LOG, KAFKA = (f"a sender that a producer keeps, {kind}" for kind in ("null:", "log:", "kafka:"))
PEER = "Python starts and imports the sender"
SETTLING_S = 2 * UNCONNECTED_CHECK_S
"""After this time, the supervisor sleeps on the presence socket of the sender."""
EARLIER_COUNT = 1000


def _pid(arena: Arena) -> int:
    entry = arena.native.sender()["entry"]
    return next(int(row["pid"]) for row in arena.native.processes() if row["entry"] == entry)


def _kept(sink: str) -> Measurement:
    with temporary_arena() as arena:
        arena.native.set_topic_partition_count(TOPIC, 1)
        with Producer(arena, sink=sink, linger_ms=0) as producer:
            producer.send_many(TOPIC, [bytes(100)] * EARLIER_COUNT)
            producer.flush(30)
            time.sleep(SETTLING_S)
            killed_pid = _pid(arena)
            stopwatch = Stopwatch()
            os.kill(killed_pid, signal.SIGKILL)
            producer.send(TOPIC, b"after").get(30)
            elapsed = stopwatch.elapsed()
        os.kill(_pid(arena), signal.SIGTERM)
        while arena.native.sender_is_alive:
            time.sleep(0.001)
    return {"seconds": elapsed.wall_s}


def _kept_by_a_log() -> Measurement:
    with tempfile.TemporaryDirectory() as folder:
        return _kept(f"log:{folder}")


def _kept_by_a_broker() -> Measurement:
    with draining_broker(1) as (port, _):
        return _kept(f"kafka:127.0.0.1:{port}")


def _imported() -> Measurement:
    stopwatch = Stopwatch()
    subprocess.run([sys.executable, "-c", "import shmaccum.sender.__main__"], check=True)
    return {"seconds": stopwatch.elapsed().wall_s}


def contenders() -> list[Contender]:
    """Return the restart, and its floor: the start of Python and the imports."""
    ways: dict[str, Callable[[], Measurement]] = {
        NULL: lambda: _kept("null:"),
        LOG: _kept_by_a_log,
        KAFKA: _kept_by_a_broker,
        PEER: _imported,
    }
    return [Contender(name, way) for name, way in ways.items()]


QUESTION = Question(
    title="the first delivery after a lone sender was killed with SIGKILL",
    figures=(Figure("seconds", "ms", 1e3, "lower"),),
    contenders=contenders,
    peer=PEER,
    repetitions=9,
    goals=tuple(
        Goal(
            f"from kill -9 of a lone sender to its successor's first delivery, {name.split()[-1]}", name, "seconds", 300
        )
        for name in (NULL, LOG, KAFKA)
    ),
    reason=(
        "The peer only imports. The successor also attaches to the arena and opens its sink: it recovers a partition "
        "of the log, or connects to the broker and asks for the topic."
    ),
)
