# SPDX-License-Identifier: Apache-2.0
"""Aeron IPC in Java: one or two threads offer into a log buffer in shared memory, and one polls.

Several processes would map the same buffers. One JVM is the fastest form, and that of Aeron's own samples.
"""

from __future__ import annotations

from bench.harness.jvm import contenders
from bench.harness.question import Guarantees

OFFER = "AeronOffer.offer"
THREADS = {"Aeron IPC offer, 1 thread": 1, "Aeron IPC offer, 2 threads": 2}
GUARANTEES = Guarantees(record="copy", order="queue", checksum="none", kill="kept")

WORKS = {"append": contenders("Aeron", OFFER, THREADS, GUARANTEES)}
