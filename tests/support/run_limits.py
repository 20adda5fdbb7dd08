# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin with the limits that pytest-timeout and pytest-xdist lack.

- pytest-timeout interrupts a test by a signal, which Python handles between two instructions. It cannot interrupt a
  test that hangs in C with the GIL, or a test that catches the failure. `GRACE_S` later, the watchdog thread of
  `faulthandler`, which needs no GIL, writes the stacks of all threads and ends the process. It also watches the
  tear-down of a failed test, for which pytest-timeout has no timer.
- pytest-xdist leaves the processes that a dead worker had started, and the worker's arenas.
- ``--session-timeout`` fails a run. Here, a test is skipped if it would begin after the time `ENDS_AT`, or if its own
  timeout reaches more than `LATE_S` past it (``make test-rest MINUTES=20``).
- Warnings are errors, also those of an object that is collected unclosed. A failed test may leave such objects to a
  later test, so a process ignores these warnings after its first failure.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import subprocess
import time
from collections.abc import Generator
from typing import Any

import psutil
import pytest
from xdist.workermanage import WorkerController

from tests.support.arenas import remove_arenas_of_the_dead

ENDS_AT = "SHMACCUM_TESTS_END_AT"
"""The environment variable with the Unix time after which no test starts."""
LATE_S = 2400.0
"""The longest time for which a test may run past `ENDS_AT`."""
GRACE_S = 60.0
STDERR = pytest.StashKey[int]()
WATCHDOG_S = pytest.StashKey[float]()


def watch(config: pytest.Config, seconds: float) -> None:
    """Write the stacks and end this process after `seconds`, unless the timer is set again or canceled."""
    faulthandler.dump_traceback_later(seconds, file=config.stash[STDERR], exit=True)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STDERR] = os.dup(2)  # pytest redirects 2 while a test runs


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
def pytest_testnodedown(node: WorkerController, error: object | None) -> None:
    """Kill the processes that inherited the environment of a dead worker, and wait for its end."""
    if not error:
        return
    worker = {
        "PYTEST_XDIST_TESTRUNUID": node.workerinput["testrunuid"],
        "PYTEST_XDIST_WORKER": node.workerinput["workerid"],
    }
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if worker.items() <= process.environ().items():
                process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        node.gateway._io.popen.wait(GRACE_S)
