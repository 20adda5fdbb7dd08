# SPDX-License-Identifier: Apache-2.0
"""The two builds: this one, and one that has features which this one does not know (``SHMACCUM_LATER_BUILD``).

The later build is a folder of its own, with the same Python modules and an extension that was compiled with the switch.
The folder is named by a hash of the sources, so that it is built once; a lock file keeps two test workers apart.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from setup import ROOT, native_headers, native_sources

CACHE = ROOT / "build" / "skew"
LATER_SOURCE = "tests/skew/later_build.c"
SWITCH = "SHMACCUM_LATER_BUILD"
FEATURES = "SHMACCUM_LATER_FEATURES"
"""A variable of the environment: the kinds of features that a new arena of the later build has beside its region."""


class Build(NamedTuple):
    """A build and the folder that has its package."""

    name: str
    folder: Path

    def environment(self, **others: str) -> dict[str, str]:
        """For a process that runs this build: tests come from the checkout, the package from the working folder."""
        return {**os.environ, "PYTHONPATH": str(ROOT), **others}

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs ``shmaccum`` of this build."""
        return self.python("-m", "shmaccum", *words, **environment)

    def python(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs Python, which finds this build."""
        return subprocess.run(
            [sys.executable, *words],
            cwd=self.folder,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            check=False,
        )


THIS = Build("this build", ROOT)


def later_build() -> Build:
    """The later build, which is compiled if its sources have changed."""
    folder = CACHE / _hash_of_sources()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "shmaccum").exists():
            _compile(folder)
    return Build("the later build", folder)


def _hash_of_sources() -> str:
    found = hashlib.sha256(sys.version.encode())
    modules = sorted(path for pattern in ("*.py", "*.pyi") for path in (ROOT / "shmaccum").rglob(pattern))
    names = [*native_sources(), *native_headers(), LATER_SOURCE, "setup.py"]
    for path in [*(ROOT / name for name in names), *modules]:
        found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def _compile(folder: Path) -> None:
    """Former ones are removed: nobody looks for them any more."""
    for former in CACHE.iterdir():
        if former.is_dir():
            shutil.rmtree(former)
    unfinished = CACHE / "unfinished"
    command = [sys.executable, "setup.py", "-q", "build", "--build-base", str(CACHE / "objects")]
    ended = subprocess.run(
        [*command, "--build-lib", str(unfinished)],
        cwd=ROOT,
        env={**os.environ, SWITCH: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    unfinished.rename(folder)


def build_of(pid: int, builds: tuple[Build, ...]) -> Build | None:
    """The build whose extension the process has mapped; None: of no build, or it has ended."""
    try:
        mapped = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return next((build for build in builds if f"{build.folder}/shmaccum/_native" in mapped), None)
