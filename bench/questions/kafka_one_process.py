# SPDX-License-Identifier: Apache-2.0
"""How many records per second does one process send to Apache Kafka on the same machine until all are acknowledged?"""

from __future__ import annotations

from bench import peers
from bench.harness.question import Contender, Measurement, Question
from bench.parts.apache_kafka import FIGURES, cluster
from bench.parts.arenas import GUARANTEES
from bench.parts.kafka_sender import produced_through_arena
from bench.parts.sending import RECORD_COUNT


def _run() -> Measurement:
    return produced_through_arena(cluster().bootstrap, RECORD_COUNT)


def contenders() -> list[Contender]:
    """Return shmaccum, with the sender's processor time, and every client."""
    return [Contender("shmaccum, Producer.send", _run, guarantees=GUARANTEES), *peers.of("kafka")]


QUESTION = Question(
    title="one process sends records of 100 B to Apache Kafka on the same machine, acks=all, idempotent",
    figures=FIGURES,
    contenders=contenders,
    peer="confluent-kafka produce",
    scope="full",
)
