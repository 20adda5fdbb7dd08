# SPDX-License-Identifier: Apache-2.0
"""Hostile arena files under ASan and UBSan: a few seconds; with ``-m fuzz`` as long as SHMACCUM_FUZZ_SECONDS says."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.native import c_build
from tests.native.c_build import ASAN

SOURCE = Path(__file__).with_name("arena_fuzz.c")
SHORT_SECONDS = 3
LONG_SECONDS = int(os.environ.get("SHMACCUM_FUZZ_SECONDS", "600"))
BUILD_SECONDS_MAX = 300


def fuzz(seconds: int, seed: int) -> int:
    """How many inputs were tried; AssertionError with the input's number when one is not survived."""
    prefix = c_build.runner(ASAN)
    if prefix is None:
        pytest.skip("this compiler has no working runtime for AddressSanitizer")
    program = c_build.build_tool("arena_fuzz", [SOURCE], ASAN, {})
    ended = subprocess.run([*prefix, str(program), str(seconds), str(seed)], capture_output=True, text=True)
    assert ended.returncode == 0, f"seed {seed}\n{ended.stdout}{ended.stderr}"
    return int(ended.stdout.split()[0])


@pytest.mark.timeout(SHORT_SECONDS + BUILD_SECONDS_MAX)
def test_some_hostile_arenas_harm_nobody() -> None:
    seed = random.SystemRandom().getrandbits(40)
    count = fuzz(SHORT_SECONDS, seed)
    print(f"seed {seed}: {count} inputs")
    assert count > 0


@pytest.mark.fuzz
@pytest.mark.timeout(LONG_SECONDS + BUILD_SECONDS_MAX)
def test_many_hostile_arenas_harm_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    seed = random.SystemRandom().getrandbits(40)
    count = fuzz(LONG_SECONDS, seed)
    with capsys.disabled():
        print(f"seed {seed}: {count:,} inputs in {LONG_SECONDS} s")


@pytest.mark.timeout(BUILD_SECONDS_MAX)
def test_an_input_is_repeated_by_its_number() -> None:
    assert fuzz(0, 17) == 1
