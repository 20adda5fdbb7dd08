# SPDX-License-Identifier: Apache-2.0
"""Typed facts of an arena at this moment, as ``shmaccum stat`` and ``top`` show them and print them as JSON.

An `Observer` reads a live, idle or damaged arena that may be opened read-only, takes no lock, and asks none of the
processes it reports on. Parts are read one after another while the arena is in use, so they need not add up exactly.
Bytes of another process are input; an impossible index is shown as ``?``. psutil gives names and figures of processes
only; the kernel's locks tell the living from the dead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from shmaccum.arena import WAITER_WAIT, Arena, tables
from shmaccum.arena.delivery_span import DeliveryClock
from shmaccum.arena.removal import has_lost_its_name
from shmaccum.arena.reports import read_entries
from shmaccum.sinks.names import readable_name

STATE_OF = {name: index for index, name in enumerate(tables.SLOT_STATES)}
OWNER_INDEX_BITS = 12
OWNER_GENERATION_BITS = 19
OWNER_MASK = 2 ** (OWNER_INDEX_BITS + OWNER_GENERATION_BITS) - 1
OPENED_STATES = ("OPEN", "READY", "DONE", "CONT")
UNSEEN = "unseen"
GONE = "gone"
DETACHED = "detached"
STOPPED = psutil.STATUS_STOPPED


# --- facts


@dataclass(frozen=True)
class ProcessFacts:
    """A process that holds, or held, an entry of the arena."""

    entry: int
    pid: int
    name: str
    role: str
    state: str
    """As psutil names it ("running", "sleeping", "stopped", ...). "gone": the process is dead. "detached": the process
    lives and has left the arena, or has another entry now. "unseen": the pid means nothing here (another pid
    namespace)."""
    cpu_percent: float | None
    memory_size: int | None
    stopped_age_ns: int | None
    """For how long it has been stopped; None when it is not. Where the kernel does not tell when it ran last: for how
    long it has been seen so."""
    attached_age_ns: int
    record_count: int
    """Records that this process has appended since it attached."""
    record_bytes: int
    """The bytes these take at most, as Kafka measures a record."""
    owned_slot_count: int
    """Buffers it holds privately."""
    held_slot_count: int
    """Buffers that count for its share (max_process_share): those, and the batches it opened that are not free yet."""
    held_size: int
    """Bytes of these buffers."""
    is_waiting: bool
    """A thread of it waits for a buffer."""
    is_forcing: bool
    """It forces the arena to disk for all whose appends wait for that (durability=sync, interval)."""
    passed_count: int

    @property
    def is_alive(self) -> bool:
        """True while the kernel holds its lock."""
        return self.state not in {GONE, DETACHED}

    @property
    def is_stopped(self) -> bool:
        """True while it is stopped (SIGSTOP, a debugger): it keeps what it holds."""
        return self.state == STOPPED


@dataclass(frozen=True)
class SenderFacts:
    """The sender."""

    is_alive: bool
    pid: int | None
    name: str | None
    state: str | None
    epoch: int
    heartbeat_age_ns: int | None
    is_asleep: bool
    producer_id: int
    producer_epoch: int
    sink: str | None
    """Where the living sender delivers; None: there is none, or it does not say."""


@dataclass(frozen=True)
class BatchFacts:
    """A batch that waits to be sent."""

    slot_index: int
    state: str
    topic: str
    partition: int
    record_count: int
    size: int
    age_ns: int
    left_ns: int | None
    """The rest of the sender's delivery timeout for the batch; None while no sender has told its timeout."""


@dataclass(frozen=True)
class PartitionFacts:
    """The queue of one topic-partition."""

    topic: str
    partition: int
    batch_count: int
    record_count: int
    size: int
    oldest_age_ns: int | None


@dataclass(frozen=True)
class ErrorFacts:
    """One sentence of the arena's error log."""

    status: str
    text: str
    count: int
    age_ns: int


@dataclass(frozen=True)
class OverflowFacts:
    """The batches in the sender's overflow on disk, as the sender told them last."""

    batch_count: int
    record_count: int
    size: int
    """Bytes on disk."""
    age_ns: int | None
    """Since when something lies there; None: nothing does."""

    @classmethod
    def of(cls, spilled: Mapping[str, Any], now_ns: int) -> OverflowFacts:
        """The facts of `Arena.spilled`."""
        since_ns = spilled["since_ns"]
        age_ns = max(now_ns - since_ns, 0) if since_ns else None
        return cls(spilled["batch_count"], spilled["record_count"], spilled["size"], age_ns)


@dataclass(frozen=True)
class Observation:
    """One look at an arena. Sizes in bytes; totals count from the arena's creation."""

    name: str
    uuid: str
    time_ns: int
    created_ms: int
    arena_epoch: int
    poisoned: str | None
    is_removed: bool
    """The arena lost its name, or another arena has it: it takes no more records."""
    buffer_memory: int
    batch_size: int
    slot_count: int
    process_slot_count_max: int
    """How many of them one process may hold (max_process_share); 0: all."""
    dead_slot_count: int
    """Slots that processes hold which are gone: batches that are still to be delivered."""
    slots: Mapping[str, int]
    """State -> slots in it."""
    damaged: Mapping[str, int]
    """Topic -> records in its batches that were quarantined and are kept (state BAD); "?" where it cannot be told."""
    fill: float
    """Share of the slots that are not FREE, 0 to 1."""
    queued_batch_count: int
    queued_record_count: int
    queued_size: int
    oldest_batch: BatchFacts | None
    waiting_count: int
    record_count: int
    record_bytes: int
    completion_count: int
    counters: Mapping[str, int]
    sender: SenderFacts
    delivery_clock: DeliveryClock
    overflow: OverflowFacts
    processes: tuple[ProcessFacts, ...]
    partitions: tuple[PartitionFacts, ...]
    topics: Mapping[str, int]
    """Topic -> partitions its sink reported; 0 unknown."""
    errors: tuple[ErrorFacts, ...]

    def as_json(self) -> dict[str, Any]:
        """The same for machines; keys are stable."""
        return asdict(self) | {"delivery_clock": self.delivery_clock.as_json()}


@dataclass(frozen=True)
class Rates:
    """The changes between two looks, per second."""

    seconds: float
    records: float
    bytes: float
    batches: float
    """Opened."""
    records_completed: float
    batches_completed: float
    waits: float
    wait_share: float
    """Seconds spent waiting for buffers, of all threads together, per second."""
    records_of_entry: Mapping[int, float]
    """Process entry -> records it appended."""

    @classmethod
    def between(cls, before: Observation, after: Observation) -> Rates:
        """Rates of the time between two observations of one arena."""
        seconds = max((after.time_ns - before.time_ns) / 1e9, 1e-9)

        def per_second(old: float, new: float) -> float:
            return max(new - old, 0) / seconds

        def counted(label: str) -> float:
            return per_second(before.counters.get(label, 0), after.counters.get(label, 0))

        known = {(process.entry, process.pid): process.record_count for process in before.processes}
        return cls(
            seconds=seconds,
            records=per_second(before.record_count, after.record_count),
            bytes=per_second(before.record_bytes, after.record_bytes),
            batches=counted("batches opened"),
            records_completed=counted("records completed"),
            batches_completed=counted("batches completed"),
            waits=counted("allocations that waited for a buffer"),
            wait_share=counted("nanoseconds spent waiting for a buffer") / 1e9,
            records_of_entry={
                process.entry: per_second(
                    known.get((process.entry, process.pid), process.record_count), process.record_count
                )
                for process in after.processes
            },
        )

    def as_json(self) -> dict[str, Any]:
        """The same for machines; keys are stable."""
        return asdict(self)


# --- looking


def _process_fields(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on, which is the state; none when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()
    except OSError:
        return []


def _start_time_ticks(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat: tells a process from a later one with the same number."""
    try:
        return int(_process_fields(pid)[19])
    except (IndexError, ValueError):
        return None


def _lives_on(entry: Mapping[str, Any]) -> bool:
    """True when the process that had the entry last is no zombie, whether or not it is attached."""
    return _start_time_ticks(entry["pid"]) == entry["start_time_ticks"] and _process_fields(entry["pid"])[:1] != ["Z"]


def _ran_last_ms(process: str) -> float | None:
    """When a process ran last, in milliseconds of the scheduler's clock, which has no other name."""
    try:
        tasks = [f"/proc/{process}/task/{task}/sched" for task in os.listdir(f"/proc/{process}/task")]
        lines = [line for task in tasks for line in Path(task).read_text(encoding="utf-8").splitlines()]
        return max(float(line.partition(":")[2]) for line in lines if line.startswith("se.exec_start"))
    except (OSError, ValueError):
        return None


def _resting_ns(pid: int) -> int | None:
    """How long ago a process ran last; None where the kernel does not tell (CONFIG_SCHED_DEBUG)."""
    then_ms, now_ms = _ran_last_ms(str(pid)), _ran_last_ms("self")
    return None if then_ms is None or now_ms is None else max(int((now_ms - then_ms) * 1e6), 0)


class _ProcessWatch:
    """psutil's view of the attached processes; kept between looks, for CPU is what happened between two."""

    def __init__(self) -> None:
        self._watched: dict[tuple[int, int], psutil.Process] = {}

    def look(self, entry: Mapping[str, Any]) -> tuple[str, float | None, int | None]:
        """State, CPU in percent of one core, resident bytes."""
        if not entry["alive"]:
            return DETACHED if _lives_on(entry) else GONE, None, None
        try:
            process = self._process(entry["pid"], entry["start_time_ticks"])
            if process is None:
                return UNSEEN, None, None
            with process.oneshot():
                return process.status(), process.cpu_percent(), process.memory_info().rss
        except (psutil.Error, OSError, ValueError):
            return UNSEEN, None, None

    def _process(self, pid: int, start_time_ticks: int) -> psutil.Process | None:
        key = (pid, start_time_ticks)
        if key not in self._watched:
            if _start_time_ticks(pid) != start_time_ticks:
                return None
            self._watched[key] = psutil.Process(pid)
        return self._watched[key]


@dataclass(frozen=True)
class _Slots:
    """A private copy of the slot headers, taken apart."""

    states: tables.Words
    words: tables.Words
    table: tables.Table

    @classmethod
    def copy(cls, arena: Arena) -> _Slots:
        table = arena.slot_table().copy()
        return cls(tables.slot_state(table["word"]), table["word"], table)

    def counts(self) -> dict[str, int]:
        numbers = np.bincount(self.states.astype(np.int64), minlength=len(tables.SLOT_STATES))
        return dict(zip(tables.SLOT_STATES, numbers.tolist(), strict=True))

    def queued(self) -> tables.Table:
        """Indices of slots with a batch that waits to be sent."""
        is_queued = (self.states == STATE_OF["READY"]) | (self.states == STATE_OF["OPEN"])
        found: tables.Table = np.flatnonzero(is_queued & (tables.slot_record_count(self.words) > 0))
        return found

    def owned_by(self) -> dict[int, int]:
        """Owner -> slots it holds privately."""
        return _counts(self.words[self.states == STATE_OF["OWNED"]] & np.uint64(OWNER_MASK))

    def held_by(self) -> dict[int, int]:
        """Owner -> slots that count for its share, as native/arena/process_share.c counts them."""
        held = _counts(self.table["opener"][np.isin(self.states, [STATE_OF[state] for state in OPENED_STATES])])
        for owner, count in self.owned_by().items():
            held[owner] = held.get(owner, 0) + count
        held.pop(0, None)
        return held


def _counts(owners: tables.Table) -> dict[int, int]:
    values, numbers = np.unique(owners, return_counts=True)
    return {int(value): int(number) for value, number in zip(values, numbers, strict=True)}


def owner_of(entry: Mapping[str, Any]) -> int:
    """The word by which slots name a process (native/arena/slot_word.h)."""
    index: int = entry["entry"]
    generation: int = entry["generation"] & (2**OWNER_GENERATION_BITS - 1)
    return generation << OWNER_INDEX_BITS | (index + 1)


class Observer:
    """Looks at one arena again and again.

    Args:
        arena: opened in any way; read-only is enough.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._watch = _ProcessWatch()
        self._stopped_ns: dict[tuple[int, int], int] = {}

    def observe(self) -> Observation:
        """One look."""
        arena, native = self.arena, self.arena.native
        now_ns = native.now_ns()
        slots = _Slots.copy(arena)
        queued = slots.queued()
        counts = slots.counts()
        entries = native.processes()
        names = native.partitions()
        clock = DeliveryClock.of(native)
        return Observation(
            name=arena.name,
            uuid=arena.uuid.hex(),
            time_ns=now_ns,
            created_ms=native.created_ms,
            arena_epoch=native.arena_epoch,
            poisoned=native.poisoned,
            is_removed=native.closing != "not" or has_lost_its_name(arena),
            buffer_memory=arena.geometry["buffer_memory"],
            batch_size=arena.geometry["batch_size"],
            slot_count=arena.geometry["slot_count"],
            process_slot_count_max=arena.geometry["process_slot_count_max"],
            dead_slot_count=_held_by_the_dead(slots, entries),
            slots=counts,
            damaged=_damaged(slots, names),
            fill=1 - counts["FREE"] / len(slots.table),
            queued_batch_count=len(queued),
            queued_record_count=int(tables.slot_record_count(slots.words[queued]).sum()),
            queued_size=int(tables.slot_size(slots.words[queued]).sum()),
            oldest_batch=_oldest(slots, queued, names, clock),
            waiting_count=self._waiting_count(),
            record_count=sum(entry["record_count"] for entry in entries),
            record_bytes=sum(entry["record_bytes"] for entry in entries),
            completion_count=native.completion_tail,
            counters=native.counters(),
            sender=self._sender(entries, now_ns),
            delivery_clock=clock,
            overflow=OverflowFacts.of(native.spilled(), now_ns),
            processes=tuple(self._processes(entries, slots, now_ns)),
            partitions=tuple(_partitions(slots, queued, names, now_ns)),
            topics=self._topics(),
            errors=tuple(
                ErrorFacts(entry.status, entry.report.sentence, entry.report_count, max(now_ns - entry.last_ns, 0))
                for entry in read_entries(native)
            ),
        )

    def _waiting_count(self) -> int:
        return int(self._is_waiting().sum())

    def _is_waiting(self) -> tables.Table:
        """For each waiter entry, whether somebody waits there for a buffer."""
        is_waiting: tables.Table = (self.arena.waiter_table()["word"] >> np.uint64(62)) == WAITER_WAIT
        return is_waiting

    def _waiting_entries(self) -> set[int]:
        """Process entries of those who wait."""
        owners = self.arena.waiter_table()["owner"][self._is_waiting()] & np.uint32(2**OWNER_INDEX_BITS - 1)
        return {int(owner) - 1 for owner in owners}

    def _topics(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for topic in self.arena.native.topics():
            with contextlib.suppress(ValueError):  # a name that was damaged
                counts[topic] = self.arena.native.topic_partition_count(topic)
        return counts

    def _sender(self, entries: list[dict[str, Any]], now_ns: int) -> SenderFacts:
        facts = self.arena.native.sender()
        is_alive = self.arena.native.sender_is_alive
        entry = next((entry for entry in entries if entry["entry"] == facts["entry"]), None)
        heartbeat_ns = facts["heartbeat_ns"]
        return SenderFacts(
            is_alive=is_alive,
            pid=entry["pid"] if entry else None,
            name=entry["name"] if entry else None,
            state=self._watch.look(entry)[0] if entry and is_alive else None,
            epoch=facts["epoch"],
            heartbeat_age_ns=max(now_ns - heartbeat_ns, 0) if heartbeat_ns else None,
            is_asleep=facts["is_asleep"],
            producer_id=facts["producer_id"],
            producer_epoch=facts["producer_epoch"],
            sink=readable_name(facts["sink_name"]) if facts["sink_name"] else None,
        )

    def _processes(self, entries: list[dict[str, Any]], slots: _Slots, now_ns: int) -> Iterator[ProcessFacts]:
        owned, held = slots.owned_by(), slots.held_by()
        slot_size = self.arena.geometry["batch_size"]
        waiting = self._waiting_entries()
        for entry in entries:
            state, cpu_percent, memory_size = self._watch.look(entry)
            held_slot_count = held.get(owner_of(entry), 0)
            yield ProcessFacts(
                entry=entry["entry"],
                pid=entry["pid"],
                name=entry["name"],
                role=entry["role"],
                state=state,
                cpu_percent=cpu_percent,
                memory_size=memory_size,
                stopped_age_ns=self._stopped_age_ns(entry, state, now_ns),
                attached_age_ns=max(now_ns - entry["attached_ns"], 0),
                record_count=_own(entry, "record_count"),
                record_bytes=_own(entry, "record_bytes"),
                owned_slot_count=owned.get(owner_of(entry), 0),
                held_slot_count=held_slot_count,
                held_size=held_slot_count * slot_size,
                is_waiting=entry["entry"] in waiting,
                is_forcing=entry["alive"] and entry["is_forcing"],
                passed_count=_own(entry, "passed_count"),
            )

    def _stopped_age_ns(self, entry: Mapping[str, Any], state: str, now_ns: int) -> int | None:
        """The age of a stop: since the process ran last, or, without the kernel's word, since it was first seen."""
        key = (entry["entry"], entry["generation"])
        if state != STOPPED:
            self._stopped_ns.pop(key, None)
            return None
        seen_ns = now_ns - self._stopped_ns.setdefault(key, now_ns)
        return max(_resting_ns(entry["pid"]) or 0, seen_ns)


def _own(entry: Mapping[str, Any], name: str) -> int:
    """How far a counter of a process entry has come since the process that has the entry attached."""
    return max(int(entry[name]) - int(entry[f"{name}_before"]), 0)


def _held_by_the_dead(slots: _Slots, entries: Sequence[Mapping[str, Any]]) -> int:
    alive = {owner_of(entry) for entry in entries if entry["alive"]}
    return sum(count for owner, count in slots.held_by().items() if owner not in alive)


def partition_name(names: list[tuple[str, int]], partition_index: int) -> tuple[str, int]:
    """Topic and partition of an index read from the arena; ("?", -1) of an impossible one."""
    return names[partition_index] if partition_index < len(names) else ("?", -1)


def _oldest(
    slots: _Slots, queued: tables.Table, names: list[tuple[str, int]], clock: DeliveryClock
) -> BatchFacts | None:
    if len(queued) == 0:
        return None
    index = int(queued[np.argmin(slots.table["created_ns"][queued])])
    slot, word = slots.table[index], slots.words[index : index + 1]
    topic, partition = partition_name(names, int(slot["partition_index"]))
    return BatchFacts(
        slot_index=index,
        state=tables.SLOT_STATES[int(slots.states[index])],
        topic=topic,
        partition=partition,
        record_count=int(tables.slot_record_count(word)[0]),
        size=int(tables.slot_size(word)[0]),
        age_ns=max(clock.now_ns - int(slot["created_ns"]), 0),
        left_ns=clock.left_ns(int(slot["created_ns"]), int(slot["delivery_stamp_ms"])),
    )


def _damaged(slots: _Slots, names: list[tuple[str, int]]) -> dict[str, int]:
    """Records of quarantined batches by topic."""
    counts: dict[str, int] = {}
    for index in np.flatnonzero(slots.states == STATE_OF["BAD"]).tolist():
        topic, _ = partition_name(names, int(slots.table["partition_index"][index]))
        counts[topic] = counts.get(topic, 0) + int(tables.slot_record_count(slots.words[index : index + 1])[0])
    return counts


def _partitions(
    slots: _Slots, queued: tables.Table, names: list[tuple[str, int]], now_ns: int
) -> Iterator[PartitionFacts]:
    """The queue of each partition, empty ones too."""
    indices = slots.table["partition_index"][queued]
    possible = queued[indices < len(names)]
    indices = indices[indices < len(names)]
    words = slots.words[possible]

    def summed(weights: tables.Words) -> tables.Table:
        total: tables.Table = np.bincount(indices, weights=weights.astype(np.float64), minlength=len(names))
        return total

    batches = np.bincount(indices, minlength=len(names))
    records, sizes = summed(tables.slot_record_count(words)), summed(tables.slot_size(words))
    oldest = np.full(len(names), np.iinfo(np.uint64).max, dtype=np.uint64)
    np.minimum.at(oldest, indices, slots.table["created_ns"][possible])
    for index, (topic, partition) in enumerate(names):
        age_ns = max(now_ns - int(oldest[index]), 0) if batches[index] else None
        yield PartitionFacts(topic, partition, int(batches[index]), int(records[index]), int(sizes[index]), age_ns)
