# SPDX-License-Identifier: Apache-2.0
"""An open ``.log``, and pieces of it that go from the page cache to a socket unread."""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple, final

from shmaccum.log.files.regular_files import open_regular


@final
class LogFile:
    """An open ``.log`` for reading; it is closed when nobody uses it any more.

    Attributes:
        descriptor: open as long as this object lives.
        synced_size: bytes that `sync` has forced to disk.
    """

    __slots__ = ("descriptor", "synced_size")

    def __init__(self, path: str) -> None:
        """Opens the file.

        Raises:
            OSError: it is gone, or is no regular file.
        """
        self.descriptor = -1
        self.synced_size = 0
        self.descriptor = open_regular(path, os.O_RDONLY)

    def fileno(self) -> int:
        """The descriptor, for system calls."""
        return self.descriptor

    def sync(self, size: int) -> None:
        """Forces its first bytes to disk, unless that was done.

        Args:
            size: so many, the last of which belongs to a batch that was whole. One that is torn may be cut off, and
                another one written there.

        Raises:
            OSError: they may be lost in a crash of the host.
        """
        if size > self.synced_size:
            os.fdatasync(self.descriptor)
            self.synced_size = size

    def __del__(self) -> None:
        if self.descriptor >= 0:
            with contextlib.suppress(OSError):  # nothing was written, so nothing is lost
                os.close(self.descriptor)


class FileRange(NamedTuple):
    """Bytes of a file that can be sent without reading them."""

    file: LogFile
    position: int
    size: int

    def behind(self, sent: int) -> FileRange:
        """The rest, after so many bytes were sent."""
        return FileRange(self.file, self.position + sent, self.size - sent)
