# SPDX-License-Identifier: Apache-2.0
"""The state of one transactional id, as in Kafka's transaction coordinator (KIP-98, KIP-360).

::

               AddPartitions, AddOffsets            EndTxn                  every marker is written
    Empty ─────────────┐                   ┌──> PrepareCommit ──────────────> CompleteCommit ──┐
                       ├──> Ongoing ───────┤                                                   │
    Complete... ───────┘                   └──> PrepareAbort ───────────────> CompleteAbort ───┤
        ^                                           ^                                          │
        │      InitProducerId, time-out: epoch + 1 ─┘                                          │
        └──────────────────────────────────────────────────────────────────────────────────────┘

Rules: an id has one producer id and one epoch at a time. InitProducerId increments the epoch, so it fences an earlier
producer with the id: its requests are rejected, and so are its batches after the marker of the new epoch.
PrepareCommit and PrepareAbort are the decision, which is final. After the last epoch, the id gets a new producer id.

All states here are values, and each step is a function from a value to the next one. The caller writes the new value to
the file before it takes effect.
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
    """A state, under Kafka's name."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"


PREPARED = {TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT}


class TransactionRefusedError(Exception):
    """The request does not fit the state. The error is for the client."""

    def __init__(self, error: BrokerError) -> None:
        super().__init__(error)
        self.error = error

    def __str__(self) -> str:
        return self.error.name


class ProducerKey(NamedTuple):
    """The producer id and epoch that a client presents."""

    producer_id: int
    epoch: int


NO_PRODUCER = ProducerKey(NO_PRODUCER_ID, NO_EPOCH)


class TransactionalId(NamedTuple):
    """The state of a transactional id."""

    name: str
    producer_id: int
    epoch: int = NO_EPOCH
    """-1 means that no producer has the id yet."""
    former_epoch: int = NO_EPOCH
    """The epoch of the producer that requested the present one. -1 means that it named none."""
    former_producer_id: int = NO_PRODUCER_ID
    timeout_ms: int = 0
    """The longest time of an ongoing transaction."""
    state: TransactionState = TransactionState.EMPTY
    started_ms: int = -1
    """The start of the transaction on the wall clock, or -1 if none is ongoing."""
    updated_ms: int = -1
    places: frozenset[TopicPartition] = frozenset()
    """The partitions of the transaction."""
    groups: frozenset[str] = frozenset()
    """The groups for which it commits offsets."""

    @property
    def deadline_ms(self) -> float:
        """The time at which an ongoing transaction is aborted, on the wall clock."""
        return self.started_ms + self.timeout_ms if self.state is TransactionState.ONGOING else float("inf")

    @property
    def is_commit(self) -> bool:
        """True if the decision is to commit."""
        return self.state in {TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT}

    @property
    def is_unfinished(self) -> bool:
        """True while a transaction is ongoing or its markers are being written."""
        return self.state is TransactionState.ONGOING or self.state in PREPARED

    @property
    def is_used_up(self) -> bool:
        """True if the next epoch belongs to a new producer id. The last epoch is reserved for fencing."""
        return self.epoch >= PRODUCER_EPOCH_MAX - 1


def initialized(
    current: TransactionalId, timeout_ms: int, expected: ProducerKey, new_id: Callable[[], int], now_ms: int
) -> TransactionalId:
    """Return the id for a starting producer (InitProducerId). Nothing may be ongoing or prepared.

    Args:
        current: the state.
        timeout_ms: the longest time of a transaction.
        expected: the producer id and epoch that the client had, or `NO_PRODUCER` for a new producer.
        new_id: returns a new producer id.
        now_ms: the time on the wall clock.

    Raises:
        TransactionRefusedError: another producer has the id now.
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
        return taken  # the response to the same request was lost
    raise TransactionRefusedError(BrokerError.PRODUCER_FENCED)


def check_expected(current: TransactionalId, expected: ProducerKey) -> None:
    """Check the producer id and epoch that a client had (KIP-360).

    Raises:
        TransactionRefusedError: another producer has the id now.
    """
    is_former = expected.producer_id == current.former_producer_id and expected.epoch >= PRODUCER_EPOCH_MAX - 1
    is_known = expected.producer_id in (NO_PRODUCER_ID, current.producer_id) or is_former
    if not is_known and current.epoch != NO_EPOCH:
        raise TransactionRefusedError(BrokerError.PRODUCER_FENCED)


def check_producer(current: TransactionalId | None, producer: ProducerKey) -> TransactionalId:
    """Return the state, for the producer that has the id.

    Raises:
        TransactionRefusedError: the id is unknown, or its producer id or epoch differs.
    """
    if current is None or current.producer_id != producer.producer_id:
        raise TransactionRefusedError(BrokerError.INVALID_PRODUCER_ID_MAPPING)
    if current.epoch != producer.epoch:
        raise TransactionRefusedError(BrokerError.PRODUCER_FENCED)
    return current


def check_unprepared(current: TransactionalId) -> None:
    """Reject a request that must wait until the markers of a decision are written.

    Raises:
        TransactionRefusedError: the client must retry.
    """
    if current.state in PREPARED:
        raise TransactionRefusedError(BrokerError.CONCURRENT_TRANSACTIONS)


def extended(
    current: TransactionalId, now_ms: int, places: Iterable[TopicPartition] = (), groups: Iterable[str] = ()
) -> TransactionalId:
    """Return the transaction with more partitions or groups. The first ones start it.

    Raises:
        TransactionRefusedError: the previous transaction is not complete.
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
    """Return the transaction with its decision. A complete transaction with the same decision is returned unchanged.

    Raises:
        TransactionRefusedError: it has the other decision, there is none, or its markers are being written.
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
    """Return an ongoing transaction as aborted, because it timed out or another producer starts."""
    epoch = min(current.epoch + 1, PRODUCER_EPOCH_MAX)
    return current._replace(state=TransactionState.PREPARE_ABORT, epoch=epoch, former_epoch=NO_EPOCH, updated_ms=now_ms)


def completed(current: TransactionalId, now_ms: int) -> TransactionalId:
    """Return a decided transaction as complete, after all markers are written."""
    return current._replace(
        state=_COMPLETE[current.state], started_ms=-1, updated_ms=now_ms, places=frozenset(), groups=frozenset()
    )


_COMPLETE = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}
