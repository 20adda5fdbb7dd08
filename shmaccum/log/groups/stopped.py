# SPDX-License-Identifier: Apache-2.0
"""A stopped member is killed, where another member was told to (``replace_stalled_ms``).

::

    look       the member lives (its byte is locked), and the kernel shows the process of its row as stopped?
               no    → the age is 0
               yes   → the age grows by the time since the last look, by LOOK_MAX_S at most
    age >= replace_stalled_ms
               the process is of this user, in this PID namespace, and has the member's byte locked?
               no    → it is reported, and nobody is killed
               yes   → SIGKILL by its pidfd, then the kernel frees its bytes

The number in the plan is a hint that any process with the right to write may forge. The kernel gives the proof:
``/proc/PID/fdinfo`` lists the locks of each open file, so only the holder of the member's byte is ever killed. The
pidfd is opened before that look and asked after it, so the number meant one process all the time.

A member that runs and does not poll is never killed: its program may be at work for long.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import final

from shmaccum.common.clock import monotonic
from shmaccum.common.victim import NotToBeKilledError, Victim, check_namespace, is_stopped
from shmaccum.log.groups.member_locks import MEMBERS_BYTE
from shmaccum.log.groups.plan import MemberRow

logger = logging.getLogger(__name__)

LOOK_MAX_S = 2.0
"""A longer time between two looks is one in which the watcher itself did not run."""
END_TIMEOUT_S = 1.0
WRITE_LOCK = re.compile(rb"^lock:\s+\d+: OFDLCK\s+ADVISORY\s+WRITE\s+\S+\s+\S+\s+(\d+)\s+(\d+)$", re.MULTILINE)
"""A write lock of an open file in its fdinfo: the first and the last byte."""


def holds_byte(pid: int, path: str, byte: int) -> bool:
    """True when an open file of this process has a write lock on this byte.

    Raises:
        OSError: the process is gone, or is another user's.
    """
    lock_file = os.stat(path)
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):  # it was closed meanwhile
            place = f"/proc/{pid}/fd/{name}"
            is_named = os.path.basename(os.readlink(place)) == os.path.basename(path)
            if is_named and os.path.samestat(os.stat(place), lock_file) and _locks(pid, name, byte):
                return True
    return False


def _locks(pid: int, descriptor: str, byte: int) -> bool:
    content = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_bytes()
    return any(int(first) <= byte <= int(last) for first, last in WRITE_LOCK.findall(content))


@contextlib.contextmanager
def find_victim(pid: int, path: str, slot: int) -> Iterator[Victim]:
    """The process of a member, if it may be killed.

    Args:
        pid: as the plan has it.
        path: the lock file of the group.
        slot: the number of the member.

    Raises:
        NotToBeKilledError: it is of another user, in another PID namespace, this process itself, or not the member.
    """
    if pid == os.getpid():
        raise NotToBeKilledError("it is a part of this process")
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, ValueError, OverflowError) as error:
        raise NotToBeKilledError(f"the kernel gives no descriptor of process {pid}: {error}") from None
    try:
        _check(pid, path, slot)
        victim = Victim(pid, descriptor)
        if victim.has_ended(0):  # until here the number meant this process
            raise NotToBeKilledError("it has just ended")
        yield victim
    finally:
        os.close(descriptor)


def _check(pid: int, path: str, slot: int) -> None:
    try:
        user = os.stat(f"/proc/{pid}").st_uid
        if user != os.geteuid():
            raise NotToBeKilledError(f"it belongs to the user {user}, this process to {os.geteuid()}")
        check_namespace(pid)
        is_member = holds_byte(pid, path, MEMBERS_BYTE + slot)
    except OSError as error:
        raise NotToBeKilledError(f"the kernel does not show the locks of process {pid}: {error}") from None
    if not is_member:
        raise NotToBeKilledError(f"process {pid} does not hold the lock of the member")


@final
class StoppedWatch:
    """Counts how long members have been stopped, and kills a member when that is too long.

    Args:
        group_id: for messages.
        path: the lock file of the group.
        replace_stalled_ms: the age at which a member is killed.
        clock: seconds; one that stands still in a suspend.
    """

    def __init__(
        self, group_id: str, path: str, replace_stalled_ms: int, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._group_id = group_id
        self._path = path
        self._limit_s = replace_stalled_ms / 1000
        self._clock = clock
        self._looked_s = clock()
        self._ages_s: dict[int, float] = {}
        self._told: set[str] = set()

    def look(self, rows: Iterable[MemberRow]) -> float:
        """Looks once at the rows of living members; answers the seconds until the next look."""
        now_s = self._clock()
        step_s, self._looked_s = min(now_s - self._looked_s, LOOK_MAX_S), now_s
        stopped = [row for row in rows if row.pid != os.getpid() and is_stopped(row.pid)]
        self._ages_s = {row.pid: self._ages_s[row.pid] + step_s if row.pid in self._ages_s else 0.0 for row in stopped}
        for row in stopped:
            if self._ages_s[row.pid] >= self._limit_s:
                self._replace(row)
        return min(self._limit_s / 4, LOOK_MAX_S / 2) if stopped else self._limit_s / 2

    def _replace(self, row: MemberRow) -> None:
        what = f"process {row.pid}, a member of the group {self._group_id!r},"
        silence = f"has been stopped for {self._limit_s:g} s (replace_stalled_ms)"
        try:
            with find_victim(row.pid, self._path, row.slot) as victim:
                self._tell(f"{what} {silence}: it is killed, so that the others consume its partitions")
                victim.kill()
                if not victim.has_ended(END_TIMEOUT_S):
                    self._tell(f"{what} was killed and does not end: the kernel holds it (state {victim.state})")
        except NotToBeKilledError as reason:
            self._tell(f"{what} {silence} and is not killed, for {reason}: continue it, or end it by hand")
        except OSError as error:
            self._tell(f"{what} {silence} and could not be killed: {error}")

    def _tell(self, sentence: str) -> None:
        """Logs each sentence once."""
        if sentence not in self._told:
            self._told.add(sentence)
            logger.error("%s", sentence)
