# SPDX-License-Identifier: Apache-2.0
"""After a partition's first delivery, C code delivers the ordinary batches of ``null:``, with the next offsets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from shmaccum._native import Token
from shmaccum.arena import Arena
from shmaccum.sender import Sender
from shmaccum.sender.sinks.null import NullSink
from shmaccum.sender.sinks.sink import Ack, WireBatch
from tests.support.accumulator import Accumulator

TOPIC = "flights"


class DeliveredSink(NullSink):
    """Counts the batches passed to `deliver`."""

    delivered_count = 0

    def deliver(self, batches: Sequence[WireBatch]) -> None:
        self.delivered_count += len(batches)
        super().deliver(batches)


class WritingSink(NullSink):
    """Overrides `write`."""

    written_count = 0

    def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
        self.written_count += len(batches)
        return super().write(batches)


class Nulling:
    """An arena with an appender and a sender to ``null:``."""

    def __init__(self, accumulator: Accumulator, sender: Sender) -> None:
        self._accumulator = accumulator
        self._sender = sender

    def send(self, partition: int) -> int:
        """Send a record in its own batch, and return its offset."""
        token: Token = self._accumulator.append(TOPIC, partition, 1000, None, b"value")
        for _ in range(1000):
            self._sender.run_once()
            found = self._accumulator.find(token)
            if found is not None:
                return found.offset_of(token)
        raise AssertionError("no result after 1,000 rounds")


@contextmanager
def nulling(arena: Arena, sink: NullSink) -> Iterator[Nulling]:
    with Accumulator(arena) as accumulator, Sender(arena, sink, linger_ms=0) as sender:
        sender.open()
        yield Nulling(accumulator, sender)


def test_all_batches_but_the_first_of_a_partition_go_in_c(arena: Arena) -> None:
    sink = DeliveredSink(partitions=2)
    with nulling(arena, sink) as sending:
        assert [sending.send(number % 2) for number in range(10)] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert sink.delivered_count == 2


def test_a_sink_with_a_write_of_its_own_sees_each_batch(arena: Arena) -> None:
    sink = WritingSink()
    with nulling(arena, sink) as sending:
        assert [sending.send(0) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert sink.written_count == 5


@pytest.mark.parametrize("offset", [2**31 - 1, 2**40])
def test_offsets_continue_where_a_segment_would_end(arena: Arena, offset: int) -> None:
    sink = DeliveredSink()
    with nulling(arena, sink) as sending:
        sending.send(0)
        sink.end_of(0).next_offset = offset
        assert [sending.send(0) for _ in range(5)] == [offset + count for count in range(5)]
    assert sink.delivered_count == 2
