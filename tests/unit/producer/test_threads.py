# SPDX-License-Identifier: Apache-2.0
"""Threads that share one arena, one producer and one sender. Without a GIL they run at the same time."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from setup import ROOT
from shmaccum._native import Batch, ConfluentProducer, DeliveryFuture, ResultWaiters
from shmaccum.arena import Arena
from shmaccum.arena.results import BatchResult
from shmaccum.exceptions import ArenaClosedError, ArenaInUseError, BatchInUseError, ProducerClosedError
from shmaccum.producer import Producer
from shmaccum.producer.deliveries import Deliveries
from tests.support.accumulator import Accumulator
from tests.support.arenas import Drainer, drain
from tests.support.processes import HAS_NO_GIL, wait_until

THREAD_COUNT = 6
RECORD_COUNT = 2000
ROUND_COUNT = 60
BATCH_COUNT = 80

TABLE = re.compile(
    r"^static Py(?:MethodDef|GetSetDef) \w+\[\] = \{\n.*?^\};|^#define OTHER_METHODS.*?[^\\]$", re.MULTILINE | re.DOTALL
)
ENTRY = re.compile(
    r'^(?:#define OTHER_METHODS)? +\{"\w+", (?:FAST\(|\(PyCFunction\)\(void \(\*\)\(void\)\))?(\w+)', re.MULTILINE
)
LIST_ENTRY = re.compile(r"^(?:PROPERTY|NO_ARGUMENTS|METHOD|METHOD_OF_BYTES|VALUE|RESULT|RESULT_OF)\(", re.MULTILINE)
ALONE_BY_THEMSELVES = {
    "confluent_call",
    "confluent_collect",
    "confluent_join",
    "confluent_produce",
    "confluent_produce_through",
    "producer_send",
    "wait_join",
}
"""Methods that enter the critical section themselves, for a part of their code."""


def at_once(work: Callable[[int], object], count: int = THREAD_COUNT) -> list[object]:
    """Run the work in threads that begin together. Return their results, or raise the exception of one of them."""
    gate = threading.Barrier(count)

    def run(number: int) -> object:
        gate.wait()
        return work(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))


def numbered(thread: int, number: int) -> bytes:
    return b"%d:%d" % (thread, number)


def of_each_thread(values: list[bytes | None]) -> list[list[bytes]]:
    """Return the values of each thread, in their order."""
    found: list[list[bytes]] = [[] for _ in range(THREAD_COUNT)]
    for value in values:
        assert value is not None
        found[int(value.partition(b":")[0])].append(value)
    return found


EXPECTED = [[numbered(thread, number) for number in range(RECORD_COUNT)] for thread in range(THREAD_COUNT)]


@pytest.mark.skipif(not HAS_NO_GIL, reason="every module may be imported with a GIL")
def test_the_extension_leaves_the_gil_off() -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import shmaccum._native; print(sys._is_gil_enabled())"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (answer.stdout, answer.stderr) == ("False\n", "")


def test_every_method_of_an_arena_has_it_alone() -> None:
    folders = [ROOT / "native/python" / name for name in ("arena", "producer", "sender")]
    lists = [path.read_text(encoding="utf-8") for folder in folders for path in folder.glob("*_method_list.h")]
    assert sum(len(LIST_ENTRY.findall(text)) for text in lists) > 150, "the lists are not found"
    own = [text for text in lists if "#define ENTER(object) ALONE_BEGIN(" not in text]
    assert len(own) == 1, "only ResultWaiters has a mutex instead"
    assert "ResultWaiters" in own[0]
    sources = [path.read_text(encoding="utf-8") for folder in folders for path in folder.glob("*.c")]
    names = [name for text in sources for table in TABLE.findall(text) for name in ENTRY.findall(table)]
    others = {name for name in names if not name.startswith(("alone_", "future_"))}
    assert others == ALONE_BY_THEMSELVES, "a future works on no arena, and every other method does"


def test_records_of_threads_are_delivered_once_and_in_order(arena: Arena) -> None:
    arena.native.set_topic_partition_count("flights", 1)
    with Drainer(arena) as drainer, Producer(arena) as producer:

        def send(thread: int) -> None:
            for number in range(RECORD_COUNT):
                producer.send("flights", numbered(thread, number))

        at_once(send)
        producer.flush(60)
        assert producer.record_count == THREAD_COUNT * RECORD_COUNT
    assert of_each_thread(drainer.values()) == EXPECTED


def test_records_in_the_words_of_confluent_are_delivered_once_and_in_order(arena: Arena) -> None:
    arena.native.set_topic_partition_count("flights", 1)
    with Drainer(arena) as drainer, Producer(arena) as producer:
        confluent = ConfluentProducer()
        confluent._produce_through(producer, None, ResultWaiters())

        def produce(thread: int) -> None:
            for number in range(RECORD_COUNT):
                confluent.produce("flights", f"{thread}:{number}", key=b"k")

        at_once(produce)
        producer.flush(60)
    assert of_each_thread(drainer.values()) == EXPECTED


def test_many_records_of_threads_are_delivered_once_and_in_order(arena: Arena) -> None:
    arena.native.set_topic_partition_count("flights", 1)
    with Drainer(arena) as drainer, Producer(arena) as producer:

        def send(thread: int) -> None:
            for first in range(0, RECORD_COUNT, 4):
                producer.send_many("flights", EXPECTED[thread][first : first + 4])

        at_once(send)
        producer.flush(60)
    assert of_each_thread(drainer.values()) == EXPECTED


def test_threads_ask_the_same_futures(arena: Arena) -> None:
    arena.native.set_topic_partition_count("flights", 4)
    with Drainer(arena), Producer(arena) as producer:
        for _ in range(ROUND_COUNT // 3):
            futures = [producer.send("flights", b"%d" % number, key=b"%d" % number) for number in range(50)]
            producer.flush(60)

            def ask(_: int, futures: list[DeliveryFuture] = futures) -> list[int]:
                return [future.get(60).offset for future in futures]

            offsets = at_once(ask)
            assert all(found == offsets[0] for found in offsets)


def test_threads_note_and_ask_the_result_of_one_future(arena: Arena) -> None:
    arena.native.set_topic_partition_count("flights", 1)
    with Drainer(arena), Producer(arena) as producer:
        future = producer.send("flights", b"v")
        future.get(60)
        known = future.completion
        assert known is not None

        def work(_: int) -> None:
            for _ in range(RECORD_COUNT):
                future.completion = (*known,)  # another object each time
                assert future.completion == known

        at_once(work)


def test_threads_ask_the_same_receipt(arena: Arena) -> None:
    arena.native.set_topic_partition_count("flights", 3)
    with Drainer(arena), Producer(arena) as producer:
        for _ in range(ROUND_COUNT // 3):
            sent = producer.send_many("flights", [b"v"] * 50, keys=[b"%d" % number for number in range(50)])

            def ask(_: int, sent: Deliveries = sent) -> int:
                assert sent.wait(60)
                return sum(future.is_done for future in sent)

            producer.flush(60)
            assert at_once(ask) == [50] * THREAD_COUNT


def test_an_arena_is_asked_while_it_is_closed(arena_name: str) -> None:
    Arena.create(arena_name, buffer_memory="64KiB", batch_size="4KiB").close()
    for _ in range(ROUND_COUNT // 3):
        arena = Arena.attach(arena_name)

        def ask(thread: int, arena: Arena = arena) -> None:
            if thread == 0:
                arena.close()
                return
            try:
                for _ in range(20):
                    arena.native.counters()
                    arena.native.topic_partition_count("flights")
                    assert arena.native.census() is not None
            except ArenaClosedError:
                assert arena.closed

        at_once(ask)


def test_a_producer_is_closed_while_threads_send(arena: Arena) -> None:
    arena.native.set_topic_partition_count("flights", 1)
    sent_counts: list[object] = []
    with Drainer(arena) as drainer:
        for _ in range(ROUND_COUNT // 3):
            producer = Producer(arena)

            def send(thread: int, producer: Producer = producer) -> int:
                count = 0
                try:
                    while thread > 0 and count < RECORD_COUNT:
                        producer.send("flights", b"v")
                        count += 1
                except ProducerClosedError:
                    return count
                if thread == 0:
                    producer.close(60)
                return count

            sent_counts += at_once(send)
        total = sum(count for count in sent_counts if isinstance(count, int))
        wait_until(lambda: len(drainer.values()) >= total, "every record is delivered")
    assert len(drainer.values()) == total


def test_buffers_of_a_batch_are_let_go_by_threads(sender: Accumulator) -> None:
    for _ in range(ROUND_COUNT):
        sender.append("flights", 0, 1, b"key", b"value")
        (batch,) = drain(sender)
        views = [batch.buffers for _ in range(THREAD_COUNT)]

        def let_go(thread: int, views: list[tuple[memoryview, ...]] = views) -> None:
            for view in views[thread]:
                view[:4].release()
                view.release()

        with pytest.raises(BatchInUseError, match=f"{THREAD_COUNT} of them"):
            sender.complete(batch, BatchResult.SUCCEEDED, 0)
        at_once(let_go)
        sender.complete(batch, BatchResult.SUCCEEDED, 0)


def drained_elsewhere(sender: Accumulator) -> list[Batch]:
    """Drain in a thread that ends. Without a GIL, objects of a living thread are freed in that thread."""
    found: list[Batch] = []
    thread = threading.Thread(target=lambda: found.extend(drain(sender)))
    thread.start()
    thread.join()
    return found


def test_batches_without_a_reference_are_requeued(arena_name: str) -> None:
    with (
        Arena.create(arena_name, buffer_memory="2MiB", batch_size="4KiB") as arena,
        Accumulator(arena) as sender,
    ):
        sender.become_sender()
        for partition in range(THREAD_COUNT * BATCH_COUNT):
            sender.append("flights", partition, 1, None, b"%d" % partition)
        for _ in range(ROUND_COUNT // 3):
            batches = drained_elsewhere(sender)
            assert len(batches) == THREAD_COUNT * BATCH_COUNT
            kept = [batches[first::THREAD_COUNT] for first in range(THREAD_COUNT)]
            del batches

            def forget(thread: int, kept: list[list[Batch]] = kept) -> None:
                kept[thread].clear()

            at_once(forget)
            sender.flush_begin()
        for batch in drain(sender):
            sender.complete(batch, BatchResult.SUCCEEDED, 0)


def refused(call: Callable[[], object]) -> bool:
    """Return whether the call was rejected because another thread was in a call of the sender."""
    try:
        call()
    except ArenaInUseError:
        return True
    return False


def test_a_second_thread_in_a_call_of_the_sender_is_refused_and_harms_nothing(sender: Accumulator) -> None:
    delivered: list[bytes | None] = []
    is_over = threading.Event()

    def deliver() -> None:
        for batch in drain(sender):
            values = [record[3] for record in batch.decode()]
            sender.complete(batch, BatchResult.SUCCEEDED, 0)
            delivered.extend(values)

    def step(thread: int) -> None:
        if thread == THREAD_COUNT:
            while not is_over.is_set():
                refused(deliver)
            return
        for number in range(ROUND_COUNT):
            sender.append("flights", thread, 1, None, numbered(thread, number))
            refused(sender.maintain)
        ended.append(thread)
        if len(ended) == THREAD_COUNT:
            is_over.set()

    ended: list[int] = []
    at_once(step, THREAD_COUNT + 1)
    deliver()
    expected = [[numbered(thread, number) for number in range(ROUND_COUNT)] for thread in range(THREAD_COUNT)]
    assert of_each_thread(delivered) == expected
