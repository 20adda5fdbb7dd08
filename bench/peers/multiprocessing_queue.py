# SPDX-License-Identifier: Apache-2.0
"""multiprocessing.Queue of the standard library: a thread of each sender writes pickles to a pipe."""

from __future__ import annotations

import multiprocessing
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.harness.question import Guarantees
from bench.parts.queues import Product, Queue, Send, Take


class StandardQueue(Queue):
    """A queue without calls for many records."""

    def __init__(self) -> None:
        self._queue: multiprocessing.Queue[bytes] = multiprocessing.get_context("fork").Queue()

    @contextmanager
    def open_sender(self) -> Iterator[Send]:
        yield self._queue.put

    @contextmanager
    def open_taker(self) -> Iterator[Take]:
        get = self._queue.get

        def take() -> Sequence[bytes]:
            return (get(),)

        yield take

    def close(self) -> None:
        self._queue.close()


PRODUCT = Product(
    name="multiprocessing.Queue",
    make=StandardQueue,
    calls={"send": "put", "drained": "", "latency": "", "echo": "there and back"},
    version=lambda: f"Python {platform.python_version()}",
    guarantees=Guarantees(record="copy", order="sender", checksum="none", kill="hangs"),
    record_count=30_000,
)
WORKS = PRODUCT.works()
