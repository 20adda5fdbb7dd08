# SPDX-License-Identifier: Apache-2.0
"""A sender that is stopped or wedged is killed, where a standby or a keeper was told to (``replace_stalled_ms``).

::

    look       the sign of life in the arena (epoch and heartbeat) has changed, and the kernel does not show the
               process as stopped: the sender gets on                                       → the age is 0
               else the age grows by the time since the last look, by LOOK_MAX_S at most
    age >= replace_stalled_ms
               the victim is the listener of the presence socket; it is of this user and in this PID namespace?
               no    → it is reported, and nobody is killed
               yes   → SIGKILL by its pidfd, then the kernel frees the role

Why a kill and nothing else: the kernel may still write from the sender's memory, and only its death ends that. A death
is what the role, the arena and the sinks are made for: the next sender sends again what has no result.

The age counts time in which this process itself looked, on a clock that stands still in a suspend. So neither a suspend
nor a stop of the watcher, or of all processes of a container, makes a living sender old. No clocks of two processes are
compared. The victim is never found by the pid in the arena, which is there for people, and which any process that
writes the arena may forge. It is the process at the other end of the presence socket, as the kernel names it.

The sender shows life at each tick and each drain, and a sink between the parts of a long call (`SinkHost`). One
call of a sink that takes longer than `replace_stalled_ms` counts as wedged: choose that time accordingly.
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
from shmaccum.common.victim import STOPPED, NotToBeKilledError, Victim, check_namespace, is_stopped

logger = logging.getLogger("shmaccum.supervisor")

LOOK_MAX_S = 2.0
"""A longer time between two looks is one in which the watcher itself did not run."""
END_TIMEOUT_S = 1.0


@contextlib.contextmanager
def find_victim(watch: SenderWatch) -> Iterator[Victim]:
    """The listener of the presence socket, if it may be killed.

    Raises:
        NotToBeKilledError: it is of another user, in another PID namespace, this process itself, or not to be found.
    """
    listener = watch.listener()
    if listener is not None and listener.user != os.geteuid():
        raise NotToBeKilledError(f"it belongs to the user {listener.user}, this process to {os.geteuid()}")
    if listener is not None and listener.pid == os.getpid():
        raise NotToBeKilledError("it is a part of this process")
    with hold_listener(watch) as victim:
        check_namespace(victim.pid)
        yield victim


@contextlib.contextmanager
def hold_listener(watch: SenderWatch) -> Iterator[Victim]:
    """The process that listens on the presence socket, held by a pidfd.

    Raises:
        NotToBeKilledError: it is in a PID namespace that cannot be seen from here, or not to be found.
    """
    listener = watch.listener()
    if listener is None:
        raise NotToBeKilledError("nobody listens on its presence socket here")
    if listener.pid == 0:
        raise NotToBeKilledError("it lives in another PID namespace")
    descriptor = _open(watch, listener.pid)
    try:
        process = Victim(listener.pid, descriptor)
        # The second look: until here the number meant the listener.
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
    """Counts how long the sender of an arena has shown no life, and kills it when that is too long.

    Args:
        arena: attached.
        watch: connected to the sender.
        replace_stalled_ms: the age at which the sender is killed.
        clock: seconds; one that stands still in a suspend.
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
        self._looked_s = clock()
        self._age_s = 0.0
        self._told: set[str] = set()

    @property
    def look_s(self) -> float:
        """How often to look."""
        return min(self._limit_s / 4, LOOK_MAX_S / 2)

    def look(self) -> None:
        """Looks once; comes back within a second or so also where it killed."""
        now_s = self._clock()
        step_s, self._looked_s = min(now_s - self._looked_s, LOOK_MAX_S), now_s
        facts = self._arena.native.sender()
        shown = facts["epoch"], facts["heartbeat_ns"]
        is_new_sender = self._shown is None or shown[0] != self._shown[0]
        if is_new_sender or (shown != self._shown and not self._is_stopped()):
            self._age_s = 0.0
            self._told.clear()
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
        silence = f"has shown no sign of life for {self._limit_s:g} s (replace_stalled_ms)"
        try:
            with find_victim(self._watch) as victim:
                what += f" (process {victim.pid})"
                state = victim.state
                silence = f"is stopped and {silence}" if state and state in STOPPED else silence
                self._tell(f"{what} {silence}: it is killed, so that another one takes its place")
                victim.kill()
                if not victim.has_ended(END_TIMEOUT_S):
                    self._tell(
                        f"{what} was killed and does not end: the kernel holds it (state {victim.state}), and the role "
                        "of the sender with it; look for a disk or a network file system that does not answer"
                    )
        except NotToBeKilledError as reason:
            self._tell(f"{what} {silence} and is not killed, for {reason}: let it go on, or end it by hand")
        except OSError as error:
            self._tell(f"{what} {silence} and could not be killed: {error}")

    def _tell(self, sentence: str) -> None:
        """Once for each sentence, in the log and in the arena's error log."""
        if sentence not in self._told:
            self._told.add(sentence)
            logger.error("%s", sentence)
            self._arena.native.record_error(sentence)
