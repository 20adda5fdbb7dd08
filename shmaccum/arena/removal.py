# SPDX-License-Identifier: Apache-2.0
"""The removal of an arena, from the view of its processes.

The memory of such an arena lives as long as a process is attached, and no new process finds it. So the arena is closed
(native/arena/closing.h): it accepts no more records, and its sender exits when it has delivered the records in it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from shmaccum.common import clock
from shmaccum.exceptions import ArenaPoisonedError, ArenaRemovedError, CorruptArenaError

if TYPE_CHECKING:
    from shmaccum.arena.arena import Arena

CHECK_S = 1.0
EXIT_CODE = 3
"""The exit code of a sender process whose arena was removed."""


def has_lost_its_name(arena: Arena) -> bool:
    """True if the arena's name refers to no file, or to another file. An inaccessible name proves nothing."""
    if arena.native.has_lost_its_name:
        return True
    try:
        found = os.stat(arena.path, follow_symlinks=False)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return (found.st_dev, found.st_ino) != arena.native.file_id


def removed_error(arena: Arena) -> ArenaRemovedError:
    """The exception for a process that uses an arena which was removed."""
    return ArenaRemovedError(
        f"the arena {arena.name} was removed while this process was attached, and accepts no more records. "
        f"{_outcome_of_the_rest(arena)} Attach to the arena that has this name now, or create one"
    )


def _outcome_of_the_rest(arena: Arena) -> str:
    if arena.native.closing == "done":
        return "Its sender has delivered or exported the remaining records, and has exited."
    if arena.native.sender_is_alive:
        return "Its sender delivers the remaining records, and then exits."
    return "It has no sender, so the remaining records are not delivered."


def report_removal(arena: Arena) -> ArenaRemovedError:
    """Returns the exception of `removed_error`, and logs it at ERROR once for each handle."""
    error = removed_error(arena)
    if not arena.is_removal_logged:
        arena.is_removal_logged = True
        import logging  # slow to import, and not needed to inspect an arena

        logging.getLogger(__name__).error("%s", error)
    return error


def check_takes_records(arena: Arena) -> None:
    """Checks the arena's name and its state.

    Raises:
        ArenaRemovedError: the arena was removed.
        ArenaPoisonedError: the arena is poisoned.
    """
    if arena.native.check_name() != "not":
        raise report_removal(arena)
    if arena.native.poisoned is not None:
        raise ArenaPoisonedError(
            f"the arena {arena.name} is poisoned, because one of its invariants broke: it accepts no more records. "
            f"Run `shmaccum check {arena.name}` for the cause; remove the arena, and create it again"
        )


def is_abandoned(arena: Arena) -> bool:
    """True if the arena was removed and has no sender now, or if this process has lost its memory.

    The answer may be temporary, because a standby takes the role within milliseconds.
    """
    native = arena.native
    try:
        closing = native.closing if native.is_read_only else native.check_name()
        return closing != "not" and not native.sender_is_alive
    except CorruptArenaError:
        return native.is_lost


class RemovalWatch:
    """Checks, during a wait for results, whether the arena was removed and has no sender any more.

    A standby takes the role within milliseconds, so an arena without a sender counts as abandoned at the second check.

    Attributes:
        arena: the arena, attached or read-only.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._next_check_s = 0.0
        self._was_left = False

    def is_abandoned(self) -> bool:
        """True if no more results will arrive. Checks at most once a second, and returns False in between."""
        now_s = clock.monotonic()
        if now_s < self._next_check_s and not self.arena.native.is_lost:
            return False
        self._next_check_s = now_s + CHECK_S
        is_left = is_abandoned(self.arena)
        if self.arena.native.is_lost:
            return True
        is_final = is_left and (self._was_left or self.arena.native.closing == "done")
        self._was_left = is_left
        return is_final
