# SPDX-License-Identifier: Apache-2.0
"""The asyncio producer waits in tasks, needs no thread for results, and cleans up after a cancelled task."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

import shmaccum
from shmaccum.aio import Producer
from shmaccum.arena import Arena
from shmaccum.arena.results_fifo import ResultsWaker
from shmaccum.exceptions import (
    BufferExhaustedError,
    DeliveryFailedError,
    FlushTimeoutError,
    InvalidArgumentError,
    PartitionCountUnknownError,
    ProducerClosedError,
    RecordTooLargeError,
)
from shmaccum.producer import loop_results
from shmaccum.producer.loop_results import LoopResults
from shmaccum.sender import Sender
from tests.support.descriptors import await_no_other, open_descriptors
from tests.support.sender import ScriptedSink, refuse

TOPIC = "topic"
VALUE = b"v" * 1000
TURNS_MAX = 100_000


class RunningSender:
    """A sender in a thread, whose responses a test can delay."""

    def __init__(self, arena: Arena) -> None:
        self.sink = ScriptedSink(partitions=1)
        self._sender = Sender(arena, self.sink, linger_ms=0)
        self._thread = threading.Thread(target=self._sender.run)
        self._thread.start()

    def hold(self) -> None:
        self.sink.is_held = True

    def go_on(self) -> None:
        self.sink.is_held = False
        self._sender._wake()

    def close(self) -> None:
        self.go_on()
        self._sender.stop(30)
        self._thread.join()


@pytest.fixture
def sender(arena: Arena) -> Iterator[RunningSender]:
    arena.native.set_topic_partition_count(TOPIC, 1)
    running = RunningSender(arena)
    yield running
    running.close()


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run with a timeout."""

    async def watched() -> Any:
        return await asyncio.wait_for(main, 60)

    return asyncio.run(watched())


@asynccontextmanager
async def full_arena(arena: Arena, running: RunningSender, **options: Any) -> AsyncIterator[Producer]:
    """A producer that has just filled the arena. Meanwhile, nothing is delivered."""
    running.hold()
    async with Producer(arena, **options) as producer:
        futures = 0
        while arena.native.state_counts()["FREE"] > 0 and futures < TURNS_MAX:
            await producer.send(TOPIC, VALUE)
            futures += 1
        while True:  # the last buffer has space for a few records
            task = asyncio.ensure_future(producer.send(TOPIC, VALUE))
            await asyncio.sleep(0)
            if not task.done():
                task.cancel()
                break
        await asyncio.gather(task, return_exceptions=True)
        yield producer
        running.go_on()


async def until(is_true: Any) -> None:
    """Run other tasks until the condition is true."""
    while not is_true():
        await asyncio.sleep(0.001)


# --- one record


def test_a_send_answers_a_future_that_can_be_awaited(arena: Arena, sender: RunningSender) -> None:
    async def main() -> None:
        async with Producer(arena) as producer:
            future = await producer.send(TOPIC, b"v", b"k", 0, 7, [("h", b"1")])
            metadata = await future
            assert (metadata.topic, metadata.partition, metadata.offset, metadata.timestamp) == (TOPIC, 0, 0, 7)
            assert (await producer.send_and_wait(TOPIC, value=b"second")).offset == 1

    run(main())


def test_results_need_no_thread(arena: Arena, sender: RunningSender) -> None:
    async def main() -> None:
        producer = Producer(arena, linger_ms=0)
        await producer.start()
        await asyncio.get_running_loop().shutdown_default_executor()  # the start has used it
        before = set(threading.enumerate())
        await asyncio.gather(*[producer.send_and_wait(TOPIC, b"v") for _ in range(100)])
        assert set(threading.enumerate()) <= before

    run(main())


def test_results_wake_the_loop_before_its_tick(
    arena: Arena, sender: RunningSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shmaccum.producer.loop_results.TICK_S", 3600.0)

    async def main() -> None:
        async with Producer(arena, linger_ms=0) as producer:
            for _ in range(200):
                await producer.send_and_wait(TOPIC, b"v")

    run(main())


def test_one_wake_up_wakes_the_loops_of_two_threads(arena: Arena, sender: RunningSender) -> None:
    sender.hold()
    sent = threading.Barrier(3)

    def send() -> None:
        async def main() -> None:
            async with Producer(arena, linger_ms=0) as producer:
                future = await producer.send(TOPIC, b"v")
                await asyncio.to_thread(sent.wait, 60)
                await future

        run(main())

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    sent.wait(60)
    sender.go_on()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_a_refused_record_raises_where_it_is_awaited(arena: Arena, sender: RunningSender) -> None:
    sender.sink.script = [refuse]

    async def main() -> None:
        async with Producer(arena, linger_ms=0) as producer:
            with pytest.raises(DeliveryFailedError, match="bad record"):
                await producer.send_and_wait(TOPIC, b"v")

    run(main())


def test_a_wrong_record_raises_and_nothing_is_sent(arena: Arena, sender: RunningSender) -> None:
    async def main() -> None:
        async with Producer(arena) as producer:
            with pytest.raises(InvalidArgumentError):
                await producer.send("no/topic", b"v")
            with pytest.raises(TypeError):
                await producer.send(TOPIC, 7)
            with pytest.raises(RecordTooLargeError):
                await producer.send(TOPIC, b"v" * (1 << 24))
        with pytest.raises(ProducerClosedError):
            await producer.send(TOPIC, b"v")

    run(main())
    assert sender.sink.deliveries == []


def test_a_producer_that_was_not_started_reports_it(arena: Arena) -> None:
    with pytest.raises(ProducerClosedError, match="await start"):
        run(Producer(arena).send(TOPIC, b"v"))


# --- a full arena


def test_a_full_arena_lets_other_tasks_run(arena: Arena, sender: RunningSender) -> None:
    async def main() -> None:
        beats = 0

        async with full_arena(arena, sender) as producer:
            waiting = asyncio.ensure_future(producer.send(TOPIC, b"later"))
            while beats < 50:
                await asyncio.sleep(0.001)
                beats += 1
            assert not waiting.done()
            sender.go_on()
            assert (await (await waiting)).offset > 0

    run(main())


def test_sends_that_waited_keep_their_order(arena: Arena, sender: RunningSender) -> None:
    async def main() -> None:
        async with full_arena(arena, sender) as producer:
            waiting = [asyncio.ensure_future(producer.send(TOPIC, VALUE)) for _ in range(40)]
            await asyncio.sleep(0)
            sender.go_on()
            offsets = [(await (await task)).offset for task in waiting]
            assert offsets == list(range(offsets[0], offsets[0] + 40))

    run(main())


def test_a_send_that_waits_in_vain_raises(arena: Arena, sender: RunningSender) -> None:
    async def main() -> None:
        async with full_arena(arena, sender, max_block_ms=20) as producer:
            with pytest.raises(BufferExhaustedError, match="max blocking time 20 ms"):
                await producer.send(TOPIC, VALUE)

    run(main())


def test_a_cancelled_send_leaves_the_queue(arena: Arena, sender: RunningSender) -> None:
    async def main() -> None:
        async with full_arena(arena, sender) as producer:
            waiting = [asyncio.ensure_future(producer.send(TOPIC, b"cancelled")) for _ in range(3)]
            await until(lambda: arena.statistics().waiting_count == 1)
            for task in waiting:
                task.cancel()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            assert all(isinstance(error, asyncio.CancelledError) for error in ended)
            assert arena.statistics().waiting_count == 0
            sender.go_on()
            await producer.flush(60)
            assert (await producer.send_and_wait(TOPIC, b"goes on")).topic == TOPIC

    run(main())


def test_a_close_ends_a_send_that_waits(arena: Arena, sender: RunningSender) -> None:
    async def main() -> None:
        async with full_arena(arena, sender) as producer:
            waiting = asyncio.ensure_future(producer.send(TOPIC, VALUE))
            await until(lambda: arena.statistics().waiting_count == 1)
            closing = asyncio.ensure_future(producer.close(60))
            with pytest.raises(ProducerClosedError):
                await waiting
            sender.go_on()
            await closing
            assert producer.closed

    run(main())


def test_a_close_detaches_only_after_the_tasks_have_left_the_queue(
    arena: Arena, sender: RunningSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that detaches may run before the tasks. Here, it always does."""

    async def run_at_once(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    async def main() -> None:
        async with full_arena(arena, sender):
            closing = Producer(arena.name)
            await closing.start()
            waiting = [asyncio.ensure_future(closing.send(TOPIC, VALUE)) for _ in range(3)]
            await until(lambda: arena.statistics().waiting_count > 0)
            with monkeypatch.context() as patch:
                patch.setattr(asyncio, "to_thread", run_at_once)
                await closing.close(0)
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            assert [type(error) for error in ended] == [ProducerClosedError] * 3
            assert arena.statistics().waiting_count == 0
            sender.go_on()

    run(main())


def test_threads_and_tasks_stand_in_the_same_queue(arena: Arena, sender: RunningSender) -> None:
    async def main() -> None:
        async with full_arena(arena, sender) as producer:
            inner = producer._producer
            assert inner is not None
            blocked = asyncio.ensure_future(asyncio.to_thread(inner.send, TOPIC, VALUE))
            task = asyncio.ensure_future(producer.send(TOPIC, VALUE))
            await until(lambda: arena.statistics().waiting_count == 2)
            sender.go_on()
            assert len({(await (await future)).offset for future in (blocked, task)}) == 2

    run(main())


# --- topics


def test_an_unknown_topic_is_waited_for_by_the_task(arena: Arena) -> None:
    async def main() -> None:
        async with Producer(arena) as producer:
            waiting = [asyncio.ensure_future(producer.send("new", b"%d" % number)) for number in range(3)]
            await asyncio.sleep(0.01)
            assert not any(task.done() for task in waiting)
            running = await asyncio.to_thread(RunningSender, arena)
            offsets = [(await (await task)).offset for task in waiting]
            assert offsets == [0, 1, 2]
            await asyncio.to_thread(running.close)

    run(main())


def test_a_topic_that_stays_unknown_raises(arena: Arena) -> None:
    async def main() -> None:
        async with Producer(arena, max_block_ms=20) as producer:
            with pytest.raises(PartitionCountUnknownError, match="within 20 ms"):
                await producer.send("new", b"v")
            with pytest.raises(PartitionCountUnknownError):
                await producer.partitions_for("new")

    run(main())


# --- the pipeline


class Interceptor:
    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.acknowledged: list[Any] = []

    def on_send(self, record: Any) -> Any:
        self.seen.append(record.value)
        return record

    def on_acknowledgement(self, metadata: Any, error: Any) -> None:
        self.acknowledged.append((metadata and metadata.offset, error and type(error).__name__))


def test_a_record_that_waits_passes_the_pipeline_once(arena: Arena, sender: RunningSender) -> None:
    interceptor = Interceptor()
    options: dict[str, Any] = {"value_serializer": "str", "interceptors": [interceptor]}

    async def main() -> None:
        async with full_arena(arena, sender) as filler, Producer(arena, **options) as producer:
            waiting = asyncio.ensure_future(producer.send(TOPIC, "waits" * 200))
            await until(lambda: arena.statistics().waiting_count == 1)
            sender.go_on()
            offset = (await (await waiting)).offset
            await filler.flush(60)
            await producer.close()
            assert interceptor.seen == ["waits" * 200]
            assert interceptor.acknowledged == [(offset, None)]

    run(main())


@pytest.mark.parametrize("wrong", [0, 1200])
def test_an_error_among_many_records_is_passed_to_interceptors_once(
    arena: Arena, sender: RunningSender, wrong: int
) -> None:
    interceptor = Interceptor()

    async def main() -> None:
        async with Producer(arena, value_serializer="str", interceptors=[interceptor]) as producer:
            values: list[Any] = ["v"] * 1500
            values[wrong] = 7
            with pytest.raises(TypeError):
                await producer.send_many(TOPIC, values)

    run(main())
    assert [error for _, error in interceptor.acknowledged if error is not None] == ["TypeError"]


# --- many records


def test_many_records_keep_their_order_through_a_full_arena(arena: Arena, sender: RunningSender) -> None:
    async def main() -> None:
        async with full_arena(arena, sender) as producer:
            sending = asyncio.ensure_future(producer.send_many(TOPIC, [b"%05d" % n + VALUE for n in range(300)]))
            await until(lambda: arena.statistics().waiting_count == 1)
            sender.go_on()
            deliveries = await sending
            assert len(deliveries) == 300
            await deliveries
            offsets = [(await future).offset for future in deliveries]
            assert offsets == list(range(offsets[0], offsets[0] + 300))
            assert deliveries.counts.succeeded == 300
            assert list(deliveries.rows) == list(range(300))

    run(main())


def test_a_cancelled_send_of_many_reports_what_was_appended(arena: Arena, sender: RunningSender) -> None:
    async def main() -> None:
        async with full_arena(arena, sender) as filler:
            sender.go_on()
            await filler.flush(60)
            sender.hold()
            sending = asyncio.ensure_future(filler.send_many(TOPIC, [VALUE] * 300))
            await until(lambda: arena.statistics().waiting_count == 1)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await sending
            appended = caught.value.appended  # type: ignore[attr-defined]
            assert 0 < len(appended) < 300
            sender.go_on()
            await appended
            assert appended.counts.succeeded == len(appended)

    run(main())


def test_a_wrong_record_among_many_is_named(arena: Arena, sender: RunningSender) -> None:
    async def main() -> None:
        async with Producer(arena) as producer:
            values: list[Any] = [b"v"] * 1500
            values[1200] = 7
            with pytest.raises(TypeError) as caught:
                await producer.send_many(TOPIC, values)
            assert caught.value.record_index == 1200  # type: ignore[attr-defined]
            assert len(caught.value.appended) == 1200  # type: ignore[attr-defined]
            with pytest.raises(ValueError, match="keys has 1 item"):
                await producer.send_many(TOPIC, [b"a", b"b"], keys=[b"k"])

    run(main())


# --- flush and close


def test_a_flush_that_is_not_over_in_time_raises(arena: Arena, sender: RunningSender) -> None:
    async def main() -> None:
        sender.hold()
        async with Producer(arena) as producer:
            await producer.send(TOPIC, b"v")
            with pytest.raises(FlushTimeoutError, match="not lost"):
                await producer.flush(0.01)
            sender.go_on()
            await producer.flush(60)

    run(main())


def test_an_await_that_is_given_up_leaves_nothing(arena: Arena, sender: RunningSender) -> None:
    async def main() -> None:
        sender.hold()
        async with Producer(arena) as producer:
            future = await producer.send(TOPIC, b"v")
            for _ in range(3):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(_awaited(future), 0.01)
            assert not any(results._waiters.native.waiters() for results in future.tracker.loops.values())
            sender.go_on()
            assert (await future).offset == 0

    run(main())


async def _awaited(future: Any) -> Any:
    return await future


def test_a_process_that_sleeps_on_the_results_causes_no_write_to_the_results_fifo(
    arena: Arena, sender: RunningSender
) -> None:
    rings: list[int] = []
    waker = sender._sender._results_waker
    ring = waker.wake

    def counted() -> None:
        rings.append(1)
        ring()

    with shmaccum.Producer(arena, linger_ms=0) as producer:
        assert producer.send(TOPIC, b"v").get(60).offset == 0  # the sender has started, and has made its wake call
        waker.wake = counted  # type: ignore[method-assign]
        for offset in range(1, 4):
            assert producer.send(TOPIC, b"v").get(60).offset == offset
    assert rings == []

    async def main() -> None:
        async with Producer(arena, linger_ms=0) as producer:
            await producer.send_and_wait(TOPIC, b"v")

    run(main())
    assert rings


def test_another_sender_continues_where_a_dead_one_left(
    arena: Arena, sender: RunningSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender without wake calls simulates one that died between a result and its wake call."""
    monkeypatch.setattr(loop_results, "TICK_S", 1000.0)

    async def main() -> None:
        sender.hold()
        async with Producer(arena, linger_ms=0) as producer:
            sender._sender._results_waker.wake = lambda: None  # type: ignore[method-assign]
            future = await producer.send(TOPIC, b"v")
            waiting = asyncio.ensure_future(_awaited(future))
            await asyncio.sleep(0)
            sender.go_on()
            await until(lambda: arena.native.completion_tail > 0)
            await asyncio.sleep(0)
            assert not waiting.done()
            ResultsWaker(arena).wake()  # the first wake call of the next sender
            assert (await waiting).offset == 0

    run(main())


def refuse_remove(_descriptor: int) -> None:
    raise RuntimeError("Event loop is closed")  # as uvloop does


@pytest.mark.parametrize(
    "loop", [None, SimpleNamespace(is_closed=lambda: True, remove_reader=refuse_remove)], ids=["freed", "closed"]
)
def test_the_last_wait_of_a_loop_that_is_gone_ends_without_an_error(arena: Arena, loop: Any) -> None:
    async def main() -> None:
        async with Producer(arena, linger_ms=0) as producer:
            results: Any = LoopResults.of(producer._started()._tracker)
            with results.listening(results.call_observers):
                results._loop = lambda: loop

    run(main())


def test_a_loop_without_a_fifo_checks_often(
    arena: Arena, sender: RunningSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_arena: Arena) -> None:
        raise OSError

    monkeypatch.setattr(loop_results, "ResultsListener", refuse)
    monkeypatch.setattr(loop_results, "TICK_S", 3600.0)

    async def main() -> None:
        async with Producer(arena, linger_ms=0) as producer:
            for offset in range(3):
                assert (await producer.send_and_wait(TOPIC, b"v")).offset == offset

    run(main())


def test_many_loops_leave_no_descriptor(arena: Arena, sender: RunningSender) -> None:
    async def main() -> None:
        async with Producer(arena, linger_ms=0) as producer:
            await producer.send_and_wait(TOPIC, b"v")

    run(main())
    before = open_descriptors()
    for _ in range(5):
        run(main())
    await_no_other(before)


# --- other loops

ON_ANY_LOOP = (
    test_a_send_answers_a_future_that_can_be_awaited,
    test_results_need_no_thread,
    test_one_wake_up_wakes_the_loops_of_two_threads,
    test_a_refused_record_raises_where_it_is_awaited,
    test_a_full_arena_lets_other_tasks_run,
    test_sends_that_waited_keep_their_order,
    test_a_cancelled_send_leaves_the_queue,
    test_a_close_ends_a_send_that_waits,
    test_many_records_keep_their_order_through_a_full_arena,
    test_an_await_that_is_given_up_leaves_nothing,
)


@pytest.mark.parametrize("test", ON_ANY_LOOP, ids=lambda test: test.__name__.removeprefix("test_"))
def test_the_same_holds_with_uvloop(
    arena: Arena, sender: RunningSender, monkeypatch: pytest.MonkeyPatch, test: Callable[[Arena, RunningSender], None]
) -> None:
    uvloop = pytest.importorskip("uvloop")
    monkeypatch.setattr(asyncio, "run", uvloop.run)
    test(arena, sender)


def test_a_task_of_trio_sends_from_a_thread(arena: Arena, sender: RunningSender) -> None:
    trio = pytest.importorskip("trio")
    turns = 0

    async def main() -> int:
        nonlocal turns
        with shmaccum.Producer(arena) as producer:
            sender.hold()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(beat)
                future = await trio.to_thread.run_sync(producer.send, TOPIC, VALUE)
                waiting = functools.partial(future.get, timeout=60)
                sender.go_on()
                metadata = await trio.to_thread.run_sync(waiting)
                nursery.cancel_scope.cancel()
        return int(metadata.offset)

    async def beat() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.sleep(0)

    assert trio.run(main) == 0
    assert turns > 0, "the loop was blocked"
