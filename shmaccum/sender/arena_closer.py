# SPDX-License-Identifier: Apache-2.0
"""The exit of a sender whose arena was removed.

::

    the name is gone     ERROR is logged; the arena is closed: it takes no more records (native/arena/closing.h)
    rounds continue      until the arena is empty and no producer is about to append, or the time for that has passed
    the sink is closed   then the arena records that its sender has left
    records are left     they are exported to a folder, as ``shmaccum recover --export`` does. The folder gets its name
                         after it is complete. Then the records are aborted, so that their futures have a result
    the sender raises    ArenaRemovedError, and its process ends with an exit code of its own

DEATHS. A sender that dies in any of these steps leaves the arena closed. A standby that takes the role first looks for
the folder. If it exists, the dead sender exported everything, so the standby aborts the records and delivers none of
them. Otherwise the standby delivers, and exports the rest; an incomplete folder of the dead sender is deleted.
So each record is delivered or exported, but never both. Without a standby, no process can open the arena any more, and
producers that wait for results get an error.

The name of the folder contains the arena's uuid and epoch. If the file of an arena gets a name
again, the arena is recovered, which gives it another epoch. A folder of another user is ignored.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from shmaccum._native import SenderHalf
from shmaccum.arena import Arena
from shmaccum.arena.removal import has_lost_its_name, removed_error, report_removal
from shmaccum.arena.reports import Kind, Report
from shmaccum.common.units import format_count
from shmaccum.exceptions import ArenaRemovedError

logger = logging.getLogger("shmaccum.sender")

CHECK_NS = 1_000_000_000
CLOSING_CHECK_NS = 100_000_000
PENDING_STATES = ("GRANT", "OWNED", "OPEN", "READY")
LEFT_STATES = ("OPEN", "READY", "BAD")


class ArenaCloser:
    """Checks the arena's name once a second, and whether the arena is closing; closes it after the name is lost.

    Attributes:
        has_begun: the arena was removed, and takes no more records.
        error: the exception that the sender raises after it has left; None while the arena has its name.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._native = arena.native
        self._next_check_ns = 0
        self.has_begun = False
        self.error: ArenaRemovedError | None = None

    def check(self) -> None:
        """Check whether the arena was removed. While it is closing, each tick seals the batches that are open."""
        now_ns = self._native.now_ns()
        is_closing = self._native.closing != "not"
        if now_ns < self._next_check_ns and is_closing == self.has_begun:
            return
        self.has_begun = is_closing or has_lost_its_name(self._arena)
        self._next_check_ns = now_ns + (CLOSING_CHECK_NS if self.has_begun else CHECK_NS)
        if self.has_begun:
            self._native.begin_closing()
            self.error = self.error or report_removal(self._arena)

    def raise_if_nothing_left(self, half: SenderHalf) -> None:
        """Raise if nothing is left to deliver. Called after the sender has taken the role, before it opens its sink.

        Raises:
            ArenaRemovedError: the arena was removed, and has nothing to deliver.
        """
        self.check()
        if self.error is None:
            return
        folder = _found_export(self._arena)
        if folder is not None:
            self._native.end_closing()
            self._abort(half, folder, f"its records were exported to {folder} by a sender that died afterwards")
        if folder is not None or self.is_over():
            raise self.error

    def is_over(self) -> bool:
        """True if the arena is empty, and nothing can be added to it any more.

        A buffer of a living producer may become an oversized record until the arena records that its sender has left.
        Therefore the states are counted once more afterwards.
        """
        if self._count(PENDING_STATES):
            return False
        self._native.end_closing()
        return self._count(PENDING_STATES) == 0

    def _count(self, states: tuple[str, ...]) -> int:
        counts = self._native.state_counts()
        return sum(counts[state] for state in states)

    def leave(self, half: SenderHalf) -> bool:
        """Record that the sender has left; export what is left, and abort it, so that its futures have a result.

        Return False, and do nothing, while the arena has its name.

        Requires the sender role, and that no sink has a batch. Records that cannot be exported keep their buffers.
        """
        is_left = self._count(LEFT_STATES) > 0
        if not self.has_begun and not (is_left and has_lost_its_name(self._arena)):
            return False
        self._native.begin_closing()
        self._native.end_closing()
        self.error = removed_error(self._arena)
        if self._count(LEFT_STATES):
            self._export(half)
        for folder in _places(self._arena):
            _delete(_unfinished(folder))
        return True

    def _export(self, half: SenderHalf) -> None:
        try:
            folder, record_count = export_left(self._arena)
        except OSError as error:
            self._report(f"its records could not be exported: {error}")
            return
        records = format_count(record_count, "record")
        self._abort(half, folder, f"{records} that could not be delivered were exported to {folder}")

    def _abort(self, half: SenderHalf, folder: Path, sentence: str) -> None:
        self._report(sentence)
        Report(Kind.EXPORTED, str(folder)).record(self._native)
        half.abort(False)

    def _report(self, sentence: str) -> None:
        self.error = ArenaRemovedError(f"{self._arena.name} was removed: {sentence}")
        logger.error("%s", self.error)


# --- the folder


def export_left(arena: Arena) -> tuple[Path, int]:
    """Copy every waiting batch to a new folder. Return the folder, and the number of intact records.

    Raises:
        OSError: the records cannot be written to either place.
    """
    first, second = _places(arena)
    try:
        return first, _export_to(first, arena)
    except OSError:
        _delete(_unfinished(first))
    return second, _export_to(second, arena)


def _export_to(folder: Path, arena: Arena) -> int:
    """Export to a temporary name, and rename the complete folder. Return the number of intact records."""
    from shmaccum.observe.inspection import export  # imports numpy, which only a sender that leaves records needs

    unfinished = _unfinished(folder)
    _delete(unfinished)
    batches = export(arena, unfinished)
    os.rename(unfinished, folder)
    return sum(batch.record_count for batch in batches if batch.base_offset >= 0)


def _places(arena: Arena) -> Iterator[Path]:
    """Yield two folders: beside the arena's file, and among the temporary files.

    An arena in shared memory lives no longer than the temporary files, so both of its folders are there.
    """
    from tempfile import gettempdir  # slow to import, and only a sender whose arena was removed needs it

    place, name = os.path.split(arena.path)
    folder = f"{name}-{arena.uuid.hex()[:12]}-{arena.native.arena_epoch}.left"
    yield Path(gettempdir() if arena.is_shared_memory else place) / folder
    yield Path(gettempdir()) / f"shmaccum-{os.geteuid()}-{folder}"


def _unfinished(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.unfinished")


def _delete(folder: Path) -> None:
    if os.path.lexists(folder):
        from shutil import rmtree  # slow to import, and rarely needed

        rmtree(folder, ignore_errors=True)


def _found_export(arena: Arena) -> Path | None:
    """Return the folder to which a dead sender exported this arena."""
    return next((folder for folder in _places(arena) if _is_own_folder(folder)), None)


def _is_own_folder(path: Path) -> bool:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
