# SPDX-License-Identifier: Apache-2.0
"""With durability=sync, how many records per second do eight processes have on disk?

Each process waits for one record at a time, so an fdatasync covers at most one record of each of the eight processes.
Processes that have just returned from an fdatasync may be too late for the next one. Then it covers half as many.
More records per fdatasync need more records in flight: threads, `Producer.synced_together`, `send_many`.

Each contender is compared with one process that writes as many records per wait: 100 bytes before each fdatasync, or
100 times 100 bytes.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from bench.harness.cleanup import new_name
from bench.harness.native import BUILD
from bench.harness.question import Contender, Figure, Goal, Measurement, Question, UnavailableError
from bench.parts.arenas import PARTITION_COUNT, TOPIC
from bench.parts.receiving import VALUE, forked
from shmaccum.arena import Arena
from shmaccum.exceptions import InvalidArgumentError
from shmaccum.producer import Producer

PEER = "one process: write 100 bytes, fdatasync"
PEER_TOGETHER = "one process: write 100 times 100 bytes, fdatasync"
ONE_BY_ONE, TOGETHER = "8 processes, send", "8 processes, 100 sends synced_together"
PROCESS_COUNT = 8
SECONDS = 0.4  # no process drains, so the records of all this time must fit into the arena
BEGIN_S = 0.3
TOGETHER_COUNT = 100
FILE_SIZE = 16 << 20

Step = Callable[[Producer], int]


def _send(producer: Producer) -> int:
    producer.send(TOPIC, VALUE)
    return 1


def _send_together(producer: Producer) -> int:
    with producer.synced_together():
        for _ in range(TOGETHER_COUNT):
            producer.send(TOPIC, VALUE)
    return TOGETHER_COUNT


def _send_many(producer: Producer) -> int:
    producer.send_many(TOPIC, [VALUE] * TOGETHER_COUNT)
    return TOGETHER_COUNT


def _repeat(producer: Producer, step: Step, begin_s: float, counts: list[int]) -> None:
    """Run the work of a thread from `begin_s` on."""
    time.sleep(max(begin_s - time.monotonic(), 0))
    count = 0
    while time.monotonic() < begin_s + SECONDS:
        count += step(producer)
    counts.append(count)


def _work(path: Path, step: Step, thread_count: int, begin_s: float, results: SimpleQueue[int]) -> None:
    """Run the work of a process."""
    counts: list[int] = []
    producer = Producer(path, close_timeout_ms=0)
    arguments = (producer, step, begin_s, counts)
    threads = [threading.Thread(target=_repeat, args=arguments) for _ in range(thread_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put(sum(counts))


def _synced(step: Step, thread_count: int = 1) -> Callable[[], Measurement]:
    def run() -> Measurement:
        with _folder() as folder, _create(folder / "sync.arena") as arena:
            arena.native.set_topic_partition_count(TOPIC, PARTITION_COUNT)
            record_count = _measured(folder / "sync.arena", step, thread_count)
            sync_count = arena.native.counters()["times the arena was forced to disk"]
        return {"records_per_s": record_count / SECONDS, "records_per_sync": record_count / sync_count}

    return run


def _measured(path: Path, step: Step, thread_count: int) -> int:
    results: SimpleQueue[int] = multiprocessing.get_context("fork").SimpleQueue()
    begin_s = time.monotonic() + BEGIN_S
    processes = forked(_work, [(path, step, thread_count, begin_s, results)] * PROCESS_COUNT)
    for process in processes:
        process.start()
    record_count = sum(results.get() for _ in processes)
    for process in processes:
        process.join()
    return record_count


def _written(records_per_sync: int) -> Measurement:
    """Write to a file that already has its final size, with an fdatasync after each write. This is the floor."""
    with _folder() as folder, (folder / "file").open("wb", buffering=0) as file:
        descriptor, count = file.fileno(), 0
        os.posix_fallocate(descriptor, 0, FILE_SIZE)
        os.fsync(descriptor)
        end_s = time.monotonic() + SECONDS
        while time.monotonic() < end_s:
            for _ in range(records_per_sync):
                os.pwrite(descriptor, VALUE, count * len(VALUE) % FILE_SIZE)
                count += 1
            os.fdatasync(descriptor)
    return {"records_per_s": count / SECONDS, "records_per_sync": records_per_sync}


@contextmanager
def _folder() -> Iterator[Path]:
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix=f"{new_name()}-") as folder:
        yield Path(folder)


def _create(path: Path) -> Arena:
    try:
        return Arena.create(path, buffer_memory="128MiB", durability="sync")
    except InvalidArgumentError as error:
        raise UnavailableError(f"{path.parent} lies in memory, where nothing can be forced to disk: {error}") from None


def contenders() -> list[Contender]:
    """Return contenders with one to a hundred records in flight per process."""
    return [
        Contender(ONE_BY_ONE, _synced(_send)),
        Contender("8 processes of 8 threads, send", _synced(_send, thread_count=8)),
        Contender(TOGETHER, _synced(_send_together), peer=PEER_TOGETHER),
        Contender("8 processes, send_many of 100", _synced(_send_many), peer=PEER_TOGETHER),
        Contender(PEER, lambda: _written(1)),
        Contender(PEER_TOGETHER, lambda: _written(TOGETHER_COUNT), peer=PEER_TOGETHER),
    ]


QUESTION = Question(
    title="records of 100 B that are on disk when the call returns (durability=sync)",
    figures=(
        Figure("records_per_s", "records/s", 1, "higher"),
        Figure("records_per_sync", "records per fdatasync", 1, "higher"),
    ),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
    goals=(
        Goal("8 processes, of one process that waits as often", ONE_BY_ONE, "records_per_s", 1, is_ratio=True),
        Goal("8 processes, 100 records per wait, of one process", TOGETHER, "records_per_s", 1, is_ratio=True),
    ),
)
