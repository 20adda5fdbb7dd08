# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.harness.packages`` installs the peers' Python packages, the extra ``bench``.

If one cannot be installed, the others are still installed. pip's reason is stored, and shown wherever the peer is
missing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from bench.harness.question import UnavailableError
from setup import ROOT

REASONS = ROOT / "build" / "bench" / "not-installed.json"
REASON_SIZE_MAX = 200

Install = Callable[[Sequence[str]], str | None]
"""Install requirements. Return the reason of a failure, or None."""


def load(module: str, package: str) -> Any:
    """Import the module of a peer.

    Raises:
        UnavailableError: it is not installed. The message has pip's reason, if an installation failed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        reason = reasons().get(package, "run `python -m bench.harness.packages`")
        raise UnavailableError(f"{package} is not installed ({error}): {reason}") from error


def installed_version(package: str) -> str:
    """Return the name of a package with its version."""
    return f"{package} {importlib.metadata.version(package)}"


def reasons() -> dict[str, str]:
    """Return pip's reason for each package that could not be installed."""
    found: dict[str, str] = json.loads(REASONS.read_text(encoding="utf-8")) if REASONS.exists() else {}
    return found


def requirements(extra: str = "bench") -> list[str]:
    """Return the requirements of an extra of the installed project."""
    lines = importlib.metadata.requires("shmaccum") or []
    marker = re.compile(rf"""; *extra *== *["']{extra}["']$""")
    return [marker.sub("", line).strip() for line in lines if marker.search(line)]


def install(wanted: Sequence[str], install_with: Install) -> dict[str, str]:
    """Install all packages at once, or one by one if that fails. Return the reason of each failure by package."""
    if install_with(wanted) is None:
        return {}
    failed = {requirement: install_with([requirement]) for requirement in wanted}
    return {_package(requirement): reason for requirement, reason in failed.items() if reason is not None}


def _package(requirement: str) -> str:
    return re.split(r"[\s<>=!~;\[(]", requirement, maxsplit=1)[0]


def _pip(wanted: Sequence[str]) -> str | None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", *wanted]
    done = subprocess.run(command, capture_output=True, text=True)
    errors = [line for line in done.stderr.splitlines() if "error" in line.lower()] or ["pip failed"]
    return None if done.returncode == 0 else errors[0].strip()[:REASON_SIZE_MAX]


def main() -> None:
    """Install the packages, and print the failures."""
    found = install(requirements(), _pip)
    REASONS.parent.mkdir(parents=True, exist_ok=True)
    REASONS.write_text(json.dumps(found, indent=2), encoding="utf-8")
    for package, reason in found.items():
        print(f"without {package}: {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
