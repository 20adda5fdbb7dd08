# SPDX-License-Identifier: Apache-2.0
"""multiprocessing.Queue of the standard library."""

from __future__ import annotations

import multiprocessing
import platform
from typing import Any

from bench.harness.question import Contender, Measurement
from bench.taking import PRODUCER_COUNT, VALUE, forked, taken

RECORD_COUNT = 50_000


def _put(queue: Any) -> None:
    for _ in range(RECORD_COUNT):
        queue.put(VALUE)


def _take_all() -> Measurement:
    queue = multiprocessing.get_context("fork").Queue()

    def take() -> tuple[int, int]:
        queue.get()
        return 1, 1

    return taken(forked(_put, [(queue,)] * PRODUCER_COUNT), take, RECORD_COUNT * PRODUCER_COUNT)


def _drained() -> list[Contender]:
    return [Contender("multiprocessing.Queue", _take_all, version=lambda: f"Python {platform.python_version()}")]


WORKS = {"drained": _drained}
