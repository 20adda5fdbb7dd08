# SPDX-License-Identifier: Apache-2.0
"""Temporary arenas for measurements, and a process that drains them."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from bench.harness.cleanup import new_name
from bench.harness.question import Guarantees
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from tests.support.accumulator import Accumulator

TOPIC = "flights"
PARTITION_COUNT = 6
LINGER_NS = 5_000_000
DRAIN_SIZE_MAX = 1 << 30
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


def drain(arena_name: str, ready: Connection) -> None:
    """Take the sender's role, report it, and complete every batch unverified until a message arrives."""
    with Arena.attach(arena_name) as arena, Accumulator(arena) as accumulator:
        accumulator.become_sender()
        ready.send(True)
        while not ready.poll():
            partitions, _ = accumulator.ready(LINGER_NS)
            batches, _ = accumulator.drain(partitions, DRAIN_SIZE_MAX)
            for batch in batches:
                accumulator.complete(batch, BatchResult.SUCCEEDED, base_offset=0)
            if not batches:
                accumulator.maintain()
                time.sleep(IDLE_WAIT_S)
        accumulator.abort()


@contextmanager
def drained_arena(partition_count: int = PARTITION_COUNT, **options: Any) -> Iterator[Arena]:
    """Yield an arena with a topic of some partitions, while another process drains it."""
    mine, theirs = multiprocessing.Pipe()
    with temporary_arena(**options) as arena:
        arena.native.set_topic_partition_count(TOPIC, partition_count)
        drainer = multiprocessing.get_context("spawn").Process(target=drain, args=(arena.name, theirs))
        drainer.start()
        theirs.close()
        try:
            mine.recv()
            yield arena
        finally:
            mine.send(None)
            drainer.join()
