# SPDX-License-Identifier: Apache-2.0
"""The work "latency": a process sends a record of 100 bytes each millisecond, and another one computes its age.

The first bytes of a record are the time of its send, on the monotonic clock of the host.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

RECORD_COUNT = 1000
GAP_S = 0.001
SENT_AT = struct.Struct("<q")
PADDING = bytes(100 - SENT_AT.size)


def send_paced(send: Callable[[bytes], object], record_count: int = RECORD_COUNT, gap_s: float = GAP_S) -> None:
    """Send records, and sleep after each."""
    for _ in range(record_count):
        send(SENT_AT.pack(time.monotonic_ns()) + PADDING)
        time.sleep(gap_s)


def age_ns(value: bytes | memoryview) -> int:
    """Return the time since a record was sent."""
    return time.monotonic_ns() - int(SENT_AT.unpack_from(value)[0])
