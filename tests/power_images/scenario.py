# SPDX-License-Identifier: Apache-2.0
"""A scenario is a recorded program, and the promises that must hold when the product opens an image of its disk."""

from __future__ import annotations

import abc
import ctypes
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from tests.power_images.recording import Entry, Kind

_library = ctypes.CDLL(None)
Value = Any
"""A value of JSON."""


def mark(kind: str, *values: Value) -> None:
    """Write into the recording what was promised to the program so far."""
    _library.power_mark(json.dumps([kind, *values]).encode())


class Marks:
    """The marks before a power cut."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._marks = [json.loads(entry.data) for entry in entries if entry.kind == Kind.MARK]

    def of(self, kind: str) -> list[list[Value]]:
        """Return the values of each mark of a kind, in their order."""
        return [values for found, *values in self._marks if found == kind]

    def last(self, kind: str, default: Value = None) -> Value:
        """Return the first value of the last mark of a kind."""
        found = self.of(kind)
        return found[-1][0] if found else default


class Scenario(abc.ABC):
    """One path of records to disk, with one level.

    Attributes:
        name: the name of the path.
        levels: the levels that it can have.
    """

    name: ClassVar[str]
    levels: ClassVar[tuple[str, ...]]
    is_of_later_build: ClassVar[bool] = False
    """True if it is recorded with the later build of `tests.skew`, which has the same syncs as this build."""

    def __init__(self, level: str) -> None:
        self.level = level

    def __str__(self) -> str:
        return f"{self.name}:{self.level}"

    @abc.abstractmethod
    def record(self, place: Path) -> None:
        """Run the program that is recorded, below a folder."""

    @abc.abstractmethod
    def check(self, place: Path, marks: Marks) -> Iterator[str]:
        """Open an image, and yield each promise that it breaks."""

    def checker(self, marks: Marks) -> Callable[[Path], Iterator[str]]:
        """Return the check of an image after these marks."""
        return lambda place: self.check(place, marks)
