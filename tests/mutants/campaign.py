# SPDX-License-Identifier: Apache-2.0
"""A sample of mutants, and the tests that run with each of them."""

from __future__ import annotations

import csv
import json
import math
import os
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import accumulate, takewhile
from pathlib import Path

import pytest

from setup import ROOT
from shmaccum.common import clock
from tests.mutants.equivalents import is_equivalent
from tests.mutants.groups import run_group
from tests.mutants.line_map import PHASES, PYTEST, LineMap, environment
from tests.mutants.loading import write_mutant
from tests.mutants.operators import Site, mutant_code, sites

PACKAGES = (
    "shmaccum/log/files",
    "shmaccum/log/groups",
    "shmaccum/log/consumer",
    "shmaccum/log/server",
    "shmaccum/sender",
    "shmaccum/producer",
    "shmaccum/aio",
    "shmaccum/arena",
    "shmaccum/cli",
    "shmaccum/common",
    "shmaccum/compat",
    "shmaccum/config",
    "shmaccum/observe",
    "shmaccum/relay",
    "shmaccum/supervisor",
    "shmaccum/*.py",
)
"""All packages except shmaccum/spark, whose tests need Spark, and the modules in no package."""
BUDGET_S = 60.0
"""Tests of a mutant, in seconds of the recorded run: the fastest ones up to this."""
KILLED, HUNG, SURVIVED, UNTESTED, EQUIVALENT = "killed", "hung", "survived", "untested", "equivalent"
Z_95 = 1.96


@dataclass(frozen=True)
class Verdict:
    """The outcome of one mutant; a row of the table of results.

    Attributes:
        outcome: KILLED or HUNG: noticed. SURVIVED: all tests passed. UNTESTED: no test executes the line.
            EQUIVALENT: listed as a mutant that changes no behaviour; no test runs.
        test_count: tests that could notice it, within the budget.
        killer: the test that failed, or how else the run ended.
    """

    path: str
    line: int
    node_index: int
    operator: str
    outcome: str
    test_count: int
    killer: str


def sources(package: str) -> list[str]:
    """The paths of the modules of a package, or of a pattern."""
    folder = ROOT / package
    files = folder.rglob("*.py") if folder.is_dir() else ROOT.glob(package)
    return sorted(os.path.relpath(file, ROOT) for file in files)


def draw(seed: int, count: int, packages: Sequence[str] = PACKAGES) -> list[Site]:
    """Draw `count` lines at random from all lines that have a mutant, and one mutant of each."""
    lines: dict[tuple[str, int], list[Site]] = defaultdict(list)
    for package in packages:
        for path in sources(package):
            for site in sites(path, (ROOT / path).read_text()):
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
    if is_equivalent(site, source):
        return Verdict(**asdict(site), outcome=EQUIVALENT, test_count=0, killer="")
    able = line_map.killers(site.path, site.line, source)
    totals = accumulate(able, lambda total, test: total + line_map.seconds([test]), initial=0.0)
    tests = [test for test, _ in takewhile(lambda pair: pair[1] < BUDGET_S, zip(able, totals, strict=False))]
    if not tests:
        return Verdict(**asdict(site), outcome=UNTESTED, test_count=0, killer="")
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        mutant = Path(folder, "mutant")
        write_mutant(mutant, module_name(site.path), mutant_code(source, site))
        deadline_s = 60 + 5 * line_map.seconds(tests)
        timeout_s = 60 + 5 * max(line_map.seconds([test]) for test in tests)
        try:
            variables = environment(SHMACCUM_MUTANT=str(mutant))
            outcome, killer = run_tests(tests, deadline_s, variables, f"--timeout={timeout_s:.0f}")
        except NotRunError:
            run_tests(tests, deadline_s, environment(), "--collect-only")
            outcome, killer = KILLED, "no test is collected with the mutant"
    return Verdict(**asdict(site), outcome=outcome, test_count=len(tests), killer=killer)


class NotRunError(Exception):
    """pytest could not run the tests: an unknown test, a module that cannot be imported, or an error of a plugin."""


def run_tests(tests: Sequence[str], deadline_s: float, variables: dict[str, str], *options: str) -> tuple[str, str]:
    """Runs tests up to the first one that fails. Returns the outcome of the mutant, and the test that failed.

    A run that does not end by the deadline hangs. Its processes are in a group of their own and end with it.

    Raises:
        NotRunError: no test failed, and pytest did not end with success or by a signal.
    """
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        names, output, phases = (Path(folder, name) for name in ("names", "output", PHASES))
        names.write_text("\n".join(tests))
        phases.touch()
        command = [*PYTEST, "-x", "--tb=no", *options, f"@{names}"]
        with output.open("w") as file:
            status = run_group(command, {**variables, "SHMACCUM_PHASES": str(phases)}, file, deadline_s)
        written = [json.loads(line) for line in phases.read_text().splitlines()]
        failed = [test for test, outcome, _ in written if outcome == "failed"]
        if status is None:
            return HUNG, ""
        if status == pytest.ExitCode.OK:
            return SURVIVED, ""
        if status < 0:
            return KILLED, f"ended by signal {-status}"
        if status == pytest.ExitCode.TESTS_FAILED and failed:
            return KILLED, failed[0]
        raise NotRunError(f"pytest ended with exit code {status}: {output.read_text()[-2000:]}")


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


def run(drawn: Sequence[Site], line_map: LineMap, results: Results, end_s: float) -> Iterator[Verdict]:
    """Judges the mutants that have no verdict yet. No mutant begins after this moment of clock.monotonic()."""
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
    """The share of noticed mutants of each package and of all, with its interval. Equivalent ones are not counted."""
    counted = [each for each in verdicts if each.outcome != EQUIVALENT]
    members_of = {package: set(sources(package)) for package in PACKAGES}
    rows = [(package, [each for each in counted if each.path in paths]) for package, paths in members_of.items()]
    lines = []
    for name, members in [*rows, ("all", counted)]:
        if members:
            noticed = sum(each.outcome in (KILLED, HUNG) for each in members)
            low, high = interval(noticed, len(members))
            lines.append(
                f"{name:22} {noticed:4} of {len(members):4}  {noticed / len(members):4.0%} ({low:.0%}-{high:.0%})"
            )
    return "\n".join(lines)
