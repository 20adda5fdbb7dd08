# SPDX-License-Identifier: Apache-2.0
"""Tests fetch nothing themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from setup import ROOT
from tests.kafka import distribution


@pytest.fixture
def maven_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for each call of Maven. Apache Kafka was never fetched."""
    calls = tmp_path / "calls"
    calls.touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, script in {"mvn": f'echo "$@" >>{calls}; echo planted >&2; exit 1', "java": "exit 1"}.items():
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return calls


def test_a_test_without_apache_kafka_is_skipped(maven_calls: Path) -> None:
    with pytest.raises(pytest.skip.Exception, match="install Maven and run `make kafka`"):
        distribution.require()
    with pytest.raises(distribution.DistributionMissingError, match="Apache Kafka is not in "):
        distribution.java_command("kafka.Kafka")
    assert maven_calls.read_text() == ""


def test_make_kafka_fetches_and_reports_why_it_cannot(maven_calls: Path) -> None:
    command = [sys.executable, "-m", "tests.kafka.distribution"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("mvn could not fetch Apache Kafka")
    assert "planted" in done.stderr
    assert "dependency:copy-dependencies" in maven_calls.read_text()
