# SPDX-License-Identifier: Apache-2.0
"""Temporary arenas for measurements, and the sender that drains them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench.harness.cleanup import new_name
from bench.harness.question import Guarantees
from shmaccum.arena import Arena

TOPIC = "flights"
PARTITION_COUNT = 6
LINGER_MS = 5
IDLE_WAIT_S = 0.00005

GUARANTEES = Guarantees(record="copy", order="partition", checksum="CRC32C", kill="kept")
"""The guarantees for every record in an arena."""


@contextmanager
def temporary_arena(**options: Any) -> Iterator[Arena]:
    """Yield a new arena with `options`, and remove it at the end."""
    name = new_name()
    with Arena.create(name, **options) as arena:
        try:
            yield arena
        finally:
            Arena.remove(name)


@contextmanager
def sender_process(arena: Arena, sink: str = "null:", **options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the product's sender in a new process. The block begins when the process has the role."""
    command = [sys.executable, "-m", "shmaccum.sender", arena.name, "--no-log", "--sink", sink]
    command += [word for name, value in options.items() for word in ("--set", f"{name}={value}")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not arena.native.sender_is_alive:
            if process.poll() is not None:
                raise RuntimeError(f"{command} has ended with {process.returncode}")
            time.sleep(IDLE_WAIT_S)
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def drained_arena(partition_count: int = PARTITION_COUNT, **options: Any) -> Iterator[Arena]:
    """Yield an arena with a topic of some partitions, while a sender in another process delivers to ``null:``."""
    with temporary_arena(**options) as arena:
        arena.native.set_topic_partition_count(TOPIC, partition_count)
        with sender_process(arena, linger_ms=f"{LINGER_MS}ms"):
            yield arena
