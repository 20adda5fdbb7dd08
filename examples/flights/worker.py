# SPDX-License-Identifier: Apache-2.0
"""A worker process: reads and packs its share of the flights, then sends them as fast as it can.

Reading and packing costs the same with every way of sending, so it comes first, and the clock starts when all workers
are ready. A worker waits for nothing while it sends, and stores no future. `flush` at the end waits until all records
of this process are delivered. For comparison, the same events then go through a multiprocessing.Queue.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from multiprocessing.context import SpawnContext
from multiprocessing.queues import Queue
from typing import Any

from examples.flights.data import Event, events
from shmaccum.producer import Producer

WORKER_COUNT = 4
FLUSH_TIMEOUT_S = 60.0
READY_TIMEOUT_S = 120.0
PACED_COUNT = 100
"""The number of events that a worker sends between two pauses, when it spreads its sends."""

Item = Event | None
"""An item of the queue. None means that a worker is done."""


class Board:
    """The counts of the workers, readable by all processes, and the gate where they wait for each other.

    Attributes:
        flight_count: the number of flights that all workers send together.
        seconds: the time over which a worker spreads its sends, or 0 to send as fast as possible.
    """

    def __init__(self, context: SpawnContext, flight_count: int, seconds: float) -> None:
        self.flight_count = flight_count
        self.seconds = seconds
        self.prepared: Any = context.RawArray("q", WORKER_COUNT)
        """Events packed, by worker."""
        self.sent: Any = context.RawArray("q", WORKER_COUNT)
        """Events sent, by worker."""
        self.flushed_ns: Any = context.RawArray("q", WORKER_COUNT)
        """The time at which all events of a worker were delivered, on the clock of time.monotonic_ns; 0 until then."""
        self._gate = context.Barrier(WORKER_COUNT + 1)

    def meet(self) -> None:
        """Waits until all workers, and the process that started them, are here."""
        self._gate.wait(READY_TIMEOUT_S)


def _prepare(board: Board, worker: int) -> list[Event]:
    prepared = []
    for event in events(worker, WORKER_COUNT, flight_count=board.flight_count):
        prepared.append(event)
        board.prepared[worker] = len(prepared)
    return prepared


def _paced(prepared: Sequence[Event], seconds: float) -> Iterator[Event]:
    """Yields the events, spread evenly over the time."""
    began = time.monotonic()
    for number, event in enumerate(prepared):
        if number % PACED_COUNT == 0:
            time.sleep(max(began + seconds * number / len(prepared) - time.monotonic(), 0))
        yield event


def _send(arena_name: str, board: Board, worker: int, prepared: Sequence[Event]) -> None:
    with Producer(arena_name) as producer:
        for event in _paced(prepared, board.seconds) if board.seconds else prepared:
            producer.send(event.topic, event.value, event.key)
            board.sent[worker] += 1
        producer.flush(FLUSH_TIMEOUT_S)
    board.flushed_ns[worker] = time.monotonic_ns()


def work(arena_name: str, board: Board, worker: int, queue: Queue[Item] | None) -> None:
    """Sends all events of one worker when all processes are ready. Then, if there is a queue, sends them through it.

    Raises:
        FlushTimeoutError: the events were not delivered within a minute.
    """
    prepared = _prepare(board, worker)
    board.meet()
    _send(arena_name, board, worker, prepared)
    if queue is None:
        return
    board.meet()
    for event in prepared:
        queue.put(event)
    queue.put(None)


def continue_work(arena_name: str, board: Board, worker: int, first_row: int) -> None:
    """Sends the remaining events of a killed worker at once, as its successor."""
    rest = list(events(worker, WORKER_COUNT, first_row=first_row, flight_count=board.flight_count))
    _send(arena_name, board, worker, rest)
