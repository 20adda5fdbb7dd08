# SPDX-License-Identifier: Apache-2.0
"""Delivery results, by futures and callbacks, in the sending process, its children and other processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shmaccum import DeliveryFuture, Producer
from shmaccum.arena import Arena
from shmaccum.arena.reports import Kind, Report
from shmaccum.arena.results import BatchResult
from shmaccum.arena.wake_fifo import WakeFifo
from shmaccum.exceptions import (
    ArenaNotFoundError,
    DeliveryAbortedError,
    DeliveryError,
    DeliveryFailedError,
    DeliveryTimeoutError,
    InvalidArgumentError,
    ResultExpiredError,
    ResultPendingError,
)
from shmaccum.producer.delivery import DeliveryTracker
from tests.support.accumulator import Accumulator
from tests.support.arenas import Drainer, deliver_all, drain
from tests.support.processes import Child, run_in_child, run_in_process, wait_until

TOPIC = "flights"


@pytest.fixture
def producer(arena: Arena) -> Iterator[Producer]:
    """A producer for a topic with two partitions. Its close does not wait."""
    arena.native.set_topic_partition_count(TOPIC, 2)
    producer = Producer(arena)
    yield producer
    producer.close(0)


def complete_all(sender: Accumulator, result: BatchResult, base_offset: int = -1, error_code: int = 0) -> None:
    for batch in drain(sender):
        sender.complete(batch, result, base_offset, None, error_code)


# --- futures


def test_a_pending_record_is_neither_succeeded_nor_failed(producer: Producer, sender: Accumulator) -> None:
    future = producer.send(TOPIC, b"v")
    assert not future.is_done
    assert not future.done()
    assert not future.succeeded()
    assert not future.failed()
    assert future.value is None
    assert future.exception is None
    assert "pending" in repr(future)
    with pytest.raises(ResultPendingError):
        future.get(0)
    with pytest.raises(TimeoutError):
        future.get(timeout=0.01)
    deliver_all(sender)


def test_a_delivered_record_knows_where_it_is(producer: Producer, sender: Accumulator) -> None:
    futures = [producer.send(TOPIC, b"v", b"key", partition=1, timestamp_ms=5) for _ in range(3)]
    complete_all(sender, BatchResult.SUCCEEDED, 40)
    assert [future.get(60).offset for future in futures] == [40, 41, 42]
    assert futures[0].value == futures[0].get()
    assert futures[0].succeeded()
    assert not futures[0].failed()
    assert "flights-1, delivered" in repr(futures[0])
    assert futures[0].get().timestamp == 5


def test_the_log_s_own_time_counts(producer: Producer, sender: Accumulator) -> None:
    future = producer.send(TOPIC, b"v", timestamp_ms=5)
    (batch,) = drain(sender)
    sender.complete(batch, BatchResult.SUCCEEDED, 0, 999)
    assert future.get(60).timestamp == 999


@pytest.mark.parametrize(
    ("result", "error", "sentence"),
    [
        (BatchResult.EXPIRED, DeliveryTimeoutError, "delivery_timeout_ms"),
        (BatchResult.FAILED, DeliveryFailedError, "error 87"),
        (BatchResult.ABORTED, DeliveryAbortedError, "gave up the record"),
        (BatchResult.CORRUPT, DeliveryFailedError, "damaged"),
    ],
)
def test_a_record_that_was_not_delivered_reports_why(
    producer: Producer, sender: Accumulator, result: BatchResult, error: type[DeliveryError], sentence: str
) -> None:
    future = producer.send(TOPIC, b"v")
    code = 87 if result is BatchResult.FAILED else 0
    complete_all(sender, result, error_code=code)
    with pytest.raises(error, match=sentence) as caught:
        future.get(60)
    assert future.failed()
    assert type(future.exception) is error
    assert getattr(caught.value, "error_code", code) == code
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


def test_the_sinks_reason_for_a_rejection_is_found_again(producer: Producer, sender: Accumulator) -> None:
    for place, error_code, sentence in [
        (f"{TOPIC}-0", 87, "the record has no key"),
        (f"{TOPIC}-0", 8, "something else"),
        (f"{TOPIC}-1", 87, "of another partition"),
    ]:
        Report(Kind.REFUSED, sentence, place, error_code).record(producer.arena.native)
    future = producer.send(TOPIC, b"v", partition=0)
    complete_all(sender, BatchResult.FAILED, error_code=87)
    with pytest.raises(DeliveryFailedError, match="flights-0 failed with error 87: the record has no key"):
        future.get(60)


@pytest.mark.parametrize(
    ("reports", "reason"),
    [
        ([], ""),
        ([Report(Kind.RETRIED, "of another partition", f"{TOPIC}-1")], ""),
        ([Report(Kind.EXPIRED, "no broker", "30 ms")], ": no broker"),
        ([Report(Kind.EXPIRED, "", "30 ms")], ""),
        ([Report(Kind.RETRIED, "too slow", f"{TOPIC}-0"), Report(Kind.EXPIRED, "no broker", "30 ms")], ": too slow"),
    ],
)
def test_an_expired_record_reports_what_delayed_it(
    producer: Producer, sender: Accumulator, reports: list[Report], reason: str
) -> None:
    for report in reports:
        report.record(producer.arena.native)
    future = producer.send(TOPIC, b"v", partition=0)
    complete_all(sender, BatchResult.EXPIRED)
    with pytest.raises(DeliveryTimeoutError, match=f"within delivery_timeout_ms{reason}$"):
        future.get(60)


def test_a_record_of_a_stuck_partition_reports_why_while_it_waits_and_when_it_expires(
    producer: Producer, sender: Accumulator
) -> None:
    future = producer.send(TOPIC, b"v", partition=0)
    sender.set_available(sender.partition_index(TOPIC, 0), False)
    stuck = r"its partition has been stuck for \S+ \w+: it has no leader"
    with pytest.raises(ResultPendingError, match=rf"ask again \(.*{stuck}\)$"):
        future.get(0)
    assert "its partition has been stuck" in repr(future)
    complete_all(sender, BatchResult.EXPIRED)
    with pytest.raises(DeliveryTimeoutError, match=rf"within delivery_timeout_ms: {stuck}$"):
        future.get(60)


@pytest.mark.parametrize(
    ("counts_always", "rule"), [(False, "of time in which delivery was possible"), (True, "of all time")]
)
def test_the_errback_of_an_expired_record_has_the_span_and_its_rule(
    producer: Producer, sender: Accumulator, rule: str, *, counts_always: bool
) -> None:
    seen: list[DeliveryTimeoutError] = []
    sender.publish_delivery_timeout(90 * 10**9, counts_always)
    Report(Kind.RETRIED, "no leader", f"{TOPIC}-0").record(producer.arena.native)
    future = producer.send(TOPIC, b"v", partition=0).add_errback(seen.append)
    complete_all(sender, BatchResult.EXPIRED)
    wait_until(lambda: bool(seen), "the errback was called")
    sender.publish_delivery_timeout(5 * 10**9, not counts_always)  # of the next sender
    with pytest.raises(DeliveryTimeoutError) as caught:
        future.get(60)
    copy = pickle.loads(pickle.dumps(seen[0]))
    for error in (seen[0], caught.value, copy):
        assert str(error).endswith(f"within delivery_timeout_ms (1.5 min {rule}): no leader")
        assert (error.timeout_ms, error.counts_always) == (90_000, counts_always)


def test_a_result_that_was_overwritten_is_not_guessed(arena_name: str) -> None:
    with (
        Arena.create(arena_name, buffer_memory="16KiB", batch_size="4KiB", completion_count=2) as arena,
        Accumulator(arena) as sender,
    ):
        arena.native.set_topic_partition_count(TOPIC, 1)
        sender.become_sender()
        producer = Producer(arena)
        lost = producer.send(TOPIC, b"v")
        kept = producer.send(TOPIC, b"v")
        complete_all(sender, BatchResult.SUCCEEDED, 0)
        assert kept.get(60).offset == 1
        for _ in range(8):
            producer.send(TOPIC, b"v")
            complete_all(sender, BatchResult.SUCCEEDED, 2)
        with pytest.raises(ResultExpiredError, match="overwritten"):
            lost.get(60)
        assert lost.failed()
        assert kept.get().offset == 1  # once read, the result stays
        producer.close()


def test_get_returns_when_the_result_does(producer: Producer, sender: Accumulator) -> None:
    future = producer.send(TOPIC, b"v")
    results: list[int] = []
    waiter = threading.Thread(target=lambda: results.append(future.get(60).offset))
    waiter.start()
    complete_all(sender, BatchResult.SUCCEEDED, 7)
    waiter.join()
    assert results == [7]


def test_ctrl_c_ends_a_wait(producer: Producer, sender: Accumulator) -> None:
    future = producer.send(TOPIC, b"v")
    timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the signal may come before the wait
        timer.start()
        future.get(60)
    timer.join()
    deliver_all(sender)


# --- callbacks


def test_callbacks_are_called_in_the_order_of_the_records(producer: Producer, sender: Accumulator) -> None:
    told: list[Any] = []
    for number in range(10):
        future = producer.send(TOPIC, b"v", partition=0)
        assert future.add_callback(lambda n, metadata, what: told.append((n, metadata.offset, what)), number, what=1)
        future.add_errback(told.append)
    complete_all(sender, BatchResult.SUCCEEDED, 100)
    wait_until(lambda: len(told) == 10, "all callbacks were called")
    assert told == [(number, 100 + number, 1) for number in range(10)]


def test_errbacks_get_the_exception(producer: Producer, sender: Accumulator) -> None:
    told: list[Any] = []
    future = producer.send(TOPIC, b"v")
    future.add_both(told.append).add_callback(lambda _metadata: told.append("delivered"))
    complete_all(sender, BatchResult.EXPIRED)
    wait_until(lambda: len(told) == 1, "the errback was called")
    assert isinstance(told[0], DeliveryTimeoutError)


def test_a_late_query_gets_its_result_at_once(producer: Producer, sender: Accumulator) -> None:
    told: list[Any] = []
    future = producer.send(TOPIC, b"v")
    deliver_all(sender)
    future.add_callback(told.append)
    assert told == [future.get()]


def test_a_callback_that_fails_keeps_no_other_from_being_called(
    producer: Producer, sender: Accumulator, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []
    future = producer.send(TOPIC, b"v")
    future.add_callback(lambda _metadata: 1 / 0)
    future.add_callback(told.append)
    complete_all(sender, BatchResult.SUCCEEDED, 3)
    wait_until(lambda: len(told) == 1, "the second callback was called")
    assert "ZeroDivisionError" in caplog.text


def test_parts_of_a_batch_are_reported_when_they_are_known(producer: Producer, sender: Accumulator) -> None:
    told: list[int] = []
    for _ in range(5):
        producer.send(TOPIC, b"v", partition=0).add_callback(lambda metadata: told.append(metadata.offset))
    (batch,) = drain(sender)
    sender.complete_part(batch, 2, BatchResult.SUCCEEDED, 10)
    wait_until(lambda: len(told) == 2, "the first part was told")
    assert told == [10, 11]
    sender.complete_part(batch, 3, BatchResult.SUCCEEDED, 50)
    wait_until(lambda: len(told) == 5, "the second part was told")
    assert told == [10, 11, 50, 51, 52]


def test_a_tracker_that_was_lapped_by_the_ring_still_reports(arena_name: str) -> None:
    with (
        Arena.create(arena_name, buffer_memory="16KiB", batch_size="4KiB", completion_count=2) as arena,
        Accumulator(arena) as sender,
    ):
        arena.native.set_topic_partition_count(TOPIC, 1)
        sender.become_sender()
        told: list[Any] = []
        with Producer(arena) as producer:
            hold = threading.Event()
            first = producer.send(TOPIC, b"v")
            first.add_callback(lambda _metadata: hold.wait(60))
            complete_all(sender, BatchResult.SUCCEEDED, 0)
            lost = producer.send(TOPIC, b"v")
            lost.add_both(told.append)
            for _ in range(20):
                complete_all(sender, BatchResult.SUCCEEDED, 1)
                producer.send(TOPIC, b"v")
            complete_all(sender, BatchResult.SUCCEEDED, 1)
            hold.set()
            wait_until(lambda: len(told) == 1, "the lost one was told")
        assert isinstance(told[0], ResultExpiredError)


def test_a_thread_that_has_left_its_loop_does_not_count_until_it_ends(
    producer: Producer, sender: Accumulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it counted as running, no thread would check a record that is sent before it ends."""
    monkeypatch.setattr(DeliveryTracker, "_check_until_idle", lambda _: True)
    tracker = producer.send(TOPIC, b"v").tracker
    assert not tracker._has_thread()
    tracker._run()
    assert not tracker._has_thread()
    deliver_all(sender)


def test_close_reports_every_result_that_is_known(
    producer: Producer, sender: Accumulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeliveryTracker, "_check", lambda *_: time.sleep(0.001))  # a thread that checks too late
    told: list[int] = []
    for _ in range(3):
        producer.send(TOPIC, b"v", partition=0).add_callback(lambda metadata: told.append(metadata.offset))
    complete_all(sender, BatchResult.SUCCEEDED, base_offset=7)
    assert told == []
    producer.close()
    assert told == [7, 8, 9]


def test_close_reports_the_callbacks_that_are_not_called(
    producer: Producer, sender: Accumulator, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[Any] = []
    future = producer.send(TOPIC, b"v")
    future.add_callback(told.append)
    with caplog.at_level(logging.WARNING):
        producer.close(0)
    assert "1 callback will not be called" in caplog.text
    assert deliver_all(sender) == [b"v"]
    assert future.succeeded()
    assert told == []


def test_a_callback_that_comes_after_the_tracker_has_discarded_the_others_is_called(
    producer: Producer, sender: Accumulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    future = producer.send(TOPIC, b"v")
    tracker, waiters = future.tracker, future.tracker._waiters

    def add_after_stop(*waiter: Any) -> bool:
        monkeypatch.undo()
        assert tracker.stop(0) == 0
        return waiters.add(*waiter)

    monkeypatch.setattr(waiters, "add", add_after_stop)
    tracker.observe(future, told.append)
    deliver_all(sender)
    wait_until(lambda: told == [future], "the callback is called")


def test_a_callback_that_comes_while_the_tracker_stops_is_counted_and_stops_no_later_one(
    producer: Producer, sender: Accumulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    first, second = producer.send(TOPIC, b"v"), producer.send(TOPIC, b"v")
    tracker = first.tracker
    monkeypatch.setattr(tracker, "_wait_for_thread", lambda _timeout_s: tracker.observe(first, told.append))
    assert tracker.stop(0) == 1
    monkeypatch.undo()
    tracker.observe(second, told.append)
    deliver_all(sender)
    wait_until(lambda: told == [second], "the callback is called")


# --- asyncio


def test_a_future_can_be_awaited(arena: Arena, producer: Producer) -> None:
    async def send_and_await() -> list[int]:
        first = await producer.send(TOPIC, b"v", partition=0)
        more = await asyncio.gather(*(_awaited(producer.send(TOPIC, b"v", partition=0)) for _ in range(10)))
        return [first.offset, *sorted(metadata.offset for metadata in more)]

    with Drainer(arena):
        assert asyncio.run(send_and_await()) == list(range(11))


async def _awaited(future: DeliveryFuture) -> Any:
    return await future


def test_awaiting_raises_what_went_wrong(arena: Arena, producer: Producer) -> None:
    with Drainer(arena, result=BatchResult.FAILED, error_code=3), pytest.raises(DeliveryFailedError):
        asyncio.run(_awaited(producer.send(TOPIC, b"v")))


def test_an_await_may_be_given_up(producer: Producer, sender: Accumulator) -> None:
    future = producer.send(TOPIC, b"v")

    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_awaited(future), 0.01)

    asyncio.run(give_up())
    deliver_all(sender)
    assert asyncio.run(_awaited(future)).topic == TOPIC


# --- a sender in a short timed wait


async def _await_shortly(future: DeliveryFuture) -> None:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(_awaited(future), 0.01)


def _get_shortly(future: DeliveryFuture) -> None:
    with pytest.raises(ResultPendingError):
        future.get(0.01)


WAITS: dict[str, Callable[[Producer], object]] = {
    "get": lambda producer: _get_shortly(producer.send(TOPIC, b"v")),
    "await": lambda producer: asyncio.run(_await_shortly(producer.send(TOPIC, b"v"))),
    "many": lambda producer: producer.send_many(TOPIC, [b"v", b"v"]).wait(0.01),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
@pytest.mark.parametrize(("linger_ms", "is_woken"), [(0, True), (5, False)])
def test_one_that_waits_for_a_result_wakes_a_sender_in_a_short_wait_where_nothing_lingers(
    arena: Arena, sender: Accumulator, wait: Callable[[Producer], object], linger_ms: int, is_woken: bool
) -> None:
    arena.native.set_topic_partition_count(TOPIC, 1)
    with contextlib.closing(WakeFifo(arena)) as wake_fifo, Producer(arena, linger_ms=linger_ms) as producer:
        arena.native.set_sender_short_wait(0)
        wait(producer)
        assert wake_fifo.clear() is is_woken
        assert arena.native.take_sleep_flag() is not is_woken
        deliver_all(sender)


ONE_RECORD_WAITS: dict[str, Callable[[DeliveryFuture], object]] = {
    "get": _get_shortly,
    "await": lambda future: asyncio.run(_await_shortly(future)),
}


@pytest.mark.parametrize("wait", ONE_RECORD_WAITS.values(), ids=ONE_RECORD_WAITS.keys())
def test_a_wait_for_a_record_that_the_sender_has_taken_out_wakes_no_process(
    arena: Arena, sender: Accumulator, wait: Callable[[DeliveryFuture], object]
) -> None:
    arena.native.set_topic_partition_count(TOPIC, 1)
    with Producer(arena, linger_ms=0) as producer:
        future = producer.send(TOPIC, b"v")
        assert not arena.native.is_under_way(future)
        (batch,) = drain(sender)
        assert arena.native.is_under_way(future)
        arena.native.set_sender_short_wait(0)
        wait(future)
        assert arena.native.take_sleep_flag()
        sender.complete(batch, BatchResult.SUCCEEDED)
        assert not arena.native.is_under_way(future)
        assert future.succeeded()


def test_one_that_only_asks_wakes_no_process(arena: Arena, sender: Accumulator) -> None:
    arena.native.set_topic_partition_count(TOPIC, 1)
    with Producer(arena, linger_ms=0) as producer:
        arena.native.set_sender_short_wait(0)
        future = producer.send(TOPIC, b"v")
        with pytest.raises(ResultPendingError):
            future.get(0)
        future.add_callback(print)
        assert arena.native.take_sleep_flag()
        deliver_all(sender)


def test_a_future_outlives_its_producer_and_wakes_no_sender(arena: Arena, sender: Accumulator) -> None:
    arena.native.set_topic_partition_count(TOPIC, 1)
    producer = Producer(arena, linger_ms=0)
    future = producer.send(TOPIC, b"v")
    producer.close(0)
    arena.native.set_sender_short_wait(0)
    _get_shortly(future)
    assert arena.native.take_sleep_flag()
    deliver_all(sender)
    assert future.get(0).topic == TOPIC


# --- other processes


def _offset_of(future: DeliveryFuture) -> int:
    return future.get(60).offset


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_can_ask(arena: Arena, producer: Producer, method: str) -> None:
    future = producer.send(TOPIC, b"v")
    with Drainer(arena):
        assert run_in_process(method, _offset_of, future) == 0
        assert pickle.loads(pickle.dumps(future)) == future
        assert len({future, pickle.loads(pickle.dumps(future))}) == 1


def test_a_child_can_query_and_get_callbacks_and_wait(arena: Arena, producer: Producer, sender: Accumulator) -> None:
    told: list[Any] = []
    future = producer.send(TOPIC, b"v")
    future.add_callback(told.append)  # the parent's callback is not called in the child

    def ask_in_child() -> tuple[int, int, int]:
        mine: list[Any] = []
        another = producer.send(TOPIC, b"v")
        another.add_callback(mine.append)
        offset = future.get(60).offset
        wait_until(lambda: len(mine) == 1, "the child's callback was called")
        return offset, len(mine), len(told)

    child = Child(ask_in_child)
    wait_until(lambda: bool(_deliver_some(sender)) and len(told) == 1, "the parent was told")
    while not child.has_ended():  # both records may be in one batch, or in two
        _deliver_some(sender)
    assert child.join() == "(0, 1, 0)"


def _deliver_some(sender: Accumulator) -> bool:
    complete_all(sender, BatchResult.SUCCEEDED, 0)
    return True


def test_a_result_known_before_pickling_needs_no_arena(producer: Producer, sender: Accumulator) -> None:
    future = producer.send(TOPIC, b"v")
    deliver_all(sender)
    future.get(60)
    assert pickle.loads(pickle.dumps(future)).completion == future.completion


def test_a_future_of_an_arena_that_is_gone_reports_it(arena_name: str) -> None:
    with Arena.create(arena_name) as arena, Drainer(arena):
        arena.native.set_topic_partition_count(TOPIC, 1)
        with Producer(arena) as producer:
            pickled = pickle.dumps(producer.send(TOPIC, b"v"))
    Arena.remove(arena_name)

    def unpickle() -> str:
        try:
            pickle.loads(pickled)
        except ArenaNotFoundError as error:
            return str(error)
        return "found"

    assert "found" not in run_in_child(unpickle)
    with Arena.create(arena_name):
        assert "another arena has its name" in run_in_child(unpickle)


def test_a_future_outlives_its_producer(arena: Arena) -> None:
    arena.native.set_topic_partition_count(TOPIC, 1)
    with Drainer(arena), Producer(arena.name) as producer:
        future = producer.send(TOPIC, b"v")
        future.get(60)
    del producer
    assert future.get().topic == TOPIC
    assert future.value is not None


def test_numbers_that_name_nothing_find_nothing(producer: Producer, sender: Accumulator) -> None:
    real = producer.send(TOPIC, b"v")
    deliver_all(sender)
    tracker = real.tracker
    future = DeliveryFuture(tracker, real.partition_index, real.slot_index, 12345, 0, 0)
    with pytest.raises(ResultExpiredError):
        future.get(0)
    for wrong in (DeliveryFuture(tracker, 7, 0, 0, 0, 0), DeliveryFuture(tracker, 0, 10**6, 0, 0, 0)):
        with pytest.raises(InvalidArgumentError, match="another arena"):
            wrong.get(0)


def test_a_completion_is_a_tuple_of_numbers(producer: Producer, sender: Accumulator) -> None:
    future = producer.send(TOPIC, b"v")
    with pytest.raises(TypeError, match="tuple"):
        future.completion = [future]  # type: ignore[assignment]
    deliver_all(sender)
