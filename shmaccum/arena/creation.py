# SPDX-License-Identifier: Apache-2.0
"""The creation of an arena's file: under a private name, and renamed to its own name when it is complete.

::

    creator                                              beside the arena's name: .NAME.unfinished
    1  if the arena's name is taken: ArenaExistsError
    2  open the private file, or create it
    3  lock byte 0 exclusively; if a living creator has the lock: wait, go to 1
    4  if the private name refers to another file: go to 1
    5  if the file has bytes, its creator died: unlink it, go to 1
    6  reserve, fill, declare topics ──────────────────> an arena that no process can find
    7  rename the private name to the arena's name, unless that is taken

Rules
    A file under an arena's name is complete. Without such a name, there is no arena to attach to. A creator lives as
    long as it holds byte lock 0 of the private file, and no timeout decides otherwise. Its death frees the lock, and
    the next creator of this name removes the file. `Arena.remove` removes it, too.

    The lock is held until the private name is gone, even if the creation fails. So a waiting creator never takes over
    a file that its creator is about to unlink.

    Former versions created the arena under its own name. A leftover of their dead creators is replaced if it is empty
    or in shared memory. Any other file that begins with zeros may not be an arena, so it is left unchanged
    (`UnfinishedArenaError` explains how to remove it).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar

from shmaccum._native import rename_new
from shmaccum.arena.trust import check_arena
from shmaccum.common import clock
from shmaccum.exceptions import ArenaBusyError, ArenaExistsError, ArenaForbiddenError

Result = TypeVar("Result")

FLOCK = struct.Struct("@hhqqi4x")
"""struct flock: kind, whence, start, length, process."""
ATTACH_LOCK_BYTE = 0
OPEN_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
SUFFIX = b".unfinished"
NAME_SIZE_MAX = 255
PAGE_SIZE = 4096
CHECK_S = 0.01
LOG_AFTER_S = 10.0
"""The time after which a wait for another process is logged."""
FORBIDDEN_COUNT_MAX = 100
"""The number of checks of a private file whose creator has not set its permissions yet, which takes microseconds."""


class ArenaFileAccess(Protocol):
    """The part of `ArenaFile` that a creation needs."""

    @property
    def text(self) -> str:
        """The name of the arena."""

    @property
    def path(self) -> str:
        """The path of the file."""

    @property
    def is_shared_memory(self) -> bool:
        """True for a name in shared memory."""

    def taken(self) -> ArenaExistsError:
        """The error for a name that is taken."""

    def set_permissions(self, descriptor: int, mode: int, group: int | None) -> None:
        """Sets mode and group of a new file."""


class Descriptors(NamedTuple):
    """Two opens of one inode. The receiver closes them."""

    map: int
    lock: int

    def close(self) -> None:
        """Closes both."""
        os.close(self.map)
        os.close(self.lock)


def set_lock(descriptor: int, kind: int, byte: int) -> bool:
    """Returns False if another open file has a conflicting lock."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def private_name(path: str) -> str:
    """The path of an arena's file during its creation. Arenas with very long names may share one."""
    folder, name = os.path.split(path)
    stem = os.fsencode(name)[: NAME_SIZE_MAX - len(SUFFIX) - 1]
    return os.path.join(folder, os.fsdecode(b"." + stem + SUFFIX))


def is_private_name(name: str) -> bool:
    """True for a file's name that `private_name` made."""
    return name.startswith(".") and name.endswith(SUFFIX.decode())


def _warn(sentence: str, *arguments: object) -> None:
    import logging  # slow to import, and not needed to inspect an arena

    logging.getLogger(__name__).warning(sentence, *arguments)


def wait_for_others(name: str, attempt: Callable[[], Result]) -> Result:
    """Calls `attempt` until it no longer raises ArenaBusyError, which means that another process works on the arena.

    That process lives, because the kernel frees the locks of dead processes. A long wait is logged.

    Args:
        name: the name of the arena.
        attempt: opens the arena.
    """
    log_at_s = clock.monotonic() + LOG_AFTER_S
    while True:
        try:
            return attempt()
        except ArenaBusyError as error:
            if clock.monotonic() >= log_at_s:
                _warn("waiting for %s: %s", name, error)
                log_at_s = float("inf")
        time.sleep(CHECK_S)


class Creation:
    """The creation of one file. The steps are in the docstring of this module.

    Args:
        file: the arena's file.
        mode: its permissions.
        group: the number of its group, or None for the group of this process.
    """

    def __init__(self, file: ArenaFileAccess, mode: int, group: int | None) -> None:
        self._file = file
        self._mode = mode
        self._group = group
        self._private = private_name(file.path)
        self._forbidden_count = 0
        self._log_at_s = clock.monotonic() + LOG_AFTER_S

    def begin(self) -> Descriptors | None:
        """Runs steps 1 to 5. Returns the locked private file, or None if they must be repeated.

        Raises:
            ArenaExistsError: the arena's name is taken.
            ArenaForbiddenError: the private file belongs to a user whom this process does not trust, or cannot remove.
            OSError: the private file cannot be created.
        """
        if os.path.lexists(self._file.path) and not remove_half_made(self._file):
            raise self._file.taken()
        opened = self._open_private()
        if opened is None:
            return None
        descriptors, is_new = opened
        try:
            if self._is_ours(descriptors, is_new=is_new):
                return descriptors
        except BaseException:
            descriptors.close()
            raise
        descriptors.close()
        return None

    def _open_private(self) -> tuple[Descriptors, bool] | None:
        """Opens the private file twice, and returns whether this call created it. None if it was removed meanwhile."""
        is_new = False
        try:
            map_descriptor = os.open(self._private, OPEN_FLAGS)
        except FileNotFoundError:
            try:
                map_descriptor = os.open(self._private, OPEN_FLAGS | os.O_CREAT | os.O_EXCL, self._mode)
            except FileExistsError:
                return None
            is_new = True
        except PermissionError:
            self._count_forbidden()
            return None
        try:
            lock_descriptor = os.open(self._private, OPEN_FLAGS)
        except BaseException as error:
            os.close(map_descriptor)
            if isinstance(error, FileNotFoundError):
                return None
            raise
        return Descriptors(map_descriptor, lock_descriptor), is_new

    def _count_forbidden(self) -> None:
        self._forbidden_count += 1
        if self._forbidden_count > FORBIDDEN_COUNT_MAX:
            raise ArenaForbiddenError(
                f"{self._private} may not be opened by user {os.geteuid()}: another user is creating the arena, or has "
                "died meanwhile. Let that user or root remove the file"
            ) from None

    def _is_ours(self, descriptors: Descriptors, *, is_new: bool) -> bool:
        """Runs steps 3 to 5, and sets the permissions of the file."""
        if not is_new:
            check_arena(self._private, descriptors.map, self._mode, self._group)
        if not set_lock(descriptors.lock, fcntl.F_WRLCK, ATTACH_LOCK_BYTE):
            if clock.monotonic() >= self._log_at_s:
                _warn("waiting for %s: another process is creating it", self._file.text)
                self._log_at_s = float("inf")
            return False
        found = os.fstat(descriptors.map)
        if not (self._leads_to(found) and os.path.sameopenfile(descriptors.map, descriptors.lock)):
            return False
        if os.path.lexists(self._file.path):  # its creator has finished since step 1
            os.unlink(self._private)
            return False
        if not is_new and (found.st_size or found.st_uid != os.geteuid() or found.st_gid != os.getegid()):
            self._remove_leftover(found)
            return False
        try:
            self._file.set_permissions(descriptors.map, self._mode, self._group)
        except BaseException:
            self.discard()
            raise
        return True

    def _leads_to(self, found: os.stat_result) -> bool:
        """True while the private name refers to this file."""
        try:
            return os.path.samestat(os.stat(self._private, follow_symlinks=False), found)
        except FileNotFoundError:
            return False

    def _remove_leftover(self, found: os.stat_result) -> None:
        """Removes the file of a dead creator, whose lock this process has."""
        try:
            os.unlink(self._private)
        except PermissionError:
            raise ArenaForbiddenError(
                f"{self._private} was left by a creator that died, and belongs to user {found.st_uid}: let that user "
                "or root remove it"
            ) from None

    def publish(self) -> None:
        """Runs step 7.

        Raises:
            ArenaExistsError: something has taken the arena's name.
            OSError: the file cannot be renamed.
        """
        try:
            rename_new(os.fsencode(self._private), os.fsencode(self._file.path))
        except FileExistsError:
            raise self._file.taken() from None
        except OSError as error:
            if error.errno not in {errno.EINVAL, errno.ENOSYS}:
                raise
            os.rename(self._private, self._file.path)  # this file system always replaces

    def discard(self) -> None:
        """Unlinks the private file, whose lock this process still has."""
        with contextlib.suppress(OSError):
            os.unlink(self._private)


@contextlib.contextmanager
def _locked(path: str) -> Iterator[os.stat_result | None]:
    """Locks a regular file that no other process has locked, and yields it. Yields None for any other file."""
    try:
        is_regular = stat.S_ISREG(os.stat(path, follow_symlinks=False).st_mode)
        descriptor = os.open(path, OPEN_FLAGS) if is_regular else -1
    except OSError:
        descriptor = -1
    if descriptor < 0:
        yield None
        return
    try:
        found = os.fstat(descriptor)
        is_named = os.path.samestat(os.stat(path, follow_symlinks=False), found)
        is_free = stat.S_ISREG(found.st_mode) and set_lock(descriptor, fcntl.F_WRLCK, ATTACH_LOCK_BYTE)
        yield found if is_free and is_named and os.pread(descriptor, 8, 0) in {b"", bytes(8)} else None
    except FileNotFoundError:
        yield None
    finally:
        os.close(descriptor)


def remove_half_made(file: ArenaFileAccess) -> bool:
    """Removes the leftover of a dead creator of a former version. Returns False if there is none."""
    with _locked(file.path) as found:
        if found is None or found.st_uid != os.geteuid() or found.st_size % PAGE_SIZE:
            return False
        if found.st_size and not file.is_shared_memory:
            return False
        os.unlink(file.path)
    _warn("%s was left by a creator that died: it is created again", file.text)
    return True


def remove_private(file: ArenaFileAccess) -> None:
    """Removes the private file of a dead creator, but not that of a living one."""
    private = private_name(file.path)
    with contextlib.suppress(OSError):
        descriptor = os.open(private, OPEN_FLAGS)
        try:
            if set_lock(descriptor, fcntl.F_WRLCK, ATTACH_LOCK_BYTE):
                os.unlink(private)
        finally:
            os.close(descriptor)
