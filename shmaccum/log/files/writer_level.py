# SPDX-License-Identifier: Apache-2.0
"""The level at which the writer of a log forces records to disk, for the stores that follow the log.

The writer stores the level in its lock file (`lock_file`). The file remains when the writer exits. It is on disk
unless the level is "none".
"""

from __future__ import annotations

import os
from typing import final

from shmaccum.common.durability import LOG_LEVELS
from shmaccum.log.files.file_names import LOCK_FILE
from shmaccum.log.files.small_files import read_properties

NONE = LOG_LEVELS[0]


@final
class WriterLevel:
    """The level of the last writer of a log directory.

    Args:
        directory: the log directory.
    """

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, LOCK_FILE)
        self._seen: tuple[int, int] | None = None
        self._level: str

    @property
    def level(self) -> str:
        """ "none", "interval" or "batch". It is read again only after the file has changed."""
        try:
            status = os.stat(self._path)
            seen = status.st_mtime_ns, status.st_ino
            if seen != self._seen:
                level = read_properties(self._path).get("sync", NONE)
                self._level = level if level in LOG_LEVELS else NONE
                self._seen = seen
        except OSError:  # no process has written the log yet
            return NONE
        return self._level

    @property
    def is_durable(self) -> bool:
        """True if the records of the log survive a power cut."""
        return self.level != NONE
