# SPDX-License-Identifier: Apache-2.0
"""A minimal sender, which runs the contract of `shmaccum.sender.sinks.sink` step by step."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.config import SenderOptions
from shmaccum.sender.sinks.sink import NO_PRODUCER_ID, Ack, Sink, Verdict, WireBatch, each_ack
from tests.support.accumulator import Accumulator
from tests.support.processes import WATCHDOG_S

if sys.version_info >= (3, 11):
    from typing import Self
else:
    from typing_extensions import Self

RESULTS: Mapping[Verdict, BatchResult] = {Verdict.DELIVERED: BatchResult.SUCCEEDED, Verdict.REFUSED: BatchResult.FAILED}


class Loop:
    """Holds the sender role of an arena, and an open sink.

    It is its own `SinkHost`. Retries have no backoff, and a batch that is too large fails.

    Attributes:
        acks: all acks so far.
        reports: the reports of the sink.
        forgets_acks: acked batches stay in flight, as if the sender had died just before.
    """

    def __init__(self, arena: Arena, sink: Sink, *, has_producer_id: bool = False, **options: Any) -> None:
        self.arena = arena
        self.sink = sink
        self.options = SenderOptions.parse(options)
        self.acks: list[Ack] = []
        self.reports: list[str] = []
        self.accumulator = Accumulator(arena)
        self.accumulator.become_sender()
        self._wake_read_fd, self._wake_write_fd = os.pipe()
        self._has_producer_id = has_producer_id
        self.forgets_acks = False
        self.ended_backoffs: list[int] = []
        self.unavailable: set[int] = set()
        sink.open(self)

    # --- SinkHost

    @property
    def arena_name(self) -> str:
        return self.arena.name

    @property
    def durability(self) -> str:
        return self.arena.durability

    @property
    def sync_interval_ms(self) -> None:
        """A sink to brokers does not use it."""
        return None

    @property
    def permissions(self) -> tuple[int, int, int]:
        return self.arena.permissions

    @property
    def transactions(self) -> None:
        """Tests of transactions use the real sender."""
        return None

    def topic_partition(self, partition_index: int) -> tuple[str, int]:
        return self.arena.native.partitions()[partition_index]

    def report(self, sentence: str) -> None:
        self.reports.append(sentence)

    def partition_count(self, topic: str) -> int:
        return 0

    def end_backoff(self, partition_index: int) -> None:
        self.ended_backoffs.append(partition_index)

    def set_available(self, partition_index: int, is_available: bool) -> None:
        (self.unavailable.discard if is_available else self.unavailable.add)(partition_index)

    def show_life(self) -> None:
        """No process watches this sender."""

    def wake(self) -> None:
        os.write(self._wake_write_fd, b"!")

    # --- rounds

    def run_once(self, timeout_s: float = 0.05) -> list[Ack]:
        """Drain the planned batches, deliver them, and complete the acked ones."""
        if self._has_producer_id or self._take_producer_id():
            ready, _ = self.accumulator.ready(0, True)
            limits = self.sink.limits
            for planned in self.sink.plan(ready):
                batches, _ = self.accumulator.drain(planned, limits.request_size_max, limits.in_flight_max)
                if batches:
                    self.sink.deliver([wire_of(batch) for batch in batches])
        acks = list(each_ack(self.sink.poll(timeout_s, self._wake_read_fd)))
        for ack in acks:
            self._complete(ack)
        return acks

    def _take_producer_id(self) -> bool:
        ids = self.sink.producer_ids
        found = NO_PRODUCER_ID if ids is None else ids.new_producer_id()
        if found is not None:
            self.accumulator.set_producer_id(*found)
            self._has_producer_id = True
        return self._has_producer_id

    def _complete(self, ack: Ack) -> None:
        batch, ack.wire.buffers = ack.wire.batch, ()
        self.acks.append(ack)
        if self.forgets_acks:
            return
        if ack.verdict is Verdict.RETRY:
            self.accumulator.requeue(batch, self.arena.native.now_ns() + (ack.retry_after_ms or 0) * 10**6)
        else:
            result = RESULTS.get(ack.verdict, BatchResult.FAILED)
            self.accumulator.complete(batch, result, ack.base_offset, ack.log_append_time_ms, ack.error_code)

    def run_until(self, is_over: Callable[[], bool], what: str = "it is over") -> None:
        """Runs rounds until the condition is true or the deadline passes."""
        deadline = time.monotonic() + WATCHDOG_S
        while not is_over():
            self.run_once()
            assert time.monotonic() < deadline, (what, self.acks[-5:], self.reports[-5:])

    def run_until_idle(self) -> None:
        """Runs rounds until every appended batch has a result."""
        self.run_until(lambda: self.queued_count() == 0, "everything has a result")

    def queued_count(self) -> int:
        """Count the batches without a result."""
        self.accumulator.ready(0, True)  # scans the ready hints
        return self.accumulator.statistics()["queued_count"]

    def close(self) -> None:
        """Closes the sink; batches in flight stay in the arena."""
        self.sink.close(1.0)
        self.accumulator.close()
        os.close(self._wake_read_fd)
        os.close(self._wake_write_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def wire_of(batch: Any) -> WireBatch:
    """Return a drained batch as a sink receives it."""
    return WireBatch.of(batch, (batch.topic, batch.partition), batch.buffers)


def append(arena: Arena, topic: str, *values: bytes) -> None:
    """Append records to one partition."""
    with Accumulator(arena) as accumulator:
        for value in values:
            accumulator.append(topic, 0, None, None, value)


def first_report(loop: Loop) -> str:
    """Run rounds until the sink reports something, and return it."""
    loop.run_until(lambda: bool(loop.reports), "the sink says what is wrong")
    return loop.reports[0]
