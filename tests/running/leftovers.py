# SPDX-License-Identifier: Apache-2.0
"""One failure stays one.

Warnings are errors in our tests, also those of an object that Python collects unclosed. A test that fails may leave
such objects behind, and Python collects them in the middle of some later test. So, once a test has failed, a worker no
longer counts them. A run without a failure is as strict as before.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes a failure for the tests that follow in this process."""
    report = yield
    if report.failed:
        item.config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnraisableExceptionWarning")
    return report
