# SPDX-License-Identifier: Apache-2.0
"""A cluster without I/O: the rules of Kafka's transaction coordinator, groups and partitions.

It supports transaction.version 1 and 2, raises epochs as in KIP-360 and KIP-890, drops duplicates by sequences, and
shows what a ``read_committed`` consumer sees (TransactionCoordinator, TransactionMetadata, ProducerStateManager).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shmaccum.common.format.topic_partition import TopicPartition
from shmaccum.sender.sinks.kafka.transaction.requests import (
    AddOffsets,
    AddPartitions,
    AskVersion,
    CommitOffsets,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    Request,
    TransactionalProducer,
    TransactionResponse,
)

INVALID_TXN_STATE, PRODUCER_FENCED, OUT_OF_ORDER = 48, 90, 45
NO_EPOCH = -1


@dataclass
class PartitionLog:
    """The records of a partition, each with its transaction's end."""

    records: list[tuple[tuple[int, int], str]] = field(default_factory=list)
    """(producer id, number of the transaction at the coordinator) and the value."""
    sequences: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The epoch and the next sequence of each producer id."""


class SimulatedCluster:
    """One transactional id, its coordinator, a group and some partitions.

    Args:
        version: transaction.version.
        places: the partitions that exist.
    """

    def __init__(self, version: int, places: list[TopicPartition]) -> None:
        self.version = version
        self.logs = {place: PartitionLog() for place in places}
        self.producer_id, self.epoch, self.last_epoch = 1000, NO_EPOCH, NO_EPOCH
        self.ended: bool | None = None
        """Whether the last transaction was committed. It is None at first and while one is open."""
        self.number = 0
        self.is_ongoing = False
        self.added: set[TopicPartition] = set()
        self.has_group = False
        self.offsets: dict[TopicPartition, int] = {}
        self._pending: dict[TopicPartition, int] = {}
        self._outcomes: dict[tuple[int, int], bool] = {}

    # --- reads

    def committed(self) -> list[str]:
        """The values of all partitions that a read_committed consumer sees."""
        return [value for log in self.logs.values() for mark, value in log.records if self._outcomes.get(mark) is True]

    # --- time-outs

    def time_out(self) -> None:
        """Abort the transaction at its time-out."""
        if self.is_ongoing:
            self._end(is_commit=False)
            self._raise_epoch()
            self.last_epoch = NO_EPOCH

    # --- requests

    def handle(self, request: Request) -> TransactionResponse:
        """Carry out a request."""
        if isinstance(request, FindCoordinator):
            return TransactionResponse(node_id=1)
        if isinstance(request, AskVersion):
            return TransactionResponse(version=self.version)
        if isinstance(request, InitProducerId):
            return self._initialize(request.producer)
        if isinstance(request, EndTransaction):
            return self._end_request(request)
        code = self._check(request.producer)
        if isinstance(request, AddPartitions):
            if code == 0:
                self._open(request.places)
            return TransactionResponse(error_codes=dict.fromkeys(request.places, code))
        if isinstance(request, AddOffsets):
            if code == 0:
                self._open(())
                self.has_group = True
            return TransactionResponse(code)
        return self._commit_offsets(request, code)

    def produce(self, producer: TransactionalProducer, place: TopicPartition, sequence: int, value: str) -> int:
        """Append a record, and return the error code."""
        log = self.logs[place]
        epoch, expected = log.sequences.get(producer.producer_id, (NO_EPOCH, 0))
        if producer.producer_epoch == epoch and sequence < expected:
            return 0  # a duplicate
        if code := self._check(producer):
            return 47 if code == PRODUCER_FENCED else code
        if self.version == 1 and place not in self.added:
            return INVALID_TXN_STATE
        if sequence != (expected if producer.producer_epoch == epoch else 0):
            return OUT_OF_ORDER
        self._open([place])
        log.sequences[producer.producer_id] = (producer.producer_epoch, sequence + 1)
        log.records.append(((producer.producer_id, self.number), value))
        return 0

    def _check(self, producer: TransactionalProducer) -> int:
        is_current = (producer.producer_id, producer.producer_epoch) == (self.producer_id, self.epoch)
        return 0 if is_current else PRODUCER_FENCED

    def _open(self, places: tuple[TopicPartition, ...] | list[TopicPartition]) -> None:
        if not self.is_ongoing:
            self.is_ongoing, self.ended = True, None
            self.number += 1
        self.added |= set(places)

    def _initialize(self, producer: TransactionalProducer) -> TransactionResponse:
        """A producer that sends its epoch gets the next one, and the same one for a repeated request (KIP-360)."""
        if producer.producer_epoch != NO_EPOCH and producer.producer_id == self.producer_id:
            if producer.producer_epoch == self.last_epoch:
                return TransactionResponse(producer_id=self.producer_id, producer_epoch=self.epoch)
            if producer.producer_epoch != self.epoch:
                return TransactionResponse(PRODUCER_FENCED)
        elif producer.producer_epoch != NO_EPOCH:
            return TransactionResponse(PRODUCER_FENCED)
        if self.is_ongoing:
            self._end(is_commit=False)
        last = self.epoch if producer.producer_epoch != NO_EPOCH else NO_EPOCH
        self._raise_epoch()
        self.last_epoch = last
        self.ended = None
        return TransactionResponse(producer_id=self.producer_id, producer_epoch=self.epoch)

    def _raise_epoch(self) -> None:
        self.epoch += 1

    def _end_request(self, request: EndTransaction) -> TransactionResponse:
        producer = request.producer
        if self.version == 2 and (producer.producer_id, producer.producer_epoch) == (self.producer_id, self.last_epoch):
            return self._ended_before(request)
        if self._check(producer):
            return TransactionResponse(PRODUCER_FENCED)
        if self.is_ongoing:
            self._end(is_commit=request.is_commit)
            if self.version == 2:
                self.last_epoch = self.epoch
                self._raise_epoch()
            return self._names()
        if self.version == 2 and not request.is_commit:
            self.last_epoch = self.epoch
            self._raise_epoch()
            self.ended = False
            return self._names()
        return self._ended_before(request)

    def _ended_before(self, request: EndTransaction) -> TransactionResponse:
        return self._names() if self.ended is request.is_commit else TransactionResponse(INVALID_TXN_STATE)

    def _names(self) -> TransactionResponse:
        return (
            TransactionResponse(producer_id=self.producer_id, producer_epoch=self.epoch)
            if self.version == 2
            else TransactionResponse()
        )

    def _end(self, *, is_commit: bool) -> None:
        self._outcomes[self.producer_id, self.number] = is_commit
        if is_commit:
            self.offsets.update(self._pending)
        self._pending.clear()
        self.added.clear()
        self.has_group = False
        self.is_ongoing, self.ended = False, is_commit

    def _commit_offsets(self, request: CommitOffsets, code: int) -> TransactionResponse:
        if code == 0 and self.version == 1 and not self.has_group:
            code = INVALID_TXN_STATE
        if code == 0:
            self._open(())
            self._pending.update({place: offset.offset for place, offset in request.offsets})
        return TransactionResponse(error_codes={place: code for place, _ in request.offsets})
