# SPDX-License-Identifier: Apache-2.0
"""How many records a second come from two producing processes to a third one that takes them all?

Ours go through an arena of 32 MiB to a sender, which checks every batch and delivers it to a sink that throws it away;
the clock runs from the producers' start to the last record's delivery. The peers move the same records through a queue.
What ours do beside it (Kafka's format, checksums, order, results for each record, surviving kill -9) they do not.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

from bench.harness import Contender, Figure, Measurement
from shmaccum.accumulator import Accumulator
from shmaccum.arena import Arena
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from shmaccum.sinks.null import NullSink

TITLE = "records of 100 bytes from two producer processes to a third one"
FIGURES = (
    Figure("records_per_second", "million records/s", 1e-6, "higher"),
    Figure("cpu_per_record_seconds", "CPU of all three processes per record, ns", 1e9, "lower"),
    Figure("taker_cpu_share", "CPU of the taker, cores", 1, "lower"),
    Figure("taker_cpu_per_batch_seconds", "CPU of the taker per batch or chunk, us", 1e6, "lower"),
)
PEER = "multiprocessing.Queue"
REPETITIONS = 5
PRODUCERS = 2
VALUE = bytes(100)
CHUNK = [VALUE] * 1000
TOPIC = "topic"

Work = Callable[[str, int, int], None]


def _append_many(arena_name: str, producer: int, count: int) -> None:
    with Arena.attach(arena_name) as arena, Accumulator(arena) as accumulator:
        for _ in range(count // len(CHUNK)):
            accumulator.append_many(TOPIC, producer, CHUNK)


def _send(arena_name: str, _producer: int, count: int) -> None:
    with Producer(arena_name) as producer:
        send = producer.send
        for _ in range(count):
            send(TOPIC, VALUE)


def _started(work: Callable[..., None], arguments: list[tuple[Any, ...]]) -> list[BaseProcess]:
    context = multiprocessing.get_context("fork")
    return [context.Process(target=work, args=each) for each in arguments]


def _through_arena(work: Work, count: int) -> Measurement:
    name = f"shmaccum-bench-{os.getpid()}"
    producers = _started(work, [(name, producer, count) for producer in range(PRODUCERS)])
    with Arena.create(name) as arena:
        try:
            return _drain(arena, producers, count * PRODUCERS)
        finally:
            Arena.remove(name)


def _drain(arena: Arena, producers: list[BaseProcess], total: int) -> Measurement:
    with Sender(arena, NullSink(partitions=PRODUCERS)) as sender:
        sender.open()
        begin, cpu = time.perf_counter(), time.process_time()
        for producer in producers:
            producer.start()
        batches = 0
        while (sent := sender.run_once()) or sender.metrics()["record-send-total"] < total:
            batches += sent
        seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu
    return _measurement(total, seconds, cpu_seconds, batches, _joined_cpu(producers))


def _joined_cpu(producers: list[BaseProcess]) -> float:
    """Seconds of CPU that they used, start and end included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for producer in producers:
        producer.join()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _measurement(
    total: int, seconds: float, cpu_seconds: float, pieces: int, producers_cpu_seconds: float
) -> Measurement:
    return {
        "records_per_second": total / seconds,
        "cpu_per_record_seconds": (cpu_seconds + producers_cpu_seconds) / total,
        "taker_cpu_share": cpu_seconds / seconds,
        "taker_cpu_per_batch_seconds": cpu_seconds / pieces,
    }


# --- peers


def _put(queue: Any, count: int) -> None:
    for _ in range(count):
        queue.put(VALUE)


def _put_many(queue: Any, count: int) -> None:
    for _ in range(count // 100):
        queue.put_many(CHUNK[:100], timeout=60)


def _take(producers: list[BaseProcess], take: Callable[[], int], total: int) -> Measurement:
    begin, cpu = time.perf_counter(), time.process_time()
    for producer in producers:
        producer.start()
    taken = pieces = 0
    while taken < total:
        taken += take()
        pieces += 1
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu
    return _measurement(total, seconds, cpu_seconds, pieces, _joined_cpu(producers))


def _through_queue(count: int) -> Measurement:
    queue = multiprocessing.get_context("fork").Queue()

    def take() -> int:
        queue.get()
        return 1

    return _take(_started(_put, [(queue, count)] * PRODUCERS), take, count * PRODUCERS)


def _through_faster_fifo(count: int) -> Measurement:
    import faster_fifo  # type: ignore[import-not-found, unused-ignore]

    queue = faster_fifo.Queue(32 << 20)
    producers = _started(_put_many, [(queue, count)] * PRODUCERS)
    return _take(producers, lambda: len(queue.get_many(timeout=60)), count * PRODUCERS)


def contenders() -> list[Contender]:
    """Ours record by record and in lists, and the queues that are installed."""
    found = [
        Contender("append_many, sender, null:", lambda: _through_arena(_append_many, 6_000_000)),
        Contender("Producer.send, sender, null:", lambda: _through_arena(_send, 2_000_000)),
    ]
    if importlib.util.find_spec("faster_fifo") is not None:
        found.append(Contender("faster-fifo put_many", lambda: _through_faster_fifo(200_000)))
    return [*found, Contender(PEER, lambda: _through_queue(50_000))]
