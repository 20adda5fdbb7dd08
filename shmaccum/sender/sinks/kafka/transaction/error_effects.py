# SPDX-License-Identifier: Apache-2.0
"""The effect of each broker error on each request of a transaction (the handlers of Kafka's TransactionManager).

This module decides nothing: `protocol` calls `effect_of(request, code)` and follows the result.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from shmaccum.sender.sinks.kafka import errors
from shmaccum.sender.sinks.kafka.transaction.requests import (
    AddOffsets,
    AddPartitions,
    AskVersion,
    CommitOffsets,
    EndTransaction,
    FindCoordinator,
    InitProducerId,
    Request,
)

REQUEST_TIMED_OUT = errors.REQUEST_TIMED_OUT
UNKNOWN_SERVER_ERROR = errors.UNKNOWN_SERVER_ERROR
OFFSET_METADATA_TOO_LARGE = 12
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
ILLEGAL_GENERATION = 22
UNKNOWN_MEMBER_ID = 25
TOPIC_AUTHORIZATION_FAILED = errors.TOPIC_AUTHORIZATION_FAILED
GROUP_AUTHORIZATION_FAILED = 30
CLUSTER_AUTHORIZATION_FAILED = 31
UNSUPPORTED_VERSION = errors.UNSUPPORTED_VERSION
UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
INVALID_TRANSACTION_TIMEOUT = 50
CONCURRENT_TRANSACTIONS = 51
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
OPERATION_NOT_ATTEMPTED = 55
UNKNOWN_PRODUCER_ID = 59
FENCED_INSTANCE_ID = 82
PRODUCER_FENCED = 90
TRANSACTION_ABORTABLE = 120

RETRIABLE = frozenset(
    {
        *(2, 3, 5, 6, 7, 9, 13, 14, 15, 16, 19, 20, 41, 51, 56, 70, 71, 72, 74, 75, 78, 80, 83, 84, 88, 89),
        *(100, 103, 106, 122, 123),
    }
)
"""Transient errors (org.apache.kafka.common.errors.RetriableException and its subclasses, Kafka 4.1)."""


class Effect(enum.Enum):
    """The effect of an error on a request, or on its transaction."""

    DONE = "done"
    RETRY = "retry"
    """The same request is sent again, after a pause."""
    FIND = "find"
    """Another broker is the coordinator: it is looked up, and gets the request."""
    ABORT = "abort"
    """The transaction can only be aborted. The next one may succeed."""
    BUMP = "bump"
    """As ABORT, and the producer needs a new epoch before its next transaction."""
    FENCED = "fenced"
    """Another producer has taken the transactional id, or the broker aborted the transaction after its timeout."""
    FATAL = "fatal"
    """The producer can do no transaction any more."""


OF_EVERY_COORDINATOR: Mapping[int, Effect] = {
    COORDINATOR_NOT_AVAILABLE: Effect.FIND,
    NOT_COORDINATOR: Effect.FIND,
    INVALID_PRODUCER_EPOCH: Effect.FENCED,
    PRODUCER_FENCED: Effect.FENCED,
    TRANSACTION_ABORTABLE: Effect.ABORT,
}
OF_A_MAPPING: Mapping[int, Effect] = {
    **OF_EVERY_COORDINATOR,
    UNKNOWN_PRODUCER_ID: Effect.BUMP,
    INVALID_PRODUCER_ID_MAPPING: Effect.BUMP,
}
"""Errors of requests that name a transaction. The coordinator may have forgotten its producer id."""

EFFECTS: Mapping[type, Mapping[int, Effect]] = {
    FindCoordinator: {GROUP_AUTHORIZATION_FAILED: Effect.ABORT, TRANSACTION_ABORTABLE: Effect.ABORT},
    AskVersion: OF_EVERY_COORDINATOR,
    InitProducerId: {
        **OF_EVERY_COORDINATOR,
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Effect.ABORT,
        CLUSTER_AUTHORIZATION_FAILED: Effect.ABORT,
    },
    AddPartitions: {
        **OF_A_MAPPING,
        TOPIC_AUTHORIZATION_FAILED: Effect.ABORT,
        OPERATION_NOT_ATTEMPTED: Effect.ABORT,
        TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Effect.FATAL,
        INVALID_TXN_STATE: Effect.FATAL,
    },
    AddOffsets: {**OF_A_MAPPING, GROUP_AUTHORIZATION_FAILED: Effect.ABORT},
    CommitOffsets: {
        **OF_EVERY_COORDINATOR,
        REQUEST_TIMED_OUT: Effect.FIND,
        GROUP_AUTHORIZATION_FAILED: Effect.ABORT,
        FENCED_INSTANCE_ID: Effect.ABORT,
        UNKNOWN_MEMBER_ID: Effect.ABORT,
        ILLEGAL_GENERATION: Effect.ABORT,
    },
    EndTransaction: OF_A_MAPPING,
}
OTHERWISE: Mapping[type, Effect] = {AddPartitions: Effect.ABORT}
"""The effect of a permanent error that the table above does not have. For all other requests, it is FATAL."""

OF_A_BATCH: Mapping[int, Effect] = {
    CLUSTER_AUTHORIZATION_FAILED: Effect.FATAL,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Effect.FATAL,
    PRODUCER_FENCED: Effect.FENCED,
    UNSUPPORTED_VERSION: Effect.FATAL,
    TRANSACTION_ABORTABLE: Effect.ABORT,
}
"""Errors of Produce that end more than one transaction, or need no new epoch (maybeTransitionToErrorState)."""

SEVERITY = (Effect.DONE, Effect.RETRY, Effect.FIND, Effect.ABORT, Effect.BUMP, Effect.FENCED, Effect.FATAL)


def effect_of(request: Request, code: int) -> Effect:
    """Return the effect of a broker's error on a request; DONE if there is no error."""
    if code == 0:
        return Effect.DONE
    known = EFFECTS[type(request)].get(code)
    if known is not None:
        return known
    return Effect.RETRY if code in RETRIABLE else OTHERWISE.get(type(request), Effect.FATAL)


def effect_of_batch(code: int) -> Effect:
    """Return the effect of a permanently failed batch on its transaction. Code 0: it expired before it was sent."""
    return OF_A_BATCH.get(code, Effect.BUMP)


SENTENCES: Mapping[int, tuple[str, str]] = {
    OFFSET_METADATA_TOO_LARGE: (
        "OFFSET_METADATA_TOO_LARGE",
        "the metadata of an offset are longer than the broker's offset.metadata.max.bytes",
    ),
    ILLEGAL_GENERATION: ("ILLEGAL_GENERATION", "the group was rebalanced: read again from its committed offsets"),
    UNKNOWN_MEMBER_ID: ("UNKNOWN_MEMBER_ID", "the group does not know the member: read again from its offsets"),
    GROUP_AUTHORIZATION_FAILED: ("GROUP_AUTHORIZATION_FAILED", "the user may not read the group: allow it"),
    INVALID_TXN_STATE: ("INVALID_TXN_STATE", "the coordinator has no such transaction, or ended it otherwise"),
    INVALID_PRODUCER_ID_MAPPING: ("INVALID_PRODUCER_ID_MAPPING", "the coordinator has forgotten the producer id"),
    INVALID_TRANSACTION_TIMEOUT: (
        "INVALID_TRANSACTION_TIMEOUT",
        "the broker allows no transaction that long: shorten it, or raise the broker's transaction.max.timeout.ms",
    ),
    OPERATION_NOT_ATTEMPTED: ("OPERATION_NOT_ATTEMPTED", "another partition of the request was refused"),
    FENCED_INSTANCE_ID: ("FENCED_INSTANCE_ID", "another consumer has taken the group.instance.id"),
    INVALID_PRODUCER_EPOCH: (
        "INVALID_PRODUCER_EPOCH",
        "another producer has taken the transactional id, or the transaction took longer than its timeout",
    ),
    PRODUCER_FENCED: (
        "PRODUCER_FENCED",
        "another producer has taken the transactional id, or the transaction took longer than its timeout",
    ),
}
"""Names and sentences of errors that a batch cannot have, or that have another meaning for a transaction."""


def sentence(code: int, detail: str = "") -> str:
    """Return the error's name and sentence, and the broker's message."""
    if code not in SENTENCES:
        return errors.sentence(code, detail or None)
    name, text = SENTENCES[code]
    return f"{name}: {text}" + (f" (broker: {detail})" if detail else "")
