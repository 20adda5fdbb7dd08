# SPDX-License-Identifier: Apache-2.0
"""Repeated warnings are limited, and suppressed ones are counted."""

from __future__ import annotations

import logging

import pytest

from shmaccum.log.server.throttle import WARNINGS_MAX, WarningThrottle


def test_a_flood_of_warnings_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    logger = logging.getLogger("test_throttle")
    throttle = WarningThrottle(lambda: now_s[0])
    logger.addFilter(throttle)
    try:
        for number in range(WARNINGS_MAX + 300):
            logger.warning("client %d", number)
        logger.error("an error always passes")
        now_s[0] = 1.0
        logger.warning("client %d", 7)
        logger.warning("client %d", 8)
        for number in range(WARNINGS_MAX):
            logger.warning("again %d", number)
    finally:
        logger.removeFilter(throttle)
    assert caplog.messages == [
        *(f"client {number}" for number in range(WARNINGS_MAX)),
        "an error always passes",
        "client 7 (300 earlier warnings were dropped)",
        "client 8",
        *(f"again {number}" for number in range(WARNINGS_MAX - 2)),
    ]
