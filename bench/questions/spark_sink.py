# SPDX-License-Identifier: Apache-2.0
"""How many rows per second does Spark write through the arena, beside a writer that discards the batches?"""

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

OURS, PEER = "sink, null:", "a writer that drops the batches"

TIMES = 5
WRITTEN_COUNT = ROW_COUNT * TIMES
"""The number of written rows. A short job would measure the start of its sender."""
NAME = new_name()
THROUGH = {"topic": "flights", "bufferMemory": "64MiB", "batchSize": "64KiB", "idleExitMs": "2s"}


def _clean() -> None:
    for kind in ("null", "log"):
        Arena.remove(f"{NAME}-{kind}", missing_ok=True)
    shutil.rmtree(f"{TMPFS}/{NAME}", ignore_errors=True)


def _write(format_: str, **options: str) -> Callable[[], Measurement]:
    def run() -> Measurement:
        from bench.parts.spark_session import rows

        frame = rows(ROW_COUNT, TIMES)
        started_s = time.perf_counter()
        frame.write.format(format_).mode("append").options(**options).save()
        return {"rows_per_s": WRITTEN_COUNT / (time.perf_counter() - started_s)}

    return run


def contenders() -> list[Contender]:
    """Return the sink with null: and with a log, and the peer."""
    atexit.register(_clean)
    log = f"log:{TMPFS}/{NAME}"
    return [
        Contender(OURS, _write("shmaccum", arena=f"{NAME}-null", sink="null:", **THROUGH)),
        Contender("sink, log: on tmpfs", _write("shmaccum", arena=f"{NAME}-log", sink=log, **THROUGH)),
        Contender(PEER, _write("peer")),
    ]


QUESTION = Question(
    title=f"Spark writes {WRITTEN_COUNT:,} rows of a key and {VALUE_SIZE} B, local[{TASK_COUNT}]",
    figures=(Figure("rows_per_s", "M rows/s", 1e-6, "higher"),),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
    scope="full",
    limit_s=240.0,
    goals=(Goal("Spark Arrow sink, of a no-op Arrow writer's rows/s", OURS, "rows_per_s", 0.95, is_ratio=True),),
)
