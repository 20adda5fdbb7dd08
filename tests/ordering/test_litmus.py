# SPDX-License-Identifier: Apache-2.0
"""Run short programs for what loom cannot model: futexes, cells of which the kernel reads one half, and this machine.

``herd7`` (``opam install herdtools7``) runs the ``.litmus`` files with ARM's own model.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "litmus"
NATIVE = Path(__file__).parents[2] / "native"
FLAGS = ["-O2", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-sign-compare", f"-I{NATIVE}", "-pthread"]
PROGRAMS = sorted(HERE.glob("*.litmus"))

pytestmark = pytest.mark.slow


def run(tmp_path: Path, name: str, *arguments: str) -> list[int]:
    """Build a program, and return the numbers that it prints."""
    built = tmp_path / name
    subprocess.run([os.environ.get("CC", "cc"), *FLAGS, str(HERE / f"{name}.c"), "-o", str(built)], check=True)
    ran = subprocess.run([built, *arguments], check=True, capture_output=True, text=True, timeout=300)
    return [int(number) for number in ran.stdout.split()]


@pytest.mark.parametrize("barrier", ["fence", "cas"])
def test_one_side_of_a_pair_sees_the_other(tmp_path: Path, barrier: str) -> None:
    assert run(tmp_path, "store_load", barrier) == [0]


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="one core reorders nothing")
def test_without_a_barrier_this_machine_reorders_a_store_and_a_load(tmp_path: Path) -> None:
    """Without this outcome, the program could not find a missing barrier."""
    assert run(tmp_path, "store_load", "nothing")[0] > 0


def test_no_thread_sleeps_past_the_release_of_a_lock(tmp_path: Path) -> None:
    oversleeps, collisions, sleeps = run(tmp_path, "futex_lock")
    assert (oversleeps, collisions) == (0, 0)
    assert sleeps > 0


def test_no_thread_sleeps_past_a_result(tmp_path: Path) -> None:
    oversleeps, sleeps = run(tmp_path, "wake_up")
    assert oversleeps == 0
    assert sleeps > 0


@pytest.mark.skipif(shutil.which("herd7") is None, reason="herd7 is missing: opam install herdtools7")
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_the_model_of_arm_agrees(program: Path) -> None:
    """A program without the barrier shows the outcome that the barrier forbids."""
    ran = subprocess.run(["herd7", str(program)], check=True, capture_output=True, text=True, timeout=60)
    expected = "Sometimes" if program.stem.endswith("_without_barrier") else "Never"
    assert f"Observation {program.stem} {expected}" in ran.stdout
