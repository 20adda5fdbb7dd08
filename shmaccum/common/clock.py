# SPDX-License-Identifier: Apache-2.0
"""The monotonic clock by which waits end.

Packages that give a test a clock which stands still (freezegun) replace the functions of `time`. A wait for another
process or thread goes on in real time, so it reads the clock of the system by a function that they leave alone. No
other module of this package reads ``time.monotonic``.
"""

from __future__ import annotations

import time

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def monotonic() -> float:
    """Seconds, on the clock of time.monotonic()."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def monotonic_ns() -> int:
    """Nanoseconds, on the clock of time.monotonic_ns()."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
