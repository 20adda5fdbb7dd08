# SPDX-License-Identifier: Apache-2.0
"""What does a host gain if its workers share one way to Apache Kafka, and which one is the best?

The workers of a host send 8,000 keyed records of 100 bytes a second together, five at a time, each at other times than
the other workers. They have a producer each (confluent-kafka), or share an arena, a sidecar, or a syslog daemon:

- The *sidecar* is a process with librdkafka. Workers write a frame for each record to a unix stream socket. With acks,
  the sidecar answers each frame, and a worker keeps a frame until then and writes it again to the next sidecar. It is
  written in C and in Python with uvloop (``bench/native/kafka_sidecar.c``, ``bench/parts/python_sidecar.py``).
- The *agents* are Debian's rsyslog and syslog-ng with their outputs to Kafka (``bench/parts/agents.py``). Workers log
  to a datagram socket, and there are no acks.

All have acks=all, linger 5 ms and six partitions, and all but the agents idempotence. In contenders "with acks", a
callback in the worker reports the ack of each record. `bench.parts.one_host` describes a round and its figures. The
broker runs on the same cores, with the JVM options of kafka-server-start.sh. The short form has eight workers only, and
takes five minutes. The full form takes about 45 minutes, and ``make bench-full`` excludes it.
"""

from __future__ import annotations

import os
from functools import partial

from bench.harness import debian
from bench.harness.form import VARIABLE
from bench.harness.packages import installed_version
from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.parts.host_helpers import OPEN_WAYS
from bench.parts.one_host import Broker, Round

COUNTS = (8, 64, 256)
ARENA, ARENA_WITHOUT = "arena, acks", "arena"
EACH = "producer each, acks"
SIDECAR, SIDECAR_WITHOUT, SIDECAR_IN_PYTHON = "sidecar in C, acks", "sidecar in C", "sidecar in Python, acks"
PEERS = {
    ARENA: EACH,
    ARENA_WITHOUT: SIDECAR_WITHOUT,
    SIDECAR: EACH,
    SIDECAR_IN_PYTHON: EACH,
    SIDECAR_WITHOUT: EACH,
    "rsyslog": EACH,
    "syslog-ng": EACH,
    EACH: EACH,
}
"""Contender -> its peer."""


def named(contender: str, worker_count: int) -> str:
    """Return the name of a contender with its number of workers."""
    return f"{contender}, {worker_count} workers"


def _run(contender: str, worker_count: int) -> Measurement:
    has_acks = contender.endswith(", acks")
    way = contender if contender in OPEN_WAYS else contender.removesuffix(", acks")
    return Round(Broker(), worker_count, has_acks=has_acks).run(OPEN_WAYS[way])


def _version(contender: str) -> str:
    if contender.startswith("arena"):
        return ""
    agents = {"rsyslog": "rsyslogd", "syslog-ng": "syslog-ng"}
    if contender in agents:
        return debian.find(agents[contender]).version()
    import confluent_kafka

    return f"{installed_version('confluent-kafka')}, librdkafka {confluent_kafka.libversion()[0]}"


def contenders() -> list[Contender]:
    """Return all contenders with each number of workers."""
    counts = COUNTS[:1] if os.environ.get(VARIABLE) else COUNTS
    return [
        Contender(
            named(contender, count),
            partial(_run, contender, count),
            peer=named(peer, count),
            version=partial(_version, contender),
        )
        for count in counts
        for contender, peer in PEERS.items()
    ]


def _goals(count: int) -> list[Goal]:
    ours, without = named(ARENA, count), named(ARENA_WITHOUT, count)
    workers = f"{count} workers of a host"
    return [
        Goal(f"{workers}, connections to the broker", ours, "connections", 1),
        Goal(f"{workers}, the broker's CPU, of a producer each", ours, "broker_cpu_us", 0.25, is_ratio=True),
        Goal(f"{workers}, CPU of the host, of a producer each", ours, "host_cpu_us", 0.15, is_ratio=True),
        Goal(f"{workers}, CPU of the host, of the sidecar in C", without, "host_cpu_us", 0.3, is_ratio=True),
        Goal(
            f"{workers}, CPU of the host with acks, of the sidecar in C",
            ours,
            "host_cpu_us",
            0.3,
            is_ratio=True,
            peer=named(SIDECAR, count),
        ),
        Goal(f"{workers}, p99 from send to ack, of a producer each", ours, "p99_ns", 1, is_ratio=True),
        Goal(f"{workers}, records lost by kill -9 of a worker", ours, "lost_by_worker", 0),
        Goal(f"{workers}, records lost by kill -9 of the sender", ours, "lost_by_helper", 0),
    ]


QUESTION = Question(
    title="the workers of a host send 8,000 records a second of 100 B together to Apache Kafka",
    figures=(
        Figure("host_cpu_us", "µs CPU/record", 1, "lower", "of workers and helper, without pacing"),
        Figure("broker_cpu_us", "µs CPU/record of the broker", 1, "lower"),
        Figure("connections", "connections", 1, "lower", "to the broker"),
        Figure("heap_mb", "MB", 1, "lower", "live heap of the broker with all clients"),
        Figure("p50_ns", "ms", 1e-6, "lower", "from send to ack, median"),
        Figure("p99_ns", "ms", 1e-6, "lower", "from send to ack, 99 % within"),
        Figure("p999_ns", "ms", 1e-6, "lower", "from send to ack, 99.9 % within"),
        Figure("lost_by_worker", "records", 1, "lower", "lost by kill -9 of a worker"),
        Figure("lost_by_helper", "records", 1, "lower", "lost by kill -9 of sender, sidecar or agent"),
        Figure("doubled", "records", 1, "lower", "doubled by both kills"),
        Figure("pacing_cpu_us", "µs CPU/record", 1, "lower", "of workers that send nothing"),
    ),
    contenders=contenders,
    peer=named(EACH, COUNTS[0]),
    repetitions=5,
    limit_s=3600,
    scope="alone",
    goals=[goal for count in COUNTS for goal in _goals(count)],
    reason=(
        "A worker that waits for its acks sleeps and wakes. One of 8 workers sends 1,000 records a second, and a "
        "wake-up gives it several results. One of 256 sends 31 and wakes for each. There, acks cost a record 21 µs "
        "with the arena (5 µs without them) and 15 µs with the sidecar in C (14 µs without)."
    ),
)
