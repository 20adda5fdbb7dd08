# SPDX-License-Identifier: Apache-2.0
"""The error codes are those of Kafka, as kafka-python has them."""

from __future__ import annotations

import kafka.errors

from shmaccum.log.files.broker_error import BrokerError

RENAMED = {
    "UNKNOWN_SERVER_ERROR": "UNKNOWN",
    "NONE": "NO_ERROR",
    "NOT_LEADER_OR_FOLLOWER": "NOT_LEADER_FOR_PARTITION",
    "MESSAGE_TOO_LARGE": "MESSAGE_SIZE_TOO_LARGE",
    "INVALID_TOPIC_EXCEPTION": "INVALID_TOPIC",
    "INVALID_REPLICA_ASSIGNMENT": "INVALID_REPLICATION_ASSIGNMENT",
}
"""Kafka's name -> the name in kafka-python."""
UNKNOWN = {"INVALID_REGULAR_EXPRESSION": 128}
"""The codes that kafka-python does not have."""


def test_each_code_has_the_number_of_kafka() -> None:
    classes = [found for found in vars(kafka.errors).values() if isinstance(found, type) and hasattr(found, "errno")]
    known = {found.message: found.errno for found in classes if hasattr(found, "message")}
    expected = {name: known.get(RENAMED.get(name, name)) for name in BrokerError.__members__}
    assert {name: each.value for name, each in BrokerError.__members__.items()} == expected | UNKNOWN
