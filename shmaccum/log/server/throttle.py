# SPDX-License-Identifier: Apache-2.0
"""A rate limit for warnings that clients cause, so that they cannot fill a disk with log messages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import final

from shmaccum.common.clock import monotonic

WARNINGS_MAX = 20
"""The most warnings per second."""


@final
class WarningThrottle(logging.Filter):
    """Passes the first warnings of each second. The next warning reports how many were dropped."""

    def __init__(self, clock_s: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        self.restart()

    def restart(self) -> None:
        """Starts a new second."""
        self._began_s = self._clock_s()
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Returns whether the record is logged."""
        if record.levelno != logging.WARNING:
            return True
        now_s = self._clock_s()
        if now_s - self._began_s >= 1.0:
            if self._count > WARNINGS_MAX:
                record.msg = f"{record.getMessage()} ({self._count - WARNINGS_MAX} earlier warnings were dropped)"
                record.args = ()
            self.restart()
        self._count += 1
        return self._count <= WARNINGS_MAX


THROTTLE = WarningThrottle()
"""The throttle of all servers of this process."""


def throttled_logger(name: str) -> logging.Logger:
    """Return the logger of a module, with `THROTTLE`."""
    logger = logging.getLogger(name)
    logger.addFilter(THROTTLE)
    return logger
