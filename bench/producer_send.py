# SPDX-License-Identifier: Apache-2.0
"""How long does a send of 100 bytes take from Python, with a process beside it that drains?

The loop around the call is part of it, for everybody. confluent-kafka's `produce` has no broker to talk to: it only
queues, which is the part that can be compared; its queue is emptied between rounds.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import confluent_kafka

from bench.harness import Contender, Figure, Measurement
from shmaccum import Accumulator, Arena, BatchResult, Producer

TITLE = "send of 100 B from Python, a process beside it drains"
FIGURES = (
    Figure("ns_per_record", "ns", 1.0, "lower"),
    Figure("cpu_ns_per_record", "ns of this process's processor time", 1.0, "lower"),
)
PEER = "confluent-kafka produce, no key"
REPETITIONS = 7

RECORD_COUNT = 400_000
PARTITION_COUNT = 6
VALUE = bytes(100)
KEYS = [b"key-%05d" % number for number in range(1000)]


def _drain(arena_name: str, ready: Connection) -> None:
    """The sender: takes everything, checks nothing, until the other end hangs up."""
    with Arena.attach(arena_name) as arena, Accumulator(arena) as accumulator:
        accumulator.become_sender()
        ready.send(True)
        while not ready.poll():
            partitions, _ = accumulator.ready(5_000_000)
            batches, _ = accumulator.drain(partitions, 1 << 20)
            for batch in batches:
                accumulator.complete(batch, BatchResult.SUCCEEDED)
            if not batches:
                accumulator.maintain()
                time.sleep(0.0001)
        accumulator.abort()


@contextmanager
def drained_arena() -> Iterator[Arena]:
    """An arena with a topic of six partitions, and a process that drains it."""
    name = f"shmaccum-bench-{os.getpid()}"
    mine, theirs = multiprocessing.Pipe()
    with Arena.create(name) as arena:
        arena.native.set_topic_partition_count("flights", PARTITION_COUNT)
        drainer = multiprocessing.get_context("spawn").Process(target=_drain, args=(name, theirs))
        drainer.start()
        theirs.close()
        try:
            mine.recv()
            yield arena
        finally:
            mine.send(None)
            drainer.join()
            Arena.remove(name)


def _timed(send: Callable[..., Any], keys: list[bytes] | None) -> Measurement:
    cpu_begin, begin = time.process_time_ns(), time.perf_counter_ns()
    if keys is None:
        for _ in range(RECORD_COUNT):
            send("flights", VALUE)
    else:
        for _ in range(RECORD_COUNT // len(keys)):
            for key in keys:
                send("flights", VALUE, key)
    return _per_record(cpu_begin, begin)


def _per_record(cpu_begin: int, begin: int) -> Measurement:
    elapsed, cpu = time.perf_counter_ns() - begin, time.process_time_ns() - cpu_begin
    return {"ns_per_record": elapsed / RECORD_COUNT, "cpu_ns_per_record": cpu / RECORD_COUNT}


def _shmaccum(keys: list[bytes] | None) -> Callable[[], Measurement]:
    def run() -> Measurement:
        with drained_arena() as arena, Producer(arena) as producer:
            measured = _timed(producer.send, keys)
            producer.flush()
            return measured

    return run


def _shmaccum_by_name() -> Measurement:
    with drained_arena() as arena, Producer(arena) as producer:
        cpu_begin, begin = time.process_time_ns(), time.perf_counter_ns()
        for _ in range(RECORD_COUNT):
            producer.send("flights", value=VALUE, key=b"key")
        measured = _per_record(cpu_begin, begin)
        producer.flush()
    return measured


def _confluent(keys: list[bytes] | None) -> Callable[[], Measurement]:
    def run() -> Measurement:
        options = {"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.messages": RECORD_COUNT + 1, "log_level": 0}
        producer = confluent_kafka.Producer(options)
        measured = _timed(producer.produce, keys)
        producer.purge()
        producer.flush(0)
        return measured

    return run


def contenders() -> list[Contender]:
    """Ours and confluent-kafka's, without and with keys."""
    return [
        Contender("Producer.send, no key", _shmaccum(None)),
        Contender(PEER, _confluent(None)),
        Contender("Producer.send, key", _shmaccum(KEYS)),
        Contender("confluent-kafka produce, key", _confluent(KEYS)),
        Contender("Producer.send, key and value by name", _shmaccum_by_name),
    ]
