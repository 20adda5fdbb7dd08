# SPDX-License-Identifier: Apache-2.0
"""If the k-th system call fails, nothing crashes, hangs, leaks or reports a false result (`operations`, `inject`).

By default, some calls get some of the errors, by a printed seed. With ``-m exhaustive``, every call gets every error.
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
"""The limit for a busy machine. On a quiet one, the test's own limit ends a hang sooner."""
LONG_SECONDS = 1800


def inject(operation: str, seconds: int, *arguments: str) -> dict[str, Any]:
    """Return the line of `inject.py`. If it failed, raise AssertionError with its traceback."""
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
