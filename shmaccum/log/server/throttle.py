# SPDX-License-Identifier: Apache-2.0
"""A filter for the log of a server: hostile clients cannot fill a disk with warnings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import final

from shmaccum.common.clock import monotonic

WARNINGS_MAX = 20
"""Warnings of one second."""


@final
class WarningThrottle(logging.Filter):
    """Lets the first warnings of each second pass; the next one tells how many were left out.

    Args:
        clock_s: a clock that goes on evenly, in seconds.
    """

    def __init__(self, clock_s: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock_s = clock_s
        self._began_s = clock_s()
        self._count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """True when the record is to be logged."""
        if record.levelno != logging.WARNING:
            return True
        now_s = self._clock_s()
        if now_s - self._began_s >= 1.0:
            if self._count > WARNINGS_MAX:
                record.msg = f"{record.getMessage()} ({self._count - WARNINGS_MAX} warnings before it were left out)"
                record.args = ()
            self._began_s, self._count = now_s, 0
        self._count += 1
        return self._count <= WARNINGS_MAX


_THROTTLE = WarningThrottle()


def throttled_logger(name: str) -> logging.Logger:
    """The logger of a module. All these loggers together let the warnings of one throttle pass."""
    logger = logging.getLogger(name)
    logger.addFilter(_THROTTLE)
    return logger
