# SPDX-License-Identifier: Apache-2.0
"""The outcomes of other projects' tests, and the table of those that a served log need not pass.

The table is ``docs/reference/judges.csv``. A test that does not pass has a row with the reason, and a test that passes
has none. So the table cannot hide a defect or become out of date.
"""

from __future__ import annotations

import csv
import enum
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from setup import ROOT

TABLE = ROOT / "docs" / "reference" / "judges.csv"
GO_RESULT = re.compile(r"^\s*--- (PASS|FAIL|SKIP): (\S+)", re.MULTILINE)
LIBRDKAFKA_RESULT = re.compile(r'"name":\s*"([^"]+)",\s*"state":\s*"(PASSED|FAILED)"')


class Outcome(enum.Enum):
    """The outcome of one test."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


Outcomes = Mapping[str, Outcome]
"""Name of a test -> its outcome."""

_BY_WORD = {
    "PASS": Outcome.PASSED,
    "FAIL": Outcome.FAILED,
    "SKIP": Outcome.SKIPPED,
    "PASSED": Outcome.PASSED,
    "FAILED": Outcome.FAILED,
    "SKIPPED": Outcome.SKIPPED,
}


class Exemption(NamedTuple):
    """A row of the table: a test that does not pass, and the reason."""

    suite: str
    test: str
    reason: str


def read_table(path: Path = TABLE) -> list[Exemption]:
    """All rows of the table."""
    with open(path, newline="", encoding="utf-8") as file:
        return [Exemption(*row) for row in csv.reader(file)]


def differences(suite: str, outcomes: Outcomes, table: list[Exemption]) -> Iterator[str]:
    """Return a sentence for each test whose outcome differs from the table."""
    exempt = {row.test for row in table if row.suite == suite}
    for test, outcome in outcomes.items():
        if outcome is not Outcome.PASSED and test not in exempt:
            yield f"{test} {outcome.value}, and the table does not name it"
        elif outcome is Outcome.PASSED and test in exempt:
            yield f"{test} passed: take its row out of the table"
    for test in sorted(exempt - outcomes.keys()):
        yield f"{test} did not run: the table names a test that {suite} does not have"


def of_junit(report: str) -> Outcomes:
    """Read the outcomes of pytest's ``--junitxml``. A test is named by its file and its function."""
    cases = ElementTree.fromstring(report).iter("testcase")
    return {f"{_file_of(case)}::{case.get('name')}": _of_case(case) for case in cases}


def _file_of(case: ElementTree.Element) -> str:
    parts = case.get("classname", "").split(".")
    return next((part for part in parts if part.startswith("test_")), parts[-1])


def _of_case(case: ElementTree.Element) -> Outcome:
    kinds = {child.tag for child in case}
    if kinds & {"failure", "error"}:
        return Outcome.FAILED
    return Outcome.SKIPPED if "skipped" in kinds else Outcome.PASSED


def of_go(output: str) -> Outcomes:
    """Read the outcomes that a Go test program prints with ``-test.v``."""
    return {name: _BY_WORD[word] for word, name in GO_RESULT.findall(output)}


def of_librdkafka(report: str) -> Outcomes:
    """Read the outcomes in the report of librdkafka's runner.

    The runner omits tests that do not apply to this cluster. The report also has its main function.
    """
    return {name: _BY_WORD[word] for name, word in LIBRDKAFKA_RESULT.findall(report) if not name.startswith("<")}
