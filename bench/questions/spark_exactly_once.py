# SPDX-License-Identifier: Apache-2.0
"""How much slower is Spark with "exactly once", which stages records and appends them to the log in a commit?"""

from __future__ import annotations

import atexit
import shutil
import time
from collections.abc import Callable

from bench.harness.cleanup import new_name
from bench.harness.question import Contender, Figure, Goal, Measurement, Question
from bench.harness.rows import ROW_COUNT, TASK_COUNT, VALUE_SIZE
from bench.parts.segments import TMPFS
from shmaccum.arena import Arena

OURS, PEER = "exactly once, log: on tmpfs", "at least once, log: on tmpfs"
NAME = new_name()
THROUGH = {"topic": "flights", "batchSize": "64KiB"}


def _clean() -> None:
    Arena.remove(NAME, missing_ok=True)
    shutil.rmtree(f"{TMPFS}/{NAME}-logs", ignore_errors=True)


def _write(word: str, **options: str) -> Callable[[], Measurement]:
    """Write into a new directory. Delete the files of previous runs first, because they are in memory."""

    def run() -> Measurement:
        from bench.parts.spark_session import rows

        frame = rows()
        if word == "staged":
            shutil.rmtree(f"{TMPFS}/{NAME}-logs/{word}", ignore_errors=True)
        started_s = time.perf_counter()
        writer = frame.write.format("shmaccum").mode("append").options(**THROUGH, **options)
        writer.option("sink", f"log:{TMPFS}/{NAME}-logs/{word}").save()
        return {"rows_per_s": ROW_COUNT / (time.perf_counter() - started_s)}

    return run


def contenders() -> list[Contender]:
    """Return both guarantees of the sink."""
    atexit.register(_clean)
    return [
        Contender(OURS, _write("staged", deliveryGuarantee="exactly_once")),
        Contender(PEER, _write("shared", arena=NAME, bufferMemory="64MiB", idleExitMs="2s")),
    ]


QUESTION = Question(
    title=f"Spark writes {ROW_COUNT:,} rows of a key and {VALUE_SIZE} B once into a log, local[{TASK_COUNT}]",
    figures=(Figure("rows_per_s", "M rows/s", 1e-6, "higher"),),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
    scope="full",
    goals=(Goal("Spark, exactly once, of at least once", OURS, "rows_per_s", 0.8, is_ratio=True),),
    reason=("Each record is written twice: to the staged log of its attempt, and from there to the log in the commit."),
)
