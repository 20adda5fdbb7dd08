# SPDX-License-Identifier: Apache-2.0
"""A run on several workers ends, whatever happens to a worker: the controller's side of `tests.running.overrun`.

- `GroupSchedule` gives the tests of a worker that died to the others; pytest-xdist 3.8.0 waits for ever then.
- The report of a test whose worker died says how the worker died, and shows its stacks.
- The tests of an ``xdist_group`` run in one worker, also with pytest 9.2.
- Processes that a dead worker had started are killed.
- A worker that overruns all lines of defence is killed, and a run without progress and without a running test is
  ended with a message.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType

import psutil
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling, Scheduling
from xdist.workermanage import WorkerController

from tests.running.overrun import EXIT_LIMIT_S, Note, note_path, stacks_path, stretch

LOOK_S = 1.0
IDLE_INI = "idle_limit"
IDLE_S = 180.0
"""Time without a running test and without any news. Workers that start and collect need less. Where more processes
want to run than there are cores, the time is longer, as the limit of a test is."""
EXIT_STATUS = 3
STACKS_MAX = 20_000
"""Characters of a dead worker's stacks that a report shows."""


class GroupSchedule(LoadGroupScheduling):  # type: ignore[misc]
    """``--dist loadgroup`` that ends when workers die.

    pytest-xdist 3.8.0 hangs then in two ways: it hands finished tests out again as empty work (its issue 1323), and
    it gives a new worker one test, which that worker starts only when it knows the next (1327). It fails when a new
    worker has not collected yet (1189) or dies while it is given work. It also repeats the test that killed the
    worker until no more workers are started (1371).

    The groups come from the workers' files in `notes`: pytest-xdist writes the group into the id of a test, where
    pytest 9.2 does not look, so that no test has a group there.
    """

    def __init__(self, config: pytest.Config, log: Producer, notes: Path) -> None:
        super().__init__(config, log)
        self._notes = notes

    @functools.cached_property
    def _groups(self) -> dict[str, str]:
        """Tests that have a group, and their groups. All workers have collected the same."""
        written = next(self._notes.glob("*.groups"))
        groups: dict[str, str] = json.loads(written.read_text())
        return groups

    def _split_scope(self, nodeid: str) -> str:
        """The group of a test; a test without a group is one of its own."""
        return self._groups.get(nodeid, nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Takes the worker out; the test that it ran, which counts as done. Others get the rest of its tests."""
        workload: dict[str, dict[str, bool]] = self.assigned_work.pop(node)
        waiting = ((unit, nodeid) for unit in workload.values() for nodeid, is_done in unit.items() if not is_done)
        unit, crashed = next(waiting, ({}, None))
        if crashed is None:
            return None
        unit[crashed] = True
        self.workqueue.update({scope: unit for scope, unit in workload.items() if not all(unit.values())})
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        """Gives the worker work until it has a next test, or tells it that there is none."""
        if node.shutting_down or node not in self.registered_collections:
            return
        # A worker that has just died takes no work. News of its death are on their way, and end in remove_node.
        with contextlib.suppress(OSError):
            while self.workqueue and self._pending_of(self.assigned_work[node]) <= 2:
                self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()


def end_of(node: WorkerController) -> str:
    """How a worker's process ended, in words."""
    status = node.gateway._io.popen.poll()
    if status is None:
        return "closed its channel"
    return f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def processes_started_by(node: WorkerController) -> Iterator[psutil.Process]:
    """Living processes that inherited the environment of a worker that is dead."""
    wanted = {
        "PYTEST_XDIST_TESTRUNUID": node.workerinput["testrunuid"],
        "PYTEST_XDIST_WORKER": node.workerinput["workerid"],
    }
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if wanted.items() <= process.environ().items():
                yield process


def kill_processes_started_by(node: WorkerController) -> None:
    for process in processes_started_by(node):
        with contextlib.suppress(psutil.Error):
            process.kill()


class Supervisor:
    """The plugin of the controller."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._notes = Path(tempfile.mkdtemp(prefix="shmaccum-tests-"))
        self._news_at = time.monotonic()
        self._killed: dict[str, str] = {}

    # --- the notes, for workers and scheduler

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: WorkerController) -> None:
        node.workerinput["notes"] = str(self._notes)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Producer) -> Scheduling | None:
        return GroupSchedule(config, log, self._notes) if config.getoption("dist") == "loadgroup" else None

    # --- news

    def _has_news(self) -> None:
        self._news_at = time.monotonic()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodeready(self) -> None:
        self._has_news()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        self._has_news()

    def pytest_runtest_logstart(self) -> None:
        self._has_news()

    def pytest_runtest_logfinish(self) -> None:
        self._has_news()

    # --- a worker died

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: WorkerController, error: object | None) -> None:
        self._has_news()
        note_path(self._notes, node.gateway.id).unlink(missing_ok=True)
        if error:
            with contextlib.suppress(Exception):
                node.gateway._io.popen.wait(LOOK_S)
            kill_processes_started_by(node)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        node: WorkerController = report.node
        worker = node.gateway.id
        why = self._killed.get(worker) or f"the process that ran it, worker {worker}, {end_of(node)}"
        report.location = (*report.location[:2], crashitem.partition("::")[2])
        report.longrepr = f"{crashitem} was not finished: {why}\n{self._stacks(worker)}"

    def _stacks(self, worker: str) -> str:
        try:
            stacks = stacks_path(self._notes, worker).read_text(errors="replace")
        except FileNotFoundError:
            return ""
        return f"Its stacks, written as it ended:\n{stacks[:STACKS_MAX]}" if stacks else "It wrote no stacks."

    # --- the second hand

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        self._has_news()
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _look(self, _signal: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        notes = {path.stem: Note.read(path) for path in self._notes.glob("*.note")}
        for worker, note in notes.items():
            if now > note.kill_at and worker not in self._killed:
                self._kill(worker, note)
        if now > self._news_at + self._idle_limit() and not any(note.nodeid for note in notes.values()):
            self._end_the_run(notes)

    def _idle_limit(self) -> float:
        return float(self._config.getini(IDLE_INI)) * stretch(self._config)

    def _kill(self, worker: str, note: Note) -> None:
        state = "gone"
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(note.pid)
            state = process.status()
            process.kill()
        self._killed[worker] = (
            f"worker {worker}, process {note.pid}, was {state} and its own watchdog did not end it, so it was killed"
        )

    def _end_the_run(self, notes: dict[str, Note]) -> None:
        """Raises in the loop of pytest-xdist, so that failures until now are told; the watchdog is for its end."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.dump_traceback_later(EXIT_LIMIT_S, exit=True)
        workers = ", ".join(f"{worker} (process {note.pid})" for worker, note in sorted(notes.items()))
        pytest.exit(
            f"no test runs, and for {self._idle_limit():g} s no worker has started or finished one: {workers}",
            EXIT_STATUS,
        )

    def pytest_unconfigure(self) -> None:
        shutil.rmtree(self._notes, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(IDLE_INI, "seconds without news after which a run on several workers is ended", default=str(IDLE_S))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and config.getoption("dist", "no") != "no":
        config.pluginmanager.register(Supervisor(config), "supervisor-of-workers")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Two workers for each core: a worker spends much of its time waiting for the processes that its tests started.

    With three workers on two cores a quarter of the processors' time was idle.
    """
    return 2 * len(os.sched_getaffinity(0))
