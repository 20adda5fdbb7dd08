# SPDX-License-Identifier: Apache-2.0
"""ZeroMQ through pyzmq: PUSH sockets of the senders, and a PULL socket of the receiver, on a unix socket.

Each process creates its own context. The default high-water mark of 1,000 messages blocks a sender that is faster than
the receiver.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.harness.packages import installed_version, load
from bench.harness.question import Guarantees
from bench.parts.queues import Product, Queue, Send, Take

TAKE_MAX = 100


class ZeroMq(Queue):
    """A unix socket to which the receiver binds and the senders connect."""

    def __init__(self) -> None:
        self._module = load("zmq", "pyzmq")
        self._folder = tempfile.mkdtemp()
        self._address = f"ipc://{self._folder}/socket"

    @contextmanager
    def _socket(self, kind: int) -> Iterator[Any]:
        with self._module.Context() as context, context.socket(kind) as opened:
            yield opened

    @contextmanager
    def open_sender(self) -> Iterator[Send]:
        with self._socket(self._module.PUSH) as push:
            push.connect(self._address)
            yield push.send

    @contextmanager
    def open_taker(self) -> Iterator[Take]:
        with self._socket(self._module.PULL) as pull:
            pull.bind(self._address)

            def take() -> Sequence[bytes]:
                records = [pull.recv()]
                while len(records) < TAKE_MAX and pull.poll(0):
                    records.append(pull.recv())
                return records

            yield take

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


PRODUCT = Product(
    name="ZeroMQ",
    make=ZeroMq,
    calls={"send": "PUSH", "drained": "PUSH", "latency": "PUSH", "echo": "PUSH, there and back"},
    version=lambda: installed_version("pyzmq"),
    guarantees=Guarantees(record="copy", order="sender", checksum="none", kill="lost"),
    record_count=100_000,
)
WORKS = PRODUCT.works()
