# SPDX-License-Identifier: Apache-2.0
"""Records which test executes which line, also in the children of a test, with the contexts of coverage.py."""

from __future__ import annotations

import atexit
import os
from pathlib import Path

import coverage

_recorders: list[coverage.Coverage] = []


def _test_id() -> str:
    """The test that runs, or "" outside of tests."""
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]


def _begin() -> None:
    folder = Path(os.environ["SHMACCUM_RECORD_LINES"])
    recorder = coverage.Coverage(
        data_file=folder / "lines",
        data_suffix=True,
        config_file=False,
        source_pkgs=["shmaccum"],
        context=_test_id() or None,
        messages=False,
    )
    recorder.set_option("run:disable_warnings", ["no-data-collected", "module-not-imported", "module-not-measured"])
    _recorders[:] = [recorder]
    recorder.start()


def _end() -> None:
    for recorder in _recorders:
        recorder.stop()
        recorder.save()
    _recorders.clear()


def _is_traced() -> bool:
    """True in a child that a test kills at one of its system calls. It would make thousands more to save its lines."""
    status = Path("/proc/self/status").read_text()
    return "\nTracerPid:\t0\n" not in status


def _begin_in_child() -> None:
    for recorder in _recorders:
        recorder.stop()
    _begin()


def record() -> None:
    """Records from here to the end of this process, and in each of its children."""
    leave = os._exit

    def save_and_leave(status: int) -> None:
        try:
            if not _is_traced():
                _end()
        finally:  # a child of another user may not write to the folder
            leave(status)

    os._exit = save_and_leave  # type: ignore[assignment]
    os.register_at_fork(after_in_child=_begin_in_child)
    atexit.register(_end)
    _begin()


def switch_to(test: str) -> None:
    """Lines that this process executes from here on belong to the test."""
    for recorder in _recorders:
        recorder.switch_context(test)
