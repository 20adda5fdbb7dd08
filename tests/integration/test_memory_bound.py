# SPDX-License-Identifier: Apache-2.0
"""If the sink of an arena never responds, no process outgrows the figures of docs/how-to/sizing.rst."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterator, Sequence
from multiprocessing.sharedctypes import RawValue
from pathlib import Path

import pytest

from shmaccum._native import DeliveryFuture
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.exceptions import BufferExhaustedError
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from shmaccum.sender.sinks.sink import Ack, Acks, WireBatch
from tests.support.accumulator import Accumulator
from tests.support.arenas import drain
from tests.support.processes import Child, wait_until
from tests.support.sender import TOPIC, ScriptedSink

PARTITIONS = 16
IN_FLIGHT_MAX = 5
BUFFER_MEMORY = 16 << 20
VALUE = bytes(50)
FUTURE_SIZE_MAX = 160
"""Bytes of a stored future, with its pointer in the list."""
IN_FLIGHT_SIZE_MAX = 4 << 10
"""Bytes of a sender for a batch in flight."""
SLACK = 1 << 20
"""Bytes by which any process may grow when it does something for the first time."""


def anonymous_memory(process: int | str = "self") -> int:
    """Bytes of a process that belong to no file and are not shared, so neither to the arena nor to code."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) << 10
    raise AssertionError("the kernel does not say how much of the memory is anonymous")


class SilentSink(ScriptedSink):
    """Takes batches, but acknowledges only the first of each partition, which allows a second one (decision 0019).

    Attributes:
        taken_count: the number of batches it has taken, in memory that a parent process can read.
    """

    def __init__(self) -> None:
        super().__init__(partitions=PARTITIONS, in_flight_max=IN_FLIGHT_MAX)
        self.is_held = True
        self.taken_count = RawValue("i")

    def deliver(self, batches: Sequence[WireBatch]) -> None:
        super().deliver(batches)
        self.taken_count.value += len(batches)

    def poll(self, timeout_s: float, wake_fd: int) -> Sequence[Ack | Acks]:
        first = [wire for wire in self.held if wire.base_sequence == 0]
        self.held = [wire for wire in self.held if wire.base_sequence > 0]
        return [self._answer(wire) for wire in first] or super().poll(timeout_s, wake_fd)


def run_sender(name: str, sink: SilentSink) -> None:
    Sender(Arena.attach(name), sink).run()


def fill(name: str, keeps_futures: bool) -> tuple[int, int]:
    """Send until the arena is full. Return the record count, and by how many bytes this process grew."""
    futures: list[DeliveryFuture] = []
    count = 0
    producer = Producer(name, max_block_ms=0)
    before = anonymous_memory()
    try:
        while True:
            future = producer.send(TOPIC, VALUE, partition=count % PARTITIONS)
            count += 1
            if keeps_futures:
                futures.append(future)
    except BufferExhaustedError:
        return count, anonymous_memory() - before


@pytest.fixture
def sink() -> SilentSink:
    return SilentSink()


@pytest.fixture
def silent_sender(arena_name: str, sink: SilentSink) -> Iterator[Child]:
    """A process with that sink, which has taken its first batch. At the end, the remaining batches are delivered."""
    with Arena.create(arena_name, buffer_memory=BUFFER_MEMORY) as arena:
        sender = Child(run_sender, arena_name, sink)
        try:
            with Producer(arena) as producer:
                producer.send(TOPIC, VALUE, partition=0)
                producer.close(timeout=0)
            wait_until(lambda: sink.taken_count.value == 1, "the sink has the first batch")
            yield sender
        finally:
            sender.kill()
            deliver_what_is_left(arena)


def deliver_what_is_left(arena: Arena) -> None:
    with Accumulator(arena) as accumulator:
        accumulator.become_sender()
        while batches := drain(accumulator):
            for batch in batches:
                accumulator.complete(batch, BatchResult.SUCCEEDED)


@pytest.mark.parametrize("keeps_futures", [False, True])
def test_what_is_held_beside_a_full_arena(
    arena_name: str, sink: SilentSink, silent_sender: Child, keeps_futures: bool
) -> None:
    before = anonymous_memory(silent_sender.pid)
    count, producer_grew = literal_eval(Child(fill, arena_name, keeps_futures).join())
    wait_until(
        lambda: sink.taken_count.value == PARTITIONS * (1 + IN_FLIGHT_MAX),
        "as many batches are in flight as the limit allows",
    )
    sender_grew = anonymous_memory(silent_sender.pid) - before
    print(f"{count} records; grew by {producer_grew} (producer) and {sender_grew} bytes (sender)")
    assert count * len(VALUE) > BUFFER_MEMORY / 2, "the arena was not full"
    assert producer_grew <= SLACK + keeps_futures * count * FUTURE_SIZE_MAX
    assert sender_grew <= SLACK + PARTITIONS * IN_FLIGHT_MAX * IN_FLIGHT_SIZE_MAX
