# SPDX-License-Identifier: Apache-2.0
"""iceoryx2 from Python: publish and subscribe through shared memory, as its examples with data of dynamic size do.

A publisher borrows a sample, copies the record into it, and sends it. The subscriber has space for thousands, and
publishers wait if it has none, so that no record is lost.
"""

from __future__ import annotations

import ctypes
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.harness.cleanup import new_name
from bench.harness.packages import installed_version, load
from bench.harness.question import Guarantees
from bench.parts.queues import Product, Queue, Send, Take
from bench.parts.sending import VALUE

SAMPLE_COUNT = 8192
PUBLISHER_COUNT_MAX = 4
TAKE_MAX = 100
IDLE_WAIT_S = 0.00002


class Iceoryx2(Queue):
    """A service with a directory for the files of iceoryx2."""

    def __init__(self) -> None:
        self._module = load("iceoryx2", "iceoryx2")
        self._module.set_log_level(self._module.LogLevel.Error)
        self._prefix = f"{new_name()}_"
        self._directory = tempfile.mkdtemp(prefix=self._prefix)

    @contextmanager
    def _service(self) -> Iterator[Any]:
        module = self._module
        config = module.config.default()
        config.global_cfg.root_path = module.Path.new(self._directory)
        config.global_cfg.prefix = module.FileName.new(self._prefix)
        node = module.NodeBuilder.new().config(config).create(module.ServiceType.Ipc)
        yield (
            node.service_builder(module.ServiceName.new("records"))
            .publish_subscribe(module.Slice[ctypes.c_uint8])
            .enable_safe_overflow(False)
            .subscriber_max_buffer_size(SAMPLE_COUNT)
            .max_publishers(PUBLISHER_COUNT_MAX)
            .open_or_create()
        )

    @contextmanager
    def open_sender(self) -> Iterator[Send]:
        with self._service() as service:
            builder = service.publisher_builder().initial_max_slice_len(len(VALUE))
            publisher = builder.backpressure_strategy(self._module.BackpressureStrategy.RetryUntilDelivered).create()
            borrow, copy = publisher.loan_slice_uninit, ctypes.memmove

            def send(record: bytes) -> None:
                sample = borrow(len(record))
                copy(sample.payload_ptr, record, len(record))
                sample.assume_init().send()

            yield send
            publisher.delete()

    @contextmanager
    def open_taker(self) -> Iterator[Take]:
        with self._service() as service:
            subscriber = service.subscriber_builder().create()
            receive, copy = subscriber.receive, ctypes.string_at

            def take() -> list[bytes]:
                records: list[bytes] = []
                while len(records) < TAKE_MAX:
                    sample = receive()
                    if sample is None:
                        break
                    records.append(copy(sample.payload_ptr, len(VALUE)))
                    sample.delete()
                if not records:
                    time.sleep(IDLE_WAIT_S)
                return records

            yield take
            subscriber.delete()

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        for left in Path("/dev/shm").glob(f"{self._prefix}*"):
            left.unlink()


PRODUCT = Product(
    name="iceoryx2",
    make=Iceoryx2,
    calls={"send": "loan and send", "drained": "loan and send", "latency": "loan and send", "echo": "there and back"},
    version=lambda: installed_version("iceoryx2"),
    guarantees=Guarantees(record="copy", order="sender", checksum="none", kill="lost"),
    record_count=50_000,
)
WORKS = PRODUCT.works()
