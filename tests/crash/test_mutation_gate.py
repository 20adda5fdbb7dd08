# SPDX-License-Identifier: Apache-2.0
"""The harness detects every mutant of the core, and accepts the unchanged core."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.crash import mutants, single_step
from tests.crash.mutants import MUTANTS, TEST_VARIANTS, Mutant
from tests.crash.single_step import EVERY_POINT, EXIT_UNTRACEABLE
from tests.native import c_build
from tests.native.c_build import BuildError

QUICK_POINTS = 40
RUN_SECONDS_MAX = 600
ASLEEP_SECONDS = 240
"""The sound programs take seconds, also on a busy machine."""


def program_fails(program: Path, mode: str) -> bool:
    prefix = c_build.runner(TEST_VARIANTS[mode])
    if prefix is None:
        pytest.skip("this compiler has no working thread sanitizer")
    try:
        result = subprocess.run([*prefix, program], capture_output=True, text=True, timeout=ASLEEP_SECONDS)
    except subprocess.TimeoutExpired:
        return True  # a broken core may sleep forever; the programs' own watchdog counts processor time
    print(result.stderr)
    return result.returncode != 0


def fails(program: Path, mode: str, scenario: str, point_count: int) -> bool:
    """True if the run finds a fault. A broken core may also hang until the harness's own watchdog ends it."""
    if mode in TEST_VARIANTS:
        return program_fails(program, mode)
    result = single_step.run(program, mode, point_count, 0, [scenario], RUN_SECONDS_MAX)
    if result.returncode == EXIT_UNTRACEABLE:
        pytest.skip("processes may not be traced here (ptrace is forbidden)")
    print(result.stderr)
    return result.returncode != 0


def check_is_killed(mutant: Mutant, point_count: int) -> None:
    for mode, scenario in mutant.killers:
        program = mutants.build(mutant, mode, scenario)
        assert fails(program, mode, scenario, point_count), f"{mutant.name} survives {mode} {scenario}"


@pytest.mark.slow
@pytest.mark.timeout(c_build.BUILD_AND_RUN_SECONDS_MAX)
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.is_quick], ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed(mutant: Mutant) -> None:
    check_is_killed(mutant, QUICK_POINTS)


@pytest.mark.exhaustive
@pytest.mark.timeout(2 * RUN_SECONDS_MAX)
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if not m.is_quick], ids=lambda mutant: mutant.name)
def test_a_slow_mutant_is_killed(mutant: Mutant) -> None:
    check_is_killed(mutant, EVERY_POINT)


@pytest.mark.slow
@pytest.mark.timeout(c_build.BUILD_AND_RUN_SECONDS_MAX)
def test_the_core_itself_passes_the_runs_that_kill_mutants() -> None:
    """test_single_step runs every point, and test_native runs the C tests."""
    program = single_step.build()
    killers = {killer for mutant in MUTANTS if mutant.is_quick for killer in mutant.killers}
    runs = sorted(killer for killer in killers if killer[0] in single_step.MODES)
    assert [run for run in runs if fails(program, *run, QUICK_POINTS)] == []


def test_every_mutant_fits() -> None:
    """Mutants that only exhaustive runs kill fit, too."""
    for mutant in MUTANTS:
        mutants.plant(mutant)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if not m.is_quick], ids=lambda mutant: mutant.name)
def test_a_slow_mutant_compiles(mutant: Mutant) -> None:
    """Otherwise, a renamed function of the core would break it unnoticed."""
    mutants.check_compiles(mutant)


def test_a_mutant_that_does_not_compile_is_an_error() -> None:
    text = '#include "arena/lock.h"\n'
    with pytest.raises(BuildError, match="no_such_name"):
        mutants.check_compiles(
            Mutant("nameless", "arena/lock.c", text, f"{text}int none(void) {{ return no_such_name; }}\n", ())
        )


def test_a_mutant_that_fits_nowhere_is_an_error() -> None:
    with pytest.raises(LookupError, match="0 times"):
        mutants.plant(Mutant("lost", "arena/lock.c", "no such text in this file", "", ()))
