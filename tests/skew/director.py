# SPDX-License-Identifier: Apache-2.0
"""A trial of `tests.chaos` in which each process that is killed gets a successor of the other build.

Producers, senders, supervisors and observers of two builds use one arena. They are killed in turn (SIGKILL), and a
process of the other build immediately takes each seat. So every mixture of both builds uses the arena, and the sender's
role passes in both directions.

::

    senders       two standbys, each a seat. Two of the producers send as fast as they can
    supervisors   two supervised producers, each a seat. The sender's process is a daemon of the elected supervisor, and
                  is killed, too
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from shmaccum.arena import Arena
from tests.chaos.director import Director, Seat
from tests.chaos.outcome import Plan
from tests.chaos.zygote import Zygote
from tests.skew.builds import Build, build_of
from tests.support.arenas import end_senders, sender_pid
from tests.support.processes import wait_until

KINDS = ("senders", "supervisors")
PRODUCERS = {"senders": 2, "supervisors": 4}
HOLDER_SHARE = 0.15
"""The share of kills that kill the process with the sender's role."""
PATIENCE_S = 300.0
"""The limit of a trial, plus a second for each replacement."""
SETTLED_S = 1.0
"""The time for which a daemon has the role before it is killed. If senders repeatedly die early, supervisors wait."""


class SkewDirector(Director):
    """One trial.

    Attributes:
        successions: maps (build of a killed sender, build of the next one) to the count.
    """

    def __init__(self, arena: Arena, folder: Path, plan: Plan, kind: str, builds: tuple[Build, Build]) -> None:
        self.kind = kind
        self.builds = builds
        self.successions: Counter[tuple[str, str]] = Counter()
        self._killed_build: str | None = None
        self._killed_epoch = 0
        self._role_since: tuple[int, float] = (0, 0.0)
        super().__init__(arena, folder, plan)

    @property
    def replacement_count(self) -> int:
        return self.tally.kills.total()

    def _make_zygotes(self) -> list[Zygote]:
        return [
            Zygote(self.places, self.plan.seed, name=f" of {build.name}", python=build.python, folder=build.folder)
            for build in self.builds
        ]

    def _all_seats(self) -> list[Seat]:
        roles = ["producer"] * PRODUCERS[self.kind]
        roles += ["rusher", "rusher", "sender", "sender"] if self.kind == "senders" else ["supervisor", "supervisor"]
        roles += ["reader", "observer"]
        return [Seat(role, number, self._zygotes[number % 2]) for number, role in enumerate(roles)]

    def _start(self, seat: Seat) -> None:
        """Start the build that did not have the seat before."""
        if seat.pid:
            here, there = self._zygotes
            seat.zygote = there if seat.zygote is here else here
        super()._start(seat)

    # --- successions

    def _holder(self) -> int | None:
        return sender_pid(self._arena) if self._arena.native.sender_is_alive else None

    def _note_death(self, pid: int) -> None:
        build = build_of(pid, self.builds)
        self._killed_build = None if build is None else build.name
        self._killed_epoch = self._arena.native.sender()["epoch"]

    def _check_for_takeover(self) -> None:
        super()._check_for_takeover()
        epoch = self._arena.native.sender()["epoch"]
        if epoch != self._role_since[0]:
            self._role_since = (epoch, time.monotonic())
        if self._killed_build is None or epoch == self._killed_epoch:
            return
        pid = self._holder()
        build = None if pid is None else build_of(pid, self.builds)
        if build is not None:
            self.successions[self._killed_build, build.name] += 1
            self._killed_build = None

    # --- injuries

    def _injure(self) -> None:
        if self._random.random() >= HOLDER_SHARE:
            self._replace(self._next_injured())
        elif self.kind == "supervisors":
            self._kill_daemon()
        else:
            holder = self._holder()
            self._replace(next((seat for seat in self._seats if seat.pid == holder), self._next_injured()))

    def _replace(self, seat: Seat) -> None:
        if seat.role == "sender" and seat.pid == self._holder():
            self._note_death(seat.pid)
        self._kill(seat)

    def _kill_daemon(self) -> None:
        pid = self._holder()
        if pid is None or time.monotonic() - self._role_since[1] < SETTLED_S:
            return
        self._note_death(pid)
        self.tally.kills[f"daemon of {self._killed_build}"] += 1
        self.tally.sender_kill_count += 1
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def _is_enough(self, seconds: float) -> bool:
        """True after all replacements, if the role has passed in both directions.

        Raises:
            AssertionError: this did not happen within the limit of the trial.
        """
        assert seconds < PATIENCE_S + self.plan.kill_count, f"{self.replacement_count} replaced, {self.successions}"
        here, there = (build.name for build in self.builds)
        has_passed = self.successions[here, there] and self.successions[there, here]
        return self.replacement_count >= self.plan.kill_count and bool(has_passed)

    # --- begin and end

    def _begin(self) -> None:
        for seat in self._seats:
            if seat.role == "supervisor":
                self._start(seat)
        if self.kind == "supervisors":
            wait_until(lambda: self._arena.native.sender_is_alive, "a supervisor has started a sender")
        super()._begin()

    def _wait_for_orphans(self) -> None:
        """Wait for all orphans, including daemons."""
        daemon_count = int(self.kind == "supervisors")
        wait_until(
            lambda: sum(zygote.orphan_count() for zygote in self._zygotes) <= daemon_count,
            "forked children have ended",
        )

    def _leave_senders(self) -> None:
        self._join([seat for seat in self._seats if seat.role == "supervisor"])
        if self.kind == "supervisors":
            end_senders(self._arena)
        super()._leave_senders()
