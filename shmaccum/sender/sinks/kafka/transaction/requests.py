# SPDX-License-Identifier: Apache-2.0
"""Requests of a transaction, and their answers, as data.

No message of a library stands here: `shmaccum.sender.sinks.kafka.library.transaction_messages` makes messages of
requests and answers of messages.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from shmaccum.common.format.group_offsets import GroupMember, OffsetToCommit
from shmaccum.common.format.topic_partition import TopicPartition

NO_PRODUCER = -1


class CoordinatorKind(enum.IntEnum):
    """The two kinds of coordinators, by Kafka's numbers."""

    GROUP = 0
    TRANSACTION = 1


class CoordinatorKey(NamedTuple):
    """A coordinator: its kind, and the group or the transactional id that it coordinates."""

    kind: CoordinatorKind
    key: str


class TransactionalProducer(NamedTuple):
    """The three names of a transactional producer."""

    transactional_id: str
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_PRODUCER


# --- requests


class FindCoordinator(NamedTuple):
    """Any broker: which broker coordinates?"""

    coordinator: CoordinatorKey


class AskVersion(NamedTuple):
    """The transaction coordinator: which ``transaction.version`` holds in the cluster (KIP-890)?"""


class InitProducerId(NamedTuple):
    """The transaction coordinator: a producer id, or the next epoch of the one that is named (KIP-360).

    A transaction that is open is aborted by it.
    """

    producer: TransactionalProducer
    timeout_ms: int


class AddPartitions(NamedTuple):
    """The transaction coordinator: these partitions will have records of the transaction."""

    producer: TransactionalProducer
    places: tuple[TopicPartition, ...]


class AddOffsets(NamedTuple):
    """The transaction coordinator: this group will have offsets of the transaction."""

    producer: TransactionalProducer
    group: str


class CommitOffsets(NamedTuple):
    """The coordinator of the group: offsets that count when the transaction is committed."""

    producer: TransactionalProducer
    member: GroupMember
    offsets: tuple[tuple[TopicPartition, OffsetToCommit], ...]
    version: int
    """The transaction.version. From 2 on the broker itself adds the group."""


class EndTransaction(NamedTuple):
    """The transaction coordinator: commit, or abort."""

    producer: TransactionalProducer
    is_commit: bool
    version: int
    """The transaction.version. From 2 on the answer has a new epoch, and at times a new producer id."""


class FetchOffsets(NamedTuple):
    """The coordinator of the group: its committed offsets, when no transaction can change them any more (KIP-447).

    The protocol never asks this. An owner does that keeps its own progress in a group.
    """

    group: str


Request: TypeAlias = (
    "FindCoordinator | AskVersion | InitProducerId | AddPartitions | AddOffsets | CommitOffsets | EndTransaction"
)


@dataclass(frozen=True)
class TransactionResponse:
    """A broker's answer to one request; a field that the request does not have keeps its default."""

    error_code: int = 0
    message: str = ""
    """The words of the broker."""
    node_id: int = -1
    """The broker that coordinates."""
    version: int = 1
    """The transaction.version."""
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_PRODUCER
    error_codes: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The error of each partition."""
    offsets: Mapping[TopicPartition, OffsetToCommit] = field(default_factory=dict)
