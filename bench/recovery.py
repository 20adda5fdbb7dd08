# SPDX-License-Identifier: Apache-2.0
"""How long does the first opener need to recover an arena of 1 GiB full of batches?"""

from __future__ import annotations

from bench.harness import Contender, Figure, Measurement, native_program, run_program

TITLE = "cold recovery of a full arena of 1 GiB"
FIGURES = (Figure("seconds", "ms", 1e3, "lower"),)
PEER = "reading the same bytes once"
REPETITIONS = 3
MEBIBYTES = "1024"


def _floor() -> Measurement:
    measurement = run_program(native_program("recovery"), MEBIBYTES, "1")
    return {"seconds": measurement["floor_seconds"]}


def contenders() -> list[Contender]:
    """After the death of every process, and after a host crash, when every checksum is computed."""
    program = native_program("recovery")
    return [
        Contender("after the death of every process", lambda: run_program(program, MEBIBYTES, "0")),
        Contender("after a host crash", lambda: run_program(program, MEBIBYTES, "1")),
        Contender(PEER, _floor),
    ]
