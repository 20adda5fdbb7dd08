# SPDX-License-Identifier: Apache-2.0
"""Kills, stops and continues the processes of a trial at random, replaces dead ones, and checks the results.

Each process has a *seat* (a role, inside or outside of the PID namespace). A killed process is replaced there at once.
The director stays attached to the arena and does not append, so that no other process is the first to attach.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from shmaccum.arena import Arena, VerifyDepth
from shmaccum.log.files.inspection import check_log
from tests.chaos.audit import audit
from tests.chaos.delays import Stops, judge
from tests.chaos.ledger import (
    FORKS_MAX,
    OTHERS_LEAVE,
    PARTITIONS,
    PRODUCERS_LEAVE,
    PUMPING,
    STOPS,
    TOPIC,
    Ledger,
    Places,
    read_delays,
)
from tests.chaos.outcome import Outcome, Plan, Tally
from tests.chaos.zygote import Zygote
from tests.kafka.broker import LOOPBACK, held_port
from tests.support.arenas import sender_pid
from tests.support.processes import wait_until

PAUSE_S = (0.002, 0.06)
"""The pause between two injuries, on average 32 a second. If the director is late, it does not pause."""
STOP_SHARE = 0.2
STOP_S_MAX = 0.08
YOUNG_SHARE = 0.35
"""How often the youngest process is chosen, which is still attaching or at its first appends."""
GROUP_SHARE = 0.5
"""How often forked children die with their parent."""
PATIENCE_S = 40.0
WATCH_S = 0.001
SETTLED_S = 0.5
WEIGHTS = {"producer": 6, "rusher": 6, "sender": 3, "supervisor": 3, "server": 1, "reader": 1, "observer": 1}
SENDING = ("producer", "rusher")


@dataclass
class Seat:
    """A role and its process."""

    role: str
    number: int
    zygote: Zygote
    pid: int = 0
    author: int = 0
    started_s: float = 0.0
    stopped_ns: int | None = None
    continue_s: float = 0.0

    @property
    def place(self) -> str:
        return f"{self.role}{self.zygote.name}"


@dataclass
class TakeOver:
    """The death of the process that was the sender."""

    killed_ns: int
    epoch: int
    completion_tail: int
    is_clean: bool
    """Whether a standby waited and no sender was injured before the next one had the role and delivered."""
    is_taken: bool = False


def _has_no_orphans(zygote: Zygote) -> bool:
    return zygote.orphan_count() == 0


class Director:
    """One trial."""

    def __init__(self, arena: Arena, folder: Path, plan: Plan) -> None:
        self.plan = plan
        self.places = Places(arena.name, folder)
        self.tally = Tally()
        self._arena = arena
        self._random = random.Random(plan.seed)
        self._ledger = Ledger(self.places.ledger)
        self._zygotes = self._make_zygotes()
        self._seats = self._all_seats()
        self._meter = Seat("meter", len(self._seats), self._zygotes[0])
        self._take_over: TakeOver | None = None
        self._port = held_port()

    def _make_zygotes(self) -> list[Zygote]:
        zygotes = [Zygote(self.places, self.plan.seed)]
        if self.plan.inside:
            name = " in another PID namespace"
            zygotes.append(Zygote(self.places, self.plan.seed, name=name, has_namespace=True))
        return zygotes

    def _all_seats(self) -> list[Seat]:
        here, there = self._zygotes[0], self._zygotes[-1]
        roles = [("producer", here)] * 4 + [("producer", there)] * 2
        roles += [("sender", here)] * 2 + [("sender", there)]
        roles += [("reader", here), ("observer", here)]
        roles += [("server", here)] if self.plan.path else []
        return [Seat(role, number, zygote) for number, (role, zygote) in enumerate(roles)]

    # --- lives

    def _start(self, seat: Seat) -> None:
        if seat.role in SENDING:
            seat.author = self.tally.author_count
            self.tally.author_count += FORKS_MAX
        seat.pid = seat.zygote.start(seat.role, seat.number, seat.author)
        seat.started_s = time.monotonic()
        seat.stopped_ns = None

    def _kill(self, seat: Seat) -> None:
        self._watch_for_take_over(seat)
        with_children = seat.role in SENDING and self._random.random() < GROUP_SHARE
        seat.zygote.signal(seat.pid, signal.SIGKILL, with_children=with_children)
        code = seat.zygote.wait(seat.pid)
        assert code == -signal.SIGKILL, f"a {seat.place} left by itself with {code}\n{self.failures()}"
        self.tally.kills[seat.place] += 1
        if seat.role == "sender":
            self._ledger.words[PUMPING] = 0
        self.tally.stopped_kill_count += seat.stopped_ns is not None
        self._end_stop(seat)
        self._start(seat)

    def _stop(self, seat: Seat) -> None:
        self._ledger.words[STOPS + seat.number] += 1
        seat.stopped_ns = time.monotonic_ns()
        seat.zygote.signal(seat.pid, signal.SIGSTOP)
        seat.continue_s = time.monotonic() + self._random.random() * STOP_S_MAX
        self.tally.stops[seat.place] += 1
        if self._take_over is not None and seat.role == "sender":
            self._take_over.is_clean = False

    def _continue(self, seat: Seat) -> None:
        """Continue a stopped process. The stop is counted at both ends, so each append during it sees a change."""
        self._ledger.words[STOPS + seat.number] += 1
        seat.zygote.signal(seat.pid, signal.SIGCONT)
        self._end_stop(seat)

    def _end_stop(self, seat: Seat) -> None:
        if seat.stopped_ns is not None:
            self.tally.stop_spans.append((seat.stopped_ns, time.monotonic_ns()))
            seat.stopped_ns = None

    # --- take-overs

    def _watch_for_take_over(self, killed: Seat) -> None:
        if killed.role != "sender":
            return
        if self._take_over is not None:
            self._take_over.is_clean = False
        if self._has_role(killed):
            settled_s = time.monotonic() - SETTLED_S
            self.tally.sender_kill_count += 1
            self.tally.pumping_kill_count += self._ledger.words[PUMPING]
            self._take_over = TakeOver(
                killed_ns=time.monotonic_ns(),
                epoch=self._arena.native.sender()["epoch"],
                completion_tail=self._arena.native.completion_tail,
                is_clean=any(
                    seat is not killed
                    and seat.role == "sender"
                    and seat.stopped_ns is None
                    and seat.started_s < settled_s
                    for seat in self._seats
                ),
            )

    def _has_role(self, seat: Seat) -> bool:
        """Return True if a process has the sender's role, by its process id in its own namespace. A mistake affects
        only the counts.
        """
        return sender_pid(self._arena) == seat.pid

    def _check_for_takeover(self) -> None:
        watched, native = self._take_over, self._arena.native
        if watched is None:
            return
        if not watched.is_clean:
            self._take_over = None
        elif not watched.is_taken:
            if native.sender()["epoch"] != watched.epoch:
                watched.is_taken = True
                self.tally.take_over_ns.append(time.monotonic_ns() - watched.killed_ns)
        elif native.completion_tail != watched.completion_tail:
            self.tally.result_ns.append(time.monotonic_ns() - watched.killed_ns)
            self._take_over = None

    # --- injuries

    def _next_injured(self) -> Seat:
        if self._random.random() < YOUNG_SHARE:
            return max(self._seats, key=lambda seat: seat.started_s)
        weights = [WEIGHTS[seat.role] for seat in self._seats]
        return self._random.choices(self._seats, weights)[0]

    def _injure(self) -> None:
        seat = self._next_injured()
        if seat.stopped_ns is None and self._random.random() < STOP_SHARE:
            self._stop(seat)
        else:
            self._kill(seat)

    def _pause(self) -> None:
        """Wait until the next injury, and continue processes that have been stopped for long enough."""
        self._due_s += self._random.uniform(*PAUSE_S)
        while True:
            self._check_for_takeover()
            for seat in self._seats:
                if seat.stopped_ns is not None and time.monotonic() >= seat.continue_s:
                    self._continue(seat)
            if time.monotonic() >= self._due_s:
                return
            time.sleep(WATCH_S)

    def failures(self) -> str:
        """The tracebacks of processes that ended with an exception."""
        path = self.places.failures
        return path.read_text(encoding="utf-8") if path.exists() else ""

    # --- the trial

    def run(self) -> Outcome:
        """Run the trial. Raises AssertionError if a check fails."""
        begin_s = time.monotonic()
        try:
            self._begin()
            self._due_s = time.monotonic()
            while not self._is_enough(time.monotonic() - begin_s):
                self._pause()
                self._injure()
            self._leave()
            self._check_arena()
        finally:
            for zygote in self._zygotes:
                zygote.close()
            self._ledger.close()
            self._port.close()
        return self._judge(time.monotonic() - begin_s)

    def _is_enough(self, seconds: float) -> bool:
        """Return whether the time is over and every process, including the sender, was killed once."""
        plan, kills = self.plan, self.tally.kills
        are_all_hurt = set(kills) == {seat.place for seat in self._seats} and self.tally.sender_kill_count
        is_over = seconds >= plan.seconds and (bool(are_all_hurt) or seconds > plan.seconds + PATIENCE_S)
        return is_over and (kills.total() >= plan.kill_count or seconds > 2 * plan.seconds)

    def _begin(self) -> None:
        """Start the appends and injuries after the first sender, because waiting for it is not a delay."""
        self._arena.native.set_topic_partition_count(TOPIC, PARTITIONS)
        if self.plan.path:
            address = f"{LOOPBACK}:{self._port.getsockname()[1]}"
            self.places.address.write_text(f"{address} {self.plan.path}", encoding="utf-8")
        senders = [seat for seat in self._seats if seat.role == "sender"]
        for seat in senders:
            self._start(seat)
        wait_until(lambda: self._arena.native.sender_is_alive, "there is a sender")
        for seat in (*self._seats, self._meter):
            if not seat.pid:
                self._start(seat)

    def _leave(self) -> None:
        """End producers first, then observers, then senders, then the server."""
        for seat in self._seats:
            if seat.stopped_ns is not None:
                self._continue(seat)
        self._ledger.phase = PRODUCERS_LEAVE
        self._join([seat for seat in self._seats if seat.role in SENDING])
        self._wait_for_orphans()
        native = self._arena.native
        wait_until(lambda: native.state_counts()["FREE"] == self._arena.geometry["slot_count"], "all is delivered")
        self._ledger.phase = OTHERS_LEAVE
        self._join([seat for seat in (*self._seats, self._meter) if seat.role in {"reader", "observer", "meter"}])
        self._leave_senders()
        self._end([seat for seat in self._seats if seat.role == "server"])
        assert self.failures() == ""

    def _wait_for_orphans(self) -> None:
        for zygote in self._zygotes:
            wait_until(partial(_has_no_orphans, zygote), "forked children have ended")

    def _leave_senders(self) -> None:
        self._end([seat for seat in self._seats if seat.role == "sender"])

    def _end(self, seats: Sequence[Seat]) -> None:
        for seat in seats:
            seat.zygote.signal(seat.pid, signal.SIGTERM)
        self._join(seats)

    def _join(self, seats: Sequence[Seat]) -> None:
        for seat in seats:
            wait_until(partial(seat.zygote.has_ended, seat.pid), f"the {seat.place} has left")
            code = seat.zygote.wait(seat.pid)
            assert code == 0, f"a {seat.place} ended with {code}\n{self.failures()}"

    def _check_arena(self) -> None:
        arena = self._arena
        assert arena.verify(VerifyDepth.DEEP, is_idle=True) == []
        assert arena.native.state_counts()["FREE"] == arena.geometry["slot_count"]
        assert [each for each in arena.native.processes() if each["alive"]] == [
            each for each in arena.native.processes() if each["entry"] == arena.native.entry_index
        ]
        assert arena.native.poisoned is None
        counters = arena.native.counters()
        for label in ("failed", "expired", "quarantined"):
            assert counters[f"batches {label}"] == 0, counters

    def _judge(self, seconds: float) -> Outcome:
        assert check_log(self.places.log) == []
        found = audit(self.places, self.tally.author_count)
        with Ledger(self.places.ledger) as ledger:
            self.tally.fork_count = ledger.appended_count(self.tally.author_count, is_forked=True)
        delays = judge(read_delays(self.places.delays), read_delays(self.places.hiccups), Stops(self.tally.stop_spans))
        return Outcome(self.plan, self.tally, found, delays, seconds)
