# SPDX-License-Identifier: Apache-2.0
"""The right to write a log directory: an OFD lock on ``.lock``, where Kafka's broker keeps its own.

The kernel frees it when its holder dies, in whatever way, and a forked child has none (`lock_descriptor`).
The holder locks the folder, too. So a lock file that somebody removes or replaces lets no second writer in.
The file also tells who the holder is, for messages, and under which boot of the kernel it wrote, for recovery.
"""

from __future__ import annotations

import errno
import fcntl
import os
from urllib.parse import quote, unquote

from shmaccum.exceptions import LogBusyError
from shmaccum.log.files.lock_descriptor import FLOCK, LockDescriptor
from shmaccum.log.files.regular_files import is_file_at, open_regular
from shmaccum.log.files.small_files import properties, read_properties

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """The name of this run of the kernel."""
    with open(BOOT_ID_FILE, encoding="ascii", opener=open_regular) as file:
        return file.read().strip()


def is_locked(path: str) -> bool:
    """True while somebody holds the lock on this file."""
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            answer = fcntl.fcntl(file.fileno(), fcntl.F_OFD_GETLK, asked)
    except FileNotFoundError:
        return False
    found: int = FLOCK.unpack(answer)[0]
    return found != fcntl.F_UNLCK


def server_of_holder(path: str) -> str | None:
    """HOST:PORT where the holder of a lock takes requests; None: nobody holds it, or its holder takes none."""
    return unquote(read_properties(path).get("server", "")) or None if is_locked(path) else None


class LockFile:
    """A lock that is held.

    Attributes:
        is_same_boot: the last holder wrote under the kernel that runs now.
    """

    def __init__(self, path: str, arena_name: str = "", sync: str = "none") -> None:
        """Takes the lock, or says who has it.

        Args:
            path: of the file.
            arena_name: of the arena whose sender takes it; empty: no sender does.
            sync: the level at which the holder writes, which others may follow (`writer_level`).

        Raises:
            LogBusyError: another living process holds it.
            OSError: the file cannot be opened for writing.
        """
        self.path = path
        self._arena_name = arena_name
        self._sync = sync
        self._descriptor = LockDescriptor()
        self._folder = LockDescriptor()
        try:
            while not self.has_its_name:
                self.release()  # the file was removed before it was locked
                self._descriptor.open(path)
                self._lock()
            self.is_same_boot = read_properties(path).get("boot.id") == boot_id()
        except BaseException:
            self.release()
            raise

    @property
    def has_its_name(self) -> bool:
        """True while the path leads to the file and the folder that are locked."""
        return is_file_at(self.path, self._descriptor.number) and self._folder.is_folder(os.path.dirname(self.path))

    def _lock(self) -> None:
        is_alone = self._descriptor.set(fcntl.F_WRLCK, 0, 0)
        if not (is_alone and self._folder.lock_folder(os.path.dirname(self.path))):
            holder = read_properties(self.path)
            raise LogBusyError(
                f"{os.path.dirname(self.path)} is written by another process (pid {holder.get('pid', 'unknown')}): a "
                "segment log has one writer at a time; stop that one, or name another directory",
                unquote(holder.get("arena", "")),
                holder.get("pid", ""),
            )

    def sign(self, server: str = "") -> None:
        """Writes who holds the lock, under which boot, and where it takes requests.

        In place, the boot first, which is as long as any other: a death midway leaves it readable. An empty file
        would make the next writer believe that the host crashed, and check the whole log while everybody waits.

        Args:
            server: HOST:PORT; empty: the holder takes no requests.
        """
        holder = {"boot.id": boot_id(), "pid": str(os.getpid()), "arena": quote(self._arena_name, errors="replace")}
        content = properties({**holder, "sync": self._sync, "server": quote(server)})
        if os.pwrite(self._descriptor.number, content, 0) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        os.ftruncate(self._descriptor.number, len(content))
        if self._sync != "none":
            os.fdatasync(self._descriptor.number)

    @property
    def is_held(self) -> bool:
        """False after release, and in a forked child."""
        return self._descriptor.is_open

    def release(self) -> None:
        """Gives the lock back. Doing it twice does nothing."""
        try:
            self._descriptor.close()
        finally:
            self._folder.close()
