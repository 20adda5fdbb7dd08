# SPDX-License-Identifier: Apache-2.0
"""Is it after minutes what it was in the first second?

Two processes send without a pause through one arena to one sender with a log on tmpfs that keeps 64 MiB; a run is ten
more seconds of the same processes. Afterwards the arena must pass its checks. The peer is a new arena with new
processes, which works for a second: a ratio that falls from round to round, or memory that grows, is what a soak is
for. While the peer has its turn, the others are stopped.
"""

from __future__ import annotations

import atexit
import os
import tempfile
import time
from multiprocessing.process import BaseProcess

import psutil

from bench.harness.hold import Hold
from bench.harness.question import Contender, Figure, Measurement, Question
from bench.parts.arenas import TOPIC, temporary_arena
from bench.parts.segments import lasting_folder
from bench.parts.sending import VALUE
from bench.parts.taking import forked
from shmaccum.arena import Arena, VerifyDepth
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from shmaccum.sender.sinks import open_sink

PRODUCER_COUNT = 2
SOAK_S, FRESH_S = 10.0, 1.0
RETAIN = {"segment_bytes": "16MiB", "retention_bytes": "64MiB", "retention_check_interval_ms": "100ms"}
"""The default is to look every five minutes, in which this log grows to fill all memory."""
PEER = "a new arena, the first second"


def _send_for_ever(arena_name: str) -> None:
    with Producer(arena_name) as producer:
        send = producer.send
        while True:
            for _ in range(1000):
                send(TOPIC, VALUE)


def _deliver_for_ever(arena_name: str, folder: str) -> None:
    with Sender(arena_name, open_sink(f"log:{folder}", **RETAIN)) as sender:
        sender.run()


class Works:
    """An arena, a sender and producers that run until `close`."""

    def __init__(self, hold: Hold) -> None:
        self._folder: tempfile.TemporaryDirectory[str] = lasting_folder()
        self._context = temporary_arena()
        self.arena: Arena = self._context.__enter__()
        (self.sender,) = forked(_deliver_for_ever, [(self.arena.name, self._folder.name)])
        self.producers = forked(_send_for_ever, [(self.arena.name,)] * PRODUCER_COUNT)
        for process in (self.sender, *self.producers):
            process.start()
            assert process.pid is not None
            os.setpgid(process.pid, process.pid)
            hold.add(process.pid)
        while not self._completed():
            time.sleep(0.001)

    def _completed(self) -> int:
        return self.arena.native.counters()["records completed"]

    def measure(self, seconds: float) -> Measurement:
        """The work of the processes in so many seconds, and their memory afterwards."""
        begin, begin_s = self._completed(), time.perf_counter()
        time.sleep(seconds)
        rate = (self._completed() - begin) / (time.perf_counter() - begin_s)
        if findings := self.arena.verify(VerifyDepth.NORMAL):
            raise RuntimeError(f"the arena is not sound: {findings[0]}")
        return {
            "records_per_s": rate,
            "sender_size": _private_size(self.sender),
            "producer_size": max(map(_private_size, self.producers)),
        }

    def close(self) -> None:
        """Kills everybody."""
        for process in (*self.producers, self.sender):
            process.kill()
            process.join()
        self._context.__exit__(None, None, None)
        self._folder.cleanup()


def _private_size(process: BaseProcess) -> float:
    return float(psutil.Process(process.pid).memory_full_info().uss)


def _fresh() -> Measurement:
    works = Works(Hold())
    try:
        return works.measure(FRESH_S)
    finally:
        works.close()


def _soak() -> Contender:
    kept: list[Works] = []
    hold = Hold()

    def run() -> Measurement:
        if not kept:
            kept.append(Works(hold))
            atexit.register(kept[0].close)
        return kept[0].measure(SOAK_S)

    return Contender("the same processes, ten more seconds", run, hold=hold)


def contenders() -> list[Contender]:
    """The same for long, and something new."""
    return [_soak(), Contender(PEER, _fresh)]


QUESTION = Question(
    title="two producers, a sender and a log for minutes",
    figures=(
        Figure("records_per_s", "M records/s", 1e-6, "higher"),
        Figure("sender_size", "MiB", 1 / 2**20, "lower", "private memory of the sender"),
        Figure("producer_size", "MiB", 1 / 2**20, "lower", "private memory of a producer"),
    ),
    contenders=contenders,
    peer=PEER,
    repetitions=20,
    scope="full",
)
