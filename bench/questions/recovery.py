# SPDX-License-Identifier: Apache-2.0
"""How long does the first opener need to recover an arena of 1 GiB full of batches?"""

from __future__ import annotations

from collections.abc import Callable

from bench.harness.native import native_program, run_program
from bench.harness.question import Contender, Figure, Goal, Measurement, Question

DEATH, CRASH, PEER = "after the death of every process", "after a host crash", "reading the same bytes once"
MEBIBYTES = "1024"


def _run(rebooted: str, figure: str) -> Callable[[], Measurement]:
    program = native_program("recovery")
    return lambda: {"seconds": run_program(program, MEBIBYTES, rebooted)[figure]}


def contenders() -> list[Contender]:
    """Return recovery after the death of all processes, and after a host crash, with all checksums."""
    return [
        Contender(DEATH, _run("0", "seconds")),
        Contender(CRASH, _run("1", "seconds")),
        Contender(PEER, _run("1", "floor_seconds")),
    ]


QUESTION = Question(
    title="cold recovery of a full arena of 1 GiB",
    figures=(Figure("seconds", "ms", 1e3, "lower"),),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
    goals=(
        Goal("recovery of 1 GiB after the death of every process", DEATH, "seconds", 1000),
        Goal("recovery of 1 GiB after a host crash", CRASH, "seconds", 1000),
        Goal("recovery of 1 GiB after a host crash, of a read", CRASH, "seconds", 1.1, is_ratio=True),
    ),
    reason=(
        "After a crash of the host, recovery verifies the checksum of every batch. The checksums of 1 GiB in "
        "batches of 16 KiB alone take 44 to 48 ms."
    ),
)
