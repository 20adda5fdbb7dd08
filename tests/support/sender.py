# SPDX-License-Identifier: Apache-2.0
"""A sender for tests, with a manual clock and a scripted sink."""

from __future__ import annotations

import itertools
import select
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shmaccum._native import Token
from shmaccum.arena import Arena
from shmaccum.arena.reports import read_reports
from shmaccum.arena.results import BatchResult
from shmaccum.sender import Sender
from shmaccum.sender.delivery_clock import STEP_MAX_NS
from shmaccum.sender.sinks.memory import MemorySink
from shmaccum.sender.sinks.sink import Ack, Acks, Limits, Peer, ProducerIds, Sink, SinkHost, Verdict, WireBatch
from tests.support.accumulator import Accumulator, Completion

MS = 1_000_000
TOPIC = "topic"

Answer = Callable[[WireBatch], Ack]


def retry(wire: WireBatch) -> Ack:
    return Ack(wire, Verdict.RETRY, message="not now")


def refuse(wire: WireBatch) -> Ack:
    return Ack(wire, Verdict.REFUSED, error_code=87, message="bad record")


def too_large(wire: WireBatch) -> Ack:
    return Ack(wire, Verdict.TOO_LARGE, message="too many bytes")


class ScriptedSink(Sink, ProducerIds, Peer):
    """Stores batches in a MemorySink, like a broker, except where the script replaces its response.

    Attributes:
        script: responses for the next batches. If an item is None, the broker responds.
        deliveries: for each delivery the (partition, base sequence, record count) of its batches.
        is_held: if true, no batch gets a response.
        raises: maps a method name to the exception of its next call.
        plan_filter: selects which ready partitions may be delivered.
        is_full: the sink reports that no delivery can begin.
    """

    is_full = False

    def __init__(self, *, is_idempotent: bool = True, in_flight_max: int = 5, partitions: int = 8) -> None:
        self.broker = MemorySink(partitions=partitions)
        self.producer_ids = self if is_idempotent else None
        self.peer = self
        self.limits = Limits(in_flight_max)
        self.script: list[Answer | None] = []
        self.deliveries: list[list[tuple[int, int, int]]] = []
        self.held: list[WireBatch] = []
        self.is_held = False
        self.raises: dict[str, Exception] = {}
        self.plan_filter: Callable[[int], bool] = lambda _: True
        self.next_producer_ids: Sequence[tuple[int, int] | None] = ()
        self.size_max: int | None = None
        self.close_count = 0
        self.host: SinkHost | None = None

    def _raise_if_told(self, method: str) -> None:
        if error := self.raises.pop(method, None):
            raise error

    @property
    def identity(self) -> bytes:
        return self.broker.identity

    def open(self, host: SinkHost) -> None:
        self._raise_if_told("open")
        self.host = host

    def new_producer_id(self) -> tuple[int, int] | None:
        self._raise_if_told("new_producer_id")
        if self.next_producer_ids:
            answer, *self.next_producer_ids = self.next_producer_ids
            return answer
        return self.broker.new_producer_id()

    def partition_count(self, topic: str) -> int | None:
        self._raise_if_told("partition_count")
        return self.broker.partition_count(topic)

    def plan(self, ready: Sequence[int]) -> Sequence[Sequence[int]]:
        self._raise_if_told("plan")
        return [[index for index in ready if self.plan_filter(index)]]

    def deliver(self, batches: Sequence[WireBatch]) -> None:
        self._raise_if_told("deliver")
        self.deliveries.append([(wire.partition, wire.base_sequence, wire.record_count) for wire in batches])
        self.held += batches

    def poll(self, timeout_s: float, wake_fd: int) -> Sequence[Ack | Acks]:
        self._raise_if_told("poll")
        if self.is_held or not self.held:
            select.select([wake_fd], [], [], timeout_s)
            return []
        wires, self.held = self.held, []
        return [self._answer(wire) for wire in wires]

    def _answer(self, wire: WireBatch) -> Ack:
        answer = self.script.pop(0) if self.script else None
        if answer is not None:
            return answer(wire)
        if self.size_max is not None and wire.size > self.size_max:
            return too_large(wire)
        return self.broker.write([wire])[0]

    def close(self, timeout_s: float) -> None:
        self._raise_if_told("close")
        self.close_count += 1
        self.held.clear()


class FailingSink(ScriptedSink):
    """A sink that reports an outage."""

    reason: str | None = None

    @property
    def outage(self) -> str | None:
        return self.reason


class Sending:
    """An arena, a producer and a sender in one process, on a manual clock.

    Attributes:
        sink: receives the deliveries.
        producer: appends.
        sender: open.
    """

    def __init__(self, arena: Arena, sink: Sink | None = None, now_ms: Any = 1000, **options: Any) -> None:
        self.arena = arena
        self.now_ms = now_ms
        self._numbers = itertools.count()
        arena.native.set_manual_clock(self.now_ms * MS)
        self.scripted = ScriptedSink()
        self.sink = sink or self.scripted
        self.producer = Accumulator(arena)
        self.sender = Sender(arena, self.sink, **options)
        self.sender.open()

    def sleep(self, milliseconds: int) -> None:
        """Advance the clock of a running sender, which reads it repeatedly, as in its rounds."""
        rounds = self.sender._rounds
        for step_ms in steps_ms(milliseconds):
            self.now_ms += step_ms
            self.arena.native.set_manual_clock(self.now_ms * MS)
            if rounds is not None:
                rounds.delivery_clock.check(self.now_ms * MS)

    def jump(self, milliseconds: int) -> None:
        """Advance the clock while the sender does not run (a stop, a suspend of the host)."""
        self.now_ms += milliseconds
        self.arena.native.set_manual_clock(self.now_ms * MS)

    def append(self, partition: int = 0, count: int = 1) -> list[Token]:
        """Append numbered values in one separate batch."""
        tokens = [
            self.producer.append(TOPIC, partition, self.now_ms, None, b"%d" % next(self._numbers)) for _ in range(count)
        ]
        self.producer.flush_begin()
        return tokens

    def run(self, rounds: int = 1) -> list[int]:
        """Run rounds without waits. Return the delivered batch count of each round."""
        return [self._run_once() for _ in range(rounds)]

    def _run_once(self) -> int:
        wake_fifo = self.sender._wake_fifo
        assert wake_fifo is not None
        wake_fifo.wake()
        return self.sender.run_once()

    def result(self, token: Token) -> BatchResult | None:
        found = self.producer.find(token)
        return None if found is None else found.result

    def completion(self, token: Token) -> Completion:
        found = self.producer.find(token)
        assert found is not None
        return found

    def values(self, partition: int = 0) -> list[int]:
        """Return the numbers in a partition of the broker."""
        return [int(value or b"-1") for value in self.scripted.broker.values(TOPIC, partition)]

    def errors(self) -> list[str]:
        return [report.sentence for report in read_reports(self.arena.native)]

    def partition_index(self, partition: int = 0) -> int:
        return self.producer.partition_index(TOPIC, partition)

    def close(self) -> None:
        """Leave the role, then empty the arena, as the fixture requires."""
        self.scripted.is_held = False
        self.sender.close()
        self.producer.become_sender()
        self.producer.abort(True)
        self.producer.maintain()
        self.producer.close()


def steps_ms(milliseconds: int) -> Iterator[int]:
    """Split the time into steps that a running sender counts in full."""
    step_ms = STEP_MAX_NS // MS
    while milliseconds > step_ms:
        yield step_ms
        milliseconds -= step_ms
    yield milliseconds


def rests_of(sending: Sending) -> list[float]:
    """Record the time limits of all later polls, which no longer wait."""
    rests: list[float] = []
    poll = sending.scripted.poll

    def poll_at_once(timeout_s: float, wake_fd: int) -> Sequence[Ack | Acks]:
        rests.append(timeout_s)
        return poll(0, wake_fd)

    sending.scripted.poll = poll_at_once  # type: ignore[method-assign]
    return rests


def check_names(sender: Sender) -> None:
    """Make the sender check now that its wake FIFO, socket and server exist, as it does every second."""
    checks: Any = sender._checks
    checks.due_ns = 0
    checks.run(sender.arena.native.now_ns())
