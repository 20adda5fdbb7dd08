# SPDX-License-Identifier: Apache-2.0
"""What do one to sixteen processes append together, to one partition and to one each?

The C core, and beside it the same records under a robust mutex; both have room for all of them, so that nobody waits
for memory. A process beside them drains. With more processes than cores much of this is the scheduler's work; the
ratio counts.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.harness.native import native_program, run_program
from bench.harness.question import Contender, Figure, Measurement, Question

PROCESS_COUNTS = (1, 2, 4, 8, 16)
RECORD_COUNT = "800000"
MEBIBYTES = "128"
PEER = "robust mutex, {count} processes"


def _run(contender: str, count: int, *arguments: str) -> Callable[[], Measurement]:
    program = native_program("append", ["workload"])
    work = ("-p", str(count), "-n", RECORD_COUNT, "-b", MEBIBYTES, *arguments)
    return lambda: run_program(program, "-c", contender, *work)


def _contenders(count: int) -> list[Contender]:
    peer = PEER.format(count=count)
    return [
        Contender(f"one partition, {count} processes", _run("shmaccum", count, "-o"), peer=peer),
        Contender(f"one each, {count} processes", _run("shmaccum", count), peer=peer),
        Contender(peer, _run("robust-mutex", count)),
    ]


def contenders() -> list[Contender]:
    """One partition, one for each process, and the peer, by the number of processes."""
    return [contender for count in PROCESS_COUNTS for contender in _contenders(count)]


QUESTION = Question(
    title="appends of 100 B by 1 to 16 processes together, a process beside them drains",
    figures=(
        Figure("records_per_s", "M records/s", 1e-6, "higher", "of all together"),
        Figure("cpu_ns_per_record", "ns", 1.0, "lower", "processor time of the producers, per record"),
    ),
    contenders=contenders,
    peer=PEER.format(count=1),
)
