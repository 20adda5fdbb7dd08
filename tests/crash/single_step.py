# SPDX-License-Identifier: Apache-2.0
"""Build and run the single-step harness, which kills or stops processes at chosen instructions."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from setup import ROOT
from tests.native import c_build
from tests.native.c_build import PLAIN, Variant

FOLDER = ROOT / "tests" / "crash"
HARNESS_FILES = ("single_step.c", "path.c", "scenarios.c", "harness.c", "ledger.c")
SINK_FILES = ("broker.c", "log_files.c", "arrived.c")
SOURCES = tuple(FOLDER / name for name in (*HARNESS_FILES, *SINK_FILES))
MODES = ("copy", "kill", "stop", "pass", "seal", "close", "commit", "renew", "duel")
EVERY_POINT = 0
EXIT_UNTRACEABLE = 77


def build(variant: Variant = PLAIN, stand_ins: Mapping[Path, Path] | None = None) -> Path:
    """Build the harness with the core. *stand_ins* maps files of the core to the files that replace them."""
    return c_build.build_tool("single_step", SOURCES, variant, stand_ins or {})


def scenario_names(mode: str) -> list[str]:
    """Return the scenarios that apply to this mode, by the same rules as single_step.c."""
    entries = re.findall(r'\.name = "([a-z-]+)"([^}]*)', (FOLDER / "scenarios.c").read_text(encoding="utf-8"))
    if mode in {"close", "duel"}:
        return [name for name, fields in entries if "has_rival" in fields]
    if mode in {"commit", "renew"}:
        return [name for name, fields in entries if "has_rival" in fields and "is_transactional" in fields]
    if mode in {"pass", "seal"}:
        return [name for name, fields in entries if "is_sender" not in fields and "is_attaching" not in fields]
    return [name for name, _ in entries]


def run(
    program: Path, mode: str, point_count: int, phase: int, scenarios: Sequence[str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run scenarios in one mode. If *scenarios* is empty, run all. If *point_count* is 0, test every point."""
    command = [str(program), mode, str(point_count), str(phase), *scenarios]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
