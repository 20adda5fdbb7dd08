# SPDX-License-Identifier: Apache-2.0
"""The transactional producer of an arena, with a fake host and a simulated cluster."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from shmaccum.arena.results import TransactionReason
from shmaccum.common.format.group_offsets import GroupMember, OffsetToCommit, pack_offsets
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.sender.sinks.kafka import arena_transactions
from shmaccum.sender.sinks.kafka.arena_transactions import ASK_AGAIN_S, KafkaTransactions
from shmaccum.sender.sinks.kafka.transaction.driver import TransactionDriver
from shmaccum.sender.sinks.kafka.transaction.error_effects import GROUP_AUTHORIZATION_FAILED
from shmaccum.sender.sinks.kafka.transaction.protocol import (
    RecoveryState,
    State,
    TransactionOutcome,
    TransactionProtocol,
)
from shmaccum.sender.sinks.kafka.transaction.requests import CommitOffsets, InitProducerId, Request, TransactionResponse
from shmaccum.sender.sinks.kafka.transaction.stored_state import StoredState, pack
from shmaccum.sender.sinks.sink import Ack, Verdict
from tests.support.segment_log import batch_of
from tests.unit.sender.sinks.simulated_coordinator import SimulatedCluster

PLACE = TopicPartition("t", 0)
OFFSETS = TopicPartition("__consumer_offsets", 0)
ROUNDS_MAX = 20


@dataclass
class Asked:
    """A request with an immediate response."""

    answer: TransactionResponse | None
    error_code: int = 0
    message: str = ""
    is_answered: bool = True
    is_unsent: bool = False


class Cluster(SimulatedCluster):
    """A cluster with the client's interface. It may reject the offsets of groups."""

    is_bootstrapped = True

    def __init__(self, version: int = 2) -> None:
        super().__init__(version, [PLACE])
        self.asked: list[Request] = []
        self.refused_groups: set[str] = set()

    def ask(self, node_id: int | None, request: Any) -> Asked:
        del node_id
        self.asked.append(request)
        if isinstance(request, CommitOffsets) and request.member.group in self.refused_groups:
            return Asked(
                TransactionResponse(error_codes={place: GROUP_AUTHORIZATION_FAILED for place, _ in request.offsets})
            )
        return Asked(self.handle(request))

    def count(self, kind: type) -> int:
        """The number of requests of this kind."""
        return sum(isinstance(request, kind) for request in self.asked)


@dataclass
class Host:
    """The transactions of an arena."""

    number: int = 1
    state: str = "open"
    recovery_state: int = 0
    producer_identity: tuple[int, int, bytes] = (-1, -1, b"")
    transactional_id: str = "orders-1"
    timeout_ms: int = 60_000
    failures: list[tuple[TransactionReason, str]] = field(default_factory=list)

    def save_recovery_state(self, recovery_state: int) -> None:
        self.recovery_state = recovery_state

    def fail(self, why: TransactionReason, sentence: str) -> None:
        self.failures.append((why, sentence))
        self.state = "abort only"


def transactions_of(host: Host, cluster: Cluster, report: Callable[[str], object] = print) -> KafkaTransactions:
    def take_part(protocol: TransactionProtocol, save: Callable[[RecoveryState], object]) -> TransactionDriver:
        return TransactionDriver(cluster, protocol, save)

    return KafkaTransactions(host, take_part, report, retry_backoff_ms=0)


def step_until(transactions: KafkaTransactions, is_done: Callable[[], object]) -> None:
    for _ in range(ROUNDS_MAX):
        if is_done():
            return
        transactions.step()
    raise AssertionError("it takes too many rounds")


def begun(host: Host, cluster: Cluster) -> KafkaTransactions:
    """Return transactions with topic names and an open transaction that accepts offsets."""
    transactions = transactions_of(host, cluster)
    step_until(transactions, transactions.names)
    host.producer_identity = (*(transactions.names() or ()), b"")
    assert transactions.admit([OFFSETS]) == {OFFSETS}
    return transactions


def offsets_wire(sequence: int, group: str) -> Any:
    value = pack_offsets(GroupMember(group), {PLACE: OffsetToCommit(7)})
    return batch_of(1000, sequence, value)


def has_acks(transactions: KafkaTransactions, acks: list[Ack], count: int) -> bool:
    """Add the acks that have arrived."""
    acks += transactions.take_acks()
    return len(acks) >= count


def test_offsets_that_a_group_does_not_take_are_a_refused_record() -> None:
    host, cluster = Host(), Cluster()
    cluster.refused_groups = {"strangers"}
    transactions = begun(host, cluster)
    taken, refused = offsets_wire(0, "readers"), offsets_wire(1, "strangers")
    acks: list[Ack] = []
    for number, wire in enumerate([taken, refused], 1):
        transactions.add_offsets([wire])
        step_until(transactions, functools.partial(has_acks, transactions, acks, number))
    assert [(ack.wire, ack.verdict, ack.error_code) for ack in acks] == [
        (taken, Verdict.DELIVERED, 0),
        (refused, Verdict.REFUSED, GROUP_AUTHORIZATION_FAILED),
    ]
    assert "offsets of a group" in acks[1].message
    assert [why for why, _ in host.failures] == [TransactionReason.REFUSED]


def test_offsets_of_an_aborted_transaction_are_refused_without_an_error_of_kafka() -> None:
    host, cluster = Host(), Cluster()
    transactions = begun(host, cluster)
    transactions.add_offsets([offsets_wire(0, "readers")])
    host.state = "aborting"
    transactions.step()
    (ack,) = transactions.take_acks()
    assert (ack.verdict, ack.error_code) == (Verdict.REFUSED, 0)
    assert ack.message == "the offsets of a group: the transaction is aborted"


@pytest.mark.parametrize("state", ["none", "aborting"])
def test_a_fenced_arena_asks_for_no_names_until_its_id_is_taken_back(
    monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    class Clock:
        now_s = 1e6

        def monotonic(self) -> float:
            self.now_s += 2 * ASK_AGAIN_S
            return self.now_s

    monkeypatch.setattr(arena_transactions, "clock", Clock())
    fenced = RecoveryState(1000, 3, State.FAILED, outcome=TransactionOutcome.ABORTED)
    sentences: list[str] = []
    host, cluster = Host(state=state, producer_identity=(1000, 3, b"")), Cluster()
    host.recovery_state = pack(StoredState(fenced, host.number, is_fenced=True))
    transactions = transactions_of(host, cluster, sentences.append)
    for _ in range(ROUNDS_MAX):
        assert transactions.names() is None
        transactions.step()
    assert (cluster.asked, transactions.has_current_id) == ([], False)
    assert "another producer" in sentences[0]
    host.state, host.recovery_state = "none", 0
    step_until(transactions, lambda: cluster.asked)
    step_until(transactions, transactions.names)
    assert cluster.count(InitProducerId) == 1
