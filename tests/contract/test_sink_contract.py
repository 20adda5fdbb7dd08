# SPDX-License-Identifier: Apache-2.0
"""The contract of sinks (shmaccum/sender/sinks/sink.py), tested for every sink with a sender and an arena.

To test another sink, add a line to `KINDS`. The borrower of a socket is in Python here. The outcome of batches is the
same with the pump: `tests/kafka/test_paths.py` tests both paths.
"""

from __future__ import annotations

import re
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from setup import ROOT
from shmaccum._native import decode_batch
from shmaccum.arena import Arena
from shmaccum.arena.places import Places
from shmaccum.arena.results import BatchResult
from shmaccum.arena.wake_fifo import WakeFifo
from shmaccum.config import SenderOptions
from shmaccum.sender.host import Host
from shmaccum.sender.sink_batches import SinkBatches
from shmaccum.sender.sinks import Ack, Sink, Verdict, WireBatch, open_sink
from shmaccum.sender.sinks.kafka.sink import KafkaSink
from shmaccum.sender.sinks.memory import MemorySink
from shmaccum.sender.sinks.sink import (
    IDENTITY_SIZE,
    Acks,
    BorrowedSocket,
    Delivered,
    SinkHost,
    SocketEnd,
    Unanswered,
    each_ack,
)
from shmaccum.sender.systemd import Supervisor
from tests.kafka.fake_broker import Arrived, Reply, fake_cluster
from tests.support.accumulator import Accumulator
from tests.support.arenas import drain
from tests.support.processes import WATCHDOG_S
from tests.support.sender import ScriptedSink

TOPIC = "topic"
PARTITIONS = 3

NewSink = Callable[[], Sink]


class LateSink(ScriptedSink):
    """A sink like a network: later polls return the acks, one at a time, youngest first."""

    def __init__(self, *, partitions: int) -> None:
        super().__init__(partitions=partitions)
        self.late: list[Ack] = []

    def deliver(self, batches: Sequence[WireBatch]) -> None:
        self.late += self.broker.write(batches)

    def poll(self, timeout_s: float, wake_fd: int) -> Sequence[Ack | Acks]:
        return [self.late.pop()] if self.late else super().poll(timeout_s, wake_fd)


class PatientKafkaSink(KafkaSink):
    """Polls until a result has arrived. A sender would return and poll again later."""

    def open(self, host: SinkHost) -> None:
        super().open(host)
        self._poll_until(lambda: self.partition_count(TOPIC) is not None)
        self._poll_until(lambda: self._client.is_ready(0))

    def new_producer_id(self) -> tuple[int, int] | None:
        answer = super().new_producer_id()
        while answer is None:
            self._acks += self.poll(0.01, -1)
            answer = super().new_producer_id()
        return answer

    def _poll_until(self, is_true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WATCHDOG_S
        while not is_true():
            assert time.monotonic() < deadline
            self._acks += self.poll(0.01, -1)


class BorrowedKafkaSink(PatientKafkaSink):
    """Is its own borrower, which begins a request for a batch and returns the socket before the first byte.

    `tests/kafka/test_paths.py` has the borrower that writes requests and reads responses.
    """

    def deliver(self, batches: Sequence[WireBatch]) -> None:
        first, *others = batches
        self._known.acked([first.partition_index], time.monotonic())
        socket = self._borrow(first.partition_index)
        unanswered = Unanswered(socket.correlation_id, 0.0, 0, [first])
        self.return_socket(socket, Delivered(), SocketEnd(unanswered=[unanswered]))
        if others:
            super().deliver(others)

    def _borrow(self, partition_index: int) -> BorrowedSocket:
        """Wait until nothing is in flight on the socket, then borrow it."""
        handed_over: list[BorrowedSocket] = []

        def is_free() -> bool:
            handed_over[:] = self.hand_over([partition_index])
            return bool(handed_over)

        self._poll_until(is_free)
        return handed_over[0]


def _memory(_stack: ExitStack, _folder: Path) -> NewSink:
    return lambda: open_sink("memory:", partitions=PARTITIONS)


def _null(_stack: ExitStack, _folder: Path) -> NewSink:
    return lambda: open_sink("null:", partitions=PARTITIONS)


def _log(_stack: ExitStack, folder: Path) -> NewSink:
    return lambda: open_sink(f"log:{folder / 'log'}", partitions=PARTITIONS)


def _late(_stack: ExitStack, _folder: Path) -> NewSink:
    return lambda: LateSink(partitions=PARTITIONS)


def _kafka(stack: ExitStack, _folder: Path) -> NewSink:
    bootstrap = _kept(stack)
    return lambda: PatientKafkaSink(bootstrap)


def _borrowed(stack: ExitStack, _folder: Path) -> NewSink:
    bootstrap = _kept(stack)
    return lambda: BorrowedKafkaSink(bootstrap)


def _shout(_stack: ExitStack, _folder: Path) -> NewSink:
    """The example of CONTRIBUTING.rst, without the lines that use it."""
    text = (ROOT / "CONTRIBUTING.rst").read_text(encoding="utf-8")
    (block,) = re.findall(r"^   import hashlib\n.*?(?=^   register_sink\()", text, re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(compile(textwrap.dedent(block), "CONTRIBUTING.rst", "exec"), names)
    return lambda: names["ShoutSink"]("here", partitions=PARTITIONS)


def _kept(stack: ExitStack) -> str:
    """A scripted broker that stores batches and their sequences like the sink ``memory:``."""
    broker = MemorySink(partitions=PARTITIONS)

    def answer(arrived: Arrived) -> Reply:
        (ack,) = broker.write([arrived.wire_batch()])
        return Reply(0 if ack.verdict is Verdict.DELIVERED else ack.error_code, ack.base_offset)

    cluster = stack.enter_context(fake_cluster(topics={TOPIC: PARTITIONS}))
    cluster.on_produce = answer
    return cluster.bootstrap


KINDS: dict[str, Callable[[ExitStack, Path], NewSink]] = {
    "memory": _memory,
    "null": _null,
    "log": _log,
    "late": _late,
    "kafka": _kafka,
    "borrowed": _borrowed,
    "shout": _shout,
}
SAME_PLACE = {"null", "log", "kafka", "borrowed", "shout"}
"""Sinks that deliver to the same place when they are created again."""


class Case:
    """An open sink with the sender's half of an arena."""

    def __init__(self, arena: Arena, accumulator: Accumulator, new_sink: NewSink) -> None:
        self.arena = arena
        self.accumulator = accumulator
        self._new_sink = new_sink
        self.wake_fifo = WakeFifo(arena)
        self.places = Places(arena.native)
        self.host = Host(accumulator.half, arena, self.places, self.wake_fifo, SenderOptions(), Supervisor({}))
        self.sink_batches = SinkBatches(accumulator.half, arena.native, self.places)
        self.sink = self.open()

    def open(self) -> Sink:
        sink = self._new_sink()
        sink.open(self.host)
        return sink

    def reopen(self) -> None:
        """Close the sink cleanly and open it again, as for the next sender."""
        self.sink.close(1)
        self.sink = self.open()

    def take(self, count: int = 1, *, partition: int = 0) -> list[WireBatch]:
        """Append and drain batches of two records each."""
        for _ in range(count):
            self.accumulator.append_many(TOPIC, partition, [b"first", b"second"])
            self.accumulator.flush_begin()
        return self.drain()

    def drain(self) -> list[WireBatch]:
        wires: list[WireBatch] = []
        while batches := drain(self.accumulator):
            wires += [wire for batch in batches if (wire := self.sink_batches.whole(batch)) is not None]
        self.sink_batches.add(wires, 0)
        return wires

    def acks(self, count: int) -> list[Ack]:
        """Poll until `count` acks have arrived, and return them."""
        acks: list[Ack] = []
        deadline = time.monotonic() + WATCHDOG_S
        while len(acks) < count:
            assert time.monotonic() < deadline, f"{len(acks)} acks of {count}"
            acks += each_ack(self.sink.poll(0.01, self.wake_fifo.fileno()))
        return acks

    def deliver(self, wires: Sequence[WireBatch]) -> list[Ack]:
        self.sink.deliver(wires)
        return self.acks(len(wires))

    def end(self, wires: Sequence[WireBatch]) -> None:
        for wire in wires:
            assert self.sink_batches.remove([wire]) != [None]
            self.accumulator.complete(wire.batch, BatchResult.SUCCEEDED)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def case(kind: str, arena: Arena, sender: Accumulator, tmp_path: Path) -> Iterator[Case]:
    with ExitStack() as stack:
        case = Case(arena, sender, KINDS[kind](stack, tmp_path))
        yield case
        case.sink.close(1)
        case.end([*case.sink_batches])
        case.wake_fifo.close()


def test_its_identity_is_that_of_the_place(case: Case, kind: str) -> None:
    before = case.sink.identity
    assert len(before) == IDENTITY_SIZE
    case.reopen()
    assert (case.sink.identity == before) == (kind in SAME_PLACE)


def test_the_example_of_the_page_has_an_identity_for_each_place(tmp_path: Path) -> None:
    kind = type(_shout(ExitStack(), tmp_path)())
    places = ("/var/lib/app/events-a", "/var/lib/app/events-b", "/var/lib/app/events-a")
    one, two, again = (kind(place).identity for place in places)  # type: ignore[call-arg]
    assert one == again != two


def test_a_producer_id_is_given_once(case: Case) -> None:
    if (ids := case.sink.producer_ids) is None:
        pytest.skip("it does not know sequences")
    first, second = ids.new_producer_id(), ids.new_producer_id()
    assert first is not None
    assert second is not None
    assert first[0] >= 0
    assert first != second


def test_a_topic_has_its_partitions(case: Case) -> None:
    assert case.sink.partition_count(TOPIC) == PARTITIONS


def test_each_batch_is_acked_once_by_what_was_delivered(case: Case) -> None:
    wires = case.take(3)
    acks = case.deliver(wires)
    assert {id(ack.wire) for ack in acks} == {id(wire) for wire in wires}
    assert {ack.verdict for ack in acks} == {Verdict.DELIVERED}
    assert list(case.sink.poll(0, case.wake_fifo.fileno())) == []


def test_offsets_count_records(case: Case) -> None:
    acks = sorted(case.deliver(case.take(3)), key=lambda ack: ack.base_offset)
    assert [ack.base_offset for ack in acks] == [0, 2, 4]
    (ack,) = case.deliver(case.take(1, partition=1))
    assert ack.base_offset == 0


def test_an_acked_batch_can_be_ended(case: Case) -> None:
    wires = case.take(2)
    case.deliver(wires)
    case.end(wires)
    assert case.arena.statistics().slots["FREE"] == case.arena.geometry["slot_count"]


def test_a_record_larger_than_a_buffer_is_delivered(case: Case) -> None:
    case.accumulator.append(TOPIC, 0, 1000, None, bytes(3 * case.arena.geometry["batch_size"]))
    (wire,) = case.drain()
    assert len(wire.buffers) > 1
    (ack,) = case.deliver([wire])
    assert ack.verdict is Verdict.DELIVERED


def test_the_plan_names_ready_partitions_only(case: Case) -> None:
    tokens = [case.accumulator.append(TOPIC, partition, 1000, None, b"v") for partition in range(PARTITIONS)]
    indices = [token.partition_index for token in tokens]
    case.sink.partition_count(TOPIC)
    named = {index for request in case.sink.plan(indices) for index in request}
    assert named <= set(indices)
    assert case.sink.plan([]) in ([], [[]])


def test_poll_ends_with_a_ring(case: Case) -> None:
    case.host.wake()
    begin = time.monotonic()
    assert list(case.sink.poll(WATCHDOG_S, case.wake_fifo.fileno())) == []
    assert time.monotonic() - begin < WATCHDOG_S


def test_a_batch_that_comes_again_is_recognised(case: Case, kind: str) -> None:
    if (ids := case.sink.producer_ids) is None:
        pytest.skip("it does not know sequences")
    producer_id = ids.new_producer_id()
    assert producer_id is not None
    case.accumulator.set_producer_id(*producer_id, case.sink.identity)
    first = case.take()
    (before,) = case.deliver(first)
    case.end(first)
    wires = case.take(2)
    offsets = {ack.wire: ack.base_offset for ack in case.deliver(wires)}
    if kind in SAME_PLACE:
        case.reopen()
    again = {ack.wire: (ack.verdict, ack.base_offset) for ack in case.deliver(wires)}
    assert again == {wire: (Verdict.DELIVERED, offset) for wire, offset in offsets.items()}
    assert sorted([before.base_offset, *offsets.values()]) == [0, 2, 4]


def test_a_gap_is_out_of_sequence(case: Case) -> None:
    if (ids := case.sink.producer_ids) is None:
        pytest.skip("it does not know sequences")
    producer_id = ids.new_producer_id()
    assert producer_id is not None
    case.accumulator.set_producer_id(*producer_id, case.sink.identity)
    first = case.take()
    case.deliver(first)
    case.end(first)
    missing, later = case.take(2)
    (ack,) = case.deliver([later])
    assert ack.verdict is Verdict.OUT_OF_SEQUENCE
    (ack,) = case.deliver([missing])
    assert (ack.verdict, ack.base_offset) == (Verdict.DELIVERED, 2)


def test_the_bytes_are_a_broker_s_batch(case: Case) -> None:
    (wire,) = case.take()
    assert [record[3] for record in decode_batch(b"".join(wire.buffers))] == [b"first", b"second"]
    case.deliver([wire])


def test_close_lets_go_of_what_has_no_ack(case: Case) -> None:
    wires = case.take(2)
    case.sink.deliver(wires)
    case.sink.close(0)
    case.end(wires)
    assert case.arena.statistics().slots["READY"] == 0
    case.sink = case.open()


def test_metrics_are_numbers(case: Case) -> None:
    case.deliver(case.take())
    assert all(isinstance(value, (int, float)) for value in case.sink.metrics().values())
