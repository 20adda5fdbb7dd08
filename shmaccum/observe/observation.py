# SPDX-License-Identifier: Apache-2.0
"""Typed facts of an arena at one time, as shown by ``shmaccum stat`` and ``top`` and in their JSON.

An `Observer` reads a live, idle or damaged arena, which may be opened read-only. It takes no lock and contacts none of
the observed processes. Parts are read one after another while the arena is in use, so they need not add up exactly.
Bytes of other processes are untrusted: an impossible index is shown as ``?``. /proc provides only the states of
processes; kernel locks determine which of them live. To keep ``shmaccum stat`` fast, no large package is imported, and
facts are named tuples, whose definition takes a fifth of the time of a frozen dataclass.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from shmaccum.arena import Arena
from shmaccum.arena.delivery_span import DeliveryClockReading
from shmaccum.arena.removal import has_lost_its_name
from shmaccum.arena.reports import Entry, Kind, read_entries
from shmaccum.arena.sender_state import readable_name
from shmaccum.arena.slot_word import SLOT_STATES, record_count_of, size_of, state_of
from shmaccum.exceptions import CorruptArenaError
from shmaccum.observe.limited_topics import LimitedTopic, Parked, Stuck, limited_topics, stuck_partitions

if TYPE_CHECKING:
    from shmaccum.observe.resources import Resources

UNSEEN = "unseen"
GONE = "gone"
DETACHED = "detached"
STOPPED = "stopped"
UNMEASURED_STATES = frozenset({UNSEEN, GONE, DETACHED})
"""States in which the pid does not identify an attached process."""
PROCESS_STATES: Mapping[str, str] = {
    "R": "running",
    "S": "sleeping",
    "D": "disk-sleep",
    "T": STOPPED,
    "t": "tracing-stop",
    "Z": "zombie",
    "X": "dead",
    "I": "idle",
    "P": "parked",
}
"""The state characters in /proc/PID/stat, with psutil's names."""


# --- facts


class ProcessFacts(NamedTuple):
    """A process that has, or last had, an entry of the arena."""

    entry: int
    pid: int
    name: str
    role: str
    state: str
    """The state as named by psutil ("running", "sleeping", "stopped", ...). "gone": the process is dead. "detached":
    the process is alive and has left the arena, or has another entry. "unseen": the pid has no meaning here (another
    pid namespace)."""
    cpu_percent: float | None
    """The share of one core since the previous observation, at first 0. None if it was not or cannot be read."""
    memory_size: int | None
    """Resident bytes. None as above."""
    stopped_age_ns: int | None
    """The time for which it has been stopped, or None. If the kernel does not report when it last ran, the time since
    it was first seen stopped."""
    attached_age_ns: int
    record_count: int
    """The number of records that this process has appended since it attached."""
    record_bytes: int
    """An upper bound of their bytes, as Kafka measures a record."""
    owned_slot_count: int
    """The number of private buffers, without a batch."""
    held_slot_count: int
    """The number of buffers that count for its share (max_process_share): private ones, and batches it opened."""
    held_size: int
    """The size of these buffers."""
    is_waiting: bool
    """Whether one of its threads waits for a buffer, including because of a limit of its topic."""
    is_forcing: bool
    """Whether it is forcing the arena to disk for all appends that wait for that (durability=sync, interval)."""
    passed_count: int
    is_on_fallback: bool = False
    """Whether it sends its records elsewhere (on_unusable)."""

    @property
    def is_alive(self) -> bool:
        """True while the kernel holds its lock."""
        return self.state not in {GONE, DETACHED}

    @property
    def is_stopped(self) -> bool:
        """True if it is stopped (SIGSTOP, a debugger). It keeps its buffers and locks."""
        return self.state == STOPPED


class SenderFacts(NamedTuple):
    """The sender of the arena."""

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
    """The sink of the live sender, or None if there is no sender or it does not name its sink."""
    has_left: bool
    """True if no sender has started, or the last one exited cleanly. False if it died."""
    is_external: bool
    """True if the creator of the arena declared that another program supervises the sender."""


class BatchFacts(NamedTuple):
    """A batch that waits to be sent."""

    slot_index: int
    state: str
    topic: str
    partition: int
    record_count: int
    size: int
    age_ns: int
    left_ns: int | None
    """The time left until its delivery timeout, or None before a sender has set the timeout."""


class PartitionFacts(NamedTuple):
    """The queue of one topic-partition."""

    topic: str
    partition: int
    batch_count: int
    record_count: int
    size: int
    oldest_age_ns: int | None
    stuck: str | None = None
    """The reason why nothing can be delivered now: no_leader, refused or silent. None if delivery is possible."""


@dataclass(frozen=True)
class ErrorFacts:
    """One entry of the arena's error log."""

    status: str
    text: str
    count: int
    age_ns: int
    kind: str = "sentence"
    """The kind of the report in lower case (`shmaccum.arena.reports.Kind`)."""
    place: str = ""
    """The topic-partition of the report."""


def _error(entry: Entry, now_ns: int) -> ErrorFacts:
    report = entry.report
    place = report.name if report.kind in {Kind.RETRIED, Kind.REFUSED} else ""
    age_ns = max(now_ns - entry.last_ns, 0)
    return ErrorFacts(entry.status, report.sentence, entry.report_count, age_ns, report.kind.name.lower(), place)


class OverflowFacts(NamedTuple):
    """The batches in the sender's overflow on disk, as last reported by the sender."""

    batch_count: int
    record_count: int
    size: int
    """Bytes on disk."""
    age_ns: int | None
    """The time for which the overflow has had batches, or None if it is empty."""
    topics: Mapping[str, int]
    """An upper bound of the batches by topic, because their numbers may have gaps."""

    @classmethod
    def of(cls, spilled: Mapping[str, Any], names: list[tuple[str, int]], now_ns: int) -> OverflowFacts:
        """Return the facts of `Arena.spilled`.

        Args:
            spilled: the facts.
            names: topic and partition of each partition index.
            now_ns: the time on the arena's clock.
        """
        topics: Counter[str] = Counter()
        for index, first_seq, end_seq in spilled["ranges"]:
            topics[partition_name(names, index)[0]] += max(end_seq - first_seq, 0)
        since_ns = spilled["since_ns"]
        age_ns = max(now_ns - since_ns, 0) if since_ns else None
        return cls(spilled["batch_count"], spilled["record_count"], spilled["size"], age_ns, dict(topics))


class TransactionFacts(NamedTuple):
    """The transaction of an arena with a transactional_id."""

    number: int
    state: str
    """The state as named by the core. "none" means that no transaction is open."""
    why: str
    """The reason of the abort, or empty."""
    age_ns: int | None
    """The time since it began, or None if none is open."""

    @classmethod
    def of(cls, arena: Arena) -> TransactionFacts | None:
        """Return the facts, or None if the arena has no transactions."""
        if not arena.geometry["is_transactional"]:
            return None
        native = arena.native
        number, state, why = native.transaction
        age_ns = None if state == "none" else max(native.now_ns() - native.transaction_begun_ns, 0)
        return cls(number, state, why, age_ns)


class Observation(NamedTuple):
    """The facts of one observation. Sizes are in bytes. Totals count from the creation of the arena."""

    name: str
    uuid: str
    time_ns: int
    created_ms: int
    arena_epoch: int
    poisoned: str | None
    is_removed: bool
    """True if the arena lost its name, or another arena has it. It then accepts no more records."""
    buffer_memory: int
    batch_size: int
    slot_count: int
    process_slot_count_max: int
    """The most slots that one process may hold (max_process_share). 0 means all."""
    dead_slot_count: int
    """The number of slots of dead processes: batches that are still to be delivered."""
    slots: Mapping[str, int]
    """The number of slots by state."""
    damaged: Mapping[str, int]
    """The number of records in quarantined batches (state BAD) by topic, or under "?" if the topic is unknown."""
    fill: float
    """The share of the slots that are not FREE, 0 to 1."""
    queued_batch_count: int
    queued_record_count: int
    queued_size: int
    oldest_batch: BatchFacts | None
    oversized_bytes: int
    """The bytes of buffers that records larger than a buffer hold now."""
    oversized_bytes_max: int
    """The most bytes that they may hold together (oversized_max_bytes)."""
    waiting_count: int
    """The number of threads that wait for a buffer, including because of a limit of their topic."""
    record_count: int
    record_bytes: int
    completion_count: int
    counters: Mapping[str, int]
    sender: SenderFacts
    delivery_clock: DeliveryClockReading
    overflow: OverflowFacts
    transaction: TransactionFacts | None
    processes: tuple[ProcessFacts, ...]
    partitions: tuple[PartitionFacts, ...]
    topics: Mapping[str, int]
    """The partition count of each topic as reported by the sink, or 0 if unknown."""
    limited_topics: tuple[LimitedTopic, ...]
    """The topics that are stuck or hold their share, the most important first."""
    errors: tuple[ErrorFacts, ...]

    @property
    def left_record_count(self) -> int:
        """The number of records without a result, in the arena and in the sender's overflow."""
        return self.queued_record_count + self.overflow.record_count

    @property
    def is_idle(self) -> bool:
        """True if no record waits, and no sender has started or the last one exited cleanly."""
        is_wanted = self.sender.is_external or self.left_record_count > 0 or self.waiting_count > 0
        return self.sender.has_left and not self.sender.is_alive and not is_wanted

    def as_json(self) -> dict[str, Any]:
        """Returns a JSON document with stable keys."""
        return self._asdict() | {
            "oldest_batch": None if self.oldest_batch is None else self.oldest_batch._asdict(),
            "sender": self.sender._asdict(),
            "delivery_clock": self.delivery_clock.as_json(),
            "overflow": self.overflow._asdict(),
            "transaction": None if self.transaction is None else self.transaction._asdict(),
            "processes": [process._asdict() for process in self.processes],
            "partitions": [partition._asdict() for partition in self.partitions],
            "limited_topics": [topic._asdict() for topic in self.limited_topics],
            "errors": [asdict(error) for error in self.errors],
        }


class Rates(NamedTuple):
    """The changes between two observations, per second."""

    seconds: float
    records: float
    bytes: float
    batches: float
    """Batches opened."""
    records_completed: float
    batches_completed: float
    waits: float
    wait_share: float
    """The time that all threads together waited for buffers, in seconds per second."""
    records_of_entry: Mapping[int, float]
    """The number of records appended by process entry."""

    @classmethod
    def between(cls, before: Observation, after: Observation) -> Rates:
        """Return the rates between two observations of one arena."""
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
        """Returns a JSON document with stable keys."""
        return self._asdict()


# --- observers


class _ProcessState(NamedTuple):
    """The facts of a process at one time, from /proc."""

    state: str
    """The state as named by psutil."""
    start_time_ticks: int
    """Distinguishes a process from a later one with the same pid."""


def _running(pid: int) -> _ProcessState | None:
    """Return the facts of a process, or None if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            fields = stream.read().rpartition(")")[2].split()  # from the third field on
        return _ProcessState(PROCESS_STATES.get(fields[0], fields[0]), int(fields[19]))
    except (OSError, IndexError, ValueError):
        return None


def _text_of(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _ran_last_ms(process: str) -> float | None:
    """Return when a process last ran, in milliseconds of the scheduler's clock, or None if it is not reported."""
    try:
        tasks = [f"/proc/{process}/task/{task}/sched" for task in os.listdir(f"/proc/{process}/task")]
        lines = [line for task in tasks for line in _text_of(task).splitlines()]
        return max(float(line.partition(":")[2]) for line in lines if line.startswith("se.exec_start"))
    except (OSError, ValueError):
        return None


def _state_of_holder(entry: Mapping[str, Any]) -> str:
    """Return the state of the process that has, or last had, an entry."""
    running = _running(entry["pid"])
    if running is not None and running.start_time_ticks != entry["start_time_ticks"]:
        running = None  # a later process with the same pid
    if entry["alive"]:
        return UNSEEN if running is None else running.state
    return GONE if running is None or running.state == "zombie" else DETACHED


class _Queue(NamedTuple):
    """The batches of a partition that wait to be sent."""

    partition_index: int
    batch_count: int
    record_count: int
    size: int
    created_ns: int
    """The time at which the oldest batch was opened."""


class _Oldest(NamedTuple):
    """The batch that has waited longest."""

    slot_index: int
    word: int
    partition_index: int
    created_ns: int
    delivery_stamp_ms: int


class _Held(NamedTuple):
    """The buffers of a process: the private ones, and the total that counts for its share."""

    owned: int
    all: int


class _Census:
    """The contents of all slots of an arena, counted in one pass (native/arena/census.h)."""

    def __init__(self, arena: Arena, now_ns: int) -> None:
        counted = arena.native.census()
        self.states: dict[str, int] = dict(zip(SLOT_STATES, counted["states"], strict=True))
        self.queues = [_Queue(*row) for row in counted["queues"]]
        self.damage: list[tuple[int, int]] = counted["damage"]
        self.oldest = None if counted["oldest"] is None else _Oldest(*counted["oldest"])
        self.parked = [
            Parked(entry, index, max(now_ns - since_ns, 0), free_needed, is_large_admitted)
            for entry, index, since_ns, free_needed, is_large_admitted in counted["parked"]
        ]
        self.held: list[tuple[int, int]] = counted["held"]
        self.waiting: list[int] = counted["waiting"] + [wait.entry for wait in self.parked]
        self._held = {entry: _Held(owned, held) for entry, owned, held in counted["holdings"]}

    def held_by(self, entry: Mapping[str, Any]) -> _Held:
        """Returns the buffers of the process that has, or last had, an entry."""
        return self._held.get(entry["entry"], _Held(0, 0))

    def held_by_the_dead(self, entries: Sequence[Mapping[str, Any]]) -> int:
        """Returns the number of buffers of dead processes."""
        return sum(held.all for held in self._held.values()) - sum(
            self.held_by(entry).all for entry in entries if entry["alive"]
        )


class Observer:
    """Observes one arena repeatedly.

    Args:
        arena: opened in any mode, including read-only.
        resources: reads the CPU and memory of the attached processes. If None, they are not read.
    """

    def __init__(self, arena: Arena, resources: Resources | None = None) -> None:
        self.arena = arena
        self._resources = resources
        self._stopped_ns: dict[tuple[int, int], int] = {}

    def observe(self) -> Observation:
        """Returns the present facts."""
        arena, native = self.arena, self.arena.native
        now_ns = native.now_ns()
        census = _Census(arena, now_ns)
        entries = native.processes()
        states = {entry["entry"]: _state_of_holder(entry) for entry in entries}
        names = native.partitions()
        clock = DeliveryClockReading.of(native)
        overflow = OverflowFacts.of(native.spilled(), names, now_ns)
        stuck = stuck_partitions(arena, now_ns)
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
            dead_slot_count=census.held_by_the_dead(entries),
            slots=census.states,
            damaged=_damaged(census, names),
            fill=1 - census.states["FREE"] / arena.geometry["slot_count"],
            queued_batch_count=sum(queue.batch_count for queue in census.queues),
            queued_record_count=sum(queue.record_count for queue in census.queues),
            queued_size=sum(queue.size for queue in census.queues),
            oldest_batch=_oldest(census.oldest, names, clock),
            oversized_bytes=native.oversized_bytes,
            oversized_bytes_max=arena.geometry["oversized_bytes_max"],
            waiting_count=len(census.waiting),
            record_count=sum(entry["record_count"] for entry in entries),
            record_bytes=sum(entry["record_bytes"] for entry in entries),
            completion_count=native.completion_tail,
            counters=native.counters(),
            sender=self._sender(entries, states, now_ns),
            delivery_clock=clock,
            overflow=overflow,
            transaction=TransactionFacts.of(self.arena),
            processes=tuple(self._processes(entries, states, census, now_ns)),
            partitions=tuple(_partitions(census, names, stuck, now_ns)),
            topics=arena.topics(),
            limited_topics=tuple(
                limited_topics(arena, names, stuck, census.parked, _held(census, names), overflow.topics)
            ),
            errors=tuple(_error(entry, now_ns) for entry in read_entries(native)),
        )

    def _sender(self, entries: list[dict[str, Any]], states: Mapping[int, str], now_ns: int) -> SenderFacts:
        facts = self.arena.native.sender()
        is_alive = self.arena.native.sender_is_alive
        entry = next((entry for entry in entries if entry["entry"] == facts["entry"]), None)
        heartbeat_ns = facts["heartbeat_ns"]
        return SenderFacts(
            is_alive=is_alive,
            pid=entry["pid"] if entry else None,
            name=entry["name"] if entry else None,
            state=states[entry["entry"]] if entry and is_alive else None,
            epoch=facts["epoch"],
            heartbeat_age_ns=max(now_ns - heartbeat_ns, 0) if heartbeat_ns else None,
            is_asleep=facts["is_asleep"],
            producer_id=facts["producer_id"],
            producer_epoch=facts["producer_epoch"],
            sink=readable_name(facts["sink_name"]) if facts["sink_name"] else None,
            has_left=not is_alive and not self.arena.native.sender_died,
            is_external=self._is_external(),
        )

    def _is_external(self) -> bool:
        """Returns False if the options of the arena are damaged, which is reported elsewhere."""
        try:
            return self.arena.has_external_sender
        except CorruptArenaError:
            return False

    def _processes(
        self, entries: list[dict[str, Any]], states: Mapping[int, str], census: _Census, now_ns: int
    ) -> Iterator[ProcessFacts]:
        slot_size = self.arena.geometry["batch_size"]
        waiting = frozenset(census.waiting)
        for entry in entries:
            state = states[entry["entry"]]
            is_seen = state not in UNMEASURED_STATES
            resources = self._resources.read(entry) if self._resources is not None and is_seen else None
            held = census.held_by(entry)
            yield ProcessFacts(
                entry=entry["entry"],
                pid=entry["pid"],
                name=entry["name"],
                role=entry["role"],
                state=state,
                cpu_percent=None if resources is None else resources.cpu_percent,
                memory_size=None if resources is None else resources.memory_size,
                stopped_age_ns=self._stopped_age_ns(entry, state, now_ns),
                attached_age_ns=max(now_ns - entry["attached_ns"], 0),
                record_count=_since_attach(entry, "record_count"),
                record_bytes=_since_attach(entry, "record_bytes"),
                owned_slot_count=held.owned,
                held_slot_count=held.all,
                held_size=held.all * slot_size,
                is_waiting=entry["entry"] in waiting,
                is_forcing=entry["alive"] and entry["is_forcing"],
                passed_count=_since_attach(entry, "passed_count"),
                is_on_fallback=entry["alive"] and entry["fallback"],
            )

    def _stopped_age_ns(self, entry: Mapping[str, Any], state: str, now_ns: int) -> int | None:
        """Returns the time since the process last ran or, if the kernel does not report it, since it was first seen."""
        key = (entry["entry"], entry["generation"])
        if state != STOPPED:
            self._stopped_ns.pop(key, None)
            return None
        seen_ns = now_ns - self._stopped_ns.setdefault(key, now_ns)
        # The kernel reports when a process last ran only with CONFIG_SCHED_DEBUG.
        then_ms, now_ms = _ran_last_ms(str(entry["pid"])), _ran_last_ms("self")
        stopped_ns = None if then_ms is None or now_ms is None else max(int((now_ms - then_ms) * 1e6), 0)
        return max(stopped_ns or 0, seen_ns)


def _since_attach(entry: Mapping[str, Any], name: str) -> int:
    """Return the increase of a counter since the process attached."""
    return max(int(entry[name]) - int(entry[f"{name}_before"]), 0)


def partition_name(names: list[tuple[str, int]], partition_index: int) -> tuple[str, int]:
    """Return topic and partition of an index read from the arena, or ("?", -1) if the index is impossible."""
    return names[partition_index] if partition_index < len(names) else ("?", -1)


def _oldest(oldest: _Oldest | None, names: list[tuple[str, int]], clock: DeliveryClockReading) -> BatchFacts | None:
    if oldest is None:
        return None
    topic, partition = partition_name(names, oldest.partition_index)
    return BatchFacts(
        slot_index=oldest.slot_index,
        state=state_of(oldest.word),
        topic=topic,
        partition=partition,
        record_count=record_count_of(oldest.word),
        size=size_of(oldest.word),
        age_ns=max(clock.now_ns - oldest.created_ns, 0),
        left_ns=clock.left_ns(oldest.created_ns, oldest.delivery_stamp_ms),
    )


def _damaged(census: _Census, names: list[tuple[str, int]]) -> dict[str, int]:
    """Return the number of records in quarantined batches by topic."""
    counts: dict[str, int] = {}
    for partition_index, record_count in census.damage:
        topic, _ = partition_name(names, partition_index)
        counts[topic] = counts.get(topic, 0) + record_count
    return counts


def _held(census: _Census, names: list[tuple[str, int]]) -> dict[str, int]:
    """Return the number of buffers by topic."""
    counts: Counter[str] = Counter()
    for partition_index, slot_count in census.held:
        counts[partition_name(names, partition_index)[0]] += slot_count
    return counts


def _partitions(
    census: _Census, names: list[tuple[str, int]], stuck: Sequence[Stuck], now_ns: int
) -> Iterator[PartitionFacts]:
    """Yield the queue of each partition, including empty ones."""
    queues = {queue.partition_index: queue for queue in census.queues}
    reasons = {one.partition_index: one.reason for one in stuck}
    for index, (topic, partition) in enumerate(names):
        queue, reason = queues.get(index), reasons.get(index)
        if queue is None:
            yield PartitionFacts(topic, partition, 0, 0, 0, None, reason)
        else:
            age_ns = max(now_ns - queue.created_ns, 0)
            yield PartitionFacts(topic, partition, queue.batch_count, queue.record_count, queue.size, age_ns, reason)
