# SPDX-License-Identifier: Apache-2.0
"""Supervises the sender of an arena for as long as this process needs one: a thread, one for each arena.

::

    a sender lives                wait until it closes its connection (arena/presence.py); check every few seconds
      ... with another sink       log an error, and end: an arena has one sink
      ... has an old heartbeat    kill it, if configured (arena/stalled.py)
    it exited cleanly             log one warning, and start none: the stop was intended
    the arena was removed         log an error, and end: another arena may get its name
    it died                       if a standby is attached, leave the role to it for a moment;
                                  get elected (supervisor/start.py), start another one; if senders die early repeatedly,
                                  wait before each start, twice as long each time

The arena distinguishes a clean exit from a death (`sender_left_epoch` in its layout). One supervisor of a host is
elected, and stays elected while it waits. If it dies, the kernel releases the lock for the next one. No timeout ever
decides that a sender is dead. Time only decides when to start another process. If a sender lives, the new process finds
the role taken and ends.

After a fork, the child has a thread of its own, which does nothing before the child has used the arena. The thread
writes its messages to the log, and to the arena's error log, from which the exceptions of a blocked `send` take them.

Rules: a finalizer may call `leave` at any moment in any thread. So no lock is used: the arenas are one list, which
`leave` and `supervise` change by one C call each. A thread that finds the list empty sets a flag that it is ending,
then checks the list again. A caller of `supervise` adds its arena, then checks the flag. At least one of them sees the
other. Two concurrent callers may create two supervisors of an arena, which share the work like those of two processes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from typing import final

from shmaccum.arena import Arena
from shmaccum.arena.presence import GrowingPause, SenderWatch
from shmaccum.arena.removal import has_lost_its_name, report_removal
from shmaccum.arena.reports import Kind, Report
from shmaccum.arena.stalled import StallWatch
from shmaccum.common import clock
from shmaccum.common.background import RETRY_S, log_exception, started_thread
from shmaccum.exceptions import ArenaRemovedError, OtherSinkError, SenderNotStartedError, ShmaccumError
from shmaccum.sender.sinks.names import expect_sink, living_sender
from shmaccum.supervisor.start import START_TIMEOUT_S, Recipe, elected_at_once, ensure, start

logger = logging.getLogger("shmaccum.supervisor")

CHECK_S = 5.0
UNCONNECTED_CHECK_S = 0.25
ABSENT_CHECK_S = 1.0
ELECTION_CHECK_S = 0.05
NAME_CHECK_S = 0.005
STANDBY_PATIENCE_S = 1.0
EARLY_DEATH_S = 5.0
FREE_STARTS = 2
"""Number of senders in a row that may fail or die early before there is a pause."""
PAUSE_S = 0.1
PAUSE_MAX_S = 10.0


class Restarts:
    """Computes the pause before the next start, which is 0 until senders fail or die early repeatedly."""

    def __init__(self) -> None:
        self.failure_count = 0

    def count(self, lived_s: float) -> None:
        """Count a sender that died `lived_s` seconds after its start. If it did not start, `lived_s` is 0."""
        self.failure_count = self.failure_count + 1 if lived_s < EARLY_DEATH_S else 0

    @property
    def pause_s(self) -> float:
        """The pause. It doubles with each failure, up to `PAUSE_MAX_S`."""
        over = self.failure_count - FREE_STARTS
        return 0.0 if over <= 0 else min(PAUSE_S * 2.0 ** min(over - 1, 10), PAUSE_MAX_S)


@final
class SenderSupervisor:
    """The supervisor of an arena's sender in this process; created by `supervise`, ended by as many calls of `leave`.

    Attributes:
        uuid: of the arena.
        failure: why no sender delivers to the sink; None while one does, or none is needed.
    """

    def __init__(self, arena: Arena, recipe: Recipe) -> None:
        self.recipe = recipe
        self.failure: SenderNotStartedError | OtherSinkError | None = None
        self.uuid = arena.uuid
        self._arenas = [arena]
        self._begin()

    @classmethod
    def supervise(cls, arena: Arena, recipe: Recipe, *, timeout_s: float = START_TIMEOUT_S) -> SenderSupervisor:
        """Start a sender if the arena has none, and supervise it from now on.

        An arena with an external sender (`Arena.has_external_sender`) gets none.

        Args:
            arena: attached; used until `leave`.
            recipe: the sink and the options for starting a sender.
            timeout_s: how long the first start may take.

        Raises:
            SenderNotStartedError: there is no sender, and none could be started.
            OtherSinkError: the living sender delivers to another sink.
        """
        if not arena.has_external_sender or arena.native.sender_is_alive:
            ensure(arena, recipe, clock.monotonic() + timeout_s)
        for supervisor in list(_supervisors):
            if supervisor.uuid == arena.uuid and supervisor.join(arena):
                return supervisor
        return cls(arena, recipe)

    def join(self, arena: Arena) -> bool:
        """Add a caller of `supervise`. Return False if the thread is ending, so that a new supervisor is needed."""
        self._arenas.append(arena)
        if self._is_over:
            self._forget(arena)
            return False
        self.ensure_thread()
        return True

    def leave(self, arena: Arena) -> None:
        """Remove a caller of `supervise`, which needs no sender any more. The last one ends the thread."""
        self._forget(arena)
        watch = self._watch
        if not self._arenas and watch is not None:
            watch.wake()

    def _forget(self, arena: Arena) -> None:
        with contextlib.suppress(ValueError):  # removed already
            self._arenas.remove(arena)

    # --- the thread

    def _begin(self) -> None:
        """Start the thread; also called in the child of a fork."""
        self._is_over = self._has_failed = False
        self._restarts = Restarts()
        self._epoch = 0
        self._adopted_s: float | None = None
        self._is_absent = False
        self._absent_s = 0.0
        self._in_vain = GrowingPause(NAME_CHECK_S, ABSENT_CHECK_S)
        self._watch: SenderWatch | None = None
        self._stalls: StallWatch | None = None
        self._thread: threading.Thread | None = None
        self._start_at_s = 0.0
        _supervisors.add(self)
        self.ensure_thread()

    @property
    def is_running(self) -> bool:
        thread = self._thread
        return thread is not None and thread.is_alive()

    def ensure_thread(self) -> None:
        """Start the thread if it could not start, or was ended from outside; at most once in `RETRY_S`."""
        now_s = clock.monotonic()
        if not self._is_over and not self.is_running and now_s >= self._start_at_s:
            self._start_at_s = now_s + RETRY_S
            self._thread = started_thread(self._run, "shmaccum-supervisor", logger)

    def reset(self) -> None:
        """Start a thread in the child of a fork."""
        if self._watch is not None:
            self._watch.close()
        self._arenas = [arena for arena in self._arenas if not arena.native.closed]
        if self._arenas and not self._is_over:
            self._begin()
        else:
            _supervisors.discard(self)

    def _run(self) -> None:
        while not self._has_failed and (arena := self._wanted_arena()) is not None:
            self._check_safely(arena)
        self._is_over = True
        _supervisors.discard(self)
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def _wanted_arena(self) -> Arena | None:
        """Return an arena that its owner has not closed; None if no caller of `supervise` is left."""
        arena = self._arena()
        if arena is None:
            self._is_over = True
            arena = self._arena()  # a caller may have been added before the flag was set
            if arena is not None:
                self._is_over = False
                if self._watch is not None:
                    self._watch.clear_wake()  # the wake was to end the thread, which continues
        return arena

    def _check_safely(self, arena: Arena) -> None:
        """Check once. Exceptions are retried, except for those of an arena that needs no supervisor."""
        try:
            if self._watch is None:
                self._watch = SenderWatch(arena, check_s=CHECK_S, unconnected_check_s=UNCONNECTED_CHECK_S)
                return  # a caller may have left before there was a watch to wake
            self._check(arena)
        except OtherSinkError as error:
            self._fail(arena, error)
            self._has_failed = self._is_over = True
        except ArenaRemovedError:  # logged already
            self._has_failed = self._is_over = True
        except (ShmaccumError, OSError) as error:
            if arena.native.is_lost:  # no sender could be started for it
                self._has_failed = self._is_over = True
            if not arena.native.closed:
                with contextlib.suppress(BaseException):  # raised by a log handler of the program
                    logger.warning("the supervisor of %s has a problem: %s", arena.name, error)
                time.sleep(ABSENT_CHECK_S)
        except BaseException:  # noqa: BLE001 - the thread continues after any exception
            log_exception(logger, "the supervisor of %s continues after an exception", arena.name)
            time.sleep(ABSENT_CHECK_S)

    def _arena(self) -> Arena | None:
        """Return an arena that its owner has not closed."""
        return next((arena for arena in list(self._arenas) if not arena.native.closed), None)

    @property
    def watch(self) -> SenderWatch:
        """The watch that the thread has created."""
        assert self._watch is not None
        return self._watch

    def _check(self, arena: Arena) -> None:
        native = arena.native
        if not native.is_attached:
            self.watch.pause(ABSENT_CHECK_S)
        elif native.sender_is_alive:
            self._supervise_sender(arena)
        else:
            self._handle_absence(arena)

    # --- there is a sender

    def _supervise_sender(self, arena: Arena) -> None:
        if self._epoch != arena.native.sender()["epoch"] or self._is_absent:
            self._adopt_sender(arena)
            return
        self.watch.wait()
        if self._stalls is not None and not self._is_over and arena.native.sender_is_alive:
            self._stalls.check()

    def _adopt_sender(self, arena: Arena) -> None:
        epoch = arena.native.sender()["epoch"]
        if not expect_sink(arena, self.recipe.sink_name):
            self.watch.pause(self._in_vain.take())  # it has not published its sink yet
            return
        if self._is_absent:
            logger.info("%s again", living_sender(arena))
        self._in_vain.reset()
        self.failure, self._is_absent, self._epoch, self._adopted_s = None, False, epoch, clock.monotonic()
        if self._stalls is None and (limit_ms := self.recipe.replace_stalled_ms) is not None:
            self._stalls = StallWatch(arena, self.watch, limit_ms)
            self.watch.check_s = min(CHECK_S, self._stalls.check_s)

    # --- there is none

    def _handle_absence(self, arena: Arena) -> None:
        native = arena.native
        if has_lost_its_name(arena):
            native.begin_closing()
            raise report_removal(arena)  # a sender that is started by that name would serve another arena
        died = native.sender_died
        if not self._is_absent:
            self._record_absence(arena, died)
        if not died or arena.has_external_sender:
            self.watch.pause(ABSENT_CHECK_S)
        elif self._is_left_to_a_standby(arena):
            self.watch.pause(ELECTION_CHECK_S)
        else:
            self._start_another(arena)

    def _record_absence(self, arena: Arena, died: bool) -> None:
        now_s = clock.monotonic()
        self._is_absent, self._absent_s = True, now_s
        if died and self._adopted_s is not None:
            self._restarts.count(now_s - self._adopted_s)
        if arena.has_external_sender or not died:
            how = "died" if died else "left cleanly"
            logger.warning(
                "the sender of %s %s: nothing is delivered until there is one again (shmaccum sender %s --sink ...)",
                arena.name,
                how,
                arena.name,
            )
        else:
            logger.warning("the sender of %s died: another one is started", arena.name)

    def _is_left_to_a_standby(self, arena: Arena) -> bool:
        """True while a standby is attached, for at most `STANDBY_PATIENCE_S` after the death of the sender."""
        if clock.monotonic() - self._absent_s >= STANDBY_PATIENCE_S:
            return False
        return any(row["alive"] and row["role"] == "standby" for row in arena.native.processes())

    def _start_another(self, arena: Arena) -> None:
        with elected_at_once(arena) as is_elected:
            if not is_elected:
                self.watch.pause(max(self._in_vain.take(), ELECTION_CHECK_S))
            elif self._wait_before_start(arena):
                self._start(arena)

    def _wait_before_start(self, arena: Arena) -> bool:
        """Return False if no sender has to be started any more. This process stays elected meanwhile."""
        pause_s = self._restarts.pause_s
        if pause_s > 0:
            self._report(
                arena,
                f"{self._restarts.failure_count} in a row failed or died early; the next start is in {pause_s:g} s",
                "senders fail or die soon after their start, again and again: there is a pause before each start",
            )
        end_s = clock.monotonic() + pause_s
        while (left_s := end_s - clock.monotonic()) > 0 and self._is_wanted(arena):
            self.watch.pause(min(left_s, UNCONNECTED_CHECK_S))
        return self._is_wanted(arena)

    def _is_wanted(self, arena: Arena) -> bool:
        return not self._is_over and not arena.native.closed and arena.native.sender_died

    def _start(self, arena: Arena) -> None:
        try:
            start(arena, self.recipe, clock.monotonic() + START_TIMEOUT_S)
        except SenderNotStartedError as error:
            self._restarts.count(0)
            self._fail(arena, error)

    # --- messages

    def _fail(self, arena: Arena, error: SenderNotStartedError | OtherSinkError) -> None:
        self.failure = error
        self._report(arena, str(error), str(error))

    def _report(self, arena: Arena, for_log: str, for_arena: str) -> None:
        """Report a failure. The arena counts equal sentences and stores few, so its sentence has no numbers."""
        logger.error("no sender of %s: %s", arena.name, for_log)
        with contextlib.suppress(ShmaccumError):
            Report(Kind.NOT_KEPT, for_arena).record(arena.native)


# --- supervisors of this process

_supervisors: set[SenderSupervisor] = set()
"""Supervisors whose threads are not over."""


def _reset_in_child() -> None:
    for supervisor in list(_supervisors):
        supervisor.reset()


os.register_at_fork(after_in_child=_reset_in_child)
