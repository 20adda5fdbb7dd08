# SPDX-License-Identifier: Apache-2.0
"""How many records per second does the C core append while another process drains and verifies every batch?

The peers in Java need a minute to warm up, so append_java measures them.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.harness.native import native_program, run_program
from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.parts.arenas import GUARANTEES

ONE, TWO = "shmaccum, 1 producer", "shmaccum, 2 producers, 1 partition"
PEER, PEER_OF_TWO = "robust mutex, 1 producer", "robust mutex, 2 producers"


def run(contender: str, *arguments: str) -> Callable[[], Measurement]:
    """Run `bench/native/append.c` with four million records."""
    program = native_program("append", ["workload"])
    return lambda: run_program(program, "-c", contender, "-n", "4000000", *arguments)


def contenders() -> list[Contender]:
    """Return the accumulator and its peers."""
    return [
        Contender(ONE, run("shmaccum", "-p", "1"), guarantees=GUARANTEES),
        Contender(PEER, run("robust-mutex", "-p", "1")),
        Contender(TWO, run("shmaccum", "-p", "2", "-o"), peer=PEER_OF_TWO, guarantees=GUARANTEES),
        Contender(
            "shmaccum, 2 producers, 2 partitions", run("shmaccum", "-p", "2"), peer=PEER_OF_TWO, guarantees=GUARANTEES
        ),
        Contender(PEER_OF_TWO, run("robust-mutex", "-p", "2")),
        Contender("shmaccum, 1 producer, runs of 63", run("shmaccum", "-p", "1", "-r", "63"), guarantees=GUARANTEES),
        Contender("hand-over: 1 producer, no lock", run("hand-over", "-p", "1")),
        Contender("shmaccum, alone: appends and drains in turn", run("alone", "-p", "1")),
        Contender("floor: the same work, nothing shared", run("floor", "-p", "1")),
    ]


QUESTION = Question(
    title="C core append of 100 B with encoding and checksum, while another process verifies and frees",
    figures=(Figure("records_per_s", "M records/s", 1e-6, "higher"),),
    contenders=contenders,
    peer=PEER,
    goals=(
        Goal("C core append, 100 B, 1 process", ONE, "records_per_s", 20),
        Goal("C core append, 100 B, 2 processes", TWO, "records_per_s", 15),
    ),
)
