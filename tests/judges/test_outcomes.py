# SPDX-License-Identifier: Apache-2.0
"""The reports of other projects' suites are read and compared with the table of exemptions."""

from __future__ import annotations

import os
import subprocess
from importlib import metadata
from pathlib import Path

import pytest

from tests.judges.outcomes import (
    Exemption,
    Outcome,
    differences,
    of_go,
    of_junit,
    of_librdkafka,
    read_table,
)
from tests.judges.suites import SUITES, VERSION_FILES, version_problem, write_tools
from tests.kafka import distribution

TABLE = [Exemption("s", "exempt", "It does not apply."), Exemption("other", "wrong", "It does not apply either.")]


def test_outcomes_of_the_table_make_no_difference() -> None:
    assert list(differences("s", {"right": Outcome.PASSED, "exempt": Outcome.FAILED}, TABLE)) == []


def test_each_outcome_that_differs_from_the_table_is_reported() -> None:
    told = list(
        differences("s", {"wrong": Outcome.FAILED, "left out": Outcome.SKIPPED, "exempt": Outcome.PASSED}, TABLE)
    )
    assert told == [
        "wrong failed, and the table does not name it",
        "left out skipped, and the table does not name it",
        "exempt passed: take its row out of the table",
    ]
    (gone,) = differences("s", {}, TABLE)
    assert gone.startswith("exempt did not run")


def test_a_report_of_pytest_is_read() -> None:
    report = """<testsuites><testsuite>
        <testcase classname="test.integration.test_a" name="good[1]"/>
        <testcase classname="test.integration.test_a" name="bad"><failure/></testcase>
        <testcase classname="test.integration.test_b.TestClass" name="broken"><error/></testcase>
        <testcase classname="test.integration.test_b" name="left"><skipped/></testcase>
        <testcase classname="tests.test_c" name="near"/>
    </testsuite></testsuites>"""
    assert of_junit(report) == {
        "test_a::good[1]": Outcome.PASSED,
        "test_a::bad": Outcome.FAILED,
        "test_b::broken": Outcome.FAILED,
        "test_b::left": Outcome.SKIPPED,
        "test_c::near": Outcome.PASSED,
    }


def test_the_output_of_a_go_test_is_read() -> None:
    output = "=== RUN TestA\n--- FAIL: TestA (1.0s)\n    --- PASS: TestA/sub (0.1s)\n--- SKIP: TestB (0.0s)\nFAIL\n"
    assert of_go(output) == {"TestA": Outcome.FAILED, "TestA/sub": Outcome.PASSED, "TestB": Outcome.SKIPPED}


def test_a_report_of_librdkafka_is_read() -> None:
    report = (
        '{"tests": {"<MAIN>": {"name": "<MAIN>", "state": "PASSED"}, '
        '"0001": {"name": "0001_a", "state": "PASSED"}, "0002": {"name": "0002_b", "state": "FAILED"}, '
        '"0003": {"name": "0003_c", "state": "SKIPPED"}}}'
    )
    assert of_librdkafka(report) == {"0001_a": Outcome.PASSED, "0002_b": Outcome.FAILED}


def test_kafkas_scripts_are_written_for_a_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "java_command", lambda main_class: ["echo", "jars/*", main_class])
    monkeypatch.setattr(distribution, "find", lambda: tmp_path)
    write_tools(tmp_path / "tools")
    script = tmp_path / "tools" / "bin" / "kafka-topics.sh"
    told = subprocess.run([script, "--topic", "a b"], capture_output=True, text=True, check=True).stdout
    assert told == "jars/* org.apache.kafka.tools.TopicCommand --topic a b\n"


def test_a_class_of_the_suite_is_run_with_kafkas_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "find", lambda: tmp_path / "jars")
    monkeypatch.setenv("CLASSPATH", "theirs")
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\necho "$@"\n')
    java.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    write_tools(tmp_path / "tools")
    script = tmp_path / "tools" / "bin" / "kafka-run-class.sh"
    told = subprocess.run([script, "TheirCli", "--topic"], capture_output=True, text=True, check=True).stdout
    assert told.endswith(f"-cp theirs:{tmp_path}/tools/libs/* TheirCli --topic\n")
    assert (tmp_path / "tools" / "libs").readlink() == tmp_path / "jars"


def test_each_row_of_the_table_names_a_suite_and_a_reason() -> None:
    table = read_table()
    assert {row.suite for row in table} <= {suite.name for suite in SUITES}
    assert [row for row in table if not row.reason.endswith(".")] == []
    assert len({(row.suite, row.test) for row in table}) == len(table)


@pytest.mark.parametrize("library", VERSION_FILES)
def test_sources_of_another_version_are_refused(tmp_path: Path, library: str) -> None:
    installed = metadata.version(library)
    (suite, *_) = [each for each in SUITES if each.needs.startswith(f"{library}/")]
    file = tmp_path / library / VERSION_FILES[library]
    file.parent.mkdir(parents=True)
    file.write_text(f'__version__ = "{installed}"\n')
    assert version_problem(suite, tmp_path) is None
    file.write_text("__version__ = '1.2.3'\n")
    assert f"has version 1.2, and {installed} is installed" in (version_problem(suite, tmp_path) or "")


def test_sources_that_no_test_imports_may_have_any_version(tmp_path: Path) -> None:
    (suite, *_) = [each for each in SUITES if each.name == "librdkafka"]
    assert version_problem(suite, tmp_path) is None
