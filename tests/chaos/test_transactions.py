# SPDX-License-Identifier: Apache-2.0
"""Transactions of many processes, killed at random: readers of committed records see all of one, or nothing.

Each process writes what it knows into one ledger, a line by one write: ``sent N VALUE`` behind a send, ``committed N``
and ``aborted N`` behind the call. A transaction whose coordinator was killed has no such line, and may be either.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from shmaccum import Producer, Sender
from shmaccum.arena import Arena
from shmaccum.exceptions import (
    ArenaBusyError,
    BufferExhaustedError,
    NoTransactionError,
    TransactionEndedError,
    TransactionOutcomeUnknownError,
)
from shmaccum.segment_log.reader import LogReader
from tests.support import WATCHDOG_S, Child, wait_until

TOPIC = "t"
PARTITIONS = 4
WORKERS = 5
COORDINATORS = 2


class Ledger:
    """What the processes know, line by line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.touch()

    def open(self) -> Callable[[str], None]:
        """A function that writes a line; for one process."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        return lambda line: (os.write(descriptor, f"{line}\n".encode()), None)[1]

    def lines(self) -> list[list[str]]:
        return [line.split() for line in self._path.read_text().splitlines()]

    @property
    def ended_count(self) -> int:
        """Transactions whose outcome somebody knows."""
        return sum(line[0] != "sent" for line in self.lines())

    def has_ended(self, count: int) -> bool:
        return self.ended_count >= count


def work(name: str, ledger: Ledger, seed: int) -> None:
    """Sends in whatever transaction is open, until it is killed."""
    note, dice, place = ledger.open(), random.Random(seed), 0
    with Producer(name, max_block_ms=5_000) as producer:
        while True:
            number = producer.arena.native.transaction[0]
            value = f"{number}:{os.getpid()}:{place}"
            place += 1
            with contextlib.suppress(NoTransactionError, TransactionEndedError, BufferExhaustedError):
                if number:
                    producer.join(number)
                    producer.send(TOPIC, value.encode(), partition=dice.randrange(PARTITIONS))
                    note(f"sent {number} {value}")


def coordinate(name: str, ledger: Ledger, seed: int) -> None:
    """Begins one transaction after the other, until it is killed."""
    note, dice = ledger.open(), random.Random(seed)
    with Producer(name) as producer:
        while True:
            with contextlib.suppress(ArenaBusyError):
                run_one(producer, note, dice)


def run_one(producer: Producer, note: Callable[[str], None], dice: random.Random) -> None:
    transaction = producer.transaction()
    for place in range(dice.randrange(20)):
        value = f"{transaction.number}:{os.getpid()}:{place}"
        producer.send(TOPIC, value.encode(), partition=dice.randrange(PARTITIONS))
        note(f"sent {transaction.number} {value}")
    if dice.random() < 0.5:
        producer.flush()  # so that an abort also meets records that are in the log
    if dice.random() < 0.4:
        transaction.abort()
        note(f"aborted {transaction.number}")
        return
    with contextlib.suppress(TransactionOutcomeUnknownError):
        transaction.commit()
        note(f"committed {transaction.number}")


def deliver(name: str, log: Path) -> None:
    Sender(name, f"log:{log}", linger_ms=0, standby=True).run()


def committed(path: Path) -> list[str]:
    reader = LogReader(path, isolation_level="read_committed")
    logs = [reader.partition(TOPIC, partition) for partition in range(PARTITIONS)]
    return [record.value.decode() for log in logs for record in log.records() if record.value is not None]


def judge(ledger: Ledger, log: Path) -> None:
    sent: dict[str, set[str]] = defaultdict(set)
    outcomes: dict[str, str] = {}
    for kind, number, *rest in ledger.lines():
        if kind == "sent":
            sent[number].add(rest[0])
        else:
            outcomes[number] = kind
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for value in committed(log):
        seen[value.partition(":")[0]][value] += 1
    for number, values in sent.items():
        known, outcome = set(seen[number]), outcomes.get(number)
        assert all(count == 1 for count in seen[number].values()), f"transaction {number} is there twice"
        if outcome == "aborted":
            assert not known, f"transaction {number} was aborted"
        elif outcome == "committed" or known:
            assert values <= known, f"transaction {number} is there in part"


@pytest.mark.chaos
@pytest.mark.timeout(1800)
def test_transactions_of_processes_that_are_killed_are_there_whole_or_not_at_all(
    arena_name: str, tmp_path: Path
) -> None:
    wanted = int(os.environ.get("SHMACCUM_TRANSACTIONS", "1000"))
    seed = int(os.environ.get("SHMACCUM_SEED", str(random.SystemRandom().randrange(2**32))))
    print(f"seed {seed}")
    dice, ledger, log = random.Random(seed), Ledger(tmp_path / "ledger"), tmp_path / "log"
    Arena.create(
        arena_name, topics={TOPIC: PARTITIONS}, transactional_id="x", buffer_memory="1MiB", process_count=64
    ).close()
    roles: list[Callable[[], Child]] = [
        *[lambda: Child(work, arena_name, ledger, dice.randrange(2**32))] * WORKERS,
        *[lambda: Child(coordinate, arena_name, ledger, dice.randrange(2**32))] * COORDINATORS,
        lambda: Child(deliver, arena_name, log),
    ]
    children = [role() for role in roles]
    try:
        while not ledger.has_ended(wanted):
            ended = ledger.ended_count + 1 + dice.randrange(10)
            wait_until(functools.partial(ledger.has_ended, ended), "transactions end", 10 * WATCHDOG_S)
            for index in dice.sample(range(len(children)), 1 + dice.randrange(2)):
                children[index].kill()
                children[index] = roles[index]()
    finally:
        for child in children[:-1]:
            child.kill()
    try:
        with Producer(arena_name) as producer, producer.transaction():
            producer.send(TOPIC, b"last:0:0", partition=0)
    finally:
        children[-1].kill()
    assert "last:0:0" in committed(log)
    judge(ledger, log)
