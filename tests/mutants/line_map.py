# SPDX-License-Identifier: Apache-2.0
"""Which tests execute a line, and how long each of them takes: one recorded run of the tests, stored in a folder."""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import coverage
import pytest

from setup import ROOT
from shmaccum.common import clock
from tests.mutants.groups import run_group
from tests.mutants.operators import function_lines

STARTUP = Path(__file__).parent / "startup"
LINES, PHASES, PARTS = "lines", "phases", "parts"
PYTEST = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-p", "tests.mutants.plugin"]
GENERATED = "tests/architecture/test_generated.py::"
"""The tests that read the tables of all modules. They execute no function of these modules."""
MARKERS = "not (exhaustive or chaos or soak or fuzz or spark or kafka or slow)"


def environment(**variables: str) -> dict[str, str]:
    """The environment of a Python process that obeys startup/sitecustomize.py.

    It may keep what it compiled, and belongs to no test.
    """
    dropped = ("PYTHONDONTWRITEBYTECODE", "PYTEST_CURRENT_TEST")
    inherited = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**inherited, "PYTHONPATH": os.pathsep.join([str(STARTUP), str(ROOT)]), **variables}


def record_lines(folder: Path, tests: Sequence[str], end_s: float = math.inf) -> bool:
    """Runs the tests and records their lines. Tests that fail are not used.

    Each file of tests has a run and a folder of its own, so a later call continues an interrupted recording.

    Args:
        folder: the folder of the recording.
        tests: files and folders of tests.
        end_s: no file of tests begins after this moment of clock.monotonic().

    Returns:
        True if the recording is complete.

    Raises:
        RuntimeError: pytest did not run a file of tests to its end; this file has no lines.
    """
    if (folder / LINES).exists():
        return True
    parts = {file: folder / PARTS / file.replace(os.sep, "~") for file in _files(tests)}
    for file, part in parts.items():
        if not part.exists():
            if clock.monotonic() > end_s:
                return False
            _record_file(file, part)
    _merge(list(parts.values()), folder)
    return True


def _files(tests: Sequence[str]) -> list[str]:
    found = [path for each in tests for path in (ROOT / each, *(ROOT / each).rglob("test_*.py"))]
    return sorted(os.path.relpath(path, ROOT) for path in found if path.is_file())


def _record_file(file: str, target: Path) -> None:
    """Records a file of tests. The target exists only after pytest ran all of them."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent.parent, prefix="begun-") as begun:
        folder = Path(begun, "folder")
        folder.mkdir()
        (folder / PHASES).touch()
        variables = environment(SHMACCUM_RECORD_LINES=str(folder), SHMACCUM_PHASES=str(folder / PHASES))
        command = [*PYTEST, "-m", MARKERS, file]
        status = run_group(command, variables)
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
            raise RuntimeError(f"{file} is not recorded: pytest ended with exit code {status}. Mend it and run again.")
        recorded = coverage.Coverage(data_file=folder / LINES, config_file=False, messages=False)
        recorded.combine()  # a file of a killed process is skipped
        recorded.save()
        folder.rename(target)


def _merge(parts: Sequence[Path], folder: Path) -> None:
    """Merges the parts into the files that LineMap.load() reads."""
    (folder / PHASES).write_text("".join((part / PHASES).read_text() for part in parts))
    unfinished = folder / "begun-lines"
    unfinished.unlink(missing_ok=True)
    merged = coverage.CoverageData(str(unfinished))
    for part in parts:
        lines = coverage.CoverageData(str(part / LINES))
        lines.read()
        merged.update(lines)
    merged.write()
    merged.close()
    unfinished.rename(folder / LINES)


class LineMap:
    """The recorded run.

    Args:
        seconds: the time of each test that passed.
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
        """The tests that can notice a change of a line. A line outside of functions is executed by an import, so all
        tests of the functions of its module can, and those of generated files.

        The tests of generated files are the first, then those of the module's own folder. In each part, the fastest
        parameter of each test comes before all second ones, and among them the fastest.
        """
        lines = self._tests(path)
        inside = function_lines(source)
        numbers: Iterable[int] = [line] if line in inside else inside & lines.keys()
        found = set[str]().union(*(lines.get(number, ()) for number in numbers))
        folder, name = os.path.split(path)
        own = os.path.join("tests/unit", folder.removeprefix("shmaccum/"), "")
        if line not in inside:
            found.update(test for test in self._seconds if test.startswith((GENERATED, f"{own}test_{name}::")))
        counts = Counter[str]()
        ranked = []
        for test in sorted(found & self._seconds.keys(), key=lambda test: (self._seconds[test], test)):
            function = test.partition("[")[0]
            place = 0 if test.startswith(GENERATED) else 1 if test.startswith(own) else 2
            ranked.append((place, counts[function], self._seconds[test], test))
            counts[function] += 1
        return [test for *_, test in sorted(ranked)]

    def seconds(self, tests: Iterable[str]) -> float:
        """The seconds that tests took when they were recorded."""
        return sum(self._seconds[test] for test in tests)
