# SPDX-License-Identifier: Apache-2.0
"""Random transactions against a simulated cluster: errors, lost responses, deaths and takeovers, time-outs, rivals.

A transaction is in the cluster whole or not at all, and no record is there twice. Unless it is UNKNOWN, the outcome
states which.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from shmaccum.common.format.group_offsets import GroupMember, OffsetToCommit
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.sender.sinks.kafka.transaction.protocol import (
    RecoveryState,
    State,
    TransactionOutcome,
    TransactionProtocol,
)
from shmaccum.sender.sinks.kafka.transaction.requests import InitProducerId, TransactionalProducer
from tests.unit.sender.sinks.simulated_coordinator import SimulatedCluster

ID = "orders-1"
PLACES = [TopicPartition("flights", number) for number in range(3)]
MEMBER = GroupMember("readers")
TRANSACTIONS_PER_RUN = 12
ROUNDS_MAX = 4000
PASSING = (7, 13, 14, 15, 16, 51)


@dataclass
class Work:
    """The memory that outlives an owner, like an arena: batches with sequences, offsets, the recovery state."""

    number: int
    batches: list[tuple[TopicPartition, str]]
    offset: int
    is_to_abort: bool
    sequences: dict[int, int] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)


class Owner:
    """Runs one transaction after another, and dies at random.

    Attributes:
        kept: the latest saved recovery state, for a successor.
        outcomes: the outcome of each transaction, by its number.
    """

    def __init__(self, cluster: SimulatedCluster, random: Random, *, has_rivals: bool) -> None:
        self.cluster = cluster
        self.random = random
        self.has_rivals = has_rivals
        self.kept = RecoveryState()
        self.now_s = 0.0
        self.outcomes: dict[int, TransactionOutcome] = {}
        self.work: Work | None = None
        self.next_sequence: dict[tuple[TransactionalProducer, TopicPartition], int] = {}
        self.protocol = self._new(RecoveryState())

    def _new(self, recovery_state: RecoveryState) -> TransactionProtocol:
        protocol = TransactionProtocol(ID, 60_000, recovery_state, retry_backoff_ms=10)
        protocol.initialize()
        return protocol

    def run(self, work: Work) -> None:
        """Run one transaction to its outcome."""
        self._get_ready()
        self.work = work
        self.protocol.begin()
        self._keep()
        for _ in range(ROUNDS_MAX):
            self._maybe_die()
            self._maybe_disturb()
            self._go_on(work)
            self._request()
            outcome = self.protocol.outcome
            if outcome is not None:
                self.outcomes[work.number] = outcome
                return
        raise AssertionError(f"{self.protocol} does not come to an end")

    def _get_ready(self) -> None:
        for _ in range(ROUNDS_MAX):
            if self.protocol.is_ready:
                return
            if self.protocol.recovery_state.state is State.FAILED:  # an operator restarts it
                self.protocol = self._new(RecoveryState())
            self._request()
        raise AssertionError(f"{self.protocol} does not become ready")

    def _go_on(self, work: Work) -> None:
        """Act as a sender does: add partitions, send batches without an ack, then end."""
        protocol = self.protocol
        if protocol.recovery_state.state is State.ABORT_ONLY:
            protocol.abort()
            self._keep()
        if protocol.recovery_state.state is not State.OPEN:
            return
        protocol.add_partitions(place for place, _ in work.batches)
        self._keep()
        if work.batches and self.random.random() < 0.02:
            protocol.batch_failed(0, "the batch expired")
        self._produce(work)
        if len(work.acked) == len(work.batches):
            self._end(work)

    def _end(self, work: Work) -> None:
        if self.protocol.recovery_state.state is not State.OPEN:
            return
        if work.is_to_abort:
            self.protocol.abort()
        else:
            self._add_offsets(work)
            self.protocol.commit()
        self._keep()

    def _produce(self, work: Work) -> None:
        """Send the first batch without an ack of each partition. A response may be lost."""
        for place in PLACES:
            waiting = [n for n, (of, _) in enumerate(work.batches) if of == place and n not in work.acked]
            if not waiting or not self.protocol.may_produce(place):
                continue
            number = waiting[0]
            producer = self.protocol.producer
            if number not in work.sequences:  # in the header before the first transmission
                work.sequences[number] = self.next_sequence.get((producer, place), 0)
                self.next_sequence[producer, place] = work.sequences[number] + 1
            if self.random.random() < 0.1:
                continue  # the request was lost
            code = self.cluster.produce(producer, place, work.sequences[number], work.batches[number][1])
            if self.random.random() < 0.1:
                continue  # the response was lost
            if code == 0:
                work.acked.add(number)
            else:
                self.protocol.batch_failed(code, f"error {code}")

    def _keep(self) -> None:
        self.kept = self.protocol.recovery_state

    def _request(self) -> None:
        self.now_s = max(self.now_s, self.protocol.resumes_at_s)
        found = self.protocol.next_request(self.now_s)
        if found is None:
            return
        self._keep()
        _, request = found
        chance = self.random.random()
        if chance < 0.1:
            self.protocol.missed(13, "the request was lost", self.now_s)
        elif chance < 0.2:
            self.protocol.answered(type(self.cluster.handle(request))(self.random.choice(PASSING)), self.now_s)
        elif chance < 0.3:
            self.cluster.handle(request)
            self.protocol.missed(13, "the answer was lost", self.now_s)
        elif chance < 0.35:
            self.cluster.handle(request)
            self._die()
        else:
            self.protocol.answered(self.cluster.handle(request), self.now_s)
            if self.random.random() < 0.9:
                self._keep()

    def _maybe_die(self) -> None:
        if self.random.random() < 0.05:
            self._die()

    def _die(self) -> None:
        """Replace the owner by a successor with the saved state, which adds the offsets again if needed."""
        self.protocol = self._new(self.kept)
        if self.kept.state is State.COMMITTING and not self.kept.is_end_sent and self.work is not None:
            self._add_offsets(self.work)

    def _add_offsets(self, work: Work) -> None:
        self.protocol.add_offsets(MEMBER, {PLACES[0]: OffsetToCommit(work.offset)})

    def _maybe_disturb(self) -> None:
        if not self.has_rivals:
            return
        if self.random.random() < 0.01:
            self.cluster.time_out()
        elif self.random.random() < 0.01:
            self.cluster.handle(InitProducerId(TransactionalProducer(ID), 60_000))


def check(owner: Owner, works: list[Work]) -> None:
    found = Counter(owner.cluster.committed())
    assert all(count == 1 for count in found.values()), "something is there twice"
    for work in works:
        values = {value for _, value in work.batches}
        present = values & found.keys()
        assert present in (set(), values), f"transaction {work.number} is there in part"
        outcome = owner.outcomes[work.number]
        if values and outcome is not TransactionOutcome.UNKNOWN:
            assert bool(present) == (outcome is TransactionOutcome.COMMITTED), f"transaction {work.number} is {outcome}"
    offset = owner.cluster.offsets.get(PLACES[0])
    ends = [
        work.offset
        for work in works
        if owner.outcomes[work.number] is TransactionOutcome.COMMITTED and not work.is_to_abort
    ]
    unsure = {work.offset for work in works if owner.outcomes[work.number] is TransactionOutcome.UNKNOWN}
    assert offset in {ends[-1] if ends else None, *unsure}


def new_work(number: int, random: Random) -> Work:
    batches = [(random.choice(PLACES), f"{number}-{index}") for index in range(random.randrange(7))]
    return Work(number, batches, offset=100 + number, is_to_abort=random.random() < 0.2)


def run(seed: int, version: int, *, has_rivals: bool) -> Owner:
    random = Random(seed)
    cluster = SimulatedCluster(version, PLACES)
    owner = Owner(cluster, random, has_rivals=has_rivals)
    works = [new_work(number, random) for number in range(TRANSACTIONS_PER_RUN)]
    for work in works:
        owner.run(work)
    check(owner, works)
    return owner


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("has_rivals", [False, True])
def test_every_transaction_is_whole_or_not_there(version: int, has_rivals: bool, seeded: Callable[[], Random]) -> None:
    random = seeded()
    outcomes: Counter[TransactionOutcome] = Counter()
    for _ in range(12):
        seed = random.randrange(2**32)
        print("seed", seed)
        outcomes.update(run(seed, version, has_rivals=has_rivals).outcomes.values())
    assert outcomes[TransactionOutcome.COMMITTED] > 0
    assert outcomes[TransactionOutcome.ABORTED] > 0
    if not has_rivals:
        assert outcomes[TransactionOutcome.UNKNOWN] == 0, "nobody else touches the transactional id"
