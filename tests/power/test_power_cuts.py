# SPDX-License-Identifier: Apache-2.0
"""A power cut undoes no promise, on any path of a record. ``python -m tests.power`` runs more cuts."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.power.__main__ import CANNOT
from tests.power.disk import ROOT

CUTS = 2
SHORT = (
    "arena-log:sync/unset",
    "arena-log:interval/unset",
    "arena-log:sync/none",
    "memory-log",
    "overflow:sync",
    "dead-letters:sync",
    "transactions:sync",
    "served-transactions",
    "shipper",
    "local-groups:batch",
    "served-groups:batch",
    "staging:batch",
)
"""The paths of the short form. The command runs all paths."""


@pytest.mark.slow
@pytest.mark.parametrize("path", SHORT)
def test_a_power_cut_undoes_no_promise(path: str, seeded: Callable[[], random.Random]) -> None:
    seed = seeded().getrandbits(32)
    command = [sys.executable, "-m", "tests.power", "--paths", path, "--cuts", str(CUTS), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    print(done.stdout)
    if done.returncode == CANNOT:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
