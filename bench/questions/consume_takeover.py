# SPDX-License-Identifier: Apache-2.0
"""How long after the death of a consumer do the other members of its group own its partitions?

Three consumers, each a process, share three partitions of a log on their host. One is killed with SIGKILL. The peer is
the floor: a process that repeatedly tests whether a lock of the killed process is free. Clients of a coordinator notice
a missing member after its session time-out, which is at least 6 s by the default of Kafka's brokers.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import multiprocessing.connection
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.harness.stopwatch import Stopwatch
from bench.parts.segments import create_log, tmpfs_folder
from shmaccum.log.consumer import Consumer

OURS, PEER = "shmaccum, until all partitions have owners", "until a lock of the dead is free"
TOPIC = "flights"
PARTITIONS = MEMBERS = 3
POLL_MS = 1000.0


class _Shares:
    """Reports the number of partitions of a consumer whenever it changes."""

    def __init__(self, pipe: Connection, consumer: Consumer) -> None:
        self._pipe = pipe
        self._consumer = consumer

    def on_partitions_assigned(self, _places: object) -> None:
        self._pipe.send(len(self._consumer.assignment()))

    def on_partitions_revoked(self, places: list[object]) -> None:
        self._pipe.send(len(self._consumer.assignment()) - len(places))


def _consume(folder: Path, pipe: Connection) -> None:
    with Consumer(folder, group_id="bench", partition_assignment_strategy=["sticky"]) as consumer:
        consumer.subscribe([TOPIC], listener=_Shares(pipe, consumer))
        while True:
            consumer.poll(POLL_MS)


def _hold(path: Path, pipe: Connection) -> None:
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        pipe.send(0)
        time.sleep(3600)


def _forked(run: Callable[[Path, Connection], None], path: Path) -> tuple[ForkProcess, Connection]:
    """Return a process that runs until it is killed, and its pipe."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=run, args=(path, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _takeover() -> Measurement:
    with tmpfs_folder() as folder:
        create_log(folder, TOPIC, PARTITIONS)
        members = [_forked(_consume, folder) for _ in range(MEMBERS)]
        shares = [0] * MEMBERS
        while shares != [1] * MEMBERS:
            _hear(members, shares)
        killed, _ = members.pop()
        shares.pop()
        stopwatch = Stopwatch()
        _kill(killed)
        while sum(shares) != PARTITIONS:
            _hear(members, shares)
        elapsed = stopwatch.elapsed()
        for process, _ in members:
            _kill(process)
    return {"seconds": elapsed.wall_s}


def _hear(members: list[tuple[ForkProcess, Connection]], shares: list[int]) -> None:
    multiprocessing.connection.wait([pipe for _, pipe in members])
    for number, (_, pipe) in enumerate(members):
        while pipe.poll():
            shares[number] = pipe.recv()


def _kill(process: ForkProcess) -> None:
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()


def _floor() -> Measurement:
    with tmpfs_folder() as folder:
        path = folder / "lock"
        process, pipe = _forked(_hold, path)
        pipe.recv()
        with path.open("rb") as file:
            stopwatch = Stopwatch()
            _kill(process)
            fcntl.flock(file, fcntl.LOCK_EX)
            return {"seconds": stopwatch.elapsed().wall_s}


def contenders() -> list[Contender]:
    """Return the group, and the floor of the kernel."""
    return [Contender(OURS, _takeover), Contender(PEER, _floor)]


QUESTION = Question(
    title="the consumers of a group take over from one that was killed with SIGKILL",
    figures=(Figure("seconds", "ms", 1e3, "lower"),),
    contenders=contenders,
    peer=PEER,
    repetitions=15,
    goals=(Goal("takeover from a killed consumer", OURS, "seconds", 50),),
    reason=(
        "The peer ends when the lock of the dead process is free. Then a survivor writes a plan, and each "
        "member acquires the locks of its new partitions."
    ),
)
