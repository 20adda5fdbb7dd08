# SPDX-License-Identifier: Apache-2.0
"""What do one to sixteen Python processes send together, and what does a send cost each of them?

To the partition that all of them fill (without a key) and with keys over six partitions; a process beside them drains.
The peer is a multiprocessing.Queue with a process that takes; its feeder threads are part of what a put costs.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

from bench.harness.processes import together
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
    """Without and with keys, and the queue, by the number of processes."""
    return [contender for count in PROCESS_COUNTS for contender in _contenders(count)]


QUESTION = Question(
    title="sends of 100 B by 1 to 16 Python processes together, a process beside them takes",
    figures=(
        Figure("records_per_s", "M records/s", 1e-6, "higher", "of all together"),
        Figure("cpu_ns_per_record", "ns", 1.0, "lower", "processor time of a producer, per record"),
    ),
    contenders=contenders,
    peer=PEER.format(count=1),
)
