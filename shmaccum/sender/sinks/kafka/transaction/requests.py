# SPDX-License-Identifier: Apache-2.0
"""Requests of a transaction, and their responses, as data.

This module has no messages of a library: `shmaccum.sender.sinks.kafka.library.transaction_messages` converts requests
to messages, and messages to responses.
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
    """Transactional id, producer id and epoch of a producer."""

    transactional_id: str
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_PRODUCER


# --- requests


class FindCoordinator(NamedTuple):
    """To any broker: which broker is the coordinator?"""

    coordinator: CoordinatorKey


class AskVersion(NamedTuple):
    """To the transaction coordinator: which ``transaction.version`` does the cluster have (KIP-890)?"""


class InitProducerId(NamedTuple):
    """To the transaction coordinator: return a producer id, or the next epoch of a given one (KIP-360).

    It aborts the open transaction.
    """

    producer: TransactionalProducer
    timeout_ms: int


class AddPartitions(NamedTuple):
    """To the transaction coordinator: these partitions will have records of the transaction."""

    producer: TransactionalProducer
    places: tuple[TopicPartition, ...]


class AddOffsets(NamedTuple):
    """To the transaction coordinator: this group will have offsets of the transaction."""

    producer: TransactionalProducer
    group: str


class CommitOffsets(NamedTuple):
    """To the coordinator of the group: offsets that apply when the transaction is committed."""

    producer: TransactionalProducer
    member: GroupMember
    offsets: tuple[tuple[TopicPartition, OffsetToCommit], ...]
    version: int
    """The transaction.version. From 2 on, the broker itself adds the group."""


class EndTransaction(NamedTuple):
    """To the transaction coordinator: commit, or abort."""

    producer: TransactionalProducer
    is_commit: bool
    version: int
    """The transaction.version. From 2 on, the response has a new epoch, and sometimes a new producer id."""


class FetchOffsets(NamedTuple):
    """To the coordinator of the group: return its committed offsets that no open transaction can change (KIP-447).

    The protocol never sends it. An owner that stores its own progress in a group does.
    """

    group: str


Request: TypeAlias = (
    "FindCoordinator | AskVersion | InitProducerId | AddPartitions | AddOffsets | CommitOffsets | EndTransaction"
)


@dataclass(frozen=True)
class TransactionResponse:
    """A broker's response to one request. A field that the request does not have keeps its default."""

    error_code: int = 0
    message: str = ""
    """The broker's message."""
    node_id: int = -1
    """The coordinator."""
    version: int = 1
    """The transaction.version."""
    producer_id: int = NO_PRODUCER
    producer_epoch: int = NO_PRODUCER
    error_codes: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The error of each partition."""
    offsets: Mapping[TopicPartition, OffsetToCommit] = field(default_factory=dict)
