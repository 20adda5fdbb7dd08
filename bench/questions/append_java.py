# SPDX-License-Identifier: Apache-2.0
"""How many records per second do the queues of the JVM take, and Kafka's own RecordAccumulator?

JVMs poll also while they are held between rounds, so all contenders here have the same company, and slower figures than
alone: compare within this table only.
"""

from __future__ import annotations

from bench import peers
from bench.arenas import GUARANTEES
from bench.harness.question import Contender, Figure, Question
from bench.questions.append_core import ONE, run


def contenders() -> list[Contender]:
    """The accumulator in C beside those under JMH."""
    return [Contender(ONE, run("shmaccum", "-p", "1"), guarantees=GUARANTEES), *peers.of("append")]


QUESTION = Question(
    title="append of 100 B: the C core beside what JMH measures in Java",
    figures=(Figure("records_per_s", "M records/s", 1e-6, "higher"),),
    contenders=contenders,
    peer=ONE,
    scope="full",
)
