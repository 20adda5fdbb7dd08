# SPDX-License-Identifier: Apache-2.0
"""An open ``.log``, and ranges of it that are sent from the page cache to a socket without reading them."""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple, final

from shmaccum.log.files.regular_files import open_regular


@final
class LogFile:
    """A ``.log`` that is open for reading. It is closed when the last reference to it is dropped.

    Attributes:
        descriptor: open as long as this object lives.
        synced_size: the number of bytes that `sync` has forced to disk.
    """

    __slots__ = ("descriptor", "synced_size")

    def __init__(self, path: str) -> None:
        """Open the file.

        Raises:
            OSError: if it does not exist, or is not a regular file.
        """
        self.descriptor = -1
        self.synced_size = 0
        self.descriptor = open_regular(path, os.O_RDONLY)

    def fileno(self) -> int:
        """The descriptor, for system calls."""
        return self.descriptor

    def sync(self, size: int) -> None:
        """Force the first bytes of the file to disk, unless that was done.

        Args:
            size: the number of bytes. They must end with a whole batch: a torn batch may be cut off, and another one
                written in its place.

        Raises:
            OSError: if the bytes may be lost in a crash of the host.
        """
        if size > self.synced_size:
            os.fdatasync(self.descriptor)
            self.synced_size = size

    def __del__(self) -> None:
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):  # nothing was written, so no data is lost
                os.close(self.descriptor)


class FileRange(NamedTuple):
    """A range of a file that can be sent without reading it."""

    file: LogFile
    position: int
    size: int

    def after(self, sent: int) -> FileRange:
        """The rest of the range, after this many bytes were sent."""
        return FileRange(self.file, self.position + sent, self.size - sent)
