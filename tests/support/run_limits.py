# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin with the limits that pytest-timeout and pytest-xdist lack.

- pytest-timeout interrupts a test by a signal, which Python handles between two instructions. It cannot interrupt a
  test that hangs in C with the GIL, or a test that catches the failure. `GRACE_S` later, the watchdog thread of
  `faulthandler`, which needs no GIL, writes the stacks of all threads and ends the process. It also watches the
  collection and the tear-down of a failed test, for which pytest-timeout has no timer.
- pytest-xdist notices the death of a worker by the end of its pipe, which forked children of the worker keep open. If
  such a child never ends, the run never ends. Here, a thread waits for each worker and then kills all processes that
  the worker had started. At the end of the run, their arenas are removed.
- ``--session-timeout`` fails a run. Here, a test is skipped if it would begin after the time `ENDS_AT`, or if its own
  timeout reaches more than `LATE_S` past it (``make test-rest MINUTES=20``).
- Warnings are errors, also those of an object that is collected unclosed. A failed test may leave such objects to a
  later test, so a process ignores these warnings after its first failure.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import threading
import time
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from xdist.workermanage import Marker, WorkerController

from tests.support.arenas import remove_arenas_of_the_dead

ENDS_AT = "SHMACCUM_TESTS_END_AT"
"""The environment variable with the Unix time after which no test starts."""
LATE_S = 2400.0
"""The longest time for which a test may run past `ENDS_AT`."""
GRACE_S = 60.0
WORKER = "SHMACCUM_TESTS_WORKER"
"""The environment variable with a unique value for each worker.

A worker is started with it, so /proc/PID/environ has it for the worker, for its forks, and for the programs that
inherit its environment. A worker sets the variables of xdist itself, so they are missing in its forks.
"""
PIPE_S = 10.0
"""The time that pytest-xdist has to read the pipe of a dead worker to its end."""
STDERR = pytest.StashKey[int]()
WATCHDOG_S = pytest.StashKey[float]()
WATCHERS = pytest.StashKey[list[threading.Thread]]()


def watch(config: pytest.Config, seconds: float) -> None:
    """Write the stacks and end this process after `seconds`, unless the timer is set again or canceled."""
    faulthandler.dump_traceback_later(seconds, file=config.stash[STDERR], exit=True)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # pytest redirects 2 while a test runs
    config.stash[WATCHERS] = []


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """The imports of all test files have as much time as one test."""
    watch(session.config, float(session.config.getini("timeout")) + GRACE_S)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """Start the watchdog of a test before pytest-timeout starts its own timer."""
    item.stash[WATCHDOG_S] = settings.timeout + GRACE_S
    watch(item.config, item.stash[WATCHDOG_S])


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Restart the watchdog for the tear-down: pytest cancels it here, because a debugger may have run."""
    if WATCHDOG_S in node.stash:
        watch(node.config, node.stash[WATCHDOG_S])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove arenas of dead workers. Then end the process, even if an unjoined thread is left.

    A worker of pytest-xdist that has no test left waits for the last test of the others, and xdist ends it.
    """
    for thread in config.stash[WATCHERS]:
        thread.join(GRACE_S)
    remove_arenas_of_the_dead()
    if not hasattr(config, "workerinput"):
        watch(config, GRACE_S)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    left_s = float(os.environ.get(ENDS_AT, "inf")) - time.time()
    timeout = item.get_closest_marker("timeout")
    if left_s < 0 or (timeout is not None and timeout.args[0] > left_s + LATE_S):
        pytest.skip("not begun, because the minutes of the run were over, or too few for its timeout")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnraisableExceptionWarning")
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Set the environment of the first worker, which is started next."""
    os.environ[WORKER] = uuid.uuid4().hex


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: WorkerController) -> None:
    """Watch a worker that was started, and set the environment of the next one."""
    thread = threading.Thread(target=watch_worker, args=(node, os.environ[WORKER]), daemon=True)
    thread.start()
    node.config.stash[WATCHERS].append(thread)
    os.environ[WORKER] = uuid.uuid4().hex


def watch_worker(node: WorkerController, worker: str) -> None:
    """Wait for the end of a worker and kill its processes. If the pipe is still open after that, report the end.

    A process whose environment cannot be read, or has changed, is not found. It may keep the pipe open.
    """
    node.gateway._io.popen.wait()
    killed: set[int] = set()
    while found := processes_of(worker) - killed:  # a process may start another one before it is killed
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
    try:
        node.channel.waitclose(PIPE_S)
    except node.channel.TimeoutError:
        node.process_from_remote(Marker.END)
    except (EOFError, node.channel.RemoteError):
        pass  # pytest-xdist has reported it


def processes_of(worker: str) -> set[int]:
    """Return the processes that were started with the worker's environment, also its stopped forks."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            if f"{WORKER}={worker}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.add(int(pid))
    return found
