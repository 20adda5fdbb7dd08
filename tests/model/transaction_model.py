# SPDX-License-Identifier: Apache-2.0
"""The transaction word as a model: appenders, coordinators and senders that may die at any step.

One step of the model is one access to shared memory, as ``native/arena/transaction.c``,
``native/producer/producer_batch.c`` and ``native/sender/ending.c`` make it. There is one partition. Any appender may be
passed at any time, so all of them run at once. ``lock_model.py`` models the bytes and hazards of slots, and the two
words of the lock. A record is oversized where its appender is in ``oversized`` (its chain is one slot here).

    word          (number, state, why, has batches)
    coordinator   the process that has the coordinator's role, or NOBODY
    open          the slot that the partition names, or NO_SLOT
    holder        the appender that has the lock of the partition, or NOBODY
    slot          word (state, records, owner)
    broker        the records that the broker has of its open transaction

Some accesses of the code are one step here. A load of a word and the compare-and-swap from its value are one, because
the swap succeeds only if the value is unchanged, and only the value matters. A check that the lock is held is one step
with the load before it, and a repair omits the check. Here an appender also continues if it was passed in between, so
the model has every behaviour of the code, and more. Taking a slot from the pool is one step with the load of ``open``
after it, because no other process may use that slot meanwhile.

No word returns to an earlier value in the code: a slot has a generation, and ``open`` the number of an acquisition. So
the model has no such numbers. It remembers for each appender whether the slot was freed, and whether ``open``
was stored, since the appender read them (``slot_kept``, ``open_kept``). An appender remembers nothing else that it will
not use.

A coordinator takes the role, begins, and then commits or aborts. Both are tried in every state. It leaves when it has
aborted, or has read the outcome of its commit. A transaction without batches is over when its coordinator commits or
aborts it. If the coordinator is dead, the sender or the next coordinator does. The sender drains batches, has some of
them in flight, may fail one permanently or let one expire (``failures``), may find an open transaction
too old (``is_late``), and ends transactions. A batch in flight may have reached the broker when the sender dies. The
next sender knows nothing of a dead one. An appender that joined a transaction passes its number with the
record.

The explorer checks every state. No slot has a record while the word is NONE or DECIDED. An accepted record ends once,
in the transaction that was open when the record was committed to its batch. If its appender joined a transaction, that
is the one. Until then, the record is in a slot or at the broker. A rejected record ends in none. If a batch of a
transaction was rejected, it is not committed. A coordinator sees a commit if and only if the broker has committed. From
every state an end can be reached.

``mutation`` breaks a rule. The explorer must find each one (``MUTATIONS``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

NONE, OPEN, COMMITTING, DECIDED, ABORTING, ABORT_ONLY = (
    "none",
    "open",
    "committing",
    "decided",
    "aborting",
    "abort only",
)
FREE, OWNED, FILLING, READY, DONE = "free", "owned", "filling", "ready", "done"
OVER = "over"  # finished or dead
NOBODY = -1
NO_SLOT = -1

Record = tuple[int, int]  # appender, number

# The outcome of a record: PENDING, or the number of the transaction that accepted it, or CLOSED: no transaction may
# have it any more, because it was rejected, has ended in one, or is from a dead appender.
PENDING, CLOSED = -2, -1

# A slot in flight: held by the sink, known to the broker, or with a result that is not from the broker.
LENT, TAKEN, RESULT = "lent", "taken", "result"

MUTATIONS = {
    "word not read after OPEN": (
        "an opener does not read the word after it has opened its batch, so it misses the end of its transaction"
    ),
    "word read before OPEN only": (
        "an opener reads the word only before it opens its batch, so it misses an end in between"
    ),
    "batches sealed before COMMITTING": (
        "batches are sealed only before COMMITTING is stored, so one that is opened in between stays open"
    ),
    "sender does not seal": "only the coordinator seals the batches, so they stay open if it dies",
    "decision without a scan": "the sender decides without reading the slots, so records without a result are left",
    "failed batch DONE before ABORT_ONLY": (
        "the sender ends a rejected batch before it marks the transaction, so the transaction may be committed"
    ),
    "chain committed by a store": (
        "an oversized record is committed by a store, so it may be accepted after the end of its transaction"
    ),
    "number compared first": (
        "an appender compares its number before it reads the batch, which may be of a later transaction"
    ),
    "number not compared": (
        "an appender does not compare the number of the transaction that it joined, so its record is in another one"
    ),
    "record committed by a store": (
        "a record is committed by a store, so it may be accepted by a batch that was sealed meanwhile"
    ),
    "dead coordinator not aborted": "no process aborts the transaction of a dead coordinator, so it never ends",
    "NONE before the broker's end": (
        "the word is NONE before the broker has ended the transaction, so it may end the next one"
    ),
    "role taken from the living": "a process takes the coordinator's role from a living one, so two coordinators run",
    "batch not reported": (
        "an opener does not report that the transaction has a batch, so the transaction ends as an empty one"
    ),
    "batch reported after `open`": (
        "an opener sets `open` before it reports its batch, so others append before the report"
    ),
    "batch reported by a store": (
        "an opener reports its batch by a store, which overwrites a word that has changed meanwhile"
    ),
    "empty commit by a store": (
        "a transaction without batches is committed by a store, which overwrites the report of a batch"
    ),
    "empty abort by a store": (
        "a coordinator aborts a transaction without batches by a store, which overwrites the report of a batch"
    ),
    "sender's empty abort by a store": (
        "the sender aborts an empty transaction of a dead coordinator by a store, "
        "which overwrites a word that has changed meanwhile"
    ),
    "abort with batches stores NONE": (
        "an abort stores NONE although the word says that there are batches, so their records are left"
    ),
    "ABORT_ONLY aborted as empty": (
        "an abort stores NONE from ABORT_ONLY, a word that never says whether there are batches"
    ),
    "empty abort without a reason": (
        "the abort of a transaction without batches stores no reason, so it looks like a commit"
    ),
    "batch used after a pass": (
        "an appender that was passed uses the batch that it read, which may be of another transaction"
    ),
    "role given up before the outcome": (
        "a coordinator gives up its role before it reads the outcome, so it may see the next transaction"
    ),
    "ended transaction continued": (
        "the sender continues with a transaction that has ended since it read the word, and decides it"
    ),
    "abort of a later transaction": (
        "the sender finds a transaction without a coordinator, and aborts the one that is open by then"
    ),
    "no repair after a pass": (
        "an appender that passes another one does not repair, so a batch gets records after the end of its transaction"
    ),
}


class Word(NamedTuple):
    """The word of the transaction."""

    number: int = 0
    state: str = NONE
    why: str = ""
    has_batches: bool = False


class Slot(NamedTuple):
    """A slot word with the records that it counts."""

    state: str = FREE
    records: tuple[Record, ...] = ()
    owner: int = NOBODY

    @property
    def is_filled(self) -> bool:
        """True if the slot has a record without a result."""
        return self.state == READY or (self.state == FILLING and bool(self.records))

    @property
    def sealed(self) -> Slot:
        """The same batch, sealed."""
        if self.state != FILLING:
            return self
        return self._replace(state=READY) if self.records else Slot(DONE)


class Shared(NamedTuple):
    """The values that all processes see, and the history that only the checks remember."""

    word: Word
    slots: tuple[Slot, ...]
    slot_kept: tuple[int, ...]  # per appender: the slot that it has read was not freed since
    open_kept: tuple[bool, ...]  # per appender: `open` was not stored since it read it
    is_dead: tuple[bool, ...]  # per process; only appenders that have a slot
    deaths_left: int
    failures_left: int
    fates: tuple[int, ...]  # per record
    coordinator: int = NOBODY
    open: int = NO_SLOT
    holder: int = NOBODY
    broker: tuple[Record, ...] = ()
    is_committed: bool = False  # the broker has committed the word's transaction
    is_failed: bool = False  # a batch of the word's transaction was rejected
    wrong: str | None = None


class Appender(NamedTuple):
    """The current step of an appender, and its knowledge."""

    place: str = "begin"
    number: int = 0
    spare: int = NO_SLOT
    slot: int = NO_SLOT  # the slot that `open` named
    word: Slot | None = None  # its word, as it was read
    seen: Word | None = None


class Coordinator(NamedTuple):
    """The current step of a coordinator."""

    place: str = "claim"
    left: int = 1
    number: int = 0
    slot: int = 0
    seen: int = NOBODY


class Sender(NamedTuple):
    """The current step of the sender, and the slots that it has in flight."""

    place: str = "idle"
    slot: int = 0
    number: int = 0
    state: str = NONE
    flight: tuple[str, ...] = ()


Own: TypeAlias = Appender | Coordinator | Sender
Step = tuple[str, Shared, Own]


@dataclass(frozen=True)
class Bounds:
    """The size of the model. ``records[p]`` has, for each record of appender p, the number of the transaction that it
    joined, or 0.
    """

    records: tuple[tuple[int, ...], ...]
    transactions: tuple[int, ...] = (1,)
    slot_count: int = 2
    deaths: int = 0
    failures: int = 0
    oversized: tuple[int, ...] = ()
    aborts: bool = True  # a coordinator may also abort
    is_late: bool = False  # the sender may find an open transaction too old


def _with(items: tuple[Any, ...], index: int, item: object) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


class TransactionModel:
    """See the module. The processes are the appenders, the coordinators, and the sender."""

    def __init__(self, bounds: Bounds, mutation: str = ""):
        self.bounds = bounds
        self.mutation = mutation
        self._appender_count = len(bounds.records)
        self._sender = len(bounds.records) + len(bounds.transactions)
        self._joined = {(p, n): joined for p, numbers in enumerate(bounds.records) for n, joined in enumerate(numbers)}
        self._record_index = {record: index for index, record in enumerate(self._joined)}
        self._idle = Sender(flight=("",) * bounds.slot_count)
        self._methods: dict[tuple[type, str], Callable[..., Iterator[Step]]] = {}

    def initial(self) -> tuple[Shared, tuple[Own, ...]]:
        """Return the state in which no transaction was ever begun."""
        count = self._appender_count
        shared = Shared(
            word=Word(),
            slots=(Slot(),) * self.bounds.slot_count,
            slot_kept=(NO_SLOT,) * count,
            open_kept=(False,) * count,
            is_dead=(False,) * self._sender,
            deaths_left=self.bounds.deaths,
            failures_left=self.bounds.failures,
            fates=(PENDING,) * len(self._joined),
        )
        coordinators = (Coordinator(left=left) for left in self.bounds.transactions)
        return shared, (*(Appender() for _ in range(count)), *coordinators, self._idle)

    # ---- rules ----

    def is_over(self, own: Own) -> bool:
        """True if the process is finished or dead, or is a sender without work."""
        return own.place == OVER or own == self._idle

    def is_quiet(self, shared: Shared) -> bool:
        """True if no transaction is left, and every slot is free."""
        return shared.word.state == NONE and all(slot.state == FREE for slot in shared.slots)

    def violation(self, shared: Shared) -> str | None:
        """See the module."""
        if shared.wrong is not None:
            return shared.wrong
        in_slots = {record for slot in shared.slots for record in slot.records}
        if shared.word.state in (NONE, DECIDED) and in_slots:
            return f"a batch has records while the word says {shared.word.state}"
        if shared.word.state == NONE and shared.broker:
            return "the broker has records of a transaction while the word says none"
        for record, index in self._record_index.items():
            if shared.fates[index] >= 0 and record not in in_slots and record not in shared.broker:
                return "an accepted record is in no batch"
        return None

    def _with_fate(self, shared: Shared, record: Record, fate: int) -> Shared:
        return shared._replace(fates=_with(shared.fates, self._record_index[record], fate))

    def _ended(self, shared: Shared, record: Record, number: int) -> Shared:
        """Return the values after the record has ended with the transaction: it is committed or discarded."""
        if shared.fates[self._record_index[record]] != number:
            return shared._replace(wrong="a record did not end once, in the transaction that it was accepted in")
        return self._with_fate(shared, record, CLOSED)

    # ---- next steps ----

    def steps(self, shared: Shared, p: int, own: Own) -> Iterator[Step]:
        """Yield the next step of the process, or its death instead."""
        if own.place == OVER:
            return
        kind = type(own)
        method = self._methods.get((kind, own.place))
        if method is None:
            method = getattr(self, f"_{kind.__name__.lower()}_{own.place.replace(' ', '_')}")
            self._methods[kind, own.place] = method
        name = kind.__name__.lower() if kind is Sender else f"{kind.__name__.lower()} {p}"
        for label, after, own_after in method(shared, p, own):
            yield f"{name} {label}", after, own_after
        if shared.deaths_left > 0 and own != self._idle:
            yield from self._killed(shared, p, own, name)

    def _killed(self, shared: Shared, p: int, own: Own, name: str) -> Iterator[Step]:
        after = shared._replace(deaths_left=shared.deaths_left - 1)
        if isinstance(own, Sender):
            yield f"{name} is killed", after, self._idle
            return
        if isinstance(own, Coordinator):
            yield f"{name} is killed", after._replace(is_dead=_with(after.is_dead, p, True)), Coordinator(OVER, 0)
            return
        for number in range(own.number, len(self.bounds.records[p])):
            if after.fates[self._record_index[p, number]] == PENDING:
                after = self._with_fate(after, (p, number), CLOSED)
        owns_slot = any(slot.owner == p for slot in after.slots)
        after = after._replace(is_dead=_with(after.is_dead, p, owns_slot))
        yield f"{name} is killed", self._forgotten(after, p), Appender(OVER)

    # ---- slots and `open` ----

    @staticmethod
    def _with_slot(shared: Shared, index: int, slot: Slot) -> Shared:
        return shared._replace(slots=_with(shared.slots, index, slot))

    def _sealed(self, shared: Shared, index: int) -> Shared:
        return self._with_slot(shared, index, shared.slots[index].sealed)

    def _freed(self, shared: Shared, index: int) -> Shared:
        kept = tuple(NO_SLOT if slot == index else slot for slot in shared.slot_kept)
        owner = shared.slots[index].owner
        is_dead = shared.is_dead if owner == NOBODY else _with(shared.is_dead, owner, False)
        return self._with_slot(shared, index, Slot())._replace(slot_kept=kept, is_dead=is_dead)

    def _named(self, shared: Shared, slot: int) -> Shared:
        return shared._replace(open=slot, open_kept=(False,) * self._appender_count)

    @staticmethod
    def _reading_slot(shared: Shared, p: int, slot: int) -> Shared:
        return shared._replace(slot_kept=_with(shared.slot_kept, p, slot))

    @staticmethod
    def _reading_open(shared: Shared, p: int) -> Shared:
        return shared._replace(open_kept=_with(shared.open_kept, p, True))

    @staticmethod
    def _forgotten(shared: Shared, p: int) -> Shared:
        """Return the values without what the appender has read, because it no longer uses that."""
        return shared._replace(
            slot_kept=_with(shared.slot_kept, p, NO_SLOT), open_kept=_with(shared.open_kept, p, False)
        )

    def _swapped(self, shared: Shared, p: int, index: int, word: Slot, slot: Slot) -> Shared | None:
        """Replace the slot by compare-and-swap, or return None if the slot has another word."""
        if shared.slot_kept[p] != index or shared.slots[index] != word:
            return None
        return self._with_slot(shared, index, slot)

    # ---- appender: the lock ----

    def _admits(self, shared: Shared, p: int, own: Appender) -> bool:
        joined = self._joined[p, own.number]
        if joined and self.mutation != "number not compared":
            return shared.word[:2] == (joined, OPEN)
        return shared.word.state == OPEN

    def _released(self, shared: Shared, p: int) -> Shared:
        return self._forgotten(shared._replace(holder=NOBODY) if shared.holder == p else shared, p)

    def _again(self, label: str, shared: Shared, p: int, own: Appender) -> Step:
        """Release the lock, and start over with the slot that the appender has."""
        return label, self._released(shared, p), Appender("lock", own.number, own.spare)

    def _next(self, label: str, shared: Shared, p: int, own: Appender) -> Step:
        shared = self._released(shared, p)
        if own.spare != NO_SLOT:
            return label, shared, Appender("give back", own.number, own.spare)
        return label, shared, self._behind(p, own.number)

    def _behind(self, p: int, number: int) -> Appender:
        is_over = number + 1 == len(self.bounds.records[p])
        return Appender(OVER) if is_over else Appender("begin", number + 1)

    def _appender_give_back(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        yield "frees its slot", self._freed(shared, own.spare), self._behind(p, own.number)

    def _refuse(self, label: str, shared: Shared, p: int, own: Appender) -> Step:
        return self._next(label, self._with_fate(shared, (p, own.number), CLOSED), p, own)

    def _accept(self, label: str, shared: Shared, p: int, own: Appender) -> Step:
        number, what, _, has_batches = shared.word
        if what in (NONE, DECIDED):
            shared = shared._replace(wrong=f"a record was accepted while the word says {what}")
        elif what == OPEN and not has_batches:
            shared = shared._replace(wrong="a record was accepted while the word says that there is no batch")
        elif self._joined[p, own.number] not in (0, number):
            shared = shared._replace(wrong=f"a record of another transaction was accepted in {number}")
        return self._next(label, self._with_fate(shared, (p, own.number), number), p, own)

    def _is_oversized(self, p: int) -> bool:
        return p in self.bounds.oversized

    def _appender_begin(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        if self._is_oversized(p):
            yield from self._appender_take_pieces(shared, p, own)
        elif self.mutation == "number compared first" and not self._admits(shared, p, own):
            yield self._refuse("is rejected at once", shared, p, own)
        elif self.mutation == "number compared first":
            yield "finds its transaction open", shared, own._replace(place="lock")
        else:
            yield from self._appender_lock(shared, p, own)

    def _appender_take_pieces(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        if not self._admits(shared, p, own):
            yield self._refuse("is refused", shared, p, own)
        else:
            yield "is admitted", shared, own._replace(place="wait")

    def _appender_lock(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        """A free lock may look held (producer_lock.h), and a holder may be passed when its record is committed."""
        held = shared._replace(holder=p)
        if shared.holder == NOBODY:
            yield "takes the lock", held, own._replace(place="read open")
        place = "read open" if self.mutation == "no repair after a pass" else "repair"
        yield "passes a holder", held, own._replace(place=place)

    def _appender_repair(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        place = "forget" if shared.open == NO_SLOT else "repair seal"
        yield "reads `open` to repair", self._reading_open(shared, p), own._replace(place=place, slot=shared.open)

    def _appender_repair_seal(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        after = own._replace(place="forget", slot=NO_SLOT)
        yield "seals the batch that is named", self._sealed(shared, own.slot), after

    def _appender_forget(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        if shared.holder != p:
            yield self._again("finds that it was passed", shared, p, own)
        if shared.open_kept[p]:
            yield "names no batch", self._named(shared, NO_SLOT), own._replace(place="read open")
        else:
            yield from self._appender_repair(shared, p, own)

    # ---- appender: into the open batch ----

    def _appender_read_open(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        place = "chain look" if self._is_oversized(p) else "read batch"
        if place == "chain look":
            shared = self._reading_open(shared, p)
        yield "reads `open`", shared, own._replace(place=place, slot=shared.open)

    def _appender_read_batch(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        index = own.slot
        slot = shared.slots[index] if index != NO_SLOT else None
        if index != NO_SLOT and shared.holder != p and self.mutation != "batch used after a pass":
            yield self._again("finds that it was passed", shared, p, own)
        elif slot is None or slot.state != FILLING:
            yield "finds no open batch", shared, own._replace(place="admit", slot=NO_SLOT)
        else:
            is_compared = self._joined[p, own.number] and self.mutation != "number compared first"
            place = "compare" if is_compared else "commit"
            yield "reads the batch", self._reading_slot(shared, p, index), own._replace(place=place, word=slot)

    def _appender_compare(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        if self._admits(shared, p, own):
            yield "finds its transaction open", shared, own._replace(place="commit")
        else:
            yield self._refuse("finds its transaction ended", shared, p, own)

    def _appender_commit(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        assert own.word is not None
        committed = own.word._replace(records=(*own.word.records, (p, own.number)))
        after = self._swapped(shared, p, own.slot, own.word, committed)
        if after is None and self.mutation == "record committed by a store":
            after = self._with_slot(shared, own.slot, committed)
        if after is None:
            yield self._again("finds the batch changed", shared, p, own)
        else:
            yield self._accept("commits its record", after, p, own)

    # ---- appender: a new batch ----

    def _appender_admit(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        if not self._admits(shared, p, own):
            yield self._refuse("is refused", shared, p, own)
        else:
            yield "is admitted", shared, own._replace(place="allocate")

    def _appender_allocate(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        for after, index in [(shared, own.spare)] if own.spare != NO_SLOT else self._allocated(shared, p):
            label = f"has slot {index}, and reads `open`"
            if shared.holder == p:
                yield label, self._reading_open(after, p), own._replace(place="store open", spare=index)
            else:
                yield self._again("finds that it was passed", after, p, own._replace(spare=index))
            return
        yield "leaves, and waits for a slot", self._released(shared, p), Appender("wait", own.number)

    def _allocated(self, shared: Shared, p: int) -> Iterator[tuple[Shared, int]]:
        for index, slot in enumerate(shared.slots):
            if slot.state == FREE:
                yield self._with_slot(shared, index, Slot(OWNED, owner=p)), index
                return

    def _appender_wait(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        for after, index in self._allocated(shared, p):
            yield f"is given slot {index}", after, Appender("lock", own.number, index)

    def _appender_store_open(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        if self.mutation == "chain committed by a store" and self._is_oversized(p):
            chain = self._with_slot(shared, own.spare, Slot(READY, ((p, own.number),)))
            yield self._accept("commits its record by a store", chain, p, own._replace(spare=NO_SLOT))
            return
        looks = self.mutation not in ("word not read after OPEN", "word read before OPEN only")
        place = "look" if looks else self._after_read(p)
        opened = self._reading_slot(self._with_slot(shared, own.spare, Slot(FILLING)), p, own.spare)
        yield "says OPEN", opened, own._replace(place=place)

    def _after_read(self, p: int) -> str:
        return "ready" if self._is_oversized(p) else "name"

    def _appender_look(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        if not self._admits(shared, p, own):
            yield "finds the transaction ended", shared, own._replace(place="take back refused")
        elif shared.word.has_batches or self.mutation in ("batch not reported", "batch reported after `open`"):
            yield "finds the transaction open", shared, own._replace(place=self._after_read(p))
        elif self.mutation == "batch reported by a store":
            yield (
                "finds the transaction open and without batches",
                shared,
                own._replace(place="report", seen=shared.word),
            )
        else:
            reported = shared._replace(word=shared.word._replace(has_batches=True))
            yield "reports its batch", reported, own._replace(place=self._after_read(p))

    def _appender_report(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        assert own.seen is not None
        reported = shared._replace(word=own.seen._replace(has_batches=True))
        yield "reports its batch by a store", reported, own._replace(place=self._after_read(p), seen=None)

    def _appender_name(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        if not shared.open_kept[p]:
            yield "finds another batch named", shared, own._replace(place="take back")
            return
        named = self._forgotten(self._named(shared, own.spare), p)
        place = "late report" if self.mutation == "batch reported after `open`" else "read open"
        seen = shared.word if self.mutation == "batch reported after `open`" else None
        yield "names its batch", named, Appender(place, own.number, seen=seen)

    def _appender_late_report(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        is_same = shared.word == own.seen and shared.word.state == OPEN
        reported = shared._replace(word=shared.word._replace(has_batches=True)) if is_same else shared
        yield "reports its batch", reported, own._replace(place="read open", seen=None)

    def _appender_take_back(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        after = self._swapped(shared, p, own.spare, Slot(FILLING), Slot(OWNED, owner=p))
        if after is None:
            yield self._again("finds its slot sealed", shared, p, own._replace(spare=NO_SLOT))
        else:
            yield self._again("takes its slot back", after, p, own)

    def _appender_take_back_refused(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        after = self._swapped(shared, p, own.spare, Slot(FILLING), Slot(OWNED, owner=p))
        if after is not None:
            yield self._refuse("takes its slot back, and raises", after, p, own)
        elif self._is_oversized(p):
            yield "finds its slots sealed", self._released(shared, p), Appender("begin", own.number)
        else:
            yield self._refuse("finds its slot sealed, and raises", shared, p, own._replace(spare=NO_SLOT))

    # ---- appender: an oversized record ----

    def _appender_chain_look(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        slot = shared.slots[own.slot] if own.slot != NO_SLOT else None
        if shared.holder != p:
            yield self._again("finds that it was passed", shared, p, own)
        elif slot is None or slot.state != FILLING:
            yield "finds no open batch", shared, own._replace(place="chain store none", slot=NO_SLOT)
        else:
            reading = self._reading_slot(shared, p, own.slot)
            yield "reads the batch that is named", reading, own._replace(place="chain seal", word=slot)

    def _appender_chain_seal(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        assert own.word is not None
        after = self._swapped(shared, p, own.slot, own.word, own.word.sealed) or shared
        yield "seals the open batch", after, own._replace(place="chain store none", slot=NO_SLOT, word=None)

    def _appender_chain_store_none(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        if shared.open_kept[p]:
            yield "names no batch", self._named(shared, NO_SLOT), own._replace(place="store open")
        else:
            yield self._again("finds another batch named", shared, p, own)

    def _appender_ready(self, shared: Shared, p: int, own: Appender) -> Iterator[Step]:
        after = self._swapped(shared, p, own.spare, Slot(FILLING), Slot(READY, ((p, own.number),)))
        if after is None:
            yield "finds its slots sealed", self._released(shared, p), Appender("begin", own.number)
        else:
            yield self._accept("commits its oversized record", after, p, own._replace(spare=NO_SLOT))

    # ---- coordinator ----

    def _is_gone(self, shared: Shared) -> bool:
        return shared.coordinator == NOBODY or shared.is_dead[shared.coordinator]

    def _coordinator_claim(self, shared: Shared, c: int, own: Coordinator) -> Iterator[Step]:
        if self._is_gone(shared) or self.mutation == "role taken from the living":
            yield "finds the role free", shared, own._replace(place="take", seen=shared.coordinator)

    def _coordinator_take(self, shared: Shared, c: int, own: Coordinator) -> Iterator[Step]:
        if shared.coordinator == own.seen:
            yield "takes the role", shared._replace(coordinator=c), own._replace(place="begin", seen=NOBODY)
        else:
            yield "finds the role taken", shared, own._replace(place="claim", seen=NOBODY)

    def _coordinator_begin(self, shared: Shared, c: int, own: Coordinator) -> Iterator[Step]:
        number, what, _, _ = shared.word
        if what == NONE:
            begun = shared._replace(word=Word(number + 1, OPEN), is_committed=False, is_failed=False)
            yield "begins", begun, own._replace(place="work", number=number + 1)
        elif what in (OPEN, ABORT_ONLY) and self.mutation != "dead coordinator not aborted":
            aborted = self._aborted(shared, number, "dead")
            place = "begin" if aborted.word.state == NONE else "seal old"
            yield "aborts the transaction of a dead coordinator", aborted, own._replace(place=place)

    def _coordinator_work(self, shared: Shared, c: int, own: Coordinator) -> Iterator[Step]:
        is_ours = shared.word[:2] == (own.number, OPEN)
        if self.bounds.aborts:
            yield from self._coordinator_abort(shared, c, own)
        if self.mutation == "batches sealed before COMMITTING":
            yield "commits", shared, own._replace(place="seal")
        elif is_ours and not shared.word.has_batches and self.mutation == "empty commit by a store":
            yield "finds no batch", shared, own._replace(place="store none")
        elif is_ours and not shared.word.has_batches:
            yield from self._coordinator_store_none(shared, c, own)
        elif is_ours:
            yield "commits", self._committing(shared, own.number), own._replace(place="seal")
        else:
            yield "finds that it cannot commit", shared, own._replace(place="wait")

    def _coordinator_store_none(self, shared: Shared, c: int, own: Coordinator) -> Iterator[Step]:
        ended = shared._replace(word=Word(own.number, NONE), is_committed=True)
        yield "finds no batch, and stores NONE", ended, own._replace(place="wait")

    @staticmethod
    def _committing(shared: Shared, number: int) -> Shared:
        is_open = shared.word[:2] == (number, OPEN)
        return shared._replace(word=Word(number, COMMITTING)) if is_open else shared

    def _is_empty(self, word: Word) -> bool:
        if self.mutation == "ABORT_ONLY aborted as empty":
            return not word.has_batches
        return word.state == OPEN and (not word.has_batches or self.mutation == "abort with batches stores NONE")

    def _aborted(self, shared: Shared, number: int, why: str) -> Shared:
        """Return the values after an abort. If nothing has to be aborted, return the same object."""
        word = shared.word
        if word.number != number or word.state not in (OPEN, ABORT_ONLY):
            return shared
        if self._is_empty(word):
            return self._aborted_empty(shared, number, why)
        return shared._replace(word=Word(number, ABORTING, word.why or why))

    def _aborted_empty(self, shared: Shared, number: int, why: str) -> Shared:
        is_told = self.mutation != "empty abort without a reason"
        return shared._replace(word=Word(number, NONE, why if is_told else ""))

    def _coordinator_abort(self, shared: Shared, c: int, own: Coordinator) -> Iterator[Step]:
        aborted = self._aborted(shared, own.number, "asked")
        if aborted is shared:
            yield "finds it aborted", shared, own._replace(place="leave")
        elif aborted.word.state != NONE:
            yield "aborts", aborted, own._replace(place="seal aborted")
        elif self.mutation == "empty abort by a store":
            yield "finds no batch to abort", shared, own._replace(place="store aborted")
        else:
            yield "aborts a transaction without batches", aborted, own._replace(place="leave")

    def _coordinator_store_aborted(self, shared: Shared, c: int, own: Coordinator) -> Iterator[Step]:
        aborted = self._aborted_empty(shared, own.number, "asked")
        yield "finds no batch, and stores NONE", aborted, own._replace(place="leave")

    def _coordinator_sealing(self, shared: Shared, own: Coordinator, place: str) -> Iterator[Step]:
        is_last = own.slot + 1 == len(shared.slots)
        after = own._replace(place=place, slot=0) if is_last else own._replace(slot=own.slot + 1)
        yield f"seals slot {own.slot}", self._sealed(shared, own.slot), after

    def _coordinator_seal(self, shared: Shared, c: int, own: Coordinator) -> Iterator[Step]:
        place = "commit late" if self.mutation == "batches sealed before COMMITTING" else "wait"
        yield from self._coordinator_sealing(shared, own, place)

    def _coordinator_commit_late(self, shared: Shared, c: int, own: Coordinator) -> Iterator[Step]:
        yield "stores COMMITTING", self._committing(shared, own.number), own._replace(place="wait")

    def _coordinator_seal_old(self, shared: Shared, c: int, own: Coordinator) -> Iterator[Step]:
        yield from self._coordinator_sealing(shared, own, "begin")

    def _coordinator_seal_aborted(self, shared: Shared, c: int, own: Coordinator) -> Iterator[Step]:
        yield from self._coordinator_sealing(shared, own, "leave")

    def _coordinator_wait(self, shared: Shared, c: int, own: Coordinator) -> Iterator[Step]:
        number, what, why, _ = shared.word
        if self.mutation == "role given up before the outcome" and shared.coordinator == c:
            yield "gives up its role", shared._replace(coordinator=NOBODY), own
        if number != own.number:
            yield "finds another transaction", shared._replace(wrong="a coordinator cannot read the outcome"), own
        elif what == ABORT_ONLY:
            yield from self._coordinator_abort(shared, c, own)
        elif why == "dead":
            wrong = "the transaction of a living coordinator is aborted as that of a dead one"
            yield "finds its transaction aborted as that of a dead coordinator", shared._replace(wrong=wrong), own
        elif what == ABORTING:
            yield "finds that it is aborted", shared, own._replace(place="leave")
        elif what == NONE:
            if shared.is_committed != (why == ""):
                shared = shared._replace(wrong="a coordinator reads another outcome than the broker's")
            yield "reads the outcome", shared, own._replace(place="leave")

    def _coordinator_leave(self, shared: Shared, c: int, own: Coordinator) -> Iterator[Step]:
        if shared.coordinator == c:
            shared = shared._replace(coordinator=NOBODY)
        left = own.left - 1
        yield "gives up its role", shared, Coordinator("claim", left) if left else Coordinator(OVER, 0)

    # ---- sender: batches ----

    def _sender_idle(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        for index, slot in enumerate(shared.slots):
            yield from self._sender_maintains(shared, own, index, slot)
            yield from self._sender_gets_response(shared, own, index)
        if shared.word.state in (OPEN, COMMITTING):
            yield f"finds {shared.word.state}, and drains", shared, own._replace(place="drain")
        if shared.word.state != NONE:
            yield from self._sender_first_look(shared, p, own)

    def _sender_maintains(self, shared: Shared, own: Sender, index: int, slot: Slot) -> Iterator[Step]:
        if slot.state == DONE or (slot.state == OWNED and shared.is_dead[slot.owner]):
            yield f"frees slot {index}", self._freed(shared, index), own
        elif slot.state == FILLING and not slot.records:
            yield f"completes the empty slot {index}", self._sealed(shared, index), own
        elif slot.state == FILLING and shared.failures_left:
            yield f"seals the old slot {index}", self._sealed(shared, index), own
        elif slot.state == READY and shared.failures_left and own.flight[index] in ("", LENT):
            refused = shared._replace(failures_left=shared.failures_left - 1)
            place = (
                "done early"
                if self.mutation == "failed batch DONE before ABORT_ONLY" and not own.flight[index]
                else "mark"
            )
            yield f"fails slot {index}", refused, own._replace(place=place, slot=index)

    @staticmethod
    def _flying(own: Sender, index: int, what: str) -> Sender:
        return own._replace(flight=_with(own.flight, index, what))

    def _sender_drain(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        """Yield the steps of a drain. The word may have changed since the sender read it."""
        yield "has drained", shared, own._replace(place="idle")
        for index, slot in enumerate(shared.slots):
            if slot.state == FILLING:
                yield f"seals slot {index}", self._sealed(shared, index), own
            elif slot.state == READY and not own.flight[index]:
                yield f"sends slot {index}", shared, self._flying(own, index, LENT)

    def _arrived(self, shared: Shared, index: int) -> Shared:
        return shared._replace(broker=tuple(sorted({*shared.broker, *shared.slots[index].records})))

    def _sender_gets_response(self, shared: Shared, own: Sender, index: int) -> Iterator[Step]:
        flight = own.flight[index]
        landed = self._flying(own, index, "")
        if flight == LENT:
            yield f"delivers slot {index}", self._arrived(shared, index), self._flying(own, index, TAKEN)
            yield f"requeues slot {index}", shared, landed
            if shared.failures_left:
                refused = shared._replace(failures_left=shared.failures_left - 1)
                place = "done early" if self.mutation == "failed batch DONE before ABORT_ONLY" else "mark"
                yield f"gets an error for slot {index}", refused, landed._replace(place=place, slot=index)
        elif flight == TAKEN:
            yield f"gets no response for slot {index}, and requeues it", shared, landed
            yield f"completes the batch of slot {index}", self._with_slot(shared, index, Slot(DONE)), landed
        elif flight == RESULT:
            yield f"gets no response for slot {index}, whose result is stored", self._discarded(shared, index), landed
            yield (
                f"delivers slot {index}, whose result is stored",
                self._discarded(self._arrived(shared, index), index),
                landed,
            )

    def _discarded(self, shared: Shared, index: int) -> Shared:
        for record in shared.slots[index].records:
            if record not in shared.broker:
                shared = self._ended(shared, record, shared.word.number)
        return self._with_slot(shared, index, Slot(DONE))

    # ---- sender: a batch fails ----

    def _sender_mark(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        number, what, _, _ = shared.word
        if what not in (OPEN, COMMITTING):
            yield "finds the transaction aborted", shared, self._failed(own)
        else:
            marked = shared._replace(word=Word(number, ABORT_ONLY, "failed"))
            yield "marks the transaction", marked, own._replace(place="seal failed", number=0)

    @staticmethod
    def _failed(own: Sender) -> Sender:
        return own._replace(place="record failure", number=0)

    def _sender_seal_failed(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        after = self._failed(own) if own.number + 1 == len(shared.slots) else own._replace(number=own.number + 1)
        yield f"seals slot {own.number}", self._sealed(shared, own.number), after

    def _sender_record_failure(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        """Yield the failure of a batch. If it is in flight, its slot stays in use."""
        failed = shared._replace(is_failed=True)
        after = own._replace(place="idle", slot=0)
        if own.flight[own.slot]:
            yield "stores the result of a batch in flight", failed, self._flying(after, own.slot, RESULT)
        else:
            yield "completes the failed batch", self._discarded(failed, own.slot), after

    def _sender_done_early(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        failed = self._discarded(shared._replace(is_failed=True), own.slot)
        yield "completes the failed batch", failed, own._replace(place="mark early", slot=0)

    def _sender_mark_early(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        number, what, _, _ = shared.word
        is_marked = what in (OPEN, COMMITTING)
        marked = shared._replace(word=Word(number, ABORT_ONLY, "failed")) if is_marked else shared
        yield "marks the transaction", marked, own._replace(place="idle")

    # ---- sender: the end of a transaction ----

    def _sender_first_look(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        number, what, _, _ = shared.word
        if what in (OPEN, ABORT_ONLY):
            yield f"finds {what}", shared, own._replace(place="watch", number=number)
        else:
            yield self._pressing(f"finds {what}", shared, own)

    def _sender_watch(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        if self._is_gone(shared) and self.mutation != "dead coordinator not aborted":
            yield "finds no coordinator", shared, own._replace(place="abort")
        else:
            yield "finds a coordinator", shared, own._replace(place="look again", number=0)
            if self.bounds.is_late and self.mutation != "dead coordinator not aborted":
                yield "finds the transaction too old", shared, own._replace(place="abort late")

    def _sender_abort(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        number = shared.word.number if self.mutation == "abort of a later transaction" else own.number
        yield from self._sender_aborts(shared, own, number, "dead")

    def _sender_abort_late(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        yield from self._sender_aborts(shared, own, own.number, "late")

    def _sender_aborts(self, shared: Shared, own: Sender, number: int, why: str) -> Iterator[Step]:
        aborted = self._aborted(shared, number, why)
        if aborted is shared:
            yield "finds it ended", shared, own._replace(place="look again", number=0)
        elif aborted.word.state != NONE:
            yield "aborts it", aborted, own._replace(place="seal aborted", number=0)
        elif self.mutation == "sender's empty abort by a store":
            yield "finds no batch to abort", shared, own._replace(place="store aborted")
        else:
            yield "aborts a transaction without batches", aborted, own._replace(place="look again", number=0)

    def _sender_store_aborted(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        aborted = self._aborted_empty(shared, own.number, "dead")
        yield "finds no batch, and stores NONE", aborted, own._replace(place="look again", number=0)

    def _sender_seal_aborted(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        is_last = own.slot + 1 == len(shared.slots)
        after = own._replace(place="look again", slot=0) if is_last else own._replace(slot=own.slot + 1)
        yield f"seals slot {own.slot}", self._sealed(shared, own.slot), after

    def _sender_look_again(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        what = shared.word.state
        is_ending = what in (COMMITTING, DECIDED, ABORTING)
        if is_ending or (what == NONE and self.mutation == "ended transaction continued"):
            yield self._pressing(f"finds {what}", shared, own)
        else:
            yield f"finds {what}, and leaves it", shared, own._replace(place="idle")

    def _pressing(self, label: str, shared: Shared, own: Sender) -> Step:
        number, what, _, _ = shared.word
        seals = self.mutation not in ("sender does not seal", "batches sealed before COMMITTING")
        pressing = own._replace(place="seal", slot=0, number=number, state=what)
        return label, shared, pressing if seals else self._sealed_all(pressing)

    @staticmethod
    def _sealed_all(own: Sender) -> Sender:
        return own._replace(place="discard" if own.state in (DECIDED, ABORTING) else "look", slot=0)

    def _sender_seal(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        is_last = own.slot + 1 == len(shared.slots)
        after = self._sealed_all(own) if is_last else own._replace(slot=own.slot + 1)
        yield f"seals slot {own.slot}", self._sealed(shared, own.slot), after

    def _leaving(self, own: Sender) -> Sender:
        return self._idle._replace(flight=own.flight)

    def _sender_look(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        if self.mutation == "decision without a scan":
            yield "does not read the slots", shared, own._replace(place="decide", slot=0)
        elif shared.slots[own.slot].is_filled:
            yield f"sees records in slot {own.slot}", shared, self._leaving(own)
        else:
            is_last = own.slot + 1 == len(shared.slots)
            after = own._replace(place="decide", slot=0) if is_last else own._replace(slot=own.slot + 1)
            yield f"sees no record in slot {own.slot}", shared, after

    def _sender_decide(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        if shared.word[:2] == (own.number, NONE):
            yield "decides again", shared._replace(wrong="the sender decides a transaction that has ended"), own
        elif shared.word[:2] == (own.number, own.state):
            decided = shared._replace(word=Word(own.number, DECIDED))
            yield "decides", decided, own._replace(place="last look", state=DECIDED)
        else:
            yield "finds another word", shared, self._leaving(own)

    def _sender_discard(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        index = own.slot
        is_last = index + 1 == len(shared.slots)
        after = own._replace(place="last look", slot=0) if is_last else own._replace(slot=index + 1)
        if shared.slots[index].state != READY:
            yield f"finds no records to discard in slot {index}", shared, after
        elif own.flight[index]:
            flight = TAKEN if own.flight[index] == TAKEN else RESULT
            yield f"stores the result of slot {index}, which is in flight", shared, self._flying(after, index, flight)
        else:
            yield f"discards slot {index}", self._discarded(shared, index), after

    def _sender_last_look(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        if shared.slots[own.slot].is_filled:
            yield f"sees records in slot {own.slot}", shared, self._leaving(own)
        else:
            is_last = own.slot + 1 == len(shared.slots)
            after = own._replace(place="end", slot=0) if is_last else own._replace(slot=own.slot + 1)
            yield f"sees no record in slot {own.slot}", shared, after

    def _sender_end(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        is_commit = own.state == DECIDED
        if self.mutation == "NONE before the broker's end":
            yield "stores NONE", self._none(shared, own), own._replace(place="late end")
        else:
            label = "commits at the broker" if is_commit else "aborts at the broker"
            yield label, self._broker_ended(shared, own), own._replace(place="none")

    def _sender_late_end(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        yield "ends at the broker", self._broker_ended(shared, own), self._leaving(own)

    def _broker_ended(self, shared: Shared, own: Sender) -> Shared:
        """Return the values after the broker has ended the transaction. A later sender may end it again."""
        is_commit = own.state == DECIDED
        if is_commit and (shared.is_failed or shared.word.number != own.number or shared.word.state != DECIDED):
            return shared._replace(wrong="a transaction is committed although it must be aborted")
        for record in shared.broker:
            shared = self._ended(shared, record, own.number)
        return shared._replace(broker=(), is_committed=shared.is_committed or is_commit)

    def _none(self, shared: Shared, own: Sender) -> Shared:
        number, what, why, _ = shared.word
        if number != own.number or what not in (DECIDED, ABORTING):
            return shared
        return shared._replace(word=Word(number, NONE, why))

    def _sender_none(self, shared: Shared, p: int, own: Sender) -> Iterator[Step]:
        yield "stores NONE", self._none(shared, own), self._leaving(own)
