# SPDX-License-Identifier: Apache-2.0
"""Processes of tests: waits with a watchdog, and children that report what they returned or raised."""

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
"""True for a free-threaded Python, also where its GIL is turned on."""
WATCHDOG_S = 60.0
LOOK_S_MIN, LOOK_S_MAX = 0.001, 0.05
"""Pauses between two looks of a test that waits. A look may cost more than what is waited for."""


def wait_until(is_true: Callable[[], bool], what: str, timeout_s: float = WATCHDOG_S) -> None:
    """Looks again and again, the more rarely the longer it takes; the watchdog is for a test that would hang."""
    began = time.monotonic()
    while not is_true():
        waited_s = time.monotonic() - began
        assert waited_s < timeout_s, f"still waiting until {what}"
        time.sleep(min(max(waited_s / 16, LOOK_S_MIN), LOOK_S_MAX))


@contextlib.contextmanager
def descriptor_limit(count: int) -> Iterator[None]:
    """This process may open so many files; a test is skipped where the host allows fewer."""
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
        """True when it runs no more; `join` has its report."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def join(self) -> str:
        """The repr of what the function returned; AssertionError with its traceback when it raised."""
        with open(self._reader) as stream:
            report = stream.read()
        status = self._wait()
        assert status == 0, report
        return report

    def kill(self) -> None:
        """SIGKILL, and waits for it; nothing when it was waited for before: its number may be somebody else's now."""
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
    """The same through multiprocessing, started by fork, spawn or forkserver.

    The fork server listens on a socket in the folder of temporary files, whose path may be too long for that.
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


def process_exists(pid: int) -> bool:
    """True also for the process of another user, which may not be sent a signal."""
    return Path(f"/proc/{pid}").exists()
