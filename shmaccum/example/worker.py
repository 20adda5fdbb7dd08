# SPDX-License-Identifier: Apache-2.0
"""A worker process: turns its share of the flights into events and sends them.

What a worker does per event is what any service does: read, pack, send. It waits for nothing, and it keeps no future but
the last: `flush` at the end waits until everything this process sent was delivered.
"""

from __future__ import annotations

import multiprocessing.sharedctypes
from typing import Any

from shmaccum.example.flights import events
from shmaccum.producer import Producer

WORKER_COUNT = 4
FLUSH_TIMEOUT_S = 60.0


class Board:
    """Numbers that the workers chalk up and everybody can read: how many events each has sent."""

    def __init__(self) -> None:
        self.sent: Any = multiprocessing.sharedctypes.RawArray("q", WORKER_COUNT)

    def sent_count(self) -> int:
        """Of all workers together."""
        return sum(self.sent)


def work(arena_name: str, board: Board, worker: int, first_row: int) -> None:
    """Sends the events of one worker from `first_row` on, and waits until they are delivered.

    Raises:
        TimeoutError: they were not, within a minute.
    """
    with Producer(arena_name) as producer:
        for event in events(worker, WORKER_COUNT, first_row):
            producer.send(event.topic, event.value, event.key)
            board.sent[worker] += 1
        producer.flush(FLUSH_TIMEOUT_S)
