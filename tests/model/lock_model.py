# SPDX-License-Identifier: Apache-2.0
"""The producer lock as a model: appenders that may be killed, stopped forever, or passed while they live; one sender.

One step of the model is one access to shared memory, as in ``native/producer/producer_batch.c`` and
``native/producer/producer_lock.h``.
Appender ``p`` appends ``records[p]`` records to one partition, each of them oversized if ``p`` is in ``oversized``
(its chain is one slot here). A waiter never sleeps and does not check whether the holder lives: it passes the holder.
The length of its patience does not matter, since any process may be slow: a holder may find at any step that it was
passed. An appender may also be

    killed    the kernel proves its death: its hazard is ignored, and its slots are freed
    frozen    it never continues, but it lives: its hazard counts, and it still owns its slots

    lock   (acquisition, owner)             released the word of the last holder: the lock is free if the two are equal
    open   (acquisition, slot)
    slot   word (state, generation, count, owner) · seq · the bytes, as records · meta[2], as the records they sum up

The sender drains the batch with the lowest seq, seals it if necessary, and frees it when no living hazard names it. The
model has no ready hints, which name the batches: the sender sees all words at once. In the lock and in ``released``,
the numbers of acquisitions start over after ``numbers`` of them, as 32 bits do. Those in ``open`` do not.

The explorer checks every state. The first ``count`` records of a batch, and the meta cell of that count, are as they
were committed there. A process stores only into the slot whose word it has read. No record is delivered
twice or without being committed. A record that began after another one had returned is delivered after it. In every
final state all committed records are delivered, and a slot is free unless a frozen process pins or owns it. From
every state an end can be reached, with any process dead or frozen.

``mutation`` breaks a rule. The explorer must find each one (``MUTATIONS``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

FREE, OWNED, OPEN, READY, DONE = "free", "owned", "open", "ready", "done"
OVER, DEAD, FROZEN = "over", "dead", "frozen"
NOBODY = -1
NO_SLOT = -1

Record = tuple[int, int]  # process, number
Word = tuple[str, int, int, int]
NO_WORD: Word = (FREE, 0, 0, NOBODY)
LockWord = tuple[int, int]  # acquisition, owner
NO_LOCK: LockWord = (-1, NOBODY)


class Slot(NamedTuple):
    """A slot header and its data. The first four fields are the word."""

    state: str = FREE
    generation: int = 0
    record_count: int = 0
    owner: int = NOBODY
    seq: int = -1
    data: tuple[Record, ...] = ()
    meta: tuple[tuple[Record, ...], tuple[Record, ...]] = ((), ())

    @property
    def word(self) -> Word:
        """Return the slot word, as a load reads it."""
        return (self.state, self.generation, self.record_count, self.owner)

    def with_word(self, state: str, record_count: int = 0, owner: int = NOBODY) -> Slot:
        """Return the slot with another word of the same generation."""
        return self._replace(state=state, record_count=record_count, owner=owner)


class Appender(NamedTuple):
    """The current step of an appender, and the words that it has read."""

    place: str = "begin"
    number: int = 0
    acquisition: int = 0
    lock: LockWord = NO_LOCK  # the lock word that it stored
    before: LockWord = NO_LOCK  # the lock word that it replaces
    hazard: int = NO_SLOT
    open: tuple[int, int] = (0, NO_SLOT)
    word: Word = NO_WORD
    seq: int = -1
    spare: int = NO_SLOT
    scanned: int = 0  # slots that its repair has read
    behind: tuple[Record, ...] = ()  # records that had returned when its append began

    def forget(self) -> Appender:
        """Return the appender without the words that it reads again before it uses them."""
        return Appender(self.place, self.number, spare=self.spare, behind=self.behind)


class Sender(NamedTuple):
    """The current step of the sender."""

    place: str = "idle"
    slot: int = NO_SLOT
    word: Word = NO_WORD
    entry: int = 0  # the process whose hazard it reads next


class State(NamedTuple):
    """The shared memory, the step of each process, and the history, which only the checks use."""

    lock: LockWord
    released: LockWord
    acquisition_count: int
    open: tuple[int, int]
    next_seq: int
    slots: tuple[Slot, ...]
    writing: tuple[int, ...]
    appenders: tuple[Appender, ...]
    sender: Sender
    deaths_left: int
    freezes_left: int
    passes_left: int  # times that a holder may still be passed while it runs
    empty_seals_left: int
    committed: tuple[tuple[Record, tuple[Record, ...]], ...]  # each with the records that must be delivered before it
    returned: tuple[Record, ...]
    delivered: tuple[Record, ...]
    wrong: str | None


MUTATIONS = {
    "no hazard": "an appender does not publish the slot into which it may write, so the slot is freed meanwhile",
    "late hazard": "the hazard is published after word and lock were read, so the slot is freed before",
    "hazards ignored": "the sender frees a slot without reading the hazards, so an appender may still write into it",
    "hazards read before the seal": (
        "the sender reads the hazards before it seals, so an appender may publish one after that"
    ),
    "no second lock check": "append does not read the lock again after its hazard, so two appenders write to one batch",
    "no lock check before open": (
        "a batch is opened without a second read of the lock, so records are delivered out of order"
    ),
    "open batch used after a takeover": (
        "an appender that took over the lock continues the open batch, into which the former holder may write"
    ),
    "commit by a store": "a record is committed by a store, so a record of a sealed batch is delivered twice",
    "`open` set by a store": "`open` is set by a store, so an appender that was passed replaces a later batch",
    "next_seq raised by a store": "next_seq is raised by a store, so two batches get the same number",
    "unlock of any holder": "an appender that leaves releases the lock of the present holder, not only its own",
    "`released` read once": (
        "an appender that took the lock does not read `released` again, so two appenders hold the lock"
    ),
    "pass takes the released word": (
        "an appender passes a holder with a word equal to `released`, so the lock appears free to others"
    ),
    "no repair after its own lock": (
        "an appender that takes over its own former lock does not repair, so a batch gets wrong bytes"
    ),
    "slot taken back by a store": (
        "an opener that was passed takes its slot back by a store, although another process has sealed it"
    ),
    "seal by a store": "the sender seals by a store, so a record that was committed meanwhile is lost",
    "acquisition number not raised": (
        "taking the lock does not raise the acquisition number, so `open` has equal values after two acquisitions"
    ),
    "generation not raised": (
        "freeing a slot does not raise its generation, so an opener takes back a slot of another process"
    ),
    "both meta cells written": "both meta cells are written, so the cell of the committed count is overwritten",
    "dead holder never passed": "no process takes over the lock of a dead holder, so all others wait forever",
    "frozen holder never passed": "no process takes over the lock of a frozen holder, so all others wait forever",
    "no seal before a chain": (
        "an oversized record leaves the open batch open, so later records in that batch are delivered before it"
    ),
}


# Repairs after a takeover -> the first step of each. All of them are sound. The core has the default of Bounds.repair.
REPAIRS = {
    "seal the named batch, then forget it": "read named",
    "forget, then seal all batches": "forget",
    "forget": "only forget",
}


@dataclass(frozen=True)
class Bounds:
    """The size of the model."""

    records: tuple[int, ...]
    slot_count: int
    capacity: int = 2  # records of a batch
    deaths: int = 0
    freezes: int = 0
    passes: int = 0
    empty_seals: int = 0
    oversized: tuple[int, ...] = ()
    numbers: int = 0  # acquisition numbers in the lock, which then start over; 0 means that they never do
    is_sender_last: bool = False  # the sender begins after the last append, so that more appenders can be explored
    repair: str = "seal the named batch, then forget it"


def _replace(items: tuple[Any, ...], index: int, item: object) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


Step = tuple[str, State]


class LockModel:
    """See the module."""

    def __init__(self, bounds: Bounds, mutation: str = ""):
        self.bounds = bounds
        self.mutation = mutation

    def initial(self) -> State:
        """Return the state in which every slot is free and no process has begun."""
        count = len(self.bounds.records)
        return State(
            lock=(0, NOBODY),
            released=(0, NOBODY),
            acquisition_count=0,
            open=(0, NO_SLOT),
            next_seq=0,
            slots=(Slot(),) * self.bounds.slot_count,
            writing=(NO_SLOT,) * count,
            appenders=(Appender(),) * count,
            sender=Sender(),
            deaths_left=self.bounds.deaths,
            freezes_left=self.bounds.freezes,
            passes_left=self.bounds.passes,
            empty_seals_left=self.bounds.empty_seals,
            committed=(),
            returned=(),
            delivered=(),
            wrong=None,
        )

    # ---- rules ----

    def is_good(self, state: State) -> bool:
        """True if every appender has ended, and the sender has nothing left to do."""
        at_rest = all(appender.place in (OVER, DEAD, FROZEN) for appender in state.appenders)
        return at_rest and state.sender.place == "idle" and not any(True for _ in self._sender_idle(state))

    def violation(self, state: State) -> str | None:
        """See the module."""
        if state.wrong is not None:
            return state.wrong
        for slot in state.slots:
            if slot.state in (OPEN, READY) and not self._is_true(state, slot):
                return "a batch does not have the bytes that were committed to it"
        if self.is_good(state):
            return self._final_violation(state)
        return None

    @staticmethod
    def _is_true(state: State, slot: Slot) -> bool:
        records = slot.data[: slot.record_count]
        committed = [record for record, _ in state.committed]
        are_committed = len(records) == slot.record_count and all(record in committed for record in records)
        return are_committed and (slot.record_count == 0 or slot.meta[slot.record_count & 1] == records)

    def _final_violation(self, state: State) -> str | None:
        if sorted(record for record, _ in state.committed) != sorted(state.delivered):
            return "a committed record was lost"
        for index, slot in enumerate(state.slots):
            is_owned = slot.state == OWNED and state.appenders[slot.owner].place == FROZEN
            is_pinned = slot.state == DONE and self._is_pinned(state, index)
            if slot.state != FREE and not is_owned and not is_pinned:
                return "a slot leaked"
        return None

    @staticmethod
    def _is_pinned(state: State, index: int) -> bool:
        return any(writing == index and state.appenders[p].place != DEAD for p, writing in enumerate(state.writing))

    # ---- next steps ----

    def steps(self, state: State) -> Iterator[Step]:
        """Yield the next step of each process, or its death or freeze instead."""
        for p, appender in enumerate(state.appenders):
            if appender.place in (OVER, DEAD, FROZEN):
                continue
            for label, successor in self._appender_steps(state, p, appender):
                yield f"appender {p} {label}", successor
            if state.deaths_left > 0:
                yield f"appender {p} is killed", self._ended(state, p, DEAD)._replace(deaths_left=state.deaths_left - 1)
            if state.freezes_left > 0:
                frozen = self._ended(state, p, FROZEN)
                yield f"appender {p} is frozen", frozen._replace(freezes_left=state.freezes_left - 1)
        if not self.bounds.is_sender_last or self._is_no_appender_active(state):
            for label, successor in getattr(self, "_sender_" + state.sender.place)(state):
                yield f"sender {label}", successor

    def _ended(self, state: State, p: int, place: str) -> State:
        return state._replace(appenders=_replace(state.appenders, p, Appender(place)))

    def _appender_steps(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        kind, _, after = appender.place.partition(":")
        method = getattr(self, "_" + kind.replace(" ", "_"))
        yield from method(state, p, appender, after) if after else method(state, p, appender)

    @staticmethod
    def _at(state: State, p: int, place: str, **remembered: Any) -> State:
        appender = state.appenders[p]._replace(place=place, **remembered)
        return state._replace(appenders=_replace(state.appenders, p, appender))

    @staticmethod
    def _with_slot(state: State, index: int, slot: Slot) -> State:
        return state._replace(slots=_replace(state.slots, index, slot))

    @staticmethod
    def _with_writing(state: State, p: int, index: int) -> State:
        return state._replace(writing=_replace(state.writing, p, index))

    def _is_oversized(self, p: int) -> bool:
        return p in self.bounds.oversized

    # ---- slots: becoming owned, becoming free ----

    @staticmethod
    def _free_slot(state: State) -> int:
        return next((index for index, slot in enumerate(state.slots) if slot.state == FREE), NO_SLOT)

    def _taken(self, state: State, p: int, place: str) -> State:
        index = self._free_slot(state)
        taken = self._with_slot(state, index, state.slots[index].with_word(OWNED, owner=p))
        return self._at(taken, p, place, spare=index)

    def _freed(self, state: State, index: int) -> State:
        generation = state.slots[index].generation + (self.mutation != "generation not raised")
        return self._with_slot(state, index, Slot(generation=generation))

    # ---- appender: the hazard and the lock ----

    def _begin(self, state: State, p: int, _appender: Appender) -> Iterator[Step]:
        place = "take piece" if self._is_oversized(p) else "hint"
        yield "begins", self._at(state, p, place, behind=state.returned)

    def _hint(self, state: State, p: int, _appender: Appender) -> Iterator[Step]:
        yield "reads `open` as a hint", self._at(state, p, "hazard", hazard=state.open[1])

    def _hazard(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        if self.mutation not in ("no hazard", "late hazard"):
            state = self._with_writing(state, p, appender.hazard)
        yield "publishes its hazard", self._at(state, p, "try lock:unhazard")

    def _lock_word(self, state: State, p: int, number: int) -> LockWord:
        return (number % self.bounds.numbers if self.bounds.numbers else number, p)

    def _locked(self, state: State, p: int, place: str, word: LockWord) -> State:
        count = state.acquisition_count + (self.mutation != "acquisition number not raised")
        taken = state._replace(lock=word, acquisition_count=count)
        return self._at(taken, p, place, lock=word, acquisition=count)

    def _try_lock(self, state: State, p: int, _appender: Appender, otherwise: str) -> Iterator[Step]:
        yield "reads the lock", self._at(state, p, f"try released:{otherwise}", before=state.lock)

    def _try_released(self, state: State, p: int, appender: Appender, otherwise: str) -> Iterator[Step]:
        if state.released == appender.before:
            yield "finds the lock free", self._at(state, p, f"try to take:{otherwise}")
        else:
            yield "finds the lock held", self._not_locked(state, p, otherwise)

    def _try_to_take(self, state: State, p: int, appender: Appender, otherwise: str) -> Iterator[Step]:
        if state.lock != appender.before:
            yield "finds that another process has locked", self._not_locked(state, p, otherwise)
            return
        place = "look" if self.mutation == "`released` read once" else f"look again:{otherwise}"
        number = appender.before[0] + (self.mutation != "acquisition number not raised")
        yield "locks", self._locked(state, p, place, self._lock_word(state, p, number))

    def _look_again(self, state: State, p: int, appender: Appender, otherwise: str) -> Iterator[Step]:
        if state.released == appender.before:
            yield "finds `released` unchanged", self._at(state, p, "look", before=NO_LOCK)
        else:
            yield "finds `released` changed", self._not_locked(state, p, otherwise)

    def _not_locked(self, state: State, p: int, otherwise: str) -> State:
        return self._at(state, p, otherwise, lock=NO_LOCK, before=NO_LOCK, acquisition=0, hazard=NO_SLOT)

    def _unhazard(self, state: State, p: int, _appender: Appender) -> Iterator[Step]:
        yield "withdraws its hazard", self._at(self._with_writing(state, p, NO_SLOT), p, "wait for the lock")

    def _wait_for_the_lock(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        if state.released == state.lock:
            yield from self._try_lock(state, p, appender, "wait for the lock")
            return
        owner = state.lock[1]
        place = state.appenders[owner].place
        if place in (DEAD, FROZEN):
            if self.mutation != f"{place} holder never passed":
                yield f"passes the {place} holder", self._passed(state, p)
        elif state.appenders[owner].lock != state.lock:
            yield "passes a holder that has left", self._passed(state, p)
        elif state.passes_left > 0:
            yield "passes the holder", self._passed(state._replace(passes_left=state.passes_left - 1), p)

    def _passed(self, state: State, p: int) -> State:
        """Return the state after a pass. It reads three words, and may be one step: no other process can store the
        value with which it compares `released`.
        """
        number = state.lock[0] + (self.mutation != "acquisition number not raised")
        word = self._lock_word(state, p, number)
        if word == state.released and self.mutation != "pass takes the released word":
            word = self._lock_word(state, p, number + 1)
        repairs = self.mutation != "open batch used after a takeover" and (
            self.mutation != "no repair after its own lock" or state.lock[1] != p
        )
        return self._locked(state, p, REPAIRS[self.bounds.repair] if repairs else "look", word)

    @staticmethod
    def _is_held(state: State, _p: int, appender: Appender) -> bool:
        return state.lock == appender.lock

    def _leave(self, state: State, p: int, appender: Appender, outcome: str) -> Iterator[Step]:
        yield "clears its hazard", self._at(self._with_writing(state, p, NO_SLOT), p, f"unlock:{outcome}")

    def _unlock(self, state: State, p: int, appender: Appender, outcome: str) -> Iterator[Step]:
        if self._is_held(state, p, appender):
            yield "finds that it still holds the lock", self._at(state, p, f"release:{outcome}")
        else:
            yield from self._left(state, p, appender, outcome, "finds that it was passed")

    def _release(self, state: State, p: int, appender: Appender, outcome: str) -> Iterator[Step]:
        word = state.lock if self.mutation == "unlock of any holder" else appender.lock
        yield from self._left(state._replace(released=word), p, appender, outcome, "unlocks")

    def _left(self, state: State, p: int, appender: Appender, outcome: str, label: str) -> Iterator[Step]:
        state = state._replace(appenders=_replace(state.appenders, p, appender.forget()))
        if outcome == "ok":
            yield f"{label} and returns", self._returned(state, p, appender)
        else:
            yield f"{label} ({outcome})", self._at(state, p, outcome)

    def _returned(self, state: State, p: int, appender: Appender) -> State:
        number = appender.number + 1
        is_over = number == self.bounds.records[p]
        place = "begin" if not is_over else "give back" if appender.spare != NO_SLOT else OVER
        returned = tuple(sorted((*state.returned, (p, appender.number))))
        return self._at(state._replace(returned=returned), p, place, number=number, behind=())

    # ---- appender: repair after a take-over ----

    def _only_forget(self, state: State, p: int, _appender: Appender) -> Iterator[Step]:
        yield "reads `open` to forget it", self._at(state, p, "named still held", open=state.open)

    def _read_named(self, state: State, p: int, _appender: Appender) -> Iterator[Step]:
        yield "reads `open` to seal it", self._at(state, p, "read named word", open=state.open)

    def _read_named_word(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        index = appender.open[1]
        word = state.slots[index].word if index != NO_SLOT else NO_WORD
        if word[0] == OPEN:
            yield f"sees slot {index} open", self._at(state, p, "seal named", word=word)
        else:
            yield "sees nothing to seal", self._at(state, p, "named still held")

    def _seal_named(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        index = appender.open[1]
        is_sealed = state.slots[index].word == appender.word
        place = "named still held" if is_sealed else "read named word"
        yield f"seals slot {index}", self._at(self._sealed(state, index, appender.word), p, place, word=NO_WORD)

    def _named_still_held(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        place = "forget named" if self._is_held(state, p, appender) else "look"
        yield "checks whether it was passed", self._at(state, p, place)

    def _forget_named(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        if state.open == appender.open:
            forgotten = state._replace(open=(appender.acquisition, NO_SLOT))
            yield "forgets `open`", self._at(forgotten, p, "look", open=(0, NO_SLOT))
        else:
            place = "named still held" if self.bounds.repair == "forget" else "read named word"
            yield "finds another `open`", self._at(state, p, place, open=state.open)

    def _forget(self, state: State, p: int, _appender: Appender) -> Iterator[Step]:
        yield "reads `open` to forget it", self._at(state, p, "still held", open=state.open)

    def _still_held(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        place = "forget by cas" if self._is_held(state, p, appender) else "seal scan"
        yield "checks whether it was passed", self._at(state, p, place, scanned=0)

    def _forget_by_cas(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        if state.open == appender.open:
            state = state._replace(open=(appender.acquisition, NO_SLOT))
            yield "forgets `open`", self._at(state, p, "seal scan", open=(0, NO_SLOT), scanned=0)
        else:
            yield "finds another `open`", self._at(state, p, "still held", open=state.open)

    def _seal_scan(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        if appender.scanned == len(state.slots):
            yield "has repaired", self._at(state, p, "look", scanned=0, open=(0, NO_SLOT))
            return
        word = state.slots[appender.scanned].word
        if word[0] == OPEN:
            yield f"sees slot {appender.scanned} open", self._at(state, p, "seal it", word=word)
        else:
            yield f"sees slot {appender.scanned}", self._at(state, p, "seal scan", scanned=appender.scanned + 1)

    def _seal_it(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        state = self._sealed(state, appender.scanned, appender.word)
        yield f"seals slot {appender.scanned}", self._at(state, p, "seal scan", word=NO_WORD)

    def _sealed(self, state: State, index: int, word: Word) -> State:
        """Return the state with the slot sealed, or unchanged if the slot no longer has this word."""
        slot = state.slots[index]
        if slot.word != word:
            return state
        return self._with_slot(state, index, slot.with_word(READY if slot.record_count else DONE, slot.record_count))

    # ---- appender: claim and commit ----

    def _look(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        index = state.open[1]
        nothing = "chain fence" if self._is_oversized(p) else "allocate"
        place = nothing if index == NO_SLOT else "read word" if index == appender.hazard else "set hazard"
        yield "reads `open`", self._at(state, p, place, open=state.open)

    def _set_hazard(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        index = appender.open[1]
        if self.mutation not in ("no hazard", "late hazard"):
            state = self._with_writing(state, p, index)
        yield "publishes another hazard", self._at(state, p, "read word", hazard=index)

    def _read_word(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        place = "chain fence" if self._is_oversized(p) else "fence"
        yield "reads the word", self._at(state, p, place, word=state.slots[appender.open[1]].word)

    def _fence(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        if not self._is_held(state, p, appender) and self.mutation != "no second lock check":
            yield "finds that it was passed", self._at(state, p, "leave:hint")
        elif appender.word[0] != OPEN:
            yield "finds no open batch", self._at(state, p, "allocate")
        elif appender.word[2] == self.bounds.capacity:
            yield "finds the batch full", self._at(state, p, "seal full")
        else:
            place = "publish late" if self.mutation == "late hazard" else "write"
            yield "may write", self._at(state, p, place)

    def _publish_late(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        yield "publishes its hazard", self._at(self._with_writing(state, p, appender.open[1]), p, "write")

    def _seal_full(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        yield "seals the full batch", self._at(self._sealed(state, appender.open[1], appender.word), p, "allocate")

    def _write(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        index, count = appender.open[1], appender.word[2]
        slot = state.slots[index]
        if slot.generation != appender.word[1] or slot.state == FREE:
            yield (
                "writes into a slot that was freed",
                state._replace(wrong="an appender stored bytes into a slot that was freed meanwhile"),
            )
            return
        data = (*slot.data[:count], (p, appender.number), *slot.data[count + 1 :])
        yield "writes its record", self._at(self._with_slot(state, index, slot._replace(data=data)), p, "meta")

    def _meta(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        index, count = appender.open[1], appender.word[2]
        slot = state.slots[index]
        if slot.generation != appender.word[1] or slot.state == FREE:
            yield (
                "writes into a slot that was freed",
                state._replace(wrong="an appender stored meta into a slot that was freed meanwhile"),
            )
            return
        cell = (*(slot.meta[count & 1] if count else ()), (p, appender.number))
        both = self.mutation == "both meta cells written"
        meta = (cell, cell) if both else _replace(slot.meta, (count + 1) & 1, cell)
        yield "writes meta", self._at(self._with_slot(state, index, slot._replace(meta=meta)), p, "commit")

    def _commit(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        index, count = appender.open[1], appender.word[2]
        slot = state.slots[index]
        if slot.word == appender.word:
            yield "commits", self._committed(state, p, index, slot.with_word(OPEN, count + 1))
        elif self.mutation == "commit by a store":
            stored = Slot(OPEN, appender.word[1], count + 1, NOBODY, slot.seq, slot.data, slot.meta)
            yield "commits by force", self._committed(state, p, index, stored)
        else:
            yield "finds the batch sealed", self._at(state, p, "leave:hint")

    def _committed(self, state: State, p: int, index: int, slot: Slot) -> State:
        appender = state.appenders[p]
        before = tuple(record for record in appender.behind if record not in state.delivered)
        committed = tuple(sorted((*state.committed, ((p, appender.number), before))))
        return self._at(self._with_slot(state, index, slot)._replace(committed=committed), p, "leave:ok")

    # ---- appender: opening a batch ----

    def _allocate(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        if appender.spare != NO_SLOT:
            yield "has a spare slot", self._at(state, p, "read open")
        elif self._free_slot(state) != NO_SLOT:
            yield "takes a free slot", self._taken(state, p, "read open")
        else:
            yield "finds no free slot", self._at(state, p, "leave:wait for a slot")

    def _wait_for_a_slot(self, state: State, p: int, _appender: Appender) -> Iterator[Step]:
        if self._free_slot(state) != NO_SLOT:
            yield "is granted a slot", self._taken(state, p, "hint")

    def _read_open(self, state: State, p: int, _appender: Appender) -> Iterator[Step]:
        yield "reads `open` before it opens", self._at(state, p, "read seq", open=state.open)

    def _read_seq(self, state: State, p: int, _appender: Appender) -> Iterator[Step]:
        yield "reads next_seq", self._at(state, p, "seq fence", seq=state.next_seq)

    def _seq_fence(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        if self._is_held(state, p, appender) or self.mutation == "no lock check before open":
            yield "still holds the lock", self._at(state, p, "store seq")
        else:
            yield "finds that it was passed", self._at(state, p, "leave:hint")

    def _store_seq(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        slot = state.slots[appender.spare]._replace(seq=appender.seq)
        yield "stores the seq", self._at(self._with_slot(state, appender.spare, slot), p, "take seq")

    def _take_seq(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        if state.next_seq != appender.seq and self.mutation == "next_seq raised by a store":
            yield "sets the seq back", state._replace(wrong="two batches have the same number")
        elif state.next_seq == appender.seq:
            place = "chain ready" if self._is_oversized(p) else "store open"
            yield "takes the seq", self._at(state._replace(next_seq=appender.seq + 1), p, place)
        else:
            yield "finds the seq taken", self._at(state, p, "leave:hint")

    def _store_open(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        slot = state.slots[appender.spare].with_word(OPEN)
        yield "stores OPEN", self._at(self._with_slot(state, appender.spare, slot), p, "set open", word=slot.word)

    def _set_open(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        if state.open == appender.open or self.mutation == "`open` set by a store":
            state = state._replace(open=(appender.acquisition, appender.spare))
            yield "sets `open`", self._at(state, p, "look", spare=NO_SLOT, seq=-1, word=NO_WORD)
        else:
            yield "finds `open` changed", self._at(state, p, "take back")

    def _take_back(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        index = appender.spare
        slot = state.slots[index]
        if slot.word == appender.word and slot.seq != appender.seq:
            yield "takes another batch", state._replace(wrong="an appender took back a slot that another process owns")
        elif slot.word == appender.word:
            owned = self._with_slot(state, index, slot.with_word(OWNED, owner=p))
            yield "takes its slot back", self._at(owned, p, "leave:hint")
        elif self.mutation == "slot taken back by a store":
            yield (
                "takes its slot back by force",
                state._replace(wrong="an appender took back a slot that another process had sealed"),
            )
        else:
            yield "finds its slot sealed", self._at(state, p, "leave:hint", spare=NO_SLOT)

    def _give_back(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        yield "frees its spare slot", self._at(self._freed(state, appender.spare), p, OVER, spare=NO_SLOT)

    # ---- appender: an oversized record ----

    def _take_piece(self, state: State, p: int, _appender: Appender) -> Iterator[Step]:
        if self._free_slot(state) != NO_SLOT:
            yield "takes a free slot", self._taken(state, p, "fill piece")

    def _fill_piece(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        record = (p, appender.number)
        slot = state.slots[appender.spare]._replace(data=(record,), meta=((), (record,)))
        yield "fills its slot", self._at(self._with_slot(state, appender.spare, slot), p, "hint")

    def _chain_fence(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        is_open = appender.open[1] != NO_SLOT and appender.word[0] == OPEN
        if not self._is_held(state, p, appender):
            yield "finds that it was passed", self._at(state, p, "leave:hint")
        elif is_open and self.mutation != "no seal before a chain":
            yield "finds an open batch", self._at(state, p, "chain seal")
        else:
            yield "finds no open batch", self._at(state, p, "chain forget")

    def _chain_seal(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        state = self._sealed(state, appender.open[1], appender.word)
        yield "seals the open batch", self._at(state, p, "chain forget")

    def _chain_forget(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        if state.open != appender.open:
            yield "finds `open` changed", self._at(state, p, "leave:hint")
            return
        if self.mutation != "no seal before a chain":
            state = state._replace(open=(appender.acquisition, NO_SLOT))
        yield "forgets `open`", self._at(state, p, "read seq")

    def _chain_ready(self, state: State, p: int, appender: Appender) -> Iterator[Step]:
        index = appender.spare
        state = self._committed(state, p, index, state.slots[index].with_word(READY, 1))
        yield "commits its record", self._at(state, p, "leave:ok", spare=NO_SLOT)

    # ---- sender ----

    @staticmethod
    def _sender_at(state: State, place: str, slot: int = NO_SLOT, word: Word = NO_WORD, entry: int = 0) -> State:
        return state._replace(sender=Sender(place, slot, word, entry))

    def _sender_idle(self, state: State) -> Iterator[Step]:
        index = self._oldest(state)
        if index != NO_SLOT:
            place = "hazards" if self.mutation == "hazards read before the seal" else "drain"
            yield f"reads slot {index}", self._sender_at(state, place, index, state.slots[index].word)
        for index, slot in enumerate(state.slots):
            if slot.state == DONE and not self._is_pinned(state, index):
                yield f"reads slot {index} again", self._sender_at(state, "hazards", index)
            if slot.state == OWNED and state.appenders[slot.owner].place == DEAD:
                yield f"frees slot {index} of a dead process", self._freed(state, index)

    def _oldest(self, state: State) -> int:
        may_seal_empty = state.empty_seals_left > 0 or self._is_no_appender_active(state)
        filled = [
            (slot.seq, index)
            for index, slot in enumerate(state.slots)
            if slot.state == READY or (slot.state == OPEN and (slot.record_count or may_seal_empty))
        ]
        return min(filled)[1] if filled else NO_SLOT

    @staticmethod
    def _is_no_appender_active(state: State) -> bool:
        waiting = (OVER, DEAD, FROZEN, "wait for a slot", "take piece")
        return all(appender.place in waiting for appender in state.appenders)

    def _sender_drain(self, state: State) -> Iterator[Step]:
        sender = state.sender
        slot = state.slots[sender.slot]
        if sender.word[0] == READY:
            yield "finds it sealed", self._sender_at(state, "deliver", sender.slot)
        elif slot.word == sender.word or self.mutation == "seal by a store":
            yield "seals", self._sender_seals(state, slot)
        else:
            yield "finds another word", self._sender_at(state, "idle")

    def _sender_seals(self, state: State, slot: Slot) -> State:
        count = state.sender.word[2]
        if count == 0 and state.empty_seals_left > 0:
            state = state._replace(empty_seals_left=state.empty_seals_left - 1)
        sealed = slot._replace(state=READY if count else DONE, record_count=count)
        place = "deliver" if count else self._sender_after_done()
        return self._sender_at(self._with_slot(state, state.sender.slot, sealed), place, state.sender.slot)

    def _sender_deliver(self, state: State) -> Iterator[Step]:
        index = state.sender.slot
        slot = state.slots[index]
        for record in slot.data[: slot.record_count]:
            state = self._delivered(state, record)
        state = self._with_slot(state, index, slot._replace(state=DONE))
        yield "delivers, and stores DONE", self._sender_at(state, self._sender_after_done(), index)

    def _sender_after_done(self) -> str:
        return "free" if self.mutation == "hazards read before the seal" else "hazards"

    @staticmethod
    def _delivered(state: State, record: Record) -> State:
        wrong = state.wrong
        if record in state.delivered:
            wrong = "a record was delivered twice"
        elif not set(dict(state.committed)[record]) <= set(state.delivered):
            wrong = "a record was delivered before one whose append had returned earlier"
        return state._replace(delivered=tuple(sorted((*state.delivered, record))), wrong=wrong)

    def _sender_hazards(self, state: State) -> Iterator[Step]:
        sender = state.sender
        p = sender.entry
        if p == len(state.writing) or self.mutation == "hazards ignored":
            after = "free" if sender.word[0] == FREE else "drain"
            yield "finds no hazard", self._sender_at(state, after, sender.slot, sender.word)
        elif state.writing[p] == sender.slot and state.appenders[p].place != DEAD:
            yield f"finds the hazard of {p}", self._sender_at(state, "idle")
        else:
            yield f"reads the hazard of {p}", self._sender_at(state, "hazards", sender.slot, sender.word, p + 1)

    def _sender_free(self, state: State) -> Iterator[Step]:
        yield "frees", self._sender_at(self._freed(state, state.sender.slot), "idle")
