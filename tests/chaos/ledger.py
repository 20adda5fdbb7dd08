# SPDX-License-Identifier: Apache-2.0
"""The ledger counts, outside of the arena, the records that were begun, acknowledged, and promised an offset.

An *author* is one producer in one process. Every process that appends, also a forked child, has a number that is never
reused. So all records differ, and a second copy of one is a duplicate.

    value = author 4 | sequence 8 | filler ...          sequences count from 0 in each partition

All processes map one file, with a row of 64-bit words per author. Only the author stores its words.

Long appends and the machine's delays are lines of fixed size in separate files.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Self

TOPIC = "ledger"
PARTITIONS = 3
AUTHORS_MAX = 1 << 18
FORKS_MAX = 4
"""The author numbers of one start: its own, and those of its forked children."""

BEGUN, ACKNOWLEDGED, PROOF_SEQUENCE, PROOF_OFFSET = range(0, 4 * PARTITIONS, PARTITIONS)
LONGEST_NS = 4 * PARTITIONS
ROW_SIZE = 16
"""The words of an author."""

HEAD_SIZE = 64
PHASE = 0
STOPS = 1
"""The first of the words that count the stops of each seat's process. They are raised before the stop."""
PUMPING = HEAD_SIZE - 1
"""The word that is not 0 while the sender is in a call of the pump (native/sender/pump.h)."""

WORKING, PRODUCERS_LEAVE, OTHERS_LEAVE = range(3)

VALUE = struct.Struct("<IQ")
DELAY = struct.Struct("<QQQII")


class Delay(NamedTuple):
    """A time in which a process made no progress, in nanoseconds of the monotonic clock."""

    begin_ns: int
    elapsed_ns: int
    queued_ns: int
    """The part of this time in which the process was ready, but the machine ran others."""
    author: int
    was_stopped: int
    """Whether the process itself was stopped in this time."""


@dataclass(frozen=True)
class Places:
    """The paths and names of a trial."""

    arena_name: str
    folder: Path

    @property
    def log(self) -> Path:
        """The log of the sink, or of the server that it delivers to."""
        return self.folder / "log"

    @property
    def address(self) -> Path:
        """The file with host and port of the server. If senders write the log themselves, it does not exist."""
        return self.folder / "address"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger"

    @property
    def delays(self) -> Path:
        """The file of long appends."""
        return self.folder / "delays"

    @property
    def hiccups(self) -> Path:
        """The file with the delays of a process that only sleeps for milliseconds."""
        return self.folder / "hiccups"

    @property
    def failures(self) -> Path:
        """The file of tracebacks, which exists only after a failure."""
        return self.folder / "failures"


class Ledger:
    """The mapped words."""

    def __init__(self, path: Path) -> None:
        size = (HEAD_SIZE + ROW_SIZE * AUTHORS_MAX) * 8
        with path.open("a+b") as file:
            if os.fstat(file.fileno()).st_size == 0:
                file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        self.words = memoryview(self._map).cast("Q")

    @staticmethod
    def row(author: int) -> int:
        """Return the index of the author's first word."""
        return HEAD_SIZE + ROW_SIZE * author

    @property
    def phase(self) -> int:
        """The phase that the director has begun."""
        return self.words[PHASE]

    @phase.setter
    def phase(self, phase: int) -> None:
        self.words[PHASE] = phase

    def rows(self, author_count: int) -> npt.NDArray[np.uint64]:
        """Return a copy, authors x words."""
        words: npt.NDArray[np.uint64] = np.frombuffer(self._map, dtype="<u8")[HEAD_SIZE:].copy()
        return words[: ROW_SIZE * author_count].reshape(author_count, ROW_SIZE)

    def appended_count(self, author_count: int, *, is_forked: bool) -> int:
        """Return how many producers, or forked children, had an acknowledged record."""
        acknowledged = self.rows(author_count)[:, ACKNOWLEDGED : ACKNOWLEDGED + PARTITIONS].sum(axis=1)
        are_forked = np.arange(author_count) % FORKS_MAX > 0
        return int((acknowledged[are_forked if is_forked else ~are_forked] > 0).sum())

    def close(self) -> None:
        self.words.release()
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class DelayFile:
    """Appends delays. Each line is one write, so lines of different processes do not mix."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, delay: Delay) -> None:
        os.write(self._descriptor, DELAY.pack(*delay))


def read_delays(path: Path) -> list[Delay]:
    """Return the delays in a file, without a last line that a death cut off."""
    content = path.read_bytes() if path.exists() else b""
    whole = len(content) // DELAY.size * DELAY.size
    return [Delay(*fields) for fields in DELAY.iter_unpack(content[:whole])]


class RunQueue:
    """The time in which this thread was ready and the machine ran others (/proc/thread-self/schedstat)."""

    def __init__(self) -> None:
        self._descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY)

    def queued_ns(self) -> int:
        """Return the total since the thread began."""
        return int(os.pread(self._descriptor, 64, 0).split()[1])
