# SPDX-License-Identifier: Apache-2.0
"""The locks of a group whose members are processes of this host: no server, no heartbeat, no session time-out.

::

    .groups/NAME.lock
      byte 0           the mode       read lock of every member; a server has a write lock on the whole file
      byte 1           the offsets    write lock of the member that writes the offsets file
      byte 2           the planner    write lock of the member that computes a plan and writes it
      byte 2^20 + i    member i       write lock while the member lives, 0 <= i < 4096
      byte 2^32 + h    a partition    write lock of its owner; h is a digest of the partition's name, 61 bits
      content          the wake-up    8 bytes; writing them wakes every member, by inotify
    .groups/NAME.plan                 the members and the partitions of each (`plan`), replaced by rename
    .groups/NAME.joins                the rows of members that are not in a plan yet (`joins`)
    .groups/NAME.offsets              committed offsets (`offsets_file`)

Rules: each member has one descriptor, and all its locks are OFD locks of this descriptor. The kernel releases them when
the last copy of the descriptor is closed, so any death of a process releases them at once. The descriptor is O_CLOEXEC,
and a forked child closes its copy. A child never unlocks, because that would release the parent's lock. The offsets
byte is locked for one write. A member only writes the offsets of partitions whose bytes it has locked. No member waits
for the planner's byte: if it is locked, the member checks the plan again a moment later.

Procedure: a member locks the mode and a free member byte, and appends its row to the joins. If the plan lacks this
member or has an outdated row of it, or if the living members are not those of the plan, it locks the planner's byte. It
checks again, and if the plan is still wrong, it publishes one for all living members and all rows of the joins. So
members that join while a plan is being made share the next one. After a plan, each member releases the partitions that
it no longer has (commit, unlock, wake the others), and locks its new ones as soon as their former owners have released
them.

Deaths: when a member dies, the kernel closes its descriptor. inotify reports that (IN_CLOSE_WRITE) just before the
locks are released, so the others check repeatedly for a moment. If it dies before it is in a plan, its byte is free, so
its row in the joins is ignored. If it dies while it writes offsets, the byte is free, and a torn frame or a ``.tmp`` is
left, which the next writer cuts or replaces. If it dies as the planner, the byte is free, and the old plan or the new
one is there. If it dies between the rename of a plan and the wake-up, its own death wakes the others. A stopped member
keeps its partitions until it continues or is killed. If it stops while it writes offsets, the commits of the others
fail after their time-out and name stopped members. If it stops as the planner, the others log the delay of the plans.

Removal: if the folder or the lock file is removed or replaced while members live, a check of each member, at least
every 5 s, detects it. The member takes its locks in the new file and writes the offsets that are missing there. Until
then, a new member may consume the same partitions: their records are consumed twice, but none is lost.

Why it is safe: at most one open descriptor has locked the byte of a partition, so at most one living member consumes
it. The next owner locks the byte after the former one has committed and unlocked it, so it reads these offsets. A
time-out never decides that a member is dead.
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
OFFSETS_BYTE = 1
PLANNER_BYTE = 2
MEMBERS_BYTE = 1 << 20
MEMBERS_MAX = 4096
PARTITIONS_BYTE = 1 << 32
DIGEST_BITS = 61
WAKE_SIZE = 8
LOCK_OFFSETS = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, OFFSETS_BYTE, 1, 0)
UNLOCK_OFFSETS = FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, OFFSETS_BYTE, 1, 0)
OFFSETS_INTERVAL_S_MIN = 0.0001
OFFSETS_INTERVAL_S_MAX = 0.01


def partition_byte(place: TopicPartition) -> int:
    """The byte of a partition. A collision of two partitions is less likely than a failure of the disk."""
    digest = hashlib.blake2b(str(place).encode(), digest_size=8).digest()
    return PARTITIONS_BYTE + (int.from_bytes(digest, "big") >> (64 - DIGEST_BITS))


def living_slots(path: str, slots: Iterable[int]) -> set[int]:
    """The slots of the living members, for a process that is not a member.

    The lock of a server covers the whole file and begins at byte 0. The lock of a member begins at its own byte.

    Raises:
        OSError: if the lock file cannot be read.
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
    """Open the lock file, and create it if necessary.

    Raises:
        LogForbiddenError: if the user may not write there.
    """
    try:
        make_folder(os.path.dirname(path))
        descriptor.open(path)
    except OSError as error:
        if error.errno not in {errno.EACCES, errno.EPERM, errno.EROFS}:
            raise
        raise LogForbiddenError(
            f"user {os.geteuid()} may not write {path}, the lock file of the group: consume without group_id, "
            "or get the right to write the log directory"
        ) from None


@final
class MemberLocks:
    """The locks of one member. They are held until `leave` or `close`.

    Attributes:
        path: the lock file.
        slot: the number of the member, or -1 before `join`.
        owned: the partitions whose bytes are locked.

    Args:
        directory: the log directory.
        group_id: the group.

    Raises:
        GroupModeError: if a server coordinates the group.
        InvalidArgumentError: if the group id is empty, or the directory is on a file system of another host.
        LogForbiddenError: if the user may not write there.
        OSError: if the file cannot be opened.
    """

    def __init__(self, directory: str, group_id: str) -> None:
        if not group_id:
            raise InvalidArgumentError("the group id is empty: give group_id a name")
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
        """Lock or unlock one byte; return False if another descriptor has locked it."""
        return self._descriptor.set(kind, byte, 1)

    def _is_locked(self, byte: int) -> bool:
        """True while another descriptor has locked the byte."""
        return self._descriptor.kind_at(byte) != fcntl.F_UNLCK

    @property
    def has_its_name(self) -> bool:
        """False after the lock file was removed or replaced. New members then have locks in another file."""
        return is_file_at(self.path, self._descriptor.number)

    def renew(self) -> None:
        """Take all locks again in the file that has the path now. Partitions locked there by another member are lost.

        Raises:
            GroupModeError, LogForbiddenError, ConsumerStateError, OSError: as the constructor and `join`. Nothing is
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
        """The descriptor that has the locks, or -1 if it is closed."""
        return self._descriptor.number

    # --- members

    def join(self) -> None:
        """Lock a free member byte. The search starts at a random byte, so it is short.

        Raises:
            ConsumerStateError: if all are locked.
        """
        first = random.randrange(MEMBERS_MAX)
        slots = ((first + number) % MEMBERS_MAX for number in range(MEMBERS_MAX))
        self.slot = next((slot for slot in slots if self._set(fcntl.F_WRLCK, MEMBERS_BYTE + slot)), -1)
        if self.slot < 0:
            raise ConsumerStateError(
                f"the group {self._group_id!r} has {MEMBERS_MAX} members: stop one, or use two groups"
            )

    def unjoin(self) -> None:
        """Release the member byte. The caller owns no partition."""
        if self.slot >= 0:
            self._set(fcntl.F_UNLCK, MEMBERS_BYTE + self.slot)
            self.slot = -1

    def lives(self, slot: int) -> bool:
        """True while a member with this slot lives."""
        return 0 <= slot < MEMBERS_MAX and (slot == self.slot or self._is_locked(MEMBERS_BYTE + slot))

    # --- partitions

    def take(self, place: TopicPartition) -> bool:
        """Become the owner of a partition; return False if another member is."""
        if place not in self.owned and self._set(fcntl.F_WRLCK, partition_byte(place)):
            self.owned.add(place)
        return place in self.owned

    def give_up(self, place: TopicPartition) -> None:
        """Release a partition. `wake` informs the other members."""
        if place in self.owned:
            self.owned.remove(place)
            self._set(fcntl.F_UNLCK, partition_byte(place))

    # --- the planner, the offsets and the wake-up

    @contextlib.contextmanager
    def planner(self) -> Iterator[bool]:
        """The right to write the plan, or False if another member has it. This call does not wait."""
        is_planner = self._set(fcntl.F_WRLCK, PLANNER_BYTE)
        try:
            yield is_planner
        finally:
            if is_planner and self.is_open:
                self._set(fcntl.F_UNLCK, PLANNER_BYTE)

    @contextlib.contextmanager
    def offsets_lock(self, timeout_s: float, hint: Callable[[], str] = str) -> Iterator[None]:
        """The right to write the offsets.

        Args:
            timeout_s: the longest wait.
            hint: returns the end of the message if the wait fails.

        Raises:
            GroupBusyError: if another member had it all the time.
        """
        self.lock_offsets(timeout_s, hint)
        try:
            yield
        finally:
            self.unlock_offsets()

    def lock_offsets(self, timeout_s: float, hint: Callable[[], str] = str) -> None:
        """Acquire the right of `offsets_lock`, with the same arguments. `unlock_offsets` releases it.

        Raises:
            GroupBusyError: if another member had it all the time.
        """
        if not self._try_lock_offsets():
            self._wait_for_offsets(timeout_s, hint)

    def _try_lock_offsets(self) -> bool:
        try:
            fcntl.fcntl(self._descriptor.number, fcntl.F_OFD_SETLK, LOCK_OFFSETS)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _wait_for_offsets(self, timeout_s: float, hint: Callable[[], str]) -> None:
        deadline_s, interval_s = clock.monotonic() + timeout_s, OFFSETS_INTERVAL_S_MIN
        while not self._try_lock_offsets():
            if clock.monotonic() >= deadline_s:
                raise GroupBusyError(self._busy_message(timeout_s, hint))
            time.sleep(interval_s)
            interval_s = min(2 * interval_s, OFFSETS_INTERVAL_S_MAX)

    def _busy_message(self, timeout_s: float, hint: Callable[[], str]) -> str:
        if timeout_s <= 0:
            return f"another member of the group {self._group_id!r} is writing at the moment: try again"
        return (
            f"another member of the group {self._group_id!r} has been writing for {timeout_s:g} s and is probably "
            f"stopped: continue it or kill it{hint()}"
        )

    def unlock_offsets(self) -> None:
        """Let other members write offsets. Does nothing in a forked child, whose copy of the locks is closed."""
        if self.is_open:
            fcntl.fcntl(self._descriptor.number, fcntl.F_OFD_SETLK, UNLOCK_OFFSETS)

    def wake(self) -> None:
        """Wake every member, because something changed."""
        os.pwrite(self._descriptor.number, clock.monotonic_ns().to_bytes(WAKE_SIZE, "big"), 0)

    def leave(self) -> None:
        """Release every lock at once, and wake the other members. A second call does nothing.

        A child that was just forked has a copy of the descriptor until it closes it. So closing the descriptor here
        would not release the locks at once.
        """
        if self.is_open:
            self._descriptor.set(fcntl.F_UNLCK, 0, 0)
            self.wake()
        self.close()

    def close(self) -> None:
        """Close the descriptor. The kernel releases its locks with its last copy. A second call does nothing."""
        self.owned.clear()
        self._descriptor.close()
