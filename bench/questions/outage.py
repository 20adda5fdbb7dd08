# SPDX-License-Identifier: Apache-2.0
"""Do all records survive an outage of Apache Kafka, and how fast are they delivered afterwards from a cold cache?

Records of 1,000 bytes accumulate: 20 GB of them in the full form, 200 MB in the short one, or as many as
``--megabytes`` gives. They are on the disk in the overflow of an arena (with the default memory of an arena), in the
queue of rsyslog's output, or in the buffer of syslog-ng's output. confluent-kafka keeps them in memory: its queue may
have a quarter of the host's memory, and its records do not expire. confluent-kafka and the agents use librdkafka's
batches of 1 MB. An arena uses its default of 16 KiB, or 128 KiB.

`bench.parts.outage` describes a round, and ``bench/parts/agents.py`` has the configurations of the agents. The broker
runs on the same cores and writes to the same disk. A broker that discards the bytes shows what the sender alone can do.
``make bench-full`` excludes the question.
"""

from __future__ import annotations

import os
from functools import partial

from bench.harness import debian
from bench.harness.form import VARIABLE, data_size
from bench.harness.packages import installed_version
from bench.harness.question import Contender, Figure, Goal, Question
from bench.parts.outage import WAYS, run, run_discarding

OURS, LARGE_BATCHES, RSYSLOG, SYSLOG_NG, MEMORY = WAYS
DISCARDING = "arena with overflow, a broker that discards"
SIZE, SHORT_SIZE = 20_000_000_000, 200_000_000
LIMIT_S, SHORT_LIMIT_S = 6 * 3600, 300


def _version(contender: str) -> str:
    programs = {RSYSLOG: "rsyslogd", SYSLOG_NG: "syslog-ng"}
    if contender in programs:
        return debian.find(programs[contender]).version()
    return installed_version("confluent-kafka") if contender == MEMORY else ""


def contenders() -> list[Contender]:
    """Return the contenders that store records during an outage."""
    size = data_size(SIZE, SHORT_SIZE)
    ways = [Contender(name, partial(run, way, size), version=partial(_version, name)) for name, way in WAYS.items()]
    return [*ways, Contender(DISCARDING, partial(run_discarding, size), peer=DISCARDING)]


QUESTION = Question(
    title="records of 1,000 B accumulate while Apache Kafka is away, and are delivered from a cold cache",
    figures=(
        Figure("drain_bytes_per_s", "MB/s", 1e-6, "higher", "values delivered, from the first arrival to the last"),
        Figure("of_read", "of a sequential read", 1, "higher", "the same bytes, read once from a cold cache"),
        Figure("lost", "records", 1, "lower", "lost"),
        Figure("doubled", "records", 1, "lower", "doubled"),
        Figure("peak_bytes", "MiB", 1 / 2**20, "lower", "largest resident memory of the queue's process"),
        Figure("stored_bytes", "MB", 1e-6, "lower", "on the disk"),
        Figure("fill_bytes_per_s", "MB/s", 1e-6, "higher", "values taken while Kafka is away"),
        Figure("delay_s", "s", 1, "lower", "from the end of the outage to the first arrival"),
    ),
    contenders=contenders,
    peer=RSYSLOG,
    repetitions=5,
    has_warm_up=False,
    limit_s=SHORT_LIMIT_S if os.environ.get(VARIABLE) else LIMIT_S,
    scope="alone",
    goals=(
        Goal("records lost in an outage", OURS, "lost", 0),
        Goal("records doubled in an outage", OURS, "doubled", 0),
        Goal("drain to Apache Kafka, of a sequential read of the same bytes", OURS, "of_read", 0.9),
        Goal("drain to a broker that discards, of a sequential read", DISCARDING, "of_read", 0.9),
        Goal("memory of the sender in an outage", OURS, "peak_bytes", 64),
    ),
    reason=(
        "The figures are for 4 GB (``--megabytes 4000``). The broker bounds the drain: it writes to the same disk and "
        "shares the cores. A broker that discards gets the same files four times as fast. A batch of 16 KiB takes two "
        "system calls, so the disk's reads are faster. The sender's memory is the arena of 34 MiB and 31 MiB of "
        "imported modules."
    ),
)
