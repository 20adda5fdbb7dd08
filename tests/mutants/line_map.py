# SPDX-License-Identifier: Apache-2.0
"""Which tests execute a line, and how long each of them takes: one recorded run of the tests, stored in a folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import coverage

from setup import ROOT
from tests.mutants.operators import function_lines

STARTUP = Path(__file__).parent / "startup"
LINES, PHASES = "lines", "phases"


def environment(**variables: str) -> dict[str, str]:
    """The environment of a Python process that obeys startup/sitecustomize.py. It may keep what it compiled."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPATH": os.pathsep.join([str(STARTUP), str(ROOT)]), **variables}


def record_lines(folder: Path, tests: Sequence[str]) -> None:
    """Runs the tests once and records their lines. Tests that fail are not used."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.plugin"]
    subprocess.run([*command, *tests], env=environment(SHMACCUM_RECORD_LINES=str(folder)), cwd=ROOT, check=False)
    recorded = coverage.Coverage(data_file=folder / LINES, config_file=False, messages=False)
    recorded.combine()  # a file of a killed process is skipped
    recorded.save()


class LineMap:
    """The recorded run.

    Args:
        seconds: of each test that passed.
        tests: gives the tests of each line of a source, by its path relative to the repository.
    """

    def __init__(self, seconds: dict[str, float], tests: Callable[[str], Mapping[int, Sequence[str]]]) -> None:
        self._seconds = seconds
        self._tests = tests

    @classmethod
    def load(cls, folder: Path) -> LineMap:
        """Reads what record_lines() wrote."""
        seconds: dict[str, float] = defaultdict(float)
        failed = set()
        for line in (folder / PHASES).read_text().splitlines():
            test, outcome, duration = json.loads(line)
            seconds[test] += duration
            if outcome != "passed":
                failed.add(test)
        data = coverage.CoverageData(str(folder / LINES))
        data.read()
        passed = {test: time for test, time in seconds.items() if test not in failed}
        return cls(passed, lambda path: data.contexts_by_lineno(str(ROOT / path)))

    def killers(self, path: str, line: int, source: str) -> list[str]:
        """The tests that can notice a change of a line, the fastest first.

        A line outside of functions is executed by an import, so all tests of the functions of its module can.
        """
        lines = self._tests(path)
        inside = function_lines(source)
        numbers: Iterable[int] = [line] if line in inside else inside & lines.keys()
        found = set[str]().union(*(lines.get(number, ()) for number in numbers))
        return sorted(found & self._seconds.keys(), key=lambda test: (self._seconds[test], test))

    def seconds(self, tests: Iterable[str]) -> float:
        """The seconds that tests took when they were recorded."""
        return sum(self._seconds[test] for test in tests)
