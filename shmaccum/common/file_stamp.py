# SPDX-License-Identifier: Apache-2.0
"""Stamps of files, by which servers and senders detect changes of keys, certificates and users."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar, final

from shmaccum.exceptions import InvalidArgumentError

Value = TypeVar("Value")

Stamp = tuple[int, int, int, int] | None
"""Inode, size and change times of a file. None if it does not exist."""


def stamp(path: str | None) -> Stamp:
    """Return a value that changes with the contents of the file."""
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@final
class FileContents(Generic[Value]):
    """A value from files, which are read again when one of them has changed.

    While the changed files are invalid, for example because one of them is incomplete, the value is the previous one,
    and each `refresh` reads them again. Only the first one after a change raises an exception.

    Args:
        paths: the files. None is ignored.
        read: reads the files, and returns the value.

    Attributes:
        value: the value of the last valid files.

    Raises:
        InvalidArgumentError: the files are invalid.
    """

    def __init__(self, paths: Iterable[str | None], read: Callable[[], Value]) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._stamps = self._invalid_stamps = self._current_stamps()
        self.value = read()

    def refresh(self) -> bool:
        """Reads the files again if one has changed, and returns whether one had.

        Raises:
            InvalidArgumentError: the changed files are invalid, and this is the first attempt to read them.
        """
        stamps = self._current_stamps()
        if stamps == self._stamps:
            return False
        try:
            self.value = self._read()
        except InvalidArgumentError:
            if stamps == self._invalid_stamps:
                return False
            self._invalid_stamps = stamps
            raise
        self._stamps = stamps
        return True

    def _current_stamps(self) -> list[Stamp]:
        return [stamp(path) for path in self._paths]
