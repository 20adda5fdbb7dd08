# SPDX-License-Identifier: Apache-2.0
"""How long do the slowest appends take, with eight processes on one partition?"""

from __future__ import annotations

from collections.abc import Callable

from bench.harness.native import native_program, run_program
from bench.harness.question import Contender, Figure, Goal, Measurement, Question

OURS, PEER = "shmaccum", "robust mutex"


def _run(contender: str) -> Callable[[], Measurement]:
    program = native_program("append", ["workload"])
    return lambda: run_program(program, "-c", contender, "-p", "8", "-o", "-t", "-n", "8000000")


def contenders() -> list[Contender]:
    """Return the accumulator, a robust mutex, and the floor without sharing, all equally preempted.

    The contender without a lock writes each record to new memory, which shows the cost of the memory
    (``docs/decisions/0007``). The floor fills one buffer that stays in the cache.
    """
    return [
        Contender(OURS, _run("shmaccum")),
        Contender(PEER, _run("robust-mutex")),
        Contender("no lock, memory of its own", _run("no-lock")),
        Contender("floor", _run("floor")),
    ]


QUESTION = Question(
    title="latency of one append, 100 B, 8 producer processes on one partition",
    figures=(
        Figure("p50_ns", "µs", 1e-3, "lower", "median"),
        Figure("p99_ns", "µs", 1e-3, "lower", "99 % within"),
        Figure("p999_ns", "µs", 1e-3, "lower", "99.9 % within"),
        Figure("p9999_ns", "µs", 1e-3, "lower", "99.99 % within"),
    ),
    contenders=contenders,
    peer=PEER,
    goals=(
        *(
            Goal(f"{name} of append, 8 processes, of the robust mutex", OURS, figure, 1.1, is_ratio=True)
            for name, figure in (("p50", "p50_ns"), ("p99", "p99_ns"), ("p99.9", "p999_ns"))
        ),
        Goal("p99.99 of append, 8 processes", OURS, "p9999_ns", 50),
    ),
    reason=(
        "An append has two locked instructions and publishes its slot, so that no process waits for a dead one "
        "(decision 0002). A mutex has one locked instruction if it is free, and a system call if it is not. So at "
        "99.99 %, the appends of the mutex take longer."
    ),
)
