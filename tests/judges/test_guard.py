# SPDX-License-Identifier: Apache-2.0
"""An interrupted run of the judges leaves no process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from setup import ROOT
from tests.judges.guard import guarded
from tests.support.processes import wait_until

FAMILY = "sleep 1000 & echo $! $$ > pids.new; mv pids.new pids; "
"""A shell command that starts a child and prints both pids."""


def family(folder: Path) -> list[int]:
    """Wait for the pids of the child and of the command."""
    wait_until((folder / "pids").exists, "the command has started")
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def is_gone(process: psutil.Process) -> bool:
    """True when the process has ended, even during the check or if its pid is reused."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_process_that_ends_during_the_observation_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    process = psutil.Process()
    monkeypatch.setattr(process, "status", lambda: psutil.Process(2**22 + 1))
    assert is_gone(process)


@pytest.mark.parametrize("ending", ["wait", "trap '' TERM; wait"])
def test_a_command_and_its_child_end_with_the_block(tmp_path: Path, ending: str) -> None:
    with guarded(["sh", "-c", FAMILY + ending], stop_s=0.1, cwd=tmp_path):
        processes = [psutil.Process(pid) for pid in family(tmp_path)]
    wait_until(lambda: all(map(is_gone, processes)), "both have ended")


def test_a_command_that_ends_gives_its_exit_code_and_leaves_no_child(tmp_path: Path) -> None:
    with guarded(["sh", "-c", FAMILY + "exit 7"], cwd=tmp_path) as process:
        assert process.wait() == 7
    wait_until(lambda: not any(map(psutil.pid_exists, family(tmp_path))), "both have ended")


RUN = """
    import pathlib, sys
    from tests.judges import __main__ as judges
    from tests.judges.suites import Suite, _execute

    place, command = pathlib.Path(sys.argv[1]), sys.argv[2]

    def run(needed, address, reports):
        print(address, flush=True)
        _execute(["sh", "-c", command], place, {}, reports / "suite.log")
        return {}

    judges.PLACE = place / "reports"
    judges.SUITES = (Suite("fake", ".", run),)
    sys.argv[1:] = [str(place)]
    judges.main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_leaves_no_process_and_no_file_elsewhere(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "temporary").mkdir()
    command = [sys.executable, "-c", textwrap.dedent(RUN), str(tmp_path), f"{FAMILY} wait"]
    variables = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    with subprocess.Popen(command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, text=True) as judges:
        assert judges.stdout is not None
        assert judges.stdout.readline().startswith("127.0.0.1:")
        wait_until((tmp_path / "pids").exists, "the suite runs")
        started = psutil.Process(judges.pid).children(recursive=True)
        assert len(started) >= 5, "two guards, a server, a suite and its child"
        judges.send_signal(number)
    wait_until(lambda: all(map(is_gone, started)), "everything has ended")
    assert list((tmp_path / "temporary").iterdir()) == []
