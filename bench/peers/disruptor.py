# SPDX-License-Identifier: Apache-2.0
"""LMAX Disruptor in Java passes records between threads of one process without encoding."""

from __future__ import annotations

from bench.harness.jvm import contenders
from bench.harness.question import Guarantees

PUBLISH = "DisruptorPublish.publish"
NAMES = {"Disruptor publish, 1 thread": 1, "Disruptor publish, 3 threads": 3}
GUARANTEES = Guarantees(record="copy", order="queue", checksum="none", kill="lost")

WORKS = {"append": contenders("Disruptor", PUBLISH, NAMES, GUARANTEES)}
