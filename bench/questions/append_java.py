# SPDX-License-Identifier: Apache-2.0
"""How many records per second do the queues of the JVM take, and Kafka's own RecordAccumulator?

A JVM is stopped while others have their rounds. It needs seconds to get warm, which is why this is not a part of
append_core; their common contenders are measured in the same way.
"""

from __future__ import annotations

from bench import peers
from bench.harness.question import Contender, Figure, Question
from bench.questions import append_core
from bench.questions.append_core import ONE


def contenders() -> list[Contender]:
    """Those in C, and those under JMH."""
    return [*append_core.contenders(), *peers.of("append")]


QUESTION = Question(
    title="append of 100 B: the C core beside what JMH measures in Java",
    figures=(Figure("records_per_s", "M records/s", 1e-6, "higher"),),
    contenders=contenders,
    peer=ONE,
    scope="full",
)
