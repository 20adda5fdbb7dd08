# SPDX-License-Identifier: Apache-2.0
"""``make spark-run``, as a user sees it: with Spark, without Java, and with a directory of other files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from setup import ROOT
from tests.spark.conftest import reason_to_skip
from tests.support.arenas import left_in_shared_memory

FLIGHT_COUNT = 12_000


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end, and check that no arena is left."""
    command = [sys.executable, "-m", "examples.flights", *arguments]
    whole = {**os.environ, **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, env=whole, cwd=ROOT) as process:  # type: ignore[call-overload]
        output, errors = process.communicate()
    assert left_in_shared_memory(f"shmaccum-spark-{process.pid}-") == []
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def test_without_java_it_reports_what_to_install(tmp_path: Path) -> None:
    ended = run("--spark", "--directory", str(tmp_path / "out"), PATH=str(tmp_path), JAVA_HOME="")
    assert ended.returncode == 2
    assert "Spark needs Java, and there is none on the path: install Java 17 or newer (on Debian: " in ended.stderr
    assert not (tmp_path / "out").exists()


def test_kill_is_of_the_other_example() -> None:
    ended = run("--spark", "--kill")
    assert ended.returncode == 2
    assert "--kill, --serve and --watch are of the example without Spark" in ended.stderr


@pytest.mark.spark
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("where", ["--spark", pytest.param("--cluster", marks=pytest.mark.spark_cluster)])
def test_all_answers_are_those_of_pandas(tmp_path: Path, where: str) -> None:
    if (reason := reason_to_skip()) is not None:
        pytest.skip(reason)
    ended = run(where, "--directory", str(tmp_path / "spark"), "--flights", str(FLIGHT_COUNT))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "✓ every flight came back once" in ended.stdout
    assert "groups of 4 answers are those of pandas" in ended.stdout
    assert (tmp_path / "spark" / "delays.png").stat().st_size > 10_000
    assert ("-node-2" in ended.stdout) == (where == "--cluster")
    again = run("--spark", "--directory", str(tmp_path), "--flights", "10")
    assert again.returncode == 2
    assert "has things that are not of this example" in again.stderr
