# SPDX-License-Identifier: Apache-2.0
"""A sender to Kafka behaves the same whether C (native/sender/pump.h) or Python sends its ordinary batches.

`test_fake` tests the sink alone, step by step. `test_pump` tests what only the pump does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from shmaccum._native import Token
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.sender import Sender
from shmaccum.sender import sender as sender_module
from shmaccum.sender.pump import PumpRunner
from shmaccum.sender.sinks.kafka.errors import TREATMENTS, Action
from shmaccum.sender.sinks.memory import MemorySink
from shmaccum.sender.sinks.sink import Verdict
from tests.kafka.conftest import OpenFake
from tests.kafka.fake_broker import Arrived, Cut, FakeBroker, FakeCluster, Reply, Silence
from tests.kafka.scripting import HOSTILE, RawAnswer, Script, values_of
from tests.support.accumulator import Accumulator, Completion
from tests.support.processes import WATCHDOG_S, wait_until

TOPIC = "flights"
PARTITIONS = 2
PUMP_FIRST = pytest.mark.parametrize("path", ["pump", pytest.param("python", marks=pytest.mark.slow)], indirect=True)
"""`test_fake` tests the path through Python in every run."""
CENTRAL = {6, 7, 19, 10, 29, 45}
"""Codes that every run tries."""


def codes(action: Action) -> list[Any]:
    """The codes with this action. Most of them run only with the slow tests."""
    found = [code for code, row in TREATMENTS.items() if row.action is action]
    return [code if code in CENTRAL else pytest.param(code, marks=pytest.mark.slow) for code in found]


class Case:
    """A sender to a scripted cluster, step by step, and an appender. Each partition has had a batch."""

    def __init__(self, arena: Arena, cluster: FakeCluster, **options: Any) -> None:
        self.cluster = cluster
        self._arena = arena
        own: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 1, **options}
        self._new_sender = partial(Sender, arena, f"kafka:{cluster.bootstrap}", **own)
        self._accumulator = Accumulator(arena)
        self.sender = self._new_sender()
        self.sender.open()
        for partition in range(cluster.topics[TOPIC]):
            self.send(b"first", partition=partition)
        cluster.arrived.clear()

    def close(self) -> None:
        self._accumulator.close()
        self.sender.close()

    def replace_sender(self, then: Callable[[], object]) -> None:
        """Closes the sender, calls *then*, and opens the next one."""
        self.sender.close()
        then()
        self.sender = self._new_sender()
        self.sender.open()

    def append(self, *values: bytes, partition: int = 0) -> list[Token]:
        """Append values in one batch, or in as many as they need."""
        tokens = [self._accumulator.append(TOPIC, partition, None, None, value) for value in values]
        self._accumulator.flush_begin()
        return tokens

    def append_each(self, *values: bytes, partition: int = 0) -> list[Token]:
        """Append each value in a batch of its own."""
        return [token for value in values for token in self.append(value, partition=partition)]

    def run_until(self, is_over: Callable[[], bool], what: str) -> None:
        def round_is_last() -> bool:
            self.sender.run_once()
            return is_over()

        wait_until(round_is_last, what)

    def deliver(self) -> None:
        """Runs rounds until every buffer is free."""
        slot_count = self._arena.geometry["slot_count"]
        self.run_until(lambda: self._arena.statistics().slots["FREE"] == slot_count, "everything has a result")

    def results(self, tokens: Sequence[Token]) -> list[Completion]:
        found = [self._accumulator.find(token) for token in tokens]
        return [completion for completion in found if completion is not None]

    def send(self, *values: bytes, partition: int = 0) -> list[Completion]:
        """Deliver values one by one, and return their results."""
        tokens = self.append_each(*values, partition=partition)
        self.deliver()
        return self.results(tokens)


NewCase = Callable[..., Case]


@pytest.fixture
def new_case(path: str, arena: Arena, open_fake: OpenFake) -> Iterator[NewCase]:
    """Call ``new_case(options of the cluster, sender={...}, answer=the broker's log)``."""
    with ExitStack() as stack:

        def make(
            sender: dict[str, Any] | None = None, answer: Callable[[Arrived], Reply] | None = None, **settings: Any
        ) -> Case:
            cluster = open_fake(**{"topics": {TOPIC: PARTITIONS}, **settings})
            cluster.on_produce = answer or cluster.on_produce
            case = Case(arena, cluster, **(sender or {}))
            stack.callback(case.close)
            return case

        yield make


def is_well(completions: Sequence[Completion]) -> bool:
    return {completion.result for completion in completions} == {BatchResult.SUCCEEDED}


# --- results


def test_results_have_the_numbers_of_the_broker(new_case: NewCase) -> None:
    case = new_case()
    case.cluster.on_produce = Script(Reply(0, 42, 1_700_000_000_000), Reply(0, 43))
    timed, other = case.send(b"a", b"b")
    assert (timed.result, timed.base_offset, timed.log_append_time_ms) == (
        BatchResult.SUCCEEDED,
        42,
        1_700_000_000_000,
    )
    assert (other.result, other.base_offset, other.log_append_time_ms) == (BatchResult.SUCCEEDED, 43, -1)


def test_offsets_count_records(new_case: NewCase) -> None:
    case = new_case()
    case.cluster.on_produce = Script(Reply(0, 10))
    tokens = case.append(b"a", b"b", b"c")
    case.deliver()
    offsets = [found.offset_of(token) for found, token in zip(case.results(tokens), tokens, strict=True)]
    assert offsets == [10, 11, 12]


@PUMP_FIRST
@pytest.mark.parametrize("version", [3, 13])
@pytest.mark.parametrize("reply", [Reply(base_offset=-2), Reply(base_offset=-(2**63)), Reply(log_append_time_ms=-2)])
def test_numbers_that_cannot_be_are_none(reply: Reply, version: int, new_case: NewCase) -> None:
    case = new_case(versions={0: (3, version)})
    case.cluster.on_produce = Script(reply)
    (found,) = case.send(b"a")
    assert (found.result, found.base_offset) == (BatchResult.SUCCEEDED, max(reply.base_offset, -1))
    assert found.log_append_time_ms == -1


def test_a_duplicate_counts_as_delivered(new_case: NewCase) -> None:
    case = new_case()
    case.cluster.on_produce = Script(Reply(46, base_offset=-1))
    (found,) = case.send(b"a")
    assert (found.result, found.base_offset) == (BatchResult.SUCCEEDED, -1)


def test_a_record_larger_than_a_buffer_keeps_its_place(new_case: NewCase) -> None:
    case = new_case()
    values = [b"a", bytes(range(256)) * 32, b"b", b"c"]
    assert is_well(case.send(*values))
    assert values_of(case.cluster.arrived) == values


def test_the_totals_of_the_metrics_are_the_same(
    arena_name: str, open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only requests differ, because the paths fill them differently."""
    totals = []
    for is_pumped in (True, False):
        with (
            monkeypatch.context() as patch,
            Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB") as arena,
        ):
            if not is_pumped:
                patch.setattr(PumpRunner, "may_run", False)
            case = Case(arena, open_fake(topics={TOPIC: PARTITIONS}))
            case.cluster.on_produce = Script(Reply(), Reply(19), Reply())
            case.send(b"a", b"bb", b"ccc")
            metrics = case.sender.metrics()
            case.close()
        Arena.remove(arena_name)
        totals.append({name: value for name, value in metrics.items() if name.startswith(("record-", "batch-"))})
    pumped, other = totals
    assert pumped.keys() == other.keys()
    for name in ("record-send-total", "record-retry-total", "record-error-total", "record-size-max", "batch-size-max"):
        assert pumped[name] == other[name], name


# --- errors


@PUMP_FIRST
@pytest.mark.parametrize("code", codes(Action.RETRY))
def test_a_retriable_error_sends_the_same_bytes_again(code: int, new_case: NewCase) -> None:
    case = new_case()
    case.cluster.on_produce = Script(Reply(code), Reply(code), Reply(0, 42))
    (found,) = case.send(b"a")
    assert (found.result, found.base_offset) == (BatchResult.SUCCEEDED, 42)
    assert len({one.wire_bytes for one in case.cluster.arrived}) == 1
    assert len(case.cluster.arrived) == 3


@PUMP_FIRST
@pytest.mark.parametrize("code", codes(Action.REFUSE))
def test_a_final_error_refuses_the_batch_alone(code: int, new_case: NewCase) -> None:
    case = new_case()
    case.cluster.on_produce = Script(Reply(code, message="because I say so"))
    (found,) = case.send(b"a")
    assert (found.result, found.error_code) == (BatchResult.FAILED, code)
    (other,) = case.send(b"b", partition=1)
    assert other.result is BatchResult.SUCCEEDED


def test_errors_of_single_records_fail_these_alone(new_case: NewCase) -> None:
    case = new_case(versions={0: (3, 8)})
    case.cluster.on_produce = Script(Reply(87, record_errors=[(1, "no key")], message="1 of 3 is wrong"))
    tokens = case.append(b"a", b"b", b"c")
    case.deliver()
    assert [found.error_code for found in case.results(tokens)] != [0, 0, 0]


def test_a_batch_that_is_too_large_arrives_in_parts(new_case: NewCase) -> None:
    case = new_case()
    case.cluster.on_produce = Script(Reply(10))
    values = [b"%d" % number * 100 for number in range(6)]
    tokens = case.append(*values)
    case.deliver()
    whole, *parts = case.cluster.arrived
    assert is_well(case.results(tokens))
    assert values_of([whole]) == values_of(parts) == values
    assert len(parts) > 1


def test_after_a_batch_that_comes_again_order_and_bytes_are_kept(new_case: NewCase) -> None:
    """Of two batches, the first is rejected temporarily, and the second for its sequence."""
    broker = MemorySink(partitions=PARTITIONS)
    has_refused = threading.Event()

    def answer(arrived: Arrived) -> Reply:
        if values_of([arrived]) == [b"a"] and not has_refused.is_set():
            has_refused.set()
            return Reply(19)
        (ack,) = broker.write([arrived.wire_batch()])
        return Reply(0 if ack.verdict is Verdict.DELIVERED else 45, ack.base_offset)

    case = new_case(answer=answer)
    assert is_well(case.send(b"a", b"b", b"c"))
    assert has_refused.is_set()
    assert [record.value for record in broker.records(TOPIC, 0)] == [b"first", b"a", b"b", b"c"]


def test_after_a_gap_the_partition_starts_over_in_a_new_epoch(new_case: NewCase) -> None:
    case = new_case()
    case.cluster.on_produce = lambda arrived: Reply(0, 5) if arrived.sequence[1] == 1 else Reply(45)
    (found,) = case.send(b"a")
    assert (found.result, found.base_offset) == (BatchResult.SUCCEEDED, 5)
    assert case.cluster.arrived[-1].sequence[1:] == (1, 0)


# --- connections


@pytest.mark.parametrize(("ending", "timeout_ms"), [(Cut, 1000 * WATCHDOG_S), (Silence, 300)])
def test_a_connection_that_ends_without_an_answer_sends_the_same_bytes_again(
    ending: type[Exception], timeout_ms: float, new_case: NewCase
) -> None:
    """The broker has the batch already, and returns its offset again."""
    case = new_case(sender={"request_timeout_ms": timeout_ms})
    attempts: list[Arrived] = []

    def answer(arrived: Arrived) -> Reply:
        attempts.append(arrived)
        if len(attempts) == 1:
            raise ending
        return Reply(0, 42)

    case.cluster.on_produce = answer
    (found,) = case.send(b"a")
    assert (found.result, found.base_offset) == (BatchResult.SUCCEEDED, 42)
    assert len(attempts) > 1
    assert len({one.wire_bytes for one in attempts}) == 1


def test_the_hint_of_a_broker_is_followed(new_case: NewCase) -> None:
    case = new_case(broker_count=2)
    case.cluster.on_produce = Script(Reply(6, leader=(1, 5)))
    (found,) = case.send(b"a")
    assert found.result is BatchResult.SUCCEEDED
    assert [one.node_id for one in case.cluster.arrived] == [0, 1]


def test_a_slow_broker_does_not_stall_another(new_case: NewCase) -> None:
    case = new_case(broker_count=2)
    slow_may_go = threading.Event()

    def answer(arrived: Arrived) -> Reply:
        if arrived.partition == 0:
            assert slow_may_go.wait(WATCHDOG_S)
        return Reply()

    case.cluster.on_produce = answer
    slow = case.append(b"slow")
    for number in range(5):
        tokens = case.append(b"%d" % number, partition=1)
        case.run_until(lambda tokens=tokens: bool(case.results(tokens)), "it is delivered")  # type: ignore[misc]
    assert case.results(slow) == []
    slow_may_go.set()
    case.deliver()
    assert is_well(case.results(slow))


@PUMP_FIRST
@pytest.mark.parametrize("hostile", HOSTILE)
def test_an_answer_that_cannot_be_read_is_not_waited_for(
    hostile: str, new_case: NewCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, payload_of = HOSTILE[hostile]
    case = new_case(sender={"request_timeout_ms": 1000 * WATCHDOG_S}, versions={0: (3, version)})
    honest, left = case.cluster.answer, [RawAnswer(payload_of)]

    def answer(broker: FakeBroker, kind: Any, version: int, request: Any) -> Any:
        response = honest(broker, kind, version, request)
        return left.pop() if left and kind.API_KEY == 0 else response

    monkeypatch.setattr(case.cluster, "answer", answer)
    (found,) = case.send(b"a")
    assert found.result is BatchResult.SUCCEEDED
    assert [one.wire_bytes for one in case.cluster.arrived] == [case.cluster.arrived[0].wire_bytes] * 2


# --- the end


def test_what_has_no_answer_is_left_to_the_next_sender(new_case: NewCase, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker has the batch, and recognizes it when it is resent."""
    monkeypatch.setattr(sender_module, "CLOSE_TIMEOUT_S", 0.05)
    broker = MemorySink(partitions=PARTITIONS)
    has_arrived, may_answer = threading.Event(), threading.Event()

    def answer(arrived: Arrived) -> Reply:
        (ack,) = broker.write([arrived.wire_batch()])
        if values_of([arrived]) == [b"a"]:
            has_arrived.set()
            assert may_answer.wait(WATCHDOG_S)
        return Reply(0 if ack.verdict is Verdict.DELIVERED else 45, ack.base_offset)

    case = new_case(answer=answer)
    tokens = case.append(b"a")
    case.run_until(has_arrived.is_set, "the batch is at the broker")
    case.replace_sender(then=may_answer.set)
    assert case.results(tokens) == []
    case.deliver()
    assert [found.base_offset for found in case.results(tokens)] == [1]
    assert [record.value for record in broker.records(TOPIC, 0)] == [b"first", b"a"]
    assert len({one.wire_bytes for one in case.cluster.arrived}) == 1


def test_a_stop_delivers_what_is_there(new_case: NewCase) -> None:
    case = new_case()
    case.send(b"before")
    case.cluster.arrived.clear()
    tokens = case.append_each(b"a", b"b") + case.append(b"c", partition=1)
    case.sender.stop(WATCHDOG_S)
    case.run_until(case.sender._is_over, "the sender is at its end")
    assert is_well(case.results(tokens))
    assert sorted(map(str, values_of(case.cluster.arrived))) == ["b'a'", "b'b'", "b'c'"]
