# SPDX-License-Identifier: Apache-2.0
"""How many records per second does one process append in calls of many, while another process drains them?"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from bench.harness import Contender, Figure, Measurement
from shmaccum.accumulator import Accumulator, BatchResult
from shmaccum.arena import Arena
from shmaccum.deliveries import Deliveries
from shmaccum.producer import Producer

TITLE = "records of 100 B in calls of 10,000, one producer, a process beside it drains and completes"
FIGURES = (
    Figure("records_per_s", "M records/s", 1e-6, "higher"),
    Figure("cpu_ns", "ns of the producer's processor per record", 1, "lower"),
)
PEER = "memcpy of the values"
REPETITIONS = 7

CALL_COUNT = 200
RECORD_COUNT = 10_000
VALUE_SIZE = 100
PARTITION_COUNT = 8
KEY_COUNT = 1000

Call = Callable[[Producer], Deliveries]


def _drain(name: str, record_count: int, ready: int) -> None:
    """The process beside: takes the role, says so, and completes batches until it has seen all records."""
    with Arena.attach(name) as arena, Accumulator(arena) as sender:
        sender.become_sender()
        os.write(ready, b"!")
        while record_count > 0:
            partitions, _ = sender.ready(5_000_000)
            batches, _ = sender.drain(partitions, 2**31)
            for batch in batches:
                record_count -= batch.record_count
                sender.complete(batch, BatchResult.SUCCEEDED, base_offset=0)
            if not batches:
                time.sleep(0.00005)


@contextmanager
def _drained_arena(record_count: int) -> Iterator[Arena]:
    name = f"shmaccum-bench-many-{os.getpid()}"
    with Arena.create(name, buffer_memory="64MiB", batch_size="64KiB") as arena:
        try:
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                _drain(name, record_count, writer)
                os._exit(0)
            os.read(reader, 1)
            os.close(reader)
            os.close(writer)
            yield arena
            _, status = os.waitpid(child, 0)
            if status != 0:
                raise RuntimeError(f"the draining process ended with {status}")
        finally:
            Arena.remove(name)


def _measured(work: Callable[[], object]) -> Measurement:
    started, cpu_started = time.perf_counter(), time.thread_time()
    for _ in range(CALL_COUNT):
        work()
    seconds, cpu_seconds = time.perf_counter() - started, time.thread_time() - cpu_started
    count = CALL_COUNT * RECORD_COUNT
    return {"records_per_s": count / seconds, "cpu_ns": cpu_seconds * 1e9 / count}


def _append(call: Call) -> Measurement:
    with _drained_arena(CALL_COUNT * RECORD_COUNT) as arena:
        arena.native.set_topic_partition_count("flights", PARTITION_COUNT)
        with Producer(arena) as producer:
            return _measured(lambda: call(producer))


def _copy(source: bytes) -> Measurement:
    target = memoryview(bytearray(32 * len(source)))
    starts = [number * len(source) for number in range(32)]
    places = iter(starts * (CALL_COUNT // 32 + 1))

    def copy() -> None:
        start = next(places)
        target[start : start + len(source)] = source

    return _measured(copy)


def contenders() -> list[Contender]:
    """The ways to send many records, and the least that moving their bytes costs."""
    values = [os.urandom(VALUE_SIZE) for _ in range(RECORD_COUNT)]
    keys = [b"key-%d" % (number * 7919 % KEY_COUNT) for number in range(RECORD_COUNT)]
    plain = pa.record_batch({"value": values})
    keyed = pa.record_batch({"key": keys, "value": values})
    calls: dict[str, Call] = {
        "send_many": lambda producer: producer.send_many("flights", values),
        "send_many, keys over 8 partitions": lambda producer: producer.send_many("flights", values, keys=keys),
        "append_arrow": lambda producer: producer.append_arrow(plain, topic="flights"),
        "append_arrow, keys over 8 partitions": lambda producer: producer.append_arrow(keyed, topic="flights"),
    }
    source = b"".join(values)
    measured = [Contender(name, lambda call=call: _append(call)) for name, call in calls.items()]  # type: ignore[misc]
    return [*measured, Contender(PEER, lambda: _copy(source))]
