# SPDX-License-Identifier: Apache-2.0
"""The jars of Spark's Kafka connector for the pyspark that is installed, which Maven fetches once into a cache."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from tests.kafka import distribution

POM = Path(__file__).with_name("connector.xml")


def version() -> str:
    """The version of pyspark, which the connector has, too."""
    return importlib.metadata.version("pyspark")


def candidates() -> tuple[str, str]:
    """The versions of the connector that fit. A registry may lack a patch version; the first of its minor one fits."""
    major, minor, *_ = version().split(".")
    return version(), f"{major}.{minor}.0"


def directory() -> Path:
    """The place of the jars, whether they are there or not."""
    return distribution.cache() / "spark-connector" / version()


def require() -> Path:
    """The directory of the jars, for a test: it is skipped where there are none."""
    if not directory().is_dir():
        pytest.skip(f"Spark's Kafka connector is not in {directory()}: install Maven and run `make spark-connector`")
    return directory()


def fetch() -> None:
    """Fetches the jars, unless they are there.

    Raises:
        DistributionMissingError: there is no Java, no Maven or no such connector.
    """
    own, first = candidates()
    what = "Spark's Kafka connector"
    try:
        distribution.fetch(directory(), POM, what, f"-Dspark.version={own}")
    except distribution.DistributionMissingError:
        distribution.fetch(directory(), POM, what, f"-Dspark.version={first}")


if __name__ == "__main__":
    try:
        fetch()
    except (distribution.DistributionMissingError, importlib.metadata.PackageNotFoundError) as missing:
        sys.exit(str(missing))
    print(f"Spark's Kafka connector for Spark {version()} is in {directory()}")
