# SPDX-License-Identifier: Apache-2.0
"""Where an arena lives, and opening it twice.

A name without a slash (one in front is optional) is a POSIX shared-memory object; anything with a slash inside is the
path of a file. The inode is opened twice: one open is mapped, the other carries the byte locks and is never mapped
(docs/decisions/0001). Both opens refuse symbolic links and are closed on exec; owner and mode are checked before the
descriptors are handed on.
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

import posix_ipc

from shmaccum.arena.creation import LOOK_S, Creation, Descriptors
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
EXISTING_FLAGS = os.O_NONBLOCK  # a FIFO in the arena's place would keep whoever opens it until somebody writes
OPEN_TO_OTHERS = 0o077
WRITABLE_BY_ALL = 0o002
GROUP_ACCESS = 0o060
WITHOUT_EXECUTION = 0o666
SHARED_MEMORY = "/dev/shm"
MAGIC = b"smarena1"
"""The first bytes of an arena (native/arena/layout.h: ARENA_MAGIC)."""

# A child forked between our open and the arena's own fork handler would keep the descriptor that carries the locks.
_opening = threading.RLock()
os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_opening.release)


def _is_encodable(text: str) -> bool:
    """False for halves of characters, which no file name has."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def _is_utf8(text: str) -> bool:
    """False for bytes that the locale could not read, which posix_ipc does not take."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _open_to_look(path: str, _flags: int) -> int:
    return os.open(path, os.O_RDONLY | OPEN_FLAGS | EXISTING_FLAGS)


def is_arena(path: str) -> bool:
    """True when a regular file, which this user can read, begins as an arena does."""
    try:
        if not stat.S_ISREG(os.stat(path, follow_symlinks=False).st_mode):
            return False
        with open(path, "rb", opener=_open_to_look) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def group_number(group: str | int | None, mode: int) -> int | None:
    """The number of a group that is to share an arena.

    Args:
        group: its name or number; None: none was asked for.
        mode: of the arena.

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
            f"this host has no group {group!r}: make it (groupadd {group}), or name another one"
        ) from None


def set_permissions(file: int | str, name: str, mode: int, group: int | None) -> None:
    """Sets group and mode of a file of ours, whatever the umask and the folder's default file ACL say.

    Args:
        file: a descriptor or a path.
        name: for the message.
        group: its number; None: it stays as it is.

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
    """The place an arena's name stands for: `text` is a path, or with `is_shared_memory` a name such as events."""

    text: str
    is_shared_memory: bool

    @classmethod
    def parse(cls, name: str | os.PathLike[str]) -> ArenaFile:
        """Tells a shared-memory name from a path.

        Raises:
            InvalidArgumentError: empty, with a NUL, too long, or a name that shared memory does not take.
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
        """Gives a file that belongs to the arena the arena's group, and its mode without execution.

        An arena that has lost its name has nobody left to share with: then nothing happens.

        Raises:
            ArenaForbiddenError: this user may not give a file to the arena's group.
        """
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(self.path, follow_symlinks=False)
            set_permissions(companion, companion, stat.S_IMODE(found.st_mode) & WITHOUT_EXECUTION, found.st_gid)

    def share_again(self, companion: str) -> None:
        """Shares a file that was there, if it is this user's: its maker may have died before it was shared."""
        with contextlib.suppress(OSError):
            if os.stat(companion, follow_symlinks=False).st_uid == os.geteuid():
                self.share(companion)

    @property
    def path(self) -> str:
        """The path of the file, which for shared memory lies in its own file system."""
        return f"{SHARED_MEMORY}/{self.text}" if self.is_shared_memory else self.text

    @property
    def _object(self) -> str:
        """The name of the shared-memory object, which begins with a slash."""
        return "/" + self.text

    def doorbell(self, uuid: bytes) -> str:
        """Where the arena's doorbell lies: beside its file, or under shared memory by the arena's uuid."""
        return self._beside(uuid, "bell")

    def results_bell(self, uuid: bytes) -> str:
        """Where the arena's results bell lies."""
        return self._beside(uuid, "results")

    def presence(self, uuid: bytes, number: int) -> str:
        """Where the socket of the sender lies that has published this number."""
        return os.path.join(os.path.dirname(self.path), f".shmaccum-{uuid.hex()[:12]}.{number:016x}")

    def presences(self, uuid: bytes) -> list[str]:
        """The sockets of all senders of the arena: of the living one, and of those that were killed."""
        folder = os.path.dirname(self.path)
        stem = f".shmaccum-{uuid.hex()[:12]}."
        with contextlib.suppress(OSError):
            return [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(stem)]
        return []

    def _beside(self, uuid: bytes, suffix: str) -> str:
        stem = f"{SHARED_MEMORY}/shmaccum-{uuid.hex()[:12]}" if self.is_shared_memory else self.text
        return f"{stem}.{suffix}"

    def exists(self) -> bool:
        """True when something has this name, whatever it is."""
        try:
            os.close(self._open_once(read_only=True))
        except ArenaNotFoundError:
            return False
        except (OSError, ArenaError):
            return True
        return True

    def unlink(self) -> None:
        """Takes the name away. Processes that have the arena open keep it."""
        with self._errors_named(FileNotFoundError, self._missing()):
            if self.is_shared_memory:
                posix_ipc.unlink_shared_memory(self._object)
            else:
                os.unlink(self.text)
                with contextlib.suppress(OSError):  # it is removed, and a power cut may bring it back
                    sync_folder(os.path.dirname(self.text))

    @contextlib.contextmanager
    def create(self, mode: int, group: int | None = None) -> Iterator[Descriptors]:
        """A new file of exactly this mode, opened twice, which gets its name when the body is done (`creation`).

        It is gone again when the body raises. Another process that is creating the arena is waited for.

        Args:
            group: number of the group it belongs to; None: this process's.

        Raises:
            ArenaExistsError: the name is taken.
            ArenaForbiddenError: this user may not give a file to the group.
            InvalidArgumentError: everybody could write into it.
        """
        if mode & WRITABLE_BY_ALL:
            raise InvalidArgumentError(
                f"mode {mode:#o} would let every user of this host write into the arena: share it with a group (0660)"
            )
        folder = os.path.dirname(self.path)
        if not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, "there is no such folder for an arena: make it first", folder)
        creation = Creation(self, mode, group)
        while True:
            with _opening:
                with self._errors_named(FileExistsError, self.taken()):
                    descriptors = creation.begin()
                if descriptors is not None:
                    yield from self._made(creation, descriptors)
                    return
            time.sleep(LOOK_S)

    @staticmethod
    def _made(creation: Creation, descriptors: Descriptors) -> Iterator[Descriptors]:
        """Hands the descriptors to the body, and ends the creation after it. A copy keeps the lock until then."""
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
        """The existing file, opened twice, with owner and mode checked.

        Args:
            read_only: to look at it; a reader believes nothing of the file, so its owner does not matter.
            mode_max: the widest permissions to put up with.
            group: number of the group that it has to belong to; None: any group of this process.
            is_trusted: its owner does not matter, because it is to be removed.

        Raises:
            ArenaNotFoundError: nothing has this name.
            ArenaForbiddenError: of another user, open to more than `mode_max`, or (to attach) writable by everybody,
                or of a user whom this process does not trust (arena/trust.py).
            NotAnArenaError: a folder, a device, a symbolic link.
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
        """Refuses an existing arena that this process would not attach to because of its owner.

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
        """A reader believes nothing of the file, so it may look at a file that no process should attach to."""
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISREG(found.st_mode):
            raise NotAnArenaError(f"{self.text} is no regular file")
        if mode & WRITABLE_BY_ALL and not read_only:
            raise ArenaForbiddenError(
                f"{self.text} has mode {mode:#o}: every user of this host can write into it, so nothing in it can be "
                "trusted. Look at it with shmaccum check, then set its mode to 0600 or 0660"
            )
        if found.st_uid != os.geteuid() and not mode_max & OPEN_TO_OTHERS:
            raise ArenaForbiddenError(
                f"{self.text} belongs to user {found.st_uid}, this process runs as {os.geteuid()}: run it as the "
                f"arena's owner, or attach with mode={mode:#o} (--mode {mode:04o}) if sharing it is meant"
            )
        if mode & OPEN_TO_OTHERS & ~mode_max:
            raise ArenaForbiddenError(
                f"{self.text} has mode {mode:#o}, so others could write into it: set it to 0600, or attach with "
                f"mode={mode:#o} (--mode {mode:04o}) if that is meant"
            )

    def _open_once(self, *, read_only: bool) -> int:
        with self._errors_named(FileNotFoundError, self._missing()):
            if self.is_shared_memory:
                return int(posix_ipc.SharedMemory(self._object, EXISTING_FLAGS, read_only=read_only).fd)
            return os.open(self.text, (os.O_RDONLY if read_only else os.O_RDWR) | OPEN_FLAGS | EXISTING_FLAGS)

    def taken(self) -> ArenaExistsError:
        """The error for a name that is taken. A file that was never an arena is not to be removed for it."""
        if self._is_other_file():
            return ArenaExistsError(f"{self.text} exists already and is no arena: choose another name")
        return ArenaExistsError(f"{self.text} exists already: attach to it, or remove it first")

    def _is_other_file(self) -> bool:
        """True when the name stands for something that is no arena, not even an unfinished one."""
        try:
            found = os.stat(self.path, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                return True
            with open(self.path, "rb", opener=_open_to_look) as file:
                beginning = file.read(len(MAGIC))
        except OSError:
            return False
        return beginning not in {MAGIC, bytes(len(MAGIC)), b""}

    def _forbidden(self) -> str:
        """The error for a user whom the kernel does not let open the arena, with advice."""
        sentence = f"{self.text} may not be opened by user {os.geteuid()}"
        try:
            found = os.stat(self.path, follow_symlinks=False)
        except OSError:
            return f"{sentence}: the folder does not let this user in"
        mode = stat.S_IMODE(found.st_mode)
        sentence += f": it belongs to user {found.st_uid} and group {found.st_gid} and has mode {mode:#o}"
        if mode & GROUP_ACCESS != GROUP_ACCESS:
            return f"{sentence}. Run as that user, or create the arena with a group and mode 0660"
        return f"{sentence}. Run as that user or as a member of that group"

    def _missing(self) -> ArenaNotFoundError:
        return ArenaNotFoundError(f"there is no arena {self.text}: create it first")

    @contextlib.contextmanager
    def _errors_named(self, existence: type[OSError], named: ArenaError) -> Iterator[None]:
        """Turns what the two ways of opening raise into our exceptions; other OSErrors stay what they are."""
        try:
            yield
        except ArenaError:
            raise
        except (existence, posix_ipc.ExistentialError):
            raise named from None
        except (PermissionError, posix_ipc.PermissionsError):
            raise ArenaForbiddenError(self._forbidden()) from None
        except IsADirectoryError:
            raise NotAnArenaError(f"{self.text} is a folder") from None
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise NotAnArenaError(f"{self.text} is no regular file") from None  # a socket
            if error.errno != errno.ELOOP:
                raise
            raise NotAnArenaError(f"{self.text} is a symbolic link: name the arena itself") from None
