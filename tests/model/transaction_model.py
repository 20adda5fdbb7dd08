# SPDX-License-Identifier: Apache-2.0
"""The transaction word as a model: appenders, coordinators and senders that may die at any step.

One step of the model is one access to shared memory, as decision 0070 has it. There is one partition. Any appender may
be passed at any time, so all of them run at once; the appender that passes another one seals what ``open`` names and
forgets it, in one step here. An appender that was passed uses no batch that it has read, and takes no number for a new
one. The slots' bytes and hazards are
left to ``lock_model.py``. A record is oversized where its appender is in ``oversized`` (its chain is one slot here).

    word          (number, state, why), and whether OPEN has batches, which is changed together with it
    coordinator   the process that began the transaction; NOBODY: none
    open          (how often it was stored, slot)
    holder        the appender that has the lock of the partition; NOBODY: none
    slot          word (state, generation, records, owner)
    broker        the records that the broker has of its open transaction

A coordinator takes the role, begins, and then commits or aborts: both are tried in every state. It ends a transaction
without batches itself. The sender delivers
while a transaction is open, may be refused a batch for good (``failures``), and ends transactions. A sender that dies
is followed by one that knows nothing. An appender that joined a transaction gives its number with the record.

The explorer checks every state. No slot has a record while the word says NONE or DECIDED. A record that was accepted
ends in the transaction that was open when it was committed to its batch, in that of its number if it joined one, and
once. A refused record ends nowhere. A transaction of which a batch was refused is not committed. A coordinator hears of
a commit if the broker has committed, and only then. From every state an end can be reached.

``mutation`` breaks a rule; each one must be found (``MUTATIONS``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

NONE, OPEN, COMMITTING, DECIDED, ABORTING, ABORT_ONLY = (
    "none",
    "open",
    "committing",
    "decided",
    "aborting",
    "abort only",
)
FREE, OWNED, FILLING, READY, DONE = "free", "owned", "filling", "ready", "done"
OVER, DEAD = "over", "dead"
NOBODY = -1
NO_SLOT = -1

Record = tuple[int, int]  # appender, number
Word = tuple[int, str, str]
Open = tuple[int, int]

MUTATIONS = {
    "no look behind OPEN": "an opener does not read the word again when its batch is open",
    "look before OPEN": "an opener reads the word before it opens its batch, and not again",
    "seal before the word": "the batches are sealed before COMMITTING is stored, and not again",
    "sender seals nothing": "the sender leaves the sealing to the coordinator",
    "decide without a look": "the sender decides while batches are there",
    "done before ABORT_ONLY": "the sender ends a refused batch before it marks the transaction",
    "chain by store": "an oversized record is committed by a store",
    "join looked at first": "an appender compares its number before it reads the batch",
    "no look at the number": "an appender that joined does not compare its number",
    "plain commit": "a record is committed by a store",
    "no abort of the dead": "nobody aborts the transaction of a dead coordinator",
    "end before the broker": "the word says NONE before the broker has ended the transaction",
    "begin beside another": "a process takes the coordinator's role from a living one",
    "batch not told": "an opener does not say that the transaction has a batch",
    "batch told late": "an opener says so behind the name of its batch",
    "batch told by a store": "an opener says so by a store of the word that it has read",
    "empty commit by a store": "a transaction that had no batch is ended by a store",
    "batch of a passed appender": "an appender that was passed uses the batch that it has read",
    "outcome not awaited": "a coordinator gives its role up before it has read the outcome",
}


class Slot(NamedTuple):
    """A slot word with the records that it counts."""

    state: str = FREE
    generation: int = 0
    records: tuple[Record, ...] = ()
    owner: int = NOBODY

    @property
    def is_filled(self) -> bool:
        """A record is in it that has no result yet."""
        return self.state == READY or (self.state == FILLING and bool(self.records))

    @property
    def sealed(self) -> Slot:
        """The same batch, closed."""
        return self._replace(state=READY if self.records else DONE)


class Appender(NamedTuple):
    """The step at which an appender stands, and the words that it has read."""

    place: str = "begin"
    number: int = 0
    open: Open = (0, NO_SLOT)
    word: Slot | None = None
    spare: int = NO_SLOT
    seen: Word | None = None


class Coordinator(NamedTuple):
    """The step at which a coordinator stands."""

    place: str = "claim"
    left: int = 1
    number: int = 0
    slot: int = 0
    seen: int = NOBODY


class Sender(NamedTuple):
    """The step at which the sender stands."""

    place: str = "idle"
    slot: int = 0
    transaction: Word = (0, NONE, "")


class State(NamedTuple):
    """Everything shared, the step of each process, and the history that only the checks remember."""

    word: Word
    coordinator: int
    open: Open
    slots: tuple[Slot, ...]
    appenders: tuple[Appender, ...]
    coordinators: tuple[Coordinator, ...]
    sender: Sender
    deaths_left: int
    failures_left: int
    has_batches: bool = False
    holder: int = NOBODY
    broker: tuple[Record, ...] = ()
    accepted: tuple[tuple[Record, int], ...] = ()
    refused: tuple[Record, ...] = ()
    committed: tuple[tuple[Record, int], ...] = ()
    thrown_away: tuple[tuple[Record, int], ...] = ()
    broker_committed: tuple[int, ...] = ()
    failed: tuple[int, ...] = ()
    wrong: str | None = None


@dataclass(frozen=True)
class Bounds:
    """How much of everything. ``records[p]`` are the numbers of the transactions that appender p has joined for each
    of its records; 0: none."""

    records: tuple[tuple[int, ...], ...]
    transactions: tuple[int, ...] = (1,)
    slot_count: int = 2
    deaths: int = 0
    failures: int = 0
    oversized: tuple[int, ...] = ()
    aborts: bool = True  # a coordinator may also abort


def _replace(items: tuple[Any, ...], index: int, item: object) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


Step = tuple[str, State]


class TransactionModel:
    """See the module."""

    def __init__(self, bounds: Bounds, mutation: str = ""):
        self.bounds = bounds
        self.mutation = mutation

    def initial(self) -> State:
        """No transaction was ever begun."""
        return State(
            word=(0, NONE, ""),
            coordinator=NOBODY,
            open=(0, NO_SLOT),
            slots=(Slot(),) * self.bounds.slot_count,
            appenders=(Appender(),) * len(self.bounds.records),
            coordinators=tuple(Coordinator(left=left) for left in self.bounds.transactions),
            sender=Sender(),
            deaths_left=self.bounds.deaths,
            failures_left=self.bounds.failures,
        )

    # ---- rules ----

    def is_good(self, state: State) -> bool:
        """Everybody is over or dead, no transaction is left, and every slot is free."""
        places = [appender.place for appender in state.appenders]
        places += [coordinator.place for coordinator in state.coordinators]
        return (
            all(place in (OVER, DEAD) for place in places)
            and state.word[1] == NONE
            and state.sender.place == "idle"
            and all(slot.state == FREE for slot in state.slots)
        )

    def violation(self, state: State) -> str | None:
        """See the module."""
        if state.wrong is not None:
            return state.wrong
        if state.word[1] in (NONE, DECIDED) and any(slot.is_filled for slot in state.slots):
            return f"a batch has records while the word says {state.word[1]}"
        if set(state.broker_committed) & set(state.failed):
            return "a transaction was committed of which a batch was refused"
        ended = [record for record, _ in (*state.committed, *state.thrown_away)]
        if set(ended) & set(state.refused):
            return "a refused record is in a transaction"
        return self._final_violation(state) if self.is_good(state) else None

    def _final_violation(self, state: State) -> str | None:
        if sorted(state.accepted) != sorted((*state.committed, *state.thrown_away)):
            return "a record did not end once, in the transaction that it was accepted in"
        for (p, number), transaction in state.accepted:
            joined = self.bounds.records[p][number]
            if joined not in (0, transaction):
                return f"a record that joined {joined} was accepted in {transaction}"
        return None

    # ---- next steps ----

    def steps(self, state: State) -> Iterator[Step]:
        """Everybody takes the next step, or is killed instead."""
        for p, appender in enumerate(state.appenders):
            if appender.place not in (OVER, DEAD):
                steps = self._method("appender", appender.place)(state, p, appender)
                yield from self._named_steps(f"appender {p}", steps)
                yield from self._killed(state, f"appender {p}", self._ended(state, p, DEAD))
        for c, coordinator in enumerate(state.coordinators):
            if coordinator.place not in (OVER, DEAD):
                steps = self._method("coordinator", coordinator.place)(state, c, coordinator)
                yield from self._named_steps(f"coordinator {c}", steps)
                dead = state._replace(coordinators=_replace(state.coordinators, c, Coordinator(DEAD, 0)))
                yield from self._killed(state, f"coordinator {c}", dead)
        yield from self._named_steps("sender", self._method("sender", state.sender.place)(state, state.sender))
        if state.sender.place != "idle":
            yield from self._killed(state, "sender", state._replace(sender=Sender()))

    def _method(self, kind: str, place: str) -> Callable[..., Iterator[Step]]:
        method: Callable[..., Iterator[Step]] = getattr(self, f"_{kind}_{place.replace(' ', '_')}")
        return method

    @staticmethod
    def _named_steps(name: str, steps: Iterator[Step]) -> Iterator[Step]:
        for label, successor in steps:
            yield f"{name} {label}", successor

    @staticmethod
    def _killed(state: State, name: str, successor: State) -> Iterator[Step]:
        if state.deaths_left > 0:
            yield f"{name} is killed", successor._replace(deaths_left=state.deaths_left - 1)

    @staticmethod
    def _at(state: State, p: int, place: str, **remembered: Any) -> State:
        appender = state.appenders[p]._replace(place=place, **remembered)
        return state._replace(appenders=_replace(state.appenders, p, appender))

    @staticmethod
    def _with_coordinator(state: State, c: int, **fields: Any) -> State:
        return state._replace(coordinators=_replace(state.coordinators, c, state.coordinators[c]._replace(**fields)))

    @staticmethod
    def _sender_at(state: State, place: str, **fields: Any) -> State:
        sender = Sender() if place == "idle" else state.sender._replace(place=place, **fields)
        return state._replace(sender=sender)

    @staticmethod
    def _ended(state: State, p: int, place: str) -> State:
        return state._replace(appenders=_replace(state.appenders, p, Appender(place)))

    @staticmethod
    def _with_slot(state: State, index: int, slot: Slot) -> State:
        return state._replace(slots=_replace(state.slots, index, slot))

    def _cas(self, state: State, index: int, word: Slot, slot: Slot) -> State | None:
        return self._with_slot(state, index, slot) if state.slots[index] == word else None

    # ---- appender ----

    def _admits(self, state: State, p: int, appender: Appender) -> bool:
        joined = self.bounds.records[p][appender.number]
        if joined and self.mutation != "no look at the number":
            return state.word[:2] == (joined, OPEN)
        return state.word[1] == OPEN

    def _next(self, state: State, p: int, appender: Appender) -> State:
        number = appender.number + 1
        is_over = number == len(self.bounds.records[p])
        fresh = Appender("leave" if is_over else "begin", number, spare=appender.spare)
        holder = NOBODY if state.holder == p else state.holder
        return state._replace(appenders=_replace(state.appenders, p, fresh), holder=holder)

    def _refuse(self, state: State, p: int, appender: Appender) -> State:
        refused = tuple(sorted((*state.refused, (p, appender.number))))
        return self._next(state._replace(refused=refused), p, appender)

    def _accept(self, state: State, p: int, appender: Appender) -> State:
        if state.word[1] in (NONE, DECIDED):
            state = state._replace(wrong=f"a record was accepted while the word says {state.word[1]}")
        accepted = tuple(sorted((*state.accepted, ((p, appender.number), state.word[0]))))
        return self._next(state._replace(accepted=accepted), p, appender)

    def _appender_begin(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        if p in self.bounds.oversized:
            yield "begins an oversized record", self._at(state, p, "allocate")
        elif self.mutation == "join looked at first" and not self._admits(state, p, appender):
            yield "is refused at once", self._refuse(state, p, appender)
        elif self.mutation == "join looked at first":
            yield "finds its transaction open", self._at(state, p, "lock")
        else:
            yield from self._appender_lock(state, p, appender)

    def _appender_lock(self, state: State, p: int, _appender: Appender) -> Iterator[Step]:
        if state.holder not in (NOBODY, p):
            state = self._repaired(state)
        state = state._replace(holder=p)
        yield "takes the lock, and reads `open`", self._at(state, p, "read batch", open=state.open)

    def _repaired(self, state: State) -> State:
        index = state.open[1]
        if index != NO_SLOT and state.slots[index].state == FILLING:
            state = self._with_slot(state, index, state.slots[index].sealed)
        return state if index == NO_SLOT else self._named(state, NO_SLOT)

    def _appender_read_batch(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        index = appender.open[1]
        slot = state.slots[index] if index != NO_SLOT else None
        if state.holder != p and self.mutation != "batch of a passed appender":
            yield "finds that it was passed", self._at(state, p, "begin", open=(0, NO_SLOT))
        elif slot is None or slot.state != FILLING:
            yield "finds no open batch", self._at(state, p, "allocate")
        elif self.bounds.records[p][appender.number] and self.mutation != "join looked at first":
            yield "reads the batch", self._at(state, p, "compare", word=slot)
        else:
            yield "reads the batch", self._at(state, p, "commit", word=slot)

    def _appender_compare(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        if self._admits(state, p, appender):
            yield "finds its transaction open", self._at(state, p, "commit")
        else:
            yield "finds its transaction ended", self._refuse(state, p, appender)

    def _appender_commit(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        index, word = appender.open[1], appender.word
        assert word is not None
        committed = word._replace(records=(*word.records, (p, appender.number)))
        after = self._cas(state, index, word, committed)
        if after is None and self.mutation == "plain commit":
            after = self._with_slot(state, index, committed)
        if after is None:
            yield "finds the batch changed", self._at(state, p, "begin", word=None, open=(0, NO_SLOT))
        else:
            yield "commits its record", self._accept(after, p, appender)

    def _appender_allocate(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        if not self._admits(state, p, appender):
            yield "is refused", self._refuse(state, p, appender)
            return
        place = "store open" if p in self.bounds.oversized else "take number"
        if appender.spare != NO_SLOT:
            yield "has a slot, and reads `open`", self._at(state, p, place, open=state.open)
        for index, slot in enumerate(state.slots):
            if slot.state == FREE and appender.spare == NO_SLOT:
                taken = self._with_slot(state, index, slot._replace(state=OWNED, owner=p))
                yield (
                    f"takes slot {index}, and reads `open`",
                    self._at(taken, p, place, spare=index, open=state.open),
                )
                return

    def _appender_take_number(self, state: State, p: int, _appender: Appender) -> Iterator[Step]:
        if state.holder == p:
            yield "takes a number of a batch", self._at(state, p, "store open")
        else:
            yield "finds that it was passed", self._at(state, p, "begin", open=(0, NO_SLOT))

    def _appender_store_open(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        slot = state.slots[appender.spare]._replace(state=FILLING)
        place = "ready" if p in self.bounds.oversized else "name"
        if self.mutation == "chain by store" and p in self.bounds.oversized:
            yield "commits its record by a store", self._stored_chain(state, p, appender)
            return
        looks = self.mutation not in ("no look behind OPEN", "look before OPEN")
        opened = self._with_slot(state, appender.spare, slot)
        yield "says OPEN", self._at(opened, p, "look" if looks else place, word=slot)

    def _stored_chain(self, state: State, p: int, appender: Appender) -> State:
        slot = state.slots[appender.spare]._replace(state=READY, records=((p, appender.number),))
        appender = appender._replace(spare=NO_SLOT)
        return self._accept(self._with_slot(state, state.appenders[p].spare, slot), p, appender)

    def _appender_look(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        place = "ready" if p in self.bounds.oversized else "name"
        if not self._admits(state, p, appender):
            yield "finds the transaction ended", self._at(state, p, "take back refused")
        elif state.has_batches or self.mutation in ("batch not told", "batch told late"):
            yield "finds the transaction open", self._at(state, p, place)
        else:
            yield "finds the transaction open, without batches", self._at(state, p, "tell", seen=state.word)

    def _appender_tell(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        place = "ready" if p in self.bounds.oversized else "name"
        assert appender.seen is not None
        if self.mutation == "batch told by a store":
            state = state._replace(word=appender.seen)
        if state.word == appender.seen:
            yield "tells of its batch", self._at(state._replace(has_batches=True), p, place, seen=None)
        else:
            yield "finds the word changed", self._at(state, p, "look", seen=None)

    def _appender_late_tell(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        told = state._replace(has_batches=True) if state.word == appender.seen else state
        yield "tells of its batch", self._at(told, p, "begin", seen=None)

    def _appender_name(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        if state.open == appender.open:
            named = self._named(state, appender.spare)
            is_late = self.mutation == "batch told late"
            place, seen = ("late tell", state.word) if is_late else ("begin", None)
            yield "names its batch", self._at(named, p, place, spare=NO_SLOT, word=None, open=(0, NO_SLOT), seen=seen)
        else:
            yield "finds another batch named", self._at(state, p, "take back")

    def _appender_ready(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        word = appender.word
        assert word is not None
        sealed = word._replace(state=READY, records=((p, appender.number),))
        after = self._cas(state, appender.spare, word, sealed)
        appender = appender._replace(spare=NO_SLOT)
        if after is None:
            yield "finds its slots sealed", self._at(state, p, "begin", spare=NO_SLOT, word=None, open=(0, NO_SLOT))
        else:
            yield "commits its oversized record", self._accept(after, p, appender)

    def _appender_take_back(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        yield (
            "takes its slot back",
            self._at(self._taken_back(state, p, appender), p, "begin", word=None, open=(0, NO_SLOT)),
        )

    def _appender_take_back_refused(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        state = self._taken_back(state, p, appender)
        yield "takes its slot back, and raises", self._refuse(state, p, state.appenders[p])

    def _taken_back(self, state: State, p: int, appender: Appender) -> State:
        assert appender.word is not None
        after = self._cas(state, appender.spare, appender.word, appender.word._replace(state=OWNED))
        return self._at(state, p, appender.place, spare=NO_SLOT) if after is None else after

    def _appender_leave(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        if appender.spare != NO_SLOT:
            state = self._freed(state, appender.spare)
        yield "is over", self._ended(state, p, OVER)

    def _freed(self, state: State, index: int) -> State:
        """The generation is one that no appender remembers, which keeps the number of states small."""
        remembered = {appender.word.generation for appender in state.appenders if appender.word is not None}
        generation = next(number for number in range(len(remembered) + 1) if number not in remembered)
        return self._with_slot(state, index, Slot(generation=generation))

    @staticmethod
    def _named(state: State, index: int) -> State:
        """Likewise the number of the store."""
        remembered = {appender.open for appender in state.appenders} | {state.open}
        number = next(number for number in range(len(remembered) + 1) if (number, index) not in remembered)
        return state._replace(open=(number, index))

    # ---- coordinator ----

    def _is_gone(self, state: State, c: int) -> bool:
        return c == NOBODY or state.coordinators[c].place == DEAD

    def _coordinator_claim(self, state: State, c: int, coordinator: Coordinator) -> Iterator[Step]:
        if coordinator.left == 0:
            yield "is over", self._with_coordinator(state, c, place=OVER)
        elif self._is_gone(state, state.coordinator) or self.mutation == "begin beside another":
            yield "finds the role free", self._with_coordinator(state, c, place="take", seen=state.coordinator)
        elif state.coordinators[state.coordinator].place == OVER:
            yield "gives up", self._with_coordinator(state, c, place=OVER)

    def _coordinator_take(self, state: State, c: int, coordinator: Coordinator) -> Iterator[Step]:
        if state.coordinator == coordinator.seen:
            taken = state._replace(coordinator=c)
            yield "takes the role", self._with_coordinator(taken, c, place="begin", seen=NOBODY)
        else:
            yield "finds the role taken", self._with_coordinator(state, c, place="claim", seen=NOBODY)

    def _coordinator_begin(self, state: State, c: int, _coordinator: Coordinator) -> Iterator[Step]:
        number, what, _why = state.word
        if what == NONE:
            begun = state._replace(word=(number + 1, OPEN, ""), has_batches=False)
            yield "begins", self._with_coordinator(begun, c, place="work", number=number + 1)
        elif what in (OPEN, ABORT_ONLY) and self.mutation != "no abort of the dead":
            yield "aborts what a dead one began", state._replace(word=(number, ABORTING, "dead"))

    def _coordinator_work(self, state: State, c: int, coordinator: Coordinator) -> Iterator[Step]:
        if self.bounds.aborts:
            yield "aborts", self._with_coordinator(self._aborted(state, coordinator.number, "asked"), c, place="seal")
        if self.mutation == "seal before the word":
            yield "commits", self._with_coordinator(state, c, place="seal")
        elif state.word[:2] == (coordinator.number, OPEN) and not state.has_batches:
            is_stored = self.mutation == "empty commit by a store"
            after = state if is_stored else self._ended_without_batches(state, coordinator.number)
            yield "finds no batch", self._with_coordinator(after, c, place="store none" if is_stored else "wait")
        else:
            yield "commits", self._with_coordinator(self._committing(state, coordinator.number), c, place="seal")

    @staticmethod
    def _ended_without_batches(state: State, number: int) -> State:
        if any(transaction == number for _, transaction in state.accepted):
            state = state._replace(wrong="a transaction was ended without the records that it has")
        numbers = tuple(sorted({*state.broker_committed, number}))
        return state._replace(word=(number, NONE, ""), broker_committed=numbers)

    def _coordinator_store_none(self, state: State, c: int, coordinator: Coordinator) -> Iterator[Step]:
        ended = self._ended_without_batches(state, coordinator.number)
        yield "stores NONE", self._with_coordinator(ended, c, place="wait")

    @staticmethod
    def _committing(state: State, number: int) -> State:
        return state._replace(word=(number, COMMITTING, "")) if state.word[:2] == (number, OPEN) else state

    @staticmethod
    def _aborted(state: State, number: int, why: str) -> State:
        is_ours = state.word[0] == number and state.word[1] in (OPEN, ABORT_ONLY)
        return state._replace(word=(number, ABORTING, state.word[2] or why)) if is_ours else state

    def _coordinator_seal(self, state: State, c: int, coordinator: Coordinator) -> Iterator[Step]:
        index = coordinator.slot
        if index == len(state.slots):
            if self.mutation == "seal before the word":
                state = self._committing(state, coordinator.number)
            yield "has sealed", self._with_coordinator(state, c, place="wait", slot=0)
        elif state.slots[index].state == FILLING:
            yield f"seals slot {index}", self._with_slot(state, index, state.slots[index].sealed)
        else:
            yield f"passes slot {index} over", self._with_coordinator(state, c, slot=index + 1)

    def _coordinator_wait(self, state: State, c: int, coordinator: Coordinator) -> Iterator[Step]:
        number, what, why = state.word
        if self.mutation == "outcome not awaited" and state.coordinator == c:
            yield "gives its role up", state._replace(coordinator=NOBODY)
        if number != coordinator.number:
            yield "finds another transaction", state._replace(wrong="a coordinator does not hear of the outcome")
        elif what == ABORT_ONLY:
            yield "aborts after all", self._aborted(state, number, "asked")
        elif what == NONE:
            if (number in state.broker_committed) != (why == ""):
                state = state._replace(wrong="a coordinator hears of an outcome that is not the broker's")
            yield "hears of the outcome", self._with_coordinator(state, c, place="leave")

    def _coordinator_leave(self, state: State, c: int, coordinator: Coordinator) -> Iterator[Step]:
        if state.coordinator == c:
            state = state._replace(coordinator=NOBODY)
        yield "gives its role up", self._with_coordinator(state, c, place="claim", left=coordinator.left - 1, number=0)

    # ---- sender ----

    def _sender_idle(self, state: State, _sender: Sender) -> Iterator[Step]:
        number, what, _why = state.word
        for index, slot in enumerate(state.slots):
            yield from self._sender_keeps_house(state, index, slot)
            if what in (OPEN, COMMITTING, ABORT_ONLY) and slot.state == FILLING and slot.records:
                yield f"seals slot {index}", self._with_slot(state, index, slot.sealed)
            if what in (OPEN, COMMITTING, ABORT_ONLY) and slot.state == READY:
                yield f"sends slot {index}", self._sender_at(state, "send", slot=index)
        is_left = what in (OPEN, ABORT_ONLY) and self._is_gone(state, state.coordinator)
        if is_left and self.mutation != "no abort of the dead":
            yield "aborts what a dead one began", self._aborted(state, number, "dead")
        if what in (COMMITTING, ABORTING):
            place = "look" if self.mutation in ("sender seals nothing", "seal before the word") else "seal"
            yield f"finds {what}", self._sender_at(state, place, slot=0, transaction=state.word)
        if what == DECIDED:
            yield "finds what was decided", self._sender_at(state, "end", transaction=state.word)

    def _sender_keeps_house(self, state: State, index: int, slot: Slot) -> Iterator[Step]:
        is_left = slot.owner != NOBODY and state.appenders[slot.owner].place in (OVER, DEAD)
        if slot.state == DONE or (slot.state == OWNED and state.appenders[slot.owner].place == DEAD):
            yield f"frees slot {index}", self._freed(state, index)
        elif slot.state == FILLING and not slot.records and is_left:
            yield f"ends the empty slot {index}", self._with_slot(state, index, slot.sealed)

    def _sender_send(self, state: State, sender: Sender) -> Iterator[Step]:
        slot = state.slots[sender.slot]
        known = tuple(sorted({*state.broker, *slot.records}))
        yield "delivers", self._sender_at(state._replace(broker=known), "done")
        if state.failures_left > 0:
            refused = state._replace(failures_left=state.failures_left - 1)
            yield "is refused a batch", self._sender_at(refused, "fail")

    def _sender_done(self, state: State, sender: Sender) -> Iterator[Step]:
        done = state.slots[sender.slot]._replace(state=DONE, records=())
        yield "ends the batch", self._sender_at(self._with_slot(state, sender.slot, done), "idle")

    def _marked(self, state: State) -> State:
        number, what, _why = state.word
        return state._replace(word=(number, ABORT_ONLY, "failed")) if what in (OPEN, COMMITTING) else state

    def _sender_fail(self, state: State, sender: Sender) -> Iterator[Step]:
        if self.mutation == "done before ABORT_ONLY":
            yield "ends the refused batch", self._sender_at(self._refused(state, sender.slot), "mark")
        else:
            yield "marks the transaction", self._sender_at(self._marked(state), "refused")

    def _sender_mark(self, state: State, _sender: Sender) -> Iterator[Step]:
        yield "marks the transaction", self._sender_at(self._marked(state), "idle")

    def _sender_refused(self, state: State, sender: Sender) -> Iterator[Step]:
        yield "ends the refused batch", self._sender_at(self._refused(state, sender.slot), "idle")

    def _refused(self, state: State, index: int) -> State:
        return self._thrown_away(state._replace(failed=(*state.failed, state.word[0])), index)

    def _thrown_away(self, state: State, index: int) -> State:
        slot = state.slots[index]
        ended = tuple((record, state.word[0]) for record in slot.records if record not in state.broker)
        state = state._replace(thrown_away=tuple(sorted((*state.thrown_away, *ended))))
        return self._with_slot(state, index, slot._replace(state=DONE, records=()))

    def _sender_seal(self, state: State, sender: Sender) -> Iterator[Step]:
        if sender.slot == len(state.slots):
            yield "has sealed", self._sender_at(state, "look", slot=0)
        elif state.slots[sender.slot].state == FILLING:
            yield f"seals slot {sender.slot}", self._with_slot(state, sender.slot, state.slots[sender.slot].sealed)
        else:
            yield f"passes slot {sender.slot} over", self._sender_at(state, "seal", slot=sender.slot + 1)

    def _sender_look(self, state: State, sender: Sender) -> Iterator[Step]:
        is_aborting = sender.transaction[1] == ABORTING
        if sender.slot == len(state.slots) or self.mutation == "decide without a look":
            yield "sees no record", self._sender_at(state, "end" if is_aborting else "decide", slot=0)
        elif not state.slots[sender.slot].is_filled:
            yield f"sees no record in slot {sender.slot}", self._sender_at(state, "look", slot=sender.slot + 1)
        elif is_aborting and state.slots[sender.slot].state == READY:
            yield f"throws slot {sender.slot} away", self._thrown_away(state, sender.slot)
        else:
            yield f"sees records in slot {sender.slot}", self._sender_at(state, "idle")

    def _sender_decide(self, state: State, sender: Sender) -> Iterator[Step]:
        if state.word == sender.transaction:
            decided = (sender.transaction[0], DECIDED, "")
            yield "decides", self._sender_at(state._replace(word=decided), "end", transaction=decided)
        else:
            yield "finds another word", self._sender_at(state, "idle")

    def _sender_end(self, state: State, sender: Sender) -> Iterator[Step]:
        number, what, _why = sender.transaction
        if self.mutation == "end before the broker":
            yield "says NONE", self._sender_at(self._none(state, sender), "late end")
        elif what == DECIDED:
            yield "commits at the broker", self._sender_at(self._broker_ended(state, number, True), "none")
        else:
            yield "aborts at the broker", self._sender_at(self._broker_ended(state, number, False), "none")

    def _sender_late_end(self, state: State, sender: Sender) -> Iterator[Step]:
        number, what, _why = sender.transaction
        yield "ends at the broker", self._sender_at(self._broker_ended(state, number, what == DECIDED), "idle")

    @staticmethod
    def _broker_ended(state: State, number: int, is_committed: bool) -> State:
        """Again by a later sender: the broker has ended it already."""
        ended = tuple((record, number) for record in state.broker)
        state = state._replace(broker=())
        if not is_committed:
            return state._replace(thrown_away=tuple(sorted((*state.thrown_away, *ended))))
        numbers = tuple(sorted({*state.broker_committed, number}))
        return state._replace(committed=tuple(sorted((*state.committed, *ended))), broker_committed=numbers)

    @staticmethod
    def _none(state: State, sender: Sender) -> State:
        number, what, why = sender.transaction
        return state._replace(word=(number, NONE, "" if what == DECIDED else why))

    def _sender_none(self, state: State, sender: Sender) -> Iterator[Step]:
        yield "says NONE", self._sender_at(self._none(state, sender), "idle")
