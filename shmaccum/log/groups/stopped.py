# SPDX-License-Identifier: Apache-2.0
"""Kill a stopped member, if another member is configured to do so (``replace_stalled_ms``).

::

    check      the member lives (its byte is locked), and the kernel shows the process of its row as stopped?
               no    → the age is 0
               yes   → the age grows by the time since the last check, by CHECK_MAX_S at most
    age >= replace_stalled_ms
               the process has this user, is in this PID namespace, and has locked the member's byte?
               no    → this is logged, and no process is killed
               yes   → SIGKILL by its pidfd, then the kernel releases its bytes

The pid in the plan is only a hint, because any process with the right to write may forge it. The kernel has the proof:
``/proc/PID/fdinfo`` lists the locks of each open file, so only the process that locked the member's byte is killed.
The pidfd is opened before this check and polled after it, so the pid has denoted one process all the time.

A member that runs but does not poll is never killed, because its program may be busy for a long time.
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
from shmaccum.common.process_handle import NotToBeKilledError, ProcessHandle, check_namespace, is_stopped
from shmaccum.log.groups.member_locks import MEMBERS_BYTE
from shmaccum.log.groups.plan import MemberRow

logger = logging.getLogger(__name__)

CHECK_MAX_S = 2.0
"""If the time between two checks is longer, the checking process itself did not run."""
END_TIMEOUT_S = 1.0
WRITE_LOCK = re.compile(rb"^lock:\s+\d+: OFDLCK\s+ADVISORY\s+WRITE\s+\S+\s+\S+\s+(\d+)\s+(\d+)$", re.MULTILINE)
"""A write lock of an open file in its fdinfo: its first and its last byte."""


def holds_byte(pid: int, path: str, byte: int) -> bool:
    """True if an open file of this process has a write lock on this byte.

    Raises:
        OSError: if the process has ended, or belongs to another user.
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
def member_process(pid: int, path: str, slot: int) -> Iterator[ProcessHandle]:
    """The process of a member, if it may be killed.

    Args:
        pid: the pid in the plan.
        path: the lock file of the group.
        slot: the slot of the member.

    Raises:
        NotToBeKilledError: if it has another user or another PID namespace, is this process, or is not the member.
    """
    if pid == os.getpid():
        raise NotToBeKilledError("it belongs to this process")
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, ValueError, OverflowError) as error:
        raise NotToBeKilledError(f"the kernel gives no descriptor of process {pid}: {error}") from None
    try:
        _check(pid, path, slot)
        process = ProcessHandle(pid, descriptor)
        if process.has_ended(0):  # the pid has denoted this process until here
            raise NotToBeKilledError("it has just ended")
        yield process
    finally:
        os.close(descriptor)


def _check(pid: int, path: str, slot: int) -> None:
    try:
        user = os.stat(f"/proc/{pid}").st_uid
        if user != os.geteuid():
            raise NotToBeKilledError(f"it belongs to user {user}, but this process to user {os.geteuid()}")
        check_namespace(pid)
        is_member = holds_byte(pid, path, MEMBERS_BYTE + slot)
    except OSError as error:
        raise NotToBeKilledError(f"the kernel does not show the locks of process {pid}: {error}") from None
    if not is_member:
        raise NotToBeKilledError(f"process {pid} does not have the lock of the member")


@final
class StoppedWatch:
    """Measures how long members have been stopped, and kills a member that was stopped for too long.

    Args:
        group_id: the group, for messages.
        path: the lock file of the group.
        replace_stalled_ms: the age at which a member is killed.
        clock: returns seconds. It must not advance while the host is suspended.
    """

    def __init__(
        self, group_id: str, path: str, replace_stalled_ms: int, *, clock: Callable[[], float] = monotonic
    ) -> None:
        self._group_id = group_id
        self._path = path
        self._limit_s = replace_stalled_ms / 1000
        self._clock = clock
        self._checked_s = clock()
        self._ages_s: dict[int, float] = {}
        self._logged: set[str] = set()

    def check(self, rows: Iterable[MemberRow]) -> float:
        """Check the rows of living members once; return the seconds until the next check."""
        now_s = self._clock()
        step_s, self._checked_s = min(now_s - self._checked_s, CHECK_MAX_S), now_s
        stopped = [row for row in rows if row.pid != os.getpid() and is_stopped(row.pid)]
        self._ages_s = {row.pid: self._ages_s[row.pid] + step_s if row.pid in self._ages_s else 0.0 for row in stopped}
        for row in stopped:
            if self._ages_s[row.pid] >= self._limit_s:
                self._replace(row)
        return min(self._limit_s / 4, CHECK_MAX_S / 2) if stopped else self._limit_s / 2

    def _replace(self, row: MemberRow) -> None:
        what = f"process {row.pid}, a member of the group {self._group_id!r},"
        silence = f"has been stopped for {self._limit_s:g} s (replace_stalled_ms)"
        try:
            with member_process(row.pid, self._path, row.slot) as process:
                self._log_once(f"{what} {silence}: it is killed, so that the others consume its partitions")
                process.kill()
                if not process.has_ended(END_TIMEOUT_S):
                    self._log_once(f"{what} was killed but has not ended: the kernel blocks it (state {process.state})")
        except NotToBeKilledError as reason:
            self._log_once(f"{what} {silence} and is not killed, because {reason}: continue it, or end it by hand")
        except OSError as error:
            self._log_once(f"{what} {silence} and could not be killed: {error}")

    def _log_once(self, sentence: str) -> None:
        """Log each message once."""
        if sentence not in self._logged:
            self._logged.add(sentence)
            logger.error("%s", sentence)
