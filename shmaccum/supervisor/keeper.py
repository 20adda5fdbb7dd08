# SPDX-License-Identifier: Apache-2.0
"""Keeps a sender at an arena for as long as this process needs one: a thread, one for each arena.

::

    a sender lives                sleep until it hangs up (arena/presence.py); look every few seconds
      ... and delivers elsewhere  say so, and end: an arena has one sink
      ... and shows no life       kill it, if told to (arena/stalled.py)
    it left in order              say so once, and start none: somebody wanted that
    the arena was removed         say so, and end: its name may be another arena's
    it died                       a standby is attached? leave the role to it for a moment
                                  get elected (supervisor/start.py), start another one; it dies soon, again and again:
                                  wait before each start, twice as long each time

The arena tells an orderly leave from a death (`sender_left_epoch` in its layout). Of all keepers of a host one is
elected, and it stays elected while it waits; when it dies, the kernel frees the election for the next one. Nobody
decides by time that a sender is dead. Time decides only when to start another process, which finds the role taken and
ends where a sender lives.

After a fork the child has a thread of its own, which does nothing before the child has used the arena. The thread
writes its messages to the log, and to the arena's error log, from where the exceptions of a blocked `send` take them.

Rules: a finalizer calls `leave`, at any moment of any thread. So no lock is taken: the arenas are one list, which
`leave` and `keep` change by one call of C each. A thread that finds the list empty says that it is over, then looks
again. A caller of `keep` adds its arena, then looks whether the thread is over. One of them sees the other. Two callers
at a time may make two keepers of an arena, which share the work as those of two processes do.
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
from shmaccum.arena.removal import has_lost_its_name, tell_removal
from shmaccum.arena.reports import Kind, Report
from shmaccum.arena.stalled import StallWatch
from shmaccum.common import clock
from shmaccum.common.background import RETRY_S, log_exception, started_thread
from shmaccum.exceptions import ArenaRemovedError, OtherSinkError, SenderNotStartedError, ShmaccumError
from shmaccum.sender.sinks.names import expect_sink, living_sender
from shmaccum.supervisor.start import START_TIMEOUT_S, Recipe, elected_at_once, ensure, start

logger = logging.getLogger("shmaccum.supervisor")

LOOK_S = 5.0
BLIND_LOOK_S = 0.25
ABSENT_LOOK_S = 1.0
ELECTION_LOOK_S = 0.05
NAME_LOOK_S = 0.005
STANDBY_PATIENCE_S = 1.0
EARLY_DEATH_S = 5.0
FREE_STARTS = 2
"""So many senders in a row may fail or die early before there is a pause."""
PAUSE_S = 0.1
PAUSE_MAX_S = 10.0


class Restarts:
    """How long to wait before the next start: not at all, until senders fail or die early again and again."""

    def __init__(self) -> None:
        self.failure_count = 0

    def count(self, lived_s: float) -> None:
        """A sender died after so many seconds; one that did not begin lived for none."""
        self.failure_count = self.failure_count + 1 if lived_s < EARLY_DEATH_S else 0

    @property
    def pause_s(self) -> float:
        """Doubles with each failure, up to `PAUSE_MAX_S`."""
        over = self.failure_count - FREE_STARTS
        return 0.0 if over <= 0 else min(PAUSE_S * 2.0 ** min(over - 1, 10), PAUSE_MAX_S)


@final
class SenderKeeper:
    """The keeper of this process for an arena; made by `keep`, ended by as many calls of `leave`.

    Attributes:
        uuid: of the arena.
        failure: why there is no sender that delivers where it should; None while there is one, or none is needed.
    """

    def __init__(self, arena: Arena, recipe: Recipe) -> None:
        self.recipe = recipe
        self.failure: SenderNotStartedError | OtherSinkError | None = None
        self.uuid = arena.uuid
        self._arenas = [arena]
        self._begin()

    @classmethod
    def keep(cls, arena: Arena, recipe: Recipe, *, timeout_s: float = START_TIMEOUT_S) -> SenderKeeper:
        """Sees to it that the arena has a sender now, and keeps one from now on.

        An arena whose creator said that somebody else keeps its sender (`Arena.has_external_sender`) gets none.

        Args:
            arena: attached; used until `leave`.
            recipe: the options that a sender is started with.
            timeout_s: how long the first start may take.

        Raises:
            SenderNotStartedError: there is no sender, and none could be started.
            OtherSinkError: the living sender delivers to another sink.
        """
        if not arena.has_external_sender or arena.native.sender_is_alive:
            ensure(arena, recipe, clock.monotonic() + timeout_s)
        for keeper in list(_keepers):
            if keeper.uuid == arena.uuid and keeper.join(arena):
                return keeper
        return cls(arena, recipe)

    def join(self, arena: Arena) -> bool:
        """Another caller of `keep`; False when the thread ends, and a new keeper is needed."""
        self._arenas.append(arena)
        if self._is_over:
            self._forget(arena)
            return False
        self.ensure_thread()
        return True

    def leave(self, arena: Arena) -> None:
        """The caller of `keep` needs no sender any more; the last one ends the thread. A finalizer calls it."""
        self._forget(arena)
        watch = self._watch
        if not self._arenas and watch is not None:
            watch.wake()

    def _forget(self, arena: Arena) -> None:
        with contextlib.suppress(ValueError):  # it was forgotten
            self._arenas.remove(arena)

    # --- the thread

    def _begin(self) -> None:
        """Starts the thread; in the child of a fork anew."""
        self._is_over = self._has_failed = False
        self._restarts = Restarts()
        self._epoch = 0
        self._met_s: float | None = None
        self._is_absent = False
        self._absent_s = 0.0
        self._in_vain = GrowingPause(NAME_LOOK_S, ABSENT_LOOK_S)
        self._watch: SenderWatch | None = None
        self._stalls: StallWatch | None = None
        self._thread: threading.Thread | None = None
        self._start_at_s = 0.0
        _keepers.add(self)
        self.ensure_thread()

    @property
    def is_running(self) -> bool:
        """True while the thread works."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def ensure_thread(self) -> None:
        """Starts the thread where it could not start, or was ended from outside: once in `RETRY_S` at most."""
        now_s = clock.monotonic()
        if not self._is_over and not self.is_running and now_s >= self._start_at_s:
            self._start_at_s = now_s + RETRY_S
            self._thread = started_thread(self._run, "shmaccum-keeper", logger)

    def start_anew(self) -> None:
        """The child of a fork begins with a thread of its own."""
        if self._watch is not None:
            self._watch.close()
        self._arenas = [arena for arena in self._arenas if not arena.native.closed]
        if self._arenas and not self._is_over:
            self._begin()
        else:
            _keepers.discard(self)

    def _run(self) -> None:
        while not self._has_failed and (arena := self._wanted_arena()) is not None:
            self._look_safely(arena)
        self._is_over = True
        _keepers.discard(self)
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def _wanted_arena(self) -> Arena | None:
        """A handle that its owner has not closed; None when no caller of `keep` is left."""
        arena = self._arena()
        if arena is None:
            self._is_over = True
            arena = self._arena()  # a caller may have come before that
            if arena is not None:
                self._is_over = False
                if self._watch is not None:
                    self._watch.calm()  # the wake-up was meant for the end
        return arena

    def _look_safely(self, arena: Arena) -> None:
        """Looks once; every other exception than those of an arena that needs no keeper is tried again."""
        try:
            if self._watch is None:
                self._watch = SenderWatch(arena, look_s=LOOK_S, blind_look_s=BLIND_LOOK_S)
                return  # somebody may have left before there was a watch to wake
            self._look(arena)
        except OtherSinkError as error:
            self._fail(arena, error)
            self._has_failed = self._is_over = True
        except ArenaRemovedError:  # which was logged
            self._has_failed = self._is_over = True
        except (ShmaccumError, OSError) as error:
            if arena.native.is_lost:  # no sender could be started for it
                self._has_failed = self._is_over = True
            if not arena.native.closed:
                with contextlib.suppress(BaseException):  # of a handler of the program
                    logger.warning("the keeper of %s has a problem: %s", arena.name, error)
                time.sleep(ABSENT_LOOK_S)
        except BaseException:  # noqa: BLE001 - the thread goes on whatever it was
            log_exception(logger, "the keeper of %s goes on after an exception", arena.name)
            time.sleep(ABSENT_LOOK_S)

    def _arena(self) -> Arena | None:
        """A handle that its owner has not closed."""
        return next((arena for arena in list(self._arenas) if not arena.native.closed), None)

    @property
    def watch(self) -> SenderWatch:
        """The watch of the thread, which has made one."""
        assert self._watch is not None
        return self._watch

    def _look(self, arena: Arena) -> None:
        native = arena.native
        if not native.is_attached:
            self.watch.pause(ABSENT_LOOK_S)
        elif native.sender_is_alive:
            self._attend(arena)
        else:
            self._miss(arena)

    # --- there is a sender

    def _attend(self, arena: Arena) -> None:
        if self._epoch != arena.native.sender()["epoch"] or self._is_absent:
            self._meet(arena)
            return
        self.watch.wait()
        if self._stalls is not None and not self._is_over and arena.native.sender_is_alive:
            self._stalls.look()

    def _meet(self, arena: Arena) -> None:
        epoch = arena.native.sender()["epoch"]
        if not expect_sink(arena, self.recipe.sink_name):
            self.watch.pause(self._in_vain.take())  # it has not said yet where it delivers
            return
        if self._is_absent:
            logger.info("%s again", living_sender(arena))
        self._in_vain.reset()
        self.failure, self._is_absent, self._epoch, self._met_s = None, False, epoch, clock.monotonic()
        if self._stalls is None and (limit_ms := self.recipe.replace_stalled_ms) is not None:
            self._stalls = StallWatch(arena, self.watch, limit_ms)
            self.watch.look_s = min(LOOK_S, self._stalls.look_s)

    # --- there is none

    def _miss(self, arena: Arena) -> None:
        native = arena.native
        if has_lost_its_name(arena):
            native.begin_closing()
            raise tell_removal(arena)  # a sender that is started by that name would serve another arena
        died = native.sender_died
        if not self._is_absent:
            self._note_absence(arena, died)
        if not died or arena.has_external_sender:
            self.watch.pause(ABSENT_LOOK_S)
        elif self._is_left_to_a_standby(arena):
            self.watch.pause(ELECTION_LOOK_S)
        else:
            self._start_another(arena)

    def _note_absence(self, arena: Arena, died: bool) -> None:
        now_s = clock.monotonic()
        self._is_absent, self._absent_s = True, now_s
        if died and self._met_s is not None:
            self._restarts.count(now_s - self._met_s)
        if arena.has_external_sender or not died:
            how = "died" if died else "left in order"
            logger.warning(
                "the sender of %s %s: nothing is delivered until there is one again (shmaccum sender %s --sink ...)",
                arena.name,
                how,
                arena.name,
            )
        else:
            logger.warning("the sender of %s died: another one is started", arena.name)

    def _is_left_to_a_standby(self, arena: Arena) -> bool:
        """True for the moment that a standby needs; one that is stopped takes no longer than that."""
        if clock.monotonic() - self._absent_s >= STANDBY_PATIENCE_S:
            return False
        return any(row["alive"] and row["role"] == "standby" for row in arena.native.processes())

    def _start_another(self, arena: Arena) -> None:
        with elected_at_once(arena) as is_elected:
            if not is_elected:
                self.watch.pause(max(self._in_vain.take(), ELECTION_LOOK_S))
            elif self._wait_before_start(arena):
                self._start(arena)

    def _wait_before_start(self, arena: Arena) -> bool:
        """False when there is nothing to start any more. The election is held meanwhile."""
        pause_s = self._restarts.pause_s
        if pause_s > 0:
            self._tell(
                arena,
                f"{self._restarts.failure_count} in a row failed or died early; the next start is in {pause_s:g} s",
                "senders fail or die soon after their start, again and again: there is a pause before each start",
            )
        end_s = clock.monotonic() + pause_s
        while (left_s := end_s - clock.monotonic()) > 0 and self._is_wanted(arena):
            self.watch.pause(min(left_s, BLIND_LOOK_S))
        return self._is_wanted(arena)

    def _is_wanted(self, arena: Arena) -> bool:
        return not self._is_over and not arena.native.closed and arena.native.sender_died

    def _start(self, arena: Arena) -> None:
        try:
            start(arena, self.recipe, clock.monotonic() + START_TIMEOUT_S)
        except SenderNotStartedError as error:
            self._restarts.count(0)
            self._fail(arena, error)

    # --- telling

    def _fail(self, arena: Arena, error: SenderNotStartedError | OtherSinkError) -> None:
        self.failure = error
        self._tell(arena, str(error), str(error))

    def _tell(self, arena: Arena, for_log: str, for_arena: str) -> None:
        """Numbers go to the log alone: the arena counts equal sentences, and has room for few."""
        logger.error("no sender of %s: %s", arena.name, for_log)
        with contextlib.suppress(ShmaccumError):
            Report(Kind.NOT_KEPT, for_arena).record(arena.native)


# --- keepers of this process

_keepers: set[SenderKeeper] = set()
"""Those whose threads are not over."""


def _start_anew_in_child() -> None:
    for keeper in list(_keepers):
        keeper.start_anew()


os.register_at_fork(after_in_child=_start_anew_in_child)
