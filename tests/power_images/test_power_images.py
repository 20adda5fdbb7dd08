# SPDX-License-Identifier: Apache-2.0
"""No image of a power cut breaks a promise. ``python -m tests.power_images`` opens more images."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.power_images.kept_syncs import KEPT, NOT_REACHED
from tests.power_images.recording import ROOT
from tests.power_images.removal import are_listed
from tests.power_images.scenarios import SCENARIOS
from tests.power_images.sites import calls_in_package, ending_of

IMAGES = 40
QUICK = "users"
ROOM_S = 900


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.power_images", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def mark_of(scenario: str) -> list[pytest.MarkDecorator]:
    """Scenarios with an overflow or dead letters take minutes."""
    if scenario == QUICK:
        return []
    is_long = scenario.startswith(("overflow", "dead"))
    return [pytest.mark.exhaustive if is_long else pytest.mark.slow]


@pytest.mark.timeout(ROOM_S)
@pytest.mark.parametrize("scenario", [pytest.param(name, marks=mark_of(name)) for name in SCENARIOS])
def test_no_image_breaks_a_promise(scenario: str, seeded: Callable[[], random.Random]) -> None:
    seed = seeded().getrandbits(32)
    done = run("--scenarios", scenario, "--images", str(IMAGES), "--seed", str(seed))
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def test_no_image_of_a_short_scenario_breaks_a_promise() -> None:
    done = run("--scenarios", QUICK, "--exhaustive")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def test_an_image_shows_the_lack_of_a_sync(seeded: Callable[[], random.Random]) -> None:
    done = run("--scenarios", QUICK, "--without-syncs", "--seed", str(seeded().getrandbits(32)))
    assert "2 sites of syncs: 2 shown, 0 kept, 0 missed" in done.stdout, f"{done.stdout}{done.stderr}"


@pytest.mark.exhaustive
@pytest.mark.timeout(4 * 3600)
def test_each_sync_is_shown_or_kept() -> None:
    done = run("--without-syncs", "--seed", "1")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


def test_a_listed_sync_that_an_image_shows_to_be_needed_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    calls = [call for call in calls_in_package() if call not in KEPT]
    listed = [re.sub("(?= < )", ": its line", key, count=1) for key in KEPT]
    assert are_listed([*calls, *listed], calls, is_whole=True)
    assert not are_listed([*calls, *listed], [*calls, listed[0]], is_whole=True)
    assert f"SHOWN, and listed: {next(iter(KEPT))}" in capsys.readouterr().out


def test_each_listed_sync_is_in_the_sources() -> None:
    calls = set(calls_in_package())
    core = {line.strip() for path in (ROOT / "native").rglob("*.c") for line in path.read_text().splitlines()}
    listed = [ending_of(name) for name in [*KEPT, *NOT_REACHED]]
    assert [name for name in listed if name not in calls and name.removeprefix("native: ") not in core] == []
