# SPDX-License-Identifier: Apache-2.0
"""How much memory do 200,000 undelivered records need, and how much does an attached process need?

A new interpreter imports the package and reports its own memory (private pages, clean and dirty, of all its maps except
the arena's, and the page tables). Then it attaches, sends 200,000 records that no sender delivers, and reports its
memory again. The difference is the cost of being attached. The memory of the records is this difference plus the
allocated bytes of the arena, which all processes of a host share. The cost of the import is shown too. Each process
pays it, but programs that fork pay it once per host.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from bench.harness.cleanup import SHARED_MEMORY
from bench.harness.question import Contender, Figure, Goal, Measurement, Question, UnavailableError
from bench.parts.arenas import PARTITION_COUNT, TOPIC, temporary_arena
from bench.parts.sending import VALUE
from setup import ROOT

OURS, PEER = "Producer.send, arena of 32 MiB", "confluent-kafka produce"
RECORD_COUNT = 200_000
SECONDS_MAX = 60

PROBE = """
import json, re, sys

def private_size():
    sizes, name = 0, ""
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            if re.match("[0-9a-f]+-", line):
                name = line.split(None, 5)[5] if len(line.split(None, 5)) > 5 else ""
            elif line.startswith(("Private_Clean:", "Private_Dirty:")) and "/dev/shm/" not in name:
                sizes += int(line.split()[1]) * 1024
    return sizes

def page_table_size():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmPTE:"))

bare = private_size()
{imports}
before, tables_before = private_size(), page_table_size()
{work}
after, tables_after = private_size(), page_table_size()
print(json.dumps({{"private_size": after - before + tables_after - tables_before,
                     "page_table_size": tables_after - tables_before, "import_size": before - bare}}))
"""

OUR_WORK = f"""
producer = Producer(sys.argv[1], close_timeout_ms=0)
for _ in range({RECORD_COUNT}):
    producer.send({TOPIC!r}, {VALUE!r})
"""

CONFLUENT_WORK = f"""
producer = Producer({{"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.messages": {RECORD_COUNT + 1},
                        "log_level": 0}})
for _ in range({RECORD_COUNT}):
    producer.produce({TOPIC!r}, {VALUE!r})
"""


def _probe(imports: str, work: str, *arguments: str) -> Measurement:
    code = PROBE.format(imports=imports, work=work)
    command = [sys.executable, "-c", code, *arguments]
    output = subprocess.run(command, check=True, capture_output=True, text=True, timeout=SECONDS_MAX, cwd=ROOT).stdout
    sizes: dict[str, float] = json.loads(output)
    return sizes


def _ours(**options: Any) -> Callable[[], Measurement]:
    def run() -> Measurement:
        with temporary_arena(**options) as arena:
            arena.native.set_topic_partition_count(TOPIC, PARTITION_COUNT)
            found = _probe("from shmaccum import Producer", OUR_WORK, arena.name)
            shared_size = (SHARED_MEMORY / arena.name).stat().st_blocks * 512
        return {**found, "held_size": found["private_size"] + shared_size}

    return run


def _confluent() -> Measurement:
    if importlib.util.find_spec("confluent_kafka") is None:
        raise UnavailableError("confluent-kafka is not installed: pip install confluent-kafka")
    found = _probe("from confluent_kafka import Producer", CONFLUENT_WORK)
    return {**found, "held_size": found["private_size"]}


def contenders() -> list[Contender]:
    """Return arenas of two sizes, and confluent-kafka without a broker, with all records in its queue."""
    return [
        Contender(OURS, _ours()),
        Contender("Producer.send, arena of 1 GiB", _ours(buffer_memory="1GiB")),
        Contender(PEER, _confluent),
    ]


QUESTION = Question(
    title="memory after 200,000 sends of 100 B that are not delivered",
    figures=(
        Figure("held_size", "MiB", 1 / 2**20, "lower", "of process and arena, in addition to the import"),
        Figure("private_size", "MiB", 1 / 2**20, "lower", "of the process without the arena, including page tables"),
        Figure("page_table_size", "MiB", 1 / 2**20, "lower", "page tables"),
        Figure("import_size", "MiB", 1 / 2**20, "lower", "of the import"),
    ),
    contenders=contenders,
    peer=PEER,
    repetitions=5,
    goals=(Goal("memory of an attached process beyond the arena", OURS, "private_size", 2),),
)
