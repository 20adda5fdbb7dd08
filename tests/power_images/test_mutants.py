# SPDX-License-Identifier: Apache-2.0
"""Each mutant that omits or moves a sync makes its test fail."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.power_images.mutants import MUTANTS, PROMISES, Mutant, planted
from tests.power_images.recording import ROOT

FAILED = 1
"""The exit code of pytest when a test has failed."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_killed(name: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "tests.power_images.planted", "-m", ""]
    done = subprocess.run(
        [*command, f"{PROMISES}::{MUTANTS[name].killer}"],
        cwd=ROOT,
        env={**os.environ, "POWER_MUTANT": name},
        capture_output=True,
        text=True,
        check=False,
    )
    if "skipped" in done.stdout and "failed" not in done.stdout:
        pytest.skip("the test that notices it is skipped here")
    assert done.returncode == FAILED, f"{name} survives: {done.stdout}{done.stderr}"
    assert "error" not in done.stdout.splitlines()[-1], f"{name} breaks the module: {done.stdout}"


def test_every_mutant_fits_and_its_test_is_there() -> None:
    tests = (ROOT / PROMISES).read_text(encoding="utf-8")
    for mutant in MUTANTS.values():
        compile(planted(mutant), mutant.path, "exec")
        assert f"def {mutant.killer}(" in tests


def test_a_mutant_that_fits_nowhere_is_an_error() -> None:
    with pytest.raises(LookupError, match="0 times"):
        planted(Mutant("log/files/segment.py", "no such text in this file", "", ""))
