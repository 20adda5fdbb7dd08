# SPDX-License-Identifier: Apache-2.0
"""The k-th system call fails: nothing crashes, hangs, leaks or claims what is not so (`operations`, `inject`).

Some calls with some of the errors here, by a printed seed; ``-m exhaustive``: every call with every error.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from setup import ROOT
from tests.faults.operations import OPERATIONS
from tests.native import c_build
from tests.support.seeds import new_seed

ERRORS = "ENOSPC,EINTR,EIO,EAGAIN,ENOMEM,SHORT"
SOURCE = ROOT / "tests" / "faults" / "failing_calls.c"
HANG_SECONDS = 600
"""For a busy machine; the limit of the test ends a hang sooner on a quiet one."""
LONG_SECONDS = 1800


def inject(operation: str, seconds: int, *arguments: str) -> dict[str, Any]:
    """The line of `inject.py`; AssertionError with its traceback where it failed."""
    environment = {**os.environ, "LD_PRELOAD": str(c_build.build_preloaded(SOURCE))}
    command = [sys.executable, "-m", "tests.faults.inject", operation, ERRORS, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=seconds)
    assert ended.returncode == 0, f"{ended.returncode}\n{ended.stderr}"
    facts: dict[str, Any] = json.loads(ended.stdout)
    return facts


@pytest.mark.parametrize("operation", OPERATIONS)
def test_some_calls_fail_and_nothing_is_lost_or_left(operation: str) -> None:
    seed = new_seed()
    assert inject(operation, HANG_SECONDS, "--some", str(seed))["calls"] > 0


@pytest.mark.exhaustive
@pytest.mark.timeout(LONG_SECONDS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_call_fails_with_every_error(operation: str, capsys: pytest.CaptureFixture[str]) -> None:
    facts = inject(operation, LONG_SECONDS)
    assert facts["faults"] >= facts["calls"]
    with capsys.disabled():
        print(f"{operation}: {facts}")
