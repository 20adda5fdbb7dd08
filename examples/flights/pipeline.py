# SPDX-License-Identifier: Apache-2.0
"""The flights pipeline: four worker processes, one arena, one sender process, a log in Kafka's format.

    worker 0 ─┐
    worker 1 ─┤ append     ┌─────────┐  drain   ┌────────┐  writev   out/log/flights.EWR-0 … flights.LGA-2
    worker 2 ─┼──────────> │  arena  │ ───────> │ sender │ ────────>
    worker 3 ─┘            └─────────┘          └────────┘

`Pipeline.kill_and_replace` kills one worker and the sender by SIGKILL in mid-flight, and replaces both. The new sender
delivers the records in the arena, and the log drops those that the dead sender had already written. The new worker asks
the log where the dead one stopped: every committed record is in the arena or in the log, so the log has the answer once
the batches of that time have been delivered.
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
from multiprocessing.context import SpawnProcess
from multiprocessing.queues import Queue
from pathlib import Path

from examples.flights.data import FLIGHT_COUNT, topics, worker_of
from examples.flights.verification import next_row_of
from examples.flights.worker import WORKER_COUNT, Board, Item, continue_work, work
from shmaccum.arena import Arena
from shmaccum.exceptions import NotALogError, ShmaccumError
from shmaccum.log.files import LogDirectory, LogReader

PARTITION_COUNT = 3
KILLED = 2
CHECK_EVERY_S = 0.05
STALK_EVERY_S = 0.0005
DRAIN_TIMEOUT_S = 60.0
IDLE_EXIT = "10s"

Watcher = Callable[[int, int, int], None]
"""Called periodically with the numbers of prepared, sent and delivered events."""


class Sender:
    """The sender process: the same command that a user types. Its messages go to a file beside the log."""

    def __init__(self, arena_name: str, directory: Path, listen: str | None) -> None:
        command = [sys.executable, "-m", "shmaccum", "sender", arena_name, "--sink", f"log:{directory}"]
        command += ["--idle-exit", IDLE_EXIT]  # so that it exits if the run is killed by SIGKILL
        command += ["-X", f"partitions={PARTITION_COUNT}", *([] if listen is None else ["--listen", listen])]
        self._messages = directory.with_name("sender.log")
        with self._messages.open("ab") as messages:
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=messages)

    def kill(self) -> str:
        """Sends SIGKILL. Returns a description of the killed process."""
        self._process.kill()
        self._process.wait()
        return f"the sender (process {self._process.pid})"

    def check(self) -> None:
        """Raises ShmaccumError if the sender has ended unexpectedly."""
        if (code := self._process.poll()) is not None:
            raise ShmaccumError(f"the sender ended with exit code {code}: see {self._messages}")

    def drain_and_leave(self) -> None:
        """Sends SIGTERM: the sender delivers all waiting records, then exits.

        Raises:
            ShmaccumError: the sender ended with an error.
        """
        self._process.send_signal(signal.SIGTERM)
        if (code := self._process.wait(DRAIN_TIMEOUT_S)) != 0:
            raise ShmaccumError(f"the sender ended with exit code {code}: see {self._messages}")

    def end(self) -> None:
        """Kills the sender if it still runs."""
        if self._process.poll() is None:
            self.kill()


class Crew:
    """The workers and their board.

    Attributes:
        board: the counts of the workers.
        queue: the queue through which they send everything again, or None.
    """

    def __init__(self, arena_name: str, flight_count: int, seconds: float, *, has_queue: bool) -> None:
        self._arena_name = arena_name
        self._context = multiprocessing.get_context("spawn")
        self.board = Board(self._context, flight_count, seconds)
        self.queue: Queue[Item] | None = self._context.Queue() if has_queue else None
        self._workers = {
            worker: self._start(work, worker, (arena_name, self.board, worker, self.queue))
            for worker in range(WORKER_COUNT)
        }

    def _start(self, function: Callable[..., None], worker: int, arguments: tuple[object, ...]) -> SpawnProcess:
        process = self._context.Process(target=function, args=arguments, name=f"worker-{worker}", daemon=True)
        process.start()
        return process

    def kill(self, worker: int) -> str:
        """Sends SIGKILL. Returns a description of the killed process."""
        process = self._workers.pop(worker)
        process.kill()
        process.join()
        return f"worker {worker} (process {process.pid})"

    def replace(self, worker: int, first_row: int) -> None:
        """Starts a successor, which continues at `first_row`."""
        self._workers[worker] = self._start(continue_work, worker, (self._arena_name, self.board, worker, first_row))

    def check(self) -> None:
        """Raises ShmaccumError when a worker has ended with an error."""
        for process in self._workers.values():
            if process.exitcode not in {None, 0}:
                raise ShmaccumError(f"{process.name} ended with exit code {process.exitcode}")

    def is_prepared(self) -> bool:
        """True when every event is packed."""
        return bool(sum(self.board.prepared) == self.board.flight_count)

    def has_sent_half(self, worker: int) -> bool:
        """True when the worker has sent half of its events."""
        return bool(self.board.sent[worker] >= self.board.prepared[worker] // 2)

    def is_delivered(self) -> bool:
        """True when each worker has seen all its events delivered."""
        return all(self.board.flushed_ns)

    def end(self) -> None:
        """Kills the workers that still run."""
        for process in self._workers.values():
            process.kill()
            process.join()


class Pipeline:
    """One run, step by step. `open_pipeline` makes it.

    Attributes:
        arena: the arena of the run.
        crew: the workers.
        killed: descriptions of the killed processes.
    """

    def __init__(
        self,
        arena: Arena,
        directory: Path,
        watcher: Watcher,
        *,
        flight_count: int,
        seconds: float,
        has_queue: bool,
        listen: str | None,
    ) -> None:
        self.arena = arena
        self.killed: list[str] = []
        self._directory = directory
        self._watcher = watcher
        self._began_ns = 0
        self._listen = listen
        self._sender = Sender(arena.name, directory, listen)
        self.crew = Crew(arena.name, flight_count, seconds, has_queue=has_queue)

    def _wait_until(self, is_over: Callable[[], bool], every_s: float = CHECK_EVERY_S) -> None:
        while not is_over():
            self._sender.check()
            self.crew.check()
            self._tell()
            time.sleep(every_s)
        self._tell()

    def _tell(self) -> None:
        board = self.crew.board
        self._watcher(sum(board.prepared), sum(board.sent), self.arena.native.counters()["records completed"])

    def prepare(self) -> None:
        """Waits until the sender has its role and the workers have packed every event."""
        self._wait_until(lambda: self.arena.native.sender_is_alive)
        self._wait_until(self.crew.is_prepared)

    def begin(self) -> None:
        """Opens the gate: the workers begin to send."""
        self._began_ns = time.monotonic_ns()
        self.crew.board.meet()

    def kill_and_replace(self) -> None:
        """Kills a worker half-way, and the sender with it. Starts their successors."""
        self._wait_until(lambda: self.crew.has_sent_half(KILLED), STALK_EVERY_S)
        self.killed = [self.crew.kill(KILLED), self._sender.kill()]
        moment_ns = self.arena.native.now_ns()
        self._sender = Sender(self.arena.name, self._directory, self._listen)
        self._wait_until(lambda: not self.arena.holds_from_before(moment_ns))
        self.crew.replace(KILLED, next_row_of(self._directory, _is_of_killed))

    def finish(self) -> float:
        """Waits until every worker has seen its events delivered. Returns the seconds since `begin`."""
        self._wait_until(self.crew.is_delivered)
        return float(max(self.crew.board.flushed_ns) - self._began_ns) / 1e9

    def leave(self) -> None:
        """Lets the sender exit cleanly, even if it has just replaced another one.

        SIGTERM ends a sender at once until it has the role, so this waits for the role first.
        """
        self._wait_until(lambda: self.arena.native.sender_is_alive)
        self._sender.drain_and_leave()

    def end(self) -> None:
        """Kills every remaining process of the run."""
        self.crew.end()
        self._sender.end()


def _is_of_killed(tail_number: str | None) -> bool:
    return worker_of(tail_number, WORKER_COUNT) == KILLED


def _replace(directory: Path) -> None:
    """Removes the log of an older run, and nothing else.

    Raises:
        NotALogError: the directory contains something else.
        LogBusyError: another process writes the log.
    """
    if directory.exists():
        with LogDirectory(directory):
            if strangers := set(LogReader(directory).topics()) - set(topics()):
                raise NotALogError(
                    f"{directory} has topics that are not of this example ({', '.join(sorted(strangers)[:3])}), and "
                    "would be replaced: name a new directory"
                )
        shutil.rmtree(directory)
    directory.parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def open_pipeline(
    directory: Path,
    watcher: Watcher,
    *,
    flight_count: int = FLIGHT_COUNT,
    seconds: float = 0,
    has_queue: bool = False,
    listen: str | None = None,
) -> Iterator[Pipeline]:
    """Yields the arena, the sender and the workers of one run. At the end, none of them is left.

    Args:
        directory: the directory of the log. The log of an older run is replaced.
        watcher: called with the progress of the run.
        flight_count: the number of flights, from the first one in the file.
        seconds: the time over which each worker spreads its sends, or 0 to send as fast as possible.
        has_queue: the workers will send everything again, through `Crew.queue`.
        listen: HOST:PORT where the sender serves the log, or None to serve nothing.

    Raises:
        NotALogError: `directory` is something else than the log of an older run.
    """
    _replace(directory)
    name = f"shmaccum-flights-{os.getpid()}"
    with Arena.create(name) as arena:
        try:
            for topic in topics():
                arena.native.set_topic_partition_count(topic, PARTITION_COUNT)
            pipeline = Pipeline(
                arena,
                directory,
                watcher,
                flight_count=flight_count,
                seconds=seconds,
                has_queue=has_queue,
                listen=listen,
            )
            try:
                yield pipeline
            finally:
                pipeline.end()
        finally:
            Arena.remove(name)
