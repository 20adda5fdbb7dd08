# SPDX-License-Identifier: Apache-2.0
"""The jars of Spark's Kafka connector for the installed pyspark, which Maven fetches once into a cache."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

import pytest

from tests.kafka import distribution

POM = Path(__file__).with_name("connector.xml")


def version() -> str:
    """The version of pyspark, and thus of the connector."""
    return importlib.metadata.version("pyspark")


def candidates() -> tuple[str, str]:
    """The matching connector versions. If a registry lacks a patch version, the first of its minor version matches."""
    major, minor, *_ = version().split(".")
    return version(), f"{major}.{minor}.0"


def directory() -> Path:
    """The folder of the jars, even if they are missing."""
    return distribution.cache() / "spark-connector" / version()


def require() -> Path:
    """Return the folder of the jars. If they are missing, skip the test."""
    if not directory().is_dir():
        pytest.skip(f"Spark's Kafka connector is not in {directory()}: install Maven and run `make spark-connector`")
    return directory()


def fetch() -> None:
    """Fetch the jars if they are missing.

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
