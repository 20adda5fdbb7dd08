# SPDX-License-Identifier: Apache-2.0
"""Consumers, relays and their sender, killed at random while a producer sends: no record is skipped or duplicated.

A consumer records what it read, then what it committed, with monotonic times. So the audit knows whether an earlier
commit was past a record that was read. A relay makes one output of each record.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from shmaccum.arena import Arena
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.consumer import Consumer
from shmaccum.log.files import LogDirectory, LogReader
from shmaccum.producer import Producer
from shmaccum.relay import Relay
from shmaccum.sender import Sender
from tests.support.processes import wait_until

INPUT, OUTPUT = "flights", "squares"
READERS, RELAYS = "readers", "relays"
PARTITIONS = 3
MEMBERS = 3
BURST = 20
POLL_MS = 20
SHORT_KILLS = 20
LONG_KILLS = 2000
ROUNDS_BEHIND = 25
"""The number of kills after which the members may catch up."""


class Read(NamedTuple):
    """A record that a consumer read."""

    begin_ns: int
    """The time at which the poll began."""
    partition: int
    offset: int


class Commit(NamedTuple):
    """A commit that succeeded."""

    end_ns: int
    partition: int
    offset: int


class Notes:
    """A file to which successive processes append lines, each in one write."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, kind: str, lines: list[tuple[int, int, int]]) -> None:
        text = "".join(f"{kind} {time_ns} {partition} {offset}\n" for time_ns, partition, offset in lines)
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, text.encode())
        os.close(descriptor)

    def all(self) -> tuple[list[Read], list[Commit]]:
        rows = [line.split() for line in self._path.read_text().splitlines()] if self._path.exists() else []
        found = {kind: [tuple(map(int, row[1:])) for row in rows if row[0] == kind] for kind in "rc"}
        return [Read(*row) for row in found["r"]], [Commit(*row) for row in found["c"]]


# --- processes


def consume(log: Path, notes: Notes) -> None:
    with Consumer(log, INPUT, group_id=READERS, auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
        while True:
            begin_ns = time.monotonic_ns()
            found = consumer.poll(timeout_ms=POLL_MS)
            if found:
                notes.add(
                    "r", [(begin_ns, record.partition, record.offset) for one in found.values() for record in one]
                )
                consumer.commit()
                end_ns = time.monotonic_ns()
                notes.add("c", [(end_ns, place.partition, one[-1].offset + 1) for place, one in found.items()])


def relay(log: Path, arena_name: str) -> None:
    with (
        Producer(arena_name, linger_ms=0) as producer,
        Relay(log, INPUT, group_id=RELAYS, producer=producer, outputs=[OUTPUT]) as one,
    ):
        while True:
            with one.turn(timeout_ms=POLL_MS) as records:
                for record in records:
                    one.send(record, OUTPUT, b"%d" % int(record.value) ** 2)


def send(log: Path, arena_name: str) -> None:
    with Sender(arena_name, f"log:{log}", linger_ms=0) as sender:
        sender.run()


def start(run: Callable[[], object]) -> int:
    """Start a process that runs a function until it is killed."""
    pid = os.fork()
    if pid:
        return pid
    try:
        logging.disable()
        run()
    except BaseException:  # noqa: BLE001 - the end of the test tells that it ended by itself
        traceback.print_exc()
    finally:
        os._exit(1)


class Host:
    """A producer, a sender, consumers and relays."""

    def __init__(self, folder: Path, arena_name: str, chance: random.Random) -> None:
        self.log = folder / "log"
        self.notes = Notes(folder / "notes")
        self.sent = 0
        self._arena_name = arena_name
        self._chance = chance
        self._producer = Producer(arena_name, linger_ms=0)
        self._runs: dict[str, Callable[[], object]] = {
            "sender": lambda: send(self.log, arena_name),
            "consumer": lambda: consume(self.log, self.notes),
            "relay": lambda: relay(self.log, arena_name),
        }
        self._processes: dict[int, str] = {}
        with LogDirectory(self.log) as directory:
            for topic in (INPUT, OUTPUT):
                directory.create_topic(topic, PARTITIONS)
        self._start("sender")
        for _ in range(MEMBERS):
            self._start("consumer")
            self._start("relay")

    def _start(self, role: str) -> None:
        self._processes[start(self._runs[role])] = role

    def produce(self) -> None:
        for _ in range(BURST):
            self._producer.send(INPUT, b"%d" % self.sent, partition=self._chance.randrange(PARTITIONS))
            self.sent += 1

    def kill_one(self) -> None:
        """Kill a process, which may be briefly stopped before, and start its successor."""
        chosen = self._chance.choice(list(self._processes))
        assert os.waitpid(chosen, os.WNOHANG) == (0, 0), f"a {self._processes[chosen]} ended by itself"
        if self._chance.random() < 0.2:
            os.kill(chosen, signal.SIGSTOP)
            self.produce()
        time.sleep(self._chance.random() * 0.02)
        self._end(chosen)

    def _end(self, pid: int) -> None:
        role = self._processes.pop(pid)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self._start(role)

    def is_caught_up(self) -> bool:
        """Return whether both groups have committed the ends of all partitions, and these have all records."""
        places = [TopicPartition(INPUT, number) for number in range(PARTITIONS)]
        for group in (READERS, RELAYS):
            with Consumer(self.log, group_id=group) as observer:
                ends = observer.end_offsets(places)
                if sum(ends.values()) < self.sent or any(observer.committed(place) != ends[place] for place in places):
                    return False
        return True

    def close(self) -> None:
        for pid in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        self._producer.close(timeout=0)


@contextlib.contextmanager
def hosted(folder: Path, arena_name: str, chance: random.Random) -> Iterator[Host]:
    with Arena.create(arena_name, buffer_memory="1MiB"):
        host = Host(folder, arena_name, chance)
        try:
            yield host
        finally:
            host.close()


# --- the audit


def repetitions(reads: list[Read], commits: list[Commit]) -> int:
    """Return how many records were read again. Raises AssertionError if one had been committed before."""
    ends: dict[int, list[Commit]] = defaultdict(list)
    for commit in sorted(commits):
        ends[commit.partition].append(commit)
    committed = dict.fromkeys(range(PARTITIONS), 0)
    for read in sorted(reads):
        earlier = ends[read.partition]
        while earlier and earlier[0].end_ns < read.begin_ns:
            committed[read.partition] = max(committed[read.partition], earlier.pop(0).offset)
        assert read.offset >= committed[read.partition], f"{read} was committed before"
    return len(reads) - len({(read.partition, read.offset) for read in reads})


def values(log: Path, topic: str) -> Counter[int]:
    reader = LogReader(log)
    places = [TopicPartition(topic, number) for number in reader.partitions(topic)]
    return Counter(int(record.value or b"") for place in places for record in reader.partition(*place).records())


def audit(host: Host) -> int:
    reads, commits = host.notes.all()
    reader = LogReader(host.log)
    wanted = {(number, offset) for number in range(PARTITIONS) for offset in range(_end(reader, number))}
    assert {(read.partition, read.offset) for read in reads} == wanted, "a record was skipped"
    numbers = values(host.log, INPUT)
    assert numbers == Counter(range(host.sent)), "the producer's records are not there once"
    assert values(host.log, OUTPUT) == Counter(number**2 for number in range(host.sent)), "outputs are not there once"
    return repetitions(reads, commits)


def _end(reader: LogReader, number: int) -> int:
    return reader.partition(INPUT, number).log_end_offset


def run(folder: Path, arena_name: str, kill_count: int, chance: random.Random) -> None:
    with hosted(folder, arena_name, chance) as host:
        for number in range(1, kill_count + 1):
            host.produce()
            host.kill_one()
            if number % ROUNDS_BEHIND == 0:
                wait_until(host.is_caught_up, "the groups have consumed everything")
        wait_until(host.is_caught_up, "the groups have consumed everything")
        again = audit(host)
    print(f"{kill_count} kills, {host.sent} records: {again} were read again before a commit, none was skipped")


def test_no_record_is_skipped_and_none_is_repeated(
    tmp_path: Path, arena_name: str, seeded: Callable[[], random.Random]
) -> None:
    run(tmp_path, arena_name, SHORT_KILLS, seeded())


@pytest.mark.chaos
@pytest.mark.timeout(3600)
def test_no_record_is_skipped_and_none_is_repeated_in_thousands_of_kills(
    tmp_path: Path, arena_name: str, seeded: Callable[[], random.Random]
) -> None:
    run(tmp_path, arena_name, LONG_KILLS, seeded())


def test_the_audit_finds_a_repetition_of_a_committed_record() -> None:
    with pytest.raises(AssertionError, match="was committed before"):
        repetitions([Read(5, 0, 3), Read(30, 0, 3)], [Commit(20, 0, 4)])
    assert repetitions([Read(5, 0, 3), Read(15, 0, 3)], [Commit(20, 0, 4)]) == 1
