# SPDX-License-Identifier: Apache-2.0
"""How many records per second do queues in the JVM accept, including Kafka's own RecordAccumulator?

A JVM is stopped during the rounds of other contenders. It needs seconds to warm up, so this question is separate from
append_core. The contenders that both have are measured in the same way.
"""

from __future__ import annotations

from bench import peers
from bench.harness.question import Contender, Figure, Question
from bench.questions import append_core

PEER = "Java RecordAccumulator.append, 1 thread"


def contenders() -> list[Contender]:
    """Return the contenders in C and those under JMH."""
    return [*append_core.contenders(), *peers.of("append")]


QUESTION = Question(
    title="append of 100 B: the C core beside JMH benchmarks in Java",
    figures=(Figure("records_per_s", "M records/s", 1e-6, "higher"),),
    contenders=contenders,
    peer=PEER,
    scope="full",
)
