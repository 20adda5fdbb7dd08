# SPDX-License-Identifier: Apache-2.0
"""How many records per second do one to sixteen Python processes send together, and how long does a send take?

They send without a key, so all fill the same partition, and with keys to six partitions. Another process drains at the
same time. The peer is a multiprocessing.Queue with a process that reads; its feeder threads are part of the cost of a
put.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from bench.harness.question import Contender, Figure, Measurement, Question
from bench.parts.arenas import drained_arena
from bench.parts.sending import send_keyed, send_plain
from shmaccum.producer import Producer

PROCESS_COUNTS = (1, 4, 16)
RECORD_COUNT = 160_000
QUEUE_RECORD_COUNT = 32_000
PEER = "multiprocessing.Queue, {count} processes"

Send = Callable[[Callable[..., object], int], Measurement]


def _open(arena_name: str, _send: Send, _count: int) -> Producer:
    return Producer(arena_name)


def _send(producer: Producer, _arena_name: str, send: Send, count: int) -> float:
    with producer:
        return send(producer.send, count)["cpu_ns_per_record"]


def _run(send: Send, process_count: int) -> Callable[[], Measurement]:
    def run() -> Measurement:
        share = RECORD_COUNT // process_count
        with drained_arena() as arena:
            costs, seconds = together(_open, _send, [(arena.name, send, share)] * process_count)
        return _measurement(costs, share * process_count, seconds)

    return run


def _measurement(costs_ns: list[float], record_count: int, seconds: float) -> Measurement:
    return {"records_per_s": record_count / seconds, "cpu_ns_per_record": sum(costs_ns) / len(costs_ns)}


def _no_preparation(*_arguments: Any) -> None: ...


def _put(_prepared: None, queue: Any, count: int) -> float:
    measured = send_plain(lambda _topic, value: queue.put(value), count)
    queue.close()
    queue.join_thread()
    return measured["cpu_ns_per_record"]


def _take(queue: Any, count: int) -> float:
    for _ in range(count):
        queue.get()
    return 0.0


def _work_or_take(_prepared: None, queue: Any, count: int, is_taker: bool) -> float:
    return _take(queue, count) if is_taker else _put(None, queue, count)


def _run_queue(process_count: int) -> Callable[[], Measurement]:
    def run() -> Measurement:
        queue = multiprocessing.get_context("fork").Queue()
        share = QUEUE_RECORD_COUNT // process_count
        work = [(queue, share, False)] * process_count + [(queue, share * process_count, True)]
        costs, seconds = together(_no_preparation, _work_or_take, work)
        return _measurement(costs[:-1], share * process_count, seconds)

    return run


def _contenders(count: int) -> list[Contender]:
    peer = PEER.format(count=count)
    return [
        Contender(f"Producer.send, no key, {count} processes", _run(send_plain, count), peer=peer),
        Contender(f"Producer.send, keys, {count} processes", _run(send_keyed, count), peer=peer),
        Contender(peer, _run_queue(count)),
    ]


def contenders() -> list[Contender]:
    """Return sends without and with keys, and the queue, by the number of processes."""
    return [contender for count in PROCESS_COUNTS for contender in _contenders(count)]


# --- processes that begin together

Work = Callable[..., Any]
"""A function of a module. It is called when all processes are ready."""


def _serve(begin: Any, result: Connection, prepare: Work, work: Work, arguments: tuple[Any, ...]) -> None:
    prepared = prepare(*arguments)
    begin.wait()
    started_s = time.perf_counter()
    returned = work(prepared, *arguments)
    result.send((started_s, time.perf_counter(), returned))


def together(prepare: Work, work: Work, arguments: Sequence[tuple[Any, ...]]) -> tuple[list[Any], float]:
    """Fork a process for each of `arguments`. Each calls `prepare`, waits for the others, and calls `work`.

    Return the results of `work`, and the seconds from the first start to the last end by the processes' own clocks,
    because the waiting process may wake late.
    """
    context = multiprocessing.get_context("fork")
    begin = context.Barrier(len(arguments) + 1)
    pipes = [context.Pipe(duplex=False) for _ in arguments]
    processes = [
        context.Process(target=_serve, args=(begin, theirs, prepare, work, each))
        for (_, theirs), each in zip(pipes, arguments, strict=True)
    ]
    for process in processes:
        process.start()
    begin.wait()
    starts_s, ends_s, results = zip(*(ours.recv() for ours, _ in pipes), strict=True)
    for process in processes:
        process.join()
    return list(results), max(ends_s) - min(starts_s)


QUESTION = Question(
    title="sends of 100 B by 1 to 16 Python processes together, while another process reads",
    figures=(
        Figure("records_per_s", "M records/s", 1e-6, "higher", "of all together"),
        Figure("cpu_ns_per_record", "ns", 1.0, "lower", "processor time of a producer, per record"),
    ),
    contenders=contenders,
    peer=PEER.format(count=1),
)
