# SPDX-License-Identifier: Apache-2.0
"""The pump sends ordinary batches in C (native/sender/pump.h): the same batches as Python, as safely."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import signal
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from shmaccum import Producer
from shmaccum._native import DeliveryFuture, decode_batch
from shmaccum.arena import Arena
from shmaccum.sender import Sender
from shmaccum.sender.pump import PumpResult, PumpRunner
from shmaccum.sender.sinks import open_sink
from shmaccum.sender.sinks.kafka.sink import KafkaSink
from shmaccum.sender.sinks.sink import BorrowedSocket, Delivered, Sink, SocketEnd
from tests.kafka.conftest import Calls, OpenFake
from tests.kafka.fake_broker import Arrived, Cut, FakeBroker, FakeCluster, Reply
from tests.support.accumulator import Accumulator
from tests.support.processes import WATCHDOG_S, wait_until
from tests.support.system_calls import dies_at_system_call

TOPIC = "flights"
PARTITIONS = 3
PRODUCE = 0
TOPIC_ID_SIZE = 16
DELIVERY_TIMEOUT_MS = 4_000
WHOLE_ANSWERS = 5
"""One of this many answers is changed."""
OUT_OF_ORDER, TIMED_OUT, NOT_LEADER, NOT_ENOUGH_REPLICAS = 45, 7, 6, 19


class Ledger:
    """A broker's log, which appends each batch once and in order, and returns errors at random.

    Attributes:
        values: values of each partition, in the order of the log.
    """

    def __init__(self, chance: random.Random | None = None, error_share: float = 0.0) -> None:
        self._chance = chance or random.Random(0)
        self._error_share = error_share
        self._ends: dict[tuple[str, int], dict[tuple[int, int], int]] = defaultdict(dict)
        self.values: dict[tuple[str, int], list[bytes | None]] = defaultdict(list)

    def __call__(self, arrived: Arrived) -> Reply:
        if self._errs():
            return Reply(self._chance.choice([NOT_LEADER, NOT_ENOUGH_REPLICAS]))
        place = arrived.topic, arrived.partition
        producer_id, epoch, sequence = arrived.sequence
        end = self._ends[place].get((producer_id, epoch), 0)
        if sequence > end:
            return Reply(OUT_OF_ORDER)
        offset = len(self.values[place])
        if sequence == end:
            values = [record[3] for record in decode_batch(arrived.wire_bytes)]
            self.values[place] += values
            self._ends[place][producer_id, epoch] = end + len(values)
        if self._errs():
            return Reply(TIMED_OUT)  # the batch is appended despite the error
        return Reply(0, offset)

    def _errs(self) -> bool:
        return self._chance.random() < self._error_share


@pytest.fixture
def returned(monkeypatch: pytest.MonkeyPatch) -> list[SocketEnd]:
    """The states of the sockets that the pump returned to the sinks of this test."""
    ends: list[SocketEnd] = []
    return_socket = KafkaSink.return_socket

    def note(self: KafkaSink, borrowed: BorrowedSocket, delivered: Delivered, end: SocketEnd) -> None:
        ends.append(end)
        return_socket(self, borrowed, delivered, end)

    monkeypatch.setattr(KafkaSink, "return_socket", note)
    return ends


@contextlib.contextmanager
def running(arena: Arena, cluster: FakeCluster, sink: Sink | None = None, **options: Any) -> Iterator[Sender]:
    """Runs a sender in a thread, and raises its error here."""
    errors: list[BaseException] = []
    sender = Sender(arena, sink or f"kafka:{cluster.bootstrap}", retry_backoff_ms=1, **options)

    def work() -> None:
        try:
            sender.run()
        except BaseException as error:  # noqa: BLE001 - the test raises it
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield sender
    finally:
        sender.stop(WATCHDOG_S)
        thread.join(WATCHDOG_S)
    assert not thread.is_alive()
    assert not errors


def send_all(arena_name: str, values: list[tuple[int, bytes]]) -> list[int]:
    """Sends values to their partitions and returns the offsets."""
    with Producer(arena_name, linger_ms=0) as producer:
        futures = []
        for number, (partition, value) in enumerate(values):
            futures.append(producer.send(TOPIC, value=value, partition=partition))
            if number % 50 == 49:
                producer.flush(timeout=WATCHDOG_S)
        producer.flush(timeout=WATCHDOG_S)
        return [future.get(timeout=WATCHDOG_S).offset for future in futures]


def some_values(chance: random.Random, count: int) -> list[tuple[int, bytes]]:
    """Partitions and values, some of them larger than a buffer."""
    sizes = [10, 10, 100, 1000, 3000, chance.choice([3000, 9000])]
    return [(chance.randrange(PARTITIONS), b"%06d" % each + b"." * chance.choice(sizes)) for each in range(count)]


def by_partition(values: list[tuple[int, bytes]]) -> dict[tuple[str, int], list[bytes]]:
    found: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    for partition, value in values:
        found[TOPIC, partition].append(value)
    return found


@pytest.mark.parametrize("version", [3, 8, 9, 13])
def test_both_paths_deliver_the_same(
    path: str,
    version: int,
    arena_name: str,
    open_fake: OpenFake,
    carried: Calls,
    seeded: Callable[[], random.Random],
) -> None:
    values = some_values(seeded(), 300)
    cluster = open_fake(topics={TOPIC: PARTITIONS}, versions={0: (3, version)})
    cluster.on_produce = ledger = Ledger()
    with Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena, running(arena, cluster):
        offsets = send_all(arena_name, values)
    assert ledger.values == by_partition(values)
    assert {one.version for one in cluster.arrived} == {version}
    assert len(set(zip([partition for partition, _ in values], offsets, strict=True))) == len(values)
    assert (carried.batch_count > 10) is (path == "pump")


def test_random_errors_lose_and_repeat_nothing(
    arena_name: str, open_fake: OpenFake, carried: Calls, seeded: Callable[[], random.Random]
) -> None:
    chance = seeded()
    values = some_values(chance, 300)
    cluster = open_fake(broker_count=2, topics={TOPIC: PARTITIONS})
    cluster.on_produce = ledger = Ledger(chance, 0.03)
    with Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena, running(arena, cluster):
        send_all(arena_name, values)
    assert ledger.values == by_partition(values)
    assert carried.batch_count > 10


def test_large_records_are_left_to_python(arena_name: str, open_fake: OpenFake, carried: Calls) -> None:
    values = [(0, b"%d" % each + b"." * (9000 if each % 10 == 9 else 10)) for each in range(100)]
    cluster = open_fake(topics={TOPIC: PARTITIONS})
    cluster.on_produce = ledger = Ledger()
    with Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena, running(arena, cluster):
        for each in range(10):
            send_all(arena_name, values[10 * each : 10 * each + 10])
    assert ledger.values == by_partition(values)
    assert sum(len(outcome.left) for outcome in carried) > 0


def test_a_socket_that_is_full_gets_the_rest_later(arena_name: str, open_fake: OpenFake, carried: Calls) -> None:
    values = [(each % PARTITIONS, b"%06d" % each + b"." * 3900) for each in range(200)]
    cluster = open_fake(topics={TOPIC: PARTITIONS}, receive_buffer=2048)
    cluster.on_produce = ledger = Ledger()
    sink = open_sink(f"kafka:{cluster.bootstrap}", send_buffer_bytes=4096)
    with (
        Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena,
        running(arena, cluster, sink=sink),
    ):
        send_all(arena_name, values)
    assert ledger.values == by_partition(values)
    assert carried


def test_a_socket_that_ends_in_a_request_costs_the_other_sockets_nothing(
    arena_name: str, open_fake: OpenFake, carried: Calls, returned: list[SocketEnd]
) -> None:
    """A broker dies while it receives a request. The pump has requests at another broker."""
    values = [(each % PARTITIONS, b"%06d" % each + b"." * 3900) for each in range(300)]
    cluster = open_fake(broker_count=2, topics={TOPIC: PARTITIONS}, receive_buffer=2048)
    ledger = Ledger()
    counts = itertools.count(1)

    def cut_now_and_then(arrived: Arrived) -> Reply:
        reply = ledger(arrived)
        if next(counts) % 20 == 0:
            raise Cut
        return reply

    cluster.on_produce = cut_now_and_then
    options = {"send_buffer_bytes": 4096, "reconnect_backoff_ms": 1, "reconnect_backoff_max_ms": 5}
    sink = open_sink(f"kafka:{cluster.bootstrap}", **options)
    with (
        Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena,
        running(arena, cluster, sink=sink),
    ):
        send_all(arena_name, values)
        assert not [each["text"] for each in arena.native.errors() if "problem" in each["text"]]
    assert ledger.values == by_partition(values)
    broken = [each for each in returned if each.is_broken]
    assert carried
    assert any(each.unanswered for each in broken)


def test_every_socket_is_given_back_also_when_the_sink_raises_over_one(
    arena_name: str, open_fake: OpenFake, carried: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[int] = []
    raised: list[int] = []
    return_socket = KafkaSink.return_socket

    def raise_once(self: KafkaSink, borrowed: BorrowedSocket, delivered: Delivered, end: SocketEnd) -> None:
        return_socket(self, borrowed, delivered, end)
        given_back.append(borrowed.socket)
        if not raised and delivered.request_count:
            raised.append(borrowed.socket)
            raise RuntimeError("not today")

    lent: list[int] = []
    hand_over = KafkaSink.hand_over

    def note(self: KafkaSink, partition_indices: Sequence[int]) -> Sequence[BorrowedSocket]:
        handed_over = hand_over(self, partition_indices)
        lent.extend(borrowed.socket for borrowed in handed_over)
        return handed_over

    monkeypatch.setattr(KafkaSink, "return_socket", raise_once)
    monkeypatch.setattr(KafkaSink, "hand_over", note)
    values = numbered(300)
    cluster = open_fake(broker_count=3, topics={TOPIC: PARTITIONS})
    cluster.on_produce = ledger = Ledger()
    with Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena, running(arena, cluster):
        send_in_turns(arena_name, values)
    assert ledger.values == by_partition(values)
    assert raised
    assert sorted(given_back) == sorted(lent)
    assert carried


def test_a_stop_ends_a_run_at_once(arena_name: str, open_fake: OpenFake, carried: Calls) -> None:
    cluster = open_fake(topics={TOPIC: PARTITIONS})
    with Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena, running(arena, cluster):
        send_all(arena_name, [(0, b"%d" % each) for each in range(100)])
    assert len(cluster.arrived) > 0
    assert carried


def test_signals_are_handled_during_a_run(arena_name: str, open_fake: OpenFake, carried: Calls) -> None:
    values = [(0, b"%06d" % each) for each in range(100)]
    cluster = open_fake(topics={TOPIC: 1})
    ledger = Ledger()
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    handled: list[bool] = []

    def send_signal(arrived: Arrived) -> Reply:
        signal.pthread_kill(main_thread, signal.SIGUSR1)
        return ledger(arrived)

    cluster.on_produce = send_signal
    former = signal.signal(signal.SIGUSR1, lambda *_: handled.append(carried.is_running))
    try:
        with (
            Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena,
            Sender(arena, f"kafka:{cluster.bootstrap}", linger_ms=0) as sender,
            Accumulator(arena) as accumulator,
        ):
            sender.open()
            for partition, value in values:
                accumulator.append(TOPIC, partition, None, None, value)
                deliver_all(sender, arena)
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert ledger.values == by_partition(values)
    assert any(handled)


def test_a_topic_that_is_named_during_a_run_is_published(arena_name: str, open_fake: OpenFake, carried: Calls) -> None:
    cluster = open_fake(topics={TOPIC: PARTITIONS, "hops": 2})
    is_over = threading.Event()

    def keep_busy() -> None:
        while not is_over.is_set():
            send_all(arena_name, [(0, b"x")])

    with Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena, running(arena, cluster):
        thread = threading.Thread(target=keep_busy)
        thread.start()
        try:
            wait_until(lambda: len(carried) > 0, "the first run of a pump")
            with Producer(arena_name, linger_ms=0) as producer:
                assert producer.send("hops", value=b"y").get(timeout=WATCHDOG_S).topic == "hops"
        finally:
            is_over.set()
            thread.join(WATCHDOG_S)


def send_in_turns(arena_name: str, values: list[tuple[int, bytes]], size: int = 5) -> None:
    for first in range(0, len(values), size):
        send_all(arena_name, values[first : first + size])


def numbered(count: int) -> list[tuple[int, bytes]]:
    return [(each % PARTITIONS, b"%06d" % each) for each in range(count)]


@pytest.mark.parametrize("options", [{"acks": "1"}, {"acks": "all"}], ids=["one acks", "all ack"])
def test_batches_without_sequences_are_carried_too(
    options: dict[str, Any], arena_name: str, open_fake: OpenFake, carried: Calls
) -> None:
    values = numbered(100)
    cluster = open_fake(topics={TOPIC: PARTITIONS})
    with (
        Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena,
        running(arena, cluster, enable_idempotence=False, max_in_flight_requests_per_connection=1, **options),
    ):
        send_in_turns(arena_name, values)
    arrived: dict[tuple[str, int], list[bytes | None]] = defaultdict(list)
    for one in cluster.arrived:
        arrived[one.topic, one.partition] += [record[3] for record in decode_batch(one.wire_bytes)]
    assert arrived == by_partition(values)
    assert {one.acks for one in cluster.arrived} == {1 if options["acks"] == "1" else -1}
    assert {one.sequence for one in cluster.arrived} == {(-1, -1, -1)}
    assert carried.batch_count > 10


def test_leaders_that_move_in_the_middle_lose_and_repeat_nothing(
    arena_name: str, open_fake: OpenFake, carried: Calls
) -> None:
    values = numbered(300)
    cluster = open_fake(broker_count=2, topics={TOPIC: PARTITIONS})
    ledger = Ledger()

    def move_now_and_then(arrived: Arrived) -> Reply:
        place = arrived.topic, arrived.partition
        if len(cluster.arrived) % 40 == 0:
            cluster.leader_epoch += 1
            cluster.leaders[place] = 1 - arrived.node_id
        if cluster.leaders[place] != arrived.node_id:
            return Reply(NOT_LEADER, leader=(cluster.leaders[place], cluster.leader_epoch))
        return ledger(arrived)

    cluster.on_produce = move_now_and_then
    with Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena, running(arena, cluster):
        send_in_turns(arena_name, values)
    assert ledger.values == by_partition(values)
    assert {one.node_id for one in cluster.arrived} == {0, 1}
    assert carried.batch_count > 10


def test_a_throttle_is_kept_by_the_library(arena_name: str, open_fake: OpenFake, carried: Calls) -> None:
    values = numbered(60)
    cluster = open_fake(topics={TOPIC: PARTITIONS})
    ledger = Ledger()
    throttled_ms = 50
    arrived_s: list[float] = []

    def throttle_now_and_then(arrived: Arrived) -> Reply:
        arrived_s.append(time.monotonic())
        cluster.throttle_time_ms = throttled_ms if len(arrived_s) % 20 == 19 else 0
        return ledger(arrived)

    cluster.on_produce = throttle_now_and_then
    options: dict[str, Any] = {"max_in_flight_requests_per_connection": 1}
    with (
        Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena,
        running(arena, cluster, **options),
    ):
        for value in values:
            send_all(arena_name, [value])
    assert ledger.values == by_partition(values)
    pauses_s = [later - sooner for sooner, later in itertools.pairwise(arrived_s)]
    assert min(pauses_s[18::20]) >= throttled_ms / 1000
    assert carried


def test_a_call_ends_before_a_batch_that_it_begins_with_expires(
    arena_name: str, open_fake: OpenFake, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans_ns: list[int] = []
    run = PumpRunner.run

    def note(self: PumpRunner, ready: list[int], due_ns: int, *, is_stuck: bool) -> PumpResult | None:
        spans_ns.append(due_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        return run(self, ready, due_ns, is_stuck=is_stuck)

    monkeypatch.setattr(PumpRunner, "run", note)
    cluster = open_fake(topics={TOPIC: PARTITIONS})
    with (
        Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena,
        running(arena, cluster, delivery_timeout_ms=DELIVERY_TIMEOUT_MS, request_timeout_ms=1_000),
    ):
        send_in_turns(arena_name, numbered(50))
    assert spans_ns
    assert max(spans_ns) <= DELIVERY_TIMEOUT_MS * 10**6


# --- hostile brokers


class Mangler:
    """Changes one of `WHOLE_ANSWERS` answers to Produce requests, until the pump has met a changed one.

    Args:
        change: returns the bytes to send instead of an answer; may raise `Cut`.
    """

    def __init__(self, change: Callable[[bytes], bytes], carried: Calls, returned: list[SocketEnd]) -> None:
        self._change = change
        self._carried = carried
        self._returned = returned
        self._whole_count = 0

    @property
    def is_met(self) -> bool:
        """True when the pump returned a socket that is broken or has unread bytes."""
        return any(each.is_broken or each.received for each in self._returned)

    def __call__(self, request: bytes, answer: bytes) -> bytes:
        (key,) = struct.unpack_from(">h", request)
        if key != PRODUCE or self.is_met or not self._carried.is_running:
            return answer
        self._whole_count += 1
        return answer if self._whole_count % WHOLE_ANSWERS else self._change(answer)


def half(answer: bytes) -> bytes:
    return answer[: len(answer) // 2]


def wrong_correlation(answer: bytes) -> bytes:
    return answer[:4] + struct.pack(">i", 12345) + answer[8:]


def huge(answer: bytes) -> bytes:
    return struct.pack(">i", 2**31 - 1) + answer[4:]


def negative(answer: bytes) -> bytes:
    return struct.pack(">i", -5) + answer[4:]


def empty(_answer: bytes) -> bytes:
    return struct.pack(">i", 0)


def doubled(answer: bytes) -> bytes:
    return answer + answer


def of_another_partition(answer: bytes) -> bytes:
    """In flexible answers, the partition follows the topic's id and a count."""
    at = 8 + 1 + 1 + TOPIC_ID_SIZE + 1
    return answer[:at] + struct.pack(">i", 999) + answer[at + 4 :]


def of_another_topic(answer: bytes) -> bytes:
    at = 8 + 1 + 1
    return answer[:at] + bytes(TOPIC_ID_SIZE) + answer[at + TOPIC_ID_SIZE :]


def without_end(answer: bytes) -> bytes:
    """A complete frame that is too large for the pump."""
    return struct.pack(">i", 1 << 24) + answer[4:] + bytes(1 << 20)


def garbled(answer: bytes) -> bytes:
    return answer[:8] + bytes(255 - byte for byte in answer[8:])


def cut(_answer: bytes) -> bytes:
    raise Cut


CHANGES = [half, wrong_correlation, huge, negative, empty, doubled, of_another_partition, of_another_topic]
CHANGES += [without_end, garbled, cut]


@pytest.mark.parametrize("change", CHANGES)
def test_a_hostile_answer_ends_its_connection_and_loses_nothing(
    change: Callable[[bytes], bytes],
    arena_name: str,
    open_fake: OpenFake,
    carried: Calls,
    returned: list[SocketEnd],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mangler = Mangler(change, carried, returned)
    answer_of = FakeBroker._answer

    def answer(self: FakeBroker, frame: bytes) -> bytes | None:
        whole = answer_of(self, frame)
        return whole if whole is None else mangler(frame, whole)

    monkeypatch.setattr(FakeBroker, "_answer", answer)
    values = numbered(100)
    cluster = open_fake(topics={TOPIC: PARTITIONS})
    cluster.on_produce = ledger = Ledger()
    options: dict[str, Any] = {"request_timeout_ms": 500, "linger_ms": 0}
    with (
        Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena,
        running(arena, cluster, **options),
    ):
        send_in_turns(arena_name, values)
    assert ledger.values == by_partition(values)
    assert mangler.is_met


def test_answers_in_another_order_lose_and_repeat_nothing(
    arena_name: str, open_fake: OpenFake, carried: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sometimes an answer is delayed until after the next one of its broker."""
    answer_of = FakeBroker._answer
    held: list[bytes] = []
    counts = itertools.count(1)

    def answer(self: FakeBroker, frame: bytes) -> bytes | None:
        whole = answer_of(self, frame)
        if whole is None or struct.unpack_from(">h", frame) != (PRODUCE,):
            return whole
        if next(counts) % 10 == 0:
            held.append(whole)
            return b""
        return whole + held.pop() if held else whole

    monkeypatch.setattr(FakeBroker, "_answer", answer)
    values = numbered(60)
    cluster = open_fake(topics={TOPIC: PARTITIONS})
    cluster.on_produce = ledger = Ledger()
    with (
        Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena,
        running(arena, cluster, request_timeout_ms=200),
    ):
        send_in_turns(arena_name, values)
    assert ledger.values == by_partition(values)
    assert next(counts) > 10
    assert carried


def test_a_second_answer_to_an_earlier_request_acks_nothing(
    arena_name: str, open_fake: OpenFake, carried: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call has one request. Before a batch is rejected, the previous answer is repeated."""
    answer_of = FakeBroker._answer
    cluster = open_fake(topics={TOPIC: 1})
    ledger = Ledger()
    answers: list[bytes] = []
    refused: list[Arrived] = []

    def refuse_one(arrived: Arrived) -> Reply:
        if len(carried) < 5 or refused:
            return ledger(arrived)
        refused.append(arrived)
        return Reply(NOT_ENOUGH_REPLICAS)

    def answer(self: FakeBroker, frame: bytes) -> bytes | None:
        was_refused = bool(refused)
        whole = answer_of(self, frame)
        if whole is None or struct.unpack_from(">h", frame) != (PRODUCE,):
            return whole
        answers.append(whole)
        return answers[-2] + whole if refused and not was_refused else whole

    monkeypatch.setattr(FakeBroker, "_answer", answer)
    cluster.on_produce = refuse_one
    values = [(0, b"%06d" % each) for each in range(20)]
    with Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena, running(arena, cluster):
        for value in values:
            send_all(arena_name, [value])
            wait_until(lambda: not carried.is_running, "the call is over")
    assert ledger.values == by_partition(values)
    assert refused


def test_a_late_answer_is_taken_by_the_sink(
    arena_name: str, open_fake: OpenFake, carried: Calls, returned: list[SocketEnd]
) -> None:
    """A batch that the pump cannot send ends its call while a request has no answer."""
    has_arrived, may_answer = threading.Event(), threading.Event()
    cluster = open_fake(topics={TOPIC: 2})
    ledger = Ledger()

    def answer_late(arrived: Arrived) -> Reply:
        if carried.is_running and arrived.sequence[2] > 1 and not has_arrived.is_set():
            has_arrived.set()
            assert may_answer.wait(WATCHDOG_S)
        return ledger(arrived)

    cluster.on_produce = answer_late
    with Arena.create(arena_name, buffer_memory="256KiB", batch_size="4KiB") as arena, running(arena, cluster):
        send_in_turns(arena_name, [(0, b"first"), (0, b"second")], 1)
        with Producer(arena_name, linger_ms=0) as producer:
            futures: list[DeliveryFuture] = []

            def is_answered() -> bool:
                return has_arrived.is_set() or futures[-1].is_done

            while not has_arrived.is_set():
                futures.append(producer.send(TOPIC, value=b"%d" % len(futures), partition=0))
                wait_until(is_answered, "it is answered, or will be late")
            producer.send(TOPIC, value=b"other", partition=1)
            wait_until(lambda: any(each.unanswered for each in returned), "the sink has the request")
            may_answer.set()
            assert futures[-1].get(timeout=WATCHDOG_S).offset == len(futures) + 1
    values = [b"first", b"second", *(b"%d" % number for number in range(len(futures)))]
    assert ledger.values == {(TOPIC, 0): values, (TOPIC, 1): [b"other"]}
    assert len(cluster.arrived) == len(values) + 1, "none was resent"


# --- deaths


def about_to_carry(arena_name: str, bootstrap: str) -> Callable[[], object]:
    """A sender that has delivered a batch by Python, and three batches for its pump."""
    arena = Arena.attach(arena_name)
    accumulator = Accumulator(arena)
    sender = Sender(arena, f"kafka:{bootstrap}", linger_ms=0)
    sender.open()
    append(accumulator, 0, 1)
    deliver_all(sender, arena)
    append(accumulator, 1, 4)
    return lambda: deliver_all(sender, arena)


def append(accumulator: Accumulator, first: int, end: int) -> None:
    for number in range(first, end):
        accumulator.append(TOPIC, 0, None, None, b"%d" % number * 3000)


def deliver_all(sender: Sender, arena: Arena) -> None:
    """Runs rounds until every buffer is free."""
    deadline_s = time.monotonic() + WATCHDOG_S
    while arena.statistics().slots["FREE"] != arena.geometry["slot_count"]:
        assert time.monotonic() < deadline_s
        sender.run_once()


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_sender_that_dies_at_any_system_call_of_its_rounds_loses_and_repeats_nothing(
    stride: int, arena_name: str, open_fake: OpenFake, seeded: Callable[[], random.Random]
) -> None:
    """Kill a child before a system call of its rounds in C. The next sender continues."""
    steps = seeded()
    death_count = number = 0
    while True:
        number += steps.randint(1, stride)
        cluster = open_fake()
        cluster.on_produce = ledger = Ledger()
        with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB") as arena:
            is_dead = dies_at_system_call(functools.partial(about_to_carry, arena_name, cluster.bootstrap), number)
            with Sender(arena, f"kafka:{cluster.bootstrap}", linger_ms=0) as sender:
                sender.open()
                deliver_all(sender, arena)
        Arena.remove(arena_name)
        assert ledger.values == {(TOPIC, 0): [b"%d" % each * 3000 for each in range(4)]}
        if not is_dead:
            break
        death_count += 1
    assert death_count > 1
