# SPDX-License-Identifier: Apache-2.0
"""Aeron IPC in Java: one or two threads offer into a log buffer in shared memory, and one polls.

Its processes would map the same buffers. It is fastest in one JVM, as in its own samples.
"""

from __future__ import annotations

from bench.harness.jvm import contenders
from bench.harness.question import Guarantees

OFFER = "AeronOffer.offer"
THREADS = {"Aeron IPC offer, 1 thread": 1, "Aeron IPC offer, 2 threads": 2}
GUARANTEES = Guarantees(record="copy", order="queue", checksum="none", kill="kept")

WORKS = {"append": contenders("Aeron", OFFER, THREADS, GUARANTEES)}
