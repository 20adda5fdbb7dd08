# SPDX-License-Identifier: Apache-2.0
"""The monotonic clock by which waits end.

Packages that freeze the clock of a test (freezegun) replace the functions of `time`. A wait for another process or
thread takes real time, so it reads the system's clock with a function that they do not replace. No other module of this
package reads ``time.monotonic``.
"""

from __future__ import annotations

import time

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def monotonic() -> float:
    """Returns seconds, on the clock of time.monotonic()."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def monotonic_ns() -> int:
    """Returns nanoseconds, on the clock of time.monotonic_ns()."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
