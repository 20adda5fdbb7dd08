# SPDX-License-Identifier: Apache-2.0
"""The plugin of pytest in each run: writes outcomes and seconds of tests, and gives recorded lines their test."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutants.recording import switch_to


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Gives the lines of a test its name."""
    switch_to(item.nodeid)
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Appends the seconds and the outcome of each phase of a test."""
    with Path(os.environ["SHMACCUM_PHASES"]).open("a") as phases:
        print(json.dumps([report.nodeid, report.outcome, report.duration]), file=phases)
