# SPDX-License-Identifier: Apache-2.0
"""Does an append cost more if there are ten thousand partitions?

There are three cases. In the first, the partitions exist, and one is used. In the second, all have an open batch, and
runs of fifty records go to one partition after the other, as `send_many` groups them. In the third, the partition
changes with each record. The peers write the
same records and checksums into as many private buffers in the same order, so both have the same cache misses, and the
ratio shows the cost of shmaccum alone. The figure is processor time, in memory that was touched before and is not
drained.

The order of the partitions is shuffled in each round, as random keys would do. If they followed the order of their
memory, the processor would prefetch the next buffer, and many private buffers would cost no more than one
(``docs/decisions/0008``).

Single records to ten thousand partitions are the worst case. The partition, its lock, the slot's word and header and
the end of the batch are in lines and pages that were not touched for 9,999 records. An append to a private buffer
touches only two such lines.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.harness.native import native_program, run_program
from bench.harness.question import Contender, Figure, Goal, Measurement, Question

MEBIBYTES = "256"
RECORD_COUNT = "500000"
ONE = "1 partition"
EXIST = "10,000 exist, 1 is used"
RUNS, SINGLES = "runs of 50 to {count:,}", "record by record to {count:,}"
COUNTS = (100, 10_000)


def _run(contender: str, *arguments: str) -> Callable[[], Measurement]:
    program = native_program("append", ["workload"])
    return lambda: run_program(program, "-c", contender, "-n", RECORD_COUNT, "-b", MEBIBYTES, *arguments)


def _pair(name: str, *arguments: str) -> list[Contender]:
    floor = f"private buffers: {name}"
    return [Contender(name, _run("fill", *arguments), peer=floor), Contender(floor, _run("fill-floor", *arguments))]


def contenders() -> list[Contender]:
    """Return a contender for each number of partitions, with private buffers as peers."""
    found = [Contender(EXIST, _run("fill", "-e", "10000"), peer=ONE), Contender(ONE, _run("fill"))]
    for count in COUNTS:
        found += _pair(RUNS.format(count=count), "-x", str(count), "-r", "50")
        found += _pair(SINGLES.format(count=count), "-x", str(count))
    return found


QUESTION = Question(
    title="one append of 100 B, 1 to 10,000 partitions",
    figures=(Figure("cpu_ns_per_record", "ns", 1.0, "lower", "processor time per record"),),
    contenders=contenders,
    peer=ONE,
    goals=(
        Goal("append where 10,000 partitions exist, of where 1 does", EXIST, "cpu_ns_per_record", 1.1, is_ratio=True),
        Goal(
            "append in runs of 50 to 10,000 partitions, of private buffers",
            RUNS.format(count=10_000),
            "cpu_ns_per_record",
            1.1,
            is_ratio=True,
        ),
        Goal(
            "append record by record to 10,000 partitions, of private buffers",
            SINGLES.format(count=10_000),
            "cpu_ns_per_record",
            1.3,
            is_ratio=True,
        ),
    ),
    reason=(
        "A record that goes to another partition than the last one touches five cache lines that were not touched for "
        "9,999 records: of the partition, its lock, the slot's word, the slot's header, and the end of the batch. An "
        "append to a private buffer touches two."
    ),
)
