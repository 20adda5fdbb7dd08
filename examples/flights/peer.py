# SPDX-License-Identifier: Apache-2.0
"""The same events through a multiprocessing.Queue, for comparison: the usual way without shmaccum.

One process takes the events from the queue and writes their values to a file. It has no batches, no offsets and no
checksums, and a process that is killed at the wrong moment leaves the queue locked permanently.
"""

from __future__ import annotations

import time
from multiprocessing.queues import Queue
from pathlib import Path

from examples.flights.worker import WORKER_COUNT, Board, Item


def _write_all(queue: Queue[Item], path: Path) -> int:
    """Takes events until every worker is done. Returns their number."""
    count, working = 0, WORKER_COUNT
    with path.open("wb") as stream:
        while working:
            event = queue.get()
            if event is None:
                working -= 1
                continue
            stream.write(event.value)
            count += 1
    return count


def measure(board: Board, queue: Queue[Item], path: Path) -> float:
    """Returns the events per second, from the start of the workers to the last byte written.

    Args:
        board: the board of the workers, which wait at its gate.
        queue: the workers put their events into it.
        path: the file to write, which is removed afterwards.
    """
    board.meet()
    began = time.monotonic()
    try:
        count = _write_all(queue, path)
    finally:
        path.unlink(missing_ok=True)
    return count / (time.monotonic() - began)
