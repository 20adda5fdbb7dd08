# SPDX-License-Identifier: Apache-2.0
"""The same events through a multiprocessing.Queue, for a figure beside ours: the usual way without shmaccum.

One process takes the events out and writes their values to a file. It has no batches, no offsets and no
checksums, and a process that is killed at the wrong moment leaves the queue locked for ever.
"""

from __future__ import annotations

import time
from multiprocessing.queues import Queue
from pathlib import Path

from examples.flights.worker import WORKER_COUNT, Board, Item


def _write_all(queue: Queue[Item], path: Path) -> int:
    """Takes events until every worker has said that it is done. Returns their number."""
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
    """Events per second from the moment the workers begin to the last byte written.

    Args:
        board: of the workers, which wait at its gate.
        queue: to which the workers put their events.
        path: the file to write; it is removed again.
    """
    board.meet()
    began = time.monotonic()
    try:
        count = _write_all(queue, path)
    finally:
        path.unlink(missing_ok=True)
    return count / (time.monotonic() - began)
