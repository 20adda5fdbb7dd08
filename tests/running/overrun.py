# SPDX-License-Identifier: Apache-2.0
"""A test that runs longer than its limit fails, and the run goes on.

The limit is pytest-timeout's: its ini option, its command-line option and its mark say how many seconds a test has,
fixtures included. This plugin replaces what happens then. Each line of defence ends what the line before cannot end:

========================  =============================================================================================
at the limit              SIGALRM raises `Overrun` in the test; stacks of all threads go into its report. The signal
                          comes again after each further grace, for a test or a tear-down that does not end.
3 graces after the limit  The watchdog thread of `faulthandler` needs no GIL. It writes the stacks of all threads and
                          ends the process.
4 graces after the limit  The controller of pytest-xdist kills a worker that is still there, because it is stopped
                          (`tests.running.workers`).
========================  =============================================================================================

The limit is for a machine that has a core for each process that wants one. Where more of them want to run, as the load
average of the last minute tells at the limit, the limit is so many times longer, and all that follows is later.

Under pytest-xdist each worker keeps a `Note` for the controller, and the stacks of a worker that ended stand in the
report of the test that it ran. Without pytest-xdist the watchdog writes to stderr and ends the run.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import psutil
import pytest
from _pytest.outcomes import OutcomeException

GRACE_INI = "overrun_grace"
GRACE_S = 20.0
GRACES_TO_WATCHDOG = 3
GRACES_TO_KILL = 4
SOON_S = 0.05
STRETCH_INI = "overrun_stretch_max"
STRETCH_MAX = 6.0
EXIT_LIMIT_S = 60.0
"""Time that a process has to end after its last test: threads that nobody joins cannot hold up the run."""


class Overrun(OutcomeException):
    """A test ran longer than its limit.

    Pytest takes an `OutcomeException` for the test's failure and goes on tearing down; ``except Exception`` does not
    catch it, and hypothesis does not run the example again.
    """


@dataclass(frozen=True)
class Note:
    """News of a worker for the controller, in a file.

    Attributes:
        pid: the worker's process.
        nodeid: the running test; empty between two tests.
        kill_at: time of CLOCK_MONOTONIC at which the controller kills the worker; infinite between two tests.
    """

    pid: int
    nodeid: str = ""
    kill_at: float = float("inf")

    def write(self, path: Path) -> None:
        """Replaces the file at once, so that a reader never sees half a note."""
        unfinished = path.with_suffix(".new")
        unfinished.write_text(f"{self.pid}\n{self.kill_at}\n{self.nodeid}")
        unfinished.replace(path)

    @classmethod
    def read(cls, path: Path) -> Note:
        pid, kill_at, nodeid = path.read_text().split("\n", 2)
        return cls(int(pid), nodeid, float(kill_at))


def grace_s(config: pytest.Config) -> float:
    """Seconds between two lines of defence."""
    return float(config.getini(GRACE_INI))


def stretch(config: pytest.Config) -> float:
    """How many times longer than on a quiet machine a test takes now: 1 or more."""
    wanting, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    return max(1.0, min(wanting / cores, float(config.getini(STRETCH_INI))))


def note_path(folder: str | Path, worker_id: str) -> Path:
    return Path(folder, f"{worker_id}.note")


def stacks_path(folder: str | Path, worker_id: str) -> Path:
    return Path(folder, f"{worker_id}.stacks")


def write_groups(path: Path, items: Iterable[pytest.Item]) -> None:
    """Tells the controller the group of each test that has one, by its id."""
    marks = {item.nodeid: [str(mark.args[0]) for mark in item.iter_markers("xdist_group")] for item in items}
    path.write_text(json.dumps({nodeid: "_".join(sorted(names)) for nodeid, names in marks.items() if names}))


def stacks_of_all_threads() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def started_processes() -> str:
    """One line for each living process that this one started, directly or through others."""
    lines = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            lines.append(f"{process.pid} {process.status()} {' '.join(process.cmdline())[:200]}")
    return "\n".join(lines)


class Timers:
    """The alarm and the watchdog of one test.

    Attributes:
        item: the test.
        limit: seconds that it has; on a busy machine, these are more than were asked for.
    """

    def __init__(self, item: pytest.Item, limit: float, output: TextIO, tell: Callable[[str, float], None]) -> None:
        self.item = item
        self.limit = limit
        self._asked_limit = limit
        self._output = output
        self._tell = tell
        self._grace = grace_s(item.config)
        self._began = time.monotonic()
        self._phase = ""
        self._has_rung = False
        self._alarm_at = self._began + limit

    @property
    def kill_at(self) -> float:
        return self._began + self.limit + GRACES_TO_KILL * self._grace

    def begin(self) -> None:
        """Arms the timers, and tells the controller when the worker may be killed."""
        self._tell(self.item.nodeid, self.kill_at)
        self.arm()

    def _is_given_more(self) -> bool:
        """True where the machine is busy and the test has a longer limit from now on."""
        self.limit = max(self.limit, self._asked_limit * stretch(self.item.config))
        self._alarm_at = self._began + self.limit
        return self._alarm_at > time.monotonic() + SOON_S

    def arm(self) -> None:
        """Sets both; again after plugins of pytest took them away, which they do whenever a test fails."""
        now = time.monotonic()
        signal.signal(signal.SIGALRM, self._ring)
        signal.setitimer(signal.ITIMER_REAL, max(self._alarm_at - now, SOON_S), self._grace)
        watchdog_at = self._began + self.limit + GRACES_TO_WATCHDOG * self._grace
        faulthandler.dump_traceback_later(max(watchdog_at - now, SOON_S), file=self._output, exit=True)

    def disarm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def phase(self, name: str) -> Generator[None, None, None]:
        """Set-up, call or tear-down: pytest reports what is raised in one of them as the test's failure."""
        self._phase = name
        try:
            yield
        finally:
            self._phase = ""

    def _ring(self, _signal: int, _frame: FrameType | None) -> None:
        if not self._phase:  # pytest itself is at work, for a moment
            signal.setitimer(signal.ITIMER_REAL, SOON_S, self._grace)
            return
        if not self._has_rung and self._is_given_more():
            self.begin()
            return
        self._has_rung = True
        self._alarm_at = time.monotonic() + self._grace
        self.item.add_report_section(self._phase, "stacks of all threads", stacks_of_all_threads())
        if processes := started_processes():
            self.item.add_report_section(self._phase, "processes that the test started", processes)
        seconds = time.monotonic() - self._began
        raise Overrun(f"the test has a limit of {self.limit:g} s and was in its {self._phase} after {seconds:.1f} s")


class Watch:
    """The plugin of the process in which tests run."""

    def __init__(self, config: pytest.Config) -> None:
        worker: dict[str, Any] | None = getattr(config, "workerinput", None)
        self._note: Path | None = None
        if worker is None or "notes" not in worker:
            self._output = os.fdopen(os.dup(2), "w")
            return
        self._note = note_path(worker["notes"], worker["workerid"])
        self._output = stacks_path(worker["notes"], worker["workerid"]).open("w")
        faulthandler.enable(self._output)
        Note(os.getpid()).write(self._note)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Before pytest-xdist tells the controller that this worker has collected."""
        if self._note is not None:
            write_groups(self._note.with_suffix(".groups"), session.items)

    def _tell(self, nodeid: str = "", kill_at: float = float("inf")) -> None:
        if self._note is not None:
            Note(os.getpid(), nodeid, kill_at).write(self._note)

    @pytest.hookimpl(tryfirst=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        """Replaces pytest-timeout's own timer, except for those who debug by hand."""
        if item.config.getoption("usepdb"):
            return None
        timers = Timers(item, settings.timeout, self._output, self._tell)
        item.stash[TIMERS] = timers
        timers.begin()
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        try:
            return (yield)
        finally:
            if (timers := item.stash.get(TIMERS, None)) is not None:
                timers.disarm()
            self._tell()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, None, None]:
        with phase(item, "setup"):
            yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, None, None]:
        with phase(item, "call"):
            yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        with phase(item, "teardown"):
            yield

    @pytest.hookimpl(trylast=True)
    def pytest_exception_interact(self, node: pytest.Item | pytest.Collector) -> None:
        """Pytest and pytest-timeout take the timers away here, for those who debug; the tear-down needs them."""
        if isinstance(node, pytest.Item) and (timers := node.stash.get(TIMERS, None)) is not None:
            timers.arm()

    def pytest_enter_pdb(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def pytest_unconfigure(self) -> None:
        faulthandler.dump_traceback_later(EXIT_LIMIT_S, file=self._output, exit=True)


TIMERS = pytest.StashKey[Timers]()


def phase(item: pytest.Item, name: str) -> contextlib.AbstractContextManager[None]:
    timers = item.stash.get(TIMERS, None)
    return contextlib.nullcontext() if timers is None else timers.phase(name)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(GRACE_INI, "seconds between two lines of defence against a test that overruns", default=str(GRACE_S))
    parser.addini(STRETCH_INI, "how many times longer a limit is at most on a busy machine", default=str(STRETCH_MAX))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Watch(config), "overrun-watch")
