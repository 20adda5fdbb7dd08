# SPDX-License-Identifier: Apache-2.0
"""A scenario: a program that is recorded, and the promises that hold when the product opens an image of its disk."""

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
    """Writes into the recording what was promised to the program so far."""
    _library.power_mark(json.dumps([kind, *values]).encode())


class Marks:
    """The marks before a power cut."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._marks = [json.loads(entry.data) for entry in entries if entry.kind == Kind.MARK]

    def of(self, kind: str) -> list[list[Value]]:
        """The values of each mark of a kind, in their order."""
        return [values for found, *values in self._marks if found == kind]

    def last(self, kind: str, default: Value = None) -> Value:
        """The first value of the last mark of a kind."""
        found = self.of(kind)
        return found[-1][0] if found else default


class Scenario(abc.ABC):
    """One way that records take to disk, at one level.

    Attributes:
        name: of the path.
        levels: that it can have.
    """

    name: ClassVar[str]
    levels: ClassVar[tuple[str, ...]]
    is_of_later_build: ClassVar[bool] = False
    """Recorded with the build of `tests.skew`, whose syncs are those of this one."""

    def __init__(self, level: str) -> None:
        self.level = level

    def __str__(self) -> str:
        return f"{self.name}:{self.level}"

    @abc.abstractmethod
    def record(self, place: Path) -> None:
        """Runs the program that is recorded, below a folder."""

    @abc.abstractmethod
    def check(self, place: Path, marks: Marks) -> Iterator[str]:
        """Opens an image, and yields each promise that it breaks."""

    def checker(self, marks: Marks) -> Callable[[Path], Iterator[str]]:
        """The check of an image after these marks."""
        return lambda place: self.check(place, marks)
