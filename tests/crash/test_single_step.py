# SPDX-License-Identifier: Apache-2.0
"""A process that is killed or stopped at any instruction harms no other process (see harness.h)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash import single_step
from tests.crash.single_step import EVERY_POINT, EXIT_UNTRACEABLE, MODES
from tests.native import c_build

SHORT_POINTS = {"copy": 2, "kill": 1, "stop": 1, "pass": 2, "seal": 2, "close": 2, "commit": 2, "renew": 2, "duel": 2}
MIDDLE_TIMES = 4
APPENDS_INSIDE = {"append-inside", "append-joined", "append-chain-joined"}
"""A short run has these scenarios only in modes that end a transaction. In the other modes, they do the same as other
appends.
"""
SHORT_SECONDS_MAX = 600  # a run takes a few seconds on an idle machine
EXHAUSTIVE_SECONDS_MAX = 3600


@pytest.fixture(scope="module")
def program() -> Path:
    return single_step.build()


def run_or_skip(program: Path, mode: str, point_count: int, phase: int, scenarios: list[str], timeout_s: int) -> None:
    result = single_step.run(program, mode, point_count, phase, scenarios, timeout_s)
    if result.returncode == EXIT_UNTRACEABLE:
        pytest.skip("processes may not be traced here (ptrace is forbidden)")
    print(result.stdout)
    assert result.returncode == 0, f"phase {phase}\n{result.stdout}{result.stderr}"


@pytest.mark.parametrize("times", [1, pytest.param(MIDDLE_TIMES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("mode", MODES)
def test_some_instructions_of_many_operations(program: Path, mode: str, times: int) -> None:
    phase = random.SystemRandom().randrange(1000)
    print(f"phase {phase}")
    left_out = set() if mode in {"commit", "renew"} else APPENDS_INSIDE
    names = [name for name in single_step.scenario_names(mode) if name not in left_out]
    chosen = names[phase % 5 :: 5] if times == 1 else names  # a short run has only every fifth scenario
    run_or_skip(program, mode, SHORT_POINTS[mode] * times, phase, chosen, SHORT_SECONDS_MAX)


@pytest.mark.exhaustive
@pytest.mark.timeout(EXHAUSTIVE_SECONDS_MAX)
@pytest.mark.parametrize(
    ("mode", "scenario"), [(mode, scenario) for mode in MODES for scenario in single_step.scenario_names(mode)]
)
def test_every_instruction(program: Path, mode: str, scenario: str, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        run_or_skip(program, mode, EVERY_POINT, 0, [scenario], EXHAUSTIVE_SECONDS_MAX)


@pytest.mark.timeout(c_build.BUILD_AND_RUN_SECONDS_MAX)
def test_a_scenario_that_does_not_exist_is_an_error(program: Path) -> None:
    assert single_step.run(program, "copy", 1, 0, ["no-such-scenario"], timeout_s=10).returncode == 2
