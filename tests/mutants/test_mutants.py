# SPDX-License-Identifier: Apache-2.0
"""A sample of mutants is the same for a seed, has no place that is a text alone, and a run says which are noticed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from setup import ROOT
from tests.mutants import campaign
from tests.mutants.campaign import (
    EQUIVALENT,
    HUNG,
    KILLED,
    PACKAGES,
    SURVIVED,
    UNTESTED,
    NotRunError,
    Results,
    Verdict,
    draw,
    interval,
    judge,
    table,
)
from tests.mutants.equivalents import EQUIVALENTS, changes
from tests.mutants.line_map import GENERATED, LineMap, environment, record_lines
from tests.mutants.loading import write_mutant
from tests.mutants.operators import Site, function_lines, mutant_code, sites
from tests.support.processes import WATCHDOG_S, wait_until

SMALL = ["shmaccum/common"]
"""A package of few files."""
SOURCE = '''
"""A module."""
import logging
logger = logging.getLogger(__name__)

def largest(values: "list[int]", bound: int = 3) -> "int | None":
    """The largest value below a bound."""
    best = None
    for value in values:
        if value < bound and (best is None or value > best):
            best = value
    logger.info("found %d", 1)
    if best is None:
        raise ValueError("no value in " + str(values) + f"{1 + 1}")
    return best

class Options(TypedDict, total=False):
    bound: int
'''


def mutants(source: str) -> dict[str, Site]:
    return {f"{site.line} {site.operator}": site for site in sites("module.py", source)}


def run_mutant(source: str, site: Site) -> dict[str, object]:
    names: dict[str, object] = {"__name__": "module"}
    exec(mutant_code(source, site), names)
    return names


def test_texts_annotations_log_calls_and_messages_have_no_mutants() -> None:
    assert {int(name.split()[0]) for name in mutants(SOURCE)} == {10, 13, 15}


@pytest.mark.parametrize(
    ("expression", "operator", "value"),
    [
        ("2 < 2", "comparison 0 Lt", True),
        ("1 < 2 <= 2", "comparison 1 LtE", False),
        ("True and False", "and -> or", True),
        ("6 // 3", "arithmetic FloorDiv", 18),
        ("7", "constant + 1", 8),
        ("7", "constant - 1", 6),
        ("True", "other truth", False),
        ("1 if {} else 2", "condition negated", 1),
    ],
)
def test_an_operator_changes_one_place(expression: str, operator: str, value: object) -> None:
    source = f"found = {expression}\n"
    (site,) = [site for site in sites("module.py", source) if site.operator.startswith(operator)][:1]
    assert run_mutant(source, site)["found"] == value


@pytest.mark.parametrize(
    ("source", "operator"),
    [
        ("values = [1]\nvalues.append(2)\nfound = len(values)", "call removed"),
        ("values = [1, 2]\nvalues[0:2] = [1]\nfound = 0 + len(values) - 1", "assignment removed"),
        ("def make():\n    return [1]\nfound = 1 if make() is None else 0", "None returned"),
    ],
)
def test_a_statement_is_left_out(source: str, operator: str) -> None:
    names: dict[str, object] = {}
    exec(source, names)
    (site,) = (site for site in sites("module.py", source) if site.operator == operator)
    assert run_mutant(source, site)["found"] == 1
    assert names["found"] != 1


def test_all_packages_but_spark_have_mutants() -> None:
    packages = {os.path.relpath(file.parent, ROOT) for file in (ROOT / "shmaccum").glob("*/**/__init__.py")}
    left = {package for package in packages if not package.startswith(PACKAGES)}
    assert left == {"shmaccum/log", "shmaccum/spark", "shmaccum/spark/discovery"}


@pytest.mark.parametrize("package", PACKAGES)
def test_the_mutants_of_each_package_compile_and_are_counted(package: str) -> None:
    drawn = draw(1, 10, [package])
    for site in drawn:
        mutant_code((ROOT / site.path).read_text(), site)
    verdicts = [Verdict(**asdict(site), outcome=KILLED, test_count=1, killer="") for site in drawn]
    assert table(verdicts).startswith(f"{package:22}   10 of   10")


def test_a_seed_draws_the_same_mutants_and_another_seed_others() -> None:
    drawn = draw(1, 50, SMALL)
    assert drawn == draw(1, 50, SMALL)
    assert drawn != draw(2, 50, SMALL)
    assert len({(site.path, site.line) for site in drawn}) == 50
    assert draw(1, 20, SMALL) == drawn[:20]


def test_a_process_and_its_child_import_the_mutant(tmp_path: Path) -> None:
    write_mutant(tmp_path / "mutant", "shmaccum.common.clock", compile("monotonic = 'mutant'", "clock.py", "exec"))
    program = (
        "import subprocess, sys; from shmaccum.common import clock; print(clock.monotonic, flush=True)\n"
        "if sys.argv[1:]: subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)"
    )
    variables = environment(SHMACCUM_MUTANT=str(tmp_path / "mutant"))
    output = subprocess.check_output([sys.executable, "-c", program, program], env=variables, cwd=ROOT, text=True)
    assert output.split() == ["mutant", "mutant"]


def test_a_line_of_a_function_is_tested_by_its_tests_and_any_other_line_by_those_of_the_module() -> None:
    assert {8, 10, 15} <= function_lines(SOURCE)
    assert not {2, 4, 6} & function_lines(SOURCE)
    line_map = LineMap(
        {"slow": 2.0, "quick": 1.0}, lambda _path: {4: ["quick"], 10: ["slow", "failed"], 13: ["slow", "quick"]}
    )
    assert line_map.killers("module.py", 10, SOURCE) == ["slow"]
    assert line_map.killers("module.py", 4, SOURCE) == ["quick", "slow"]
    assert line_map.killers("module.py", 15, SOURCE) == []


def test_the_tests_of_the_own_folder_are_the_first_and_each_before_the_second_parameter_of_any() -> None:
    near, far = "tests/unit/sender/test_near.py", "tests/test_far.py"
    seconds = {f"{near}::a[1]": 1.0, f"{near}::a[2]": 2.0, f"{near}::b": 9.0, f"{far}::c": 0.5}
    line_map = LineMap(seconds, lambda _path: {10: list(seconds)})
    order = [f"{near}::a[1]", f"{near}::b", f"{near}::a[2]", f"{far}::c"]
    assert line_map.killers("shmaccum/sender/module.py", 10, SOURCE) == order


def test_the_tests_of_generated_files_read_each_line_outside_of_functions_and_are_the_first() -> None:
    line_map = LineMap({f"{GENERATED}test": 2.0, "quick": 1.0}, lambda _path: {10: ["quick"]})
    assert line_map.killers("module.py", 4, SOURCE) == [f"{GENERATED}test", "quick"]
    assert line_map.killers("module.py", 10, SOURCE) == ["quick"]


def test_the_own_file_of_tests_reads_the_constants_of_a_module() -> None:
    own = "tests/unit/sender/test_module.py::test"
    line_map = LineMap({own: 1.0, "tests/unit/sender/test_other.py::test": 1.0}, lambda _path: {})
    assert line_map.killers("shmaccum/sender/module.py", 4, SOURCE) == [own]
    assert line_map.killers("shmaccum/sender/module.py", 10, SOURCE) == []


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of tests that name their own outcome."""
    path = tmp_path / "test_tried.py"
    path.write_text(
        "import os, pathlib, pytest, threading\n"
        "def test_passes(): pass\n"
        "@pytest.mark.parametrize('name', ['a b'])\n"
        "def test_fails(name): assert False\n"
        "def test_dies(): os.abort()\n"
        "def test_hangs():\n"
        "    pathlib.Path(__file__).with_name('pid').write_text(f'{os.getpid()}\\n')\n"
        "    threading.Event().wait()\n"
    )
    monkeypatch.chdir(ROOT)
    return path


def run_of(tried: Path, *names: str, deadline_s: float = 600) -> tuple[str, str]:
    return campaign.run_tests([f"{tried}::{name}" for name in names], deadline_s, environment())


def test_a_run_reports_its_outcome_and_the_test_that_noticed(tried: Path) -> None:
    assert run_of(tried, "test_passes") == (SURVIVED, "")
    outcome, killer = run_of(tried, "test_passes", "test_fails")
    assert outcome == KILLED
    assert killer.endswith("test_tried.py::test_fails[a b]")
    assert run_of(tried, "test_dies") == (KILLED, f"ended by signal {signal.SIGABRT:d}")


def test_a_run_that_hangs_is_ended(tried: Path) -> None:
    assert run_of(tried, "test_hangs", deadline_s=1) == (HUNG, "")
    outcome, killer = campaign.run_tests([f"{tried}::test_hangs"], 600, environment(), "--timeout=1")
    assert outcome == KILLED
    assert killer.endswith("test_tried.py::test_hangs")


def test_tests_that_cannot_run_give_no_outcome(tried: Path) -> None:
    with pytest.raises(NotRunError, match=r"not found: .*test_unknown"):
        run_of(tried, "test_unknown")


@pytest.mark.parametrize("is_known", [True, False])
def test_a_mutant_that_prevents_the_collection_is_noticed_if_the_tests_exist(
    is_known: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = tmp_path / "test_importing.py"
    tests.write_text("import shmaccum.common.clock\ndef test_passes(): pass\n")
    name = f"{tests}::test_passes" if is_known else f"{tests}::test_unknown"
    site = Site("shmaccum/common/clock.py", 1, 0, "")
    monkeypatch.setattr(campaign, "mutant_code", lambda *_: compile("raise ImportError", "clock.py", "exec"))
    line_map = LineMap({name: 0.0}, lambda _path: {1: [name]})
    monkeypatch.setattr(line_map, "killers", lambda *_: [name])
    if is_known:
        assert judge(site, line_map).outcome == KILLED
    else:
        with pytest.raises(NotRunError):
            judge(site, line_map)


def test_tests_end_with_a_campaign_that_is_killed(tried: Path) -> None:
    program = "import sys; from tests.mutants import campaign; campaign.run_tests(sys.argv[1:], 600, dict(os.environ))"
    pid = tried.with_name("pid")
    with subprocess.Popen([sys.executable, "-c", f"import os; {program}", f"{tried}::test_hangs"], cwd=ROOT) as killed:
        wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"), "test begins")
        descriptor = os.pidfd_open(int(pid.read_text()))
        try:
            killed.kill()
            assert select.select([descriptor], [], [], WATCHDOG_S)[0]
        finally:
            os.close(descriptor)


def test_a_recording_continues_and_has_no_file_whose_run_crashed(tmp_path: Path) -> None:
    folder = tmp_path / "recording"
    first, second = tests = [tmp_path / "test_first.py", tmp_path / "test_second.py"]
    names = [str(test) for test in tests]
    source = "from shmaccum.common import clock\ndef test_runs(): clock.monotonic()\n"
    first.write_text(source)
    second.write_text(source + "import os\ndef test_crashes(): os._exit(70)\n")
    assert not record_lines(folder, names, end_s=0)
    with pytest.raises(RuntimeError, match=r"test_second.py is not recorded: pytest ended with exit code 70"):
        record_lines(folder, names)
    first.write_text("raise AssertionError('runs again')")
    second.write_text(source + "def test_fails(): assert False\n")
    assert record_lines(folder, names)
    path = "shmaccum/common/clock.py"
    found = LineMap.load(folder).killers(path, 1, (ROOT / path).read_text())
    assert sorted(test.rpartition("/")[2] for test in found) == [
        "test_first.py::test_runs",
        "test_second.py::test_runs",
    ]


def test_each_test_of_a_mutant_has_a_timeout_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    (site,) = draw(1, 1, SMALL)
    line_map = LineMap({"slow": 2.0, "quick": 1.0}, lambda _path: {})
    monkeypatch.setattr(line_map, "killers", lambda *_: ["quick", "slow"])
    given: list[tuple[object, ...]] = []

    def run_tests(tests: Sequence[str], deadline_s: float, _variables: object, *options: str) -> tuple[str, str]:
        given.append((tests, deadline_s, *options))
        return SURVIVED, ""

    monkeypatch.setattr(campaign, "run_tests", run_tests)
    assert judge(site, line_map).outcome == SURVIVED
    assert given == [(["quick", "slow"], 75.0, "--timeout=70")]


def test_a_line_without_a_test_is_untested() -> None:
    (site,) = draw(1, 1, SMALL)
    assert judge(site, LineMap({}, lambda _path: {})).outcome == UNTESTED


def test_a_change_is_named_by_its_function_and_its_line_before_and_after() -> None:
    found = {f"{change.function}: {change.change}" for change in changes("module.py", SOURCE).values()}
    assert found >= {
        "largest: return best -> return None",
        "largest: if best is None: -> if best is not None:",
    }


@pytest.mark.parametrize("path", sorted({row.path for row in EQUIVALENTS}))
def test_each_listed_change_is_one_mutant_of_the_code_and_has_a_reason(path: str) -> None:
    counts = Counter(changes(path, (ROOT / path).read_text()).values())
    rows = {row: reason for row, reason in EQUIVALENTS.items() if row.path == path}
    assert [row for row, reason in rows.items() if counts[row] != 1 or not reason.endswith(".")] == []


def test_a_mutant_that_is_listed_runs_no_test_and_is_not_counted() -> None:
    row = next(iter(EQUIVALENTS))
    found = changes(row.path, (ROOT / row.path).read_text())
    site = next(site for site, change in found.items() if change == row)
    line_map = LineMap({"test": 1.0}, lambda _path: {site.line: ["test"]})
    verdict = judge(site, line_map)
    assert verdict.outcome == EQUIVALENT
    assert table([verdict]) == ""


def test_verdicts_are_read_back_and_counted(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.csv")
    assert results.load() == []
    verdicts = [
        Verdict("shmaccum/sender/sender.py", 5, 2, "constant + 1", KILLED, 3, "tests/a.py::b[x,'y']"),
        Verdict("shmaccum/sender/sender.py", 6, 3, "constant - 1", SURVIVED, 3, ""),
    ]
    for verdict in verdicts:
        results.add(verdict)
    assert results.load() == verdicts
    assert "shmaccum/sender           1 of    2   50%" in table(verdicts)


def test_an_interval_has_the_share_within_it() -> None:
    low, high = interval(80, 100)
    assert (round(low, 3), round(high, 3)) == (0.711, 0.867)


def test_a_child_that_cannot_store_its_lines_ends_with_its_own_code(tmp_path: Path) -> None:
    program = """if True:
        import os
        from tests.mutants import recording

        def fail():
            raise PermissionError

        if (pid := os.fork()) == 0:
            recording._end = fail
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """
    variables = environment(SHMACCUM_RECORD_LINES=str(tmp_path))
    output = subprocess.check_output([sys.executable, "-c", program], env=variables, cwd=ROOT, text=True)
    assert output == "7\n"


def test_the_start_changes_nothing_without_a_run() -> None:
    variables = environment()
    program = "import sys; print('coverage' in sys.modules, [type(f).__name__ for f in sys.meta_path])"
    output = subprocess.check_output([sys.executable, "-c", program], env=variables, cwd=ROOT, text=True)
    assert output.startswith("False")
    assert "MutantFinder" not in output
