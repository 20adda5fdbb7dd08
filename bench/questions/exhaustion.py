# SPDX-License-Identifier: Apache-2.0
"""What happens to four senders when there is memory for a fraction of what is on its way?

The same 1.2 million records of 100 bytes through an arena that always has a free buffer, and through one that has
sixteen: a producer that finds none waits in line. Seen are throughput, what waiting costs in processor time, how many
waits there were, and whether the line is fair: the first producer's time to its end in parts of the last one's.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.harness.processes import together
from bench.harness.question import Contender, Figure, Measurement, Question
from bench.harness.stopwatch import Stopwatch
from bench.parts.arenas import drained_arena
from bench.parts.sending import send_plain
from shmaccum.producer import Producer

PRODUCER_COUNT = 4
RECORD_COUNT = 300_000
PEER = "32 MiB, always a free buffer"


def _open(arena_name: str) -> Producer:
    return Producer(arena_name, linger_ms=0)


def _send(producer: Producer, _arena_name: str) -> tuple[float, float]:
    """Seconds until all was sent, and nanoseconds of processor time for a record."""
    stopwatch = Stopwatch()
    with producer:
        cost = send_plain(producer.send, RECORD_COUNT)["cpu_ns_per_record"]
        return stopwatch.elapsed().wall_s, cost


def _run(buffer_memory: str) -> Callable[[], Measurement]:
    def run() -> Measurement:
        with drained_arena(buffer_memory=buffer_memory, batch_size="16KiB") as arena:
            answers, seconds = together(_open, _send, [(arena.name,)] * PRODUCER_COUNT)
            wait_count = arena.native.counters()["allocations that waited for a buffer"]
        ends = [end for end, _ in answers]
        return {
            "records_per_s": PRODUCER_COUNT * RECORD_COUNT / seconds,
            "cpu_ns_per_record": sum(cost for _, cost in answers) / PRODUCER_COUNT,
            "waits": float(wait_count),
            "fairness": min(ends) / max(ends),
        }

    return run


def contenders() -> list[Contender]:
    """By how much memory there is."""
    return [
        Contender(PEER, _run("32MiB")),
        Contender("1 MiB, 64 buffers", _run("1MiB")),
        Contender("256 KiB, 16 buffers", _run("256KiB")),
    ]


QUESTION = Question(
    title="four producers that wait for buffers, 100 B, a process beside them drains",
    figures=(
        Figure("records_per_s", "M records/s", 1e-6, "higher", "of all together"),
        Figure("cpu_ns_per_record", "ns", 1.0, "lower", "processor time of a producer, per record"),
        Figure("waits", "waits", 1.0, "lower", "allocations that had to wait"),
        Figure("fairness", "of the last one's time", 1.0, "higher", "when the first producer was done"),
    ),
    contenders=contenders,
    peer=PEER,
)
