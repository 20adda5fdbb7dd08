# SPDX-License-Identifier: Apache-2.0
"""The locks of a group whose members are processes of this host: no server, no heartbeat, no session time-out.

::

    .groups/NAME.lock
      byte 0           the mode       read lock of every member; a server has a write lock on the whole file
      byte 1           the pen        write lock of the member that writes the offsets file
      byte 2           the planner    write lock of the member that computes a plan and writes it
      byte 2^20 + i    member i       write lock while the member lives, 0 <= i < 4096
      byte 2^32 + h    a partition    write lock of its owner; h is a digest of the partition's name, 61 bits
      content          the bell       8 bytes; a write tells every member, by inotify, that something changed
    .groups/NAME.plan                 the members and the partitions of each (`plan`), replaced by rename
    .groups/NAME.joins                the rows of members that no plan has yet (`joins`)
    .groups/NAME.offsets              committed offsets (`offsets_file`)

Rules: all locks are OFD locks of one descriptor for each member. The kernel frees them when the last copy of this
descriptor is closed, so the death of a process in any way frees them at once. The descriptor is O_CLOEXEC, and a
forked child closes its copy. A child never unlocks: an unlock would free the parent's lock. The pen is held for one
write. A member writes no offset of a partition whose byte it does not hold. Nobody waits for the planner's byte: a
member that finds it taken looks at the plan again a moment later.

Procedure: a member takes the mode and a free member byte, and appends its row to the joins. A member that is not in the
plan as it wants to be, or sees other living members than the plan has, takes the planner's byte. It looks again, and if
the plan still differs, it publishes one for all living members and all rows of the joins. So members that join while
another plan is made share the next one. After a plan each member gives up the partitions that it no longer has (commit,
then unlock, then the bell), and takes the bytes of its new ones as soon as their former owners let go.

Deaths: a member dies. The kernel closes its descriptor, and inotify tells the others (IN_CLOSE_WRITE) just before the
locks are free, so they look again for a moment. It dies before it has a plan: its byte is free, so a row in the joins
counts for nothing. It dies with the pen: the pen is free, and a torn frame or a ``.tmp`` is left, which the next writer
cuts or replaces. It dies as the planner: the byte is free, and the former plan or the new one is there. It dies between
the rename of a plan and the bell: its own death is the bell. A member stops: it keeps its bytes, hence its partitions,
until it goes on or is killed. A member that stops with the pen holds up the commits of the others, which then fail
after their time-out, and name stopped members. One that stops as the planner holds up the plans, and the others log it.

Removal: the folder or the lock file is removed or replaced while members live. A look of each member, every 5 s at
the latest, finds that its file has no name. The member takes its locks in the new file and writes offsets that are
missing there. Until then a new member may consume the same partitions: their records come twice, and none is lost.

Why it is safe: at most one open descriptor has the byte of a partition, so at most one living member consumes it. The
next owner locks the byte after the former one has committed and unlocked it, so it reads these offsets. No time-out
decides that a member is dead.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import final

from shmaccum.common import clock
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import (
    ConsumerStateError,
    GroupBusyError,
    GroupModeError,
    InvalidArgumentError,
    LogForbiddenError,
)
from shmaccum.log.files.file_names import GROUPS_FOLDER
from shmaccum.log.files.lock_descriptor import FLOCK, LockDescriptor
from shmaccum.log.files.permissions import make_folder
from shmaccum.log.files.regular_files import is_file_at, open_regular
from shmaccum.log.groups.file_systems import check_locks_of
from shmaccum.log.groups.offsets_file import LOCK, file_stem

MODE_BYTE = 0
PEN_BYTE = 1
PLANNER_BYTE = 2
MEMBERS_BYTE = 1 << 20
MEMBERS_MAX = 4096
PARTITIONS_BYTE = 1 << 32
DIGEST_BITS = 61
BELL_SIZE = 8
TAKEN_PEN = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, PEN_BYTE, 1, 0)
DROPPED_PEN = FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, PEN_BYTE, 1, 0)
PEN_INTERVAL_S_MIN = 0.0001
PEN_INTERVAL_S_MAX = 0.01


def partition_byte(place: TopicPartition) -> int:
    """The byte of a partition. Two partitions of a log with one byte are less likely than a broken disk."""
    digest = hashlib.blake2b(str(place).encode(), digest_size=8).digest()
    return PARTITIONS_BYTE + (int.from_bytes(digest, "big") >> (64 - DIGEST_BITS))


def living_slots(path: str, slots: Iterable[int]) -> set[int]:
    """The numbers of members that live, as a process sees that is no member.

    A server has the whole file locked. Such a lock begins at the first byte, that of a member at the member's byte.

    Raises:
        OSError: the lock file cannot be read.
    """
    try:
        descriptor = open_regular(path, os.O_RDONLY)
    except FileNotFoundError:
        return set()
    try:
        return {
            slot for slot in slots if 0 <= slot < MEMBERS_MAX and _locker_begins_at(descriptor, MEMBERS_BYTE + slot)
        }
    finally:
        os.close(descriptor)


def _locker_begins_at(descriptor: int, byte: int) -> bool:
    asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    found: tuple[int, ...] = FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, asked))
    return found[0] != fcntl.F_UNLCK and found[2] == byte


def _open(descriptor: LockDescriptor, path: str) -> None:
    """Opens the lock file, which is made if need be.

    Raises:
        LogForbiddenError: the user may not write there.
    """
    try:
        make_folder(os.path.dirname(path))
        descriptor.open(path)
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise
        raise LogForbiddenError(
            f"user {os.geteuid()} may not write {path}, where the members of a group meet: consume without group_id, "
            "or get the right to write the log directory"
        ) from None


@final
class MemberLocks:
    """The locks of one member, as long as this object is open.

    Attributes:
        path: the lock file.
        slot: the number of the member; -1 before `join`.
        owned: the partitions whose bytes are held.

    Args:
        directory: the log directory.
        group_id: the group.

    Raises:
        GroupModeError: a server coordinates the group.
        InvalidArgumentError: the group id is empty, or the directory lies on a file system of another host.
        LogForbiddenError: the user may not write there.
        OSError: the file cannot be opened.
    """

    def __init__(self, directory: str, group_id: str) -> None:
        if not group_id:
            raise InvalidArgumentError("a group id may not be empty: give group_id a name")
        check_locks_of(directory)
        self.path = os.path.join(directory, GROUPS_FOLDER, file_stem(group_id) + LOCK)
        self.slot = -1
        self.owned: set[TopicPartition] = set()
        self._directory = directory
        self._group_id = group_id
        self._descriptor = LockDescriptor()
        self._open()

    def _open(self) -> None:
        while not self.has_its_name:
            self.close()  # the group was deleted before the file was locked
            _open(self._descriptor, self.path)
            self._lock_mode()

    def _lock_mode(self) -> None:
        if not self._set(fcntl.F_RDLCK, MODE_BYTE):
            self.close()
            raise GroupModeError(
                f"the group {self._group_id!r} of {self._directory} is coordinated by a server: consume through that "
                "server, stop it, or name another group"
            )

    def _set(self, kind: int, byte: int) -> bool:
        """Locks or unlocks one byte; False when another descriptor has it."""
        return self._descriptor.set(kind, byte, 1)

    def _is_locked(self, byte: int) -> bool:
        """True while another descriptor has the byte."""
        return self._descriptor.kind_at(byte) != fcntl.F_UNLCK

    @property
    def has_its_name(self) -> bool:
        """False after the lock file was removed or replaced: members that came since have other locks."""
        return is_file_at(self.path, self._descriptor.number)

    def renew(self) -> None:
        """Takes all locks again in the file that has the name now. A partition that another member has there is lost.

        Raises:
            GroupModeError, LogForbiddenError, ConsumerStateError, OSError: as the constructor and `join`; nothing is
                owned then.
        """
        owned = set(self.owned)
        self.close()
        self._open()
        if self.slot >= 0:
            self.join()
        for place in owned:
            self.take(place)

    @property
    def is_open(self) -> bool:
        """False after `close`, and in a forked child."""
        return self._descriptor.is_open

    @property
    def descriptor(self) -> int:
        """The descriptor that holds the locks; -1 when they are closed."""
        return self._descriptor.number

    # --- members

    def join(self) -> None:
        """Takes the first free member byte behind one that is chosen at random, so that it is found at once.

        Raises:
            ConsumerStateError: all are taken.
        """
        first = random.randrange(MEMBERS_MAX)
        slots = ((first + number) % MEMBERS_MAX for number in range(MEMBERS_MAX))
        self.slot = next((slot for slot in slots if self._set(fcntl.F_WRLCK, MEMBERS_BYTE + slot)), -1)
        if self.slot < 0:
            raise ConsumerStateError(
                f"the group {self._group_id!r} has {MEMBERS_MAX} members: stop one, or use two groups"
            )

    def unjoin(self) -> None:
        """Is no member any more, and owns nothing."""
        if self.slot >= 0:
            self._set(fcntl.F_UNLCK, MEMBERS_BYTE + self.slot)
            self.slot = -1

    def lives(self, slot: int) -> bool:
        """True while a member has this number."""
        return 0 <= slot < MEMBERS_MAX and (slot == self.slot or self._is_locked(MEMBERS_BYTE + slot))

    # --- partitions

    def take(self, place: TopicPartition) -> bool:
        """Becomes the owner of a partition; False while another member is."""
        if place not in self.owned and self._set(fcntl.F_WRLCK, partition_byte(place)):
            self.owned.add(place)
        return place in self.owned

    def give_up(self, place: TopicPartition) -> None:
        """Is the owner no more; `ring` tells the others."""
        if place in self.owned:
            self.owned.remove(place)
            self._set(fcntl.F_UNLCK, partition_byte(place))

    # --- the planner, the pen and the bell

    @contextlib.contextmanager
    def planner(self) -> Iterator[bool]:
        """The right to write the plan; False while another member has it, which this call does not wait for."""
        is_ours = self._set(fcntl.F_WRLCK, PLANNER_BYTE)
        try:
            yield is_ours
        finally:
            if is_ours and self.is_open:
                self._set(fcntl.F_UNLCK, PLANNER_BYTE)

    @contextlib.contextmanager
    def pen(self, timeout_s: float, hint: Callable[[], str] = str) -> Iterator[None]:
        """The right to write the offsets.

        Args:
            timeout_s: the longest wait for it.
            hint: makes the end of the message after a wait in vain.

        Raises:
            GroupBusyError: another member had it all the time.
        """
        self.take_pen(timeout_s, hint)
        try:
            yield
        finally:
            self.drop_pen()

    def take_pen(self, timeout_s: float, hint: Callable[[], str] = str) -> None:
        """Takes the right of `pen`, which has the arguments; `drop_pen` gives it back.

        Raises:
            GroupBusyError: another member had it all the time.
        """
        if not self._try_pen():
            self._wait_for_pen(timeout_s, hint)

    def _try_pen(self) -> bool:
        try:
            fcntl.fcntl(self._descriptor.number, fcntl.F_OFD_SETLK, TAKEN_PEN)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _wait_for_pen(self, timeout_s: float, hint: Callable[[], str]) -> None:
        deadline_s, interval_s = clock.monotonic() + timeout_s, PEN_INTERVAL_S_MIN
        while not self._try_pen():
            if clock.monotonic() >= deadline_s:
                raise GroupBusyError(self._busy_sentence(timeout_s, hint))
            time.sleep(interval_s)
            interval_s = min(2 * interval_s, PEN_INTERVAL_S_MAX)

    def _busy_sentence(self, timeout_s: float, hint: Callable[[], str]) -> str:
        if timeout_s <= 0:
            return f"another member of the group {self._group_id!r} writes at this moment: try again"
        return (
            f"another member of the group {self._group_id!r} has been writing for {timeout_s:g} s, it is probably "
            f"stopped: continue it or kill it{hint()}"
        )

    def drop_pen(self) -> None:
        """Lets other members write. A forked child, whose copy of the locks is closed, does nothing."""
        if self.is_open:
            fcntl.fcntl(self._descriptor.number, fcntl.F_OFD_SETLK, DROPPED_PEN)

    def ring(self) -> None:
        """Tells every member that something changed."""
        os.pwrite(self._descriptor.number, clock.monotonic_ns().to_bytes(BELL_SIZE, "big"), 0)

    def leave(self) -> None:
        """Frees every lock at once, and tells the others. Doing it twice does nothing.

        A child that was just forked has a copy of the descriptor until it comes to close it. So to close alone would
        keep the locks for this moment.
        """
        if self.is_open:
            self._descriptor.set(fcntl.F_UNLCK, 0, 0)
            self.ring()
        self.close()

    def close(self) -> None:
        """Closes the descriptor, whose locks the kernel frees with its last copy. Doing it twice does nothing."""
        self.owned.clear()
        self._descriptor.close()
