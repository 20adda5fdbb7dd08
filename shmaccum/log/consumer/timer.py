# SPDX-License-Identifier: Apache-2.0
"""A timer of the kernel as a descriptor (timerfd), for threads that wait for other descriptors at the same time."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from typing import final

from shmaccum.common.clock import NS_PER_S

ITIMERSPEC = struct.Struct("@llll")
TFD_TIMER_ABSTIME = 1

_libc = ctypes.CDLL(None, use_errno=True)


@final
class Timer:
    """One timer.

    Attributes:
        descriptor: readable once the time that was set has passed, or -1 after `close`.

    Raises:
        OSError: if the process has too many descriptors.
    """

    def __init__(self) -> None:
        self.descriptor: int = _libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "the kernel gives no timer to this process")
        self._time_s = float("inf")

    def set(self, time_s: float) -> None:
        """Set the time of the monotonic clock at which the descriptor becomes readable. Infinity means never."""
        if time_s != self._time_s:
            self._time_s = time_s
            time_ns = 0 if time_s == float("inf") else max(int(time_s * NS_PER_S), 1)
            _libc.timerfd_settime(
                self.descriptor, TFD_TIMER_ABSTIME, ITIMERSPEC.pack(0, 0, *divmod(time_ns, NS_PER_S)), None
            )

    def close(self) -> None:
        """Close the timer. A second call does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
