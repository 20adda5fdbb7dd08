# SPDX-License-Identifier: Apache-2.0
"""faster-fifo, in calls of a hundred: its documentation recommends `put_many` and `get_many`."""

from __future__ import annotations

import importlib.metadata
from typing import Any

from bench.harness.question import Contender, Measurement
from bench.taking import PRODUCER_COUNT, VALUE, forked, taken

RECORD_COUNT = 200_000
CALL = [VALUE] * 100
QUEUE_SIZE = 32 << 20
TIMEOUT_S = 60


def _put(queue: Any) -> None:
    for _ in range(RECORD_COUNT // len(CALL)):
        queue.put_many(CALL, timeout=TIMEOUT_S)


def _take_all() -> Measurement:
    import faster_fifo  # type: ignore[import-not-found, unused-ignore]

    queue = faster_fifo.Queue(QUEUE_SIZE)

    def take() -> tuple[int, int]:
        return len(queue.get_many(timeout=TIMEOUT_S)), 1

    return taken(forked(_put, [(queue,)] * PRODUCER_COUNT), take, RECORD_COUNT * PRODUCER_COUNT)


def _drained() -> list[Contender]:
    return [Contender("faster-fifo put_many", _take_all, version=lambda: importlib.metadata.version("faster-fifo"))]


WORKS = {"drained": _drained}
