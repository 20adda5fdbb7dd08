# SPDX-License-Identifier: Apache-2.0
"""A ledger of promises that must survive a power cut. It is a file that survives, with the time of each promise."""

from __future__ import annotations

import bisect
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """One line of a ledger."""

    kind: str
    """The promise: a record was sent, its future was got, and so on."""
    name: str
    time_ns: int
    """CLOCK_MONOTONIC after the call that made the promise."""
    age_ns: int
    """Its age when the power was cut, or its present age while the power is on."""


class Ledger:
    """The ledger of one process."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, kind: str, name: object) -> None:
        """Record a promise, by one write, so that a death leaves no part of a line."""
        os.write(self._descriptor, f"{kind} {name} {time.monotonic_ns()}\n".encode())


def read_ledgers(folder: Path, boots_ns: list[int], cuts_ns: list[int]) -> Iterator[Entry]:
    """Return the entries of all ledgers in a folder.

    A process may live for some milliseconds after the cut, until it is killed. Its entries of that time are omitted.

    Args:
        folder: the folder of the ledgers.
        boots_ns: the time of each boot.
        cuts_ns: the time of the power cut that ended each boot.
    """
    for path in sorted(folder.glob("*.ledger")):
        for line in path.read_text().splitlines():
            kind, name, time_ns = line.split(" ")
            boot = bisect.bisect(boots_ns, int(time_ns)) - 1
            age_ns = (cuts_ns[boot] if boot < len(cuts_ns) else time.monotonic_ns()) - int(time_ns)
            if age_ns >= 0:
                yield Entry(kind, name, int(time_ns), age_ns)
