# SPDX-License-Identifier: Apache-2.0
"""Consumes the flights again, with a group of four consumers on this host, of which one is killed.

Each topic has three partitions, so three consumers have one partition of each topic, and the fourth is idle.

Each consumer is a process. It sends its partitions and its records to this process through its own pipe, so a death in
the middle of a write harms no other consumer. Then it commits. Records that the killed consumer sent and did not commit
are consumed again. Their offsets distinguish them from records that were produced twice.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import NamedTuple

from examples.flights.data import topics
from examples.flights.group import Consumed, Place
from examples.flights.pipeline import PARTITION_COUNT
from shmaccum.exceptions import ShmaccumError
from shmaccum.log.consumer import Consumer

GROUP = "flights-consumers"
GROUP_SIZE = 4
POLL_MS = 20
RECORDS_MAX = 2000
PATIENCE_S = 60.0

Shares = dict[int, list[int]]
"""The partitions of each consumer, by its number."""


class Takeover(NamedTuple):
    """The death of a consumer."""

    number: int
    pid: int
    seconds: float
    """The time from the kill until every partition had an owner again."""


Watcher = Callable[[Shares, Takeover | None], None]
"""Called with the shares before a takeover, and again with the shares and the takeover after it."""


class Row(NamedTuple):
    """A record that a consumer sends to this process."""

    place: Place
    offset: int
    key: bytes | None
    value: bytes


def _consume(directory: Path, number: int, pipe: Connection) -> None:
    """Runs one consumer. It polls single records until a message sets a larger number. Closing the pipe ends it."""
    with Consumer(
        directory,
        *topics(),
        group_id=GROUP,
        client_id=f"consumer-{number}",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=["range"],
    ) as consumer:
        while not pipe.poll():
            _tell(consumer, pipe, 1)
        records_max = pipe.recv()
        while not pipe.poll():
            _tell(consumer, pipe, records_max)


def _tell(consumer: Consumer, pipe: Connection, records_max: int) -> None:
    polled = consumer.poll(POLL_MS, records_max)
    records = (record for found in polled.values() for record in found)
    rows = [Row((one.topic, one.partition), one.offset, one.key, one.value) for one in records]
    pipe.send((sorted({place.partition for place in consumer.assignment()}), rows))
    consumer.commit()


class Group:
    """The consumers, and the records that they have sent.

    Attributes:
        shares: the partitions of each living consumer, by its number.
        told_count: the number of records that the consumers sent, including repeated ones.
        record_count: the number of different records.
    """

    def __init__(self, directory: Path) -> None:
        self.shares: Shares = {}
        self.told_count = self.record_count = 0
        self._records: defaultdict[Place, dict[int, tuple[bytes | None, bytes]]] = defaultdict(dict)
        self._members: list[SpawnProcess] = []
        self._pipes: dict[int, Connection] = {}
        context = multiprocessing.get_context("spawn")
        for number in range(GROUP_SIZE):
            self._pipes[number], theirs = context.Pipe()
            member = context.Process(target=_consume, args=(directory, number, theirs), daemon=True)
            member.start()
            theirs.close()
            self._members.append(member)

    def receive(self) -> None:
        """Receives messages of the consumers. Waits until there is one.

        Raises:
            ShmaccumError: a consumer ended unexpectedly, or none has sent anything for a minute.
        """
        ready = wait(list(self._pipes.values()), PATIENCE_S)
        if not ready:
            raise ShmaccumError(f"no consumer has sent anything for {PATIENCE_S:g} s")
        for number in [number for number, pipe in self._pipes.items() if pipe in ready]:
            if not self._receive_from(number):
                raise ShmaccumError(f"consumer {number} ended with exit code {self._members[number].exitcode}")

    def _receive_from(self, number: int) -> bool:
        """Receives one message of a consumer. Returns False if there are no more."""
        try:
            self.shares[number], rows = self._pipes[number].recv()
        except (EOFError, OSError):
            return False
        self.told_count += len(rows)
        for row in rows:
            known = self._records[row.place]
            self.record_count += row.offset not in known
            known[row.offset] = row.key, row.value
        return True

    def settle(self) -> None:
        """Waits until every partition has one owner, and the shares of all consumers differ by at most one."""
        while not self._is_settled():
            self.receive()

    def _is_settled(self) -> bool:
        sizes = [len(share) for share in self.shares.values()]
        owned = sorted(itertools.chain(*self.shares.values()))
        is_even = len(sizes) == len(self._pipes) and max(sizes) - min(sizes) <= 1
        return is_even and owned == list(range(PARTITION_COUNT))

    def continue_reading(self) -> None:
        """Lets the consumers read as fast as they can."""
        for pipe in self._pipes.values():
            pipe.send(RECORDS_MAX)

    def receive_until(self, record_count: int) -> None:
        """Receives records until this number has arrived, or no new one arrives for a minute."""
        known, patient_s = -1, 0.0
        while self.record_count < record_count:
            if self.record_count > known:
                known, patient_s = self.record_count, time.monotonic() + PATIENCE_S
            elif time.monotonic() > patient_s:
                return
            self.receive()

    def kill(self, consumer: int) -> Takeover:
        """Kills a consumer, and waits until the others have its partitions. Counts the records that it has sent."""
        begin_s = time.monotonic()
        self._members[consumer].kill()
        while self._receive_from(consumer):
            pass
        self._pipes.pop(consumer).close()
        del self.shares[consumer]
        self.settle()
        return Takeover(consumer, self._members[consumer].pid or 0, time.monotonic() - begin_s)

    def consumed(self) -> Consumed:
        """All records that were received."""
        return Consumed(dict(self._records), self.told_count - self.record_count)

    def end(self) -> None:
        """Ends the consumers that are left."""
        for member in self._members:
            member.kill()
            member.join()
        for pipe in self._pipes.values():
            pipe.close()


def consume(directory: Path, record_count: int, watch: Watcher) -> Consumed:
    """Reads a log with a group, and kills one of its consumers half-way.

    Args:
        directory: the directory of the log.
        record_count: the number of records in the log.
        watch: called with the shares before the kill, and after it.

    Raises:
        ShmaccumError: a consumer ended unexpectedly.
    """
    with closing_group(directory) as group:
        group.settle()
        watch(group.shares, None)
        group.continue_reading()
        group.receive_until(record_count // 2)
        takeover = group.kill(next(number for number, share in sorted(group.shares.items()) if share))
        watch(group.shares, takeover)
        group.receive_until(record_count)
        return group.consumed()


@contextmanager
def closing_group(directory: Path) -> Iterator[Group]:
    """A group that is ended with the block."""
    group = Group(directory)
    try:
        yield group
    finally:
        group.end()
