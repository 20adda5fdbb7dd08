# SPDX-License-Identifier: Apache-2.0
"""The harness notices what it is there for: every mutant of the core dies, and the core as it is does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import mutants, single_step
from tests.crash.mutants import MUTANTS, Mutant
from tests.crash.single_step import EXIT_UNTRACEABLE

# All changes of every scenario named here; a broken core may also hang, until the harness's own watchdog.
POINTS = {"copy": 1000, "kill": 40, "stop": 40, "pass": 40, "seal": 40, "duel": 40}
RUN_SECONDS_MAX = 300
PHASES = (0, 1)


def fails(program: Path, mode: str, scenario: str) -> bool:
    """Whether the harness finds anything wrong."""
    for phase in PHASES:
        result = single_step.run(program, mode, POINTS[mode], phase, [scenario], RUN_SECONDS_MAX)
        if result.returncode == EXIT_UNTRACEABLE:
            pytest.skip("processes may not be traced here (ptrace is forbidden)")
        if result.returncode != 0:
            print(result.stderr.splitlines()[0] if result.stderr else f"ended with {result.returncode}")
            return True
    return False


def check_is_killed(mutant: Mutant) -> None:
    program = mutants.build(mutant)
    for mode, scenario in mutant.killers:
        assert fails(program, mode, scenario), f"{mutant.name} survives {mode} {scenario}"


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.is_quick], ids=lambda mutant: mutant.name)
def test_a_mutant_is_killed(mutant: Mutant) -> None:
    check_is_killed(mutant)


@pytest.mark.exhaustive
@pytest.mark.timeout(2 * len(PHASES) * RUN_SECONDS_MAX)
@pytest.mark.parametrize("mutant", [m for m in MUTANTS if not m.is_quick], ids=lambda mutant: mutant.name)
def test_a_slow_mutant_is_killed(mutant: Mutant) -> None:
    check_is_killed(mutant)


@pytest.mark.exhaustive
@pytest.mark.timeout(len(MUTANTS) * RUN_SECONDS_MAX)
def test_the_core_itself_passes_every_run_that_kills_a_mutant() -> None:
    program = single_step.build()
    runs = sorted({killer for mutant in MUTANTS for killer in mutant.killers})
    assert [run for run in runs if fails(program, *run)] == []


def test_a_mutant_that_fits_nowhere_is_an_error() -> None:
    with pytest.raises(LookupError, match="0 times"):
        mutants.plant(Mutant("lost", "shm/lock.c", "no such text in this file", "", ()))
