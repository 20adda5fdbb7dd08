# SPDX-License-Identifier: Apache-2.0
"""The libraries of the programs, which ``make kafka-programs`` installs. A test skips if its libraries are missing.

The jars are in the cache of Apache Kafka's. The Python libraries have an environment of their own, because quixstreams
and shmaccum's tests need different versions of confluent-kafka.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from setup import ROOT
from tests.kafka import distribution

FOLDER = Path(__file__).parent
POM = FOLDER / "pom.xml"
PYTHON = ROOT / "build" / "kafka-programs" / "bin" / "python"
WHAT = "Kafka Streams and Kafka Connect"


def jars() -> Path:
    """The folder of the jars, even if they are missing."""
    return distribution.cache() / "kafka-programs" / distribution.version()


def java_command(program: str, *arguments: str) -> list[str]:
    """The command line of a class of the jars, or of a Java file of this folder. If the jars are missing, skip."""
    if shutil.which("javac") is None:
        pytest.skip(f"{WHAT} need `javac`: install a JDK, 17 or newer")
    if not jars().is_dir():
        pytest.skip(f"{WHAT} are not in {jars()}: install Maven and run `make kafka-programs`")
    source = FOLDER / program
    return [
        "java",
        *distribution.TEST_JVM,
        "-cp",
        f"{jars()}/*",
        str(source if source.exists() else program),
        *arguments,
    ]


def python_command(script: str, *arguments: str) -> list[str]:
    """The command line of a script of this folder. If its libraries are missing, skip."""
    if not (PYTHON.parent.parent / "installed").exists():
        pytest.skip(f"quixstreams and faust are not in {PYTHON.parent.parent}: run `make kafka-programs`")
    return [str(PYTHON), str(FOLDER / script), *arguments]


def main() -> None:
    """Fetches the jars."""
    try:
        distribution.fetch(jars(), POM, WHAT, f"-Dkafka.version={distribution.version()}")
    except distribution.DistributionMissingError as missing:
        sys.exit(str(missing))
    print(f"{WHAT} {distribution.version()} are in {jars()}")


if __name__ == "__main__":
    main()
