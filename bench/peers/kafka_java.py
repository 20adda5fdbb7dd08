# SPDX-License-Identifier: Apache-2.0
"""Apache Kafka's own producer, in Java: `RecordAccumulator.append`, which shmaccum's core is modelled on."""

from __future__ import annotations

from bench.harness.question import Guarantees
from bench.jvm import contenders

APPEND = "AccumulatorAppend.append"
NAMES = {"Java RecordAccumulator.append, 1 thread": 1, "Java RecordAccumulator.append, 2 threads": 2}
GUARANTEES = Guarantees(record="copy", order="partition", checksum="CRC32C", kill="lost")

WORKS = {"append": contenders("Kafka", APPEND, NAMES, GUARANTEES)}
