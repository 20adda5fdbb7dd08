# SPDX-License-Identifier: Apache-2.0
"""Processes of tests: bounded waits, and children that report what they returned or raised."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import sysconfig
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

HAS_NO_GIL = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
"""True for a free-threaded Python, even if its GIL is enabled."""
WATCHDOG_S = 60.0
CHECK_S_MIN, CHECK_S_MAX = 0.001, 0.05
"""The pauses between checks of a waiting test. A check may cost more than the awaited event."""


def wait_until(is_true: Callable[[], bool], what: str, timeout_s: float = WATCHDOG_S) -> None:
    """Check the condition at growing intervals. If it stays false for *timeout_s*, fail."""
    began = time.monotonic()
    while not is_true():
        waited_s = time.monotonic() - began
        assert waited_s < timeout_s, f"still waiting until {what}"
        time.sleep(min(max(waited_s / 16, CHECK_S_MIN), CHECK_S_MAX))


@contextlib.contextmanager
def descriptor_limit(count: int) -> Iterator[None]:
    """Raise the limit of open files. If the host allows fewer, skip the test."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"needs {count} open files, and this process may have {hard} (ulimit -H -n)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Child:
    """A forked child that runs a function and reports its result or its traceback."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(function, arguments, reader, writer)
        os.close(writer)
        self._reader = reader
        self._is_waited_for = False

    @staticmethod
    def _run(function: Callable[..., Any], arguments: tuple[Any, ...], reader: int, writer: int) -> None:
        code = 1
        try:
            try:
                os.close(reader)
                report = repr(function(*arguments))
                code = 0
            except BaseException:  # noqa: BLE001 - whatever it was, the parent is to read it
                report = traceback.format_exc()
            os.write(writer, report.encode())
        finally:
            os._exit(code)

    def has_ended(self) -> bool:
        """Return True after its end. `join` returns its report."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def join(self) -> str:
        """Return the repr of the function's result. If it raised, raise AssertionError with its traceback."""
        with open(self._reader) as stream:
            report = stream.read()
        status = self._wait()
        assert status == 0, report
        return report

    def kill(self) -> None:
        """Send SIGKILL and wait. If it was waited for before, do nothing: another process may have its number."""
        if not self._is_waited_for:
            os.kill(self.pid, signal.SIGKILL)
            self._wait()

    def _wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self._is_waited_for = True
        return status


def run_in_child(function: Callable[..., Any], *arguments: Any) -> str:
    return Child(function, *arguments).join()


def _send_result(connection: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    connection.send(function(*arguments))


def run_in_process(method: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function through multiprocessing, started by fork, spawn or forkserver.

    The fork server listens on a socket in the folder of temporary files. If its path is too long for a socket, another
    folder is used.
    """
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_result, args=(sender, function, arguments))  # type: ignore[attr-defined]
    with mock.patch.object(tempfile, "tempdir", "/tmp"):
        process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join(WATCHDOG_S)


def is_stopped(pid: int) -> bool:
    """Return True after SIGSTOP has taken effect."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def process_exists(pid: int) -> bool:
    """Return True if the process exists, also if it belongs to another user and cannot be signalled."""
    return Path(f"/proc/{pid}").exists()
