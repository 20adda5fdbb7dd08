# SPDX-License-Identifier: Apache-2.0
"""A process that may be killed because it is stopped or wedged: found, proven, and held by a pidfd.

A keeper kills a sender (`shmaccum.arena.stalled`), and a member of a group kills another member
(`shmaccum.log.groups.stopped`). Both only do it where a user told them to, and only to a process of the same user in
the same PID namespace. A pidfd names one process for ever, while a number may come to mean another one.
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
    """The process is only reported; the message says why."""


def state_of(pid: int) -> str:
    """The letter of a process in /proc: T stopped, D in a wait that no signal ends; empty when it is not there."""
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
    """Makes sure that a number means the same process here and in that process itself.

    Raises:
        NotToBeKilledError: the process lives in another PID namespace.
    """
    try:
        is_same = os.path.samefile("/proc/self/ns/pid", f"/proc/{pid}/ns/pid")
    except OSError as error:
        raise NotToBeKilledError(f"the PID namespace of process {pid} cannot be read: {error}") from None
    if not is_same:
        raise NotToBeKilledError("it lives in another PID namespace")


@final
class Victim:
    """A process that may be killed, held by a pidfd, so that its number can never come to mean another process.

    Attributes:
        pid: for messages.
    """

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid = pid
        self._descriptor = descriptor

    @property
    def state(self) -> str:
        """The letter of `state_of`; empty when the process is gone."""
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
        """True when all of its threads have ended, at once or within the time."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._descriptor, selectors.EVENT_READ)
            return bool(selector.select(timeout_s))
