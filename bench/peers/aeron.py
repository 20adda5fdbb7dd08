# SPDX-License-Identifier: Apache-2.0
"""Aeron IPC in Java: one or two threads offer into a log buffer in shared memory, and one polls.

The benchmark uses one JVM, as Aeron's own samples do, because this is faster than several processes that map the
buffer.
"""

from __future__ import annotations

from bench.harness.jvm import contenders
from bench.harness.question import Guarantees

OFFER = "AeronOffer.offer"
THREADS = {"Aeron IPC offer, 1 thread": 1, "Aeron IPC offer, 2 threads": 2}
GUARANTEES = Guarantees(record="copy", order="queue", checksum="none", kill="kept")

WORKS = {"append": contenders("Aeron", OFFER, THREADS, GUARANTEES)}
