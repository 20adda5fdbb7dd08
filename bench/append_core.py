# SPDX-License-Identifier: Apache-2.0
"""How many records per second does the C core append, with a process beside it that drains and checks every batch?"""

from __future__ import annotations

from collections.abc import Callable

from bench.harness import Contender, Figure, Measurement, native_program, run_program

TITLE = "C core append, 100 B, encode and running CRC, a process beside it verifies and frees"
FIGURES = (Figure("records_per_s", "M records/s", 1e-6, "higher"),)
PEER = "robust mutex, 1 producer"
REPETITIONS = 5


def _run(contender: str, *arguments: str) -> Callable[[], Measurement]:
    program = native_program("append", ["workload"])
    return lambda: run_program(program, "-c", contender, "-n", "4000000", *arguments)


def contenders() -> list[Contender]:
    """The accumulator and its peers."""
    return [
        Contender("shmaccum, 1 producer", _run("shmaccum", "-p", "1")),
        Contender(PEER, _run("robust-mutex", "-p", "1")),
        Contender("shmaccum, 2 producers, 1 partition", _run("shmaccum", "-p", "2", "-o")),
        Contender("robust mutex, 2 producers", _run("robust-mutex", "-p", "2")),
        Contender("shmaccum, 2 producers, 2 partitions", _run("shmaccum", "-p", "2")),
        Contender("shmaccum, 1 producer, runs of 63", _run("shmaccum", "-p", "1", "-r", "63")),
        Contender("hand-over: 1 producer, no lock", _run("hand-over", "-p", "1")),
        Contender("shmaccum, alone: appends and drains in turn", _run("alone", "-p", "1")),
        Contender("floor: the same work, nothing shared", _run("floor", "-p", "1")),
    ]
