# SPDX-License-Identifier: Apache-2.0
"""How long does a single append take at worst, with eight processes on one partition?"""

from __future__ import annotations

from bench.harness import Contender, Figure, native_program, run_program

TITLE = "latency of one append, 100 B, 8 producer processes on one partition"
FIGURES = (
    Figure("p50_ns", "µs", 1e-3, "lower"),
    Figure("p99_ns", "µs", 1e-3, "lower"),
    Figure("p999_ns", "µs", 1e-3, "lower"),
    Figure("p9999_ns", "µs", 1e-3, "lower"),
)
PEER = "robust mutex"
REPETITIONS = 5


def contenders() -> list[Contender]:
    """The accumulator, a robust mutex, and the floor: the same work with nothing shared, preempted alike."""
    program = native_program("append", ["workload"])
    arguments = ("-p", "8", "-o", "-t", "-n", "8000000")
    return [
        Contender("shmaccum", lambda: run_program(program, "-c", "shmaccum", *arguments)),
        Contender(PEER, lambda: run_program(program, "-c", "robust-mutex", *arguments)),
        Contender("floor", lambda: run_program(program, "-c", "floor", *arguments)),
    ]
