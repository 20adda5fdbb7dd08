# SPDX-License-Identifier: Apache-2.0
"""The two builds: this one, and one with features unknown to this one (``SHMACCUM_LATER_BUILD``).

Each build has its own virtual environment. That of this build is the one of the tests. The other one is created here:
pip installs a copy of the sources into it, and compiles their extension with the switch. It uses the packages of the
first environment. Its folder is named by a hash of the sources, so it is created only once. A lock file prevents two
test workers from creating it at the same time.

::

    build/skew/HASH/venv   python and shmaccum of the later build
                    work   the working folder of its processes: links to the tests, and no shmaccum
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import NamedTuple

from setup import ROOT, native_headers, native_sources

CACHE = ROOT / "build" / "skew"
LATER_SOURCE = "tests/skew/later_build.c"
COPIED = ("LICENSE", "MANIFEST.in", "README.rst", "native", "pyproject.toml", "setup.py", "shmaccum", LATER_SOURCE)
LINKED = ("setup.py", "tests")
"""Files that processes of the tests import or read, besides packages."""
SWITCH = "SHMACCUM_LATER_BUILD"
FEATURES = "SHMACCUM_LATER_FEATURES"
"""The environment variable with the kinds of features that a new arena of the later build has besides its region."""


class Build(NamedTuple):
    """A build.

    Attributes:
        name: the name in reports.
        python: the interpreter of its virtual environment.
        package: the folder of its modules.
        folder: the working folder of its processes, from which they import the tests.
    """

    name: str
    python: str
    package: Path
    folder: Path

    def environment(self, **others: str) -> dict[str, str]:
        """Return the environment of a process that runs this build."""
        return {**os.environ, "PYTHONPATH": str(self.folder), **others}

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run ``shmaccum`` of this build."""
        return self.run_python("-m", "shmaccum", *words, **environment)

    def run_python(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run Python with this build."""
        return subprocess.run(
            [self.python, *words],
            cwd=self.folder,
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            check=False,
        )


THIS = Build("this build", sys.executable, ROOT / "shmaccum", ROOT)


def later_build() -> Build:
    """Return the later build. If its sources have changed, build it again."""
    folder = CACHE / _hash_of_sources()
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "work").exists():
            _make(folder)
    return Build("the later build", str(_python(folder)), _packages(folder) / "shmaccum", folder / "work")


def _python(folder: Path) -> Path:
    return folder / "venv" / "bin" / "python"


def _packages(folder: Path) -> Path:
    """Return the package folder of the new environment."""
    base = str(folder / "venv")
    return Path(sysconfig.get_path("purelib", "venv", {"base": base, "platbase": base}))


def _hash_of_sources() -> str:
    found = hashlib.sha256(sys.version.encode())
    modules = sorted(path for pattern in ("*.py", "*.pyi") for path in (ROOT / "shmaccum").rglob(pattern))
    names = [*native_sources(), *native_headers(), LATER_SOURCE, "setup.py", "pyproject.toml"]
    for path in [*(ROOT / name for name in names), *modules]:
        found.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


def _make(folder: Path) -> None:
    """Make the build, and remove earlier ones, which no test uses any longer."""
    for former in CACHE.iterdir():
        if former.is_dir():
            shutil.rmtree(former)
    sources = CACHE / "sources"
    for name in COPIED:
        _copy(ROOT / name, sources / name)
    venv.create(folder / "venv", with_pip=False)
    (_packages(folder) / "of_tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _install(sources, folder)
    (folder / "unfinished").mkdir()
    for name in LINKED:
        (folder / "unfinished" / name).symlink_to(ROOT / name)
    (folder / "unfinished").rename(folder / "work")
    shutil.rmtree(sources)


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    else:
        shutil.copy(source, target)


def _install(sources: Path, folder: Path) -> None:
    """Run the pip of the tests. It needs no network, because their environment has all packages that the build
    needs.
    """
    command = [sys.executable, "-m", "pip", "--python", str(_python(folder)), "install", "--quiet", "--no-index"]
    ended = subprocess.run(
        [*command, "--no-deps", "--no-build-isolation", "--disable-pip-version-check", str(sources)],
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {SWITCH: "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def build_of(pid: int, builds: tuple[Build, ...]) -> Build | None:
    """Return the build whose extension the process has mapped, or None if there is none or the process has ended."""
    try:
        mapped = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return next((build for build in builds if f"{build.package}/_native" in mapped), None)
