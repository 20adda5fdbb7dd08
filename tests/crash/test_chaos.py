# SPDX-License-Identifier: Apache-2.0
"""No record is lost when producers and senders are killed and stopped at random (see chaos.c)."""

from __future__ import annotations

import random
import subprocess

import pytest

from tests.crash.single_step import FOLDER
from tests.native import c_build
from tests.native.c_build import PLAIN

SOURCES = tuple(FOLDER / name for name in ("chaos.c", "chaos_ledger.c", "chaos_pump.c", "chaos_broker.c"))
SHORT_S = 1
PUMP_SHORT_S = 1
LONG_S = 600


def run(seconds: int, *options: str) -> None:
    program = c_build.build_tool("chaos", SOURCES, PLAIN, {})
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}")
    command = [str(program), str(seconds), str(seed), *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60)
    print(result.stdout)
    assert result.returncode == 0, f"seed {seed}\n{result.stdout}{result.stderr}"


@pytest.mark.timeout(c_build.BUILD_AND_RUN_SECONDS_MAX)
def test_a_short_run_loses_no_acknowledged_record() -> None:
    """Kill and stop dozens of processes."""
    run(SHORT_S)


@pytest.mark.timeout(c_build.BUILD_AND_RUN_SECONDS_MAX)
def test_a_short_run_of_the_pump_neither_loses_nor_repeats_records() -> None:
    """Senders are killed while requests are in flight, and the broker sometimes sends invalid responses."""
    run(PUMP_SHORT_S, "pump")


@pytest.mark.chaos
@pytest.mark.timeout(LONG_S + 120)
@pytest.mark.parametrize("options", [(), ("pump",)], ids=["no sink", "pump"])
def test_a_long_run_loses_no_acknowledged_record(options: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """Kill more than ten thousand processes."""
    with capsys.disabled():
        run(LONG_S, *options)
