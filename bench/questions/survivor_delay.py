# SPDX-License-Identifier: Apache-2.0
"""How long is a process delayed when another one is killed during its work?

Two processes put records into one place as fast as they can. One of them is killed with SIGKILL at a random moment. The
figure is the longest put of the other one around the death. If this put takes more than two seconds, the trial ends: a
lock of the dead process will never be released. A run has several deaths; its figures are the worst delay, and the
share of deaths after which the survivor was blocked.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from multiprocessing.connection import Connection
from typing import Any

from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.parts.arenas import TOPIC, drained_arena
from bench.parts.receiving import forked
from bench.parts.sending import VALUE
from shmaccum.producer import Producer

OURS, PEER = "Producer.send, one partition", "multiprocessing.SimpleQueue"
DEATH_COUNT = 3
GIVE_UP_S = 2.0
BEFORE_S, AFTER_S = 0.05, 0.2

Put = Callable[[], object]
Place = Callable[[], AbstractContextManager[Callable[[], Put]]]
"""A context manager of a shared object. It yields a function that each process calls to get its own put."""


def _put_for_ever(make_put: Callable[[], Put]) -> None:
    put = make_put()
    while True:
        put()


def _longest_put(make_put: Callable[[], Put], ready: Connection) -> None:
    """Put until a message arrives, and send the nanoseconds of the longest put."""
    put = make_put()
    put()
    ready.send("ready")
    longest_ns, last_ns = 0, time.monotonic_ns()
    while not ready.poll():
        for _ in range(100):
            put()
            now_ns = time.monotonic_ns()
            longest_ns = max(longest_ns, now_ns - last_ns)
            last_ns = now_ns
        last_ns = time.monotonic_ns()
    ready.send(longest_ns)


def _death(make_put: Callable[[], Put], rng: random.Random) -> float | None:
    """Return the seconds of the survivor's longest put, or None if it did not return."""
    mine, theirs = multiprocessing.Pipe()
    killed, survivor = forked(_put_for_ever, [(make_put,)])[0], forked(_longest_put, [(make_put, theirs)])[0]
    try:
        survivor.start()
        if not mine.poll(GIVE_UP_S):
            return None
        mine.recv()
        killed.start()
        time.sleep(BEFORE_S * (1 + rng.random()))
        assert killed.pid is not None
        os.kill(killed.pid, signal.SIGKILL)
        time.sleep(AFTER_S)
        mine.send("stop")
        return float(mine.recv()) * 1e-9 if mine.poll(GIVE_UP_S) else None
    finally:
        for process in (killed, survivor):
            process.kill()
            process.join()


def _run(place: Place) -> Callable[[], Measurement]:
    rng = random.Random(7)

    def run() -> Measurement:
        delays = []
        for _ in range(DEATH_COUNT):
            with place() as make_put:
                delays.append(_death(make_put, rng))
        worst_s = max(GIVE_UP_S if delay is None else delay for delay in delays)
        return {"worst_s": worst_s, "lost": sum(delay is None for delay in delays) / DEATH_COUNT}

    return run


@contextmanager
def _arena() -> Iterator[Callable[[], Put]]:
    with drained_arena() as arena:

        def make_put() -> Put:
            producer = Producer(arena.name)
            return lambda: producer.send(TOPIC, VALUE, None, None, 0)

        yield make_put


@contextmanager
def _queue() -> Iterator[Callable[[], Put]]:
    queue: Any = multiprocessing.get_context("fork").SimpleQueue()
    (taker,) = forked(_take_for_ever, [(queue,)])
    taker.start()
    try:
        yield lambda: lambda: queue.put(VALUE)
    finally:
        taker.kill()
        taker.join()


def _take_for_ever(queue: Any) -> None:
    while True:
        queue.get()


def contenders() -> list[Contender]:
    """Return shmaccum, and the standard library's queue without its feeder thread, which would hide the delay."""
    return [Contender(OURS, _run(_arena)), Contender(PEER, _run(_queue))]


QUESTION = Question(
    title=f"delay of a survivor after kill -9 of the other process, {DEATH_COUNT} deaths a run, given up after 2 s",
    figures=(
        Figure("worst_s", "ms", 1e3, "lower", "longest put around a death"),
        Figure("lost", "%", 100, "lower", "deaths after which the survivor was blocked"),
    ),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
    goals=(Goal("a survivor's delay after kill -9 of a producer", OURS, "worst_s", 50),),
)
