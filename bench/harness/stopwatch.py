# SPDX-License-Identifier: Apache-2.0
"""Elapsed time and processor time, which depends less on other programs."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Elapsed:
    """Seconds."""

    wall_s: float
    cpu_s: float


class Stopwatch:
    """Starts when it is created, and counts the processor time of this process."""

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        self._wall_s = time.perf_counter()

    def elapsed(self) -> Elapsed:
        """Return the time since it was created."""
        wall_s = time.perf_counter() - self._wall_s
        return Elapsed(wall_s, time.process_time() - self._cpu_s)
