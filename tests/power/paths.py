# SPDX-License-Identifier: Apache-2.0
"""The paths of a record from store to store, each with its levels.

A trial cuts the power of one path several times. After each cut, the next boot completes all deliveries of the path.
Then everything that the ledger recorded as promised before the cut must be there.
"""

from __future__ import annotations

import abc
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

from kafka.record import MemoryRecords

from shmaccum.arena import Arena
from shmaccum.log.files import LogReader
from shmaccum.log.groups.offsets_file import OffsetsFile
from tests.power.disk import SHMACCUM, Disk, worker
from tests.power.ledger import Entry, read_ledgers
from tests.power.worker import PARTITIONS, TOPIC
from tests.support.processes import WATCHDOG_S

WORKERS = 3
INTERVAL_MS = 200
SLACK_MS = 1500
"""A busy machine may force an arena with an interval late by this time. Only the promises that are checked depend on
it.
"""
CUT_S = (0.6, 1.6)
"""The power is cut at a random time in this range after the first promise of a boot."""
MEMORY = "1MiB"


class RefusedLevelError(Exception):
    """The program rejected the level of this trial, whether or not it should."""


class Figures:
    """The outcome of a trial.

    Attributes:
        lost: the names of promises that were broken.
    """

    def __init__(self) -> None:
        self.cut_count = 0
        self.promised: set[str] = set()
        self.lost: set[str] = set()
        self.doubled_count = 0
        self.damaged_count = 0
        self.wrong: list[str] = []
        """Sentences about other broken promises."""
        self.is_refused = False

    @property
    def is_good(self) -> bool:
        """True if no promise was broken."""
        return not (self.lost or self.damaged_count or self.wrong) and bool(self.promised or self.is_refused)

    def __str__(self) -> str:
        if self.is_refused:
            return "refused, and nothing is lost"
        counts = (
            f"{self.cut_count} cuts, {len(self.promised):,} promised, {len(self.lost):,} lost, "
            f"{self.doubled_count:,} doubled, {self.damaged_count:,} damaged"
        )
        examples = [f"lost are {', '.join(sorted(self.lost)[:3])}"] if self.lost else []
        return "; ".join([counts, *examples, *self.wrong[:3]])


class Trial(abc.ABC):
    """A path with one level, on its own disk."""

    name: ClassVar[str]
    levels: ClassVar[tuple[str, ...]]
    refused: ClassVar[tuple[str, ...]] = ()
    """Levels that the program must reject."""
    cut_after_s = 0.0
    """The delay until the power is cut."""
    doubles: ClassVar[bool] = False
    """Records may be delivered twice, because the next boot may find the arena as it was before their delivery."""

    def __init__(self, disk: Disk, level: str, seed: int) -> None:
        self.disk = disk
        self.level = level
        self.round = 0
        self._worker_count = 0
        self.choose = random.Random(seed)
        self.figures = Figures()
        self.arena = str(disk.path / "a" / "b" / "events")
        self.out = disk.path / "x" / "y" / "log"

    def run(self, cut_count: int) -> Figures:
        """Cut the power `cut_count` times, or until something is lost."""
        try:
            self.prepare()
            for self.round in range(cut_count):
                self.start()
                self._wait_for_promise()
                time.sleep(self.choose.uniform(*CUT_S) + self.cut_after_s)
                self.disk.check()
                self.disk.cut()
                self.figures.cut_count += 1
                self.disk.boot()
                self.settle()
                self._count()
                if not self.figures.is_good:
                    break
        except RefusedLevelError:
            self.figures.is_refused = True
            if self.level not in self.refused:
                self.figures.wrong.append(f"the level {self.level} is refused: {self.disk.told()}")
        if self.level in self.refused and not self.figures.is_refused:
            self.figures.wrong.append(f"the level {self.level} is not refused")
        return self.figures

    def prepare(self) -> None:  # noqa: B027 - most paths begin with nothing
        """Create what must exist before the processes of the first boot start."""

    @abc.abstractmethod
    def start(self) -> None:
        """Start the processes of a boot."""

    @abc.abstractmethod
    def settle(self) -> None:
        """Complete all deliveries of the path in the next boot."""

    @abc.abstractmethod
    def found(self) -> Counter[str]:
        """Return the names that arrived, and how often each arrived."""

    def is_promise(self, entry: Entry) -> bool:
        """Return True for an entry of the ledger that the power cut must not undo."""
        return entry.kind in {"sent", "got"}

    def ledger(self, role: str) -> str:
        """Return the ledger of a process of this boot."""
        return str(self.disk.memory / f"{role}-{self.round}.ledger")

    def worker(self, role: str, *arguments: object) -> None:
        """Start a worker with its own ledger."""
        self._worker_count += 1
        self.disk.start(*worker(role, self.ledger(f"{role}-{self._worker_count}"), *arguments))

    def entries(self) -> Iterator[Entry]:
        """Return every entry so far."""
        return read_ledgers(self.disk.memory, self.disk.boots_ns, self.disk.cuts_ns)

    def _wait_for_promise(self) -> None:
        deadline_s, known = time.monotonic() + WATCHDOG_S, self._sign_count
        while sum(self.is_sign(entry) for entry in self.entries()) <= known:
            self.disk.check()
            assert time.monotonic() < deadline_s, f"nothing is promised: {self.disk.told()}"
            time.sleep(0.05)

    @property
    def _sign_count(self) -> int:
        """Return the number of signs of earlier boots."""
        return sum(self.is_sign(entry) for entry in self.entries() if entry.time_ns < max(self.disk.cuts_ns, default=0))

    def is_sign(self, entry: Entry) -> bool:
        """Return True for an entry which shows that the programs are working."""
        return self.is_promise(entry)

    def _count(self) -> None:
        figures, found = self.figures, self.found()
        figures.promised |= {entry.name for entry in self.entries() if self.is_promise(entry)}
        figures.lost = figures.promised - found.keys()
        figures.doubled_count = sum(found.values()) - len(found)
        if figures.doubled_count and not self.doubles:
            figures.wrong.append(f"{figures.doubled_count} came twice")

    # --- helpers

    def wait_for(self, kind: str) -> None:
        """Wait until a worker of this boot has recorded an entry of this kind."""
        since_ns, deadline_s = max(self.disk.cuts_ns, default=0), time.monotonic() + WATCHDOG_S
        while not any(entry.kind == kind and entry.time_ns > since_ns for entry in self.entries()):
            self.disk.check()
            assert time.monotonic() < deadline_s, f"nothing is {kind}: {self.disk.told()}"
            time.sleep(0.05)

    def values(self, directory: Path) -> Iterator[str]:
        """Return the values in a log, as kafka-python reads them, and count damage."""
        for path in sorted(directory.glob(f"{TOPIC}-*/*.log")):
            records = MemoryRecords(path.read_bytes())
            while (batch := records.next_batch()) is not None:
                if not batch.validate_crc():
                    self.figures.damaged_count += 1
                elif not batch.is_control_batch:
                    yield from (record.value.decode().split(" ")[0] for record in batch)

    def create_arena(self, *options: str) -> None:
        """Create the arena, in new folders."""
        os.makedirs(os.path.dirname(self.arena), exist_ok=True)
        topic = ("--topic", f"{TOPIC}:{PARTITIONS}", "--buffer-memory", MEMORY)
        assert self.disk.run(*SHMACCUM, "create", self.arena, *topic, *options) == 0, self.disk.told()

    def durable(self, durability: str) -> tuple[str, ...]:
        """Return the options of an arena with a level."""
        interval = ("--sync-interval-ms", f"{INTERVAL_MS}ms") if durability == "interval" else ()
        return ("--durability", durability, *interval)


class _OfArena(Trial):
    """A path that begins with an arena in a file. Its level is that of the arena, or ARENA/SINK."""

    doubles = True

    def __init__(self, disk: Disk, level: str, seed: int) -> None:
        super().__init__(disk, level, seed)
        self.durability = level.partition("/")[0]
        if self.durability == "interval":  # otherwise, no record would be old enough
            self.cut_after_s = (INTERVAL_MS + SLACK_MS) / 1000

    def prepare(self) -> None:
        self.create_arena(*self.durable(self.durability))

    def is_promise(self, entry: Entry) -> bool:
        is_old = entry.age_ns > (INTERVAL_MS + SLACK_MS) * 10**6
        return entry.kind == "got" or (entry.kind == "sent" and (self.durability == "sync" or is_old))

    def is_sign(self, entry: Entry) -> bool:
        return entry.kind == "got"

    def start_producers(self) -> None:
        """Start producers that wait for some of their futures."""
        for number in range(WORKERS):
            self.worker("produce", self.arena, f"{self.round}.{number}", "some")

    def start_senders_alone(self) -> None:
        """Start producers that wait for no future."""
        for number in range(WORKERS):
            self.worker("send_alone", self.arena, f"{self.round}.{number}")


class ArenaToLog(_OfArena):
    """Arena file → log. The level "unset" means that the sink has no level."""

    name = "arena-log"
    levels = tuple(
        f"{arena}/{sink}" for arena in ("sync", "interval") for sink in ("unset", "none", "interval", "batch")
    )
    refused: ClassVar[tuple[str, ...]] = ("sync/none", "sync/interval", "interval/none")

    @property
    def sender(self) -> list[str]:
        sync = self.level.partition("/")[2]
        options = [] if sync == "unset" else ["-X", f"sync={sync}"]
        options += ["-X", f"sync_interval_ms={INTERVAL_MS}"] if sync == "interval" else []
        return [*SHMACCUM, "sender", self.arena, "--sink", f"log:{self.out}", *options]

    def prepare(self) -> None:
        super().prepare()
        if self.level in self.refused and self.disk.run(*self.sender, "--idle-exit", "100ms"):
            raise RefusedLevelError

    def start(self) -> None:
        self.disk.start(*self.sender)
        self.start_producers()

    def settle(self) -> None:
        self.disk.run(*self.sender, "--idle-exit", "300ms")

    def found(self) -> Counter[str]:
        return Counter(self.values(self.out))


class MemoryToLog(ArenaToLog):
    """Arena in memory → log. A record is promised when its future has returned."""

    name = "memory-log"
    levels = ("process/batch",)
    refused = ()
    doubles = False

    def __init__(self, disk: Disk, level: str, seed: int) -> None:
        super().__init__(disk, level, seed)
        self.arena = f"shmaccum-power-{os.getpid()}"

    def prepare(self) -> None:
        """Create nothing, because each boot creates a new arena."""

    def run(self, cut_count: int) -> Figures:
        try:
            return super().run(cut_count)
        finally:
            Arena.remove(self.arena, missing_ok=True)

    def start(self) -> None:
        Arena.create(self.arena, buffer_memory=MEMORY, topics={TOPIC: PARTITIONS}).close()
        self.disk.start(*self.sender)
        for number in range(WORKERS):
            self.worker("produce", self.arena, f"{self.round}.{number}", "every")

    def settle(self) -> None:
        Arena.remove(self.arena)


class Overflow(_OfArena):
    """Arena file → overflow → log, whose sink alternately fails and works."""

    name = "overflow"
    levels = ("sync", "interval")

    @property
    def flag(self) -> Path:
        return self.disk.memory / "fails"

    def start(self) -> None:
        if self.choose.random() < 0.7:
            self.flag.touch()
        self.worker("spill", self.arena, self.out, self.disk.path / "o" / "p" / "overflow", self.flag, "")
        self.start_senders_alone()
        if self.flag.exists():
            self._spill()

    def is_sign(self, entry: Entry) -> bool:
        return entry.kind == "sent"

    def _spill(self) -> None:
        """Wait until the overflow has records. They may have been shipped before the power is cut."""
        deadline_s = time.monotonic() + WATCHDOG_S
        while not any((self.disk.path / "o/p/overflow").glob(f"{TOPIC}-*/*.log")):
            self.disk.check()
            assert time.monotonic() < deadline_s, f"nothing is spilled: {self.disk.told()}"
            time.sleep(0.05)
        if self.choose.random() < 0.5:
            time.sleep(self.choose.uniform(0.1, 0.5))
            self.flag.unlink()

    def settle(self) -> None:
        self.flag.unlink(missing_ok=True)
        overflow = self.disk.path / "o" / "p" / "overflow"
        ledger = self.ledger("settle")
        self.disk.run(*worker("spill", ledger, self.arena, self.out, overflow, self.flag, "500ms"))

    def found(self) -> Counter[str]:
        return Counter(self.values(self.out))


class DeadLetters(_OfArena):
    """Arena file → dead letters."""

    name = "dead-letters"
    levels = ("sync", "interval")

    @property
    def letters(self) -> Path:
        return self.disk.path / "d" / "e" / "letters"

    def is_sign(self, entry: Entry) -> bool:
        return entry.kind == "sent"

    def start(self) -> None:
        self.worker("bury", self.arena, self.out, self.letters, "")
        self.start_senders_alone()

    def settle(self) -> None:
        self.disk.run(*worker("bury", self.ledger("settle"), self.arena, self.out, self.letters, "500ms"))

    def found(self) -> Counter[str]:
        return Counter(self.values(self.letters))


class _Transactions(Trial):
    """Transactions: one that is committed is whole and visible, and one that is aborted is never seen."""

    def is_promise(self, entry: Entry) -> bool:
        return entry.kind == "committed"

    def found(self) -> Counter[str]:
        """Return the transactions of which every record is there."""
        reader = LogReader(self.out, isolation_level="read_committed")
        parts: dict[str, Counter[str]] = {}
        for place in reader.topic_partitions():
            for record in reader.partition(*place).records():
                name, _, part = (record.value or b"").decode().partition("/")
                parts.setdefault(name, Counter())[part] += 1
        self._judge(parts)
        return Counter({name: max(found.values()) for name, found in parts.items()})

    def _judge(self, parts: dict[str, Counter[str]]) -> None:
        aborted = {entry.name for entry in self.entries() if entry.kind == "aborted"}
        for name, found in parts.items():
            count = int(name.rpartition(".")[2])
            if len(found) != count:
                self.figures.wrong.append(f"{len(found)} of {count} records of transaction {name} are visible")
            if name in aborted:
                self.figures.wrong.append(f"transaction {name} was aborted and is visible")


class ArenaTransactions(_Transactions):
    """Transactions of an arena file → log."""

    name = "transactions"
    levels = ("sync", "interval")

    def prepare(self) -> None:
        self.create_arena(*self.durable(self.level), "--transactional-id", "power")

    @property
    def sender(self) -> list[str]:
        return [*SHMACCUM, "sender", self.arena, "--sink", f"log:{self.out}"]

    def start(self) -> None:
        self.disk.start(*self.sender)
        self.worker("transact", self.arena, self.round, self.choose.randrange(10**6))

    def settle(self) -> None:
        self.disk.run(*self.sender, "--idle-exit", "300ms")


class ServedTransactions(_Transactions):
    """Transactions of a client of a server."""

    name = "served-transactions"
    levels = ("batch",)

    def start(self) -> None:
        address = _free_address()
        self.worker("serve", self.out, self.level, "yes", address)
        self.wait_for("serves")
        self.worker("transact_at_server", address, self.round, self.choose.randrange(10**6))

    def settle(self) -> None:
        """Start a server, which writes missing markers before it serves."""
        self.worker("serve", self.out, self.level, "yes", _free_address())
        self.wait_for("serves")
        self.disk.kill()


class Shipping(ArenaToLog):
    """Arena file → log → shipper → log."""

    name = "shipper"
    levels = ("sync/unset",)
    refused = ()

    @property
    def target(self) -> Path:
        return self.disk.path / "s" / "t" / "copy"

    def start(self) -> None:
        super().start()
        deadline_s = time.monotonic() + WATCHDOG_S
        while not any(self.out.glob(f"{TOPIC}-*/*.log")):
            assert time.monotonic() < deadline_s, f"there is no log: {self.disk.told()}"
            time.sleep(0.05)
        self.worker("ship", self.out, self.target, "yes")

    def settle(self) -> None:
        super().settle()
        self.disk.run(*worker("ship", self.ledger("settle"), self.out, self.target, "no"))

    def found(self) -> Counter[str]:
        source, copy = super().found(), Counter(self.values(self.target))
        more = sum((copy - source).values())
        if more:
            self.figures.wrong.append(f"{more} records were shipped more often than the log has them")
        return copy


class LocalGroups(Trial):
    """Commits of a group without a server."""

    name = "local-groups"
    levels = ("batch", "interval")

    def start(self) -> None:
        self._fill()
        self.worker("consume", self.out, "group")

    def _fill(self) -> None:
        self.worker("fill", self.out, self.level)
        self.wait_for("filled")

    def is_promise(self, entry: Entry) -> bool:
        return entry.kind == "committed"

    def settle(self) -> None:
        self.disk.run(*worker("apply", self.ledger("settle"), self.out, self.level))

    def found(self) -> Counter[str]:
        """Return every promised offset that is not above the offset in the file."""
        offsets = OffsetsFile(str(self.out), "group", is_writer=False).offsets
        ends = {place.partition: committed.offset for place, committed in offsets.items()}
        promised = {entry.name for entry in self.entries() if self.is_promise(entry)}
        return Counter(name for name in promised if _is_below(name, ends))


def _is_below(name: str, ends: dict[int, int]) -> bool:
    partition, offset = map(int, name.split(":"))
    return offset <= ends.get(partition, -1)


class ServedGroups(LocalGroups):
    """Commits of a group at a server that reads a log while another process writes it."""

    name = "served-groups"

    def start(self) -> None:
        self._fill()
        address = _free_address()
        self.worker("serve", self.out, self.level, "no", address)
        self.wait_for("serves")
        self.worker("consume_at_server", address, "group")


class Staging(_Transactions):
    """Staged records → log, as Spark's tasks and commits do it."""

    name = "staging"
    levels = ("batch", "interval")

    def start(self) -> None:
        self.worker("stage", self.out, self.level, self.round)

    def settle(self) -> None:
        self.disk.run(*worker("apply", self.ledger("settle"), self.out, self.level))


TRIALS: dict[str, type[Trial]] = {
    one.name: one
    for one in (
        ArenaToLog,
        MemoryToLog,
        Overflow,
        DeadLetters,
        ArenaTransactions,
        ServedTransactions,
        Shipping,
        LocalGroups,
        ServedGroups,
        Staging,
    )
}


def each_trial(names: Iterable[str]) -> Iterator[tuple[type[Trial], str]]:
    """Yield every path of these names, or ``PATH:LEVEL``, with each of its levels."""
    for given in names:
        name, _, level = given.partition(":")
        for each in TRIALS[name].levels:
            if level in ("", each):
                yield TRIALS[name], each


def run_trial(kind: type[Trial], level: str, cut_count: int, seed: int) -> Figures:
    """Cut the power of a path `cut_count` times."""
    with Disk() as disk:
        return kind(disk, level, seed).run(cut_count)


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"
