# SPDX-License-Identifier: Apache-2.0
"""How a sender leaves an arena that was removed.

::

    the name is gone    told at ERROR; the arena is closed: it takes no more records (native/arena/closing.h)
    rounds go on        until nothing is in it and no producer is about to append, or the time for that is over
    the sink is closed  then the arena says that its sender has left
    what is left        is exported to a folder, as ``shmaccum recover --export`` does, and its records are aborted
    the sender raises   ArenaRemovedError, and its process ends with an exit code of its own

A sender that dies anywhere here leaves the arena closed. Its standby goes on where it was, and may export a batch
again. Without a standby no process can open the arena any more, and producers that wait for results are told so.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

from shmaccum._native import SenderHalf
from shmaccum.arena import Arena
from shmaccum.arena.refusals import removal_text
from shmaccum.arena.removal import has_lost_its_name, removed_error, tell_removal
from shmaccum.exceptions import ArenaRemovedError
from shmaccum.units import format_count

logger = logging.getLogger("shmaccum.sender")

LOOK_NS = 1_000_000_000
CLOSING_LOOK_NS = 100_000_000
PENDING_STATES = ("GRANT", "OWNED", "OPEN", "READY")
LEFT_STATES = ("OPEN", "READY", "BAD")


class Closing:
    """Looks at the name of a sender's arena once a second, and closes the arena when the name is lost.

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
        if now_ns < self._look_at_ns:
            return
        self.has_begun = self.has_begun or self._native.closing != "not" or has_lost_its_name(self._arena)
        self._look_at_ns = now_ns + (CLOSING_LOOK_NS if self.has_begun else LOOK_NS)
        if self.has_begun:
            self._native.begin_closing()
            self.error = self.error or tell_removal(self._arena)

    def check_something_is_left(self) -> None:
        """For a sender that has just taken the role, before it opens its sink.

        Raises:
            ArenaRemovedError: the arena was removed, and holds nothing to deliver.
        """
        self.look()
        if self.error is not None and self.is_over():
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
        return True

    def _export(self, half: SenderHalf) -> None:
        try:
            folder, record_count = export_left(self._arena)
        except OSError as error:
            self._report(f"{self._arena.name} was removed, and its records could not be exported: {error}")
            return
        records = format_count(record_count, "record")
        self._report(f"{self._arena.name} was removed: {records} that could not be delivered were exported to {folder}")
        self._native.record_error(removal_text(str(folder)))
        half.abort(False)

    def _report(self, sentence: str) -> None:
        logger.error("%s", sentence)
        self.error = ArenaRemovedError(sentence)


def export_left(arena: Arena) -> tuple[Path, int]:
    """Copies every batch that waits to a new folder, and answers it with the number of sound records.

    Raises:
        OSError: no place takes it.
    """
    from shmaccum.observe.inspection import export  # brings numpy, which only a sender that leaves records needs

    try:
        folder = _folder_beside(arena)
        batches = export(arena, folder)
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="shmaccum-left-")) / "records"
        batches = export(arena, folder)
    return folder, sum(batch.record_count for batch in batches if batch.base_offset >= 0)


def _folder_beside(arena: Arena) -> Path:
    """Beside an arena's file. For shared memory, which outlives no boot either, among the temporary files."""
    place, name = os.path.split(arena.path)
    parent = tempfile.gettempdir() if arena.is_shared_memory else place
    return Path(parent) / f"{name}-{arena.uuid.hex()[:12]}.left"
