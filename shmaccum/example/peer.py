# SPDX-License-Identifier: Apache-2.0
"""The same events through a multiprocessing.Queue: what one would write without shmaccum, for a figure beside ours.

The workers read and pack alike; one process takes the events out and writes their values to a file. No batches, no offsets,
no checksums, and whoever is killed at the wrong moment leaves the queue locked for ever: the least that could be done.
"""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.queues import Queue
from pathlib import Path

from shmaccum.example.flights import Event, events
from shmaccum.example.worker import WORKER_COUNT

Item = Event | None


def _work(queue: Queue[Item], worker: int) -> None:
    for event in events(worker, WORKER_COUNT):
        queue.put(event)
    queue.put(None)


def _write_all(queue: Queue[Item], path: Path) -> int:
    """Takes events until every worker has said that it is done; how many there were."""
    count = working = 0
    with path.open("wb") as stream:
        working = WORKER_COUNT
        while working:
            event = queue.get()
            if event is None:
                working -= 1
                continue
            stream.write(event.value)
            count += 1
    return count


def measure(path: Path) -> float:
    """Events per second from the start of the workers to the last byte written.

    Args:
        path: the file to write; it is removed again.
    """
    context = multiprocessing.get_context("spawn")
    queue: Queue[Item] = context.Queue()
    workers = [context.Process(target=_work, args=(queue, worker)) for worker in range(WORKER_COUNT)]
    began = time.perf_counter()
    for worker in workers:
        worker.start()
    try:
        count = _write_all(queue, path)
    finally:
        for worker in workers:
            worker.join()
        path.unlink(missing_ok=True)
    return count / (time.perf_counter() - began)
