# SPDX-License-Identifier: Apache-2.0
"""cloudtoid-interprocess: a named queue of bytes in shared memory, written in Rust, used from Python.

A send returns False if the queue is full. The queue has space for a whole round of single sends, so their result is
ignored. A call with many records is repeated for the records that are left.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.harness.cleanup import new_name
from bench.harness.packages import installed_version, load
from bench.harness.question import Guarantees
from bench.parts.queues import Product, Queue, Send, SendMany, Take

CAPACITY = 64 << 20
RECEIVE_TIMEOUT_S = 10
TAKE_MAX = 100
RETRY_S = 0.0001


class Interprocess(Queue):
    """One queue. The first process that opens an end creates the queue, and the last one that closes an end removes
    it.
    """

    def __init__(self) -> None:
        self._module = load("cloudtoid_interprocess", "cloudtoid-interprocess")
        self._name = new_name()

    @contextmanager
    def open_sender(self) -> Iterator[Send]:
        with self._module.Publisher(self._name, CAPACITY) as publisher:
            yield publisher.try_send

    @contextmanager
    def open_many_sender(self) -> Iterator[SendMany]:
        with self._module.Publisher(self._name, CAPACITY) as publisher:
            try_send_batch = publisher.try_send_batch

            def send_all(records: list[bytes]) -> None:
                sent = try_send_batch(records)
                while sent < len(records):
                    time.sleep(RETRY_S)
                    sent += try_send_batch(records[sent:])

            yield send_all

    @contextmanager
    def open_taker(self) -> Iterator[Take]:
        with self._module.Subscriber(self._name, CAPACITY) as subscriber:
            receive, try_receive = subscriber.receive, subscriber.try_receive

            def take() -> list[bytes]:
                first = receive(timeout=RECEIVE_TIMEOUT_S)
                assert first is not None, "no record arrived: one was rejected"
                records = [first]
                while len(records) < TAKE_MAX and (record := try_receive()) is not None:
                    records.append(record)
                return records

            yield take


PRODUCT = Product(
    name="cloudtoid-interprocess",
    make=Interprocess,
    calls={"send": "try_send", "send_many": "try_send_batch", "drained": "try_send_batch", "latency": "try_send"},
    version=lambda: installed_version("cloudtoid-interprocess"),
    guarantees=Guarantees(record="copy", order="queue", checksum="none", kill="kept"),
    record_count=400_000,
)
WORKS = PRODUCT.works()
