# SPDX-License-Identifier: Apache-2.0
"""The buffer pool as a model: fast path, FIFO queue, oversized requests under a cap, parking, revoked grants, deaths.

One step of the model is one store to shared memory, as in ``native/arena/buffer_pool.c``; a process may die before any
of them. Process 0 begins with all slots and frees them. Every other process wants ``needs[p]`` slots, waits if it must,
may give up, and frees what it got.

    slot    FREE | Grant(waiter, ticket) | Owned(process, is_chain)
    waiter  IDLE | Parked(ticket, need) | Wait(ticket, need) | Got(ticket, need)          one entry per process
    lock    None | (process, took_over)

A process in ``stuck`` sends to a stuck partition: more than half of the slots must be free for it, or it stays parked.
It does not use the fast path, which ``topic_share_model.py`` models. A process that frees a slot acts as the sender
does: it posts the semaphores of parked waiters that fit (``posted``). A parked waiter also scans at its turn, and posts
the others that fit. The model has the fewest possible turns: only the first parked waiter that lives and runs has them.

A process may be stopped (``stops``) while it waits or before it locks the pool. A stopped process never continues. The
sender may also be stopped, while it frees slots and posts. A process that continues late needs no step of its own: any
process may take its next step at any time. Time is not modelled, so a grant may be revoked at any age, also from a
process that was about to take it.

The explorer checks every state. Oversized records have no more slots than their cap. Stuck partitions have no more than
half of the slots. Normal waiters get grants in the order of their tickets, and so do oversized ones. A waiter takes
only slots that it was granted. Parked waiters do not close the fast path. Without a death or a stop, no process sleeps
while a slot that it could have is free. In every final state, one repair by a living process frees all slots, except
those of a stopped sender and the grants of stopped waiters. From every state, all processes that are neither dead nor
stopped can reach an end. At the end, a process waits only if a stopped process has what it needs.

``mutation`` breaks a rule. The explorer must find each one (``MUTATIONS``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

# The tag distinguishes tuples of different kinds, which would be equal if they had the same numbers.


class Grant(NamedTuple):
    """A slot that was granted to a waiter."""

    waiter: int
    ticket: int
    tag: str = "grant"


class Owned(NamedTuple):
    """A slot of a process."""

    process: int
    is_chain: bool
    tag: str = "owned"


class Wait(NamedTuple):
    """A waiter that needs more grants."""

    ticket: int
    need: int
    tag: str = "wait"


class Parked(NamedTuple):
    """A waiter that gets no grants until its owner stores WAIT."""

    ticket: int
    need: int
    tag: str = "parked"


class Got(NamedTuple):
    """A waiter that may take its grants."""

    ticket: int
    need: int
    tag: str = "got"


FREE = None
IDLE = None
DEAD = "dead"
DONE = "done"
STOPPED = "stopped"

Slot = Grant | Owned | None
Waiter = Parked | Wait | Got | None


class State(NamedTuple):
    """The shared state, and the current step of each process."""

    lock: tuple[int, bool] | None
    slots: tuple[Slot, ...]
    waiters: tuple[Waiter, ...]
    next_ticket: int
    waiting_count: int
    places: tuple[str, ...]
    tickets: tuple[int, ...]  # the ticket of each process, between its stores
    deaths_left: int
    cancels_left: int
    stops_left: int
    posted: tuple[bool, ...]  # the semaphore of each process
    problem: str | None = None


MUTATIONS = {
    "dead lock owner keeps the lock": "no process steals the lock of a dead process, so all others wait forever",
    "no repair": "no process repairs after a death, so the slots of the dead process stay in use",
    "waiters do not help": "a sleeping waiter neither repairs nor grants slots, so it waits forever if the sender dies",
    "waiting_count not raised": (
        "a waiter does not raise waiting_count before WAIT, so the process that frees a slot serves no waiter"
    ),
    "cancel keeps grants": "a waiter that gives up does not free its grants, so the next waiter sleeps beside them",
    "no cap": "oversized requests get slots without a limit, so they exceed their cap",
    "arrivals pass waiters": "the fast path ignores waiting_count, so a new arrival passes waiters",
    "newest waiter first": "the newest waiter is served first, so waiters are not served in the order of their tickets",
    "parked waiter served": "slots are granted to a parked waiter, so stuck partitions exceed half of the slots",
    "parked waiter counted": (
        "waiting_count counts parked waiters, so the fast path is closed although no process waits"
    ),
    "limit checked before PARKED": (
        "the limit is checked before PARKED is stored and not after it, so a parked waiter misses a free slot"
    ),
    "limit checked after a grant": (
        "an owner checks the limit again when it takes its grant, so it parks beside slots that it may have"
    ),
    "parked waiter not posted": (
        "a process that frees a slot posts no parked waiter, so one sleeps although a slot is free for it"
    ),
    "parked waiter has no turns": "a parked waiter checks only after a post, so it sleeps forever if the sender dies",
    "turn without posts": (
        "a parked waiter posts no other waiter at its turn, so the others sleep if the sender is stopped"
    ),
    "turn of an absent waiter": (
        "a dead or stopped waiter may be the one that has the turns, so no parked waiter checks"
    ),
    "no revocation": "no process revokes a grant, so the grant of a stopped waiter is never used",
    "revocation keeps the word": (
        "the slots of a revoked grant become FREE, but the word of its waiter stays WAIT, so it gets them again"
    ),
    "revocation frees slots first": (
        "a helper frees the slots of a grant before it changes the word, so the owner takes slots that it lost"
    ),
    "grants of a parked waiter not freed": (
        "a repair does not free the grants of a parked waiter, so they stay in use after a death"
    ),
    "helper ends parking": (
        "a helper stores WAIT for a parked waiter, so a stopped waiter gets each revoked grant again"
    ),
    "GOT not checked again": (
        "an owner that has seen GOT does not read the word again, so it takes slots of a revoked grant"
    ),
    "cancel and take in two steps": (
        "a waiter that gives up and was served unlocks before it takes its slots, which may be revoked meanwhile"
    ),
}


KEEPING = ("grants of a parked waiter not freed", "parked waiter served")
"""The mutations in which a grant of a parked waiter remains valid."""


class Bounds(NamedTuple):
    """The size of a model."""

    needs: tuple[int, ...]
    slot_count: int
    deaths: int = 0
    cancels: int = 0
    cap: int = 9
    stops: int = 0
    stuck: frozenset[int] = frozenset()


def _replace(items: tuple[Any, ...], index: int, item: object) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


class PoolModel:
    """See the module."""

    def __init__(self, bounds: Bounds, mutation: str = ""):
        self.bounds = bounds
        self.needs = (0, *bounds.needs)
        self.mutation = mutation

    def initial(self) -> State:
        """Return the state in which process 0 owns every slot, and the others want some."""
        count = len(self.needs)
        return State(
            lock=None,
            slots=(Owned(0, False),) * self.bounds.slot_count,
            waiters=(IDLE,) * count,
            next_ticket=0,
            waiting_count=0,
            places=("give back", *("begin",) * (count - 1)),
            tickets=(0,) * count,
            deaths_left=self.bounds.deaths,
            cancels_left=self.bounds.cancels,
            stops_left=self.bounds.stops,
            posted=(False,) * count,
        )

    # ---- rules ----

    def is_good(self, state: State) -> bool:
        """True if each process is finished, dead or stopped, or waits for slots of a stopped process."""
        return all(place in (DONE, DEAD, STOPPED) or self._must_stay(state, p) for p, place in enumerate(state.places))

    def _must_stay(self, state: State, p: int) -> bool:
        """True if the process waits for slots of a stopped sender or, if it is parked, also of a stopped waiter."""
        if state.places[p] != "wait" or STOPPED not in state.places:
            return False
        if isinstance(state.waiters[p], Parked):
            return not self._is_admitted(state, p)
        can_be_had = any(slot is FREE or self._is_abandoned(state, slot) for slot in state.slots)
        has_all = self._granted(state, p) >= self.needs[p]
        return isinstance(state.waiters[p], Wait) and state.places[0] == STOPPED and not (can_be_had or has_all)

    def violation(self, state: State) -> str | None:
        """See the module."""
        if state.problem is not None:
            return state.problem
        if self._oversized_count(state) > self.bounds.cap:
            return "more oversized slots than the cap allows"
        if state.places[0] != DEAD and 2 * self._stuck_count(state) > self.bounds.slot_count:
            return "stuck partitions hold more than half of the slots"
        if self._has_sleeper_beside_free_slot(state):
            return "a waiter sleeps although a slot that it may have is free, and no process is about to grant it"
        if self._fast_path_is_closed(state):
            return "the fast path is closed although no waiter waits"
        if self.is_good(state) and not self._is_clean(self._repaired(state), state):
            return "a repair leaves a slot or a waiter that it must free"
        return None

    def _is_undisturbed(self, state: State) -> bool:
        return state.deaths_left == self.bounds.deaths and state.stops_left == self.bounds.stops

    def _stuck_count(self, state: State) -> int:
        return sum(
            (slot.process if isinstance(slot, Owned) else slot.waiter) in self.bounds.stuck
            for slot in state.slots
            if slot is not FREE
        )

    def _has_sleeper_beside_free_slot(self, state: State) -> bool:
        return (
            self._is_undisturbed(state)
            and all(place in (DONE, "wait") for place in state.places)
            and any(slot is FREE or self._is_abandoned(state, slot) for slot in state.slots)
            and (self._next_waiter(state) is not None or self._has_parked_waiter_that_fits(state))
        )

    def _has_parked_waiter_that_fits(self, state: State) -> bool:
        """True if a parked waiter fits, unless it may still find the slots at the end of its slice.

        That is how it finds slots of a waiter that gave up, and those of a revoked grant.
        """
        may_be_late = state.cancels_left < self.bounds.cancels or self.bounds.stops > 0
        return not may_be_late and self._next_parked(state, 0) is not None

    def _fast_path_is_closed(self, state: State) -> bool:
        return (
            self._is_undisturbed(state)
            and state.lock is None
            and state.waiting_count > 0
            and not any(isinstance(word, Wait) for word in state.waiters)
        )

    def _repaired(self, state: State) -> State:
        while (step := self._repair_step(state) or self._fix_step(state)) is not None:
            state = step
        return state

    def _is_clean(self, state: State, former: State) -> bool:
        """True if a repair has freed everything. A stopped waiter keeps its place, and its grants unless it is parked.
        A stopped sender keeps its slots.

        A parked waiter does not repair. If dead processes have the slots that it needs, it waits for the sender.
        """

        def is_kept(slot: Slot) -> bool:
            if isinstance(slot, Grant):
                return may_wait(slot.waiter) and not isinstance(state.waiters[slot.waiter], Parked)
            return isinstance(slot, Owned) and slot.process == 0 and state.places[0] == STOPPED

        def may_wait(p: int) -> bool:
            return state.places[p] == STOPPED or self._must_stay(former, p)

        return (
            all(slot is FREE or is_kept(slot) for slot in state.slots)
            and state.waiting_count == sum(isinstance(word, Wait) for word in state.waiters)
            and all(word is IDLE or may_wait(p) for p, word in enumerate(state.waiters))
        )

    # ---- fix and repair: one store at a time, from shared words alone ----

    def _oversized_count(self, state: State) -> int:
        return sum(
            slot.is_chain if isinstance(slot, Owned) else self.needs[slot.waiter] > 1
            for slot in state.slots
            if slot is not FREE
        )

    def _granted(self, state: State, waiter: int) -> int:
        word = state.waiters[waiter]
        return 0 if word is IDLE else state.slots.count(Grant(waiter, word.ticket))

    def _is_eligible(self, state: State, waiter: int) -> bool:
        need = self.needs[waiter]
        if need == 1 or self.mutation == "no cap":
            return True
        return self._oversized_count(state) + need - self._granted(state, waiter) <= self.bounds.cap

    def _is_admitted(self, state: State, p: int) -> bool:
        """True if the process may open a batch. If the sender (process 0) is dead, its marks do not apply."""
        free = state.slots.count(FREE)
        is_stuck = p in self.bounds.stuck and state.places[0] != DEAD
        return not is_stuck or 2 * (free - self.needs[p] + 1) > self.bounds.slot_count

    def _next_parked(self, state: State, poster: int) -> int | None:
        """The parked waiter with the lowest ticket that fits, was not posted, and is not the process that posts."""
        parked = [
            (word.ticket, p)
            for p, word in enumerate(state.waiters)
            if isinstance(word, Parked) and p != poster and not state.posted[p] and self._is_admitted(state, p)
        ]
        return min(parked)[1] if parked else None

    def _served(self) -> tuple[type[Wait | Parked], ...]:
        return (Wait, Parked) if self.mutation == "parked waiter served" else (Wait,)

    def _next_waiter(self, state: State) -> int | None:
        waiting = [(word.ticket, p) for p, word in enumerate(state.waiters) if isinstance(word, self._served())]
        if self.mutation == "newest waiter first":
            waiting = [(-ticket, p) for ticket, p in waiting]
        normal = min((item for item in waiting if self.needs[item[1]] == 1), default=None)
        oversized = min((item for item in waiting if self.needs[item[1]] > 1), default=None)
        if oversized is not None and self._is_eligible(state, oversized[1]):
            return min(item for item in (normal, oversized) if item is not None)[1]
        return None if normal is None else normal[1]

    def _fix_step(self, state: State) -> State | None:
        for p, word in enumerate(state.waiters):
            if isinstance(word, Parked) and self.mutation == "helper ends parking":
                return state._replace(waiters=_replace(state.waiters, p, Wait(word.ticket, word.need)))
        for p, word in enumerate(state.waiters):
            if isinstance(word, self._served()) and self._granted(state, p) >= word.need:
                return self._serve(state, p, word)
        waiter = self._next_waiter(state)
        if FREE in state.slots and waiter is not None:
            word = state.waiters[waiter]
            assert word is not IDLE
            grant = Grant(waiter, word.ticket)
            slots = _replace(state.slots, state.slots.index(FREE), grant)
            return state._replace(slots=slots, problem=self._order_problem(state, word))
        counted = (Wait, Parked) if self.mutation == "parked waiter counted" else (Wait,)
        waiting = sum(isinstance(word, counted) for word in state.waiters)
        return state._replace(waiting_count=waiting) if state.waiting_count != waiting else None

    @staticmethod
    def _serve(state: State, p: int, word: Wait | Parked) -> State:
        return state._replace(waiters=_replace(state.waiters, p, Got(word.ticket, word.need)))

    @staticmethod
    def _order_problem(state: State, word: Wait | Parked | Got) -> str | None:
        is_late = any(
            isinstance(other, Wait) and other.ticket < word.ticket and (other.need > 1) == (word.need > 1)
            for other in state.waiters
        )
        return "a later ticket was served before an earlier one" if is_late else state.problem

    def _repair_step(self, state: State) -> State | None:
        if self.mutation == "no repair":
            return None
        for p, word in enumerate(state.waiters):
            if word is not IDLE and state.places[p] == DEAD:
                return state._replace(waiters=_replace(state.waiters, p, IDLE))
        for index, slot in enumerate(state.slots):
            if self._is_abandoned(state, slot):
                return state._replace(slots=_replace(state.slots, index, FREE))
        return None

    def _is_abandoned(self, state: State, slot: Slot) -> bool:
        if isinstance(slot, Owned):
            return state.places[slot.process] == DEAD
        if isinstance(slot, Grant):
            word = state.waiters[slot.waiter]
            is_parked = isinstance(word, Parked) and self.mutation not in (
                "grants of a parked waiter not freed",
                "parked waiter served",
            )
            return word is IDLE or is_parked or word.ticket != slot.ticket
        return False

    # ---- next steps ----

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield the next step of each process, or its death or stop instead."""
        for p, place in enumerate(state.places):
            if place in (DEAD, STOPPED):
                continue
            if place == DONE:
                yield from self._maintain(state, p)
                continue
            for label, successor in self._process_steps(state, p, place):
                yield f"process {p}: {label}", successor
            if state.deaths_left > 0:
                dead = _replace(state.places, p, DEAD)
                yield f"process {p} is killed", state._replace(places=dead, deaths_left=state.deaths_left - 1)
            if state.stops_left > 0 and self._may_be_stopped(state, p, place):
                stopped = _replace(state.places, p, STOPPED)
                yield f"process {p} is stopped", state._replace(places=stopped, stops_left=state.stops_left - 1)

    def _maintain(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        """Yield the repair by the sender after deaths. Parked waiters do not repair."""
        if p == 0 and self.bounds.stuck and self._repair_step(state) is not None:
            yield "process 0: repairs after dead processes", self._at(state, p, f"lock:repair:fix:unlock:post:{DONE}")

    def _may_be_stopped(self, state: State, p: int, place: str) -> bool:
        """True where the process neither holds the pool lock nor owns slots."""
        if p == 0:
            return bool(self.bounds.stuck) and place in ("give back", "look", "post:give back")
        return state.waiters[p] is not IDLE and (place == "wait" or place.startswith("lock:"))

    def _has_turns(self, state: State, p: int) -> bool:
        """True if p has turns. Only the first parked waiter that lives and runs has them."""
        if self.mutation == "parked waiter has no turns":
            return False
        absent = () if self.mutation == "turn of an absent waiter" else (DEAD, STOPPED)
        parked = [
            other
            for other, word in enumerate(state.waiters)
            if isinstance(word, Parked) and state.places[other] not in absent
        ]
        return parked[:1] == [p]

    def _process_steps(self, state: State, p: int, place: str) -> Iterator[tuple[str, State]]:
        kind, _, after = place.partition(":")
        if kind == "lock":
            yield from self._lock_steps(state, p, after)
        elif kind == "repair":
            yield from self._run(state, p, self._repair_step(state), "repairs", after)
        elif kind == "fix":
            yield from self._run(state, p, self._fix_step(state), "fixes", after)
        elif kind == "void":
            yield from self._run(state, p, self._void_step(state), "frees a revoked grant", after)
        elif kind == "revoke":
            yield from self._revoke(state, p, after)
        elif kind == "post":
            yield from self._post(state, p, after)
        elif kind.startswith("word of "):
            yield "stores PARKED after the grants are free", self._at(self._park(state, int(kind[8:])), p, after)
        elif kind == "unlock":
            yield "unlocks", self._at(state._replace(lock=None), p, after)
        else:
            yield from getattr(self, "_" + kind.replace(" ", "_"))(state, p)

    @staticmethod
    def _at(state: State, p: int, place: str) -> State:
        return state._replace(places=_replace(state.places, p, place))

    def _run(self, state: State, p: int, step: State | None, label: str, after: str) -> Iterator[tuple[str, State]]:
        yield (label, step) if step is not None else (f"has nothing to do ({label})", self._at(state, p, after))

    def _lock_steps(self, state: State, p: int, after: str) -> Iterator[tuple[str, State]]:
        if state.lock is None:
            yield "locks", self._at(state._replace(lock=(p, False)), p, after)
        elif state.places[state.lock[0]] == DEAD and self.mutation != "dead lock owner keeps the lock":
            yield "steals the lock", self._at(state._replace(lock=(p, True)), p, f"repair:{after}")

    def _revoke(self, state: State, p: int, after: str) -> Iterator[tuple[str, State]]:
        """Yield each possible revocation of a grant, which stores the word first and then frees the slots."""
        yield "revokes nothing", self._at(state, p, after)
        for other, word in enumerate(state.waiters):
            if other != p and word is not IDLE and self._may_revoke(state, other):
                if self.mutation in ("revocation keeps the word", "revocation frees slots first"):
                    late = after if self.mutation == "revocation keeps the word" else f"word of {other}:{after}"
                    grant = Grant(other, word.ticket)
                    slots = tuple(FREE if slot == grant else slot for slot in state.slots)
                    waiters = state.waiters
                    if self.mutation == "revocation keeps the word" and isinstance(word, Got):
                        waiters = _replace(waiters, other, Wait(word.ticket, word.need))
                    yield (
                        f"frees the grants of {other}",
                        self._at(state._replace(slots=slots, waiters=waiters), p, late),
                    )
                else:
                    yield f"parks {other}", self._at(self._park(state, other), p, f"void:{after}")

    def _post(self, state: State, p: int, after: str) -> Iterator[tuple[str, State]]:
        parked = None if self.mutation == "parked waiter not posted" else self._next_parked(state, p)
        if parked is None:
            yield "posts no other waiter", self._at(state, p, after)
        else:
            yield f"posts {parked}", state._replace(posted=_replace(state.posted, parked, True))

    def _may_revoke(self, state: State, waiter: int) -> bool:
        if self.mutation == "no revocation" or FREE in state.slots or self._granted(state, waiter) == 0:
            return False
        others = state._replace(waiters=_replace(state.waiters, waiter, IDLE))
        return self._next_waiter(others) is not None

    @staticmethod
    def _park(state: State, waiter: int) -> State:
        word = state.waiters[waiter]
        if word is IDLE:
            return state
        return state._replace(waiters=_replace(state.waiters, waiter, Parked(word.ticket, word.need)))

    def _void_step(self, state: State) -> State | None:
        for index, slot in enumerate(state.slots):
            if isinstance(slot, Grant) and state.waiters[slot.waiter] == Parked(slot.ticket, self.needs[slot.waiter]):
                return state._replace(slots=_replace(state.slots, index, FREE))
        return None

    def _begin(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        is_open = state.waiting_count == 0 or self.mutation == "arrivals pass waiters"
        may_go = self.needs[p] == 1 and is_open and p not in self.bounds.stuck
        yield "reads waiting_count", self._at(state, p, "fast" if may_go else "lock:ticket")

    def _fast(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        if FREE in state.slots:
            slots = _replace(state.slots, state.slots.index(FREE), Owned(p, False))
            state = state._replace(slots=slots)
            if self.mutation == "arrivals pass waiters" and any(isinstance(word, Wait) for word in state.waiters):
                state = state._replace(problem="a new arrival passed waiting processes")
            yield "takes a free slot", self._at(state, p, "give back")
        else:
            yield "finds no free slot", self._at(state, p, "lock:ticket")

    def _ticket(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        tickets = _replace(state.tickets, p, state.next_ticket)
        state = state._replace(tickets=tickets, next_ticket=state.next_ticket + 1)
        is_early = self.mutation == "limit checked before PARKED" and not self._is_admitted(state, p)
        yield "takes a ticket", self._at(state, p, "park for a slice" if is_early else "store parked")

    def _own_word_parked(self, state: State, p: int) -> State:
        parked = Parked(state.tickets[p], self.needs[p])
        return state._replace(waiters=_replace(state.waiters, p, parked))

    def _store_parked(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        yield "stores PARKED", self._at(self._own_word_parked(state, p), p, "admit")

    def _park_for_a_slice(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        yield "stores PARKED and does not check the limit", self._at(self._own_word_parked(state, p), p, "unlock:wait")

    def _admit(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        """Yield the check of the limit. Only the owner ends its parking, and holds the lock then."""
        if not isinstance(state.waiters[p], Parked):
            yield "finds that it is no longer parked", self._at(state, p, "unlock:wait")
        elif self._is_admitted(state, p):
            raised = state.waiting_count + (self.mutation != "waiting_count not raised")
            yield "raises waiting_count", self._at(state._replace(waiting_count=raised), p, "queue")
        else:
            yield "stays parked", self._at(state, p, "fix:unlock:wait")

    def _queue(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        waiters = _replace(state.waiters, p, Wait(state.tickets[p], self.needs[p]))
        after = "unlock:wait" if self.mutation == "waiting_count not raised" else "fix:unlock:wait"
        yield "stores WAIT", self._at(state._replace(waiters=waiters), p, after)

    def _wait(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        word = state.waiters[p]
        if isinstance(word, Got):
            blindly = " blindly" if self.mutation == "GOT not checked again" else ""
            yield "sees its grant", self._at(state, p, f"lock:take{blindly}")
            return
        if isinstance(word, Parked):
            if state.posted[p] or self._has_turns(state, p):
                state_after = state._replace(posted=_replace(state.posted, p, False))
                posts = "post:" if self._has_turns(state, p) and self.mutation != "turn without posts" else ""
                yield "checks the limit", self._at(state_after, p, f"{posts}lock:admit")
        elif self.mutation != "waiters do not help":
            revokes = "revoke:fix:" if self.bounds.stops > 0 else ""
            yield "helps", self._at(state, p, f"lock:repair:fix:{revokes}unlock:wait")
        if state.cancels_left > 0:
            yield "gives up", self._at(state._replace(cancels_left=state.cancels_left - 1), p, "lock:cancel")

    def _take(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        """Yield the second check of the word. The grant may have been revoked since the owner saw GOT."""
        if not isinstance(state.waiters[p], Got):
            yield "finds that its grant was revoked", self._at(state, p, "unlock:wait")
        elif self.mutation == "limit checked after a grant" and not self._is_admitted(state, p):
            yield "parks with its grant", self._at(self._park(state, p), p, "void:fix:unlock:wait")
        else:
            yield from self._take_blindly(state, p)

    def _take_blindly(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        granted = Grant(p, state.tickets[p])
        if granted in state.slots:
            slots = _replace(state.slots, state.slots.index(granted), Owned(p, self.needs[p] > 1))
            yield "takes a grant", state._replace(slots=slots)
        else:
            if state.slots.count(Owned(p, self.needs[p] > 1)) != self.needs[p]:
                state = state._replace(problem="a waiter takes slots that it was not granted")
            waiters = _replace(state.waiters, p, IDLE)
            yield "leaves the queue", self._at(state._replace(waiters=waiters), p, "unlock:give back")

    def _cancel(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        if isinstance(state.waiters[p], Got):
            apart = self.mutation == "cancel and take in two steps"
            yield "was served meanwhile", self._at(state, p, "unlock:lock:take blindly" if apart else "take")
        else:
            waiters = _replace(state.waiters, p, IDLE)
            yield "leaves the queue", self._at(state._replace(waiters=waiters), p, "void grants")

    def _void_grants(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        granted = Grant(p, state.tickets[p])
        if granted in state.slots and self.mutation != "cancel keeps grants":
            slots = _replace(state.slots, state.slots.index(granted), FREE)
            yield "frees a grant", state._replace(slots=slots)
        else:
            yield "has no grants", self._at(state, p, f"fix:unlock:{DONE}")

    def _give_back(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        if self.needs[p] > 1:
            yield "begins to free a chain", self._at(state, p, "lock:give back chain")
            return
        mine = Owned(p, False)
        if mine in state.slots:
            slots = _replace(state.slots, state.slots.index(mine), FREE)
            yield "frees a slot", self._at(state._replace(slots=slots), p, "look")
        else:
            yield "has freed all of its slots", self._at(state, p, DONE)

    def _look(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        after = "post:give back" if self.bounds.stuck else "give back"
        after = f"lock:fix:unlock:{after}" if state.waiting_count > 0 else after
        yield "checks whether a process waits", self._at(state, p, after)

    def _give_back_chain(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        mine = Owned(p, True)
        if mine in state.slots:
            slots = _replace(state.slots, state.slots.index(mine), FREE)
            yield "frees a slot of its chain", state._replace(slots=slots)
        else:
            after = f"fix:unlock:post:{DONE}" if self.bounds.stuck else f"fix:unlock:{DONE}"
            yield "has freed its chain", self._at(state, p, after)
