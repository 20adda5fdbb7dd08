# SPDX-License-Identifier: Apache-2.0
"""Nothing grows and nothing drifts at full rate (`soak` measures it).

By hand: ``make test MARKERS=soak ARGS="tests/soak -s -n 0"``, for SHMACCUM_SOAK_SECONDS (1800).
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.soak.soak import SHARED_MEMORY, soak

SHORT_S = 4
LONG_S = float(os.environ.get("SHMACCUM_SOAK_SECONDS", "1800"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory, because the test measures processes, not a disk."""
    with tempfile.TemporaryDirectory(prefix="shmaccum-test-", dir=SHARED_MEMORY) as name:
        yield Path(name) / "log"


@pytest.mark.parametrize("is_pumped", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["log", "pump"])
def test_nothing_grows_and_nothing_drifts_for_a_moment(is_pumped: bool, arena_name: str, folder: Path) -> None:
    report = soak(arena_name, folder, SHORT_S, is_pumped=is_pumped)
    assert report.sent_count > 100_000


@pytest.mark.soak
@pytest.mark.timeout(3 * LONG_S + 120)
@pytest.mark.parametrize("is_pumped", [False, True], ids=["log", "pump"])
def test_nothing_grows_and_nothing_drifts_for_long(
    is_pumped: bool, arena_name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = soak(arena_name, folder, LONG_S, is_pumped=is_pumped)
    with capsys.disabled():
        print(f"\n{report}")
