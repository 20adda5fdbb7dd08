# SPDX-License-Identifier: Apache-2.0
"""The buffer pool as a model: fast path, FIFO queue, oversized requests under a cap, cancellation, deaths.

One step of the model is one store to shared memory, as in ``native/arena/buffer_pool.c``; a process may die before any
of them. Process 0 begins with all slots and gives them back; every other process wants ``needs[p]`` slots, waits if it
must, may give up, and gives back what it got.

    slot    FREE | Grant(waiter, ticket) | Owned(process, is_chain)
    waiter  IDLE | Wait(ticket, need) | Got(ticket, need)          one entry per process
    lock    None | (process, took_over)

The explorer checks every state. The cap holds. Grants are given in the order of the tickets, among normal waiters and
among oversized ones. Without a death no process sleeps beside a slot that it could have. In every final state one
repair by a living process makes everything free. From every state an end can be reached.

``mutation`` leaves something out; each one must be found (``MUTATIONS``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

# Tuples of different kinds would be equal if they held the same numbers: the tag keeps them apart.


class Grant(NamedTuple):
    """A slot promised to a waiter."""

    waiter: int
    ticket: int
    tag: str = "grant"


class Owned(NamedTuple):
    """A slot of a process."""

    process: int
    is_chain: bool
    tag: str = "owned"


class Wait(NamedTuple):
    """A waiter that has not got all it needs."""

    ticket: int
    need: int
    tag: str = "wait"


class Got(NamedTuple):
    """A waiter that may take what it was granted."""

    ticket: int
    need: int
    tag: str = "got"


FREE = None
IDLE = None
DEAD = "dead"
DONE = "done"

Slot = Grant | Owned | None
Waiter = Wait | Got | None


class State(NamedTuple):
    """Everything shared, and where each process stands."""

    lock: tuple[int, bool] | None
    slots: tuple[Slot, ...]
    waiters: tuple[Waiter, ...]
    next_ticket: int
    waiting_count: int
    places: tuple[str, ...]
    tickets: tuple[int, ...]  # the ticket of each process, between its stores
    deaths_left: int
    cancels_left: int
    served_normal: int  # highest ticket that became Got
    served_oversized: int


MUTATIONS = {
    "nosteal": "a lock of the dead is never stolen",
    "norepair": "nobody repairs after the dead",
    "nohelp": "waiters sleep without helping",
    "noraise": "waiting_count is not raised before WAIT",
    "nocleanup": "a cancelled waiter leaves its grants behind",
    "nocap": "the cap of oversized slots is ignored",
    "barging": "new arrivals pass those who wait, under the lock as well",
    "lifo": "the newest waiter is served first",
}


def _replace(items: tuple[Any, ...], index: int, item: object) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


class PoolModel:
    """See the module."""

    def __init__(
        self, needs: tuple[int, ...], slot_count: int, deaths: int, cancels: int, cap: int, mutation: str = ""
    ):
        self.needs = (0, *needs)
        self.slot_count = slot_count
        self.deaths = deaths
        self.cancels = cancels
        self.cap = cap
        self.mutation = mutation

    def initial(self) -> State:
        """Process 0 owns every slot, the others want some."""
        count = len(self.needs)
        return State(
            lock=None,
            slots=(Owned(0, False),) * self.slot_count,
            waiters=(IDLE,) * count,
            next_ticket=0,
            waiting_count=0,
            places=("give back", *("begin",) * (count - 1)),
            tickets=(0,) * count,
            deaths_left=self.deaths,
            cancels_left=self.cancels,
            served_normal=-1,
            served_oversized=-1,
        )

    # ---- rules ----

    def is_good(self, state: State) -> bool:
        """Everybody is done or dead."""
        return all(place in (DONE, DEAD) for place in state.places)

    def violation(self, state: State) -> str | None:
        """See the module."""
        if self._oversized_count(state) > self.cap:
            return "more oversized slots than the cap allows"
        if state.served_normal == -2 or state.served_oversized == -2:
            return "a later ticket was served before an earlier one"
        if self._somebody_sleeps_in_vain(state):
            return "a waiter sleeps beside a slot it could have, and nobody is about to give it"
        if self.is_good(state) and not self._is_clean(self._repaired(state)):
            return "something is left that repair does not free"
        return None

    def _somebody_sleeps_in_vain(self, state: State) -> bool:
        at_rest = all(place in (DONE, "wait") for place in state.places)
        return (
            state.deaths_left == self.deaths
            and at_rest
            and any(slot is FREE or self._is_abandoned(state, slot) for slot in state.slots)
            and self._next_waiter(state) is not None
        )

    def _repaired(self, state: State) -> State:
        while (step := self._repair_step(state) or self._fix_step(state)) is not None:
            state = step
        return state

    @staticmethod
    def _is_clean(state: State) -> bool:
        all_free = all(slot is FREE for slot in state.slots)
        return all_free and state.waiting_count == 0 and all(waiter is IDLE for waiter in state.waiters)

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
        if need == 1 or self.mutation == "nocap":
            return True
        return self._oversized_count(state) + need - self._granted(state, waiter) <= self.cap

    def _next_waiter(self, state: State) -> int | None:
        waiting = [(word.ticket, p) for p, word in enumerate(state.waiters) if isinstance(word, Wait)]
        if self.mutation == "lifo":
            waiting = [(-ticket, p) for ticket, p in waiting]
        normal = min((item for item in waiting if self.needs[item[1]] == 1), default=None)
        oversized = min((item for item in waiting if self.needs[item[1]] > 1), default=None)
        if oversized is not None and self._is_eligible(state, oversized[1]):
            return min(item for item in (normal, oversized) if item is not None)[1]
        return None if normal is None else normal[1]

    def _fix_step(self, state: State) -> State | None:
        for p, word in enumerate(state.waiters):
            if isinstance(word, Wait) and self._granted(state, p) >= word.need:
                return self._serve(state, p, word)
        waiter = self._next_waiter(state)
        if FREE in state.slots and waiter is not None:
            word = state.waiters[waiter]
            assert word is not IDLE
            grant = Grant(waiter, word.ticket)
            return state._replace(slots=_replace(state.slots, state.slots.index(FREE), grant))
        waiting = sum(isinstance(word, Wait) for word in state.waiters)
        return state._replace(waiting_count=waiting) if state.waiting_count != waiting else None

    def _serve(self, state: State, p: int, word: Wait) -> State:
        state = state._replace(waiters=_replace(state.waiters, p, Got(word.ticket, word.need)))
        if word.need == 1:
            order = word.ticket if word.ticket > state.served_normal else -2
            return state._replace(served_normal=order)
        order = word.ticket if word.ticket > state.served_oversized else -2
        return state._replace(served_oversized=order)

    def _repair_step(self, state: State) -> State | None:
        if self.mutation == "norepair":
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
            return word is IDLE or word.ticket != slot.ticket
        return False

    # ---- next steps ----

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Every process takes its next step, or dies instead."""
        for p, place in enumerate(state.places):
            if place in (DONE, DEAD):
                continue
            for label, successor in self._process_steps(state, p, place):
                yield f"process {p}: {label}", successor
            if state.deaths_left > 0:
                dead = _replace(state.places, p, DEAD)
                yield f"process {p} is killed", state._replace(places=dead, deaths_left=state.deaths_left - 1)

    def _process_steps(self, state: State, p: int, place: str) -> Iterator[tuple[str, State]]:
        kind, _, after = place.partition(":")
        if kind == "lock":
            yield from self._lock_steps(state, p, after)
        elif kind == "repair":
            yield from self._run(state, p, self._repair_step(state), "repairs", after)
        elif kind == "fix":
            yield from self._run(state, p, self._fix_step(state), "fixes", after)
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
        elif state.places[state.lock[0]] == DEAD and self.mutation != "nosteal":
            yield "steals the lock", self._at(state._replace(lock=(p, True)), p, f"repair:{after}")

    def _begin(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        may_go = self.needs[p] == 1 and (state.waiting_count == 0 or self.mutation == "barging")
        yield "looks at waiting_count", self._at(state, p, "fast" if may_go else "lock:raise")

    def _fast(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        if FREE in state.slots:
            slots = _replace(state.slots, state.slots.index(FREE), Owned(p, False))
            state = state._replace(slots=slots)
            if self.mutation == "barging" and any(isinstance(word, Wait) for word in state.waiters):
                state = state._replace(served_normal=-2)
            yield "takes a free slot", self._at(state, p, "give back")
        else:
            yield "finds no free slot", self._at(state, p, "lock:raise")

    def _raise(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        raised = state.waiting_count + (self.mutation != "noraise")
        yield "raises waiting_count", self._at(state._replace(waiting_count=raised), p, "ticket")

    def _ticket(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        tickets = _replace(state.tickets, p, state.next_ticket)
        state = state._replace(tickets=tickets, next_ticket=state.next_ticket + 1)
        yield "takes a ticket", self._at(state, p, "queue")

    def _queue(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        waiters = _replace(state.waiters, p, Wait(state.tickets[p], self.needs[p]))
        after = "unlock:wait" if self.mutation == "noraise" else "fix:unlock:wait"
        yield "says that it waits", self._at(state._replace(waiters=waiters), p, after)

    def _wait(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        if isinstance(state.waiters[p], Got):
            yield "sees its grant", self._at(state, p, "lock:take")
            return
        if self.mutation != "nohelp":
            yield "helps", self._at(state, p, "lock:repair:fix:unlock:wait")
        if state.cancels_left > 0:
            yield "gives up", self._at(state._replace(cancels_left=state.cancels_left - 1), p, "lock:cancel")

    def _take(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        word = state.waiters[p]
        granted = Grant(p, state.tickets[p])
        if granted in state.slots:
            slots = _replace(state.slots, state.slots.index(granted), Owned(p, self.needs[p] > 1))
            yield "takes a grant", state._replace(slots=slots)
        else:
            assert isinstance(word, Got)
            yield (
                "leaves the queue",
                self._at(state._replace(waiters=_replace(state.waiters, p, IDLE)), p, "unlock:give back"),
            )

    def _cancel(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        if isinstance(state.waiters[p], Got):
            yield "was served meanwhile", self._at(state, p, "take")
        else:
            waiters = _replace(state.waiters, p, IDLE)
            yield "leaves the queue", self._at(state._replace(waiters=waiters), p, "void grants")

    def _void_grants(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        granted = Grant(p, state.tickets[p])
        if granted in state.slots and self.mutation != "nocleanup":
            slots = _replace(state.slots, state.slots.index(granted), FREE)
            yield "gives a grant back", state._replace(slots=slots)
        else:
            yield "has no grants", self._at(state, p, f"fix:unlock:{DONE}")

    def _give_back(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        if self.needs[p] > 1:
            yield "wants to give back a chain", self._at(state, p, "lock:give back chain")
            return
        mine = Owned(p, False)
        if mine in state.slots:
            slots = _replace(state.slots, state.slots.index(mine), FREE)
            yield "frees a slot", self._at(state._replace(slots=slots), p, "look")
        else:
            yield "has given back all", self._at(state, p, DONE)

    def _look(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        after = "lock:fix:unlock:give back" if state.waiting_count > 0 else "give back"
        yield "looks whether somebody waits", self._at(state, p, after)

    def _give_back_chain(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        mine = Owned(p, True)
        if mine in state.slots:
            slots = _replace(state.slots, state.slots.index(mine), FREE)
            yield "frees a slot of its chain", state._replace(slots=slots)
        else:
            yield "has given back its chain", self._at(state, p, f"fix:unlock:{DONE}")
