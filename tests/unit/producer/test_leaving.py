# SPDX-License-Identifier: Apache-2.0
"""A closed producer detaches from the arena that it attached. Its futures still work."""

from __future__ import annotations

import contextlib
import gc
import pickle
import threading
from collections.abc import Iterator

import pytest

from shmaccum.arena import Arena
from shmaccum.arena.reports import Kind, Report
from shmaccum.arena.results import BatchResult
from shmaccum.arena.wake_fifo import WakeFifo
from shmaccum.exceptions import (
    ArenaClosedError,
    ArenaRemovedError,
    DeliveryFailedError,
    DeliveryTimeoutError,
    ResultPendingError,
)
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from shmaccum.sender.sinks.memory import MemorySink
from tests.support.arenas import Drainer
from tests.support.descriptors import open_files
from tests.support.processes import wait_until

TOPIC = "flights"


@pytest.fixture
def ready(arena: Arena) -> Iterator[Arena]:
    arena.native.set_topic_partition_count(TOPIC, 1)
    yield arena
    gc.collect()


def attached_count(arena: Arena) -> int:
    return sum(process["alive"] for process in arena.native.processes())


# --- leaving


def test_close_leaves_an_arena_that_the_producer_attached(ready: Arena) -> None:
    producer = Producer(ready.name)
    assert attached_count(ready) == 2
    producer.close()
    assert attached_count(ready) == 1
    assert producer.arena.closed
    producer.close()


def test_close_keeps_an_arena_that_belongs_to_the_caller(ready: Arena) -> None:
    Producer(ready).close()
    assert not ready.closed


def test_a_closed_producer_keeps_no_wake_fifo_open(ready: Arena) -> None:
    with contextlib.closing(WakeFifo(ready)) as fifo:
        producer = Producer(ready.name)
        producer._wake()
        assert len(open_files(fifo.path)) == 2
        producer.close()
        assert open_files(fifo.path) == [fifo.fileno()]


def test_an_idle_sender_leaves_although_the_closed_producer_lives(ready: Arena) -> None:
    name = ready.name
    producer = Producer(name)
    sender = Sender(name, MemorySink(), idle_exit_ms=50, linger_ms=1)
    ready.close()
    thread = threading.Thread(target=sender.run)
    thread.start()
    future = producer.send(TOPIC, b"v")
    producer.close()
    thread.join(30)
    assert sender.has_left_idle
    assert future.get(timeout=10).offset == 0


def test_a_view_that_the_user_holds_keeps_the_process_attached(ready: Arena) -> None:
    producer = Producer(ready.name)
    view = producer.arena.slot_table()
    producer.close()
    assert attached_count(ready) == 2
    assert len(view) == 16
    del view
    producer.arena.close()


# --- futures after close


def test_futures_answer_after_close(ready: Arena) -> None:
    producer = Producer(ready.name)
    with Drainer(ready):
        futures = [producer.send(TOPIC, b"v") for _ in range(3)]
        many = producer.send_many(TOPIC, [b"a", b"b"])
        producer.close()
    assert [future.get(timeout=0).offset for future in futures] == [0, 1, 2]
    assert repr(futures[0]) == "<DeliveryFuture of flights-0, delivered>"
    assert attached_count(ready) == 1
    assert many.is_done
    assert [future.get(timeout=0).offset for future in many] == [3, 4]
    assert [offsets.record_count for offsets in many.get().values()] == [2]
    assert pickle.loads(pickle.dumps(futures[1])).get(timeout=0).offset == 1


def test_a_future_without_a_result_is_pending_after_close_and_known_later(ready: Arena) -> None:
    producer = Producer(ready.name)
    future = producer.send(TOPIC, b"v")
    many = producer.send_many(TOPIC, [b"a"])
    producer.close(timeout=0)
    with pytest.raises(ResultPendingError):
        future.get(timeout=0.05)
    with pytest.raises(ArenaClosedError):
        many.get(timeout=0.05)
    with Drainer(ready):
        assert future.get(timeout=30).offset == 0
    assert attached_count(ready) == 1


def test_a_callback_after_close_is_called(ready: Arena) -> None:
    seen: list[object] = []
    producer = Producer(ready.name)
    future = producer.send(TOPIC, b"v")
    producer.close(timeout=0)
    future.add_callback(seen.append)
    with Drainer(ready):
        wait_until(lambda: bool(seen), "the callback was called")


def test_a_future_of_an_arena_that_is_gone_reports_it(arena_name: str) -> None:
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB") as arena:
        arena.native.set_topic_partition_count(TOPIC, 1)
        producer = Producer(arena_name)
        with Drainer(arena):
            known, unknown = producer.send(TOPIC, b"a"), producer.send(TOPIC, b"b")
            known.get(timeout=30)
            producer.close()
    Arena.remove(arena_name)
    assert known.get(timeout=0).offset == 0
    with pytest.raises(ArenaRemovedError, match="is not available here any more"):
        unknown.get(timeout=0)
    with Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB"), pytest.raises(ArenaRemovedError):
        unknown.get(timeout=0)


# --- one exception for all calls


@pytest.mark.parametrize("result", [BatchResult.FAILED, BatchResult.EXPIRED])
def test_an_errback_and_get_say_the_same_though_the_error_log_continues(ready: Arena, result: BatchResult) -> None:
    seen: list[BaseException] = []
    Report(Kind.RETRIED, "the broker is away", "flights-0").record(ready.native)
    with Drainer(ready, result=result, error_code=3), Producer(ready) as producer:
        future = producer.send(TOPIC, b"v").add_errback(seen.append)
        producer.flush()
        wait_until(lambda: bool(seen), "the errback was called")
        Report(Kind.RETRIED, "something else happened later", "flights-0").record(ready.native)
        Report(Kind.REFUSED, "later, too", "flights-0", 3).record(ready.native)
        with pytest.raises((DeliveryFailedError, DeliveryTimeoutError)) as caught:
            future.get(timeout=10)
    assert (type(caught.value), str(caught.value)) == (type(seen[0]), str(seen[0]))
