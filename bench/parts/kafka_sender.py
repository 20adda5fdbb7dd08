# SPDX-License-Identifier: Apache-2.0
"""A producer and the product's sender, which sends to Apache Kafka from a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import psutil

from bench.harness.question import Measurement
from bench.parts.apache_kafka import BATCH_SIZE, LINGER_MS, produced
from bench.parts.arenas import temporary_arena
from bench.parts.sending import VALUE
from shmaccum.producer import Producer

STOP_TIMEOUT_S = 20


def produced_through_arena(
    bootstrap: str, record_count: int, topic: str | None = None, values: Sequence[bytes] = (VALUE,), **options: str
) -> Measurement:
    """Measure `produced` with a producer of an arena, and add the processor time of the sender.

    Args:
        bootstrap: the address of the broker.
        record_count, topic, values: as for `produced`.
        options: options of the sink.
    """
    with (
        temporary_arena(batch_size=BATCH_SIZE) as arena,
        _sender(arena.name, bootstrap, options) as sender,
        Producer(arena, linger_ms=LINGER_MS) as producer,
    ):
        before_s = _cpu_s(sender)
        measured = produced(producer.send, producer.flush, record_count, topic, values)
        measured["cpu_per_record_s"] += (_cpu_s(sender) - before_s) / record_count
    return measured


@contextmanager
def _sender(arena_name: str, bootstrap: str, options: Mapping[str, str]) -> Iterator[psutil.Process]:
    words = ["--set", f"linger_ms={LINGER_MS}ms"]
    words += [word for name, value in options.items() for word in ("--sink-set", f"{name}={value}")]
    command = [sys.executable, "-m", "shmaccum.sender", arena_name, "--sink", f"kafka:{bootstrap}", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as sender:
        assert sender.stdout is not None
        sender.stdout.read()  # the sender closes it when it is ready
        yield psutil.Process(sender.pid)
        sender.terminate()
        sender.wait(STOP_TIMEOUT_S)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
