# SPDX-License-Identifier: Apache-2.0
"""An arena in a file, and the stores that its sender fills: a log, an overflow, and dead letters."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from shmaccum import Producer, Sender
from shmaccum.arena import Arena
from shmaccum.exceptions import ArenaNotFoundError, NotALogError, ShmaccumError
from shmaccum.log.files import LogReader
from shmaccum.sender.sinks import Ack, Verdict, WireBatch
from shmaccum.sender.sinks.log import LogSink
from tests.power_images.scenario import Marks, Scenario, mark
from tests.support.processes import WATCHDOG_S

TOPIC = "t"
PARTITIONS = 2
PROCESS, INTERVAL, SYNC = "process", "interval", "sync"
INTERVAL_MS = 100
SMALL: dict[str, Any] = {
    "buffer_memory": "32KiB",
    "batch_size": "4KiB",
    "process_count": 4,
    "waiter_count": 4,
    "topic_count": 4,
    "partition_count": 8,
    "completion_count": 64,
}
FAST: dict[str, Any] = {"linger_ms": 0, "retry_backoff_ms": 1, "retry_backoff_max_ms": 1}
SYNCS = "times the arena was forced to disk"
SIZE = 700
ROUNDS_MAX = 10
"""The maximum number of rounds of a sender whose arena has no level."""


def value_of(number: int) -> bytes:
    """Return the value of a record: its number, filled up to a size."""
    return f"{number} ".encode().ljust(SIZE, b"%d" % (number % 10))


def values_in(path: Path, **options: Any) -> list[list[bytes]]:
    """Return the values in each partition of a log, read by a reader that skips damage."""
    try:
        reader = LogReader(path, on_corrupt="skip", **options)
    except NotALogError:  # there is no log yet
        return []
    return [
        [record.value or b"" for record in reader.partition(*place).records()] for place in reader.topic_partitions()
    ]


def has_batches(arena: Arena) -> bool:
    """Return True while a batch waits for its delivery. A damaged batch does not."""
    slots = arena.statistics().slots
    return slots["FREE"] + slots["BAD"] < arena.geometry["slot_count"]


class FailingSink(LogSink):
    """A log that fails while an attribute is set.

    Attributes:
        is_away: the log fails.
        is_refusing: the log rejects every batch.
    """

    is_away = False
    is_refusing = False

    def _open_end(self, partition_index: int, log: Any) -> None:
        """Return None, so that each batch is passed to `write`."""
        super()._open_end(partition_index, log)
        self.log_ends.clear()

    @property
    def outage(self) -> str | None:
        """Return a sentence while the log fails."""
        return "it does not work" if self.is_away else super().outage

    def write(self, batches: Sequence[WireBatch]) -> Sequence[Ack]:
        """Accept no batch while the log fails."""
        if self.is_refusing:
            return [Ack(wire, Verdict.REFUSED, message="refused") for wire in batches]
        if self.is_away:
            return [Ack(wire, Verdict.RETRY, message="it does not work") for wire in batches]
        return super().write(batches)


class Sending:
    """A sender of an arena in this process.

    Args:
        place: the folder of the scenario.
    """

    def __init__(self, place: Path, arena: Arena, **options: Any) -> None:
        self.arena = arena
        self.sink = FailingSink(str(place / "log"), partitions=PARTITIONS)
        self.sender = Sender(arena, self.sink, **FAST, **options)
        self.sender.open()

    def run_until_free(self) -> None:
        """Run until no batch is in the arena or in the overflow."""
        deadline_s = time.monotonic() + WATCHDOG_S
        while has_batches(self.arena) or self.arena.native.spilled()["partitions"]:
            assert time.monotonic() < deadline_s, self.arena.statistics()
            self.sender.run_once()


class ArenaScenario(Scenario):
    """A producer and a sender, which delivers in between."""

    name = "arena"
    levels: ClassVar[tuple[str, ...]] = (PROCESS, INTERVAL, SYNC)
    options: ClassVar[dict[str, Any]] = {}
    rounds = ((3, True), (3, False), (2, True), (2, False))
    """The number of records of each round, and whether they are delivered at its end."""

    @property
    def durability(self) -> dict[str, Any]:
        """Return the options of the arena that set its durability."""
        interval = {"sync_interval_ms": INTERVAL_MS} if self.level == INTERVAL else {}
        return {"durability": self.level, **interval}

    def sender_options(self, place: Path) -> dict[str, Any]:
        """Return the options of the sender."""
        return {}

    @property
    def producer_options(self) -> dict[str, Any]:
        """Return the options of the producer."""
        return {}

    def record(self, place: Path) -> None:
        """Run the scenario. Nothing is closed, because closing a producer waits for its deliveries."""
        path = place / "a" / "arena"
        path.parent.mkdir()
        arena = Arena.create(path, topics={TOPIC: PARTITIONS}, **SMALL, **self.durability, **self.options)
        mark("created")
        producer = Producer(arena, linger_ms=0, **self.producer_options)
        self.work(producer, Sending(place, arena, **self.sender_options(place)))

    def work(self, producer: Producer, sending: Sending) -> None:
        """Send and deliver."""
        number = 0
        for count, is_delivered in self.rounds:
            for _ in range(count):
                number += 1
                self.send(producer, number)
            if is_delivered:
                sending.run_until_free()
                self.delivered(number)
            if self.level == INTERVAL:
                self.wait_for_interval(sending.arena)
                mark("kept", number)

    def send(self, producer: Producer, number: int) -> None:
        """Send a record."""
        mark("sent", number)
        producer.send(TOPIC, value_of(number), partition=number % PARTITIONS)
        if self.level == SYNC:
            mark("kept", number)

    def delivered(self, number: int) -> None:
        """Mark all records as delivered. If the log has a level, it has forced them to disk, because each has a
        result.
        """
        if self.level != PROCESS:
            mark("kept", number)

    def wait_for_interval(self, arena: Arena) -> None:
        """Wait until every sent record is older than the interval."""
        syncs = arena.native.counters()[SYNCS]
        deadline_s = time.monotonic() + WATCHDOG_S
        while arena.native.counters()[SYNCS] < syncs + 2:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)

    # --- the check

    def check(self, place: Path, marks: Marks) -> Iterator[str]:
        sent = max((number for (number,) in marks.of("sent")), default=0)
        kept = set(range(1, marks.last("kept", 0) + 1)) | {number for (number,) in marks.of("kept alone")}
        yield from self.strange(values_in(place / "log"), sent, "a reader")
        try:
            arena = Arena.attach(place / "a" / "arena")
        except ArenaNotFoundError:
            if self.level != PROCESS and marks.of("created"):
                yield "the arena is gone"
            return
        except ShmaccumError as error:
            if self.level != PROCESS:
                yield f"the arena cannot be opened: {error}"
            return
        with arena:
            try:
                sending = Sending(place, arena, **self.sender_options(place))
            except ShmaccumError as error:
                if self.level != PROCESS:
                    yield f"the sender does not begin: {error}"
                return
            self.deliver(sending)
            sending.sender.close()
        yield from self.check_delivered(place, sent, kept)

    def deliver(self, sending: Sending) -> None:
        """Deliver everything. Without a level, a power cut may leave an arena that no sender can empty."""
        if self.level != PROCESS:
            sending.run_until_free()
            return
        with contextlib.suppress(ValueError, ShmaccumError):
            for _ in range(ROUNDS_MAX):
                if not has_batches(sending.arena):
                    break
                sending.sender.run_once()

    def places(self, place: Path) -> list[Path]:
        """Return the logs that together have all records."""
        return [place / "log"]

    def check_delivered(self, place: Path, sent: int, kept: set[int]) -> Iterator[str]:
        """Check that the records are there, in order."""
        found = [values for path in self.places(place) for values in values_in(path)]
        yield from self.strange(found, sent, "the sink")
        numbers = {int(value.split()[0]) for values in found for value in values}
        if lost := kept - numbers:
            yield f"the records {sorted(lost)} of {sent} are lost"

    def strange(self, found: list[list[bytes]], sent: int, who: str) -> Iterator[str]:
        """Yield each value that no producer sent, or that first occurs after a later one.

        The next boot may find the arena as it was before a delivery. So records may come again.
        """
        for values in found:
            known: set[int] = set()
            for value in values:
                text = value.split(b" ")[0]
                number = int(text) if text.isdigit() else 0
                if not 0 < number <= sent or value != value_of(number):
                    yield f"{who} got {value[:10]!r}, and {sent} were sent"
                elif number < max(known, default=0) and number not in known and self.level != PROCESS:
                    yield f"{who} got {number} after {max(known)}"
                known.add(number)


class ProcessScenario(ArenaScenario):
    """Producers in forked processes, and a sender in the first process."""

    name = "arena-processes"
    levels = (SYNC,)

    def work(self, producer: Producer, sending: Sending) -> None:
        for _ in range(2):
            children = [self.fork(producer, partition) for partition in range(PARTITIONS)]
            for child in children:
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            sending.run_until_free()
            self._first += 2 * PARTITIONS

    _first = 1

    def fork(self, producer: Producer, partition: int) -> int:
        """Fork a process that sends two records to a partition, and dies."""
        child = os.fork()
        if child == 0:
            for number in range(self._first, self._first + 2 * PARTITIONS):
                if number % PARTITIONS == partition:
                    mark("sent", number)
                    producer.send(TOPIC, value_of(number), partition=partition)
                    mark("kept alone", number)
            os._exit(0)
        return child


class LaterBuildScenario(ArenaScenario):
    """A later build with unknown features creates an arena, and this build opens it."""

    name = "arena-of-a-later-build"
    levels = (SYNC,)
    is_of_later_build = True

    def work(self, producer: Producer, sending: Sending) -> None:
        assert sending.arena.native.features["regions"], "this is no later build"
        super().work(producer, sending)


class OverflowScenario(ArenaScenario):
    """The sink fails, so records go to the overflow. Later, they are shipped from there."""

    name = "overflow"
    levels = (INTERVAL, SYNC)

    def sender_options(self, place: Path) -> dict[str, Any]:
        return {"overflow": f"log:{place}/overflow", "overflow_at": "1%"}

    def work(self, producer: Producer, sending: Sending) -> None:
        number = 0
        for is_away in (False, True, True, False, True):
            sending.sink.is_away = is_away
            for _ in range(3):
                number += 1
                self.send(producer, number)
            if is_away:
                self.spill(sending)
            else:
                sending.run_until_free()
                self.delivered(number)
            if self.level == INTERVAL:
                self.wait_for_interval(sending.arena)
                mark("kept", number)

    def spill(self, sending: Sending) -> None:
        """Run until the arena is empty."""
        deadline_s = time.monotonic() + WATCHDOG_S
        while has_batches(sending.arena):
            assert time.monotonic() < deadline_s, sending.arena.statistics()
            sending.sender.run_once()
        mark("spilled")


class DeadLetterScenario(ArenaScenario):
    """The sink rejects some records, which become dead letters."""

    name = "dead-letters"
    levels = (INTERVAL, SYNC)

    def sender_options(self, place: Path) -> dict[str, Any]:
        return {"dead_letter": f"log:{place}/letters"}

    def work(self, producer: Producer, sending: Sending) -> None:
        sending.sink.is_refusing = True
        super().work(producer, sending)

    def places(self, place: Path) -> list[Path]:
        return [place / "log", place / "letters"]


class ArenaTransactionScenario(ArenaScenario):
    """Transactions of an arena, in a log. Their first values are visible whole or not at all."""

    name = "arena-transactions"
    levels = (INTERVAL, SYNC)
    options: ClassVar[dict[str, Any]] = {"transactional_id": "power"}
    parts = 3
    """The number of records of a transaction."""

    def work(self, producer: Producer, sending: Sending) -> None:
        for number, is_commit in enumerate((True, False, True, True, False, True)):
            mark("begun", number)
            transaction = producer.transaction()
            with producer.synced_together():
                for part in range(self.parts):
                    producer.send(TOPIC, f"{number}/{part}".encode(), partition=part % PARTITIONS)
            if is_commit:
                for _ in transaction.commit_waits(WATCHDOG_S):
                    sending.sender.run_once()
                mark("committed", number)
            else:
                transaction.abort()
                while sending.arena.native.transaction[1] != "none":
                    sending.sender.run_once()
                mark("aborted", number)

    def check(self, place: Path, marks: Marks) -> Iterator[str]:
        try:
            arena = Arena.attach(place / "a" / "arena")
        except ArenaNotFoundError:
            if marks.of("created"):
                yield "the arena is gone"
            return
        with arena:
            sending = Sending(place, arena)
            deadline_s = time.monotonic() + WATCHDOG_S
            while self.is_busy(arena):
                assert time.monotonic() < deadline_s, arena.native.transaction
                sending.sender.run_once()
            sending.sender.close()
        found = values_in(place / "log", isolation_level="read_committed")
        yield from self.broken(found, marks)

    @staticmethod
    def is_busy(arena: Arena) -> bool:
        """Return True while a batch or the end of a transaction is being delivered."""
        state = arena.native.transaction[1]
        return state in {"decided", "aborting"} or (state != "open" and has_batches(arena))

    def broken(self, found: list[list[bytes]], marks: Marks) -> Iterator[str]:
        """Yield a sentence for each transaction that is visible and should not be, or the reverse."""
        visible = sorted(value.decode() for values in found for value in values)
        numbers = [int(value.split("/")[0]) for value in visible]
        for number in sorted(set(numbers)):
            parts = [value for value in visible if value.startswith(f"{number}/")]
            if parts != [f"{number}/{part}" for part in range(self.parts)]:
                yield f"of transaction {number} the records {parts} are visible"
        if lost := {number for (number,) in marks.of("committed")} - set(numbers):
            yield f"the committed transactions {sorted(lost)} are not visible"
        begun = {number for (number,) in marks.of("begun")}
        if strange := set(numbers) & {number for (number,) in marks.of("aborted")} | set(numbers) - begun:
            yield f"the transactions {sorted(strange)} are visible, and were not committed"
