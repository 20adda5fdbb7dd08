# SPDX-License-Identifier: Apache-2.0
"""The state of one transactional id, as Kafka's transaction coordinator has it (KIP-98, KIP-360).

::

               AddPartitions, AddOffsets            EndTxn                  every marker is written
    Empty ─────────────┐                   ┌──> PrepareCommit ──────────────> CompleteCommit ──┐
                       ├──> Ongoing ───────┤                                                   │
    Complete... ───────┘                   └──> PrepareAbort ───────────────> CompleteAbort ───┤
        ^                                           ^                                          │
        │      InitProducerId, time-out: epoch + 1 ─┘                                          │
        └──────────────────────────────────────────────────────────────────────────────────────┘

Rules: an id has one producer id and one epoch at a time. InitProducerId raises the epoch, so a former producer of the
id is fenced: its requests are refused, and its batches by the markers of the new epoch. PrepareCommit and PrepareAbort
are the decision, which nothing takes back. An epoch that is used up is followed by another producer id.

Everything here is a value, and every step is a function from a value to the next one. The caller writes the new value
down before it counts.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import NamedTuple

from shmaccum.common.format.batch_header import PRODUCER_EPOCH_MAX
from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.log.files.broker_error import BrokerError

NO_PRODUCER_ID = -1
NO_EPOCH = -1


class TransactionState(enum.Enum):
    """A state, by Kafka's name."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


PREPARED = {TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}


class TransactionRefusedError(Exception):
    """The request does not fit the state; the error is for the client."""

    def __init__(self, error: BrokerError) -> None:
        super().__init__(error.name)
        self.error = error


class ProducerKey(NamedTuple):
    """The producer that a client says it is."""

    producer_id: int
    epoch: int


NO_PRODUCER = ProducerKey(NO_PRODUCER_ID, NO_EPOCH)


class TransactionalId(NamedTuple):
    """The state of a transactional id."""

    name: str
    producer_id: int
    epoch: int = NO_EPOCH
    """-1: no producer has it yet."""
    former_epoch: int = NO_EPOCH
    """The epoch of the producer that asked for the present one; -1: it did not tell."""
    former_producer_id: int = NO_PRODUCER_ID
    timeout_ms: int = 0
    """The longest time that a transaction may be ongoing."""
    state: TransactionState = TransactionState.EMPTY
    started_ms: int = -1
    """The time at which the transaction began, by the wall clock; -1: none is ongoing."""
    updated_ms: int = -1
    places: frozenset[TopicPartition] = frozenset()
    """The partitions of the transaction."""
    groups: frozenset[str] = frozenset()
    """The groups for which it commits offsets."""

    @property
    def deadline_ms(self) -> float:
        """When an ongoing transaction is to be aborted, by the wall clock."""
        return self.started_ms + self.timeout_ms if self.state is TransactionState.ONGOING else float("inf")

    @property
    def is_commit(self) -> bool:
        """True when the decision is to commit."""
        return self.state in {TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT}

    @property
    def is_unfinished(self) -> bool:
        """True while a transaction is ongoing, or its markers are being written."""
        return self.state is TransactionState.ONGOING or self.state in PREPARED

    @property
    def is_used_up(self) -> bool:
        """True when the next epoch belongs to a new producer id; the last one is kept to fence."""
        return self.epoch >= PRODUCER_EPOCH_MAX - 1


def initialized(
    current: TransactionalId, timeout_ms: int, expected: ProducerKey, new_id: Callable[[], int], now_ms: int
) -> TransactionalId:
    """The id for a producer that begins (InitProducerId); nothing is ongoing or prepared.

    Args:
        current: the state.
        timeout_ms: the longest time of a transaction.
        expected: the producer that the client was until now; `NO_PRODUCER`: it is a new one.
        new_id: makes a producer id.
        now_ms: by the wall clock.

    Raises:
        TransactionRefusedError: another producer has the id by now.
    """
    check_expected(current, expected)
    taken = current._replace(timeout_ms=timeout_ms, state=TransactionState.EMPTY, started_ms=-1, updated_ms=now_ms)
    taken = taken._replace(places=frozenset(), groups=frozenset())
    if current.is_used_up and expected.epoch in (NO_EPOCH, current.epoch):
        return taken._replace(
            producer_id=new_id(), epoch=0, former_epoch=expected.epoch, former_producer_id=current.producer_id
        )
    if expected.producer_id == NO_PRODUCER_ID:
        return taken._replace(epoch=current.epoch + 1, former_epoch=NO_EPOCH)
    if current.epoch in (NO_EPOCH, expected.epoch):
        return taken._replace(epoch=current.epoch + 1, former_epoch=current.epoch)
    if expected.epoch == current.former_epoch:
        return taken  # the answer to the same request was lost
    raise TransactionRefusedError(BrokerError.PRODUCER_FENCED)


def check_expected(current: TransactionalId, expected: ProducerKey) -> None:
    """Judges the producer that a client was until now (KIP-360).

    Raises:
        TransactionRefusedError: another producer has the id by now.
    """
    is_former = expected.producer_id == current.former_producer_id and expected.epoch >= PRODUCER_EPOCH_MAX - 1
    is_known = expected.producer_id in (NO_PRODUCER_ID, current.producer_id) or is_former
    if not is_known and current.epoch != NO_EPOCH:
        raise TransactionRefusedError(BrokerError.PRODUCER_FENCED)


def check_producer(current: TransactionalId | None, producer: ProducerKey) -> TransactionalId:
    """The state, for the producer that has the id.

    Raises:
        TransactionRefusedError: the id or its producer id is another one, or its epoch is.
    """
    if current is None or current.producer_id != producer.producer_id:
        raise TransactionRefusedError(BrokerError.INVALID_PRODUCER_ID_MAPPING)
    if current.epoch != producer.epoch:
        raise TransactionRefusedError(BrokerError.PRODUCER_FENCED)
    return current


def check_unprepared(current: TransactionalId) -> None:
    """Refuses what has to wait until the markers of a decision are written.

    Raises:
        TransactionRefusedError: the client asks again after a while.
    """
    if current.state in PREPARED:
        raise TransactionRefusedError(BrokerError.CONCURRENT_TRANSACTIONS)


def extended(
    current: TransactionalId, now_ms: int, places: Iterable[TopicPartition] = (), groups: Iterable[str] = ()
) -> TransactionalId:
    """The transaction with more partitions or groups; the first ones begin it.

    Raises:
        TransactionRefusedError: the last transaction is not complete.
    """
    check_unprepared(current)
    is_ongoing = current.state is TransactionState.ONGOING
    grown = current._replace(
        places=(current.places if is_ongoing else frozenset()).union(places),
        groups=(current.groups if is_ongoing else frozenset()).union(groups),
        state=TransactionState.ONGOING,
        started_ms=current.started_ms if is_ongoing else now_ms,
    )
    return current if grown == current else grown._replace(updated_ms=now_ms)


def decided(current: TransactionalId, now_ms: int, *, is_commit: bool) -> TransactionalId:
    """The transaction with its decision; a complete one that was decided so is given back as it is.

    Raises:
        TransactionRefusedError: it was decided otherwise, there is none, or its markers are being written.
    """
    wanted = TransactionState.PREPARE_COMMIT if is_commit else TransactionState.PREPARE_ABORT
    if current.state is TransactionState.ONGOING:
        return current._replace(state=wanted, updated_ms=now_ms)
    if current.state is wanted:
        raise TransactionRefusedError(BrokerError.CONCURRENT_TRANSACTIONS)
    if current.state is _COMPLETE[wanted]:
        return current
    raise TransactionRefusedError(BrokerError.INVALID_TXN_STATE)


def fenced(current: TransactionalId, now_ms: int) -> TransactionalId:
    """An ongoing transaction that is aborted because its time is over, or another producer begins."""
    epoch = min(current.epoch + 1, PRODUCER_EPOCH_MAX)
    return current._replace(state=TransactionState.PREPARE_ABORT, epoch=epoch, former_epoch=NO_EPOCH, updated_ms=now_ms)


def completed(current: TransactionalId, now_ms: int) -> TransactionalId:
    """A decided transaction whose markers are all written."""
    return current._replace(
        state=_COMPLETE[current.state], started_ms=-1, updated_ms=now_ms, places=frozenset(), groups=frozenset()
    )


_COMPLETE = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}
