# SPDX-License-Identifier: Apache-2.0
"""A handle of a process that may be killed because it is stopped or hangs.

A supervisor kills a sender (`shmaccum.arena.stalled`), and a member of a group kills another member
(`shmaccum.log.groups.stopped`). Both do so only if a user has configured it, and only to a process of the same user in
the same PID namespace. A pidfd always names the same process, while a process id may be reused.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
from pathlib import Path
from typing import final

STATE = re.compile(rb"^State:\s+(\S)", re.MULTILINE)
STOPPED = "Tt"
"""Stopped by a signal; stopped by a debugger."""


class NotToBeKilledError(Exception):
    """The process is only reported. The message has the reason."""


def state_of(pid: int) -> str:
    """Returns the state in /proc: T is stopped, D is an uninterruptible wait. Empty if there is no such process."""
    try:
        found = STATE.search(Path(f"/proc/{pid}/status").read_bytes())
    except OSError:
        return ""
    return "" if found is None else found[1].decode()


def is_stopped(pid: int) -> bool:
    """True for a process that a signal or a debugger stopped."""
    state = state_of(pid)
    return bool(state) and state in STOPPED


def check_namespace(pid: int) -> None:
    """Checks that a process id means the same process here and in that process itself.

    Raises:
        NotToBeKilledError: the process is in another PID namespace.
    """
    try:
        is_same = os.path.samefile("/proc/self/ns/pid", f"/proc/{pid}/ns/pid")
    except OSError as error:
        raise NotToBeKilledError(f"the PID namespace of process {pid} cannot be read: {error}") from None
    if not is_same:
        raise NotToBeKilledError("it lives in another PID namespace")


@final
class ProcessHandle:
    """A process that may be killed. It has a pidfd, which never refers to another process.

    Attributes:
        pid: for messages.
    """

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self._descriptor = descriptor

    @property
    def state(self) -> str:
        """The state, as `state_of` returns it. Empty if the process has ended."""
        found = state_of(self.pid)
        return "" if self.has_ended(0) else found

    def kill(self) -> None:
        """Sends SIGKILL.

        Raises:
            OSError: the kernel refuses.
        """
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def ask_to_stop(self) -> None:
        """Sends SIGTERM.

        Raises:
            OSError: the kernel refuses.
        """
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGTERM)

    def has_ended(self, timeout_s: float) -> bool:
        """Returns True if all of its threads have ended, now or within the time."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            return bool(selector.select(timeout_s))
