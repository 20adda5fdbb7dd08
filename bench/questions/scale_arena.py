# SPDX-License-Identifier: Apache-2.0
"""Does an append cost more in an arena of 4 GiB than in one of 32 MiB?

One process appends and drains in turn, so buffers are reused as in production. The figure is processor time.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.harness.native import native_program, run_program
from bench.harness.question import Contender, Figure, Goal, Measurement, Question

SMALL, LARGE = "32 MiB", "4 GiB"
RECORD_COUNT = "3000000"


def _run(mebibytes: int) -> Callable[[], Measurement]:
    program = native_program("append", ["workload"])
    return lambda: run_program(program, "-c", "alone", "-n", RECORD_COUNT, "-b", str(mebibytes))


def contenders() -> list[Contender]:
    """Return a contender for each size of the arena."""
    return [Contender("512 MiB", _run(512)), Contender(SMALL, _run(32)), Contender(LARGE, _run(4096))]


QUESTION = Question(
    title="one append of 100 B and its share of the drain, by the arena's size",
    figures=(Figure("cpu_ns_per_record", "ns", 1.0, "lower", "processor time per record"),),
    contenders=contenders,
    peer=SMALL,
    goals=(Goal("append in an arena of 4 GiB, of 32 MiB", LARGE, "cpu_ns_per_record", 1.1, is_ratio=True),),
)
