# SPDX-License-Identifier: Apache-2.0
"""The effect of each broker error on a batch: a table like Kafka's (org.apache.kafka.common.protocol.Errors, Sender).

This module decides nothing. `shmaccum.sender.sinks.kafka` calls `treatment(code)` and follows the row.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

UNKNOWN_SERVER_ERROR = -1
NONE = 0
UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
NOT_LEADER_OR_FOLLOWER = 6
REQUEST_TIMED_OUT = 7
MESSAGE_TOO_LARGE = 10
NETWORK_EXCEPTION = 13
INVALID_TOPIC_EXCEPTION = 17
TOPIC_AUTHORIZATION_FAILED = 29
UNSUPPORTED_VERSION = 35
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
DUPLICATE_SEQUENCE_NUMBER = 46
UNKNOWN_TOPIC_ID = 100


class Action(enum.Enum):
    """The treatment of a batch."""

    DELIVER = "deliver"
    """It is in the partition."""
    RETRY = "retry"
    """The same bytes are sent again, after the sender's backoff."""
    REFUSE = "refuse"
    """Its records fail."""
    SPLIT = "split"
    """The sender makes several batches of it."""
    SEQUENCE = "sequence"
    """Retry if a batch before it is missing and will be sent again; otherwise the partition starts a new epoch."""


class Treatment(NamedTuple):
    """One row of the table."""

    name: str
    """Kafka's name of the error."""
    action: Action
    sentence: str
    """The problem for people, and advice if there is any."""
    is_metadata_stale: bool = False
    """The leader may have changed: request metadata (InvalidMetadataException)."""


def _retry(name: str, sentence: str) -> Treatment:
    return Treatment(name, Action.RETRY, sentence)


def _moved(name: str, sentence: str) -> Treatment:
    return Treatment(name, Action.RETRY, sentence, is_metadata_stale=True)


def _refuse(name: str, sentence: str) -> Treatment:
    return Treatment(name, Action.REFUSE, sentence)


TREATMENTS: Mapping[int, Treatment] = {
    -1: _refuse("UNKNOWN_SERVER_ERROR", "the broker failed with an unknown error: check its log"),
    0: Treatment("NONE", Action.DELIVER, ""),
    2: _retry("CORRUPT_MESSAGE", "the broker received damaged bytes: check the network"),
    3: _moved("UNKNOWN_TOPIC_OR_PARTITION", "this broker has no such partition"),
    5: _moved("LEADER_NOT_AVAILABLE", "the partition has no leader at the moment"),
    6: _moved("NOT_LEADER_OR_FOLLOWER", "another broker leads the partition now"),
    7: _retry("REQUEST_TIMED_OUT", "the replicas did not acknowledge in time; the records may be stored"),
    8: _refuse("BROKER_NOT_AVAILABLE", "the broker is not available"),
    9: _moved("REPLICA_NOT_AVAILABLE", "the replica is not available"),
    10: Treatment(
        "MESSAGE_TOO_LARGE", Action.SPLIT, "larger than the topic's max.message.bytes: raise it, or send less"
    ),
    13: _moved("NETWORK_EXCEPTION", "the connection was lost before the broker responded; the records may be stored"),
    14: _retry("COORDINATOR_LOAD_IN_PROGRESS", "the coordinator is loading"),
    15: _retry("COORDINATOR_NOT_AVAILABLE", "the coordinator is not available"),
    16: _retry("NOT_COORDINATOR", "another broker is the coordinator now"),
    17: _refuse("INVALID_TOPIC_EXCEPTION", "the topic name is invalid, or the topic is internal to Kafka"),
    18: _refuse("RECORD_LIST_TOO_LARGE", "the batch is larger than the topic's segment.bytes: reduce batch_size"),
    19: _retry("NOT_ENOUGH_REPLICAS", "fewer replicas are in sync than min.insync.replicas requires"),
    20: _retry("NOT_ENOUGH_REPLICAS_AFTER_APPEND", "written, but fewer replicas are in sync than required"),
    21: _refuse("INVALID_REQUIRED_ACKS", "the broker does not know this value of acks: use all, 1 or 0"),
    29: _refuse("TOPIC_AUTHORIZATION_FAILED", "the user may not write to the topic: allow it, or use another user"),
    31: _refuse("CLUSTER_AUTHORIZATION_FAILED", "the user may not write idempotently: allow IdempotentWrite"),
    32: _refuse("INVALID_TIMESTAMP", "a timestamp is outside the range of the topic (message.timestamp.after.max.ms)"),
    35: _refuse("UNSUPPORTED_VERSION", "the broker does not support this version of Produce"),
    43: _refuse("UNSUPPORTED_FOR_MESSAGE_FORMAT", "the topic's message format is too old: upgrade it to 0.11 or newer"),
    44: _refuse("POLICY_VIOLATION", "a policy of the broker forbids it"),
    45: Treatment("OUT_OF_ORDER_SEQUENCE_NUMBER", Action.SEQUENCE, "the batch before this one did not arrive"),
    46: Treatment("DUPLICATE_SEQUENCE_NUMBER", Action.DELIVER, "the batch was stored already; its offset is unknown"),
    47: Treatment("INVALID_PRODUCER_EPOCH", Action.SEQUENCE, "a newer epoch has written to the partition"),
    48: _refuse("INVALID_TXN_STATE", "the producer id is in a transaction of another producer"),
    49: _refuse("INVALID_PRODUCER_ID_MAPPING", "the producer id belongs to a transactional id"),
    51: _retry("CONCURRENT_TRANSACTIONS", "a transaction is being ended"),
    53: _refuse("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "the user may not use the transactional id"),
    54: _refuse("SECURITY_DISABLED", "security is disabled at the broker: check security_protocol"),
    56: _moved("KAFKA_STORAGE_ERROR", "a disk of the broker failed; another broker will lead"),
    59: Treatment("UNKNOWN_PRODUCER_ID", Action.SEQUENCE, "the broker has forgotten the producer id"),
    72: _moved("LISTENER_NOT_FOUND", "the leader has no listener of this name"),
    74: _moved("FENCED_LEADER_EPOCH", "the leader's epoch is newer than the one known here"),
    75: _moved("UNKNOWN_LEADER_EPOCH", "the leader's epoch is older than the one known here"),
    76: _refuse("UNSUPPORTED_COMPRESSION_TYPE", "the broker cannot read this compression: choose another one"),
    87: _refuse("INVALID_RECORD", "the broker rejected a record, for example with a null key in a compacted topic"),
    89: _retry("THROTTLING_QUOTA_EXCEEDED", "a quota is exhausted"),
    90: _refuse("PRODUCER_FENCED", "a newer producer has taken the transactional id"),
    100: _moved("UNKNOWN_TOPIC_ID", "the topic was deleted, and perhaps created again"),
    103: _moved("INCONSISTENT_TOPIC_ID", "the topic was created again"),
    120: _refuse("TRANSACTION_ABORTABLE", "the transaction must be aborted"),
}


def treatment(code: int) -> Treatment:
    """Return the row of an error code. Codes that are newer than this table get a row of their own."""
    known = TREATMENTS.get(code)
    return known or _refuse(f"ERROR_{code}", "the broker answered with an error this version does not know")


def sentence(code: int, detail: str | None = None) -> str:
    """Return the error's name and sentence, and the broker's message about this batch."""
    row = treatment(code)
    return f"{row.name}: {row.sentence}" + (f" (broker: {detail})" if detail else "")
