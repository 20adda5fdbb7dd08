# SPDX-License-Identifier: Apache-2.0
"""faster-fifo: a queue in inherited memory. Its documentation recommends `put_many` and `get_many`.

Records are bytes, so the serializers are replaced as the documentation shows, and nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bench.harness.packages import installed_version, load
from bench.harness.question import Guarantees
from bench.parts.queues import Product, Queue, Send, SendMany, Take

QUEUE_SIZE = 32 << 20
TIMEOUT_S = 60


def _as_it_is(record: bytes) -> bytes:
    return record


class FasterFifo(Queue):
    """One queue. The object itself is both ends."""

    def __init__(self) -> None:
        module = load("faster_fifo", "faster-fifo")
        self._queue = module.Queue(QUEUE_SIZE, loads=bytes, dumps=_as_it_is)

    @contextmanager
    def open_sender(self) -> Iterator[Send]:
        yield self._queue.put

    @contextmanager
    def open_many_sender(self) -> Iterator[SendMany]:
        def put_many(records: list[bytes]) -> None:
            self._queue.put_many(records, timeout=TIMEOUT_S)

        yield put_many

    @contextmanager
    def open_taker(self) -> Iterator[Take]:
        yield lambda: self._queue.get_many(timeout=TIMEOUT_S)


PRODUCT = Product(
    name="faster-fifo",
    make=FasterFifo,
    calls={
        "send": "put",
        "send_many": "put_many",
        "drained": "put_many",
        "latency": "put",
        "echo": "put, there and back",
    },
    version=lambda: installed_version("faster-fifo"),
    guarantees=Guarantees(record="copy", order="queue", checksum="none", kill="hangs"),
    record_count=100_000,
    call_size=100,
)
WORKS = PRODUCT.works()
