# SPDX-License-Identifier: Apache-2.0
"""The flights pipeline: four worker processes, one arena, one sender process, a log in Kafka's format.

    worker 0 ─┐
    worker 1 ─┤ append     ┌─────────┐  drain   ┌────────┐  writev   out/log/flights.EWR-0 … flights.LGA-1
    worker 2 ─┼──────────> │  arena  │ ───────> │ sender │ ────────>
    worker 3 ─┘            └─────────┘          └────────┘

With `is_killing`, one worker and the sender are killed by SIGKILL half-way. Both get a successor. The new sender sends what it
finds in the arena; the log drops what the dead one had written already. The new worker asks the log where the dead one
stopped: every record that was committed is in the arena or in the log, so once the batches of that time have been
delivered the log knows.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import SpawnProcess
from pathlib import Path

import numpy as np

from shmaccum.arena import Arena, ArenaStatistics, VerifyDepth
from shmaccum.example.flights import FLIGHT_COUNT, topics, worker_of
from shmaccum.example.verification import next_row_of
from shmaccum.example.worker import WORKER_COUNT, Board, work
from shmaccum.exceptions import ShmaccumError
from shmaccum.tables import SLOT_STATES, slot_state

PARTITION_COUNT = 2
VICTIM = 2
LOOK_EVERY_S = 0.05
DRAIN_TIMEOUT_S = 60.0

Watcher = Callable[[str, int, int], None]
"""Is told now and then: what is going on, events sent, records delivered."""


@dataclass(frozen=True)
class Outcome:
    """What a run left behind."""

    directory: Path
    seconds: float
    """From the start of the workers until the last record was in the log; pauses for a kill included."""
    statistics: ArenaStatistics
    findings: list[str]
    """What `Arena.verify` found at the end; empty for a sound arena."""
    killed: list[str]
    """Who was killed, in words."""


class Sender:
    """The sender process: the same command that anybody would type."""

    def __init__(self, arena_name: str, directory: Path) -> None:
        command = [sys.executable, "-m", "shmaccum", "sender", arena_name, "--sink", f"log:{directory}"]
        command += ["-X", f"partitions={PARTITION_COUNT}"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def kill(self) -> str:
        """SIGKILL; answers who it was."""
        self._process.kill()
        self._process.wait()
        return f"the sender (process {self._process.pid})"

    def drain_and_leave(self) -> None:
        """SIGTERM: it sends what is there, then leaves.

        Raises:
            ShmaccumError: it did not end well.
        """
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(DRAIN_TIMEOUT_S)
        if code != 0:
            raise ShmaccumError(f"the sender ended with exit code {code}")

    def check_running(self) -> None:
        """Raises ShmaccumError when it has ended by itself."""
        if (code := self._process.poll()) is not None:
            raise ShmaccumError(f"the sender ended with exit code {code}: its message stands above")

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()


class Crew:
    """The workers, and what they have chalked up."""

    def __init__(self, arena_name: str) -> None:
        self._arena_name = arena_name
        self._context = multiprocessing.get_context("spawn")
        self.board = Board()
        self.workers: list[SpawnProcess] = [self._start(worker, 0) for worker in range(WORKER_COUNT)]

    def _start(self, worker: int, first_row: int) -> SpawnProcess:
        process = self._context.Process(
            target=work, args=(self._arena_name, self.board, worker, first_row), name=f"worker-{worker}", daemon=True
        )
        process.start()
        return process

    def kill(self, worker: int) -> str:
        """SIGKILL; answers who it was."""
        process = self.workers[worker]
        process.kill()
        process.join()
        return f"worker {worker} (process {process.pid})"

    def replace(self, worker: int, first_row: int) -> None:
        """A successor that goes on at `first_row`."""
        self.workers[worker] = self._start(worker, first_row)

    def is_working(self) -> bool:
        """False when all have ended well.

        Raises:
            ShmaccumError: one did not.
        """
        for process in self.workers:
            if process.exitcode not in {None, 0}:
                raise ShmaccumError(f"{process.name} ended with exit code {process.exitcode}: its message stands above")
        return any(process.is_alive() for process in self.workers)

    def stop(self) -> None:
        """Ends whoever still works."""
        for process in self.workers:
            process.kill()
            process.join()


def _pending_since(arena: Arena, moment_ns: int) -> bool:
    """True while a batch that was opened before that moment is not delivered."""
    slots = arena.slot_table()
    states = slot_state(slots["word"])
    is_pending = (states == SLOT_STATES.index("OPEN")) | (states == SLOT_STATES.index("READY"))
    return bool(np.any(is_pending & (slots["created_ns"] <= moment_ns)))


class _Run:
    """One run of the pipeline, from the first worker to the last."""

    def __init__(self, arena: Arena, directory: Path, watcher: Watcher) -> None:
        self._arena = arena
        self._directory = directory
        self._watcher = watcher
        self._sender = Sender(arena.name, directory)
        self._crew = Crew(arena.name)
        self.killed: list[str] = []

    def close(self) -> None:
        """Nobody is left, however it ended."""
        self._crew.stop()
        self._sender.__exit__()

    def _look(self, what: str) -> None:
        self._sender.check_running()
        delivered = self._arena.native.counters()["records completed"]
        self._watcher(what, self._crew.board.sent_count(), delivered)
        time.sleep(LOOK_EVERY_S)

    def work_until(self, sent_count: int) -> None:
        """Looks on until the victim has sent that many events, or everybody is done."""
        while self._crew.is_working() and self._crew.board.sent[VICTIM] < sent_count:
            self._look("four workers, one sender")

    def kill_two(self) -> None:
        """Kills a worker and the sender, and puts successors in their places."""
        self.killed = [self._crew.kill(VICTIM), self._sender.kill()]
        moment_ns = self._arena.native.now_ns()
        self._sender = Sender(self._arena.name, self._directory)
        while _pending_since(self._arena, moment_ns):
            self._look("both killed; the new sender takes over")
        first_row = next_row_of(self._directory, _is_victims)
        self._crew.replace(VICTIM, first_row)

    def finish(self) -> None:
        """Looks on until all workers are done, then lets the sender leave."""
        while self._crew.is_working():
            self._look("four workers, one sender")
        self._sender.drain_and_leave()
        self._watcher("delivered", FLIGHT_COUNT, FLIGHT_COUNT)


def _is_victims(tail_number: str | None) -> bool:
    return worker_of(tail_number or "NA", WORKER_COUNT) == VICTIM


@contextmanager
def _arena() -> Iterator[Arena]:
    name = f"shmaccum-flights-{os.getpid()}"
    arena = Arena.create(name)
    try:
        for topic in topics():
            arena.native.set_topic_partition_count(topic, PARTITION_COUNT)
        yield arena
    finally:
        arena.close()
        Arena.remove(name)


def run(directory: Path, watcher: Watcher, *, is_killing: bool) -> Outcome:
    """Runs the pipeline once.

    Args:
        directory: for the log; one that is there already is replaced.
        watcher: is told how far it is.
        is_killing: a worker and the sender are killed half-way.

    Raises:
        ShmaccumError: a worker or the sender ended by itself.
    """
    shutil.rmtree(directory, ignore_errors=True)
    with _arena() as arena:
        began = time.perf_counter()
        pipeline = _Run(arena, directory, watcher)
        try:
            if is_killing:
                pipeline.work_until(FLIGHT_COUNT // WORKER_COUNT // 2)
                pipeline.kill_two()
            pipeline.finish()
        finally:
            pipeline.close()
        return Outcome(
            directory,
            time.perf_counter() - began,
            arena.statistics(),
            [finding.text for finding in arena.verify(VerifyDepth.DEEP, is_idle=True)],
            pipeline.killed,
        )
