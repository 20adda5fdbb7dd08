# SPDX-License-Identifier: Apache-2.0
"""Logs a warning if a producer has no sender, and a message when it has a sender again."""

from __future__ import annotations

import logging
from typing import final

from shmaccum.arena import Arena
from shmaccum.common import clock
from shmaccum.exceptions import ShmaccumError

logger = logging.getLogger("shmaccum.producer")

CHECK_INTERVAL_S = 1.0


@final
class SenderWarning:
    """Checks for a sender when a producer wakes the sender, waits, or flushes. Never raises.

    A producer wakes the sender when it opens a batch and the sender sleeps, or has not renewed its heartbeat for
    three seconds.

    Args:
        arena: the arena of the producer.
        is_supervised: this process supervises a sender and reports its state, so nothing is checked here.
    """

    def __init__(self, arena: Arena, *, is_supervised: bool) -> None:
        self._arena = arena
        self._is_supervised = is_supervised
        self._is_absent = False
        self._next_check_s = 0.0

    def check(self) -> None:
        """Checks, at most once a second."""
        now_s = clock.monotonic()
        if self._is_supervised or now_s < self._next_check_s:
            return
        self._next_check_s = now_s + CHECK_INTERVAL_S
        try:
            self._log_change(not self._arena.native.sender_is_alive)
        except (ShmaccumError, OSError) as error:
            logger.debug("the check for a sender of %s failed: %s", self._arena.name, error)

    def _log_change(self, is_absent: bool) -> None:
        was_absent, self._is_absent = self._is_absent, is_absent
        name = self._arena.name
        if is_absent and not was_absent:
            logger.warning(
                "no sender of the arena %s runs: records stay in the arena until one is started (shmaccum sender "
                "%s --sink ..., or Producer(%r, sink=...), which supervises one)",
                name,
                name,
                name,
            )
        elif was_absent and not is_absent:
            logger.info("the arena %s has a sender again", name)
