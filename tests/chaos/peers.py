# SPDX-License-Identifier: Apache-2.0
"""The effect of a killed producer on others, in shmaccum, in ``multiprocessing.Queue`` and in faster-fifo.

In a trial, three processes put numbered items and one takes them. One of the three is killed at a random moment.

* *hang*: for two seconds, the consumer gets no item of one or both survivors;
* *lost*: items of any producer whose ``put`` (``send``) had returned, and that the consumer never got.

``python -m tests.chaos.peers [TRIALS] [SEED]`` prints a table. It names a peer that is not installed (``pip install
faster-fifo``).
"""

from __future__ import annotations

import importlib
import mmap
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from shmaccum.arena import Arena
from shmaccum.log.files.reader import LogReader
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from tests.chaos.ledger import VALUE
from tests.support.processes import wait_until

PRODUCERS = 3
HANG_S = 2.0
KILL_AFTER_S = (0.005, 0.05)
PROGRESS = 200
"""The items of each survivor that the consumer must get after the kill."""
AHEAD_MAX = 20_000
"""The items of a producer that may be in transit. shmaccum's log is unbounded, and its reader here is slower."""
TOPIC = "trial"
IS_OVER = 0
ACKNOWLEDGED = 1
TAKEN = ACKNOWLEDGED + PRODUCERS
WORD_COUNT = TAKEN + PRODUCERS
BOUNDED_TO = 1000
"""The maximum of items in a queue. For shmaccum, an arena of about that size."""

Put = Callable[[bytes], object]


class Contender(Protocol):
    """A queue between producers and a consumer."""

    name: str

    @contextmanager
    def producing(self) -> Iterator[Put]:
        """Yield a function that puts an item. The end of the context delivers all items."""

    def consume(self, words: memoryview) -> None:
        """Count the items of each producer in the consumer, until it is killed."""

    def close(self) -> None:
        """Remove what it created."""


class Queues:
    """Anything with ``put`` and ``get``."""

    def __init__(self, name: str, queue: Any) -> None:
        self.name = name
        self._queue = queue

    @contextmanager
    def producing(self) -> Iterator[Put]:
        yield self._queue.put
        if hasattr(self._queue, "join_thread"):
            self._queue.close()
            self._queue.join_thread()

    def consume(self, words: memoryview) -> None:
        while True:
            _take(words, self._queue.get(timeout=3600))

    def close(self) -> None:
        """Do nothing: semaphores and memory end with the processes."""


class Shmaccum:
    """An arena, a sender and a log, which the consumer reads."""

    name = "shmaccum"

    def __init__(self) -> None:
        self._arena_name = f"shmaccum-test-{os.getpid()}-peers"
        self._folder = tempfile.TemporaryDirectory(dir="/dev/shm", prefix="shmaccum-test-")
        self._log = Path(self._folder.name) / "log"
        with Arena.create(self._arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena:
            arena.native.set_topic_partition_count(TOPIC, 1)
        self._sender = _fork(self._send)

    def _send(self) -> None:
        with Sender(self._arena_name, f"log:{self._log}", linger_ms=0) as sender:
            sender.run()

    @contextmanager
    def producing(self) -> Iterator[Put]:
        with Producer(self._arena_name, linger_ms=0) as producer:
            yield lambda item: producer.send(TOPIC, item, partition=0)

    def consume(self, words: memoryview) -> None:
        wait_until((self._log / f"{TOPIC}-0").exists, "the log is there")
        for batch in LogReader(self._log).partition(TOPIC, 0).follow(0):
            for record in batch.records():
                assert record.value is not None
                _take(words, record.value)

    def close(self) -> None:
        _kill(self._sender)
        Arena.remove(self._arena_name)
        self._folder.cleanup()


def _take(words: memoryview, item: bytes) -> None:
    """Count an item. Items of one producer arrive in order, so the count is the last number plus one."""
    producer, sequence = VALUE.unpack(item)
    words[TAKEN + producer] = max(words[TAKEN + producer], sequence + 1)


def _faster_fifo() -> Queues:
    queue = importlib.import_module("faster_fifo").Queue(BOUNDED_TO * 64)
    return Queues("faster-fifo", queue)


def _multiprocessing() -> Queues:
    return Queues("multiprocessing.Queue", multiprocessing.get_context("fork").Queue(BOUNDED_TO))


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "shmaccum": Shmaccum,
    "multiprocessing.Queue": _multiprocessing,
    "faster-fifo": _faster_fifo,
}


# --- a trial


@dataclass(frozen=True)
class Trial:
    """The result of one trial."""

    has_hung: bool
    lost_count: int


@dataclass(frozen=True)
class Row:
    """All trials of a contender."""

    name: str
    trials: tuple[Trial, ...]

    @property
    def hang_count(self) -> int:
        return sum(trial.has_hung for trial in self.trials)

    @property
    def lost_count(self) -> int:
        """The lost items of all trials."""
        return sum(trial.lost_count for trial in self.trials)

    def __str__(self) -> str:
        with_losses = sum(trial.lost_count > 0 for trial in self.trials)
        return (
            f"{self.name:<22} {self.hang_count:>4} of {len(self.trials)} trials hang   "
            f"{with_losses:>4} lose something, {self.lost_count:,} items in all"
        )


def _fork(function: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            function()
            os._exit(0)
        os._exit(1)
    return pid


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _wait_for_ends(pids: Sequence[int]) -> None:
    """Wait with a time limit, since a process that hangs does not end."""
    deadline_s = time.monotonic() + HANG_S
    while not all(_has_ended(pid) for pid in pids) and time.monotonic() < deadline_s:
        time.sleep(0.001)


def _produce(contender: Contender, words: memoryview, producer: int) -> None:
    with contender.producing() as put:
        sequence = 0
        while not words[IS_OVER]:
            put(VALUE.pack(producer, sequence))
            sequence += 1
            words[ACKNOWLEDGED + producer] = sequence
            while sequence - words[TAKEN + producer] > AHEAD_MAX and not words[IS_OVER]:
                time.sleep(0.001)


def _come_out(words: memoryview, targets: dict[int, int]) -> bool:
    """Wait for this many items of each producer. Return False if a missing producer makes no progress for long."""
    changed_s, seen = time.monotonic(), list(words[TAKEN:])
    while short := [producer for producer, target in targets.items() if words[TAKEN + producer] < target]:
        taken = list(words[TAKEN:])
        if any(taken[producer] != seen[producer] for producer in short):
            changed_s = time.monotonic()
        seen = taken
        if time.monotonic() > changed_s + HANG_S:
            return False
        time.sleep(0.001)
    return True


def run_trial(contender: Contender, chance: random.Random) -> Trial:
    """Start all processes, kill one, and check the others."""
    words = memoryview(mmap.mmap(-1, WORD_COUNT * 8)).cast("Q")
    consumer = _fork(lambda: contender.consume(words))
    producers = [_fork(partial(_produce, contender, words, number)) for number in range(PRODUCERS)]
    try:
        wait_until(lambda: min(words[TAKEN:]) > 0, "everybody is heard of")
        time.sleep(chance.uniform(*KILL_AFTER_S))
        killed = chance.randrange(PRODUCERS)
        _kill(producers[killed])
        producers[killed] = 0
        survivors = [number for number in range(PRODUCERS) if number != killed]
        has_hung = not _come_out(words, {number: words[ACKNOWLEDGED + number] + PROGRESS for number in survivors})
        words[IS_OVER] = 1
        _wait_for_ends([producers[number] for number in survivors])
        _come_out(words, {number: words[ACKNOWLEDGED + number] for number in range(PRODUCERS)})
        lost_count = sum(max(words[ACKNOWLEDGED + number] - words[TAKEN + number], 0) for number in range(PRODUCERS))
        return Trial(has_hung, lost_count)
    finally:
        for pid in (*producers, consumer):
            if pid:
                _kill(pid)


def run_trials(name: str, count: int, chance: random.Random) -> Row:
    """Run each trial with a new queue, since a queue that hangs stays unusable.

    Raises:
        ModuleNotFoundError: this peer is not installed.
    """
    trials = []
    for _ in range(count):
        contender = CONTENDERS[name]()
        try:
            trials.append(run_trial(contender, chance))
        finally:
            contender.close()
    return Row(name, tuple(trials))


def run_or_tell(name: str, count: int, seed: int) -> Row | str:
    """Return a contender's row, or the reason for its absence."""
    try:
        return run_trials(name, count, random.Random(seed))
    except ModuleNotFoundError as error:
        return f"{name:<22} is not asked: {error}"


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    count = int(arguments[0]) if arguments else 100
    seed = int(arguments[1]) if len(arguments) > 1 else random.SystemRandom().getrandbits(32)
    print(f"seed {seed}", flush=True)
    for name in CONTENDERS:
        print(run_or_tell(name, count, seed), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
