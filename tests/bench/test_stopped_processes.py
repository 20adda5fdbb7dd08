# SPDX-License-Identifier: Apache-2.0
"""A contender's processes are stopped between its rounds, while others are measured."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.harness.measuring import measure
from bench.harness.question import Contender, Measurement
from bench.harness.stopped_processes import StoppedProcesses
from tests.support.processes import wait_until

COUNTING_WITH_A_CHILD = "while :; do :; done & echo $!; wait"


class Poller:
    """A program and its child, started at the first round, that use a core each until their end."""

    def __init__(self) -> None:
        self.stopped = StoppedProcesses()
        self.processes: list[psutil.Process] = []
        self._shell: subprocess.Popen[bytes] | None = None

    def run(self) -> Measurement:
        if self._shell is None:
            command = ["sh", "-c", COUNTING_WITH_A_CHILD]
            self._shell = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
            assert self._shell.stdout is not None
            self.processes = [psutil.Process(self._shell.pid), psutil.Process(int(self._shell.stdout.readline()))]
            self.stopped.add(self._shell.pid)
        wait_until(lambda: psutil.STATUS_STOPPED not in self.states(), "it runs in its round")
        return {"ns": 1.0}

    def states(self) -> set[str]:
        return {process.status() for process in self.processes}

    def end(self) -> None:
        if self._shell is not None:
            os.killpg(self._shell.pid, signal.SIGKILL)  # both, even if the child could not be identified
            self._shell.communicate()


@pytest.fixture
def poller() -> Iterator[Poller]:
    found = Poller()
    yield found
    found.end()


def test_one_that_is_held_stands_still_while_others_have_their_round(poller: Poller) -> None:
    def run() -> Measurement:
        wait_until(lambda: poller.states() == {psutil.STATUS_STOPPED}, "the poller and its child stand still")
        for _ in range(1000):
            os.getpid()
        assert poller.states() == {psutil.STATUS_STOPPED}, (
            "it stood still all the time, for nothing stops it a second time"
        )
        return {"ns": 1.0}

    measured = measure(
        [Contender("polls", poller.run, stopped=poller.stopped), Contender("other", run)], "other", 3, 1e9
    )
    assert [len(series.measurements) for series in measured.series] == [3, 3]


def test_a_group_that_has_ended_is_no_error(tmp_path: Path) -> None:
    process = subprocess.Popen(["touch", str(tmp_path / "ran")], start_new_session=True)
    process.wait()
    stopped = StoppedProcesses()
    stopped.add(process.pid)
    with stopped.running():
        assert (tmp_path / "ran").exists()
