# SPDX-License-Identifier: Apache-2.0
"""Time on the wall and time of the processor, which a busy machine does not change as much."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Elapsed:
    """Seconds."""

    wall_s: float
    cpu_s: float


class Stopwatch:
    """Runs from when it is made; counts the processor time of this whole process."""

    def __init__(self) -> None:
        self._cpu_s = time.process_time()
        self._wall_s = time.perf_counter()

    def elapsed(self) -> Elapsed:
        """Since it was made."""
        wall_s = time.perf_counter() - self._wall_s
        return Elapsed(wall_s, time.process_time() - self._cpu_s)
