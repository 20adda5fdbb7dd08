# SPDX-License-Identifier: Apache-2.0
"""How many records per second does one process send to Apache Kafka on the same machine until all are acknowledged?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from bench import peers
from bench.harness.question import Contender, Measurement, Question
from bench.parts.apache_kafka import BATCH_SIZE, FIGURES, LINGER_MS, cluster, produced
from bench.parts.arenas import GUARANTEES, temporary_arena
from bench.parts.sending import RECORD_COUNT
from shmaccum.producer import Producer

STOP_TIMEOUT_S = 20


@contextmanager
def _sender(arena_name: str) -> Iterator[psutil.Process]:
    options = ["--sink", f"kafka:{cluster().bootstrap}", "--set", f"linger_ms={LINGER_MS}ms"]
    command = [sys.executable, "-m", "shmaccum.sender", arena_name, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as sender:
        assert sender.stdout is not None
        sender.stdout.read()  # the sender closes it when it is ready
        yield psutil.Process(sender.pid)
        sender.terminate()
        sender.wait(STOP_TIMEOUT_S)


def _run() -> Measurement:
    with (
        temporary_arena(batch_size=BATCH_SIZE) as arena,
        _sender(arena.name) as sender,
        Producer(arena, linger_ms=LINGER_MS) as producer,
    ):
        before_s = _cpu_s(sender)
        measured = produced(producer.send, producer.flush, RECORD_COUNT)
        measured["cpu_per_record_s"] += (_cpu_s(sender) - before_s) / RECORD_COUNT
    return measured


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def contenders() -> list[Contender]:
    """Return shmaccum, with the sender's processor time, and every client."""
    return [Contender("shmaccum, Producer.send", _run, guarantees=GUARANTEES), *peers.of("kafka")]


QUESTION = Question(
    title="one process sends records of 100 B to Apache Kafka on the same machine, acks=all, idempotent",
    figures=FIGURES,
    contenders=contenders,
    peer="confluent-kafka produce",
    scope="full",
)
