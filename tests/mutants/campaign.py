# SPDX-License-Identifier: Apache-2.0
"""A sample of mutants, and the tests that run with each of them."""

from __future__ import annotations

import contextlib
import csv
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate, takewhile
from pathlib import Path

from setup import ROOT
from shmaccum.common import clock
from tests.mutants.line_map import LineMap, environment
from tests.mutants.loading import write_mutant
from tests.mutants.operators import Site, mutant_code, sites

PACKAGES = (
    "shmaccum/log/files",
    "shmaccum/log/groups",
    "shmaccum/log/consumer",
    "shmaccum/log/server",
    "shmaccum/sender",
    "shmaccum/producer",
)
BUDGET_S = 60.0
"""Tests of a mutant, in seconds of the recorded run: the fastest ones up to this."""
KILLED, HUNG, SURVIVED, UNTESTED = "killed", "hung", "survived", "untested"
FAILED_TESTS = 1
Z_95 = 1.96


@dataclass(frozen=True)
class Verdict:
    """The outcome of one mutant; a row of the table of results.

    Attributes:
        outcome: KILLED or HUNG: noticed. SURVIVED: all tests passed. UNTESTED: no test executes the line.
        test_count: tests that could notice it, within the budget.
        killer: the test that failed.
    """

    path: str
    line: int
    node_index: int
    operator: str
    outcome: str
    test_count: int
    killer: str


def draw(seed: int, count: int, packages: Sequence[str] = PACKAGES) -> list[Site]:
    """So many mutants: a line each, drawn from all lines that have one, and one of its operators."""
    lines: dict[tuple[str, int], list[Site]] = defaultdict(list)
    for package in packages:
        for file in sorted((ROOT / package).rglob("*.py")):
            path = os.path.relpath(file, ROOT)
            for site in sites(path, file.read_text()):
                lines[path, site.line].append(site)
    chooser = random.Random(seed)
    places = sorted(lines)
    chooser.shuffle(places)
    return [chooser.choice(lines[place]) for place in places[:count]]


def module_name(path: str) -> str:
    """The name of the module whose source is at a path."""
    return ".".join(Path(path).with_suffix("").parts).removesuffix(".__init__")


def judge(site: Site, line_map: LineMap) -> Verdict:
    """Runs the tests of a mutant, the fastest first, up to the first one that fails."""
    source = (ROOT / site.path).read_text()
    able = line_map.killers(site.path, site.line, source)
    totals = accumulate(able, lambda total, test: total + line_map.seconds([test]), initial=0.0)
    tests = [test for test, _ in takewhile(lambda pair: pair[1] < BUDGET_S, zip(able, totals, strict=False))]
    if not tests:
        return Verdict(**asdict(site), outcome=UNTESTED, test_count=0, killer="")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        mutant = Path(folder, "mutant")
        write_mutant(mutant, module_name(site.path), mutant_code(source, site))
        deadline_s = 60 + 5 * line_map.seconds(tests)
        outcome, killer = run_tests(tests, deadline_s, environment(SHMACCUM_MUTANT=str(mutant)))
    return Verdict(**asdict(site), outcome=outcome, test_count=len(tests), killer=killer)


def run_tests(tests: Sequence[str], deadline_s: float, variables: dict[str, str]) -> tuple[str, str]:
    """Runs tests up to the first that fails: the outcome of their mutant, and that test.

    A run that does not end by the deadline hangs. Its processes are in a group of their own and end with it.
    """
    with tempfile.NamedTemporaryFile("w", prefix="mutants-") as names:
        names.write("\n".join(tests))
        names.flush()
        options = ["-n", "0", "-x", "-q", "--tb=no", "-p", "no:cacheprovider"]
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, f"@{names.name}"],
            env=variables,
            cwd=ROOT,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                output = process.communicate(timeout=deadline_s)[0]
            except subprocess.TimeoutExpired:
                output = None
            finally:
                _end_group(process)
    if output is None:
        return HUNG, ""
    failed = [line.split()[1] for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return (SURVIVED, "") if process.returncode == 0 else (KILLED, failed[0] if failed else output[-200:])


def _end_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class Results:
    """The verdicts in a CSV file, to which a later run with the same seed adds."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> list[Verdict]:
        """The verdicts so far."""
        if not self._path.exists():
            return []
        with self._path.open(newline="") as file:
            rows = list(csv.reader(file))[1:]
        return [
            Verdict(path, int(line), int(node_index), operator, outcome, int(test_count), killer)
            for path, line, node_index, operator, outcome, test_count, killer in rows
        ]

    def add(self, verdict: Verdict) -> None:
        """Appends a verdict."""
        is_new = not self._path.exists()
        with self._path.open("a", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(Verdict)])
            if is_new:
                writer.writeheader()
            writer.writerow(asdict(verdict))


def run(drawn: Sequence[Site], line_map: LineMap, results: Results, minutes: float) -> Iterator[Verdict]:
    """Judges the mutants that have no verdict yet. No mutant begins after so many minutes."""
    end_s = clock.monotonic() + 60 * minutes
    known = {(each.path, each.node_index, each.operator) for each in results.load()}
    for site in drawn:
        if (site.path, site.node_index, site.operator) in known:
            continue
        if clock.monotonic() > end_s:
            return
        verdict = judge(site, line_map)
        results.add(verdict)
        yield verdict


def interval(hits: int, count: int) -> tuple[float, float]:
    """Wilson's interval of 95 % of a share."""
    share, spread = hits / count, Z_95**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = Z_95 / (1 + spread) * math.sqrt(share * (1 - share) / count + spread / (4 * count))
    return middle - half, middle + half


def table(verdicts: Sequence[Verdict]) -> str:
    """The share of noticed mutants of each package and of all, with its interval."""
    rows = [(package, [each for each in verdicts if each.path.startswith(package + "/")]) for package in PACKAGES]
    lines = []
    for name, members in [*rows, ("all", list(verdicts))]:
        if members:
            noticed = sum(each.outcome in (KILLED, HUNG) for each in members)
            low, high = interval(noticed, len(members))
            lines.append(
                f"{name:22} {noticed:4} of {len(members):4}  {noticed / len(members):4.0%} ({low:.0%}-{high:.0%})"
            )
    return "\n".join(lines)
