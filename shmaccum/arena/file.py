# SPDX-License-Identifier: Apache-2.0
"""The place of an arena's file, and the two descriptors with which it is opened.

A name without a slash (a leading one is optional) is a POSIX shared-memory object. Any other name is the path of a
file. The inode is opened twice: one open is mapped, the other carries the byte locks and is never mapped
(docs/decisions/0001). Both opens reject symbolic links and are closed on exec. Owner and mode are checked before the
descriptors are used.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import stat
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from shmaccum.arena.creation import CHECK_S, Creation, Descriptors
from shmaccum.arena.named_objects import SHARED_MEMORY, open_shared_memory, unlink_shared_memory
from shmaccum.arena.trust import check_arena, drop_access_list
from shmaccum.common.durability import sync_folder
from shmaccum.exceptions import (
    ArenaBusyError,
    ArenaError,
    ArenaExistsError,
    ArenaForbiddenError,
    ArenaNotFoundError,
    InvalidArgumentError,
    NotAnArenaError,
)

OPEN_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC
EXISTING_FLAGS = os.O_NONBLOCK  # if a FIFO has the arena's name, opening it must not block
OPEN_TO_OTHERS = 0o077
WRITABLE_BY_ALL = 0o002
GROUP_ACCESS = 0o060
WITHOUT_EXECUTION = 0o666
MAGIC = b"smarena1"
"""The first bytes of an arena (native/arena/layout.h: ARENA_MAGIC)."""

# A child forked between the open and the arena's own fork handler would inherit the descriptor with the locks.
_opening = threading.RLock()
os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_opening.release)


def _is_encodable(text: str) -> bool:
    """False for lone surrogates, which no file name has."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _is_utf8(text: str) -> bool:
    """False for bytes that the locale could not decode, which posix_ipc rejects."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _open_nonblocking(path: str, _flags: int) -> int:
    return os.open(path, os.O_RDONLY | OPEN_FLAGS | EXISTING_FLAGS)


def is_arena(path: str) -> bool:
    """True for a regular file that this user can read, and that begins like an arena."""
    try:
        if not stat.S_ISREG(os.stat(path, follow_symlinks=False).st_mode):
            return False
        with open(path, "rb", opener=_open_nonblocking) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def group_number(group: str | int | None, mode: int) -> int | None:
    """Returns the number of the group that shares an arena.

    Args:
        group: its name or number, or None if none was given.
        mode: the mode of the arena.

    Raises:
        InvalidArgumentError: there is no such group, or the mode does not let it write.
    """
    if group is None:
        return None
    if mode & GROUP_ACCESS != GROUP_ACCESS:
        raise InvalidArgumentError(
            f"mode {mode:#o} does not let group {group} use the arena: give it a mode such as 0660, too"
        )
    try:
        if isinstance(group, int) or group.isdecimal():
            return int(group)
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise InvalidArgumentError(
            f"this host has no group {group!r}: create it (groupadd {group}), or name another one"
        ) from None


def set_permissions(file: int | str, name: str, mode: int, group: int | None) -> None:
    """Sets group and mode of a file, regardless of the umask and of the folder's default file ACL.

    Args:
        file: a descriptor or a path.
        name: for the message.
        group: its number, or None to leave it unchanged.

    Raises:
        ArenaForbiddenError: this user may not give a file to the group.
    """
    try:
        if group is not None and os.stat(file).st_gid != group:
            os.chown(file, -1, group)
    except PermissionError:
        raise ArenaForbiddenError(
            f"user {os.geteuid()} may not give {name} to group {group}: make the user a member of the group, or let "
            "root do it"
        ) from None
    drop_access_list(file)
    os.chmod(file, mode)


class ArenaFile(NamedTuple):
    """The place of an arena. `text` is its path or, if `is_shared_memory` is true, its name, such as events."""

    text: str
    is_shared_memory: bool

    @classmethod
    def parse(cls, name: str | os.PathLike[str]) -> ArenaFile:
        """Parses an arena's name, which is a shared-memory name or a path.

        Raises:
            InvalidArgumentError: the name is empty, contains NUL, is too long, or is invalid for shared memory.
        """
        if isinstance(name, bytes) or not isinstance(name, (str, os.PathLike)):
            raise TypeError(f"an arena's name is a str or a path, not {type(name).__name__}")
        text = os.fspath(name)
        if "\0" in text or not text.strip("/") or not _is_encodable(text):
            raise InvalidArgumentError(
                f"{text!r} cannot be the name of an arena: give a name such as 'events' or a path"
            )
        bare = text.removeprefix("/")
        if "/" in bare:
            return cls(os.path.abspath(text), is_shared_memory=False)
        if bare in {".", ".."} or not _is_utf8(bare) or len(os.fsencode(bare)) > 254:
            raise InvalidArgumentError(
                f"{text!r} cannot be the name of shared memory: at most 254 bytes of UTF-8, not . or .."
            )
        return cls(bare, is_shared_memory=True)

    def share(self, companion: str) -> None:
        """Gives a companion file the arena's group, and the arena's mode without execution.

        It does nothing if the arena has lost its name, because no other process needs the file then.

        Raises:
            ArenaForbiddenError: this user may not give a file to the arena's group.
        """
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(self.path, follow_symlinks=False)
            set_permissions(companion, companion, stat.S_IMODE(found.st_mode) & WITHOUT_EXECUTION, found.st_gid)

    def share_again(self, companion: str) -> None:
        """Shares an existing file of this user, whose creator may have died before it was shared."""
        with contextlib.suppress(OSError):
            if os.stat(companion, follow_symlinks=False).st_uid == os.geteuid():
                self.share(companion)

    @property
    def path(self) -> str:
        """The path of the file. Shared memory has its own file system."""
        return f"{SHARED_MEMORY}/{self.text}" if self.is_shared_memory else self.text

    @property
    def _object(self) -> str:
        """The name of the shared-memory object, which begins with a slash."""
        return "/" + self.text

    def wake_fifo(self, uuid: bytes) -> str:
        """The path of the wake FIFO: beside the arena's file, or in shared memory, named by the arena's uuid."""
        return self._beside(uuid, "bell")

    def results_fifo(self, uuid: bytes) -> str:
        """The path of the results FIFO."""
        return self._beside(uuid, "results")

    def presence(self, uuid: bytes, number: int) -> str:
        """The path of the socket of the sender that published this number."""
        return os.path.join(os.path.dirname(self.path), f".shmaccum-{uuid.hex()[:12]}.{number:016x}")

    def presences(self, uuid: bytes) -> list[str]:
        """The sockets of all senders of the arena: the living one, and killed ones."""
        folder = os.path.dirname(self.path)
        stem = f".shmaccum-{uuid.hex()[:12]}."
        with contextlib.suppress(OSError):
            return [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(stem)]
        return []

    def _beside(self, uuid: bytes, suffix: str) -> str:
        stem = f"{SHARED_MEMORY}/shmaccum-{uuid.hex()[:12]}" if self.is_shared_memory else self.text
        return f"{stem}.{suffix}"

    def exists(self) -> bool:
        """True if any file has this name."""
        try:
            os.close(self._open_once(read_only=True))
        except ArenaNotFoundError:
            return False
        except (OSError, ArenaError):
            return True
        return True

    def unlink(self) -> None:
        """Removes the name. Processes that have the arena open can still use it."""
        with self._errors_named(FileNotFoundError, self._missing()):
            if self.is_shared_memory:
                unlink_shared_memory(self._object)
            else:
                os.unlink(self.text)
                with contextlib.suppress(OSError):  # it is removed, but a power cut may restore it
                    sync_folder(os.path.dirname(self.text))

    @contextlib.contextmanager
    def create(self, mode: int, group: int | None = None) -> Iterator[Descriptors]:
        """Creates a file of exactly this mode, opened twice, which gets its name after the body (`creation`).

        If the body raises, the file is removed. If another process is creating the arena, this call waits for it.

        Args:
            group: the number of its group, or None for the group of this process.

        Raises:
            ArenaExistsError: the name is taken.
            ArenaForbiddenError: this user may not give a file to the group.
            InvalidArgumentError: the mode lets all users write.
        """
        if mode & WRITABLE_BY_ALL:
            raise InvalidArgumentError(
                f"mode {mode:#o} would let every user of this host write into the arena: share it with a group (0660)"
            )
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, "the folder for the arena does not exist: create it first", folder)
        creation = Creation(self, mode, group)
        while True:
            with _opening:
                with self._errors_named(FileExistsError, self.taken()):
                    descriptors = creation.begin()
                if descriptors is not None:
                    yield from self._made(creation, descriptors)
                    return
            time.sleep(CHECK_S)

    @staticmethod
    def _made(creation: Creation, descriptors: Descriptors) -> Iterator[Descriptors]:
        """Passes the descriptors to the body, and finishes the creation. A duplicate holds the lock until then."""
        try:
            lock = os.dup(descriptors.lock)
        except BaseException:
            creation.discard()
            descriptors.close()
            raise
        try:
            yield descriptors
            creation.publish()
        except BaseException:
            creation.discard()
            raise
        finally:
            os.close(lock)

    @contextlib.contextmanager
    def open(
        self, *, read_only: bool, mode_max: int, group: int | None = None, is_trusted: bool = False
    ) -> Iterator[Descriptors]:
        """Opens the existing file twice, and checks its owner and mode.

        Args:
            read_only: open it for inspection. A reader does not trust the file, so its owner does not matter.
            mode_max: the widest permissions to accept.
            group: the number of the required group, or None for any group of this process.
            is_trusted: accept any owner, because the arena will be removed.

        Raises:
            ArenaNotFoundError: nothing has this name.
            ArenaForbiddenError: the arena belongs to another user, is open to more than `mode_max`, or (to attach) is
                writable by all users, or belongs to a user whom this process does not trust (arena/trust.py).
            NotAnArenaError: the file is a folder, a device or a symbolic link.
        """
        if not isinstance(mode_max, int):
            raise TypeError(f"a mode is an int such as 0o600, not {mode_max!r}")
        with _opening:
            descriptors = self._with_second_open(self._open_once(read_only=read_only), read_only=read_only)
            try:
                self._check(os.fstat(descriptors.map), mode_max, read_only=read_only)
                if not read_only and not is_trusted:
                    check_arena(self.text, descriptors.map, mode_max, group)
            except BaseException:
                descriptors.close()
                raise
            yield descriptors

    def check_trust(self, mode_max: int, group: int | None) -> None:
        """Rejects an existing arena whose owner this process does not trust.

        Raises:
            ArenaForbiddenError: as `open`.
            ArenaNotFoundError: nothing has this name any more.
        """
        with _opening:
            descriptor = self._open_once(read_only=True)
            try:
                check_arena(self.text, descriptor, mode_max, group)
            finally:
                os.close(descriptor)

    def set_permissions(self, descriptor: int, mode: int, group: int | None) -> None:
        """Sets mode and group of a new file of the arena.

        Raises:
            ArenaForbiddenError: this user may not give a file to the group.
        """
        set_permissions(descriptor, self.text, mode, group)

    def _with_second_open(self, map_descriptor: int, *, read_only: bool) -> Descriptors:
        try:
            lock_descriptor = self._open_once(read_only=read_only)
        except BaseException:
            os.close(map_descriptor)
            raise
        descriptors = Descriptors(map_descriptor, lock_descriptor)
        try:
            if not os.path.sameopenfile(map_descriptor, lock_descriptor):
                raise ArenaBusyError(f"{self.text} was replaced while it was opened: try again")
        except BaseException:
            descriptors.close()
            raise
        return descriptors

    def _check(self, found: os.stat_result, mode_max: int, *, read_only: bool) -> None:
        """Checks a file. A reader does not trust it, and so may open a file that no process should attach to."""
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISREG(found.st_mode):
            raise NotAnArenaError(f"{self.text} is not a regular file")
        if mode & WRITABLE_BY_ALL and not read_only:
            raise ArenaForbiddenError(
                f"{self.text} has mode {mode:#o}: every user of this host can write into it, so nothing in it can be "
                "trusted. Examine it with shmaccum check, then set its mode to 0600 or 0660"
            )
        if found.st_uid != os.geteuid() and not mode_max & OPEN_TO_OTHERS:
            raise ArenaForbiddenError(
                f"{self.text} belongs to user {found.st_uid}, this process runs as {os.geteuid()}: run it as the "
                f"arena's owner, or attach with mode={mode:#o} (--mode {mode:04o}) if it is shared on purpose"
            )
        if mode & OPEN_TO_OTHERS & ~mode_max:
            raise ArenaForbiddenError(
                f"{self.text} has mode {mode:#o}, so others could write into it: set it to 0600, or attach with "
                f"mode={mode:#o} (--mode {mode:04o}) if it is shared on purpose"
            )

    def _open_once(self, *, read_only: bool) -> int:
        with self._errors_named(FileNotFoundError, self._missing()):
            if self.is_shared_memory:
                return open_shared_memory(self._object, EXISTING_FLAGS, read_only=read_only)
            return os.open(self.text, (os.O_RDONLY if read_only else os.O_RDWR) | OPEN_FLAGS | EXISTING_FLAGS)

    def taken(self) -> ArenaExistsError:
        """Returns the error for a taken name. It does not advise to remove a file that was never an arena."""
        if self._is_other_file():
            return ArenaExistsError(f"{self.text} already exists and is not an arena: choose another name")
        return ArenaExistsError(f"{self.text} already exists: attach to it, or remove it first")

    def _is_other_file(self) -> bool:
        """True if the name belongs to something other than a complete or unfinished arena."""
        try:
            found = os.stat(self.path, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                return True
            with open(self.path, "rb", opener=_open_nonblocking) as file:
                beginning = file.read(len(MAGIC))
        except OSError:
            return False
        return beginning not in {MAGIC, bytes(len(MAGIC)), b""}

    def _forbidden(self) -> str:
        """Returns the message for an arena that the kernel does not let this user open."""
        sentence = f"{self.text} may not be opened by user {os.geteuid()}"
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return f"{sentence}: this user may not enter its folder"
        mode = stat.S_IMODE(found.st_mode)
        sentence += f": it belongs to user {found.st_uid} and group {found.st_gid} and has mode {mode:#o}"
        if mode & GROUP_ACCESS != GROUP_ACCESS:
            return f"{sentence}. Run as that user, or create the arena with a group and mode 0660"
        return f"{sentence}. Run as that user or as a member of that group"

    def _missing(self) -> ArenaNotFoundError:
        return ArenaNotFoundError(f"there is no arena {self.text}: create it first")

    @contextlib.contextmanager
    def _errors_named(self, existence: type[OSError], named: ArenaError) -> Iterator[None]:
        """Converts the errors of opening a file or a shared-memory object to exceptions of this package. Other OSErrors
        are unchanged.
        """
        try:
            yield
        except ArenaError:
            raise
        except existence:
            raise named from None
        except PermissionError:
            raise ArenaForbiddenError(self._forbidden()) from None
        except IsADirectoryError:
            raise NotAnArenaError(f"{self.text} is a folder") from None
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise NotAnArenaError(f"{self.text} is not a regular file") from None  # a socket
            if error.errno != errno.ELOOP:
                raise
            raise NotAnArenaError(f"{self.text} is a symbolic link: name the arena itself") from None
