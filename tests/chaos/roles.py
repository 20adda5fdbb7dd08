# SPDX-License-Identifier: Apache-2.0
"""The roles of a trial's processes. Each is a function that runs until it is killed or its phase ends."""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from shmaccum import Producer as SupervisedProducer
from shmaccum.arena import Arena
from shmaccum.exceptions import LogPartitionNotFoundError, NotALogError, ResultExpiredError
from shmaccum.log.files.reader import LogReader
from shmaccum.log.server import LogServer
from shmaccum.observe.inspection import Inspector
from shmaccum.observe.observation import Observer
from shmaccum.producer import Producer
from shmaccum.sender import Sender
from shmaccum.sender.pump import PumpResult, PumpRunner
from shmaccum.sender.sinks import Sink, open_sink
from shmaccum.sender.sinks.sink import BorrowedSocket
from tests.chaos.ledger import (
    ACKNOWLEDGED,
    BEGUN,
    FORKS_MAX,
    LONGEST_NS,
    OTHERS_LEAVE,
    PARTITIONS,
    PROOF_OFFSET,
    PROOF_SEQUENCE,
    PUMPING,
    STOPS,
    TOPIC,
    VALUE,
    WORKING,
    Delay,
    DelayFile,
    Ledger,
    Places,
    RunQueue,
)

PATIENCE_S = 60.0
HURRY = 4
"""One producer in this many begins by sending as fast as possible."""
HURRIED_RECORDS = 6000
BURST_MAX = 40
PAUSE_S_MAX = 0.008
LONG_NS = 2_000_000
HICCUP_NS = 1_000_000
OVERSIZE = 20_000
SEGMENT_BYTES = "32MiB"
RECONNECT_MS = 5
"""A killed server is restarted in less than a second."""


@dataclass(frozen=True)
class Life:
    """The identity of a process in a trial."""

    places: Places
    seat: int
    author: int
    seed: int


# --- producers


class Author:
    """Appends for one producer, times every append, and records it in the ledger."""

    def __init__(self, life: Life, producer: Producer, author: int) -> None:
        self.random = random.Random(f"{life.seed}/{author}")
        self.ledger = Ledger(life.places.ledger)
        self._producer = producer
        self._words = self.ledger.words
        self._row = Ledger.row(author)
        self._author = author
        self._stops = STOPS + life.seat
        self._delays = DelayFile(life.places.delays)
        self._queue = RunQueue()
        self._next = [0] * PARTITIONS
        self._longest_ns = 0

    def _values(self, partition: int, count: int) -> list[bytes]:
        first = self._next[partition]
        values = [VALUE.pack(self._author, first + index) for index in range(count)]
        if self.random.random() < 0.002:
            values[-1] += bytes([self._author & 0xFF]) * OVERSIZE
        return values

    def _timed(self, partition: int, count: int, append: Callable[[], object]) -> object:
        """Record the start of the next records, append them, and record their acknowledgement."""
        words, row, first = self._words, self._row, self._next[partition]
        words[row + BEGUN + partition] = first + count
        stops = words[self._stops]
        begin_ns = time.monotonic_ns()
        answer = append()
        elapsed_ns = time.monotonic_ns() - begin_ns
        words[row + ACKNOWLEDGED + partition] = self._next[partition] = first + count
        if elapsed_ns > LONG_NS or elapsed_ns > self._longest_ns:
            self._note(begin_ns, elapsed_ns, words[self._stops] != stops)
        return answer

    def _note(self, begin_ns: int, elapsed_ns: int, was_stopped: bool) -> None:
        if not was_stopped and elapsed_ns > self._longest_ns:
            self._longest_ns = self._words[self._row + LONGEST_NS] = elapsed_ns
        if elapsed_ns > LONG_NS:
            queued_ns = min(self._queue.queued_ns() - self._queued_ns, elapsed_ns)
            self._delays.note(Delay(begin_ns, elapsed_ns, queued_ns, self._author, int(was_stopped)))

    def burst(self, count: int) -> None:
        """Send records one by one to one partition."""
        self._queued_ns = self._queue.queued_ns()
        partition = self.random.randrange(PARTITIONS)
        for _ in range(count):
            (value,) = self._values(partition, 1)
            self._timed(partition, 1, partial(self._producer.send, TOPIC, value, partition=partition))

    def burst_of_many(self, count: int) -> None:
        """Send records in one call."""
        self._queued_ns = self._queue.queued_ns()
        partition = self.random.randrange(PARTITIONS)
        values = self._values(partition, count)
        self._timed(partition, count, lambda: self._producer.send_many(TOPIC, values, partition=partition))

    def prove(self) -> None:
        """Wait until a record is delivered, and record its promised offset."""
        self._queued_ns = self._queue.queued_ns()
        partition = self.random.randrange(PARTITIONS)
        sequence = self._next[partition]
        (value,) = self._values(partition, 1)
        future = self._timed(partition, 1, lambda: self._producer.send(TOPIC, value, partition=partition))
        with suppress(ResultExpiredError):
            offset = future.get(timeout=PATIENCE_S).offset  # type: ignore[attr-defined]
            self._words[self._row + PROOF_SEQUENCE + partition] = 0
            self._words[self._row + PROOF_OFFSET + partition] = offset
            self._words[self._row + PROOF_SEQUENCE + partition] = sequence + 1

    def flush(self) -> None:
        self._producer.flush(timeout=PATIENCE_S)

    def hurry(self) -> None:
        """Send as fast as possible for a while, so that a kill is likely to interrupt an append."""
        for _ in range(HURRIED_RECORDS // BURST_MAX):
            self.burst(BURST_MAX)


def produce(life: Life) -> None:
    """Send until the working phase ends, then close the producer, which delivers everything."""
    with Arena.attach(life.places.arena_name) as arena:
        chance = random.Random(f"{life.seed}/{life.author}/life")
        with Producer(arena, linger_ms=chance.choice([0, 1, 5])) as producer:
            author = Author(life, producer, life.author)
            if chance.randrange(HURRY) == 0:
                author.hurry()
            _work(life, author, chance)


def rush(life: Life) -> None:
    """Send as fast as possible until the working phase ends."""
    with Arena.attach(life.places.arena_name) as arena, Producer(arena) as producer:
        author = Author(life, producer, life.author)
        while author.ledger.phase == WORKING:
            author.burst(BURST_MAX)


def _work(life: Life, author: Author, chance: random.Random) -> None:
    acts: list[Callable[[], None]] = [
        lambda: author.burst(chance.randrange(1, BURST_MAX)),
        lambda: author.burst_of_many(chance.randrange(1, 2 * BURST_MAX)),
        author.prove,
        author.flush,
    ]
    fork_count = 0
    while author.ledger.phase == WORKING:
        chance.choices(acts, [60, 30, 8, 2])[0]()
        if fork_count < FORKS_MAX - 1 and chance.random() < 0.02:
            fork_count += 1
            _fork(life, author, life.author + fork_count)
        with suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        time.sleep(chance.random() * PAUSE_S_MAX)


def _fork(life: Life, author: Author, number: int) -> None:
    """Fork a child that also uses the parent's producer, and exits without closing anything."""
    if os.fork() == 0:
        code = 1
        try:
            child = Author(life, author._producer, number)
            for _ in range(child.random.randrange(1, 20)):
                child.burst(child.random.randrange(1, BURST_MAX))
            code = 0
        except BaseException as error:  # noqa: BLE001 - the parent's handlers are not the child's
            note_failure(life.places, f"a forked child, author {number}", error)
        finally:
            os._exit(code)


# --- senders


def deliver(life: Life) -> None:
    """Run a sender, or a standby while another process is the sender."""
    places = life.places
    with (
        Ledger(places.ledger) as ledger,
        Sender(places.arena_name, _sink(places), standby=True, linger_ms=1) as sender,
    ):
        _note_pumping(ledger)
        _leave_when_told(sender.stop)
        sender.run()


def supervise(life: Life) -> None:
    """Run a producer that sends nothing and restarts the sender."""
    options: dict[str, Any] = {"partitions": PARTITIONS, "segment_bytes": SEGMENT_BYTES}
    with (
        Ledger(life.places.ledger) as ledger,
        SupervisedProducer(life.places.arena_name, sink=f"log:{life.places.log}", **options),
    ):
        while ledger.phase < OTHERS_LEAVE:
            time.sleep(0.01)


def _sink(places: Places) -> Sink:
    if not places.address.exists():
        return open_sink(f"log:{places.log}", partitions=PARTITIONS, segment_bytes=SEGMENT_BYTES)
    address, path = places.address.read_text(encoding="utf-8").split()
    if path == "python":
        PumpRunner.may_run = False  # type: ignore[method-assign, assignment]
    return open_sink(f"kafka:{address}", reconnect_backoff_ms=RECONNECT_MS, reconnect_backoff_max_ms=10 * RECONNECT_MS)


def _note_pumping(ledger: Ledger) -> None:
    """Publish to the director whether this process is in the pump."""
    plan, take = PumpRunner._plan, PumpRunner._take

    def note_begin(self: PumpRunner, handed_over: Sequence[BorrowedSocket]) -> tuple[Any, ...]:
        ledger.words[PUMPING] = 1
        return plan(self, handed_over)

    def note_end(self: PumpRunner, handed_over: Sequence[BorrowedSocket], found: Sequence[Any]) -> PumpResult:
        ledger.words[PUMPING] = 0
        return take(self, handed_over, found)

    PumpRunner._plan, PumpRunner._take = note_begin, note_end  # type: ignore[method-assign]


def _leave_when_told(stop: Callable[[], object]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: stop())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # an earlier one is pending until here


# --- the server


def serve(life: Life) -> None:
    """Serve the log to Kafka clients at a fixed address, as the broker of the senders."""
    address, _ = life.places.address.read_text(encoding="utf-8").split()
    with LogServer(life.places.log, address, is_writable=True, partitions=PARTITIONS) as server:
        _leave_when_told(server.stop)
        while not server._is_stopped:
            server.run_once()


# --- readers


def follow(life: Life) -> None:
    """Read the log while it is written, and check that offsets have no gap and batches are whole."""
    chance = random.Random(f"{life.seed}/{life.author}/life")
    with Ledger(life.places.ledger) as ledger:
        while ledger.phase < OTHERS_LEAVE:
            with suppress(NotALogError, LogPartitionNotFoundError):  # nothing was delivered yet
                _follow_one(life, ledger, chance)
            time.sleep(chance.random() * 0.2)


def _follow_one(life: Life, ledger: Ledger, chance: random.Random) -> None:
    partition = LogReader(life.places.log).partition(TOPIC, chance.randrange(PARTITIONS))
    expected = chance.randrange(partition.log_start_offset, partition.log_end_offset + 1)
    start = expected
    batches = partition.follow(start, is_over=lambda: ledger.phase == OTHERS_LEAVE, idle_timeout_s=0.1)
    for record in (each for batch in batches for each in batch.records() if each.offset >= start):
        assert record.offset == expected, f"{record.offset} came where {expected} should be"
        assert record.value is not None
        assert len(record.value) >= VALUE.size
        expected += 1
        if chance.random() < 0.001:
            return


def observe(life: Life) -> None:
    """Inspect the arena repeatedly, as ``shmaccum stat`` and ``inspect`` do."""
    with Ledger(life.places.ledger) as ledger, Arena.open_read_only(life.places.arena_name) as arena:
        observer, inspector = Observer(arena), Inspector(arena)
        while ledger.phase < OTHERS_LEAVE:
            observer.observe().as_json()
            for slot in inspector.slots():
                slot.as_json()
            time.sleep(0.2)


def measure_machine(life: Life) -> None:
    """Sleep for a millisecond repeatedly, and record longer sleeps, which show the machine's delay."""
    queue, hiccups = RunQueue(), DelayFile(life.places.hiccups)
    with Ledger(life.places.ledger) as ledger:
        while ledger.phase < OTHERS_LEAVE:
            queued_ns, begin_ns = queue.queued_ns(), time.monotonic_ns()
            time.sleep(0.001)
            over_ns = time.monotonic_ns() - begin_ns - 10**6
            if over_ns > HICCUP_NS:
                hiccups.note(Delay(begin_ns, over_ns, queue.queued_ns() - queued_ns, 0, 0))


ROLES: dict[str, Callable[[Life], None]] = {
    "producer": produce,
    "rusher": rush,
    "sender": deliver,
    "supervisor": supervise,
    "server": serve,
    "reader": follow,
    "observer": observe,
    "meter": measure_machine,
}


def note_failure(places: Places, who: str, error: BaseException) -> None:
    """Save a traceback for the director."""
    text = "".join(traceback.format_exception(error))
    with places.failures.open("a", encoding="utf-8") as file:
        file.write(f"{who}, process {os.getpid()}:\n{text}\n")
