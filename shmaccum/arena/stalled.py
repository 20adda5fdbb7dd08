# SPDX-License-Identifier: Apache-2.0
"""Kills a sender that is stopped or hangs, if a standby or a supervisor is configured to (``replace_stalled_ms``).

::

    check      epoch or heartbeat in the arena has changed, and the kernel does not show the process as stopped: the
               sender makes progress                                                        → the age is 0
               otherwise the age grows by the time since the last check, by CHECK_MAX_S at most
    age >= replace_stalled_ms
               does the listener of the presence socket belong to this user and to this PID namespace?
               no    → it is reported, and no process is killed
               yes   → SIGKILL by its pidfd, then the kernel frees the role

Only a kill is safe: the kernel may still write from the sender's memory, and only its death ends that. The role, the
arena and the sinks tolerate a death: the next sender sends every batch without a result again.

The age counts only time in which this process itself checked, on a clock that stands still in a suspend. So neither a
suspend nor a stop of the watcher, or of all processes of a container, increases the age of a living sender. Clocks of
two processes are never compared. The pid in the arena is only for display, because any process that writes the arena
may forge it. The process to kill is the peer of the presence socket, as reported by the kernel.

The sender renews its heartbeat at each tick and each drain, and a sink between the parts of a long call (`SinkHost`).
One call of a sink that takes longer than `replace_stalled_ms` counts as a hang: choose that time accordingly.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import final

from shmaccum.arena import Arena
from shmaccum.arena.presence import SenderWatch
from shmaccum.common import clock
from shmaccum.common.process_handle import STOPPED, NotToBeKilledError, ProcessHandle, check_namespace, is_stopped

logger = logging.getLogger("shmaccum.supervisor")

CHECK_MAX_S = 2.0
"""If the time between two checks is longer, the watcher itself did not run."""
END_TIMEOUT_S = 1.0


@contextlib.contextmanager
def open_killable_sender(watch: SenderWatch) -> Iterator[ProcessHandle]:
    """Yields the listener of the presence socket, if it may be killed.

    Raises:
        NotToBeKilledError: it belongs to another user, is in another PID namespace, is this process, or was not found.
    """
    listener = watch.listener()
    if listener is not None and listener.user != os.geteuid():
        raise NotToBeKilledError(f"it belongs to the user {listener.user}, this process to {os.geteuid()}")
    if listener is not None and listener.pid == os.getpid():
        raise NotToBeKilledError("it is a part of this process")
    with open_listener(watch) as process:
        check_namespace(process.pid)
        yield process


@contextlib.contextmanager
def open_listener(watch: SenderWatch) -> Iterator[ProcessHandle]:
    """Yields the process that listens on the presence socket, with a pidfd.

    Raises:
        NotToBeKilledError: it is in a PID namespace that is not visible here, or was not found.
    """
    listener = watch.listener()
    if listener is None:
        raise NotToBeKilledError("no process listens on its presence socket here")
    if listener.pid == 0:
        raise NotToBeKilledError("it lives in another PID namespace")
    descriptor = _open(watch, listener.pid)
    try:
        process = ProcessHandle(listener.pid, descriptor)
        # a listener that is alive now had this pid when the pidfd was opened, so the pidfd is its own
        if process.has_ended(0) or not watch.is_connected():
            raise NotToBeKilledError("it has just ended")
        yield process
    finally:
        os.close(descriptor)


def _open(watch: SenderWatch, pid: int) -> int:
    try:
        descriptor = watch.listener_descriptor()
        return os.pidfd_open(pid) if descriptor is None else descriptor
    except OSError as error:
        raise NotToBeKilledError(f"the kernel gives no descriptor of process {pid}: {error}") from None


@final
class StallWatch:
    """Measures how long a sender has not renewed its heartbeat, and kills it if that is too long.

    Args:
        arena: attached.
        watch: connected to the sender.
        replace_stalled_ms: the age at which the sender is killed.
        clock: returns seconds. It must stand still in a suspend.
    """

    def __init__(
        self,
        arena: Arena,
        watch: SenderWatch,
        replace_stalled_ms: int,
        *,
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._arena = arena
        self._watch = watch
        self._limit_s = replace_stalled_ms / 1000
        self._clock = clock
        self._shown: tuple[int, int] | None = None
        self._checked_s = clock()
        self._age_s = 0.0
        self._reported: set[str] = set()

    @property
    def check_s(self) -> float:
        """The interval between checks, in seconds."""
        return min(self._limit_s / 4, CHECK_MAX_S / 2)

    def check(self) -> None:
        """Checks once. Returns within about a second, even if it kills the sender."""
        now_s = self._clock()
        step_s, self._checked_s = min(now_s - self._checked_s, CHECK_MAX_S), now_s
        facts = self._arena.native.sender()
        shown = facts["epoch"], facts["heartbeat_ns"]
        is_new_sender = self._shown is None or shown[0] != self._shown[0]
        if is_new_sender or (shown != self._shown and not self._is_stopped()):
            self._age_s = 0.0
            self._reported.clear()
        else:
            self._age_s += step_s
        self._shown = shown
        if self._age_s >= self._limit_s:
            self._replace()

    def _is_stopped(self) -> bool:
        listener = self._watch.listener()
        return listener is not None and listener.pid != 0 and is_stopped(listener.pid)

    def _replace(self) -> None:
        what = f"the sender of {self._arena.name}"
        silence = f"has not renewed its heartbeat for {self._limit_s:g} s (replace_stalled_ms)"
        try:
            with open_killable_sender(self._watch) as process:
                what += f" (process {process.pid})"
                state = process.state
                silence = f"is stopped and {silence}" if state and state in STOPPED else silence
                self._report_once(f"{what} {silence}: it is killed, so that another sender takes its place")
                process.kill()
                if not process.has_ended(END_TIMEOUT_S):
                    self._report_once(
                        f"{what} was killed and does not end: the kernel blocks it (state {process.state}), and with "
                        "it the role of the sender; check for a disk or a network file system that does not respond"
                    )
        except NotToBeKilledError as reason:
            self._report_once(f"{what} {silence} and is not killed, because {reason}: resume it, or kill it manually")
        except OSError as error:
            self._report_once(f"{what} {silence} and could not be killed: {error}")

    def _report_once(self, sentence: str) -> None:
        """Reports a sentence once, in the log and in the arena's error log."""
        if sentence not in self._reported:
            self._reported.add(sentence)
            logger.error("%s", sentence)
            self._arena.native.record_error(sentence)
