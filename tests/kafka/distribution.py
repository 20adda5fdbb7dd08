# SPDX-License-Identifier: Apache-2.0
"""Apache Kafka's jars, which Maven fetches once into a user cache.

``make kafka`` fetches them, and ``make test`` does before it starts pytest. A test fetches nothing, because a download
would count against its time limit. If there are no jars, ``require()`` skips the test.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

POM = Path(__file__).with_name("pom.xml")
TEST_JVM = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""The simple collector and compiler start fastest, and each JVM of a test is short-lived or idle."""
KAFKAS_JVM = (
    "-server",
    "-Xmx1G",
    "-Xms1G",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
"""The options with which kafka-server-start.sh and kafka-run-class.sh start a JVM."""
FETCH_TIMEOUT_S = 900
TOOL_TIMEOUT_S = 600


class DistributionMissingError(RuntimeError):
    """Kafka is not installed. The message gives the reason and a remedy."""


def version() -> str:
    """Kafka's version in the pom."""
    match = re.search(r"<kafka\.version>(.+?)</kafka\.version>", POM.read_text())
    assert match is not None
    return match[1]


def cache() -> Path:
    """The user's folder for fetched files."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "shmaccum"


def directory() -> Path:
    """The path of the jars, whether it exists or not."""
    return cache() / "kafka" / version()


def find() -> Path:
    """The directory of the fetched jars.

    Raises:
        DistributionMissingError: there is no Java, or no jars.
    """
    if shutil.which("java") is None:
        raise DistributionMissingError("Apache Kafka needs `java` (17 or newer): install a JRE to run this")
    if not directory().is_dir():
        raise DistributionMissingError(f"Apache Kafka is not in {directory()}: install Maven and run `make kafka`")
    return directory()


def ensure() -> Path:
    """Fetch the jars if necessary, and return their directory.

    Raises:
        DistributionMissingError: there is no Java or no Maven, or Maven failed.
    """
    with contextlib.suppress(DistributionMissingError):
        return find()
    fetch(directory(), POM, "Apache Kafka")
    return directory()


def fetch(jars: Path, pom: Path, what: str, *properties: str) -> None:
    """Fetches the jars of a pom into a directory, unless it has them.

    Raises:
        DistributionMissingError: there is no Java or no Maven, or Maven failed.
    """
    for program, package in (("java", "a JRE, 17 or newer"), ("mvn", "Maven")):
        if shutil.which(program) is None:
            raise DistributionMissingError(f"{what} needs `{program}`: install {package}")
    with _fetch_lock(jars.parent):
        if not jars.is_dir():
            _copy(jars, pom, what, properties)


@contextlib.contextmanager
def _fetch_lock(parent: Path) -> Iterator[None]:
    """Make other processes wait while one process fetches."""
    parent.mkdir(parents=True, exist_ok=True)
    with open(parent / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _copy(jars: Path, pom: Path, what: str, properties: Sequence[str]) -> None:
    """Fetch into a temporary directory and rename it, so that the final one is always complete."""
    unfinished = jars.with_suffix(".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    command = ["mvn", "--quiet", "--batch-mode", "--file", str(pom), "dependency:copy-dependencies"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={unfinished}", *properties]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise DistributionMissingError(f"mvn has not fetched {what} in {FETCH_TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise DistributionMissingError(f"mvn could not fetch {what}: {(done.stdout + done.stderr)[-2000:]}")
    unfinished.rename(jars)


def require() -> Path:
    """Return the directory of the jars, or skip the test if there are none."""
    try:
        return find()
    except DistributionMissingError as error:
        pytest.skip(str(error))


def class_archive() -> Path:
    """The path of the JVM's class archive for brokers, which `make kafka` writes."""
    return directory() / "classes.jsa"


def short_lived_jvm() -> tuple[str, ...]:
    """The JVM options of tests. With archived classes, a broker starts with half the work.

    The JVM ignores an archive that does not fit its build and the jars.
    """
    if not class_archive().exists():
        return TEST_JVM
    return (*TEST_JVM, f"-XX:SharedArchiveFile={class_archive()}", "-Xlog:cds*=off")


def java_command(main_class: str, *arguments: str, jvm: Sequence[str] = ()) -> list[str]:
    """The command line of one of Kafka's programs. The JVM options default to `short_lived_jvm`."""
    return ["java", *(jvm or short_lived_jvm()), "-cp", f"{find()}/*", main_class, *arguments]


def run_tool(main_class: str, *arguments: str, stdin: str = "") -> str:
    """Runs one of Kafka's programs and returns its standard output.

    Raises:
        AssertionError: it failed.
    """
    command = java_command(main_class, *arguments)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def archive() -> None:
    """Archives the classes of a broker, unless an archive exists. A broker also starts without one."""
    from tests.kafka.broker import archive_classes

    if class_archive().exists():
        return
    try:
        with _fetch_lock(directory().parent):
            if not class_archive().exists():
                archive_classes(class_archive())
    except (AssertionError, OSError) as error:
        print(f"The classes of a broker could not be archived, so its tests take longer: {error}")


def main() -> None:
    """Fetches Apache Kafka, and prepares its starts."""
    try:
        print(f"Apache Kafka {version()} is in {ensure()}")
    except DistributionMissingError as missing:
        sys.exit(str(missing))
    archive()


if __name__ == "__main__":
    main()
