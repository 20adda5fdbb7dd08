# SPDX-License-Identifier: Apache-2.0
"""Each mutant of the core fails its runs, and the unchanged core passes them."""

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
TEST_SECONDS_MAX = 240
"""The limit for a C test. The tests of the unchanged core take a few seconds, even on a busy machine."""


def program_fails(program: Path, mode: str) -> bool:
    prefix = c_build.runner(TEST_VARIANTS[mode])
    if prefix is None:
        pytest.skip("this compiler has no working thread sanitizer")
    try:
        result = subprocess.run([*prefix, program], capture_output=True, text=True, timeout=TEST_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return True  # a mutant may sleep forever, and the program's own watchdog counts only CPU time
    print(result.stderr)
    return result.returncode != 0


def fails(program: Path, mode: str, scenario: str, point_count: int) -> bool:
    """Return True if the run fails. A mutant may also hang until the harness's watchdog ends it."""
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
    """Only the quick runs: test_single_step runs every point, and test_native runs the C tests."""
    program = single_step.build()
    killers = {killer for mutant in MUTANTS if mutant.is_quick for killer in mutant.killers}
    runs = sorted(killer for killer in killers if killer[0] in single_step.MODES)
    assert [run for run in runs if fails(program, *run, QUICK_POINTS)] == []


def test_every_mutant_fits() -> None:
    """This includes the mutants that only exhaustive runs kill."""
    for mutant in MUTANTS:
        mutants.plant(mutant)


@pytest.mark.slow
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if not m.is_quick], ids=lambda mutant: mutant.name)
def test_a_slow_mutant_compiles(mutant: Mutant) -> None:
    """If a function of the core is renamed, this test fails, although the mutant runs only in exhaustive runs."""
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
