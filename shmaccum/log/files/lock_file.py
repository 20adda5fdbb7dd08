# SPDX-License-Identifier: Apache-2.0
"""The right to write a log directory: an OFD lock on ``.lock``, the lock file of Kafka's brokers.

The kernel releases it when its holder dies, for any reason, and a forked child has no lock (`lock_descriptor`).
The holder locks the folder, too, so a second writer is not admitted if the lock file is removed or replaced.
The file also identifies the holder, for error messages, and the boot of the kernel, for recovery.
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
    """The id of the current boot of the kernel."""
    with open(BOOT_ID_FILE, encoding="ascii", opener=open_regular) as file:
        return file.read().strip()


def is_locked(path: str) -> bool:
    """True while a process holds the lock on this file."""
    try:
        with open(path, "rb", buffering=0, opener=open_regular) as file:
            asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            answer = fcntl.fcntl(file.fileno(), fcntl.F_OFD_GETLK, asked)
    except FileNotFoundError:
        return False
    found: int = FLOCK.unpack(answer)[0]
    return found != fcntl.F_UNLCK


def server_of_holder(path: str) -> str | None:
    """HOST:PORT at which the holder of a lock accepts requests, or None if there is no holder or it accepts none."""
    return unquote(read_properties(path).get("server", "")) or None if is_locked(path) else None


class LockFile:
    """A lock that this process holds.

    Attributes:
        is_same_boot: True if the kernel has not been restarted since the last holder wrote the file.
    """

    def __init__(self, path: str, arena_name: str = "", sync: str = "none") -> None:
        """Acquire the lock.

        Args:
            path: the path of the file.
            arena_name: the arena whose sender acquires it, or empty.
            sync: the level at which the holder forces records to disk, which other stores may follow (`writer_level`).

        Raises:
            LogBusyError: if another living process holds it. The message names that process.
            OSError: if the file cannot be opened for writing.
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
        """True while the path leads to the locked file, and its folder is the locked folder."""
        return is_file_at(self.path, self._descriptor.number) and self._folder.is_folder(os.path.dirname(self.path))

    def _lock(self) -> None:
        is_alone = self._descriptor.set(fcntl.F_WRLCK, 0, 0)
        if not (is_alone and self._folder.lock_folder(os.path.dirname(self.path))):
            holder = read_properties(self.path)
            raise LogBusyError(
                f"{os.path.dirname(self.path)} is written by another process (pid {holder.get('pid', 'unknown')}): a "
                "segment log has one writer at a time; stop that process, or name another directory",
                unquote(holder.get("arena", "")),
                holder.get("pid", ""),
            )

    def write_holder(self, server: str = "") -> None:
        """Write the process of the holder, the boot id, and the address at which the holder accepts requests.

        The file is written in place. The boot id is first and has a fixed length, so it stays readable after a death
        midway. With an empty file, the next writer would assume a crash of the host and check the whole log.

        Args:
            server: HOST:PORT, or empty if the holder accepts no requests.
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
        """False after `release`, and in a forked child."""
        return self._descriptor.is_open

    def release(self) -> None:
        """Release the lock. A second call does nothing."""
        try:
            self._descriptor.close()
        finally:
            self._folder.close()
