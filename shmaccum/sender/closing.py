# SPDX-License-Identifier: Apache-2.0
"""How a sender leaves an arena that was removed.

::

    the name is gone    told at ERROR; the arena is closed: it takes no more records (native/arena/closing.h)
    rounds go on        until nothing is in it and no producer is about to append, or the time for that is over
    the sink is closed  then the arena says that its sender has left
    what is left        is exported to a folder, as ``shmaccum recover --export`` does; the folder gets its name when
                        it is whole
    then                the records in it are aborted, so that their futures have a result
    the sender raises   ArenaRemovedError, and its process ends with an exit code of its own

DEATHS. A sender that dies anywhere here leaves the arena closed. A standby that takes the role looks for the folder
first. If it is there, the dead sender exported everything, so the standby aborts the records and delivers none of them.
Otherwise the standby delivers, and exports the rest; half a folder of the dead sender is deleted.
So each record is delivered or exported, and none is both. Without a standby no process can open the arena any more, and
producers that wait for results are told so.

The name of the folder has the arena's uuid and epoch: an arena whose file is found again under a name is recovered, and
has another epoch then. A folder of another user counts for nothing.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from shmaccum._native import SenderHalf
from shmaccum.arena import Arena
from shmaccum.arena.removal import has_lost_its_name, removed_error, tell_removal
from shmaccum.arena.reports import Kind, Report
from shmaccum.common.units import format_count
from shmaccum.exceptions import ArenaRemovedError

logger = logging.getLogger("shmaccum.sender")

LOOK_NS = 1_000_000_000
CLOSING_LOOK_NS = 100_000_000
PENDING_STATES = ("GRANT", "OWNED", "OPEN", "READY")
LEFT_STATES = ("OPEN", "READY", "BAD")


class Closing:
    """Looks whether a sender's arena closes, and at its name once a second; closes the arena when the name is lost.

    Attributes:
        has_begun: the arena was removed, and takes no more records.
        error: the exception for the sender to raise when it has left; None while the arena has its name.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._native = arena.native
        self._look_at_ns = 0
        self.has_begun = False
        self.error: ArenaRemovedError | None = None

    def look(self) -> None:
        """Notices that the arena was removed. While it closes, each tick seals what was left open."""
        now_ns = self._native.now_ns()
        is_closing = self._native.closing != "not"
        if now_ns < self._look_at_ns and is_closing == self.has_begun:
            return
        self.has_begun = is_closing or has_lost_its_name(self._arena)
        self._look_at_ns = now_ns + (CLOSING_LOOK_NS if self.has_begun else LOOK_NS)
        if self.has_begun:
            self._native.begin_closing()
            self.error = self.error or tell_removal(self._arena)

    def check_something_is_left(self, half: SenderHalf) -> None:
        """For a sender that has just taken the role, before it opens its sink.

        Raises:
            ArenaRemovedError: the arena was removed, and holds nothing to deliver.
        """
        self.look()
        if self.error is None:
            return
        folder = _found_export(self._arena)
        if folder is not None:
            self._native.end_closing()
            self._abort(half, folder, f"its records were exported to {folder} by a sender that died then")
        if folder is not None or self.is_over():
            raise self.error

    def is_over(self) -> bool:
        """True when nothing is in the arena, and nothing can come into it any more.

        A buffer that a living producer holds may become an oversized record until the arena says that its sender has
        left. So the states are looked at once more behind that.
        """
        if self._count(PENDING_STATES):
            return False
        self._native.end_closing()
        return self._count(PENDING_STATES) == 0

    def _count(self, states: tuple[str, ...]) -> int:
        counts = self._native.state_counts()
        return sum(counts[state] for state in states)

    def leave(self, half: SenderHalf) -> bool:
        """Says that the sender has left, exports what is left, and aborts it, so that its futures have a result.

        Answers False, and does nothing, while the arena has its name.

        Requires the sender role, and that no sink holds a batch. Records that cannot be exported keep their buffers.
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
    """Copies every batch that waits to a new folder, and answers it with the number of sound records.

    Raises:
        OSError: no place takes it.
    """
    first, second = _places(arena)
    try:
        return first, _export_to(first, arena)
    except OSError:
        _delete(_unfinished(first))
    return second, _export_to(second, arena)


def _export_to(folder: Path, arena: Arena) -> int:
    """The folder has its name as soon as it is whole. Answers the number of sound records."""
    from shmaccum.observe.inspection import export  # brings numpy, which only a sender that leaves records needs

    unfinished = _unfinished(folder)
    _delete(unfinished)
    batches = export(arena, unfinished)
    os.rename(unfinished, folder)
    return sum(batch.record_count for batch in batches if batch.base_offset >= 0)


def _places(arena: Arena) -> Iterator[Path]:
    """Two folders: beside the arena's file, and among the temporary files.

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
        from shutil import rmtree  # slow to import, and hardly a sender needs it

        rmtree(folder, ignore_errors=True)


def _found_export(arena: Arena) -> Path | None:
    """The folder to which a dead sender exported this arena."""
    return next((folder for folder in _places(arena) if _is_own_folder(folder)), None)


def _is_own_folder(path: Path) -> bool:
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
