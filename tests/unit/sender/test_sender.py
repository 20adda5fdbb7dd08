# SPDX-License-Identifier: Apache-2.0
"""The sender: its role, its start and stop, its published facts, and faulty sinks."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shmaccum import Producer
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.arena.wake_fifo import wait_readable
from shmaccum.exceptions import (
    ArenaBusyError,
    BatchInUseError,
    BufferExhaustedError,
    DeliveryFailedError,
    InvalidArgumentError,
    LogBusyError,
    NotSenderError,
    UnknownTopicError,
)
from shmaccum.sender import Sender
from shmaccum.sender.backoff import NEVER_NS
from shmaccum.sender.sinks.memory import MemorySink
from shmaccum.sender.sinks.null import NullSink
from shmaccum.sender.sinks.sink import Ack, Acks, Verdict, WireBatch, each_ack
from tests.support.accumulator import Accumulator
from tests.support.descriptors import await_no_other, open_descriptors
from tests.support.processes import WATCHDOG_S, Child, wait_until
from tests.support.sender import MS, TOPIC, ScriptedSink, Sending, refuse, rests_of, retry

FAST: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 10, "retry_backoff_max_ms": 10}
PAUSE_MS = 20
Start = Callable[..., tuple[Sender, threading.Thread]]


@pytest.fixture
def sending(arena: Arena) -> Iterator[Sending]:
    sending = Sending(arena, **FAST)
    yield sending
    sending.close()


@pytest.fixture
def running(arena: Arena) -> Iterator[Start]:
    """Start senders in their own threads, with their own handles, and stop them at the end."""
    running: list[tuple[Sender, threading.Thread]] = []

    def start(sink: MemorySink, **options: Any) -> tuple[Sender, threading.Thread]:
        sender = Sender(arena.name, sink, **{"linger_ms": 1, **options})
        thread = threading.Thread(target=sender.run)
        thread.start()
        running.append((sender, thread))
        return running[-1]

    yield start
    for sender, thread in running:
        if thread.is_alive():
            sender.stop()
        thread.join()


# --- life


def test_a_second_sender_is_refused(sending: Sending) -> None:
    told = rf"the arena {sending.arena.name} has a living sender \(process {os.getpid()}\), which delivers to Scripted"
    with Sender(sending.arena.name, MemorySink()) as second, pytest.raises(ArenaBusyError, match=told):
        second.run()
    sending.append()
    sending.run()
    assert sending.values() == [0]


@pytest.mark.parametrize("leave", [Sender.close, Sender.stop, Sender.abort])
def test_a_sender_that_exits_cleanly_records_it_in_the_arena(arena: Arena, leave: Callable[[Sender], None]) -> None:
    assert not arena.native.sender_died  # there was no sender
    with Sender(arena.name, MemorySink()) as sender:
        sender.open()
        leave(sender)
        if not sender._half.closed:
            sender.run()
    assert not arena.native.sender_is_alive
    assert not arena.native.sender_died


def test_a_sender_that_leaves_keeps_no_descriptor(arena: Arena) -> None:
    before = open_descriptors()
    with Sender(arena, MemorySink()) as sender:
        sender.open()
        assert not open_descriptors() <= before
    await_no_other(before)


def test_a_wake_up_ends_one_wait(sending: Sending) -> None:
    sending.sender._wake()
    sending.sender._wait(WATCHDOG_S)
    assert sending.sender._wake_fifo is not None
    assert wait_readable([sending.sender._wake_fifo], 0) == []


def run_for_ever(name: str) -> None:
    Sender(name, MemorySink()).run()


def test_a_sender_that_is_killed_died(arena: Arena) -> None:
    child = Child(run_for_ever, arena.name)
    wait_until(lambda: arena.native.sender()["sink_name"] is not None, "it has the role")
    assert not arena.native.sender_died
    child.kill()
    assert arena.native.sender_died


def test_a_sender_that_fails_died(arena: Arena) -> None:
    failing = ScriptedSink()
    failing.raises["open"] = OSError("no such place")
    with pytest.raises(OSError, match="no such place"), Sender(arena.name, failing) as sender:
        sender.run()
    assert arena.native.sender_died
    with Sender(arena.name, MemorySink()) as successor:
        successor.open()
    assert not arena.native.sender_died


def test_a_drain_shows_life_and_so_does_a_sink_on_request(sending: Sending) -> None:
    def shows_life(act: Callable[[], object]) -> bool:
        sending.sleep(1)
        act()
        return bool(sending.arena.native.sender()["heartbeat_ns"] == sending.now_ms * MS)

    assert shows_life(lambda: sending.sender._half.drain([], 1))
    assert sending.scripted.host is not None
    assert shows_life(sending.scripted.host.show_life)


def send_for_ever(name: str) -> None:
    with Producer(name) as producer:
        while True:
            producer.send(TOPIC, b"v")


def stopped_while_writing(child: Child, arena: Arena) -> bool:
    """Let it send, and stop it. Half of the time, it has a batch as its hazard."""
    sent_count = arena._table("processes")["record_count"].sum()
    os.kill(child.pid, signal.SIGCONT)
    wait_until(lambda: arena._table("processes")["record_count"].sum() > sent_count, "it sends")
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    return bool(arena._table("processes")["writing"].any())


def test_one_that_leaves_frees_what_could_not_be_freed_when_it_was_done(arena_name: str) -> None:
    """The arena can take all records that are sent until a process is stopped while it writes."""
    with Arena.create(arena_name) as arena:
        arena.native.set_topic_partition_count(TOPIC, 1)
        counts = arena.native.state_counts
        with Sender(arena, MemorySink(), linger_ms=0) as sender:
            sender.open()
            child = Child(send_for_ever, arena_name)
            wait_until(lambda: stopped_while_writing(child, arena), "it has a hazard")
            wait_until(lambda: sender.run_once() == counts()["OPEN"] == counts()["READY"] == 0, "all is delivered")
            assert counts()["DONE"] == 1
            child.kill()
        assert counts()["DONE"] == 0


def test_without_the_role_it_does_nothing(arena: Arena) -> None:
    with Sender(arena, MemorySink()) as sender:
        assert not sender.is_open
        with pytest.raises(NotSenderError):
            sender.run_once()
        with pytest.raises(NotSenderError):
            sender.metrics()
        assert repr(sender) == f"<Sender of {arena.name!r}, without the role>"


def test_wrong_options_are_refused_before_anything_happens(arena: Arena) -> None:
    with pytest.raises(InvalidArgumentError, match="did you mean linger_ms"):
        Sender(arena, MemorySink(), linger_mss=5)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgumentError, match="carrier-pigeon"):
        Sender(arena, "carrier-pigeon:")
    assert not arena.native.sender_is_alive


def test_a_sink_that_cannot_be_opened_ends_it_and_leaves_the_role(arena: Arena) -> None:
    sink = ScriptedSink()
    sink.raises["open"] = OSError("no such place")
    with Sender(arena, sink) as sender, pytest.raises(OSError, match="no such place"):
        sender.run()
    assert not arena.native.sender_is_alive


def test_stop_delivers_what_is_there_and_leaves(arena: Arena, running: Start) -> None:
    sink = MemorySink()
    with Accumulator(arena) as accumulator:
        sender, thread = running(sink, linger_ms=60_000)
        wait_until(lambda: arena.native.sender_is_alive, "it has the role")
        for number in range(100):
            accumulator.append(TOPIC, 0, 1000, None, b"%d" % number)
        sender.stop()
        thread.join()
        assert len(sink.values(TOPIC)) == 100
        assert not arena.native.sender_is_alive


def test_stop_in_time_keeps_what_could_not_be_delivered(sending: Sending) -> None:
    sending.scripted.is_held = True
    (token,) = sending.append()
    sending.run()
    sending.append()
    sending.sender.stop(timeout_s=0)
    sending.scripted.is_held = False
    sending.scripted.script = [retry]
    sending.sender.run()
    assert sending.result(token) is None
    assert sending.arena.statistics().slots["READY"] == 2


def test_batches_in_flight_at_the_close_are_left_without_a_report(sending: Sending) -> None:
    sending.scripted.is_held = True
    (token,) = sending.append()
    sending.run()
    sending.scripted.raises["poll"] = OSError("no response")  # ends the wait
    sending.sender.close()
    assert sending.result(token) is None
    assert sending.arena.statistics().slots["READY"] == 1
    assert not any("keeps bytes" in sentence for sentence in sending.errors())


def test_the_next_sender_continues_with_the_same_producer_id(sending: Sending) -> None:
    sending.append()
    sending.run()
    (token,) = sending.append()
    lost: list[WireBatch] = []

    def write_and_die(wire: WireBatch) -> Ack:
        sending.scripted.broker.write([wire])
        lost.append(wire)
        return Ack(wire, Verdict.RETRY, retry_after_ms=0)

    sending.scripted.script = [write_and_die]
    sending.run()
    sending.sender.close()
    sending.sender = Sender(sending.arena, sending.scripted, **FAST)
    sending.sender.open()
    sending.run(2)
    assert sending.values() == [0, 1]
    assert sending.result(token) is BatchResult.SUCCEEDED
    assert sending.completion(token).base_offset == 1


def test_another_sink_gets_sequences_of_its_own(sending: Sending) -> None:
    sending.append()
    sending.run()
    sending.append()
    sending.scripted.script = [retry]
    sending.run()
    sending.sender.close()
    sending.scripted = ScriptedSink()
    sending.sender = Sender(sending.arena, sending.scripted, **FAST)
    sending.sender.open()
    sending.run(2)
    assert sending.scripted.deliveries == [[(0, 0, 1)]]
    assert sending.arena.native.producer_identity == (0, 0, sending.scripted.identity)


def test_a_sink_without_sequences_gets_none(arena: Arena) -> None:
    sink = ScriptedSink(is_idempotent=False)
    sending = Sending(arena, sink, **FAST)
    sending.append()
    sending.run()
    assert sink.deliveries == [[(0, -1, 1)]]
    sending.scripted = sink
    sending.close()


def test_it_leaves_when_it_was_idle_and_alone(arena: Arena) -> None:
    with Sender(arena, MemorySink(), idle_exit_ms=50) as sender:
        sender.run()
        assert sender.has_left_idle


def test_it_stays_while_others_are_attached(arena: Arena, running: Start) -> None:
    sender, thread = running(MemorySink(), idle_exit_ms=20)
    wait_until(lambda: sender._next_idle_check_ns > 0, "it has checked whether it is alone")
    first = sender._next_idle_check_ns
    wait_until(lambda: sender._next_idle_check_ns > first + 40 * MS, "it would have left")
    assert thread.is_alive()


def test_a_sender_that_is_stopped_and_has_nothing_does_not_rest(sending: Sending) -> None:
    rests_s = rests_of(sending)
    sending.sender.run_once()
    assert max(rests_s) > 0
    rests_s.clear()
    sending.sender.stop()
    sending.sender.run()
    assert rests_s
    assert max(rests_s) == 0


def test_a_standby_waits_and_takes_over(arena: Arena) -> None:
    first = Sender(arena, MemorySink())
    first.open()
    standby = Sender(arena.name, MemorySink(), standby=True)
    thread = threading.Thread(target=standby.run)
    thread.start()
    assert not standby.is_open
    first.close()
    wait_until(lambda: standby.is_open, "the standby has the role")
    standby.stop()
    thread.join()


def test_a_wait_for_the_sender_of_a_removed_arena_is_logged_once(
    sending: Sending, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits_s: list[float] = []
    monkeypatch.setattr(sending.sender, "_wait", waits_s.append)

    def open_log() -> None:
        if len(waits_s) < 3:
            raise LogBusyError("the log is in use", sending.arena.name, pid="another")

    host: Any = SimpleNamespace(show_life=lambda: None)
    sending.sender._wait_for_former_sender(host, open_log)
    assert len(waits_s) == 3
    assert caplog.messages == ["the log is in use: waiting for the sender of a removed arena of this name"]


@pytest.mark.parametrize("writer", [("another arena", "another"), (None, str(os.getpid()))])
def test_a_sender_waits_for_no_other_writer_of_its_log(sending: Sending, writer: tuple[str | None, str]) -> None:
    def open_log() -> None:
        raise LogBusyError("the log is in use", writer[0] or sending.arena.name, writer[1])

    host: Any = SimpleNamespace(show_life=lambda: None)
    with pytest.raises(LogBusyError, match="the log is in use"):
        sending.sender._wait_for_former_sender(host, open_log)


def test_a_standby_that_is_stopped_while_it_waits_leaves(arena: Arena) -> None:
    with Sender(arena, MemorySink()) as first:
        first.open()
        standby = Sender(arena.name, MemorySink(), standby=True)
        thread = threading.Thread(target=standby.run)
        thread.start()
        standby.stop()
        thread.join()
        assert first.is_open


def test_a_lone_sender_that_is_stopped_before_it_begins_delivers_what_is_there(arena: Arena) -> None:
    with Accumulator(arena) as producer:
        producer.append(TOPIC, 0, 1000, None, b"early")
    sink = MemorySink()
    with Sender(arena.name, sink) as sender:
        sender.stop()
        sender.run()
    assert sink.values(TOPIC) == [b"early"]


# --- published facts


def test_partition_counts_reach_producers(sending: Sending) -> None:
    sending.append()
    sending.run()
    assert sending.arena.native.topic_partition_count(TOPIC) == 8


def test_a_topic_that_the_sink_is_still_finding_out_about(sending: Sending) -> None:
    answers: list[int | None] = [None, None, 3]
    sending.scripted.partition_count = lambda _topic: answers.pop(0)  # type: ignore[method-assign, assignment]
    sending.append()
    sending.run()
    assert sending.arena.native.topic_partition_count(TOPIC) == 0
    sending.sleep(10)
    sending.run()
    sending.sleep(10)
    sending.run()
    assert sending.arena.native.topic_partition_count(TOPIC) == 3


def test_an_unknown_topic_is_reported_and_does_no_harm(sending: Sending) -> None:
    sending.scripted.raises["partition_count"] = UnknownTopicError("there is no topic 'topic'")
    sending.append()
    sending.run()
    assert "there is no topic 'topic'" in sending.errors()
    assert sending.values() == [0]


def test_queues_are_published(sending: Sending) -> None:
    sending.scripted.plan_filter = lambda _: False
    sending.append(3)
    sending.append(3)
    sending.run()
    sending.sleep(100)
    sending.run()
    assert sending.arena._table("partitions")["queued_batch_count"][sending.partition_index(3)] == 2


def test_a_sign_of_life(sending: Sending) -> None:
    sending.sleep(100)
    sending.run()
    assert sending.arena.native.sender()["heartbeat_ns"] == sending.now_ms * MS


# --- order and fairness


def test_a_blocked_partition_stalls_no_other(sending: Sending) -> None:
    for number in range(6):
        sending.append(number % 2)
    blocked = sending.partition_index(0)
    sending.scripted.plan_filter = lambda index: index != blocked
    sending.run(4)
    assert sending.values(0) == []
    assert sending.values(1) == [1, 3, 5]
    sending.scripted.plan_filter = lambda _: True
    sending.run(4)
    assert sending.values(0) == [0, 2, 4]


def test_what_a_delivery_has_no_room_for_comes_first_the_next_time(sending: Sending) -> None:
    sending.scripted.limits = sending.scripted.limits._replace(request_size_max=1)
    for partition in range(4):
        sending.append(partition)
    served: list[int] = []
    for _ in range(4):
        sending.run()
        served += [partition for partition, _, _ in sending.scripted.deliveries[-1]]
        sending.append(served[-1])
    assert sorted(served) == [0, 1, 2, 3]


def test_what_had_no_room_keeps_its_turn_while_the_sink_takes_nothing(sending: Sending) -> None:
    sending.scripted.limits = sending.scripted.limits._replace(request_size_max=1)
    for partition in range(3):
        sending.append(partition)
    sending.run()
    ((first, _, _),) = sending.scripted.deliveries[-1]
    sending.append(first)
    sending.scripted.plan_filter = lambda _: False
    sending.run(3)
    sending.scripted.plan_filter = lambda _: True
    sending.run(2)
    assert [partition for ((partition, _, _),) in sending.scripted.deliveries[1:3]] == [
        partition for partition in (0, 1, 2, 0, 1) if partition != first
    ][:2]


def test_linger(arena: Arena) -> None:
    sending = Sending(arena, linger_ms=50)
    sending.producer.append(TOPIC, 0, 1000, None, b"0")
    assert sending.run(2) == [0, 0]
    sending.sleep(50)
    assert sending.run() == [1]
    sending.close()


def test_where_batches_linger_the_sender_naps_until_one_may_be_due(arena: Arena) -> None:
    sending = Sending(arena, linger_ms=4)
    rests = rests_of(sending)
    sending.producer.append(TOPIC, 0, 1000, None, b"0")
    sending.sleep(4)
    assert sending.run(2) == [1, 0]
    assert arena.native.sender()["is_asleep"] is False
    assert rests[-1] == pytest.approx(0.004)
    sending.producer.append(TOPIC, 0, 1000, None, b"x" * 3000)
    sending.sleep(4)
    assert sending.run(2) == [1, 0]
    assert rests[-1] == pytest.approx(0.001)
    sending.close()


def test_a_producer_without_linger_wakes_a_sender_in_a_short_wait(arena: Arena) -> None:
    sending = Sending(arena, linger_ms=4)
    rings: list[None] = []
    hasty = Accumulator(arena, linger_ms=0, ring=lambda: rings.append(None))
    sending.producer.append(TOPIC, 0, 1000, None, b"0")
    sending.sleep(4)
    assert sending.run() == [1]
    poll = sending.scripted.poll

    def poll_meanwhile(timeout_s: float, wake_fd: int) -> Sequence[Ack | Acks]:
        if not rings:
            assert timeout_s == pytest.approx(0.004)
            hasty.append(TOPIC, 1, 1000, None, b"1")
        return poll(0, wake_fd)

    sending.scripted.poll = poll_meanwhile  # type: ignore[method-assign]
    assert sending.run(2) == [0, 1]
    assert rings == [None]
    hasty.close()
    sending.close()


@pytest.mark.parametrize(("is_full", "ring_count"), [(False, 1), (True, 0)], ids=["a sink with room", "a full sink"])
def test_a_batch_wakes_a_sleeping_sender_unless_its_sink_is_full(arena: Arena, is_full: bool, ring_count: int) -> None:
    sending = Sending(arena, linger_ms=0)
    sending.scripted.plan_filter = lambda _: not is_full
    sending.scripted.is_full = is_full
    rings: list[None] = []
    hasty = Accumulator(arena, linger_ms=0, ring=lambda: rings.append(None))
    hasty.append(TOPIC, 0, 1000, None, b"0")
    sending.run()
    sending.sleep(50)  # nothing was sent lately
    poll = sending.scripted.poll

    def poll_meanwhile(timeout_s: float, wake_fd: int) -> Sequence[Ack | Acks]:
        if timeout_s > 0:
            hasty.append(TOPIC, 1, 1000, None, b"1")
            assert arena.native.take_sleep_flag() is is_full  # if the sink is full, the flag is still set
        return poll(0, wake_fd)

    sending.scripted.poll = poll_meanwhile  # type: ignore[method-assign]
    sending.run()
    assert len(rings) == ring_count
    sending.scripted.poll = poll  # type: ignore[method-assign]
    sending.scripted.plan_filter = lambda _: True
    sending.run(3)
    hasty.close()
    sending.close()


@pytest.mark.parametrize(("size", "ring_count"), [(1, 1), (1000, 0)], ids=["few records", "many records"])
def test_a_batch_that_does_not_linger_ends_a_short_wait_after_few_records(
    arena: Arena, size: int, ring_count: int
) -> None:
    sending = Sending(arena, linger_ms=0)
    rings: list[None] = []
    hasty = Accumulator(arena, linger_ms=0, ring=lambda: rings.append(None))
    hasty.append(TOPIC, 0, 1000, None, bytes(size))
    assert sending.run() == [1]
    rings.clear()
    rests: list[float] = []
    poll = sending.scripted.poll

    def poll_meanwhile(timeout_s: float, wake_fd: int) -> Sequence[Ack | Acks]:
        if not rests:
            hasty.append(TOPIC, 1, 1000, None, b"1")
        rests.append(timeout_s)
        return poll(0, wake_fd)

    sending.scripted.poll = poll_meanwhile  # type: ignore[method-assign]
    assert sending.run(2) == [0, 1]
    assert rests[0] == pytest.approx(0.001)
    assert len(rings) == ring_count
    hasty.close()
    sending.close()


def test_a_short_wait_that_reaches_beyond_the_next_tick_is_no_sleep(arena: Arena) -> None:
    """Producers do not wake the sender for lingering records during a short timed wait."""
    sending = Sending(arena, linger_ms=4)
    rests = rests_of(sending)
    sending.run()
    sending.sleep(95)
    sending.producer.append(TOPIC, 0, 1000, None, b"0")
    sending.sleep(4)
    assert sending.run(2) == [1, 0]
    assert rests[-1] == pytest.approx(0.001)
    sending.close()


def test_a_sender_without_a_producer_id_rests_until_the_next_tick(sending: Sending) -> None:
    """An unreachable cluster assigns none for hours, while records wait."""
    sending.scripted.next_producer_ids = [None, None]
    rests = rests_of(sending)
    sending.append()
    assert sending.run(3) == [0, 0, 1]
    assert rests[:2] == [pytest.approx(0.1, abs=0.01)] * 2


def test_a_sender_that_lets_nothing_linger_does_not_wait_longer_for_producers_that_do(arena: Arena) -> None:
    sending = Sending(arena, linger_ms=0)
    rests = rests_of(sending)
    with Accumulator(arena, linger_ms=5) as patient:
        patient.append(TOPIC, 0, 1000, None, b"0")
        sending.sleep(5)
        assert sending.run(2) == [1, 0]
    assert rests[-1] == pytest.approx(0.001)
    sending.close()


# --- many acks in one


class AcksTogether(ScriptedSink):
    """Returns all acks as one object."""

    def poll(self, timeout_s: float, wake_fd: int) -> Sequence[Ack | Acks]:
        acks = list(each_ack(super().poll(timeout_s, wake_fd)))
        if not acks:
            return ()
        wires = [ack.wire for ack in acks]
        offsets = [ack.base_offset for ack in acks]
        return [Acks(wires, offsets, [ack.log_append_time_ms for ack in acks])]


def test_batches_that_were_all_delivered_are_acked_in_one(arena: Arena) -> None:
    sending = Sending(arena, AcksTogether())
    tokens = [token for partition in range(4) for token in sending.append(partition, 2)]
    sending.run(2)
    assert [sending.completion(token).base_offset for token in tokens] == [0, 0] * 4
    sending.close()


def test_each_of_many_acks_in_one_equals_a_single_one(arena: Arena) -> None:
    """One batch has expired, the sink has a view of another, and one ack is a duplicate."""
    sink = AcksTogether()
    sending = Sending(arena, sink, delivery_timeout_ms=1000, request_timeout_ms=500)
    sink.is_held = True
    (expired,) = sending.append(0)
    sending.run(2)
    sending.sleep(999)
    (kept,), (delivered,) = sending.append(1), sending.append(2)
    sending.run(2)
    sending.sleep(1)
    sending.run()
    assert len(sink.held) == 3
    view = next(wire for wire in sink.held if wire.partition == 1).buffers[0][61:]
    sink.held.append(sink.held[2])  # the second ack is surplus
    sink.is_held = False
    sending.run(2)
    assert sending.result(expired) is BatchResult.EXPIRED
    assert sending.result(delivered) is BatchResult.SUCCEEDED
    assert sending.producer.find(kept) is None
    view.release()
    sending.sleep(200)
    sending.run(2)
    assert sending.result(kept) is BatchResult.SUCCEEDED
    assert any("does not have" in error for error in sending.errors())
    sending.close()


# --- faulty sinks


@pytest.mark.parametrize("method", ["plan", "poll", "deliver", "new_producer_id", "partition_count"])
def test_a_sink_that_raises_is_left_alone_and_nothing_is_lost(sending: Sending, method: str) -> None:
    sending.scripted.raises[method] = RuntimeError(f"planted in {method}")
    (token,) = sending.append()
    sending.run(2)
    for _ in range(3):
        sending.sleep(PAUSE_MS)
        sending.run(2)
    assert sending.values() == [0]
    assert sending.result(token) is BatchResult.SUCCEEDED
    assert any(f"planted in {method}" in error for error in sending.errors())


def test_a_sink_that_keeps_raising_is_asked_less_and_less(arena: Arena) -> None:
    sending = Sending(arena, linger_ms=0, retry_backoff_ms=100, retry_backoff_max_ms=1000)
    calls = 0

    def plan(_ready: Sequence[int]) -> Sequence[Sequence[int]]:
        nonlocal calls
        calls += 1
        raise OSError(28, "No space left on device")

    sending.scripted.plan = plan  # type: ignore[method-assign, assignment]
    sending.append()
    for _ in range(100):
        sending.run()
        sending.sleep(20)
    assert 3 <= calls <= 8
    sending.close()


def test_a_full_disk_loses_nothing(sending: Sending) -> None:
    """The sink returns RETRY for a while, as a log does at ENOSPC."""
    sending.scripted.script = [lambda wire: Ack(wire, Verdict.RETRY, message="No space left on device")] * 9
    tokens = [sending.append(partition)[0] for partition in (0, 1, 2)]
    for _ in range(10):
        sending.run()
        sending.sleep(PAUSE_MS)
    assert [sending.result(token) for token in tokens] == [BatchResult.SUCCEEDED] * 3
    errors = {error["text"]: error["count"] for error in sending.arena.native.errors()}
    assert sum(errors.values()) == 9
    assert len(errors) == 3


def test_a_partition_with_too_few_replicas_is_stuck_until_it_takes_a_batch(sending: Sending) -> None:
    sending.scripted.script = [lambda wire: Ack(wire, Verdict.RETRY, error_code=19, message="too few replicas")]
    (token,) = sending.append(1)
    sending.run()
    partition_index = sending.arena.native.partitions().index((TOPIC, 1))
    limit = sending.arena.native.partition_limit(partition_index, 1)
    assert (limit["stuck_reason"], limit["stuck_error"]) == (2, 19)
    sending.sleep(PAUSE_MS)
    sending.run()
    assert sending.result(token) is BatchResult.SUCCEEDED
    sending.sleep(200)  # until the next maintenance
    sending.run()
    assert sending.arena.native.partition_limit(partition_index, 1)["stuck_reason"] == 0


def test_a_sink_that_keeps_views_is_reported_and_its_memory_is_not_reused(sending: Sending) -> None:
    kept: list[memoryview] = []

    def keep(wire: WireBatch) -> Ack:
        kept.extend(buffer[61:] for buffer in wire.buffers)
        return Ack(wire, Verdict.DELIVERED, 0)

    sending.scripted.script = [keep]
    (token,) = sending.append()
    sending.run()
    assert sending.result(token) is None
    assert "the sink keeps the bytes of a batch it has acknowledged: its memory cannot be used again" in (
        sending.errors()
    )
    kept[0].release()
    sending.sleep(100)
    sending.run()
    assert sending.result(token) is BatchResult.SUCCEEDED


def test_a_sink_that_keeps_views_past_its_close_is_reported(sending: Sending) -> None:
    sending.scripted.is_held = True
    sending.append()
    sending.run()
    kept = sending.scripted.held[0].buffers[0][61:]
    with pytest.raises(BatchInUseError, match="release them before the sender role is left"):
        sending.sender.close()
    assert "the sink keeps bytes after it was closed: the next sender delivers their batches" in sending.errors()
    kept.release()
    sending.sender._half.resign()
    sending.sender._half.close()


def test_an_ack_for_nothing_is_ignored(sending: Sending) -> None:
    acks: list[Ack] = []

    def twice(wire: WireBatch) -> Ack:
        acks.append(Ack(wire, Verdict.DELIVERED, 0))
        return acks[0]

    def first_again(wire: WireBatch) -> Ack:
        sending.scripted.held.append(wire)  # its own ack follows at the next poll
        return acks[0]

    sending.scripted.script = [twice, first_again]
    sending.append()
    sending.run()
    (token,) = sending.append(1)
    sending.run()
    assert any("that it does not have: ignored" in error for error in sending.errors())
    sending.run()
    assert sending.result(token) is BatchResult.SUCCEEDED


def test_a_sink_that_cannot_be_closed_does_not_keep_the_role(sending: Sending) -> None:
    sending.scripted.raises["close"] = RuntimeError("planted in close")
    sending.sender.close()
    assert not sending.arena.native.sender_is_alive
    assert "the sink could not be closed: planted in close" in sending.errors()
    sending.sender.close()


# --- damage


def test_a_batch_that_another_process_changed_is_not_sent(sending: Sending) -> None:
    (damaged,) = sending.append(0)
    (sound,) = sending.append(1)
    layout = sending.arena.native.layout
    position = layout["slot_data"] + damaged.slot_index * sending.arena.geometry["slot_stride"] + 65
    with open(f"/dev/shm/{sending.arena.name}", "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))
    sending.run(2)
    assert sending.result(damaged) is BatchResult.CORRUPT
    assert sending.result(sound) is BatchResult.SUCCEEDED
    assert sending.arena.statistics().slots["BAD"] == 1
    assert sending.sender.metrics()["batch-quarantine-total"] == 1


# --- backpressure


def test_a_slow_sink_holds_producers_up(arena: Arena) -> None:
    """While the sink takes nothing, producers wait for the 16 buffers. Afterwards they continue in order."""
    sending = Sending(arena, linger_ms=0)
    sending.scripted.plan_filter = lambda _: False
    arena.native.set_manual_clock(None)
    filler = bytes(3000)
    with Accumulator(arena, max_block_ms=20) as accumulator:
        for _ in range(16):
            accumulator.append(TOPIC, 0, 1000, None, filler)
        with pytest.raises(BufferExhaustedError):
            accumulator.append(TOPIC, 0, 1000, None, filler)
        sending.scripted.plan_filter = lambda _: True
        assert sum(sending.run(20)) == 16
        accumulator.append(TOPIC, 0, 1000, None, filler)
    assert len(sending.scripted.broker.values(TOPIC)) == 16
    sending.close()


# --- idle waits


def test_a_lost_wake_up_costs_a_tick(arena: Arena, running: Start) -> None:
    sink = MemorySink()
    running(sink, linger_ms=0)
    wait_until(lambda: arena.native.sender()["is_asleep"], "it sleeps")
    with Accumulator(arena, ring=lambda: None) as deaf:
        deaf.append(TOPIC, 0, 1000, None, b"nobody rang")
        wait_until(lambda: sink.values(TOPIC) == [b"nobody rang"], "it is delivered at the next tick")
        deaf.flush()


def test_ticks_are_rarer_when_nothing_came_for_a_second(sending: Sending) -> None:
    sending.run()
    rests = rests_of(sending)
    run_once = sending.sender.run_once  # no wake call, which would end the wait
    while 1.0 not in rests:
        run_once()
    assert rests.count(0.1) == 10
    sending.append(0)
    sending.run()
    sending.sleep(PAUSE_MS)
    rests.clear()
    while 0.1 not in rests:
        run_once()
    assert 1.0 not in rests, "after traffic it begins with short ticks"


def test_a_sleeping_sender_shows_life_at_each_tick(sending: Sending) -> None:
    sending.run()
    native, poll = sending.arena.native, sending.scripted.poll
    silences_ms: list[float] = []

    def poll_until_the_end(timeout_s: float, wake_fd: int) -> Sequence[Ack | Acks]:
        sending.jump(int(timeout_s * 1000))
        silences_ms.append(sending.now_ms - native.sender()["heartbeat_ns"] / MS)
        return poll(0, wake_fd)

    sending.scripted.poll = poll_until_the_end  # type: ignore[method-assign]
    while len(silences_ms) < 30:
        sending.sender.run_once()
    assert 1000 in silences_ms, "the sender has not slept"
    assert max(silences_ms) <= 1100


@pytest.mark.parametrize("option", [None, "overflow", "dead_letter"])
def test_only_an_overflow_needs_rounds_without_the_pump(arena: Arena, tmp_path: Path, option: str | None) -> None:
    options: dict[str, Any] = {} if option is None else {option: f"log:{tmp_path}"}
    sending = Sending(arena, **options)
    rounds = sending.sender._rounds
    assert rounds is not None
    assert (rounds._maintenance.ends_pump_ns < NEVER_NS) is (option == "overflow")
    sending.close()


def asleep(sending: Sending) -> list[float]:
    """Run the sender until it has slept for a second, and return the list of its later waits."""
    rests = rests_of(sending)
    while 1.0 not in rests:
        sending.sender.run_once()
    rests.clear()
    return rests


def test_a_sender_that_slept_through_sleeps_until_something_changes(
    sending: Sending, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep(sending)
    rounds = sending.sender._rounds
    assert rounds is not None
    expire = rounds._expiry.run
    whole_rounds = []

    def counting_expire(now_ns: int) -> None:
        whole_rounds.append(now_ns)
        expire(now_ns)

    monkeypatch.setattr(rounds._expiry, "run", counting_expire)
    assert [sending.sender.run_once() for _ in range(2)] == [0, 0]
    assert whole_rounds == []
    sending.append(0)
    assert sending.sender.run_once() == 1
    assert len(whole_rounds) == 1


@pytest.mark.parametrize("has_slept", [True, False])
def test_a_wake_up_is_consumed_unless_it_ends_a_long_sleep(
    sending: Sending, monkeypatch: pytest.MonkeyPatch, has_slept: bool
) -> None:
    """The batch of a wake-up after a long sleep is found by the next wait, because no whole round precedes it."""
    rounds, wake_fifo = sending.sender._rounds, sending.sender._wake_fifo
    assert rounds is not None
    assert wake_fifo is not None
    if has_slept:
        asleep(sending)
    else:
        sending.scripted.is_held = True
        sending.append(0)
        sending.run()
    monkeypatch.setattr(rounds._wait._short_waits, "end", wake_fifo.wake)
    sending.sender.run_once()
    assert wake_fifo.clear() is has_slept


def test_one_that_slept_through_does_what_is_due(sending: Sending) -> None:
    asleep(sending)
    sending.arena.native.set_topic_partition_count(TOPIC, 1)
    sending.sleep(6000)
    sending.run()
    wanted = sending.scripted.partition_count(TOPIC)
    assert sending.arena.native.topic_partition_count(TOPIC) == wanted, "topics are looked at every few seconds"


def test_one_that_slept_through_leaves_a_sink_alone_that_raises(sending: Sending) -> None:
    rests = asleep(sending)
    sending.scripted.raises["poll"] = RuntimeError("planted in poll")
    for _ in range(2):
        sending.sender.run_once()
    assert rests == [1.0]
    assert sending.errors() == ["the sink has a problem: planted in poll"]


def test_an_append_wakes_a_sleeping_sender(arena: Arena, running: Start) -> None:
    sink = MemorySink()
    running(sink, linger_ms=0)
    wait_until(lambda: arena.native.sender()["is_asleep"], "it sleeps")
    with Accumulator(arena) as accumulator:
        accumulator.append(TOPIC, 0, 1000, None, b"value")
        assert accumulator.flush(timeout=WATCHDOG_S)
    assert sink.values(TOPIC) == [b"value"]


def test_null_takes_everything(arena: Arena) -> None:
    sending = Sending(arena, NullSink(), **FAST)
    tokens = sending.append(count=5)
    sending.run()
    assert [sending.completion(token).offset_of(token) for token in tokens] == [0, 1, 2, 3, 4]
    metrics = sending.sender.metrics()
    assert metrics["record-send-total"] == 5
    assert metrics["records-per-request-avg"] == 5
    sending.close()


# --- results for producers


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (refuse, "the sink rejected the record: topic-0 failed with error 87: bad record"),
        (
            lambda wire: Ack(wire, Verdict.REFUSED, error_code=87, message="no key", record_errors=[1]),
            "topic-0: its batch was rejected because of other records, send it again",
        ),
    ],
)
def test_the_sinks_reason_for_a_rejection_reaches_the_future(
    sending: Sending, answer: Callable[[WireBatch], Ack], sentence: str
) -> None:
    sending.run()
    sending.arena.native.set_topic_partition_count(TOPIC, 1)
    sending.scripted.script = [answer]
    producer = Producer(sending.arena)
    first, _ = (producer.send(TOPIC, b"v") for _ in range(2))
    sending.producer.flush_begin()
    sending.sleep(1000)
    sending.run(2)
    with pytest.raises(DeliveryFailedError, match=re.escape(sentence)):
        first.get(0)
    producer.close(0)


def test_the_largest_record_is_known_however_small_its_batch_is(sending: Sending) -> None:
    for sizes in ((10, 700, 20), (300,), (5, 5)):
        for size in sizes:
            sending.producer.append(TOPIC, 0, 1000, None, b"x" * size)
        sending.producer.flush_begin()
        sending.run(2)
    record = (
        2 + 1 + 1 + 1 + 1 + 2 + 700 + 1
    )  # length, attributes, timestamp, offset, key, value's length, value, headers
    assert sending.sender.metrics()["record-size-max"] == record


def test_what_is_no_sink_is_a_type_error(arena: Arena) -> None:
    sink: Any = None
    with pytest.raises(TypeError, match="a sink is a Sink or a str such as 'log:DIR', not NoneType"):
        Sender(arena, sink)
    mode: Any = "0600"
    with pytest.raises(TypeError, match="a mode is an int such as 0o600, not '0600'"):
        Arena.attach(arena.name, mode=mode)


@pytest.mark.parametrize(
    ("timeout_s", "elapsed_ms", "left"), [(None, 0, "2 min"), (2.5, 500, "2 s"), (0, 0, "0 s"), (1, 2_000, "0 s")]
)
def test_a_stop_reports_the_time_that_is_left_for_delivery(
    sending: Sending, caplog: pytest.LogCaptureFixture, timeout_s: float | None, elapsed_ms: int, left: str
) -> None:
    sending.sender.stop(timeout_s)
    sending.jump(elapsed_ms)
    with caplog.at_level("INFO", "shmaccum.sender"):
        sending.sender.run()
    assert f"was asked to stop: 0 records are delivered first, for at most {left}. A second signal" in caplog.text
