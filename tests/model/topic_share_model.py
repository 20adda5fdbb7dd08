# SPDX-License-Identifier: Apache-2.0
"""The limits of topics and of stuck partitions as a model: openers, a sender, and the two sums of a topic.

One step of the model is one access to shared memory, as ``native/arena/topic_share.h`` describes it; any process may
die before any of them, the sender too. Each opener opens ``rounds`` batches of its topic, each of ``need`` slots. It
checks the limits in one step and takes the slots in another, so other processes may open batches in between.
``pool_model.py`` models the queue of the pool. Here, an opener that does not fit is parked, and checks again.

    slot       FREE | Owned(process) | Open(topic)
    opened     per topic: slots that its batches took, added by the opener after OPEN
    released   per topic: slots of its batches that became free, stored by the sender before FREE

The sender frees batches. A new sender takes over from a dead one, and a sender repairs after dead openers. After each
of the two it recounts ``released``: it reads ``opened``, counts the slots, reads ``opened`` again, and stores the
difference if the two are equal. It may do so at any other time as well (once per second in the code). A recount omits
the slots of stuck topics, and the sender adds nothing to ``released`` for them. It may mark a topic as stuck, and
remove the mark (``marks``); until the next recount, the sums of that topic are only hints.

A count that reads the slots between an opener's OPEN and its addition stores a value that is wrong by that batch until
the next recount. ``is_raced`` marks these, and ``lost`` the batches whose openers died there.

The explorer checks every state. The sums of a topic never exceed what it has. They are too small only by the batches
that its openers have not added yet. Stuck partitions hold half of the slots, and a topic holds its share, plus one
batch for each opener that checked at the same time. A topic gets no more than its part of the slots that all topics of
at least its size may have together. The share of a topic without slots never rejects its first batch. Slots of stuck
topics never limit a topic that is not stuck. The limits that a sender has set apply only while a sender lives. From
every state an end can be reached in which both sums are equal.

``mutation`` breaks a rule. The explorer must find each one (``MUTATIONS``).
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

FREE = None
DEAD = "dead"
DONE = "done"
ABSENT = "absent"


NO_RECOUNT = (0, 0, 0, 0, 0)  # topic, next slot, count, `opened` and `lost` at its start


class Owned(NamedTuple):
    """A slot of a process, in no batch yet."""

    process: int
    tag: str = "owned"


class Open(NamedTuple):
    """A slot of a batch."""

    topic: int
    tag: str = "open"


class Done(NamedTuple):
    """A slot of a batch that was acknowledged."""

    topic: int
    is_released: bool
    tag: str = "done"


Slot = Owned | Open | Done | None

MUTATIONS = {
    "added before OPEN": (
        "an opener adds to `opened` before it stores OPEN, so the sum counts a slot that a death frees"
    ),
    "freed before released": (
        "the sender stores FREE before it adds to `released`, so the sums count a slot that is free"
    ),
    "no recount at takeover": (
        "a new sender continues with the sum of a dead one, which may have freed less than it added"
    ),
    "no recount after a death": "a sender never recounts after the death of an opener, so the sums stay wrong",
    "recount without a second read": (
        "a recount does not read `opened` again, so a batch that is opened meanwhile makes the sums too large"
    ),
    "chain adds one": "an opener adds one slot for a chain, so the sums are less than the slots of the topic",
    "negative difference not clamped": (
        "a difference below 0 is read as a large number, so a topic without slots is rejected"
    ),
    "no first batch": "a topic without slots needs space in its share, so its first batch is rejected",
    "marks of a dead sender apply": (
        "the marks of a dead sender still apply, so a limit exists although no sender lives"
    ),
    "chain checked as one slot": (
        "the limit is checked as if a chain were one slot, so stuck partitions exceed half of the slots"
    ),
    "no limit for stuck partitions": (
        "a stuck partition opens a batch while any slot is free, so it exceeds half of the slots"
    ),
    "no limit for topics": "a topic opens a batch while any slot is free, so it exceeds its part",
    "half for each stuck partition": "each stuck partition may have half of the slots, so together they have more",
    "share ignores other topics": (
        "a share depends on the slots of its own topic alone, so large topics together exceed their part"
    ),
    "stuck slots counted": "a recount counts the slots of stuck topics, so these limit topics that are not stuck",
}


class Bounds(NamedTuple):
    """The size of a model. Openers are numbered from 1."""

    topics: tuple[int, ...]  # of each opener
    slot_count: int
    needs: tuple[int, ...] = (1, 1, 1)
    rounds: int = 1
    deaths: int = 0
    factor: Fraction = Fraction(0)
    stuck: frozenset[int] = frozenset()  # topics whose partitions are stuck from the beginning
    marks: int = 0  # how often the sender may mark a topic or remove a mark


class State(NamedTuple):
    """The shared state, the current step of each process, and the history for the checks."""

    slots: tuple[Slot, ...]
    opened: tuple[int, ...]
    released: tuple[int, ...]
    places: tuple[str, ...]  # of the sender, then of the openers
    rounds: tuple[int, ...]
    deaths_left: int
    recount: tuple[int, int, int, int, int] = NO_RECOUNT
    is_raced: tuple[bool, ...] = ()
    lost: tuple[int, ...] = ()
    stuck: frozenset[int] = frozenset()
    marks_left: int = 0
    hints: frozenset[int] = frozenset()  # topics whose sums are not exact until the next recount
    problem: str | None = None


def _replace(items: tuple[Any, ...], index: int, item: object) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


class TopicShareModel:
    """See the module."""

    def __init__(self, bounds: Bounds, mutation: str = ""):
        self.bounds = bounds
        self.mutation = mutation
        self.topic_count = max(bounds.topics) + 1

    def initial(self) -> State:
        """The state in which all slots are free."""
        zeros = (0,) * self.topic_count
        openers = len(self.bounds.topics)
        return State(
            slots=(FREE,) * self.bounds.slot_count,
            opened=zeros,
            released=zeros,
            places=("rest", *("look",) * openers),
            rounds=(0, *(self.bounds.rounds,) * openers),
            deaths_left=self.bounds.deaths,
            is_raced=(False,) * self.topic_count,
            lost=zeros,
            stuck=self.bounds.stuck,
            marks_left=self.bounds.marks,
            hints=self.bounds.stuck,
        )

    # ---- rules ----

    def is_good(self, state: State) -> bool:
        """True if openers are finished or dead, all slots are free, and the sums are equal."""
        return (
            state.places[0] == "rest"
            and all(place in (DONE, DEAD) for place in state.places[1:])
            and all(slot is FREE for slot in state.slots)
            and state.opened == state.released
        )

    def violation(self, state: State) -> str | None:
        """See the module."""
        if state.problem is not None:
            return state.problem
        for topic in range(self.topic_count):
            problem = self._sum_problem(state, topic)
            if problem is not None:
                return problem
        return self._limit_problem(state)

    def _truth(self, state: State, topic: int) -> int:
        return sum(isinstance(slot, Open | Done) and slot.topic == topic for slot in state.slots)

    @staticmethod
    def _released_count(state: State, topic: int) -> int:
        """The slots that the sender has added to `released`, and stores FREE next."""
        return sum(isinstance(slot, Done) and slot.is_released and slot.topic == topic for slot in state.slots)

    def _pending(self, state: State, topic: int) -> int:
        return sum(
            self.bounds.needs[p]
            for p, place in enumerate(state.places[1:])
            if place == "add" and self.bounds.topics[p] == topic
        )

    def _sum_problem(self, state: State, topic: int) -> str | None:
        held = state.opened[topic] - state.released[topic]
        truth = self._truth(state, topic)
        if topic in state.stuck or topic in state.hints:
            return None
        if held > truth and not state.is_raced[topic]:
            return "the sums of a topic exceed its slots"
        if state.places[0] == ABSENT or state.places[0].startswith("recount"):
            return None  # a new sender recounts before it frees a slot
        if held < truth - self._pending(state, topic) - state.lost[topic] - self._released_count(state, topic):
            return "the sums of a topic are less than its slots"
        return None

    def _limit_problem(self, state: State) -> str | None:
        """Each opener that has checked may open one batch, although others have opened batches since its check."""
        count, bounds = self.bounds.slot_count, self.bounds
        has_sender = state.deaths_left == bounds.deaths
        stuck_needs = [need for need, topic in zip(bounds.needs, bounds.topics, strict=False) if topic in bounds.stuck]
        stuck = sum(self._truth(state, topic) for topic in bounds.stuck)
        has_stayed_stuck = bool(bounds.stuck) and not bounds.marks and has_sender
        if has_stayed_stuck and 2 * stuck > count + 2 * (sum(stuck_needs) - max(stuck_needs)):
            return "stuck partitions hold more than half of the slots"
        if bounds.factor == 0 or not has_sender or bounds.marks:
            return None
        for topic in range(self.topic_count):
            needs = [need for need, other in zip(bounds.needs, bounds.topics, strict=False) if other == topic]
            share = bounds.factor / (1 + bounds.factor) * (count + max(needs))
            others = sum(needs) - max(needs)
            held = self._truth(state, topic) - self._released_count(state, topic)
            if held > max(Fraction(max(needs)), share) + others:
                return "a topic holds more than its share"
        return None

    # ---- the limits ----

    def _is_admitted(self, state: State, p: int) -> bool:
        topic, need = self.bounds.topics[p - 1], self.bounds.needs[p - 1]
        need = 1 if self.mutation == "chain checked as one slot" else need
        return self._stuck_admits(state, topic, need) and self._share_admits(state, topic, need)

    def _stuck_admits(self, state: State, topic: int, need: int) -> bool:
        has_sender = state.places[0] != ABSENT or self.mutation == "marks of a dead sender apply"
        if topic not in state.stuck or not has_sender or self.mutation == "no limit for stuck partitions":
            return True
        free = state.slots.count(FREE)
        if self.mutation == "half for each stuck partition":
            free = self.bounds.slot_count - self._truth(state, topic)
        return 2 * (free - need + 1) > self.bounds.slot_count

    def _share_admits(self, state: State, topic: int, need: int) -> bool:
        if self.bounds.factor == 0 or self.mutation == "no limit for topics":
            return True
        held = self._held(state, topic)
        if held == 0 and self.mutation != "no first batch":
            return True
        wanted = held + need
        others = [self._held(state, other) for other in range(self.topic_count) if other != topic]
        if self.mutation == "share ignores other topics":
            others = []
        return wanted + sum(min(held, wanted) for held in others) <= self.bounds.factor * state.slots.count(FREE)

    def _held(self, state: State, topic: int) -> int:
        held = state.opened[topic] - state.released[topic]
        return held if held >= 0 else 1 << 64 if self.mutation == "negative difference not clamped" else 0

    # ---- next steps ----

    def steps(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield the next step of each process, or its death instead."""
        yield from self._sender_steps(state)
        for p, place in enumerate(state.places):
            if p > 0 and place not in (DONE, DEAD):
                for label, successor in getattr(self, "_" + place)(state, p):
                    yield f"opener {p}: {label}", successor
            if state.deaths_left > 0 and place not in (DONE, DEAD, ABSENT):
                yield f"process {p} is killed", self._killed(state, p)

    def _killed(self, state: State, p: int) -> State:
        lost = state.lost
        if state.places[p] == "add":
            topic = self.bounds.topics[p - 1]
            lost = _replace(lost, topic, lost[topic] + self.bounds.needs[p - 1])
        places = _replace(state.places, p, DEAD if p > 0 else ABSENT)
        return state._replace(places=places, deaths_left=state.deaths_left - 1, lost=lost)

    @staticmethod
    def _at(state: State, p: int, place: str) -> State:
        return state._replace(places=_replace(state.places, p, place))

    def _look(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        topic, need = self.bounds.topics[p - 1], self.bounds.needs[p - 1]
        if state.rounds[p] == 0:
            yield "has opened all", self._at(state, p, DONE)
        elif self._is_admitted(state, p):
            if state.slots.count(FREE) >= need:
                yield "fits", self._at(self._admitted(state, topic, need), p, "allocate")
        else:
            yield "does not fit", self._refused(state, topic, need)

    def _is_exact(self, state: State) -> bool:
        """True if the sums of all topics are equal to the numbers of their slots."""
        return (
            not state.hints
            and not any(state.is_raced)
            and not any(state.lost)
            and not any(place == "add" for place in state.places)
            and not any(isinstance(slot, Done) and slot.is_released for slot in state.slots)
        )

    def _parts(self, state: State, topic: int, wanted: int) -> list[int]:
        """The share of each topic that is not stuck in `wanted`; `topic` has all of it."""
        topics = set(range(self.topic_count)) - state.stuck
        return [wanted if other == topic else min(self._truth(state, other), wanted) for other in topics]

    def _admitted(self, state: State, topic: int, need: int) -> State:
        """Check an opener that was admitted. This sum has all slots of topics that are at least as large."""
        truth = self._truth(state, topic)
        if self.bounds.factor == 0 or topic in state.stuck or truth == 0 or not self._is_exact(state):
            return state
        large = sum(part == truth + need for part in self._parts(state, topic, truth + need))
        if large * (truth + need) > self.bounds.factor * state.slots.count(FREE):
            return state._replace(problem="large topics hold more than their part")
        return state

    def _refused(self, state: State, topic: int, need: int) -> State:
        if topic not in state.stuck and self._is_exact(state):
            parts = self._parts(state, topic, self._truth(state, topic) + need)
            if sum(parts) <= self.bounds.factor * state.slots.count(FREE):
                return state._replace(problem="a topic is rejected because of slots of stuck topics")
        is_hint = state.is_raced[topic] or topic in state.hints
        holds_nothing = self._truth(state, topic) == 0 and not is_hint
        if holds_nothing and not self._share_admits(state, topic, need):
            return state._replace(problem="a topic without slots is rejected")
        if state.places[0] == ABSENT and not self._stuck_admits(state, topic, need):
            return state._replace(problem="a limit applies although no sender lives")
        return state

    def _allocate(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        need = self.bounds.needs[p - 1]
        slots = state.slots
        if slots.count(FREE) < need:
            yield "finds too few slots", self._at(state, p, "look")
            return
        for _ in range(need):
            slots = _replace(slots, slots.index(FREE), Owned(p))
        after = "add" if self.mutation == "added before OPEN" else "open"
        yield "takes slots", self._at(state._replace(slots=slots), p, after)

    def _open(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        topic = self.bounds.topics[p - 1]
        slots = tuple(Open(topic) if slot == Owned(p) else slot for slot in state.slots)
        state = state._replace(slots=slots)
        if self.mutation == "added before OPEN":
            yield "opens its batch", self._next_round(state, p)
        else:
            yield "opens its batch", self._at(state, p, "add")

    def _add(self, state: State, p: int) -> Iterator[tuple[str, State]]:
        topic = self.bounds.topics[p - 1]
        need = 1 if self.mutation == "chain adds one" else self.bounds.needs[p - 1]
        hints = state.hints | ({topic} & state.stuck)
        state = state._replace(opened=_replace(state.opened, topic, state.opened[topic] + need), hints=hints)
        if self.mutation == "added before OPEN":
            yield "adds its batch", self._at(state, p, "open")
        else:
            yield "adds its batch", self._next_round(state, p)

    def _next_round(self, state: State, p: int) -> State:
        state = state._replace(rounds=_replace(state.rounds, p, state.rounds[p] - 1))
        return self._at(state, p, "look")

    # ---- the sender ----

    def _sender_steps(self, state: State) -> Iterator[tuple[str, State]]:
        place = state.places[0]
        if place == ABSENT:
            after = "rest" if self.mutation == "no recount at takeover" else "recount"
            yield "a sender takes over", self._begin_recount(state, 0, after)
        elif place == "rest":
            yield from self._free(state)
            yield from self._repair(state)
            yield from self._mark(state)
            if self.mutation != "no recount after a death":
                for topic in range(self.topic_count):
                    yield f"the sender recounts topic {topic}", self._begin_recount(state, topic, "recount one")
        elif place.startswith("recount"):
            yield from self._recount(state)
        else:
            yield from self._free_on(state, int(place.removeprefix("frees ")))

    def _mark(self, state: State) -> Iterator[tuple[str, State]]:
        if state.marks_left == 0:
            return
        for topic in range(self.topic_count):
            changed = state._replace(
                stuck=state.stuck ^ {topic}, hints=state.hints | {topic}, marks_left=state.marks_left - 1
            )
            yield f"the sender marks topic {topic}, or removes its mark", changed

    def _free(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield the steps that free a slot. One that a dead sender left is already DONE."""
        for index, slot in enumerate(state.slots):
            if isinstance(slot, Open | Done):
                slots = _replace(state.slots, index, Done(slot.topic, False))
                yield f"the sender completes slot {index}", self._at(state._replace(slots=slots), 0, f"frees {index}")
                return

    def _free_on(self, state: State, index: int) -> Iterator[tuple[str, State]]:
        slot = state.slots[index]
        late = self.mutation == "freed before released"
        if isinstance(slot, Done) and not slot.is_released:
            count = 0 if slot.topic in state.stuck else 1
            released = _replace(state.released, slot.topic, state.released[slot.topic] + count)
            if late:
                state = state._replace(slots=_replace(state.slots, index, Done(slot.topic, True)))
                yield "the sender frees it", state._replace(slots=_replace(state.slots, index, FREE), problem=None)
                return
            slots = _replace(state.slots, index, Done(slot.topic, True))
            yield "the sender releases it", state._replace(slots=slots, released=released)
        else:
            slots = _replace(state.slots, index, FREE)
            yield "the sender frees it", self._at(state._replace(slots=slots), 0, "rest")

    def _repair(self, state: State) -> Iterator[tuple[str, State]]:
        for p, place in enumerate(state.places):
            if place == DEAD and Owned(p) in state.slots:
                slots = tuple(FREE if slot == Owned(p) else slot for slot in state.slots)
                yield f"the sender repairs after {p}", state._replace(slots=slots)

    # ---- a recount ----

    def _begin_recount(self, state: State, topic: int, place: str) -> State:
        return self._at(state._replace(recount=(topic, 0, 0, state.opened[topic], state.lost[topic])), 0, place)

    def _recount(self, state: State) -> Iterator[tuple[str, State]]:
        topic, index, count, opened, lost = state.recount
        if index < len(state.slots):
            slot = state.slots[index]
            is_left_out = topic in state.stuck and self.mutation != "stuck slots counted"
            count += isinstance(slot, Open | Done) and slot.topic == topic and not is_left_out
            yield "the sender counts a slot", state._replace(recount=(topic, index + 1, count, opened, lost))
            return
        if opened == state.opened[topic] or self.mutation == "recount without a second read":
            pending = self._pending(state, topic)
            state = state._replace(
                released=_replace(state.released, topic, opened - count),
                is_raced=_replace(state.is_raced, topic, pending > 0),
                lost=_replace(state.lost, topic, state.lost[topic] - lost),
                hints=state.hints - {topic},
            )
        elif state.places[0] == "recount":
            yield "the sender counts again", self._begin_recount(state, topic, "recount")
            return
        yield "the sender has recounted", self._after_recount(state, topic)

    def _after_recount(self, state: State, topic: int) -> State:
        if state.places[0] == "recount" and topic + 1 < self.topic_count:
            return self._begin_recount(state, topic + 1, "recount")
        return self._at(state._replace(recount=NO_RECOUNT), 0, "rest")
