# SPDX-License-Identifier: Apache-2.0
"""Programs that run as another user, for tests that only root can run.

Another user may be unable to read the checkout, the virtual environment, and the folder of temporary files, because
each may be below a folder of mode 0700. So such a program runs from copies of the packages, in a folder that every user
can read.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.processes import WATCHDOG_S

ROOT = Path(__file__).resolve().parents[2]
SOME_USER, SOME_GROUP = 23450, 23459
"""User and group numbers that nothing else uses."""
PUBLIC_PLACES = ("/usr/local/bin", "/usr/bin", "/bin")

needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root, and setpriv of util-linux"
)


@dataclass(frozen=True)
class OtherUsers:
    """The means to run Python as another user.

    Attributes:
        folder: a folder that every user can read, with the copies of the packages.
        python: an interpreter that every user can run, and that has the packages.
    """

    folder: Path
    python: str

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment for `command`."""
        return {**os.environ, "PYTHONPATH": str(self.folder / "packages"), "HOME": str(self.folder)}

    def command(self, user: int, groups: tuple[int, ...], *arguments: str) -> list[str]:
        """Return the command that runs Python as systemd does with User= and Group=. The first group is the user's
        own.
        """
        return [*_become(user, groups), self.python, *arguments]

    def run(
        self, user: int, groups: tuple[int, ...], *arguments: str, umask: int = 0o077
    ) -> subprocess.CompletedProcess[str]:
        """Run Python as the user and capture its output."""
        return subprocess.run(
            self.command(user, groups, *arguments),
            env=self.environment,
            cwd=self.folder,
            umask=umask,
            capture_output=True,
            text=True,
            timeout=WATCHDOG_S,
        )

    def output(self, user: int, groups: tuple[int, ...], program: str, *arguments: str) -> str:
        """Return the standard output of a program, which must succeed."""
        ended = self.run(user, groups, "-c", program, *arguments)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.strip()

    def new_folder(self) -> Path:
        """Return a new folder that every user can read and only root can write."""
        return _readable_folder(self.folder)


def _become(user: int, groups: tuple[int, ...]) -> list[str]:
    own, *others = groups
    rest = f"--groups={','.join(map(str, others))}" if others else "--clear-groups"
    return ["setpriv", f"--reuid={user}", f"--regid={own}", rest]


def _can(*command: str, **environment: str) -> bool:
    """Return True if the command succeeds for a user without any rights."""
    tried = [*_become(SOME_USER, (SOME_GROUP,)), *command]
    return subprocess.run(tried, env={**os.environ, **environment}, cwd="/", capture_output=True).returncode == 0


def _readable_folder(place: Path | str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="shmaccum-others-", dir=place))
    folder.chmod(0o755)
    return folder


def _copy(source: Path, target: Path) -> None:
    """Copy a file without its mode, because a checkout made with umask 077 has files that only its owner can read."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def _copy_packages(target: Path) -> None:
    """Copy shmaccum with its extension, and the packages that it needs."""
    former = os.umask(0o022)
    try:
        for source in (ROOT / "shmaccum").rglob("*"):
            if source.is_file() and "__pycache__" not in source.parts:
                _copy(source, target / source.relative_to(ROOT))
        for name in _needed_packages():
            for each in importlib.metadata.files(name) or []:
                if ".." not in each.parts and "__pycache__" not in each.parts:
                    _copy(Path(str(each.locate())), target / each)
    finally:
        os.umask(former)


def _needed_packages() -> list[str]:
    """Return the names of the packages that shmaccum needs on this Python without extras."""
    needed = map(Requirement, importlib.metadata.requires("shmaccum") or [])
    return [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]


@pytest.fixture(scope="session")
def other_users() -> Iterator[OtherUsers]:
    """Return the means to run Python as another user. If this is impossible with this version of Python, skip the
    test.
    """
    places = dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp"))
    place = next((place for place in places if _can("test", "-x", place)), None)
    if place is None:
        pytest.skip(f"other users can look into none of {', '.join(places)}")
    folder = _readable_folder(place)
    try:
        _copy_packages(folder / "packages")
        yield OtherUsers(folder, _interpreter(folder / "packages"))
    finally:
        shutil.rmtree(folder)


def _interpreter(packages: Path) -> str:
    """Return this interpreter, or one of the same version that every user can run."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    interpreters = [os.path.realpath(sys.executable), *(f"{place}/{version}" for place in PUBLIC_PLACES)]
    for python in interpreters:
        if _can(python, "-c", "import shmaccum._native, numpy", PYTHONPATH=str(packages)):
            return python
    pytest.skip(f"other users can run none of {', '.join(interpreters)} with the packages of the tests")
