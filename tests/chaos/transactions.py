# SPDX-License-Identifier: Apache-2.0
"""Eight processes with the transactions of one arena, killed at random. Committed records are compared with a ledger.

Each process appends lines to the ledger, each by one write: ``N VALUE`` after a send, and in a second file
``N committed`` or ``N aborted`` after the call. A transaction whose coordinator was killed has no such line, and may
have either outcome.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from shmaccum import Producer, Sender
from shmaccum.arena import Arena
from shmaccum.exceptions import (
    ArenaBusyError,
    BufferExhaustedError,
    NoTransactionError,
    ProducerFencedError,
    TransactionEndedError,
    TransactionOutcomeUnknownError,
)
from shmaccum.producer.transaction import Transaction
from tests.support.processes import WATCHDOG_S, Child, wait_until

TOPIC = "t"
PARTITIONS = 4
WORKERS = 5
COORDINATORS = 2
LAST = "last"
"""The number of the last transaction, in the values of its records."""
ALL_SHARE = 0.05
"""The share of injuries that kill all processes."""
BUSY_MS = 5_000
PAUSE_S_MAX = 0.004
"""The longest pause of a worker between two records."""


def wanted_count() -> int:
    """Return the number of transactions of a long trial."""
    return int(os.environ.get("SHMACCUM_TRANSACTIONS", "1000"))


def make(name: str, **options: Any) -> None:
    """Create the arena of a trial."""
    Arena.create(
        name, topics={TOPIC: PARTITIONS}, transactional_id="x", buffer_memory="1MiB", process_count=64, **options
    ).close()


class MistakeError(Exception):
    """Causes an abort."""


Note = Callable[[int, str], None]


class Ledger:
    """The files to which the processes append lines."""

    def __init__(self, folder: Path) -> None:
        self._sent, self._ended = folder / "sent", folder / "ended"
        for path in (self._sent, self._ended):
            path.touch()

    def open(self) -> tuple[Note, Note]:
        """Return one process's functions that record a sent value and a transaction's outcome."""
        return self._note_in(self._sent), self._note_in(self._ended)

    @staticmethod
    def _note_in(path: Path) -> Note:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        return lambda number, fact: (os.write(descriptor, f"{number} {fact}\n".encode()), None)[1]

    def sent(self) -> dict[str, set[str]]:
        """Return the values of each transaction."""
        values: dict[str, set[str]] = defaultdict(set)
        for number, value in self._facts(self._sent):
            values[number].add(value)
        return values

    def outcomes(self) -> dict[str, str]:
        """Return the recorded outcomes, by transaction."""
        return dict(self._facts(self._ended))

    @staticmethod
    def _facts(path: Path) -> Iterator[tuple[str, str]]:
        for line in path.read_text().splitlines():
            number, _, fact = line.partition(" ")
            yield number, fact

    @property
    def ended_count(self) -> int:
        """The number of transactions with a recorded outcome."""
        return self._ended.read_bytes().count(b"\n")

    def has_ended(self, count: int) -> bool:
        return self.ended_count >= count


# --- processes

REFUSALS = (NoTransactionError, TransactionEndedError, ProducerFencedError, BufferExhaustedError)
"""The reasons why a record of a worker is in no transaction."""


def work(name: str, ledger: Ledger, seed: int) -> None:
    """Send in any open transaction, until the process is killed."""
    (note_sent, _), dice, place = ledger.open(), random.Random(seed), 0
    with Producer(name, max_block_ms=BUSY_MS) as producer:
        while True:
            number = producer.arena.native.transaction[0]
            value = f"{number}:{os.getpid()}:{place}"
            place += 1
            with contextlib.suppress(*REFUSALS):
                if number:
                    producer.join(number)
                    producer.send(TOPIC, value.encode(), partition=dice.randrange(PARTITIONS))
                    note_sent(number, value)
            time.sleep(dice.random() * PAUSE_S_MAX)


def coordinate(name: str, ledger: Ledger, seed: int) -> None:
    """Run one transaction after another, until the process is killed."""
    (note_sent, note_ended), dice = ledger.open(), random.Random(seed)
    with Producer(name) as producer:
        while True:
            with contextlib.suppress(ArenaBusyError, ProducerFencedError):
                run_one(producer, note_sent, note_ended, dice)


def run_one(producer: Producer, note_sent: Note, note_ended: Note, dice: random.Random) -> None:
    """Run one transaction, and record its outcome if it is known."""
    transaction = begun(producer)
    try:
        for place in range(dice.randrange(20)):
            value = f"{transaction.number}:{os.getpid()}:{place}"
            producer.send(TOPIC, value.encode(), partition=dice.randrange(PARTITIONS))
            note_sent(transaction.number, value)
        if dice.random() < 0.5:
            producer.flush()  # so that an abort also affects records in the log
        if dice.random() < 0.4:
            raise MistakeError
        commit(transaction, note_ended)
    except (MistakeError, NoTransactionError, TransactionEndedError, ProducerFencedError):
        transaction.abort()
        note_ended(transaction.number, "aborted")


def begun(producer: Producer) -> Transaction:
    """Begin the next transaction. If the arena was fenced, take its id back first."""
    try:
        return producer.transaction()
    except ProducerFencedError:  # the brokers aborted the last one at its timeout
        producer.init_transactions()
        return producer.transaction()


def commit(transaction: Transaction, note_ended: Note) -> None:
    """Commit, with any number of attempts."""
    while not transaction.is_over:
        with contextlib.suppress(TransactionOutcomeUnknownError):
            transaction.commit()
            note_ended(transaction.number, "committed")


def deliver(name: str, url: str) -> None:
    Sender(name, url, linger_ms=0, retry_backoff_ms=20, standby=True).run()


# --- a trial


class Trial:
    """The processes, each of which is replaced when it is killed.

    Args:
        name: the name of the arena.
        url: the sink.
        folder: the folder of the ledger.
        dice: draws every injury.

    Attributes:
        kills: how many processes of each role were killed.
    """

    def __init__(self, name: str, url: str, folder: Path, dice: random.Random) -> None:
        self.ledger = Ledger(folder)
        self.kills: Counter[str] = Counter()
        self._name = name
        self._dice = dice
        self._births: dict[str, Callable[[], Child]] = {
            "worker": lambda: Child(work, name, self.ledger, dice.randrange(2**32)),
            "coordinator": lambda: Child(coordinate, name, self.ledger, dice.randrange(2**32)),
            "sender": lambda: Child(deliver, name, url),
        }
        self._roles = ["worker"] * WORKERS + ["coordinator"] * COORDINATORS + ["sender"]
        self._children = [self._births[role]() for role in self._roles]

    def run(self, wanted: int, injuries: Sequence[Callable[[], object]] = ()) -> None:
        """Kill processes until this many transactions have ended. Spread the other injuries over that time."""
        left = list(injuries)
        while not self.ledger.has_ended(wanted):
            self.wait_until_ended(1 + self._dice.randrange(5))
            if left and self.ledger.ended_count * (len(injuries) + 1) >= wanted * (len(injuries) - len(left) + 1):
                left.pop(0)()
            everybody = range(len(self._roles))
            is_all = self._dice.random() < ALL_SHARE
            self.kill(everybody if is_all else self._dice.sample(everybody, 1 + self._dice.randrange(2)))

    def wait_until_ended(self, count: int) -> None:
        """Wait until this many more transactions have ended."""
        ended = functools.partial(self.ledger.has_ended, self.ledger.ended_count + count)
        wait_until(lambda: ended() or self._has_failed(), "transactions end", 10 * WATCHDOG_S)

    def _has_failed(self) -> bool:
        """Return false. Raises if a process ended by itself."""
        for child in self._children:
            if child.has_ended():
                raise AssertionError(child.join())
        return False

    def kill(self, indices: Iterable[int]) -> None:
        """Kill processes, and start their successors after the last kill."""
        killed = list(indices)
        for index in killed:
            self._children[index].kill()
            self.kills[self._roles[index]] += 1
        for index in killed:
            self._children[index] = self._births[self._roles[index]]()

    @contextlib.contextmanager
    def no_sender(self) -> Iterator[None]:
        """Kill the sender, and start another one at the end of the block."""
        self._children[-1].kill()
        self.kills["sender"] += 1
        try:
            yield
        finally:
            self._children[-1] = self._births["sender"]()

    def finish(self) -> None:
        """Kill all processes but the sender, then commit a last transaction in each partition."""
        for child in self._children[:-1]:
            child.kill()
        with Producer(self._name) as producer, begun(producer):
            for partition in range(PARTITIONS):
                producer.send(TOPIC, f"{LAST}:0:{partition}".encode(), partition=partition)

    def end(self) -> None:
        """Kill all processes."""
        for child in self._children:
            child.kill()


# --- the check


class Tally(NamedTuple):
    """The counts of a trial's transactions that have records."""

    committed: int
    aborted: int
    unknown_and_there: int
    """Transactions of killed coordinators whose records are visible."""
    unknown_and_not_there: int
    records: int
    """Visible records."""


def judge(ledger: Ledger, committed: Iterable[str]) -> Tally:
    """Compare the values that a reader of committed records got with the ledger.

    Raises:
        AssertionError: a transaction is incomplete, duplicated, or visible after an abort.
    """
    sent, outcomes = ledger.sent(), ledger.outcomes()
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for value in committed:
        seen[value.partition(":")[0]][value] += 1
    assert len(seen[LAST]) == PARTITIONS, "the reader did not come to the end"
    for number, values in sent.items():
        known, outcome = set(seen[number]), outcomes.get(number)
        assert all(count == 1 for count in seen[number].values()), f"transaction {number} is there twice"
        if outcome == "aborted":
            assert not known, f"transaction {number} was aborted"
        elif outcome == "committed" or known:
            assert values <= known, f"transaction {number} is there in part"
    kinds = Counter(outcomes.get(number) or str(bool(seen[number])) for number in sent)
    record_count = sum(count.total() for count in seen.values())
    return Tally(kinds["committed"], kinds["aborted"], kinds["True"], kinds["False"], record_count)
