# SPDX-License-Identifier: Apache-2.0
"""Detect appends to a log at once, with inotify: one instance for many folders.

A watch is set on the folder of a partition. The kernel reports writes, new files, and files that a writer closed, also
by its death. Equal events that were not read yet are merged. An event is only a hint: the reader checks the file
itself, and also polls periodically without events.
"""

from __future__ import annotations

import ctypes
import os
import struct
from typing import final

IN_MODIFY = 0x002
IN_CLOSE_WRITE = 0x008
IN_CREATE = 0x100
IN_MOVED_TO = 0x080
IN_IGNORED = 0x8000
IN_Q_OVERFLOW = 0x4000
EVENT = struct.Struct("iIII")
READ_SIZE = 64 << 10

_libc = ctypes.CDLL(None, use_errno=True)


@final
class LogWatch:
    """Watches folders.

    Attributes:
        descriptor: readable when a folder has changed, or -1 if this user has reached its limit of instances.
    """

    def __init__(self) -> None:
        self.descriptor: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._folders: dict[int, set[str]] = {}
        self._watches: dict[str, int] = {}

    def add(self, folder: str) -> bool:
        """Watch a folder or a file; return False if the limit of watches is reached, or the path does not exist."""
        mask = IN_MODIFY | IN_CLOSE_WRITE | IN_CREATE | IN_MOVED_TO
        watch: int = _libc.inotify_add_watch(self.descriptor, os.fsencode(folder), ctypes.c_uint32(mask))
        if watch == self._watches.get(folder, -1):
            return watch >= 0
        self.remove(folder)  # the name now belongs to another folder
        if watch < 0:
            return False
        self._folders.setdefault(watch, set()).add(folder)  # a folder with two names has one watch
        self._watches[folder] = watch
        return True

    def remove(self, folder: str) -> None:
        """Stop watching a folder or a file."""
        watch = self._watches.pop(folder, None)
        if watch is not None:
            self._folders[watch].discard(folder)
            if not self._folders[watch]:
                del self._folders[watch]
                _libc.inotify_rm_watch(self.descriptor, watch)

    @property
    def folder_count(self) -> int:
        """The number of folders that are watched."""
        return len(self._watches)

    def changed(self) -> set[str]:
        """The folders that have changed since the last call. All of them if the kernel dropped events."""
        found: set[str] = set()
        while content := self._read():
            position = 0
            while position < len(content):
                watch, mask, _, name_size = EVENT.unpack_from(content, position)
                position += EVENT.size + name_size
                if mask & IN_Q_OVERFLOW:
                    found.update(self._watches)
                elif mask & IN_IGNORED:
                    for folder in self._folders.pop(watch, ()):
                        self._watches.pop(folder, None)
                else:
                    found.update(self._folders.get(watch, ()))
        return found

    def _read(self) -> bytes:
        if self.descriptor < 0:
            return b""
        try:
            return os.read(self.descriptor, READ_SIZE)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        """Remove all watches."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
