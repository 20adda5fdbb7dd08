# SPDX-License-Identifier: Apache-2.0
"""A run that has only so many minutes (``--minutes``) begins no test after them, and says so at its end.

A test that has begun runs to its end. A test that has not begun counts as skipped: the run fails by failures alone.
"""

from __future__ import annotations

import time

import pytest
from xdist.workermanage import WorkerController

REASON = "not begun, because the minutes of the run were over"
ENDS_AT = pytest.StashKey[float]()
"""The time of CLOCK_MONOTONIC at which the minutes are over; the workers of pytest-xdist have the controller's."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", type=float, help="begin no test after so many minutes")


def pytest_configure(config: pytest.Config) -> None:
    minutes: float | None = config.option.minutes
    ends_at = float("inf") if minutes is None else time.monotonic() + 60 * minutes
    config.stash[ENDS_AT] = getattr(config, "workerinput", {}).get("ends_at", ends_at)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput["ends_at"] = node.config.stash[ENDS_AT]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.config.stash[ENDS_AT]:
        pytest.skip(REASON)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    count = sum(REASON in str(report.longrepr) for report in terminalreporter.stats.get("skipped", ()))
    if count:
        minutes = terminalreporter.config.option.minutes
        terminalreporter.write_line(f"{count} tests were not begun: the run had {minutes:g} minutes.")
