# SPDX-License-Identifier: Apache-2.0
"""``python -m bench.harness.debian`` fetches peers that are packages of Debian into a folder of the build.

They are extracted and not installed, because an installed syslog daemon would be started and would replace the daemon
of the host. The command does not need root.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.harness.question import UnavailableError
from setup import ROOT

FOLDER = ROOT / "build" / "bench" / "debian"
ADVICE = "run `python -m bench.harness.debian` on Debian"
PACKAGES = {
    "rsyslogd": ("rsyslog", "rsyslog-kafka"),
    "syslog-ng": ("syslog-ng-core", "syslog-ng-mod-rdkafka"),
}
"""Program -> the packages that contain it and its output to Kafka."""
INSTALLED = re.compile(r"^Inst (\S+)", re.MULTILINE)
VERSION = re.compile(r"\d+\.[\d.]+")


@dataclass(frozen=True)
class Program:
    """An extracted program.

    Attributes:
        path: the path of the program.
        modules: the folder of its modules.
        environment: the variables that it needs.
    """

    path: Path
    modules: Path
    environment: dict[str, str]

    def command(self) -> list[str]:
        """Return the beginning of a command line."""
        return ["env", *(f"{name}={value}" for name, value in self.environment.items()), str(self.path)]

    def version(self) -> str:
        """Return the name and version, as the program prints them."""
        option = "-v" if self.path.name == "rsyslogd" else "-V"
        done = subprocess.run([*self.command(), option], capture_output=True, text=True, check=True)
        match = VERSION.search(done.stdout)
        return f"{self.path.name} {match[0] if match else '?'}"


def find(name: str) -> Program:
    """Return an extracted program.

    Raises:
        UnavailableError: it was not fetched.
    """
    path = FOLDER / "usr" / "sbin" / name
    modules = [*FOLDER.glob("usr/lib/*/rsyslog" if name == "rsyslogd" else "usr/lib/syslog-ng/*.*")]
    if not path.exists() or not modules:
        raise UnavailableError(f"{name} is missing: {ADVICE}")
    libraries = [*FOLDER.glob("usr/lib/*-linux-gnu*"), *FOLDER.glob("lib/*-linux-gnu*"), FOLDER / "usr/lib/syslog-ng"]
    return Program(path, modules[0], {"LD_LIBRARY_PATH": ":".join(map(str, libraries))})


def fetch() -> None:
    """Fetch and extract the packages, with those dependencies that the host does not have."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as downloads:
        for packages in PACKAGES.values():
            plan = _run("apt-get", "--simulate", "--no-install-recommends", "install", *packages)
            wanted = dict.fromkeys((*packages, *INSTALLED.findall(plan)))
            _run("apt-get", "download", "-qq", *wanted, folder=downloads)
        for archive in sorted(Path(downloads).glob("*.deb")):
            _run("dpkg-deb", "--extract", str(archive), str(FOLDER))


def _run(*command: str, folder: str | None = None) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def main() -> None:
    """Fetch the programs unless they are there, and print the reason of a failure."""
    try:
        if not all((FOLDER / "usr" / "sbin" / name).exists() for name in PACKAGES):
            fetch()
    except (OSError, subprocess.CalledProcessError) as error:
        shutil.rmtree(FOLDER, ignore_errors=True)
        reason = getattr(error, "stderr", None) or str(error)
        print(f"without {' and '.join(PACKAGES)}: {reason.strip()}", file=sys.stderr)


if __name__ == "__main__":
    main()
