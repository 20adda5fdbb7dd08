# SPDX-License-Identifier: Apache-2.0
"""A run with tests that hang, die or start too late ends, and its report names each such test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from setup import ROOT
from shmaccum.arena import Arena
from tests.support import run_limits
from tests.support.processes import WATCHDOG_S, process_exists, wait_until
from tests.support.run_limits import ENDS_AT

INI = """
[pytest]
timeout = 1
filterwarnings = error
addopts = -p xdist -p pytest_timeout -p no:cacheprovider --max-worker-restart 0 -ra
"""
CONFTEST = """
from tests.support import run_limits
from tests.support.run_limits import *

run_limits.GRACE_S = run_limits.PIPE_S = 1.0
"""
HANGS_IN_C = """
import ctypes, os, subprocess
from shmaccum.arena import Arena

def hang():
    libc = ctypes.PyDLL(None)  # unlike CDLL, it keeps the GIL during a call
    mutex = ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)

def test_hangs():
    arena = Arena.create(f"shmaccum-test-{os.getpid()}-0")
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=subprocess.DEVNULL)
    with open("left", "w") as file:
        file.write(f"{child.pid} {arena.name}")
    hang()
"""
DIES_BEFORE_ITS_FORKS = """
import os, signal
from shmaccum.arena import Arena

def fork(*before):
    if pid := os.fork():
        return pid
    for call in before:
        call()
    while True:
        signal.pause()

def test_dies():
    arena = Arena.create(f"shmaccum-test-{os.getpid()}-0")
    stopped = fork()
    os.kill(stopped, signal.SIGSTOP)
    with open("left", "w") as file:
        file.write(f"{fork()} {stopped} {fork(os.setsid)} {arena.name}")
    os.kill(os.getpid(), signal.SIGKILL)
"""
DIES_BEFORE_A_HIDDEN_FORK = """
import ctypes, os, signal

def hide():
    numbers = open("/proc/self/stat").read().rpartition(")")[2].split()
    start, end = map(int, numbers[47:49])  # env_start and env_end in proc(5)
    ctypes.memset(start, 0, end - start)

def test_dies():
    if os.fork() == 0:
        hide()
        with open("left", "w") as file:
            file.write(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGKILL)
    while True:
        signal.pause()
"""
ENDS_SOON = """
from xdist.workermanage import NodeManager

NodeManager.EXIT_TIMEOUT = 1
"""
HANGS_IN_TEAR_DOWN = """
import pytest
from test_hangs import hang

@pytest.fixture
def slow():
    yield
    hang()

def test_fails_first(slow):
    assert False
"""
OVERRUNS = """
import subprocess

def test_overruns():
    subprocess.run(["sleep", "1000"])

def test_next():
    pass
"""
LEAVES_A_SOCKET = """
import gc, socket

def test_fails():
    left = [socket.socket()]
    left.append(left)
    assert False

def test_collects():
    gc.collect()
"""
LEAVES_A_THREAD = """
import threading

def test_leaves_a_thread():
    threading.Thread(target=threading.Event().wait).start()
"""
COMES_TOO_LATE = f"""
import os

def test_that_has_begun():
    os.environ["{ENDS_AT}"] = "0"

def test_that_has_not_begun():
    assert False

def test_another_one():
    assert False
"""

SHORT = """
def test_short():
    pass
"""
LONG = """
import time
import pytest

@pytest.mark.timeout(60)
def test_long():
    time.sleep(3)  # three times the grace
"""

TAKES_TOO_LONG = f"""
import os, time
import pytest

def test_that_has_begun():
    os.environ["{ENDS_AT}"] = str(time.time() + 1000)

@pytest.mark.timeout(1000 + {run_limits.LATE_S} + 100)
def test_that_may_take_too_long():
    assert False

@pytest.mark.timeout(1000 + {run_limits.LATE_S} - 100)
def test_that_may_take_long():
    pass
"""


def run_planted(folder: Path, *options: str, **files: str) -> tuple[int, str]:
    """Run pytest on the files, named without ``.py``. Return its status and its output."""
    (folder / "pytest.ini").write_text(INI)
    for name, text in {"conftest": CONFTEST, **files}.items():
        (folder / f"{name}.py").write_text(text)
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    with (folder / "output").open("w") as file:  # a process that was left would keep a pipe open
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options],
            cwd=folder,
            env={**ours, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200"},
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=5 * WATCHDOG_S,
        )
    output = (folder / "output").read_text()
    print(textwrap.indent(output, "planted: "))
    return done.returncode, output


def test_a_hang_in_c_ends_its_worker_and_the_run_and_leaves_no_process_and_no_arena(tmp_path: Path) -> None:
    status, output = run_planted(tmp_path, "-n", "1", test_hangs=HANGS_IN_C)
    assert status == 1
    assert 'test_hangs.py", line 9 in hang' in output
    assert "crashed while running 'test_hangs.py::test_hangs'" in output
    child, arena_name = (tmp_path / "left").read_text().split()
    assert not Arena.exists(arena_name)
    wait_until(lambda: not process_exists(int(child)), "the child is gone")


def test_a_dead_worker_ends_the_run_and_its_forks_whatever_they_do(tmp_path: Path) -> None:
    status, output = run_planted(tmp_path, "-n", "2", test_dies=DIES_BEFORE_ITS_FORKS)
    assert status == 1
    assert "crashed while running 'test_dies.py::test_dies'" in output
    *forks, arena_name = (tmp_path / "left").read_text().split()
    assert not Arena.exists(arena_name)
    wait_until(lambda: not any(process_exists(int(fork)) for fork in forks), "the forks are gone")


def test_a_dead_worker_ends_the_run_though_a_fork_that_cannot_be_found_keeps_its_pipe(tmp_path: Path) -> None:
    files = {"conftest": CONFTEST + ENDS_SOON, "test_dies": DIES_BEFORE_A_HIDDEN_FORK}
    try:
        status, output = run_planted(tmp_path, "-n", "2", **files)
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)
    assert status == 1
    assert "crashed while running 'test_dies.py::test_dies'" in output


def test_a_hang_in_a_collection_ends_the_run(tmp_path: Path) -> None:
    for options in [], ["-n", "1"]:
        status, output = run_planted(tmp_path, *options, test_sleeps="import time\n\ntime.sleep(1000)\n")
        assert status != 0
        assert 'test_sleeps.py", line 3 in <module>' in output


def test_the_tear_down_of_a_failed_test_is_watched(tmp_path: Path) -> None:
    files = {"test_hangs": HANGS_IN_C, "test_tear_down": HANGS_IN_TEAR_DOWN}
    status, output = run_planted(tmp_path, "test_tear_down.py", **files)
    assert status == 1
    assert 'test_tear_down.py", line 8 in slow' in output


def test_a_test_that_overruns_fails_and_the_next_one_runs(tmp_path: Path) -> None:
    status, output = run_planted(tmp_path, test_overruns=OVERRUNS)
    assert (status, output.splitlines()[-1].split(" in ")[0].strip("= ")) == (1, "1 failed, 1 passed")


def test_a_failed_test_leaves_nothing_that_fails_another_one(tmp_path: Path) -> None:
    status, output = run_planted(tmp_path, test_leaves=LEAVES_A_SOCKET)
    assert (status, output.splitlines()[-1].split(" in ")[0].strip("= ")) == (1, "1 failed, 1 passed")


def test_a_run_whose_minutes_are_over_begins_no_test_and_does_not_fail(tmp_path: Path) -> None:
    status, output = run_planted(tmp_path, test_late=COMES_TOO_LATE)
    assert status == 0
    assert "SKIPPED [2]" in output
    assert "not begun, because the minutes of the run were over" in output


def test_a_test_that_may_run_long_after_the_end_is_not_begun(tmp_path: Path) -> None:
    status, output = run_planted(tmp_path, test_long=TAKES_TOO_LONG)
    assert status == 0
    assert output.splitlines()[-1].split(" in ")[0].strip("= ") == "2 passed, 1 skipped"


def test_a_worker_waits_longer_than_the_grace_for_the_last_test_of_another_one(tmp_path: Path) -> None:
    status, output = run_planted(tmp_path, "-n", "2", "--dist", "loadfile", test_short=SHORT, test_long=LONG)
    assert status == 0
    assert "2 passed" in output
    assert "Timeout" not in output


def test_a_thread_that_does_not_end_does_not_keep_the_process(tmp_path: Path) -> None:
    _, output = run_planted(tmp_path, test_thread=LEAVES_A_THREAD)
    assert "1 passed" in output
    assert "Timeout (0:00:01)!" in output
