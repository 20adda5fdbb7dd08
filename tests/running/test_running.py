# SPDX-License-Identifier: Apache-2.0
"""Planted tests that overrun, die or hang: each run ends within seconds, and its report names the test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from setup import ROOT
from tests.support.processes import process_exists, wait_until

pytestmark = pytest.mark.xdist_group("planted")

LIMIT_S = 2
GRACE_S = 1
IDLE_S = 60
"""Enough for a worker to start on a busy machine."""
SHORT_IDLE_S = 5
ENDS_WITHIN_S = 600
"""A run takes at most fifteen seconds on a quiet machine."""

INI = f"""
[pytest]
timeout = {LIMIT_S}
overrun_grace = {GRACE_S}
filterwarnings = error
addopts = -p xdist -p pytest_timeout -p tests.running.minutes -p tests.running.overrun -p tests.running.workers
    -p no:cacheprovider --max-worker-restart 20
markers = xdist_group
"""

ENVIRONMENT = {
    "PYTHONPATH": str(ROOT),
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PY_COLORS": "0",
    "COLUMNS": "200",
}
"""The environment of a planted run, so that its output is the same wherever ours is shown."""

GOOD = """
def test_good():
    pass
"""
WAITS = """
import subprocess

def test_waits():
    subprocess.run(["sleep", "1000"])

def test_after():
    pass
"""
CATCHES = """
import time

def test_catches():
    try:
        time.sleep(1000)
    except BaseException:
        time.sleep(1000)
"""
HANGS_IN_TEAR_DOWN = """
import time
import pytest

@pytest.fixture
def slow():
    yield
    time.sleep(1000)

def test_fails_first(slow):
    assert False
"""
HANGS_IN_HYPOTHESIS = """
import time
from hypothesis import given, settings, strategies

@settings(deadline=None, database=None)
@given(strategies.integers())
def test_example(number):
    time.sleep(1000)
"""
HOLDS_THE_GIL = """
import ctypes

def test_holds_the_gil():
    libc = ctypes.PyDLL(None)  # unlike CDLL, it keeps the GIL during a call
    mutex = ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)
"""
STOPS = """
import os, signal

def test_stops():
    os.kill(os.getpid(), signal.SIGSTOP)
"""
LEAVES_A_THREAD = """
import threading, time

def test_leaves_a_thread():
    threading.Thread(target=time.sleep, args=(1000,)).start()
"""
LEAVES_A_CHILD = """
import os, subprocess

def test_leaves_a_child():
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=subprocess.DEVNULL)
    with open("child", "w") as file:
        file.write(str(child.pid))
    os._exit(1)
"""
DIES = """
import ctypes, os

def test_dies():
    {death}
"""
DIES_IN_A_GROUP = """
import os
import pytest

pytestmark = pytest.mark.xdist_group("{group}")

def test_a():
    {a}

def test_b():
    {b}

def test_c():
    {c}
"""
DEATHS = {
    "ends": ("os._exit(0)", "ended with status 0"),
    "killed": ("os.kill(os.getpid(), 9)", "was ended by SIGKILL"),
    "segv": ("ctypes.string_at(0)", "was ended by SIGSEGV"),
}
MORTAL = {
    **{f"test_{name}": DIES.format(death=death) for name, (death, _) in DEATHS.items()},
    **{
        f"test_group_{dying}": DIES_IN_A_GROUP.format(
            group=dying, **{name: "os._exit(1)" if name == dying else "pass" for name in "abc"}
        )
        for dying in "abc"
    },
    "test_z_good": GOOD,
}
"""Six tests die, seven pass."""
IS_BUSY = """
import os

os.getloadavg = lambda: (2.0 * len(os.sched_getaffinity(0)), 0.0, 0.0)
"""
SLEEPS = """
import time

def test_sleeps():
    time.sleep({seconds})
"""
TOGETHER = """
import os
import pytest

@pytest.mark.xdist_group("{group}")
@pytest.mark.parametrize("number", range(4))
def test_together(number):
    with open("{group}", "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")
"""
LEAVES_A_SOCKET = """
import socket

def test_fails():
    left = [socket.socket()]
    left.append(left)
    assert False
"""
COLLECTS = """
import gc

def test_collects():
    gc.collect()
"""
NOTES_ITS_IMPORT = """
import os

with open(os.environ["PYTEST_XDIST_WORKER"], "a") as file:
    file.write(__name__ + " ")

def test_good():
    pass
"""
MINUTES_ARE_OVER = """
from tests.running import minutes

def test_that_has_begun(request):
    request.config.stash[minutes.ENDS_AT] = 0.0

def test_that_has_not_begun():
    assert False

def test_another_one():
    assert False
"""
STANDS_STILL = """
import pytest
from xdist.scheduler import LoadGroupScheduling

class NeverAgain(LoadGroupScheduling):
    def _reschedule(self, node):
        pass

@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config, log):
    return NeverAgain(config, log)
"""


ID_WITH_ADDRESS = """
import pytest

@pytest.mark.parametrize("given", [lambda: None], ids=repr)
def test_given(given):
    pass
"""
ID_OF_PROCESS = """
import os
import pytest

@pytest.mark.parametrize("given", [os.getpid()])
def test_given(given):
    pass
"""


@dataclass
class Run:
    """A pytest that has ended.

    Attributes:
        status: its exit status.
        output: all that it wrote.
        folder: its working directory.
    """

    status: int
    output: str = field(repr=False)
    folder: Path

    def shows(self, pattern: str) -> bool:
        """Whether a line of the output has a match; a failed assertion then shows no part of the output."""
        return re.search(pattern, self.output, re.MULTILINE) is not None

    def counts(self) -> dict[str, int]:
        """Tests by outcome, from the last line."""
        counted = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", self.output.splitlines()[-1])}
        return {word: count for word, count in counted.items() if word in {"passed", "failed", "error", "skipped"}}


def masked(output: str) -> str:
    """The output of a planted run for the report of ours: no reader of our report takes a planted failure for one of
    our tests. Each line is marked, and its outcomes are written small."""
    return re.sub(r"\b[A-Z]{4,}\b", lambda word: word[0].lower(), re.sub("^", "planted: ", output, flags=re.MULTILINE))


def run_planted(
    folder: Path,
    files: Mapping[str, str],
    *,
    workers: int,
    idle_s: int = IDLE_S,
    stretch_max: int = 1,
    options: Sequence[str] = (),
) -> Run:
    """Runs pytest on the files, whose names are given without ``.py``."""
    (folder / "pytest.ini").write_text(f"{INI}idle_limit = {idle_s}\noverrun_stretch_max = {stretch_max}\n")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", str(workers), "--dist", "loadgroup", *options],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")} | ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=ENDS_WITHIN_S,
    )
    print(masked(done.stdout))
    return Run(done.returncode, done.stdout, folder)


def test_a_failed_test_leaves_nothing_that_fails_another_one(tmp_path: Path) -> None:
    plugin = "from tests.running.leftovers import *\n"
    ended = run_planted(tmp_path, {"conftest": plugin, "test_a": LEAVES_A_SOCKET, "test_b": COLLECTS}, workers=1)
    assert ended.counts() == {"failed": 1, "passed": 1}


@pytest.fixture(scope="module")
def overrunning(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Tests that overrun, each in another way, on four workers: together they wait no longer than the longest."""
    files = {
        "test_catches": CATCHES,
        "test_example": HANGS_IN_HYPOTHESIS,
        "test_gil": HOLDS_THE_GIL,
        "test_stops": STOPS,
        "test_tear_down": HANGS_IN_TEAR_DOWN,
        "test_thread": LEAVES_A_THREAD,
        "test_waits": WAITS,
        "test_z_good": GOOD,
    }
    return run_planted(tmp_path_factory.mktemp("overrunning"), files, workers=4)


def test_each_overrunning_test_fails_and_each_other_passes(overrunning: Run) -> None:
    """The tear-down's own failure counts as an error."""
    assert overrunning.status == 1
    assert overrunning.counts() == {"failed": 6, "error": 1, "passed": 3}


def test_a_test_that_overruns_is_interrupted(overrunning: Run) -> None:
    assert overrunning.shows(r"^FAILED test_waits.py::test_waits - tests.running.overrun.Overrun")
    assert overrunning.shows(r"^\d+ sleeping sleep 1000$")


def test_a_test_that_catches_the_interruption_is_interrupted_again(overrunning: Run) -> None:
    assert overrunning.shows(r"the test has a limit of 2 s and was in its call after ([3-9]|\d\d)")


def test_a_tear_down_that_hangs_is_interrupted(overrunning: Run) -> None:
    assert overrunning.shows("the test has a limit of 2 s and was in its teardown")


def test_hypothesis_does_not_repeat_an_example_that_overran(overrunning: Run) -> None:
    assert overrunning.shows("FAILED test_example.py::test_example - tests.running.overrun.Overrun")


def test_a_hang_with_the_gil_ends_the_worker_and_its_stacks_are_in_the_report(overrunning: Run) -> None:
    assert overrunning.shows("test_holds_the_gil was not finished: the process that ran it")
    assert overrunning.shows(r'File ".*test_gil.py", line 8 in test_holds_the_gil')


def test_a_stopped_worker_is_killed(overrunning: Run) -> None:
    assert overrunning.shows(r"test_stops was not finished: worker gw\d, process \d+, was stopped")


def test_only_two_workers_died(overrunning: Run) -> None:
    assert overrunning.output.count("node down") == 2


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.slow)], ids=["one-worker", "two-workers"])
def dying(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Tests whose workers die, at every place of a group."""
    workers: int = request.param
    files = {**MORTAL, "test_child": LEAVES_A_CHILD}
    return run_planted(tmp_path_factory.mktemp("dying"), files, workers=workers)


def test_a_worker_that_dies_costs_one_test(dying: Run) -> None:
    assert dying.status == 1
    assert dying.counts() == {"failed": 7, "passed": 7}


@pytest.mark.parametrize("name", DEATHS)
def test_the_report_says_how_the_worker_died(dying: Run, name: str) -> None:
    _, end = DEATHS[name]
    report = rf"test_{name}.py::test_dies was not finished: the process that ran it, worker gw\d+, {end}"
    assert dying.shows(report)


def test_what_a_dead_worker_had_started_is_killed(dying: Run) -> None:
    pid = int((dying.folder / "child").read_text())
    wait_until(lambda: not process_exists(pid), "the child is gone")


def test_workers_import_different_modules_first_and_each_module_once(tmp_path: Path) -> None:
    names = [f"test_{letter}" for letter in "abcd"]
    plugin = "from tests.running.collecting import *\n"
    run = run_planted(tmp_path, {"conftest": plugin, **dict.fromkeys(names, NOTES_ITS_IMPORT)}, workers=2)
    assert run.counts() == {"passed": 4}
    imported = {worker: (tmp_path / worker).read_text().split() for worker in ("gw0", "gw1")}
    assert imported == {
        "gw0": ["test_a", "test_c", "test_b", "test_d"],
        "gw1": ["test_b", "test_d", "test_a", "test_c"],
    }


@pytest.mark.parametrize("workers", [0, 1])
def test_an_id_with_an_address_is_refused_by_the_name_of_its_test(tmp_path: Path, workers: int) -> None:
    plugin = "from tests.running.collecting import *\n"
    run = run_planted(tmp_path, {"conftest": plugin, "test_a": ID_WITH_ADDRESS}, workers=workers)
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert run.shows(r"the id of the test test_a.py::test_given\[.* at 0x.*\] holds the address of an object")


def test_an_id_that_differs_between_workers_is_refused_by_the_name_of_its_test(tmp_path: Path) -> None:
    plugin = "from tests.running.collecting import *\n"
    run = run_planted(tmp_path, {"conftest": plugin, "test_a": ID_OF_PROCESS}, workers=2)
    assert run.status == pytest.ExitCode.USAGE_ERROR
    assert run.shows(r"do not collect the same tests, for example the test test_a.py::test_given\[\d+\]")


def test_the_tests_of_a_group_run_in_one_worker(tmp_path: Path) -> None:
    groups = ("one", "two")
    run = run_planted(tmp_path, {f"test_{group}": TOGETHER.format(group=group) for group in groups}, workers=2)
    assert run.counts() == {"passed": 8}
    ran_in = [(tmp_path / group).read_text().split() for group in groups]
    assert [len(workers) for workers in ran_in] == [4, 4]
    assert sorted(set(ran_in[0] + ran_in[1])) == ["gw0", "gw1"]
    assert [len(set(workers)) for workers in ran_in] == [1, 1]


def test_without_workers_a_hang_with_the_gil_ends_the_run(tmp_path: Path) -> None:
    run = run_planted(tmp_path, {"test_gil": HOLDS_THE_GIL}, workers=0)
    assert run.status == 1
    assert run.shows(r'File ".*test_gil.py", line 8 in test_holds_the_gil')


@pytest.mark.slow
def test_a_limit_is_longer_on_a_busy_machine(tmp_path: Path) -> None:
    longer, too_long = (SLEEPS.format(seconds=seconds) for seconds in (1.5 * LIMIT_S, 1000))
    files = {"conftest": IS_BUSY, "test_longer": longer, "test_too_long": too_long}
    run = run_planted(tmp_path, files, workers=2, stretch_max=4)
    assert run.counts() == {"passed": 1, "failed": 1}
    assert run.shows(f"test_too_long.py::test_sleeps - .*a limit of {2 * LIMIT_S} s and was in its call")


@pytest.mark.slow
def test_a_run_that_stands_still_is_ended(tmp_path: Path) -> None:
    files = {"conftest": STANDS_STILL, "test_a": "def test_fails():\n    assert 0\n", "test_b": GOOD, "test_c": GOOD}
    run = run_planted(tmp_path, files, workers=1, idle_s=SHORT_IDLE_S, stretch_max=6)
    assert run.status == 3
    assert run.shows(r"for [0-9.]+ s no worker has started or finished one: gw0")


@pytest.mark.slow
def test_a_busy_machine_has_longer_before_it_stands_still(tmp_path: Path) -> None:
    files = {"conftest": IS_BUSY + STANDS_STILL, "test_a": GOOD, "test_b": GOOD, "test_c": GOOD}
    run = run_planted(tmp_path, files, workers=1, idle_s=1, stretch_max=2)
    assert run.shows("for 2 s no worker has started or finished one")


def test_a_run_whose_minutes_are_over_begins_no_test_and_says_so(tmp_path: Path) -> None:
    run = run_planted(tmp_path, {"test_long": MINUTES_ARE_OVER}, workers=0, options=["--minutes", "30"])
    assert run.status == 0
    assert run.counts() == {"passed": 1, "skipped": 2}
    assert run.shows("^2 tests were not begun: the run had 30 minutes.$")


def test_workers_know_when_the_minutes_of_the_run_are_over(tmp_path: Path) -> None:
    run = run_planted(tmp_path, {"test_a": GOOD, "test_b": GOOD}, workers=1, options=["--minutes", "0.0001"])
    assert run.status == 0
    assert run.counts() == {"skipped": 2}
    assert run.shows("^2 tests were not begun")


def test_our_report_shows_no_planted_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-rA -v")
    files = {"test_bad": "def test_fails():\n    assert 0\n", "test_good": GOOD}
    run = run_planted(tmp_path, files, workers=0)
    assert run.counts() == {"failed": 1, "passed": 1}
    report = "".join(capfd.readouterr())
    assert "planted: failed test_bad.py::test_fails" in report
    assert not re.search("FAILED|ERROR|PASSED", report + repr(run))
