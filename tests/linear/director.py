# SPDX-License-Identifier: Apache-2.0
"""Run one round: start all processes with an empty log, create topics, kill and stop processes, judge.

Each process has a seat. A killed process is replaced there at once. If a process exits early or its output has a
traceback, the round fails.

::

    kind       sender                                    server
    beside     --sink log:LOG                            serve LOG, read only
    transact   the same, with an arena that has transactions
    inside     --sink log:LOG --listen ADDRESS           the sender's
    behind     --sink kafka:ADDRESS --overflow log:DIR   serve LOG --writable, which creates the topics
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import random
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shmaccum.arena import Arena
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.exceptions import ShmaccumError
from shmaccum.log.files import LogDirectory, LogReader, check_log
from tests.kafka.broker import LOOPBACK, held_port
from tests.linear import linearizable, roles
from tests.linear.history import History, Life, Log, NotedEvents, NotedSends, Notes, Positions, read_log
from tests.linear.judge import KINDS, Verdict, judge
from tests.linear.roles import CONSUMERS_LEAVE, PARTITIONS, PRODUCERS_LEAVE, Places, Words
from tests.support.processes import wait_until

PRELOADED = (
    "confluent_kafka",
    "pyarrow",
    "shmaccum.cli.sender",
    "shmaccum.cli.serve",
    "shmaccum.cli.ship",
    "shmaccum.log.server",
    "shmaccum.sender.sinks.kafka",
    "shmaccum.sender.sinks.log",
)
"""Modules that all processes inherit. Otherwise, most of their time would be imports."""
KINDS_OF_ROUNDS = ("beside", "inside", "behind", "transact")
PRODUCERS = 8
CONSUMERS = {"reader": (roles.read_alone, 2), "member": (roles.read_in_group, 3), "kafka": (roles.read_by_kafka, 2)}
"""Role -> its function and its number of seats."""
PAUSE_S = (0.02, 0.5)
STOP_SHARE = 0.15
STOP_S_MAX = 1.0
TOPIC_PAUSE_S = (1.0, 6.0)
TOPIC_COUNT_MAX = 8
CREATION_SHARE = 0.6
"""The share of new topics during whose creation a writer is killed or stopped."""
CREATION_S_MAX = 0.03
WEIGHTS = {"producer": 2.0, "sender": 3.0, "server": 1.5, "shipper": 2.0, "reader": 0.5, "member": 1.5, "kafka": 0.4}
END_S = 180.0
RECORD_COUNT_MIN = 500
"""A round lasts at least until the log has this many records."""
OUTPUT_SIZE_MAX = 3000


@dataclass
class Seat:
    """A role and its process."""

    name: str
    role: str
    run: Callable[[int], None]
    """Takes the number of the incarnation."""
    pid: int = 0
    incarnation: int = -1
    continue_s: float | None = None
    """If the process is stopped, when it is continued."""


@dataclass
class Outcome:
    """The figures of one or more rounds."""

    rounds: int = 0
    seconds: float = 0.0
    record_count: int = 0
    shipped_count: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    verdict: Verdict = field(default_factory=Verdict)
    checked: linearizable.Checked = field(default_factory=linearizable.Checked)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Outcome) -> None:
        """Adds the figures of another round."""
        for name in ("rounds", "seconds", "record_count", "shipped_count"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.kills += other.kills
        self.stops += other.stops
        self.verdict.add_all(other.verdict)
        self.checked.add(other.checked)
        self.failures += other.failures

    @property
    def is_clean(self) -> bool:
        """True when no fault was found."""
        return not (self.verdict.counts.total() or self.checked.faults or self.failures)

    def lines(self) -> list[str]:
        """A line for each failure and each fault."""
        return [*self.failures, *self.verdict.descriptions, *self.checked.faults]

    @property
    def operation_count(self) -> int:
        """Count sends, results, read records and commits."""
        found = self.verdict
        return self.record_count + found.told_count + found.read_count + found.commit_count + found.transaction_count

    def __str__(self) -> str:
        counts = "/".join(str(self.verdict.counts[kind]) for kind in KINDS)
        return (
            f"{self.rounds} rounds in {self.seconds:.0f} s: {self.record_count:,} records, {self.shipped_count:,} "
            f"shipped, {self.verdict.told_count:,} offsets told, {self.verdict.transaction_count:,} transactions, "
            f"{self.verdict.commit_count:,} commits, {self.kills.total():,} kills, {self.stops.total():,} stops, "
            f"{self.verdict.read_count:,} records read, {self.operation_count:,} operations "
            f"({self.operation_count / max(self.seconds, 1):,.0f} a second): "
            f"{counts} {'/'.join(KINDS)}, {len(self.failures)} failures; porcupine: {self.checked}"
        )


class Round:
    """One round.

    Attributes:
        history: the notes and the logs, set by `run`.
    """

    def __init__(self, folder: Path, arena: str, kind: str, seconds: float, seed: str) -> None:
        self.history = History()
        self._kind = kind
        self._seconds = seconds
        self._random = random.Random(seed)
        self._seed = seed
        self._port = held_port()
        self._is_transactional = kind == "transact"
        address = f"{LOOPBACK}:{self._port.getsockname()[1]}"
        self.places = Places(folder, arena, address, is_transactional=self._is_transactional)
        self._outcome = Outcome(rounds=1)
        folder.mkdir(parents=True, exist_ok=True)
        self._words = Words(self.places.words)
        self._seats = self._all_seats()

    # --- seats

    def _all_seats(self) -> list[Seat]:
        places = self.places
        seats = [
            self._seat("producer", number, functools.partial(self._produce, number)) for number in range(PRODUCERS)
        ]
        for role, (run, count) in CONSUMERS.items():
            seats += [
                self._seat(role, number, functools.partial(self._consume, run, f"{role}-{number}"))
                for number in range(count)
            ]
        ship: tuple[object, ...] = ("ship", places.log, "--to", f"log:{places.shipped}", "--quiet")
        if not self._is_transactional:  # a log with transactions is not shipped
            seats.append(self._seat("shipper", 0, functools.partial(_run_command, ship)))
        seats.append(self._seat("sender", 0, functools.partial(_run_command, self._sender_words())))
        if self._kind != "inside":
            serve: tuple[object, ...] = ("serve", places.log, "--listen", places.address, "--quiet")
            serve += ("--writable", "-X", f"num.partitions={PARTITIONS}") if self._kind == "behind" else ()
            seats.append(self._seat("server", 0, functools.partial(_run_command, serve)))
        return seats

    def _seat(self, role: str, number: int, run: Callable[[int], None]) -> Seat:
        return Seat(f"{role}-{number}", role, run)

    def _sender_words(self) -> tuple[object, ...]:
        places, log = self.places, f"log:{self.places.log}"
        to_log = ("sender", places.arena, "--quiet", "--sink", log, "-X", f"num.partitions={PARTITIONS}")
        if self._kind in {"beside", "transact"}:
            return to_log
        if self._kind == "inside":
            return (*to_log, "--listen", places.address)
        to_server = ("sender", places.arena, "--quiet", "--sink", f"kafka:{places.address}")
        waits = ("-X", "reconnect.backoff.max.ms=200", "-X", "overflow.at=1")
        return (*to_server, "--overflow", f"log:{places.overflow}", *waits)

    def _produce(self, number: int, incarnation: int) -> None:
        name = f"producer-{number}"
        produce = roles.produce_in_transactions if self._is_transactional else roles.produce
        produce(self.places, self._notes(name, incarnation), number, incarnation, self._chance(name, incarnation))

    def _consume(self, run: Callable[[Places, Notes, random.Random], None], name: str, incarnation: int) -> None:
        run(self.places, self._notes(name, incarnation), self._chance(name, incarnation))

    def _notes(self, name: str, incarnation: int) -> Notes:
        return Notes(self.places.notes(name, incarnation))

    def _chance(self, name: str, incarnation: int) -> random.Random:
        return random.Random(f"{self._seed}/{name}/{incarnation}")

    def _of(self, *wanted: str) -> list[Seat]:
        return [seat for seat in self._seats if seat.role in wanted]

    # --- lives

    def _start(self, seat: Seat) -> None:
        seat.incarnation += 1
        seat.continue_s = None
        seat.pid = os.fork()
        if seat.pid == 0:
            _be(seat, self.places.output(seat.name))

    def _kill(self, seat: Seat) -> None:
        if not self._is_alive(seat):
            return
        os.kill(seat.pid, signal.SIGKILL)
        os.waitpid(seat.pid, 0)
        self._outcome.kills[seat.role] += 1
        self._start(seat)

    def _is_alive(self, seat: Seat) -> bool:
        """If the process exited, record a failure, replace it and return False."""
        pid, status = os.waitpid(seat.pid, os.WNOHANG)
        if not pid:
            return True
        self._failed(f"{seat.name} ended by itself with {os.waitstatus_to_exitcode(status)}")
        self._start(seat)
        return False

    def _failed(self, what: str) -> None:
        self._outcome.failures.append(f"round {self._seed} ({self._kind}): {what}")

    def _stop(self, seat: Seat, seconds: float) -> None:
        if not self._is_alive(seat):
            return
        os.kill(seat.pid, signal.SIGSTOP)
        seat.continue_s = time.monotonic() + seconds
        self._outcome.stops[seat.role] += 1

    def _continue_due(self, *, are_all: bool = False) -> None:
        for seat in self._seats:
            if seat.continue_s is not None and (are_all or time.monotonic() >= seat.continue_s):
                os.kill(seat.pid, signal.SIGCONT)
                seat.continue_s = None

    # --- the round

    def run(self) -> Outcome:
        """Runs the processes and judges the history."""
        begin_s = time.monotonic()
        for name in PRELOADED:
            importlib.import_module(name)
        gc.freeze()
        try:
            self._begin()
            self._injure()
            self._leave()
        except (AssertionError, ShmaccumError, OSError):
            self._failed(traceback.format_exc())
        finally:
            for seat in self._seats:
                _end_now(seat)
            self._port.close()
            Arena.remove(self.places.arena, missing_ok=True)
        self._judge_outputs()
        self._judge()
        self._outcome.seconds = time.monotonic() - begin_s
        return self._outcome

    def _begin(self) -> None:
        """Start without topics and arena. The producers create the arena."""
        LogDirectory(self.places.log).close()
        first = self._of("producer", "server", "shipper", "reader", "member")
        self._random.shuffle(first)
        for seat in first:
            self._start(seat)
        wait_until(self._has_arena, "there is an arena", END_S)
        for seat in self._of("sender", "kafka"):
            self._start(seat)

    def _has_arena(self) -> bool:
        try:
            Arena.attach(self.places.arena).close()
        except ShmaccumError:
            return False
        return True

    def _injure(self) -> None:
        end_s = time.monotonic() + self._seconds
        topic_s = 0.0
        while time.monotonic() < end_s or not self._has_records(end_s):
            if time.monotonic() >= topic_s and len(self._words.topics) < TOPIC_COUNT_MAX:
                self._words.add_topic()
                topic_s = time.monotonic() + self._random.uniform(*TOPIC_PAUSE_S)
                if self._random.random() < CREATION_SHARE:
                    time.sleep(self._random.random() * CREATION_S_MAX)
                    self._hurt(self._random.choice(self._of("sender", "server")))
            due_s = time.monotonic() + self._random.uniform(*PAUSE_S)
            while time.monotonic() < due_s:
                self._continue_due()
                time.sleep(0.005)
            weights = [WEIGHTS[seat.role] for seat in self._seats]
            self._hurt(self._random.choices(self._seats, weights)[0])

    def _has_records(self, end_s: float) -> bool:
        """Return False while a busy machine has produced too few records for a verdict."""
        assert time.monotonic() < end_s + END_S, f"there are fewer than {RECORD_COUNT_MIN} records"
        return sum(_ends(self.places.log, is_committed=False).values()) >= RECORD_COUNT_MIN

    def _hurt(self, seat: Seat) -> None:
        if seat.continue_s is None and self._random.random() < STOP_SHARE:
            self._stop(seat, self._random.random() * STOP_S_MAX)
        else:
            self._kill(seat)

    def _leave(self) -> None:
        """Stop producers, then consumers that have reached the ends, then shipper, sender and server."""
        self._continue_due(are_all=True)
        self._words.phase = PRODUCERS_LEAVE
        self._join(self._of("producer"))
        with Arena.attach(self.places.arena) as arena:
            slot_count = arena.geometry["slot_count"]
            wait_until(lambda: arena.native.state_counts()["FREE"] == slot_count, "all is delivered", END_S)
        ends = _ends(self.places.log, is_committed=self._is_transactional)
        text = "".join(f"{place.topic} {place.partition} {end}\n" for place, end in ends.items())
        temporary = self.places.ends.with_suffix(".tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.rename(self.places.ends)
        self._words.phase = CONSUMERS_LEAVE
        self._join(self._of("reader", "member", "kafka"))
        if not self._is_transactional:
            wait_until(functools.partial(self._is_shipped, ends), "all is shipped", END_S)
        for role in ("shipper", "sender", "server"):
            for seat in self._of(role):
                os.kill(seat.pid, signal.SIGTERM)
            self._join(self._of(role))

    def _is_shipped(self, ends: Mapping[TopicPartition, int]) -> bool:
        if not self.places.shipped.exists():
            return not any(ends.values())
        shipped = _ends(self.places.shipped, is_committed=False)
        return all(shipped.get(place, 0) >= end for place, end in ends.items())

    def _join(self, seats: list[Seat]) -> None:
        for seat in seats:
            wait_until(functools.partial(_has_ended, seat), f"{seat.name} has left", END_S)
            _, status = os.waitpid(seat.pid, 0)
            seat.pid = 0
            if code := os.waitstatus_to_exitcode(status):
                self._failed(f"{seat.name} left with {code}")

    # --- the verdict

    def _judge_outputs(self) -> None:
        for seat in self._seats:
            path = self.places.output(seat.name)
            text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
            if "Traceback" in text or "Fatal Python error" in text:
                self._failed(f"{seat.name} has a traceback:\n{text[-OUTPUT_SIZE_MAX:]}")

    def _judge(self) -> None:
        places, history, outcome = self.places, self.history, self._outcome
        offsets: Log = {}
        try:
            assert (found := check_log(places.log)) == [], found
            is_committed = self._is_transactional
            history.log, offsets = read_log(places.log, places.folder / "codes", is_committed=is_committed)
            if not is_committed:
                has_shipped = places.shipped.exists()
                into = places.folder / "shipped-codes"
                history.shipped = read_log(places.shipped, into, is_committed=False)[0] if has_shipped else {}
        except (AssertionError, ShmaccumError, OSError):
            self._failed(traceback.format_exc())
        positions = Positions(offsets if self._is_transactional else None)
        for seat in self._seats:
            notes = [places.notes(seat.name, incarnation) for incarnation in range(seat.incarnation + 1)]
            notes = [path for path in notes if path.exists()]
            if seat.role == "producer":
                history.producers += [NotedSends(path, positions) for path in notes]
            elif seat.role == "reader":
                history.readers[seat.name] += [Life(NotedEvents(path, positions)) for path in notes]
            elif seat.role in CONSUMERS:
                history.groups[seat.role] += [Life(NotedEvents(path, positions)) for path in notes]
        outcome.verdict = judge(history)
        outcome.checked = linearizable.check(history, places.folder / "calls")
        outcome.record_count = sum(map(len, history.log.values()))
        outcome.shipped_count = sum(map(len, (history.shipped or {}).values()))


def _run_command(words: tuple[object, ...], _: int) -> None:
    roles.command(*words)


def _be(seat: Seat, output: Path) -> None:
    """Run a child. This does not return."""
    code = 1
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        seat.run(seat.incarnation)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the director judges the output
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _has_ended(seat: Seat) -> bool:
    return os.waitid(os.P_PID, seat.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _end_now(seat: Seat) -> None:
    if seat.pid:
        os.kill(seat.pid, signal.SIGKILL)
        os.waitpid(seat.pid, 0)


def _ends(directory: Path, *, is_committed: bool) -> dict[TopicPartition, int]:
    """The end of each partition, after the last record that its consumers see."""
    reader = LogReader(directory, isolation_level="read_committed" if is_committed else "read_uncommitted")
    partitions = {place: reader.partition(*place) for place in reader.topic_partitions()}
    if not is_committed:
        return {place: partition.log_end_offset for place, partition in partitions.items()}
    return {
        place: max((batch.next_offset for batch in partition.batches() if not batch.is_control), default=0)
        for place, partition in partitions.items()
    }
